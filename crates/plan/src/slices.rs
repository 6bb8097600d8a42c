//! Pods -> the EndpointSlices of one Service (semantics B1 to B5).
//!
//! ```text
//! pods, nodes -> group: who counts, with which ports -> convert: an endpoint per pod and family --\
//!                                                                                                  v
//! stored slices -> whose are they? -> ours ------------------------------------------------------> pack
//!                                  -> an old Service's, or of a family that is gone: deleted        |
//!                                  -> another writer's: not touched                                 v
//!                        SlicePlan <- recycle: creates in the place of deletes <- hints (the caller's)
//! ```
//!
//! Everything is decided per Service and family; what has to be remembered is an argument and a result.

mod change;
mod convert;
mod exposed;
mod group;
mod label;
mod pack;
mod repair;
#[cfg(test)]
mod tests;
pub mod trigger;

use std::collections::BTreeMap;
use std::fmt;

use model::{
    AddressType, Family, Labels, Name, Node, Notice, ObjectKey, Pod, Service, ServiceType, Slice,
    SliceContent, annotation,
};

pub use change::{PodChange, endpoints_equal, pod_changed};
pub use convert::{endpoint, find_port, included, ports};
pub use label::{labels, labels_at};
pub use trigger::TriggerTimes;

/// How many endpoints a slice holds at most, unless somebody says otherwise.
pub const DEFAULT_MAX_ENDPOINTS: usize = 100;
/// How many endpoints the API lets a slice hold.
const LARGEST_MAX_ENDPOINTS: usize = 1000;

/// What an operator can choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How many endpoints a slice holds at most, 1 to 1000; planning takes the nearest of these.
    pub max_endpoints: usize,
    /// Whether Kubernetes' own controller writes slices, too.
    pub place: Place,
}

/// Where our slices stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// In the place of those of Kubernetes' own controller, which is turned off.
    #[default]
    Alone,
    /// Beside them, where that one cannot be turned off (semantics M8): under labels that only our nodes read.
    Beside,
}

impl Place {
    /// The name in `endpointslice.kubernetes.io/managed-by`.
    pub fn writer(self) -> &'static str {
        match self {
            Self::Alone => annotation::CONTROLLER_NAME,
            Self::Beside => annotation::BESIDE_CONTROLLER_NAME,
        }
    }
}

impl Options {
    /// Slices of at most this many endpoints.
    pub fn new(max_endpoints: usize) -> Result<Self, MaxEndpointsOutOfRange> {
        if (1..=LARGEST_MAX_ENDPOINTS).contains(&max_endpoints) {
            Ok(Self { max_endpoints, place: Place::Alone })
        } else {
            Err(MaxEndpointsOutOfRange(max_endpoints))
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self { max_endpoints: DEFAULT_MAX_ENDPOINTS, place: Place::Alone }
    }
}

/// A number of endpoints per slice that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxEndpointsOutOfRange(usize);

impl fmt::Display for MaxEndpointsOutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a slice holds at most 1 to {LARGEST_MAX_ENDPOINTS} endpoints, not {}", self.0)
    }
}

impl std::error::Error for MaxEndpointsOutOfRange {}

/// What one Service's slices follow from.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The Service.
    pub service: &'a Service,
    /// The pods that its selector selects, in the order of their names.
    pub pods: &'a [&'a Pod],
    /// Every node.
    pub nodes: &'a BTreeMap<Name, Node>,
    /// The stored slices that are attributed to the Service, whoever writes them.
    pub slices: &'a [Slice],
    /// What the plan before this one remembered; the default at first sight.
    pub trigger: &'a TriggerTimes,
}

/// What to write for one Service. Creates come first, then updates, then deletes (semantics B4), so that no
/// endpoint is missing in between.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlicePlan {
    /// Slices to make.
    pub creates: Vec<SliceContent>,
    /// Stored slices to change, with what they will hold.
    pub updates: Vec<(ObjectKey, SliceContent)>,
    /// Stored slices to delete.
    pub deletes: Vec<ObjectKey>,
    /// Stored slices of ours that hold what they should.
    pub unchanged: Vec<ObjectKey>,
    /// What the Service's owner should know.
    pub notices: Vec<Notice>,
    /// The nodes that pods name but that are not there, in order. Those pods were left out: plan again soon.
    pub missing_nodes: Vec<Name>,
    /// What to hand to the next plan.
    pub trigger: TriggerTimes,
}

