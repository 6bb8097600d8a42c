//! Pods -> the EndpointSlices of one Service (semantics B1 to B5).
//!
//! ```text
//! pods, nodes -> port_groups: included pods by their ports -> pod_to_endpoint: per pod and IP family --\
//!                                                                                                       v
//! stored slices -> managed by us --------------------------------------------------------------------> packing
//!               -> of a deleted Service, or of a removed IP family: deleted                             |
//!               -> managed by another controller: unchanged                                             v
//!                             SlicePlan <- recycle: a create reuses a deleted slice <- hints (by the caller)
//! ```
//!
//! With `--subset-slices`, `zone_groups` splits the port group of a large Service by zone before packing. Services and IP
//! families are planned independently; state for the next plan is part of the result.

mod labels;
mod packing;
mod pod_change;
mod pod_to_endpoint;
mod port_groups;
#[cfg(test)]
mod tests;
mod trigger_time;
mod without_selector;
mod zone_groups;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use crate::subsetting::SubsetOptions;
use model::{
    AddressType, Family, Labels, Name, Node, Notice, ObjectKey, Pod, Service, ServiceType, Slice,
    SliceContent, annotation,
};
use serde::{Deserialize, Serialize};

pub use labels::{labels, labels_at};
pub use pod_change::{PodChange, endpoints_equal, pod_changed};
pub use pod_to_endpoint::{endpoint, find_port, included, ports};
pub use trigger_time::TriggerTimes;
pub use zone_groups::{SubsetInput, SubsetOutcome};

/// The default of `--max-endpoints-per-slice`.
pub const DEFAULT_MAX_ENDPOINTS: usize = 100;
/// The limit of the API.
const API_MAX_ENDPOINTS: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SliceOptions {
    /// Maximum endpoints per slice, clamped to 1 to 1000.
    pub max_endpoints: usize,
    pub mode: SliceMode,
    /// Slices by zone (`--subset-slices`); `None`: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subset: Option<SubsetOptions>,
}

/// Whether upstream's EndpointSlice controller also runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SliceMode {
    /// Upstream's controller is disabled: our slices replace its slices.
    #[default]
    Exclusive,
    /// `--coexist`: our slices have labels that only our nodes read.
    Coexist,
}

impl SliceMode {
    /// The value of `endpointslice.kubernetes.io/managed-by`.
    pub fn managed_by(self) -> &'static str {
        match self {
            Self::Exclusive => annotation::CONTROLLER_NAME,
            Self::Coexist => annotation::COEXIST_CONTROLLER_NAME,
        }
    }
}

impl SliceOptions {
    /// As kube-controller-manager without flags.
    pub const WITHOUT_FLAGS: Self =
        Self { max_endpoints: DEFAULT_MAX_ENDPOINTS, mode: SliceMode::Exclusive, subset: None };

    pub fn new(max_endpoints: usize) -> Result<Self, MaxEndpointsOutOfRange> {
        if (1..=API_MAX_ENDPOINTS).contains(&max_endpoints) {
            Ok(Self { max_endpoints, ..Self::WITHOUT_FLAGS })
        } else {
            Err(MaxEndpointsOutOfRange(max_endpoints))
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxEndpointsOutOfRange(usize);

impl fmt::Display for MaxEndpointsOutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the maximum endpoints per slice must be between 1 and {API_MAX_ENDPOINTS}, not {}", self.0)
    }
}

impl std::error::Error for MaxEndpointsOutOfRange {}

/// The inputs of a plan.
#[derive(Clone, Copy, Debug)]
pub struct SliceInput<'a> {
    pub service: &'a Service,
    /// The pods that its selector selects, in the order of their names.
    pub pods: &'a [&'a Pod],
    pub nodes: &'a BTreeMap<Name, Node>,
    /// All stored slices of the Service, including those of other controllers.
    pub slices: &'a [Slice],
    /// [`SlicePlan::trigger`] of the previous plan.
    pub trigger: &'a TriggerTimes,
}

/// Writes for one Service, in the order creates, updates, deletes (semantics B4), so that no endpoint is missing in
/// between.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlicePlan {
    pub creates: Vec<SliceContent>,
    pub updates: Vec<(ObjectKey, SliceContent)>,
    pub deletes: Vec<ObjectKey>,
    pub unchanged: Vec<ObjectKey>,
    pub notices: Vec<Notice>,
    /// Nodes that do not exist but that pods run on. Their pods are excluded: plan again soon.
    pub missing_nodes: Vec<Name>,
    /// State for the next plan.
    pub trigger: TriggerTimes,
    /// What happened to the labels by zone.
    pub subset: SubsetOutcome,
}

