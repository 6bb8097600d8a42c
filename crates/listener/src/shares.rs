//! Fair shares of a bounded resource: connections, watches, bytes. Pure: no clock, no lock, no socket.
//!
//! ```text
//! pool -> groups (a source, or a user) -> members (a connection) -> holders (oldest idle first)
//!         the largest loses first         the largest loses first   the first loses first
//! ```
//!
//! Shares are work-conserving: while the pool has room, a group may use all of it. When it is full, the group that uses
//! most gives up its oldest idle holder, and within a group the member that uses most. A group that uses no more than
//! its share, which is the capacity divided by the number of groups, therefore never loses anything and is never refused.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Names a holder of one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HolderId(u64);

/// The order in which holders are evicted: idle before busy, then by the last [`FairShares::touch`].
type EvictionOrder = (bool, u64, HolderId);

/// What happens when the pool is full and no other group or member uses more than the one that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtShare {
    /// The new holder is refused.
    Refuse,
    /// The oldest idle holder is evicted in its place.
    EvictOldest,
}

/// The holders of a bounded resource. `G` names a group; `H` is what an evicted holder is told by.
#[derive(Debug)]
pub struct FairShares<G, H> {
    capacity: u64,
    used: u64,
    last: u64,
    holders: BTreeMap<HolderId, ShareHolder<G, H>>,
    groups: Ranking<G, ShareGroup>,
}

#[derive(Debug)]
struct ShareHolder<G, H> {
    group: G,
    member: u64,
    units: u64,
    order: EvictionOrder,
    handle: H,
}

/// A user of the resource on one level.
trait Ranked {
    fn used(&self) -> u64;
    /// The holder that loses first.
    fn first(&self) -> Option<EvictionOrder>;
}

/// Keys and their values, the one that loses first last.
#[derive(Debug)]
struct Ranking<K, V> {
    values: BTreeMap<K, V>,
    order: BTreeSet<(u64, Reverse<EvictionOrder>, K)>,
}

impl<K, V> Default for Ranking<K, V> {
    fn default() -> Self {
        Self { values: BTreeMap::new(), order: BTreeSet::new() }
    }
}

impl<K: Ord + Clone, V: Ranked + Default> Ranking<K, V> {
    /// Changes a value and its rank; an unused one is removed.
    fn change(&mut self, key: &K, change: impl FnOnce(&mut V)) {
        let value = self.values.entry(key.clone()).or_default();
        if let Some(first) = value.first() {
            self.order.remove(&(value.used(), Reverse(first), key.clone()));
        }
        change(value);
        match value.first() {
            Some(first) => drop(self.order.insert((value.used(), Reverse(first), key.clone()))),
            None => drop(self.values.remove(key)),
        }
    }

    fn largest(&self) -> Option<(&K, &V)> {
        let (_, _, key) = self.order.last()?;
        self.values.get_key_value(key)
    }

    /// Whether no other uses more than this one.
    fn is_largest(&self, key: &K) -> bool {
        let used = self.values.get(key).map_or(0, Ranked::used);
        self.order.last().is_none_or(|(most, ..)| used >= *most)
    }
}

#[derive(Debug, Default)]
struct ShareGroup {
    used: u64,
    members: Ranking<u64, ShareMember>,
}

impl Ranked for ShareGroup {
    fn used(&self) -> u64 {
        self.used
    }

    fn first(&self) -> Option<EvictionOrder> {
        self.members.largest().and_then(|(_, member)| member.first())
    }
}

#[derive(Debug, Default)]
struct ShareMember {
    used: u64,
    holders: BTreeSet<EvictionOrder>,
}

impl Ranked for ShareMember {
    fn used(&self) -> u64 {
        self.used
    }

    fn first(&self) -> Option<EvictionOrder> {
        self.holders.first().copied()
    }
}

impl<G: Ord + Clone, H> FairShares<G, H> {
    pub fn new(capacity: u64) -> Self {
        Self { capacity, used: 0, last: 0, holders: BTreeMap::new(), groups: Ranking::default() }
    }