impl SlicePlan {
    /// Whether there is nothing to write.
    pub fn is_noop(&self) -> bool {
        self.creates.is_empty() && self.updates.is_empty() && self.deletes.is_empty()
    }
}

/// The slices of one Service and one family between packing and writing. Hints are put on here.
#[derive(Debug, Default)]
pub struct Packing<'a> {
    /// Slices to make.
    pub creates: Vec<SliceContent>,
    /// Stored slices to change, by name, with what they will hold.
    pub updates: Vec<(Name, SliceContent)>,
    /// Stored slices that hold what they should.
    pub unchanged: Vec<&'a Slice>,
    /// Stored slices to delete.
    pub deletes: Vec<ObjectKey>,
}

/// Plans the slices of a Service.
///
/// `assign_hints` is called once per family, changes or not: hints may be all that has to change. It sets
/// them on `creates` and `updates`, and moves a slice from `unchanged` to `updates` where its hints are
/// wrong.
pub fn plan<'a>(
    input: &Input<'a>,
    options: &Options,
    mut assign_hints: impl FnMut(Family, &mut Packing<'a>),
) -> SlicePlan {
    let service = input.service;
    if !has_planned_slices(service) {
        return exposed::plan(input, assign_hints);
    }
    let (changed_at, trigger) = input.trigger.advance(service, input.pods);
    let candidates = group::candidates(input);
    let families = families(service);
    let stored = Stored::sort_out(input, &families, options.place);
    let mut plan = SlicePlan {
        deletes: stored.strays,
        notices: candidates.notices(service),
        missing_nodes: candidates.missing_nodes(),
        trigger,
        ..SlicePlan::default()
    };
    let labels = label::wanted(service, options.place);
    let changed_at = changed_at.map(|time| Name::new(&time.to_string()));
    for (family, owned) in families.into_iter().zip(stored.owned) {
        let wanted = candidates.wanted(service, family);
        let limits = pack::Limits { family, labels: &labels, max: effective_max(options) };
        let mut packing = pack::pack(wanted, &owned, &limits);
        assign_hints(family, &mut packing);
        recycle(&mut packing);
        let write = Write { owned: &owned, labels: &labels, changed_at: changed_at.as_ref() };
        write.add(packing, &service.key.namespace, &mut plan);
    }
    if service.deleting {
        // Semantics B4: the garbage collector would race with us to delete what we make.
        plan.creates.clear();
    }
    repair::labels(&mut plan, input, options.place);
    plan
}

/// The slices to delete of a Service that is not there.
pub fn orphans(slices: &[Slice], place: Place) -> impl Iterator<Item = &Slice> {
    let is_ours = move |slice: &&Slice| slice.managed_by().is_some_and(|writer| writer == place.writer());
    slices.iter().filter(is_ours).filter(|slice| !slice.deleting)
}

/// Semantics B1: an ExternalName has no endpoints, and without a selector the slices have another writer. What we
/// wrote before it became so is left alone, as Kubernetes' controller leaves it: removing the selector hands those
/// slices over as they are.
fn has_planned_slices(service: &Service) -> bool {
    service.kind != ServiceType::ExternalName && service.selector.is_some()
}

/// The families that a Service has slices of, the primary one first (semantics B1).
pub fn families(service: &Service) -> Vec<Family> {
    let mut families = distinct(service.families.iter().copied());
    if families.is_empty() {
        families = distinct(service.cluster_ips.addresses().iter().map(|ip| Family::of(*ip)));
    }
    if families.is_empty() {
        families = vec![Family::V4, Family::V6];
    }
    families
}

fn distinct(all: impl Iterator<Item = Family>) -> Vec<Family> {
    let mut families = Vec::with_capacity(2);
    for family in all {
        if !families.contains(&family) {
            families.push(family);
        }
    }
    families
}

fn effective_max(options: &Options) -> usize {
    options.max_endpoints.clamp(1, LARGEST_MAX_ENDPOINTS)
}

/// The stored slices, by what is to be done with them.
struct Stored<'a> {
    /// For each family of the Service, in the same order: the slices to reconcile, by name.
    owned: Vec<Vec<&'a Slice>>,
    /// Ours, but of an old Service or of a family that is gone: deleted, never recycled.
    strays: Vec<ObjectKey>,
}