impl SlicePlan {
    pub fn is_noop(&self) -> bool {
        self.creates.is_empty() && self.updates.is_empty() && self.deletes.is_empty()
    }
}

/// The slices of one Service and IP family after packing; hints are assigned to them.
#[derive(Debug, Default)]
pub struct Packing<'a> {
    pub creates: Vec<SliceContent>,
    /// By name.
    pub updates: Vec<(Name, SliceContent)>,
    pub unchanged: Vec<&'a Slice>,
    pub deletes: Vec<ObjectKey>,
    /// Of endpoints whose capacity is not 1, in thousandths.
    pub capacities: BTreeMap<IpAddr, u32>,
}

/// Plans the slices of a Service, none of which is for one zone only.
pub fn plan<'a>(
    input: &SliceInput<'a>,
    options: &SliceOptions,
    assign_hints: impl FnMut(Family, &mut Packing<'a>),
) -> SlicePlan {
    plan_by_zone(input, options, None, assign_hints)
}

/// Plans the slices of a Service; with `subset`, by zone if it is large enough and its hints keep each endpoint in its zone.
///
/// `assign_hints` is called once per IP family, even without changes, because hints alone may change. It sets hints on
/// `creates` and `updates`, and moves a slice from `unchanged` to `updates` if its hints differ. If its hints lend an
/// endpoint of a slice by zone to another one, it is called once more, and that call counts.
pub fn plan_by_zone<'a>(
    input: &SliceInput<'a>,
    options: &SliceOptions,
    subset: Option<&SubsetInput<'_>>,
    mut assign_hints: impl FnMut(Family, &mut Packing<'a>),
) -> SlicePlan {
    let service = input.service;
    if !has_planned_slices(service) {
        return without_selector::plan(input, assign_hints);
    }
    let (changed_at, trigger) = input.trigger.advance(service, input.pods);
    let candidates = port_groups::candidates(input);
    let families = families(service);
    let stored = StoredSlices::classify(input, &families, options.mode);
    let mut plan = SlicePlan {
        deletes: stored.strays,
        notices: candidates.notices(service),
        missing_nodes: candidates.missing_nodes(),
        trigger,
        ..SlicePlan::default()
    };
    let labels = labels::desired(service, options.mode);
    let changed_at = changed_at.map(|time| Name::new(&time.to_string()));
    let max = effective_max(options);
    for (family, owned) in families.into_iter().zip(stored.owned) {
        let mut desired = candidates.desired(service, family);
        let was_subset = zone_groups::is_subset(&owned);
        let mut decision = subset.map(|s| zone_groups::decision(s, &desired, &owned)).unwrap_or_default();
        if service.deleting {
            decision.is_subset &= was_subset;
        }
        let mut by_zone = None;
        if decision.is_subset
            && let Some(group) = desired.pop()
        {
            let zones = zone_groups::split(group, &owned);
            let mut packing = packing::pack_by_zone(zones, &owned, family, &labels, max);
            assign_hints(family, &mut packing);
            by_zone = zone_groups::stays_in_zone(&packing).then_some(packing);
            if by_zone.is_none() {
                desired = candidates.desired(service, family);
            }
        }
        let is_subset = by_zone.is_some();
        let mut packing = by_zone.unwrap_or_else(|| {
            let limits = packing::Limits { family, labels: &labels, max, new_slices_only: false };
            let mut packing = packing::pack(desired, &owned, &limits);
            assign_hints(family, &mut packing);
            recycle(&mut packing);
            packing
        });
        if is_subset {
            zone_groups::order_moves(&mut packing, &owned);
        }
        plan.subset.add(is_subset != was_subset, decision.retry_after);
        let writer = SliceWriter { owned: &owned, labels: &labels, changed_at: changed_at.as_ref() };
        writer.add(packing, &service.key.namespace, &mut plan);
    }
    if service.deleting {
        // Semantics B4: the garbage collector would delete new slices.
        plan.creates.clear();
    }
    labels::repair(&mut plan, input, options.mode);
    plan
}

/// The slices to delete of a Service that does not exist.
pub fn orphans(slices: &[Slice], mode: SliceMode) -> impl Iterator<Item = &Slice> {
    let is_ours =
        move |slice: &&Slice| slice.managed_by().is_some_and(|manager| manager == mode.managed_by());
    slices.iter().filter(is_ours).filter(|slice| !slice.deleting)
}

