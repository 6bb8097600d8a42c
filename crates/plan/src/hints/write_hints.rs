//! Writes hints and annotations onto the slices of a packing; slices that are already right stay unchanged.

use std::sync::Arc;

use model::{Endpoint, Hints, Labels, Name, Slice, SliceContent, annotation};

use super::HintContext;
use super::mechanism::Mechanism;
use super::topology::ClusterTopology;
use super::traffic_distribution::SettingOrigin;
use crate::slices::Packing;
use crate::spill::{ProvedLoad, SpillDemand};

/// The hints that a ready endpoint should have.
#[derive(Clone, Copy, Debug)]
pub(super) enum DesiredHints<'p> {
    Keep,
    Nothing,
    Shared(&'p Arc<Hints>),
    /// A hint for its own node, and these zones.
    NodeAnd(&'p [Name]),
}

/// What happens to hints of unready endpoints. Consumers ignore them (semantics C1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnreadyHints {
    /// They stay, as upstream does for trafficDistribution (semantics A3).
    Untouched,
    /// They are removed if the slice is written anyway (pitfall 34).
    ClearedInPassing,
    /// They are removed, which is a reason to write the slice (semantics A1, rule 4).
    Cleared,
}

/// The annotations that mechanisms set on slices.
const OURS: [&str; 6] = [
    annotation::MECHANISM,
    annotation::MECHANISM_SOURCE,
    annotation::DEMAND,
    annotation::KEEP,
    annotation::PROVED,
    annotation::REGIONS,
];

/// The mechanism's annotations on the slices of a Service.
#[derive(Debug)]
pub(super) struct SliceAnnotations {
    mechanism: Mechanism,
    origin: SettingOrigin,
    demand: Option<Name>,
    keep: Option<Name>,
    proved: Option<Name>,
    regions: Option<Name>,
    /// The complete annotations of a slice without others, shared by all such slices.
    alone: Labels,
}

impl SliceAnnotations {
    pub(super) fn new(context: &HintContext<'_>, mechanism: Mechanism) -> Self {
        let alone = match mechanism {
            Mechanism::None => Labels::EMPTY,
            named => context.topology.annotations(named, context.origin),
        };
        Self {
            mechanism,
            origin: context.origin,
            demand: None,
            keep: None,
            proved: None,
            regions: None,
            alone,
        }
    }

    /// For a region with more zones than hints can list: nodes use the zones in the annotation.
    pub(super) fn by_region(context: &HintContext<'_>, mechanism: Mechanism) -> Self {
        let base = Self::new(context, mechanism);
        let regions = Name::new(&context.topology.regions().to_string());
        let own = (Name::new(annotation::REGIONS), regions.clone());
        let alone = Labels::from_pairs(base.alone.iter().cloned().chain([own]).collect());
        Self { regions: Some(regions), alone, ..base }
    }

    pub(super) fn spill(context: &HintContext<'_>, demand: &SpillDemand, proved: Option<ProvedLoad>) -> Self {
        let keep = demand.keep().map(|keep| Name::new(&keep.to_string()));
        let proved = proved.map(|proved| Name::new(&proved.to_string()));
        let (demand, mut alone) = context.topology.spill_annotations(demand, context.origin);
        if let Some(proved) = &proved {
            let own = (Name::new(annotation::PROVED), proved.clone());
            alone = Labels::from_pairs(alone.iter().cloned().chain([own]).collect());
        }
        Self {
            mechanism: Mechanism::Spill,
            origin: context.origin,
            demand: Some(demand),
            keep,
            proved,
            regions: None,
            alone,
        }
    }

    /// Whether a stored slice already has these annotations, or needs none.
    fn match_stored(&self, annotations: &Labels) -> bool {
        let source = annotations.value(annotation::MECHANISM_SOURCE).map(Name::as_str);
        let mechanism_fits = match annotations.value(annotation::MECHANISM) {
            Some(stored) => {
                self.mechanism != Mechanism::None
                    && *stored == *self.mechanism.as_str()
                    && source == self.origin.annotation()
            }
            None => self.mechanism.is_expressed_by_hints() && source.is_none(),
        };
        mechanism_fits
            && annotations.value(annotation::DEMAND) == self.demand.as_ref()
            && annotations.value(annotation::KEEP) == self.keep.as_ref()
            && annotations.value(annotation::PROVED) == self.proved.as_ref()
            && annotations.value(annotation::REGIONS) == self.regions.as_ref()
    }