impl<'a> Stored<'a> {
    fn sort_out(input: &Input<'a>, families: &[Family], place: Place) -> Self {
        let mut stored = Self { owned: vec![Vec::new(); families.len()], strays: Vec::new() };
        for slice in input.slices.iter().filter(|slice| !slice.deleting) {
            let owned = is_owned(slice, input.service);
            if slice.is_beside() && place == Place::Alone {
                // Left from a time when there were two writers.
                stored.strays.push(slice.key.clone());
                continue;
            }
            let ours = match slice.managed_by() {
                Some(writer) => writer == place.writer(),
                None => owned && slice.is_beside() == (place == Place::Beside),
            };
            if !ours {
                continue;
            }
            let at = families.iter().position(|f| slice.content.address_type == AddressType::Ip(*f));
            match at {
                Some(at) if owned => stored.owned[at].push(slice),
                _ => stored.strays.push(slice.key.clone()),
            }
        }
        for owned in &mut stored.owned {
            owned.sort_by(|a, b| a.key.name.cmp(&b.key.name));
        }
        stored
    }
}

/// Ownership goes by UID: a Service of the same name may have lived before. A Service from a file that was
/// never applied has none; there the name has to do.
fn is_owned(slice: &Slice, service: &Service) -> bool {
    slice.owners.iter().any(|owner| match &service.uid {
        Some(uid) => owner.uid == *uid,
        None => owner.name == service.key.name,
    })
}

/// Semantics B4: a slice to make takes the place (and keeps the name) of one to delete.
fn recycle(packing: &mut Packing<'_>) {
    let pairs = packing.creates.len().min(packing.deletes.len());
    let contents = packing.creates.drain(..pairs);
    let names = packing.deletes.drain(..pairs).map(|key| key.name);
    packing.updates.extend(names.zip(contents));
}

/// How the slices of one family come into the plan.
struct Write<'p, 'a> {
    owned: &'p [&'a Slice],
    labels: &'p Labels,
    changed_at: Option<&'p Name>,
}

impl Write<'_, '_> {
    fn add(&self, packing: Packing<'_>, namespace: &Name, plan: &mut SlicePlan) {
        plan.deletes.extend(packing.deletes);
        plan.unchanged.extend(packing.unchanged.iter().map(|slice| slice.key.clone()));
        for mut content in packing.creates {
            self.stamp(&mut content);
            plan.creates.push(content);
        }
        for (name, mut content) in packing.updates {
            let key = ObjectKey::new(namespace, &name);
            if self.stored(&name).is_some_and(|slice| holds(slice, &content)) {
                plan.unchanged.push(key);
                continue;
            }
            // Semantics B5: upstream brings missing reserved labels back only when something else is written.
            content.labels = self.labels.clone();
            self.stamp(&mut content);
            plan.updates.push((key, content));
        }
    }

    fn stored(&self, name: &Name) -> Option<&Slice> {
        let at = self.owned.binary_search_by(|slice| slice.key.name.cmp(name)).ok()?;
        Some(self.owned[at])
    }

    /// Semantics B5: what is written says when the change happened, or says nothing.
    fn stamp(&self, content: &mut SliceContent) {
        if self.changed_at == content.annotation(annotation::TRIGGER_TIME) {
            return;
        }
        let others = content.annotations.iter().filter(|(key, _)| key != annotation::TRIGGER_TIME);
        let time = self.changed_at.map(|time| (Name::new(annotation::TRIGGER_TIME), time.clone()));
        content.annotations = Labels::from_pairs(others.cloned().chain(time).collect());
    }
}

/// Whether a stored slice already holds this, whenever it was written.
fn holds(slice: &Slice, content: &SliceContent) -> bool {
    fn undated(content: &SliceContent) -> impl Iterator<Item = &(Name, Name)> {
        content.annotations.iter().filter(|(key, _)| key != annotation::TRIGGER_TIME)
    }
    let stored = &slice.content;
    stored.address_type == content.address_type
        && stored.labels == content.labels
        && stored.ports == content.ports
        && stored.endpoints == content.endpoints
        && undated(stored).eq(undated(content))
}