/// Semantics B1: an ExternalName Service has no endpoints, and without a selector another controller writes the slices.
/// As upstream, slices that were written before are left unchanged.
fn has_planned_slices(service: &Service) -> bool {
    service.kind != ServiceType::ExternalName && service.selector.is_some()
}

/// The IP families of the slices of a Service, primary first (semantics B1).
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

fn effective_max(options: &SliceOptions) -> usize {
    options.max_endpoints.clamp(1, API_MAX_ENDPOINTS)
}

/// The stored slices that we manage.
struct StoredSlices<'a> {
    /// By IP family of the Service: the slices to reconcile, by name.
    owned: Vec<Vec<&'a Slice>>,
    /// Of a previous Service of that name or of a removed IP family: deleted, never recycled.
    strays: Vec<ObjectKey>,
}

impl<'a> StoredSlices<'a> {
    fn classify(input: &SliceInput<'a>, families: &[Family], mode: SliceMode) -> Self {
        let mut stored = Self { owned: vec![Vec::new(); families.len()], strays: Vec::new() };
        for slice in input.slices.iter().filter(|slice| !slice.deleting) {
            let owned = is_owned(slice, input.service);
            if slice.is_coexisting() && mode == SliceMode::Exclusive {
                // Left over from a run with `--coexist`.
                stored.strays.push(slice.key.clone());
                continue;
            }
            let ours = match slice.managed_by() {
                Some(manager) => manager == mode.managed_by(),
                None => owned && slice.is_coexisting() == (mode == SliceMode::Coexist),
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

/// Owners are compared by UID, because a Service can be recreated; by name if the Service has no UID (manifests that were
/// never applied).
fn is_owned(slice: &Slice, service: &Service) -> bool {
    slice.owners.iter().any(|owner| match &service.uid {
        Some(uid) => owner.uid == *uid,
        None => owner.name == service.key.name,
    })
}

/// Semantics B4: a new slice reuses the name of a deleted one.
fn recycle(packing: &mut Packing<'_>) {
    let pairs = packing.creates.len().min(packing.deletes.len());
    let contents = packing.creates.drain(..pairs);
    let names = packing.deletes.drain(..pairs).map(|key| key.name);
    packing.updates.extend(names.zip(contents));
}

/// Adds the slices of one IP family to a plan.
struct SliceWriter<'p, 'a> {
    owned: &'p [&'a Slice],
    labels: &'p Labels,
    changed_at: Option<&'p Name>,
}

impl SliceWriter<'_, '_> {
    fn add(&self, packing: Packing<'_>, namespace: &Name, plan: &mut SlicePlan) {
        plan.deletes.extend(packing.deletes);
        plan.unchanged.extend(packing.unchanged.iter().map(|slice| slice.key.clone()));
        for mut content in packing.creates {
            self.stamp(&mut content);
            plan.creates.push(content);
        }
        for (name, mut content) in packing.updates {
            let key = ObjectKey::new(namespace, &name);
            if self.stored(&name).is_some_and(|slice| has_content(slice, &content)) {
                plan.unchanged.push(key);
                continue;
            }
            // Semantics B5 [Q]: upstream restores missing reserved labels only together with another change.
            content.labels = labels::for_zone(self.labels, content.for_zone());
            self.stamp(&mut content);
            plan.updates.push((key, content));
        }
    }

    fn stored(&self, name: &Name) -> Option<&Slice> {
        let at = self.owned.binary_search_by(|slice| slice.key.name.cmp(name)).ok()?;
        Some(self.owned[at])
    }

    /// Semantics B5: sets or removes the trigger time of a slice that is written.
    fn stamp(&self, content: &mut SliceContent) {
        if self.changed_at == content.annotation(annotation::TRIGGER_TIME) {
            return;
        }
        let others = content.annotations.iter().filter(|(key, _)| key != annotation::TRIGGER_TIME);
        let time = self.changed_at.map(|time| (Name::new(annotation::TRIGGER_TIME), time.clone()));
        content.annotations = Labels::from_pairs(others.cloned().chain(time).collect());
    }
}

/// Whether a stored slice has this content, apart from the trigger time.
fn has_content(slice: &Slice, content: &SliceContent) -> bool {
    fn without_trigger_time(content: &SliceContent) -> impl Iterator<Item = &(Name, Name)> {
        content.annotations.iter().filter(|(key, _)| key != annotation::TRIGGER_TIME)
    }
    let stored = &slice.content;
    stored.address_type == content.address_type
        && stored.labels == content.labels
        && stored.ports == content.ports
        && stored.endpoints == content.endpoints
        && without_trigger_time(stored).eq(without_trigger_time(content))
}
