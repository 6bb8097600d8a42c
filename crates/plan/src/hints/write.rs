//! Decided hints -> the slices of a packing, touching no slice that says the right thing already.

use std::sync::Arc;

use model::{Endpoint, Hints, Labels, Name, Slice, SliceContent, annotation};

use super::Task;
use super::choice::Origin;
use super::facts::ClusterFacts;
use super::mechanism::Mechanism;
use crate::slices::Packing;
use crate::spill::Demand;

/// The hints that a ready endpoint should have.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted<'p> {
    /// Those that it has.
    Keep,
    /// None.
    Nothing,
    /// These, shared.
    These(&'p Arc<Hints>),
    /// Its own node and these zones.
    NodeAnd(&'p [Name]),
}

/// What happens to hints of endpoints that are not ready. Nobody reads them (semantics C1), so they are never a reason
/// to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unready {
    /// They stay: what upstream does for trafficDistribution, and its test cases hold us to it (semantics A3).
    Untouched,
    /// They go when the slice is written anyway (pitfall 34).
    ClearedInPassing,
    /// They go, and the slice is written for it (semantics A1, rule 4).
    Cleared,
}

/// The annotations of a slice that a mechanism decides.
const OURS: [&str; 4] =
    [annotation::MECHANISM, annotation::MECHANISM_SOURCE, annotation::DEMAND, annotation::REGIONS];

/// What the slices say about themselves.
#[derive(Debug)]
pub(super) struct Tag {
    mechanism: Mechanism,
    origin: Origin,
    demand: Option<Name>,
    regions: Option<Name>,
    /// All of it as the only annotations of a slice, shared by all slices that have no other.
    alone: Labels,
}

impl Tag {
    /// The annotations of a mechanism.
    pub(super) fn new(task: &Task<'_>, mechanism: Mechanism) -> Self {
        let alone = match mechanism {
            Mechanism::None => Labels::EMPTY,
            named => task.facts.tag(named, task.origin),
        };
        Self { mechanism, origin: task.origin, demand: None, regions: None, alone }
    }

    /// The annotations of a mechanism whose hints cannot name all zones of a region: nodes go by the zones listed here.
    pub(super) fn by_region(task: &Task<'_>, mechanism: Mechanism) -> Self {
        let tag = Self::new(task, mechanism);
        let regions = Name::new(&task.facts.regions().to_string());
        let own = (Name::new(annotation::REGIONS), regions.clone());
        let alone = Labels::from_pairs(tag.alone.iter().cloned().chain([own]).collect());
        Self { regions: Some(regions), alone, ..tag }
    }

    /// The annotations of Spill.
    pub(super) fn spill(task: &Task<'_>, demand: &Demand) -> Self {
        let (demand, alone) = task.facts.spill_tag(demand, task.origin);
        Self { mechanism: Mechanism::Spill, origin: task.origin, demand: Some(demand), regions: None, alone }
    }

    /// Whether a stored slice may keep its annotations.
    fn is_told_by(&self, annotations: &Labels) -> bool {
        let source = annotations.value(annotation::MECHANISM_SOURCE).map(Name::as_str);
        let mechanism_fits = match annotations.value(annotation::MECHANISM) {
            Some(said) => {
                self.mechanism != Mechanism::None
                    && *said == *self.mechanism.as_str()
                    && source == self.origin.annotation()
            }
            None => self.mechanism.is_told_by_hints_alone() && source.is_none(),
        };
        mechanism_fits
            && annotations.value(annotation::DEMAND) == self.demand.as_ref()
            && annotations.value(annotation::REGIONS) == self.regions.as_ref()
    }

    /// The annotations of a slice that is written, with those of others that stay.
    fn on(&self, annotations: &Labels, stays: impl Fn(&str) -> bool) -> Labels {
        let ours = |key: &str| OURS.contains(&key);
        if self.alone.is_empty() && annotations.iter().all(|(key, _)| !ours(key) && stays(key)) {
            return annotations.clone();
        }
        let others = annotations.iter().filter(|(key, _)| !ours(key) && stays(key));
        let mut pairs: Vec<(Name, Name)> = others.cloned().collect();
        if pairs.is_empty() {
            return self.alone.clone();
        }
        pairs.extend(self.alone.iter().cloned());
        Labels::from_pairs(pairs)
    }
}