    /// Units in use.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Units in use by a group.
    pub fn used_by(&self, group: &G) -> u64 {
        self.groups.values.get(group).map_or(0, |group| group.used)
    }

    pub fn group_count(&self) -> usize {
        self.groups.values.len()
    }

    /// Adds a holder of one unit, and returns the handle of the one that was evicted for it. `None`: it is refused.
    pub fn take(
        &mut self,
        (group, member): (G, u64),
        handle: H,
        at_share: AtShare,
    ) -> Option<(HolderId, Option<H>)> {
        self.last += 1;
        let id = HolderId(self.last);
        // While it is placed it counts as busy, so that it is the last to be evicted.
        self.insert(id, ShareHolder { group, member, units: 1, order: (true, self.last, id), handle });
        let mut evicted = None;
        if self.used > self.capacity {
            let Some(victim) = self.victim(id, at_share).filter(|victim| *victim != id) else {
                self.release(id);
                return None;
            };
            evicted = self.release(victim);
        }
        self.touch(id, false);
        Some((id, evicted))
    }

    fn victim(&self, new: HolderId, at_share: AtShare) -> Option<HolderId> {
        let asking = self.holders.get(&new)?;
        let group = self.groups.values.get(&asking.group)?;
        let is_refused = at_share == AtShare::Refuse
            && self.groups.is_largest(&asking.group)
            && group.members.is_largest(&asking.member);
        if is_refused {
            return None;
        }
        let first = match at_share {
            // Another member of the same group uses more.
            AtShare::Refuse if self.groups.is_largest(&asking.group) => group.first(),
            _ => self.groups.largest().and_then(|(_, group)| group.first()),
        };
        first.map(|(_, _, id)| id)
    }

    /// Changes the units of a holder, which becomes the newest, and returns the handles of those that were evicted for
    /// it: it can be among them.
    pub fn resize(&mut self, id: HolderId, units: u64) -> Vec<H> {
        let Some(mut holder) = self.remove(id) else { return Vec::new() };
        self.last += 1;
        holder.units = units;
        holder.order.1 = self.last;
        self.insert(id, holder);
        let mut evicted = Vec::new();
        while self.used > self.capacity {
            evicted.extend(self.evict_one());
        }
        evicted
    }

    /// Makes a holder the newest, and busy or idle.
    pub fn touch(&mut self, id: HolderId, is_busy: bool) {
        let Some(mut holder) = self.remove(id) else { return };
        self.last += 1;
        holder.order = (is_busy, self.last, id);
        self.insert(id, holder);
    }

    /// Moves a holder to another group.
    pub fn assign(&mut self, id: HolderId, group: G) {
        let Some(holder) = self.remove(id) else { return };
        self.insert(id, ShareHolder { group, ..holder });
    }

    /// Removes a holder, if it was not evicted before.
    pub fn release(&mut self, id: HolderId) -> Option<H> {
        self.remove(id).map(|holder| holder.handle)
    }

    /// Evicts the holder that loses first.
    pub fn evict_one(&mut self) -> Option<H> {
        let (_, _, id) = self.groups.largest()?.1.first()?;
        self.release(id)
    }

    fn insert(&mut self, id: HolderId, holder: ShareHolder<G, H>) {
        let (units, order) = (holder.units, holder.order);
        self.change(&holder.group, holder.member, |member| {
            member.used += units;
            member.holders.insert(order);
        });
        self.used += units;
        self.groups.change(&holder.group, |group| group.used += units);
        self.holders.insert(id, holder);
    }

    fn remove(&mut self, id: HolderId) -> Option<ShareHolder<G, H>> {
        let holder = self.holders.remove(&id)?;
        let (units, order) = (holder.units, holder.order);
        self.used -= units;
        // The units first: without holders the group is gone.
        self.groups.change(&holder.group, |group| group.used -= units);
        self.change(&holder.group, holder.member, |member| {
            member.used -= units;
            member.holders.remove(&order);
        });
        Some(holder)
    }

    fn change(&mut self, group: &G, member: u64, change: impl FnOnce(&mut ShareMember)) {
        self.groups.change(group, |group| group.members.change(&member, change));
    }
}

#[cfg(test)]
mod tests;
