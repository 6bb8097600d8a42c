//! The ledger of a bounded resource that clients share: who holds how much, and who has to give way.
//!
//! ```text
//! client (source address) -> connection -> holders, oldest first
//! ```
//!
//! The ledger is work-conserving: one client may hold everything until another one needs a part. Then the client that
//! holds most gives way, and of its connections the one that holds most, with its oldest holder. Clients behind one
//! address are one client, so they share by connection. The sequence of such evictions ends where all shares are equal
//! or smaller because no more is needed (max-min fairness).
//!
//! A value without clock, locks and sockets: `request_slots` and `held_bodies` apply it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Which holder: client, connection, and the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HolderId<C> {
    pub(crate) client: C,
    pub(crate) connection: u64,
    sequence: u64,
}

#[derive(Debug)]
pub(crate) struct FairShares<C, H> {
    used: usize,
    sequence: u64,
    clients: BTreeMap<C, ClientShare<H>>,
    /// The last one holds most; among equals the one whose oldest holder is oldest.
    by_use: BTreeSet<(usize, Reverse<u64>, C)>,
}

#[derive(Debug)]
struct ClientShare<H> {
    used: usize,
    connections: BTreeMap<u64, ConnectionShare<H>>,
    by_use: BTreeSet<(usize, Reverse<u64>, u64)>,
    /// Sequence numbers of all holders.
    oldest: BTreeSet<u64>,
}

#[derive(Debug)]
struct ConnectionShare<H> {
    used: usize,
    /// By sequence number.
    holders: BTreeMap<u64, Held<H>>,
}

#[derive(Debug)]
struct Held<H> {
    amount: usize,
    since: u64,
    holder: H,
}

/// A claim that does not fit, and what may be evicted for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim<C> {
    pub(crate) client: C,
    pub(crate) connection: u64,
    pub(crate) amount: usize,
    /// Holders since this time or earlier also give way to a claimant that would then hold as much as they did.
    pub(crate) old: Option<u64>,
}

impl<C: Copy + Ord, H> Default for FairShares<C, H> {
    fn default() -> Self {
        Self { used: 0, sequence: 0, clients: BTreeMap::new(), by_use: BTreeSet::new() }
    }
}

impl<H> ConnectionShare<H> {
    fn rank(&self, connection: u64) -> (usize, Reverse<u64>, u64) {
        (self.used, Reverse(self.holders.keys().next().copied().unwrap_or_default()), connection)
    }
}

impl<H> ClientShare<H> {
    fn rank<C>(&self, client: C) -> (usize, Reverse<u64>, C) {
        (self.used, Reverse(self.oldest.first().copied().unwrap_or_default()), client)
    }

    fn largest(&self) -> Option<(u64, &ConnectionShare<H>)> {
        let (_, _, connection) = self.by_use.last()?;
        Some((*connection, self.connections.get(connection)?))
    }

    fn used_by(&self, connection: u64) -> usize {
        self.connections.get(&connection).map_or(0, |share| share.used)
    }
}

impl<C: Copy + Ord, H> FairShares<C, H> {
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    pub(crate) fn insert(
        &mut self,
        client: C,
        connection: u64,
        amount: usize,
        since: u64,
        holder: H,
    ) -> HolderId<C> {
        self.sequence += 1;
        let sequence = self.sequence;
        self.used += amount;
        let share = self.clients.entry(client).or_default();
        self.by_use.remove(&share.rank(client));
        let own = share.connections.entry(connection).or_default();
        share.by_use.remove(&own.rank(connection));
        own.used += amount;
        own.holders.insert(sequence, Held { amount, since, holder });
        share.by_use.insert(own.rank(connection));
        share.used += amount;
        share.oldest.insert(sequence);
        self.by_use.insert(share.rank(client));
        HolderId { client, connection, sequence }
    }

    /// Removes a holder that left or was evicted; `None` if it is already gone.
    pub(crate) fn remove(&mut self, id: HolderId<C>) -> Option<H> {
        let share = self.clients.get_mut(&id.client)?;
        let own = share.connections.get_mut(&id.connection)?;
        let (rank, own_rank) = ((share.used, share.oldest.first().copied()), own.rank(id.connection));
        let held = own.holders.remove(&id.sequence)?;
        own.used -= held.amount;
        share.by_use.remove(&own_rank);
        if own.holders.is_empty() {
            share.connections.remove(&id.connection);
        } else {
            share.by_use.insert(own.rank(id.connection));
        }
        self.by_use.remove(&(rank.0, Reverse(rank.1.unwrap_or_default()), id.client));
        share.used -= held.amount;
        share.oldest.remove(&id.sequence);
        if share.connections.is_empty() {
            self.clients.remove(&id.client);
        } else {
            self.by_use.insert(share.rank(id.client));
        }
        self.used -= held.amount;
        Some(held.holder)
    }

    /// The holder that gives way to a claim; `None` if the claimant itself holds most, so that the claim is refused or
    /// waits.
    pub(crate) fn victim(&self, claim: &Claim<C>) -> Option<HolderId<C>> {
        let (used, _, client) = self.by_use.last()?;
        let largest = self.clients.get(client)?;
        let own = self.clients.get(&claim.client);
        let own_use = own.map_or(0, |share| share.used);
        if *used > own_use {
            let (connection, share) = largest.largest()?;
            return gives_way(*used, own_use, share, claim).map(|sequence| HolderId {
                client: *client,
                connection,
                sequence,
            });
        }
        // The claimant's client is one of the largest: its connections share.
        let own = own?;
        let (connection, share) = own.largest()?;
        let sequence = gives_way(share.used, own.used_by(claim.connection), share, claim)?;
        Some(HolderId { client: claim.client, connection, sequence })
    }
}

/// The oldest holder of `share`, if its owner would still hold more than the claimant, or if it is old and the owner
/// holds more now.
fn gives_way<C, H>(used: usize, own: usize, share: &ConnectionShare<H>, claim: &Claim<C>) -> Option<u64> {
    let (sequence, oldest) = share.holders.first_key_value()?;
    let is_larger = used > own.saturating_add(claim.amount);
    let is_old = used > own && claim.old.is_some_and(|old| oldest.since <= old);
    (is_larger || is_old).then_some(*sequence)
}

impl<H> Default for ClientShare<H> {
    fn default() -> Self {
        Self { used: 0, connections: BTreeMap::new(), by_use: BTreeSet::new(), oldest: BTreeSet::new() }
    }
}

impl<H> Default for ConnectionShare<H> {
    fn default() -> Self {
        Self { used: 0, holders: BTreeMap::new() }
    }
}

#[cfg(test)]
mod tests;
