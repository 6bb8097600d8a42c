//! Endpoints into slices with as few writes as can be (semantics B4).
//!
//! ```text
//! per set of ports:  1 stored slices keep what is still wanted
//!                    2 slices that are written anyway take what is left, the fullest first
//!                    3 what fits into one untouched slice goes there, the rest into new ones
//! ```

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use model::{AddressType, Endpoint, Family, Labels, Name, Slice, SliceContent, SlicePort};

use super::Packing;
use super::change::endpoints_equal;
use super::group::WantedGroup;
use super::label::have_other_own_labels;

/// What holds for every slice of one packing.
pub(super) struct Limits<'l> {
    pub(super) family: Family,
    pub(super) labels: &'l Labels,
    /// How many endpoints a slice holds at most, at least 1.
    pub(super) max: usize,
}

/// Packs what is wanted in one family over the Service's stored slices of that family, which come by name.
pub(super) fn pack<'a>(groups: Vec<WantedGroup>, owned: &[&'a Slice], limits: &Limits<'_>) -> Packing<'a> {
    let index = groups.iter().enumerate().map(|(i, group)| (sorted(&group.ports).into_owned(), i));
    let group_by_ports: BTreeMap<Vec<SlicePort>, usize> = index.collect();
    let mut stored_by_group: Vec<Vec<&'a Slice>> = vec![Vec::new(); groups.len()];
    let mut packing = Packing::default();
    let mut unwanted: Vec<&'a Slice> = Vec::new();
    for slice in owned {
        match group_by_ports.get(&*sorted(&slice.content.ports)) {
            Some(group) => stored_by_group[*group].push(slice),
            None => unwanted.push(slice),
        }
    }
    for (group, stored) in groups.into_iter().zip(stored_by_group) {
        pack_group(group, &stored, limits, &mut packing, &mut unwanted);
    }
    if packing.creates.is_empty() && packing.updates.is_empty() && packing.unchanged.is_empty() {
        keep_placeholder(&mut packing, &mut unwanted, limits);
    }
    unwanted.sort_by(|a, b| a.key.name.cmp(&b.key.name));
    packing.deletes.extend(unwanted.into_iter().map(|slice| slice.key.clone()));
    packing
}

/// Semantics B3: ports are compared whatever their order.
fn sorted(ports: &[SlicePort]) -> Cow<'_, [SlicePort]> {
    if ports.is_sorted() {
        return Cow::Borrowed(ports);
    }
    let mut ports = ports.to_vec();
    ports.sort();
    Cow::Owned(ports)
}

/// Semantics B4: where nothing would remain, one empty slice without ports says that the Service was seen.
/// Pitfall 32: it is recognised, not made again each time.
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
    group: WantedGroup,
    stored: &[&'a Slice],
    limits: &Limits<'_>,
    packing: &mut Packing<'a>,
    unwanted: &mut Vec<&'a Slice>,
) {
    let mut wanted = Wanted::new(group.endpoints);
    let mut updates = Vec::new();
    let mut unchanged = Vec::new();
    let kept: Vec<Kept> = stored.iter().map(|slice| wanted.claim(slice, limits.max)).collect();
    for (slice, kept) in stored.iter().zip(kept) {
        if kept.changed && kept.places.is_empty() {
            unwanted.push(slice);
        } else if kept.changed || have_other_own_labels(limits.labels, &slice.content.labels) {
            updates.push(changed_slice(slice, limits, wanted.take(&kept)));
        } else {
            unchanged.push(*slice);
        }
    }
    fill_fullest_first(&mut wanted, &mut updates, limits.max);
    while wanted.left > 0 {
        if let Some(at) = closest_to_full(&unchanged, wanted.left, limits.max) {
            let slice = unchanged.remove(at);
            let mut update = changed_slice(slice, limits, slice.content.endpoints.clone());
            wanted.fill(&mut update.1.endpoints, limits.max);
            updates.push(update);
        } else {
            let mut content = new_slice(limits, group.ports.clone());
            wanted.fill(&mut content.endpoints, limits.max);
            packing.creates.push(content);
        }
    }
    packing.updates.extend(updates);
    packing.unchanged.extend(unchanged);
}

fn fill_fullest_first(wanted: &mut Wanted, updates: &mut [(Name, SliceContent)], max: usize) {
    if wanted.left == 0 {
        return;
    }
    let mut order: Vec<&mut SliceContent> = updates.iter_mut().map(|(_, content)| content).collect();
    order.sort_by_key(|content| std::cmp::Reverse(content.endpoints.len()));
    for content in order {
        wanted.fill(&mut content.endpoints, max);
    }
}

/// The untouched slice that takes all that is left and is then the fullest. What is left is never spread over
/// two of them: a new slice costs consumers less than two changed ones.
fn closest_to_full(unchanged: &[&Slice], left: usize, max: usize) -> Option<usize> {
    if left >= max {
        return None;
    }
    let lengths = unchanged.iter().map(|slice| slice.content.endpoints.len()).enumerate();
    let fitting = lengths.filter(|(_, length)| length + left <= max);
    // Of equals the first by name, so that the choice does not depend on anything else.
    fitting.max_by_key(|(at, length)| (*length, std::cmp::Reverse(*at))).map(|(at, _)| at)
}

