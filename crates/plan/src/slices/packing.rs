//! Packs endpoints into slices with as few writes as possible (semantics B4).
//!
//! ```text
//! per set of ports:  1 stored slices keep the endpoints that are still desired
//!                    2 slices that change anyway are filled, fullest first
//!                    3 the rest goes into one unchanged slice if it fits, otherwise into new slices
//! ```

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use model::{AddressType, Endpoint, Family, Labels, Name, Slice, SliceContent, SlicePort, annotation};

use super::Packing;
use super::labels::{differ_in_own_labels, for_zone};
use super::pod_change::endpoints_equal;
use super::port_groups::DesiredGroup;
use super::zone_groups::ZoneGroups;

/// Parameters of all slices of one IP family.
#[derive(Clone, Copy)]
pub(super) struct Limits<'l> {
    pub(super) family: Family,
    pub(super) labels: &'l Labels,
    /// Maximum endpoints per slice, at least 1.
    pub(super) max: usize,
    /// Whether endpoints that are in no slice of their group go to new slices only.
    pub(super) new_slices_only: bool,
}

impl Limits<'_> {
    /// Whether the labels of a stored slice are a reason to write it.
    fn labels_differ(&self, slice: &Slice) -> bool {
        differ_in_own_labels(self.labels, &slice.content.labels)
            || self.labels.value(annotation::FOR_ZONE) != slice.for_zone()
    }
}

/// Packs the endpoints of one IP family into slices; `owned` are the stored slices of that family, by name.
pub(super) fn pack<'a>(groups: Vec<DesiredGroup>, owned: &[&'a Slice], limits: &Limits<'_>) -> Packing<'a> {
    let index = groups.iter().enumerate().map(|(i, group)| (sorted(&group.ports).into_owned(), i));
    let group_by_ports: BTreeMap<Vec<SlicePort>, usize> = index.collect();
    pack_into(groups, owned, limits, |slice| group_by_ports.get(&*sorted(&slice.content.ports)).copied())
}

/// The same by zone.
pub(super) fn pack_by_zone<'a>(
    zones: ZoneGroups,
    owned: &[&'a Slice],
    family: Family,
    labels: &Labels,
    max: usize,
) -> Packing<'a> {
    let ZoneGroups { groups, homes, is_switch } = zones;
    let index = groups.iter().enumerate().map(|(i, group)| (group.zone.clone(), i));
    let group_by_zone: BTreeMap<Option<Name>, usize> = index.collect();
    let limits = Limits { family, labels, max, new_slices_only: is_switch };
    pack_into(groups, owned, &limits, |slice| group_by_zone.get(homes.get(&slice.key.name)?).copied())
}

fn pack_into<'a>(
    groups: Vec<DesiredGroup>,
    owned: &[&'a Slice],
    limits: &Limits<'_>,
    group_of: impl Fn(&Slice) -> Option<usize>,
) -> Packing<'a> {
    let mut stored_by_group: Vec<Vec<&'a Slice>> = vec![Vec::new(); groups.len()];
    let mut packing = Packing::default();
    let mut unwanted: Vec<&'a Slice> = Vec::new();
    for slice in owned {
        match group_of(slice) {
            Some(group) => stored_by_group[group].push(slice),
            None => unwanted.push(slice),
        }
    }
    for (group, stored) in groups.into_iter().zip(stored_by_group) {
        let labels = for_zone(limits.labels, group.zone.as_ref());
        let limits = Limits { labels: &labels, ..*limits };
        pack_group(group, &stored, &limits, &mut packing, &mut unwanted);
    }
    if packing.creates.is_empty() && packing.updates.is_empty() && packing.unchanged.is_empty() {
        keep_placeholder(&mut packing, &mut unwanted, limits);
    }
    unwanted.sort_by(|a, b| a.key.name.cmp(&b.key.name));
    packing.deletes.extend(unwanted.into_iter().map(|slice| slice.key.clone()));
    packing
}

/// Semantics B3: the order of ports is irrelevant.
fn sorted(ports: &[SlicePort]) -> Cow<'_, [SlicePort]> {
    if ports.is_sorted() {
        return Cow::Borrowed(ports);
    }
    let mut ports = ports.to_vec();
    ports.sort();
    Cow::Owned(ports)
}

