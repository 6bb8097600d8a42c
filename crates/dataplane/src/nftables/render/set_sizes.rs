//! Declared sizes of sets. With a declared size the kernel uses a faster hash table, and refuses further elements when it
//! is full. So sizes have headroom, and a full set is replaced by a larger one.
//!
//! The size is part of the name (`endpoints-16k`): the larger set is filled beside the old one, then the rules switch to
//! it in one transaction. No packet meets a half-filled set.
//!
//! IPv6 has no table until it is needed: most clusters have one family, and an empty table costs half a millisecond at
//! the start and hundreds of lines in a listing.

use std::collections::BTreeMap;

use model::Family;
use model::forward::NodeRules;

use super::sets::{SetName, table_id};
use crate::nftables::ir::{Comment, NftName, Ruleset, SetSpec};

/// The smallest declared size: a few kilobytes.
const MIN_SIZE: u32 = 1024;

/// Clients with session affinity: all that 256 Service ports can have. Only active ones take memory.
const MAX_CLIENTS: u32 = 256 << super::affinity::CLIENT_BITS;

/// Pairs of frontend and endpoint whose connections are counted. Only those with traffic take memory: a per-CPU counter
/// for every endpoint would be a hundred megabytes on a large node.
pub const MAX_COUNTED_PAIRS: u32 = 1 << 16;

/// The declared sizes above the minimum, and whether IPv6 has a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetSizes {
    larger: BTreeMap<(Family, SetName), u32>,
    has_v6: bool,
}

/// Whether a set has this stem and any size.
fn is_named(set: &str, stem: &str) -> bool {
    let size = set.strip_prefix(stem).and_then(|rest| rest.strip_prefix('-')?.strip_suffix('k'));
    size.is_some_and(|size| size.parse::<u32>().is_ok())
}

impl SetSizes {
    /// Sizes for these counts plus 50 % headroom.
    pub fn for_counts(counts: impl IntoIterator<Item = ((Family, SetName), usize)>) -> Self {
        let mut sizes = Self::default();
        for ((family, name), count) in counts {
            sizes.make_room(family, name, count);
        }
        sizes
    }

    /// The sizes of the sets of a ruleset; of two sets with the same stem, the larger is in use.
    pub fn of_ruleset(ruleset: &Ruleset) -> Self {
        let mut sizes = Self::default();
        for family in [Family::V4, Family::V6] {
            let Some(table) = ruleset.tables.get(&table_id(family)) else { continue };
            sizes.has_v6 |= family == Family::V6;
            for name in SetName::all().into_iter().filter(|name| name.grows()) {
                let of_name = table.sets.iter().filter(|(set, _)| is_named(set.as_str(), name.stem()));
                let largest = of_name.filter_map(|(_, set)| set.spec.size).max().unwrap_or(MIN_SIZE);
                if largest > MIN_SIZE {
                    sizes.larger.insert((family, name), largest);
                }
            }
        }
        sizes
    }

    pub fn size(&self, family: Family, name: SetName) -> u32 {
        self.larger.get(&(family, name)).copied().unwrap_or(MIN_SIZE)
    }

    /// A ServiceCIDR needs the table of its family even without a Service.
    pub(super) fn make_room_for_node(&mut self, node: &NodeRules) {
        self.has_v6 |= node.service_cidrs.iter().any(|cidr| Family::of(cidr.addr()) == Family::V6);
    }

    pub(super) fn with_families(&self, families: impl IntoIterator<Item = Family>) -> Self {
        let has_v6 = self.has_v6 || families.into_iter().any(|family| family == Family::V6);
        Self { has_v6, ..self.clone() }
    }

    pub(super) fn has(&self, family: Family) -> bool {
        family == Family::V4 || self.has_v6
    }

    pub fn fits(&self, family: Family, name: SetName, count: usize) -> bool {
        let has_room = !name.grows() || count <= self.size(family, name) as usize;
        count == 0 || self.has(family) && has_room
    }

    /// Grows a set to this count plus 50 %; not more, because the kernel clears and walks all of its buckets. Sets shrink
    /// only at the next load.
    pub fn make_room(&mut self, family: Family, name: SetName, count: usize) {
        self.has_v6 |= family == Family::V6 && count > 0;
        let wanted = u32::try_from(count.saturating_add(count / 2))
            .unwrap_or(u32::MAX)
            .min(1 << 31)
            .next_power_of_two();
        if name.grows() && wanted > self.size(family, name) {
            self.larger.insert((family, name), wanted);
        }
    }

    pub fn name(&self, family: Family, name: SetName) -> NftName {
        if !name.grows() {
            return name.stem().into();
        }
        format!("{}-{}k", name.stem(), self.size(family, name) / 1024).into()
    }

    pub(super) fn spec(&self, family: Family, name: SetName) -> SetSpec {
        let size = match name {
            SetName::Affinity => Some(MAX_CLIENTS),
            SetName::Connections => Some(MAX_COUNTED_PAIRS),
            name if name.grows() => Some(self.size(family, name)),
            _ => None,
        };
        SetSpec { size, comment: Some(Comment::new(name.comment())), ..name.spec(family) }
    }
}
