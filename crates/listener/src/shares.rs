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
//! The sequence of evictions ends where all shares are equal, or smaller because no more is needed (max-min fairness).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Names a holder of one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HolderId(u64);

/// The order in which holders are evicted: idle before busy, then by the last [`FairShares::touch`].
type EvictionOrder = (bool, u64, HolderId);

/// Before all others in a [`Ranking`] that use as much.
const NEWEST: Reverse<EvictionOrder> = Reverse((true, u64::MAX, HolderId(u64::MAX)));
const NEWEST_IDLE: Reverse<EvictionOrder> = Reverse((false, u64::MAX, HolderId(u64::MAX)));

/// What happens when the pool is full and no other group or member uses more than the one that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtShare {
    /// The new holder is refused.
    Refuse,
    /// The oldest idle holder is evicted in its place.
    EvictOldest,
}

/// A claim to a pool that has no room for it.
#[derive(Clone, Copy, Debug)]
pub struct ShareClaim<'c, G> {
    pub group: &'c G,
    pub member: u64,
    pub units: u64,
    /// How many of the newest idle holders give way to a claimant that uses nothing, if all others use one unit each:
    /// the oldest of them does. A burst evicts no more than these, so that the others come to their end.
    pub newest: usize,
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
    /// By use and first holder, which no two have in common.
    order: BTreeMap<(u64, Reverse<EvictionOrder>), K>,
}

impl<K, V> Default for Ranking<K, V> {
    fn default() -> Self {
        Self { values: BTreeMap::new(), order: BTreeMap::new() }
    }
}

impl<K: Ord + Clone, V: Ranked + Default> Ranking<K, V> {
    /// Changes a value and its rank; an unused one is removed.
    fn change(&mut self, key: &K, change: impl FnOnce(&mut V)) {
        let value = self.values.entry(key.clone()).or_default();
        if let Some(first) = value.first() {
            self.order.remove(&(value.used(), Reverse(first)));
        }
        change(value);
        match value.first() {
            Some(first) => drop(self.order.insert((value.used(), Reverse(first)), key.clone())),
            None => drop(self.values.remove(key)),
        }
    }

    fn largest(&self) -> Option<(&K, &V)> {
        let (_, key) = self.order.last_key_value()?;
        self.values.get_key_value(key)
    }

    /// Of those that use least the oldest.
    fn smallest(&self) -> Option<&V> {
        let ((least, _), _) = self.order.first_key_value()?;
        let (_, key) = self.order.range(..(least + 1, NEWEST)).next_back()?;
        self.values.get(key)
    }

    /// The value that loses to a claim: the largest, if it uses more than the claimant even with its claim. One that
    /// would then use as much loses if its first holder is old, or is among the newest that give way.
    fn loser(
        &self,
        key: &K,
        units: u64,
        newest: usize,
        is_old: &impl Fn(EvictionOrder) -> bool,
    ) -> Option<&V> {
        let own = self.values.get(key).map_or(0, Ranked::used);
        let ((most, Reverse(first)), largest) = self.order.last_key_value()?;
        let claimed = own.saturating_add(units);
        let loser = if *most > claimed || (*most > own && is_old(*first)) {
            largest
        } else if own == 0 && *most == 1 {
            let idle = self.order.range((1, NEWEST_IDLE)..);
            idle.map(|(_, key)| key).nth(newest.checked_sub(1)?)?
        } else {
            return None;
        };
        self.values.get(loser)
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

    /// Units in use by a member of a group.
    pub fn used_by_member(&self, group: &G, member: u64) -> u64 {
        let members = self.groups.values.get(group).map(|group| &group.members.values);
        members.and_then(|members| members.get(&member)).map_or(0, |member| member.used)
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
        let mut evicted = None;
        if self.used >= self.capacity && at_share == AtShare::Refuse {
            let claim = ShareClaim { group: &group, member, units: 1, newest: 0 };
            evicted = Some(self.give_way(&claim, |_| false)?);
        }
        let id = self.add((group, member), 1, handle);
        if self.used > self.capacity {
            // Until it is placed it counts as busy, so that it is the last to be evicted.
            self.touch(id, true);
            let (_, _, victim) = self.groups.largest()?.1.first()?;
            evicted = self.release(victim);
            if victim == id {
                return None;
            }
            self.touch(id, false);
        }
        Some((id, evicted))
    }

    /// Adds a holder, whatever the capacity: the caller makes room with [`FairShares::give_way`].
    pub fn add(&mut self, (group, member): (G, u64), units: u64, handle: H) -> HolderId {
        self.last += 1;
        let id = HolderId(self.last);
        self.insert(id, ShareHolder { group, member, units, order: (false, self.last, id), handle });
        id
    }

    /// Evicts the holder that gives way to a claim. `None`: none uses more than the claimant would, and none of those
    /// that would use as much `is_old`.
    pub fn give_way(&mut self, claim: &ShareClaim<'_, G>, is_old: impl Fn(&H) -> bool) -> Option<H> {
        let is_old =
            |(_, _, id): EvictionOrder| self.holders.get(&id).is_some_and(|holder| is_old(&holder.handle));
        let ShareClaim { group, member, units, newest } = *claim;
        let first = match self.groups.loser(group, units, newest, &is_old) {
            Some(group) => group.first(),
            // The members of the claimant's group share.
            None => {
                let own = &self.groups.values.get(group)?.members;
                own.loser(&member, units, newest, &is_old)?.first()
            }
        };
        self.release(first?.2)
    }

    /// Removes the oldest holder of the group that uses least, and of its member that does.
    pub fn pop_smallest(&mut self) -> Option<H> {
        let (_, _, id) = self.groups.smallest()?.members.smallest()?.first()?;
        self.release(id)
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