/// Semantics B4: a Service without endpoints has one empty slice without ports. Pitfall 32: a stored placeholder is reused.
fn keep_placeholder<'a>(packing: &mut Packing<'a>, unwanted: &mut Vec<&'a Slice>, limits: &Limits<'_>) {
    let placeholder = new_slice(limits, [].into());
    let same = |slice: &&Slice| {
        let content = &slice.content;
        content.endpoints.is_empty() && content.ports.is_empty() && content.labels == placeholder.labels
    };
    match unwanted.iter().position(same) {
        Some(at) => packing.unchanged.push(unwanted.remove(at)),
        None => packing.creates.push(placeholder),
    }
}

fn new_slice(limits: &Limits<'_>, ports: Arc<[SlicePort]>) -> SliceContent {
    SliceContent {
        address_type: AddressType::Ip(limits.family),
        labels: limits.labels.clone(),
        annotations: Labels::EMPTY,
        ports,
        endpoints: Vec::new(),
    }
}

/// A stored slice with new labels and endpoints.
fn changed_slice(slice: &Slice, limits: &Limits<'_>, endpoints: Vec<Endpoint>) -> (Name, SliceContent) {
    let content = SliceContent {
        address_type: slice.content.address_type,
        labels: limits.labels.clone(),
        annotations: slice.content.annotations.clone(),
        ports: slice.content.ports.clone(),
        endpoints,
    };
    (slice.key.name.clone(), content)
}

fn pack_group<'a>(
    group: DesiredGroup,
    stored: &[&'a Slice],
    limits: &Limits<'_>,
    packing: &mut Packing<'a>,
    unwanted: &mut Vec<&'a Slice>,
) {
    let mut desired = DesiredEndpoints::new(group.endpoints);
    let mut updates = Vec::new();
    let mut unchanged = Vec::new();
    let kept: Vec<KeptEndpoints> = stored.iter().map(|slice| desired.claim(slice, limits.max)).collect();
    for (slice, kept) in stored.iter().zip(kept) {
        if kept.changed && kept.indexes.is_empty() {
            unwanted.push(slice);
        } else if kept.changed || limits.labels_differ(slice) {
            updates.push(changed_slice(slice, limits, desired.take(&kept)));
        } else {
            unchanged.push(*slice);
        }
    }
    if !limits.new_slices_only {
        fill_fullest_first(&mut desired, &mut updates, limits.max);
    }
    while desired.remaining > 0 {
        let room = closest_to_full(&unchanged, desired.remaining, limits.max);
        if let Some(at) = room.filter(|_| !limits.new_slices_only) {
            let slice = unchanged.remove(at);
            let mut update = changed_slice(slice, limits, slice.content.endpoints.clone());
            desired.fill(&mut update.1.endpoints, limits.max);
            updates.push(update);
        } else {
            let mut content = new_slice(limits, group.ports.clone());
            desired.fill(&mut content.endpoints, limits.max);
            packing.creates.push(content);
        }
    }
    packing.updates.extend(updates);
    packing.unchanged.extend(unchanged);
}

fn fill_fullest_first(desired: &mut DesiredEndpoints, updates: &mut [(Name, SliceContent)], max: usize) {
    if desired.remaining == 0 {
        return;
    }
    let mut order: Vec<&mut SliceContent> = updates.iter_mut().map(|(_, content)| content).collect();
    order.sort_by_key(|content| std::cmp::Reverse(content.endpoints.len()));
    for content in order {
        desired.fill(&mut content.endpoints, max);
    }
}

/// The unchanged slice that has room for all remaining endpoints and is then the fullest. They are never spread over two:
/// a new slice costs consumers less than two changed ones.
fn closest_to_full(unchanged: &[&Slice], left: usize, max: usize) -> Option<usize> {
    if left >= max {
        return None;
    }
    let lengths = unchanged.iter().map(|slice| slice.content.endpoints.len()).enumerate();
    let fitting = lengths.filter(|(_, length)| length + left <= max);
    // Of equals the first by name, for a deterministic choice.
    fitting.max_by_key(|(at, length)| (*length, std::cmp::Reverse(*at))).map(|(at, _)| at)
}

/// The desired endpoints of one set of ports, each assigned once: first to the slices that contain it, then to slices
/// with room.
struct DesiredEndpoints {
    /// In the order of the pods; `None` after it was moved into a slice.
    endpoints: Vec<Option<Endpoint>>,
    claimed: Vec<bool>,
    /// Indexes into `endpoints`, by pod name.
    by_name: Vec<usize>,
    /// Number of endpoints without a slice.
    remaining: usize,
    /// All endpoints before this index have a slice.
    next: usize,
    /// Likely index into `by_name` of the next stored endpoint: slices are mostly in the order of the pods.
    guess: usize,
}