/// Puts hints on all slices. `wanted` is asked once per ready endpoint, with its place in the walk.
pub(super) fn write<'p>(
    packing: &mut Packing<'_>,
    facts: &ClusterFacts,
    tag: &Tag,
    unready: Unready,
    mut wanted: impl FnMut(usize, &Endpoint) -> Wanted<'p>,
) {
    let mut place = 0;
    let mut next = |endpoint: &Endpoint| {
        place += 1;
        endpoint.conditions.is_ready_for_hints().then(|| wanted(place - 1, endpoint))
    };
    let planned = packing.updates.iter_mut().map(|(_, content)| content);
    for content in packing.creates.iter_mut().chain(planned) {
        for endpoint in &mut content.endpoints {
            match next(endpoint) {
                Some(wanted) => set(endpoint, wanted, facts),
                None if unready != Unready::Untouched => endpoint.hints = None,
                None => {}
            }
        }
        content.annotations = tag.on(&content.annotations, |_| true);
    }
    for slice in std::mem::take(&mut packing.unchanged) {
        match rewritten(slice, facts, tag, unready, &mut next) {
            Some(content) => packing.updates.push((slice.key.name.clone(), content)),
            None => packing.unchanged.push(slice),
        }
    }
}

/// The new content of a stored slice, if it has to change.
fn rewritten<'p>(
    slice: &Slice,
    facts: &ClusterFacts,
    tag: &Tag,
    unready: Unready,
    mut next: impl FnMut(&Endpoint) -> Option<Wanted<'p>>,
) -> Option<SliceContent> {
    let stored = &slice.content;
    let mut copy = (!tag.is_told_by(&stored.annotations)).then(|| stored.clone());
    for (at, endpoint) in stored.endpoints.iter().enumerate() {
        match next(endpoint) {
            Some(wanted) if !has(endpoint, wanted) => {
                set(&mut copy.get_or_insert_with(|| stored.clone()).endpoints[at], wanted, facts);
            }
            None if unready == Unready::Cleared && endpoint.hints.is_some() => {
                copy.get_or_insert_with(|| stored.clone());
            }
            _ => {}
        }
    }
    let content = copy.as_mut()?;
    if unready != Unready::Untouched {
        let idle = content.endpoints.iter_mut().filter(|e| !e.conditions.is_ready_for_hints());
        idle.for_each(|endpoint| endpoint.hints = None);
    }
    // No pod changed, so the time of the last change of a pod would be measured a second time.
    content.annotations = tag.on(&content.annotations, |key| key != annotation::TRIGGER_TIME);
    copy
}

fn has(endpoint: &Endpoint, wanted: Wanted<'_>) -> bool {
    match wanted {
        Wanted::Keep => true,
        Wanted::Nothing => endpoint.hints.is_none(),
        Wanted::These(hints) => endpoint.hints.as_ref().is_some_and(|h| Arc::ptr_eq(h, hints) || h == hints),
        Wanted::NodeAnd(zones) => {
            let node = endpoint.node.as_slice();
            let nobody = node.is_empty() && zones.is_empty();
            endpoint.zone_hints() == zones
                && endpoint.node_hints() == node
                && endpoint.hints.is_none() == nobody
        }
    }
}

fn set(endpoint: &mut Endpoint, wanted: Wanted<'_>, facts: &ClusterFacts) {
    match wanted {
        Wanted::Keep => {}
        Wanted::Nothing => endpoint.hints = None,
        Wanted::These(hints) => endpoint.hints = Some(hints.clone()),
        Wanted::NodeAnd(zones) => {
            endpoint.hints = match &endpoint.node {
                Some(node) => Some(facts.node_hints(node, zones)),
                None if zones.is_empty() => None,
                None => Some(Arc::new(Hints { zones: zones.into(), nodes: Box::default() })),
            };
        }
    }
}