    /// The annotations of a written slice, including those of other writers that stay.
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

/// Writes hints to all slices. `wanted` is called once per ready endpoint, with its index in the iteration.
pub(super) fn write_hints<'p>(
    packing: &mut Packing<'_>,
    topology: &ClusterTopology,
    annotations: &SliceAnnotations,
    unready: UnreadyHints,
    mut wanted: impl FnMut(usize, &Endpoint) -> DesiredHints<'p>,
) {
    let mut index = 0;
    let mut next = |endpoint: &Endpoint| {
        index += 1;
        endpoint.conditions.is_ready_for_hints().then(|| wanted(index - 1, endpoint))
    };
    let planned = packing.updates.iter_mut().map(|(_, content)| content);
    for content in packing.creates.iter_mut().chain(planned) {
        for endpoint in &mut content.endpoints {
            match next(endpoint) {
                Some(wanted) => set(endpoint, wanted, topology),
                None if unready != UnreadyHints::Untouched => endpoint.hints = None,
                None => {}
            }
        }
        content.annotations = annotations.on(&content.annotations, |_| true);
    }
    for slice in std::mem::take(&mut packing.unchanged) {
        match rewritten(slice, topology, annotations, unready, &mut next) {
            Some(content) => packing.updates.push((slice.key.name.clone(), content)),
            None => packing.unchanged.push(slice),
        }
    }
}

/// The new content of a stored slice, if it has to change.
fn rewritten<'p>(
    slice: &Slice,
    topology: &ClusterTopology,
    annotations: &SliceAnnotations,
    unready: UnreadyHints,
    mut next: impl FnMut(&Endpoint) -> Option<DesiredHints<'p>>,
) -> Option<SliceContent> {
    let stored = &slice.content;
    let mut copy = (!annotations.match_stored(&stored.annotations)).then(|| stored.clone());
    for (at, endpoint) in stored.endpoints.iter().enumerate() {
        match next(endpoint) {
            Some(wanted) if !has(endpoint, wanted) => {
                set(&mut copy.get_or_insert_with(|| stored.clone()).endpoints[at], wanted, topology);
            }
            None if unready == UnreadyHints::Cleared && endpoint.hints.is_some() => {
                copy.get_or_insert_with(|| stored.clone());
            }
            _ => {}
        }
    }
    let content = copy.as_mut()?;
    if unready != UnreadyHints::Untouched {
        let idle = content.endpoints.iter_mut().filter(|e| !e.conditions.is_ready_for_hints());
        idle.for_each(|endpoint| endpoint.hints = None);
    }
    // No pod changed: keeping the trigger time would count its latency twice.
    content.annotations = annotations.on(&content.annotations, |key| key != annotation::TRIGGER_TIME);
    copy
}

fn has(endpoint: &Endpoint, wanted: DesiredHints<'_>) -> bool {
    match wanted {
        DesiredHints::Keep => true,
        DesiredHints::Nothing => endpoint.hints.is_none(),
        DesiredHints::Shared(hints) => {
            endpoint.hints.as_ref().is_some_and(|h| Arc::ptr_eq(h, hints) || h == hints)
        }
        DesiredHints::NodeAnd(zones) => {
            let node = endpoint.node.as_slice();
            let is_empty = node.is_empty() && zones.is_empty();
            endpoint.zone_hints() == zones
                && endpoint.node_hints() == node
                && endpoint.hints.is_none() == is_empty
        }
    }
}

fn set(endpoint: &mut Endpoint, wanted: DesiredHints<'_>, topology: &ClusterTopology) {
    match wanted {
        DesiredHints::Keep => {}
        DesiredHints::Nothing => endpoint.hints = None,
        DesiredHints::Shared(hints) => endpoint.hints = Some(hints.clone()),
        DesiredHints::NodeAnd(zones) => {
            endpoint.hints = match &endpoint.node {
                Some(node) => Some(topology.node_hints(node, zones)),
                None if zones.is_empty() => None,
                None => Some(Arc::new(Hints { zones: zones.into(), nodes: Box::default() })),
            };
        }
    }
}