/// The endpoints that a stored slice keeps.
struct KeptEndpoints {
    /// Indexes of desired endpoints.
    indexes: Vec<usize>,
    /// Whether an endpoint was removed or changed.
    changed: bool,
}

impl DesiredEndpoints {
    fn new(endpoints: Vec<Endpoint>) -> Self {
        let mut by_name: Vec<usize> = (0..endpoints.len()).collect();
        let key = |index: &usize| (target_name(&endpoints[*index]), &endpoints[*index].addresses);
        by_name.sort_by(|a, b| key(a).cmp(&key(b)));
        let mut claimed = vec![false; endpoints.len()];
        for pair in by_name.windows(2) {
            // The same pod twice is one endpoint.
            claimed[pair[1]] = same_endpoint(&endpoints[pair[0]], &endpoints[pair[1]]);
        }
        let remaining = claimed.iter().filter(|claimed| !**claimed).count();
        Self {
            endpoints: endpoints.into_iter().map(Some).collect(),
            claimed,
            by_name,
            remaining,
            next: 0,
            guess: 0,
        }
    }

    /// Claims the endpoints of a stored slice that are still desired, up to the limit. All claims come before the first
    /// `take`.
    fn claim(&mut self, slice: &Slice, max: usize) -> KeptEndpoints {
        let stored = &slice.content.endpoints;
        let mut kept = KeptEndpoints { indexes: Vec::with_capacity(stored.len().min(max)), changed: false };
        for endpoint in stored {
            let found = if kept.indexes.len() < max { self.find(endpoint) } else { None };
            let Some((rank, desired)) = found else {
                kept.changed = true;
                continue;
            };
            kept.changed |= !endpoints_equal(desired, endpoint);
            let index = self.by_name[rank];
            self.guess = rank + 1;
            kept.indexes.push(index);
            self.claimed[index] = true;
            self.remaining -= 1;
        }
        kept
    }

    /// The desired version of a stored endpoint and its index into `by_name`, unless another slice claimed it.
    fn find(&self, stored: &Endpoint) -> Option<(usize, &Endpoint)> {
        let at = |rank: usize| {
            let index = *self.by_name.get(rank)?;
            let desired = self.endpoints[index].as_ref()?;
            let free = !self.claimed[index] && same_endpoint(desired, stored);
            free.then_some((rank, desired))
        };
        at(self.guess).or_else(|| {
            let name = target_name(stored);
            let name_at = |index: &usize| self.endpoints[*index].as_ref().and_then(target_name);
            let from = self.by_name.partition_point(|index| name_at(index) < name);
            let named = self.by_name[from..].iter().take_while(|index| name_at(index) == name).count();
            (from..from + named).find_map(at)
        })
    }

    /// Moves out the claimed endpoints, in the order of the slice.
    fn take(&mut self, kept: &KeptEndpoints) -> Vec<Endpoint> {
        kept.indexes.iter().filter_map(|index| self.endpoints[*index].take()).collect()
    }

    /// Adds remaining endpoints to a slice up to the limit.
    fn fill(&mut self, slice: &mut Vec<Endpoint>, max: usize) {
        while slice.len() < max && self.remaining > 0 {
            let index = self.next;
            self.next += 1;
            if !self.claimed[index] {
                self.remaining -= 1;
                slice.extend(self.endpoints[index].take());
            }
        }
    }
}

fn target_name(endpoint: &Endpoint) -> Option<&Name> {
    endpoint.target().map(|target| &target.name)
}

/// Semantics B4, pitfall 5: identity is addresses, hostname and pod. The address alone may belong to another pod by now.
fn same_endpoint(a: &Endpoint, b: &Endpoint) -> bool {
    target_name(a) == target_name(b)
        && a.hostname() == b.hostname()
        && (a.addresses == b.addresses || sorted_addresses(a) == sorted_addresses(b))
}

fn sorted_addresses(endpoint: &Endpoint) -> Vec<std::net::IpAddr> {
    let mut addresses: Vec<_> = endpoint.addresses.iter().collect();
    addresses.sort();
    addresses
}
