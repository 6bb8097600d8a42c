//! How large each set is declared. The kernel makes a quicker hash table of a declared size, and refuses an
//! element too many; so sizes have headroom, and a set that outgrows its size gets a larger one under a new name.
//!
//! The name carries the size (`endpoints-16k`): the larger set is filled beside the old one, then the rules
//! change over in one transaction. No packet meets a half-filled set.
//!
//! IPv6 has no table until something needs one: most clusters have one family, and an empty table costs a start half a
//! millisecond and its reader hundreds of lines.

use std::collections::BTreeMap;

use model::Family;
use model::forward::NodeRules;

use super::names::{SetName, table_id};
use crate::nftables::ir::{Comment, Name, Program, SetSpec};

/// The smallest size of a hash table: a few kilobytes.
const SMALLEST: u32 = 1024;

/// The most clients that are remembered at once. Only those that come take memory.
const MOST_CLIENTS: u32 = 1 << 20;

/// The most pairs of frontend and endpoint whose connections are counted. Only those with traffic take memory: a counter
/// for every endpoint, on each processor, would be a hundred megabytes on a large node.
const MOST_PAIRS: u32 = 1 << 16;

/// The declared size of each set that is not of the smallest, and whether IPv6 has sets at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    larger: BTreeMap<(Family, SetName), u32>,
    has_v6: bool,
}

/// Whether a set is of this kind, whatever its size.
fn is_named(set: &str, stem: &str) -> bool {
    let size = set.strip_prefix(stem).and_then(|rest| rest.strip_prefix('-')?.strip_suffix('k'));
    size.is_some_and(|size| size.parse::<u32>().is_ok())
}

impl Sizes {
    /// Sizes for so many elements, with half as much again as headroom.
    pub fn for_counts(counts: impl IntoIterator<Item = ((Family, SetName), usize)>) -> Self {
        let mut sizes = Self::default();
        for ((family, name), count) in counts {
            sizes.make_room(family, name, count);
        }
        sizes
    }

    /// The sizes that the sets of a program have; where there are two of a kind, the larger one is in use.
    pub fn of_program(program: &Program) -> Self {
        let mut sizes = Self::default();
        for family in [Family::V4, Family::V6] {
            let Some(table) = program.tables.get(&table_id(family)) else { continue };
            sizes.has_v6 |= family == Family::V6;
            for name in SetName::all().into_iter().filter(|name| name.grows()) {
                let of_name = table.sets.iter().filter(|(set, _)| is_named(set.as_str(), name.stem()));
                let largest = of_name.filter_map(|(_, set)| set.spec.size).max().unwrap_or(SMALLEST);
                if largest > SMALLEST {
                    sizes.larger.insert((family, name), largest);
                }
            }
        }
        sizes
    }

    /// The declared size of a set.
    pub fn size(&self, family: Family, name: SetName) -> u32 {
        self.larger.get(&(family, name)).copied().unwrap_or(SMALLEST)
    }

    /// Addresses of a ServiceCIDR are looked at also where there is no Service.
    pub(super) fn make_room_for_node(&mut self, node: &NodeRules) {
        self.has_v6 |= node.service_cidrs.iter().any(|cidr| Family::of(cidr.addr()) == Family::V6);
    }

    /// The same, with a table for each of these families.
    pub(super) fn with_families(&self, families: impl IntoIterator<Item = Family>) -> Self {
        let has_v6 = self.has_v6 || families.into_iter().any(|family| family == Family::V6);
        Self { has_v6, ..self.clone() }
    }

    /// Whether a family has a table.
    pub(super) fn has(&self, family: Family) -> bool {
        family == Family::V4 || self.has_v6
    }

    /// Whether so many elements fit.
    pub fn fits(&self, family: Family, name: SetName, count: usize) -> bool {
        let has_room = !name.grows() || count <= self.size(family, name) as usize;
        count == 0 || self.has(family) && has_room
    }

    /// Makes a set large enough for half as many again; not more, because the kernel clears and walks through all of
    /// its places. Sets never shrink: that happens at the next start.
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

    /// The name of a set.
    pub fn name(&self, family: Family, name: SetName) -> Name {
        if !name.grows() {
            return name.stem().into();
        }
        format!("{}-{}k", name.stem(), self.size(family, name) / 1024).into()
    }

    pub(super) fn spec(&self, family: Family, name: SetName) -> SetSpec {
        let size = match name {
            SetName::Affinity => Some(MOST_CLIENTS),
            SetName::Connections => Some(MOST_PAIRS),
            name if name.grows() => Some(self.size(family, name)),
            _ => None,
        };
        SetSpec { size, comment: Some(Comment::new(name.comment())), ..name.spec(family) }
    }
}