/// The endpoints that one set of ports wants, each handed out once: first claimed by the slices that hold
/// them, then filled in where there is room.
struct Wanted {
    /// In the order of the pods; none where it went into a slice that is written.
    endpoints: Vec<Option<Endpoint>>,
    claimed: Vec<bool>,
    /// Places in `endpoints`, in the order of the pods' names.
    by_name: Vec<usize>,
    /// How many have no slice yet.
    left: usize,
    /// No endpoint before this place is left.
    next: usize,
    /// Where in `by_name` the next stored endpoint probably is: slices are mostly filled in the pods' order.
    guess: usize,
}

/// What a stored slice keeps.
struct Kept {
    /// Places in the wanted endpoints.
    places: Vec<usize>,
    /// Whether something is gone or says something else now.
    changed: bool,
}

impl Wanted {
    fn new(endpoints: Vec<Endpoint>) -> Self {
        let mut by_name: Vec<usize> = (0..endpoints.len()).collect();
        let key = |place: &usize| (target_name(&endpoints[*place]), &endpoints[*place].addresses);
        by_name.sort_by(|a, b| key(a).cmp(&key(b)));
        let mut claimed = vec![false; endpoints.len()];
        for pair in by_name.windows(2) {
            // The same pod given twice is one endpoint.
            claimed[pair[1]] = same_endpoint(&endpoints[pair[0]], &endpoints[pair[1]]);
        }
        let left = claimed.iter().filter(|claimed| !**claimed).count();
        Self {
            endpoints: endpoints.into_iter().map(Some).collect(),
            claimed,
            by_name,
            left,
            next: 0,
            guess: 0,
        }
    }

    /// Claims what a stored slice holds and is still wanted. A slice from a time of a higher limit keeps only
    /// what it may hold now. All claims come before the first `take`.
    fn claim(&mut self, slice: &Slice, max: usize) -> Kept {
        let stored = &slice.content.endpoints;
        let mut kept = Kept { places: Vec::with_capacity(stored.len().min(max)), changed: false };
        for endpoint in stored {
            let found = if kept.places.len() < max { self.find(endpoint) } else { None };
            let Some((rank, wanted)) = found else {
                kept.changed = true;
                continue;
            };
            kept.changed |= !endpoints_equal(wanted, endpoint);
            let place = self.by_name[rank];
            self.guess = rank + 1;
            kept.places.push(place);
            self.claimed[place] = true;
            self.left -= 1;
        }
        kept
    }

    /// The wanted version of a stored endpoint and where in `by_name` it is, unless an earlier slice has it.
    fn find(&self, stored: &Endpoint) -> Option<(usize, &Endpoint)> {
        let at = |rank: usize| {
            let place = *self.by_name.get(rank)?;
            let wanted = self.endpoints[place].as_ref()?;
            let free = !self.claimed[place] && same_endpoint(wanted, stored);
            free.then_some((rank, wanted))
        };
        at(self.guess).or_else(|| {
            let name = target_name(stored);
            let name_at = |place: &usize| self.endpoints[*place].as_ref().and_then(target_name);
            let from = self.by_name.partition_point(|place| name_at(place) < name);
            let named = self.by_name[from..].iter().take_while(|place| name_at(place) == name).count();
            (from..from + named).find_map(at)
        })
    }

    /// Hands out what was claimed, in the order of the slice.
    fn take(&mut self, kept: &Kept) -> Vec<Endpoint> {
        kept.places.iter().filter_map(|place| self.endpoints[*place].take()).collect()
    }

    /// Adds what is left to a slice until one of both is out.
    fn fill(&mut self, slice: &mut Vec<Endpoint>, max: usize) {
        while slice.len() < max && self.left > 0 {
            let place = self.next;
            self.next += 1;
            if !self.claimed[place] {
                self.left -= 1;
                slice.extend(self.endpoints[place].take());
            }
        }
    }
}

/// The pod behind an endpoint, which is in the namespace of the slice.
fn target_name(endpoint: &Endpoint) -> Option<&Name> {
    endpoint.target.as_ref().map(|target| &target.name)
}

/// Semantics B4, pitfall 5: the same endpoint has the same addresses, hostname and pod. An address alone may
/// have gone to another pod in the meantime.
fn same_endpoint(a: &Endpoint, b: &Endpoint) -> bool {
    target_name(a) == target_name(b)
        && a.hostname == b.hostname
        && (a.addresses == b.addresses || sorted_addresses(a) == sorted_addresses(b))
}

fn sorted_addresses(endpoint: &Endpoint) -> Vec<std::net::IpAddr> {
    let mut addresses: Vec<_> = endpoint.addresses.iter().collect();
    addresses.sort();
    addresses
}
