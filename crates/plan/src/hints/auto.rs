//! Auto: `topology-aware-hints` and `topology-mode` (KEP-2433, seed 001, semantics A2).
//!
//! Rule: each zone gets ready endpoints in proportion to the allocatable CPU of its nodes, its own first; surplus endpoints
//! are reassigned to other zones. Safeguards remove all hints: fewer endpoints than zones (1), a zone above the overload
//! threshold of 20 % (2), a node without zone or CPU (3), an endpoint without a zone. Consumers implement safeguards 4 and
//! 5 (a missing hint, a zone without hints).
//!
//! Differences from upstream: ties are decided by zone name; a change of CPU counts; hints, once set, stay while every zone
//! can have half of its share, so that a rolling update does not toggle them; no zone stays below its minimum; Events are
//! not repeated.

pub(crate) mod cpu_allocation;
#[cfg(test)]
mod tests;

use model::Endpoint;

use super::endpoints_by_zone::{EndpointZone, EndpointsByZone, contents};
use super::mechanism::Mechanism;
use super::message::{count, list, percent};
use super::topology::MissingNodeInfo;
use super::write_hints::{DesiredHints, SliceAnnotations, UnreadyHints, write_hints};
use super::{HintContext, MechanismOutcome, clear, event_reason};
use crate::slices::Packing;
use cpu_allocation::{
    HOLD_OVERLOAD, OVERLOAD, Shortage, ZoneAllocation, allocate, giving_and_receiving, redistribute,
};

/// The search limit for the number of endpoints to add.
const ADVICE: usize = 200;

/// The zone that each endpoint serves; none for unready endpoints, and for those in slices that stay unchanged.
struct ZoneAssignment {
    serves: Vec<Option<usize>>,
    /// Endpoints per served zone, including those in unchanged slices.
    counts: Vec<usize>,
}

/// Why there are no hints.
enum DisabledReason {
    Nodes(MissingNodeInfo),
    FewEndpoints { zones: usize },
    Minimum { zones: usize },
    EndpointWithoutZone,
}

pub(super) fn apply(context: &mut HintContext<'_>, packing: &mut Packing<'_>) -> MechanismOutcome {
    match decide(context, packing) {
        Ok((plan, allocations, overload)) => {
            let endpoints = &context.endpoints;
            let annotations = SliceAnnotations::new(context, Mechanism::Auto);
            write_hints(
                packing,
                context.topology,
                &annotations,
                UnreadyHints::ClearedInPassing,
                |index, _| match plan.serves[index] {
                    Some(zone) => DesiredHints::Shared(endpoints.zones.own(zone)),
                    None => DesiredHints::Keep,
                },
            );
            if context.reports_notices() {
                report_enabled(context, &plan, &allocations, overload);
            }
            MechanismOutcome::programmed(Mechanism::Auto)
        }
        Err(refusal) => {
            clear(context, packing, Mechanism::Auto);
            if context.reports_notices() {
                report_disabled(context, &refusal);
            }
            MechanismOutcome::held_back(Mechanism::Auto, refusal.reason(), refusal.sentence())
        }
    }
}

/// Auto was active and is no longer requested (semantics A1).
pub(super) fn report_switched_off(context: &mut HintContext<'_>) {
    let message = format!(
        "Topology Aware Hints has been disabled, addressType: {}. {} decides now, the hints of Auto are removed.",
        context.family,
        if context.source.is_empty() { "No setting" } else { &context.source },
    );
    context.report(event_reason::AUTO_DISABLED, message);
}

fn ratios(context: &HintContext<'_>) -> Result<Vec<(usize, f64)>, DisabledReason> {
    let ratios = context.topology.auto().map_err(|info| DisabledReason::Nodes(info.clone()))?;
    Ok(ratios.iter().map(|(zone, ratio)| (*zone, ratio.0)).collect())
}

fn decide(
    context: &HintContext<'_>,
    packing: &Packing<'_>,
) -> Result<(ZoneAssignment, Vec<ZoneAllocation>, f64), DisabledReason> {
    let endpoints = &context.endpoints;
    let ratios = ratios(context)?;
    let zones = ratios.len();
    let was_on = context.hysteresis.mechanism == Mechanism::Auto && context.hysteresis.programmed;
    let allocated = match allocate(&ratios, endpoints.ready, OVERLOAD) {
        Err(Shortage::Minimum) if was_on => {
            allocate(&ratios, endpoints.ready, HOLD_OVERLOAD).map(|a| (a, HOLD_OVERLOAD))
        }
        strict => strict.map(|a| (a, OVERLOAD)),
    };
    let (allocations, overload) = allocated.map_err(|shortage| match shortage {
        Shortage::Zones => DisabledReason::FewEndpoints { zones },
        Shortage::Minimum => DisabledReason::Minimum { zones },
    })?;
    let before = lent_before(context, packing);
    let (stays, counts) = kept_slices(endpoints, packing, &allocations);
    let mut plan = share_out(endpoints, &stays, counts, &before, &allocations)?;
    let is_short = |plan: &ZoneAssignment| allocations.iter().any(|a| plan.counts[a.zone] < a.minimum);
    if is_short(&plan) {
        // Unchanged slices keep endpoints that a zone needs, or fractions of several zones add up: upstream stops here.
        let none = vec![false; endpoints.zone_by_endpoint.len()];
        plan = share_out(endpoints, &none, vec![0; endpoints.zones.len()], &before, &allocations)?;
        plan.fill_minimum(&before, &allocations);
    }
    Ok((plan, allocations, overload))
}

/// The zone that each endpoint was reassigned to, so that the same ones are reassigned again.
fn lent_before(context: &HintContext<'_>, packing: &Packing<'_>) -> Vec<Option<usize>> {
    if context.hysteresis.reassigned.is_empty() {
        return Vec::new();
    }
    let endpoints = contents(packing).flat_map(|c| &c.endpoints);
    let zone = |e: &Endpoint| context.endpoints.zones.find(context.hysteresis.lent_to(e.addresses.first())?);
    endpoints.map(zone).collect()
}

/// Semantics A2, assignment 1: an unchanged slice stays if all its ready endpoints serve zones of the allocation and no
/// zone gets more than its maximum. Returns for each endpoint whether its slice stays, and the counts in such slices.
fn kept_slices(
    endpoints: &EndpointsByZone<'_>,
    packing: &Packing<'_>,
    allocations: &[ZoneAllocation],
) -> (Vec<bool>, Vec<usize>) {
    let planned = packing.creates.iter().chain(packing.updates.iter().map(|(_, content)| content));
    let mut stays = vec![false; planned.map(|c| c.endpoints.len()).sum()];
    let mut counts = vec![0usize; endpoints.zones.len()];
    for slice in &packing.unchanged {
        let listed = &slice.content.endpoints;
        let hints = slice_hints(endpoints, listed, &counts, allocations);
        stays.resize(stays.len() + listed.len(), hints.is_some());
        for (count, more) in counts.iter_mut().zip(hints.into_iter().flatten()) {
            *count += more;
        }
    }
    (stays, counts)
}

/// The hints of a slice per zone, if it may stay besides those with `counts`.
fn slice_hints(
    endpoints: &EndpointsByZone<'_>,
    listed: &[Endpoint],
    counts: &[usize],
    allocations: &[ZoneAllocation],
) -> Option<Vec<usize>> {
    let mut hints = vec![0usize; endpoints.zones.len()];
    for endpoint in listed.iter().filter(|e| e.conditions.is_ready_for_hints()) {
        if endpoint.zone_hints().is_empty() {
            return None;
        }
        for name in endpoint.zone_hints() {
            let zone = endpoints.zones.find(name)?;
            allocations.iter().find(|a| a.zone == zone)?;
            hints[zone] += 1;
        }
    }
    let fits = |a: &ZoneAllocation| hints[a.zone] == 0 || counts[a.zone] + hints[a.zone] <= a.maximum;
    allocations.iter().all(fits).then_some(hints)
}

/// Semantics A2, assignment 2 to 4: the own zone first, then from surplus to deficit, in slice order.
fn share_out(
    endpoints: &EndpointsByZone<'_>,
    stays: &[bool],
    mut counts: Vec<usize>,
    before: &[Option<usize>],
    allocations: &[ZoneAllocation],
) -> Result<ZoneAssignment, DisabledReason> {
    let mut serves = Vec::with_capacity(endpoints.zone_by_endpoint.len());
    for (zone_of, stays) in endpoints.zone_by_endpoint.iter().zip(stays) {
        serves.push(match zone_of {
            EndpointZone::Unready => None,
            _ if *stays => None,
            EndpointZone::NoZone => return Err(DisabledReason::EndpointWithoutZone),
            EndpointZone::Zone(zone) => {
                counts[*zone] += 1;
                Some(*zone)
            }
        });
    }
    let (mut giving, mut receiving) = giving_and_receiving(allocations, &counts);
    for (serves, before) in serves.iter_mut().zip(before) {
        if let (Some(own), Some(zone)) = (serves.as_mut(), *before)
            && giving[*own] > 0
            && receiving[zone] > 0
        {
            giving[*own] -= 1;
            receiving[zone] -= 1;
            *own = zone;
        }
    }
    redistribute(&mut serves, &mut giving, &mut receiving);
    let mut plan = ZoneAssignment { serves, counts };
    plan.recount(endpoints, stays);
    Ok(plan)
}

impl ZoneAssignment {
    /// Moves reassigned endpoints to the count of the zone that they serve.
    fn recount(&mut self, endpoints: &EndpointsByZone<'_>, stays: &[bool]) {
        for ((zone_of, serves), stays) in endpoints.zone_by_endpoint.iter().zip(&self.serves).zip(stays) {
            if let (EndpointZone::Zone(own), Some(zone), false) = (zone_of, serves, stays) {
                self.counts[*own] -= 1;
                self.counts[*zone] += 1;
            }
        }
    }

    /// Reassigns endpoints of the zone with the largest surplus until every zone has its minimum; zones outside the allocation
    /// have none. There are always enough: the minima fit into the number of endpoints.
    fn fill_minimum(&mut self, before: &[Option<usize>], allocations: &[ZoneAllocation]) {
        let mut minimum = vec![0usize; self.counts.len()];
        allocations.iter().for_each(|a| minimum[a.zone] = a.minimum);
        // Endpoints that were reassigned before are reassigned again, so that the order in the slices changes nothing.
        for (serves, before) in self.serves.iter_mut().zip(before) {
            if let (Some(own), Some(zone)) = (serves.as_mut(), *before)
                && self.counts[*own] > minimum[*own]
                && self.counts[zone] < minimum[zone]
            {
                self.counts[*own] -= 1;
                self.counts[zone] += 1;
                *own = zone;
            }
        }
        let short =
            |counts: &[usize]| allocations.iter().find(|a| counts[a.zone] < a.minimum).map(|a| a.zone);
        while let Some(receiver) = short(&self.counts) {
            let spare = |z: &usize| self.counts[*z].saturating_sub(minimum[*z]);
            let Some(giver) = (0..self.counts.len()).max_by_key(|z| (spare(z), std::cmp::Reverse(*z))) else {
                return;
            };
            let Some(endpoint) = self.serves.iter_mut().find(|serves| **serves == Some(giver)) else {
                return;
            };
            *endpoint = Some(receiver);
            self.counts[giver] -= 1;
            self.counts[receiver] += 1;
        }
    }
}

impl DisabledReason {
    /// The condition's reason.
    fn reason(&self) -> &'static str {
        match self {
            Self::Nodes(MissingNodeInfo::OneZone(_)) => "OneZoneOnly",
            Self::Nodes(_) => "InsufficientNodeInformation",
            Self::FewEndpoints { .. } => "FewerEndpointsThanZones",
            Self::Minimum { .. } => "OverloadUnavoidable",
            Self::EndpointWithoutZone => "EndpointWithoutZone",
        }
    }

    /// The condition's message. It does not change with a single pod.
    fn sentence(&self) -> &'static str {
        match self {
            Self::Nodes(MissingNodeInfo::OneZone(_)) => "All ready nodes are in one zone.",
            Self::Nodes(_) => {
                "No node is ready, or a ready node has no zone label or reports no allocatable CPU."
            }
            Self::FewEndpoints { .. } => "There are fewer ready endpoints than zones.",
            Self::Minimum { .. } => "There are too few ready endpoints for the minimum of every zone.",
            Self::EndpointWithoutZone => "A ready endpoint has no zone.",
        }
    }
}

fn report_enabled(
    context: &mut HintContext<'_>,
    plan: &ZoneAssignment,
    allocations: &[ZoneAllocation],
    overload: f64,
) {
    let endpoints = &context.endpoints;
    let shares = ratios(context).unwrap_or_default();
    let zones = allocations.iter().zip(shares).map(|(a, (_, ratio))| {
        format!(
            "{} has {} for {} of the CPU (at least {})",
            endpoints.zones.name(a.zone),
            plan.counts[a.zone],
            percent(ratio),
            a.minimum
        )
    });
    let zones = list(zones);
    let held = if overload > OVERLOAD {
        " There are too few endpoints to set new hints, but existing hints stay while every zone can have half of its \
         share."
    } else {
        ""
    };
    let outside = (0..endpoints.zones.len())
        .filter(|z| plan.counts[*z] > 0 && !allocations.iter().any(|a| a.zone == *z));
    let outside = list(outside.map(|z| format!("{} {}", endpoints.zones.name(z), plan.counts[z])));
    let idle = if outside.is_empty() {
        String::new()
    } else {
        format!(" Endpoints in zones without ready nodes get almost no traffic: {outside}.")
    };
    context.report(
        event_reason::AUTO_ENABLED,
        format!(
            "Topology Aware Hints has been enabled, addressType: {}. {}: {zones}.{held}{idle}",
            context.family, context.source
        ),
    );
}

/// Upstream's message first, for tools that look for it, then numbers and advice.
fn report_disabled(context: &mut HintContext<'_>, refusal: &DisabledReason) {
    let ready = context.endpoints.ready;
    let (upstream, ours) = match refusal {
        DisabledReason::Nodes(info) => (
            "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes"
                .to_owned(),
            node_advice(info),
        ),
        DisabledReason::FewEndpoints { zones } => (
            format!("Insufficient number of endpoints ({ready} endpoints, {zones} zones)"),
            format!("Every zone needs at least one endpoint: {}", more_endpoints(context)),
        ),
        DisabledReason::Minimum { zones } => (
            format!(
                "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold \
                 ({ready} endpoints, {zones} zones)"
            ),
            format!("{}: {}", minima(context), more_endpoints(context)),
        ),
        DisabledReason::EndpointWithoutZone => {
            let first = context.endpoints.first_without_zone.as_deref().unwrap_or_default();
            (
                "One or more endpoints do not have a zone specified".to_owned(),
                format!(
                    "{first} is the first of {}: add the label topology.kubernetes.io/zone to its node",
                    context.endpoints.without_zone
                ),
            )
        }
    };
    let message = format!(
        "{upstream}, addressType: {}. {ours}, or use PreferSameZone or Spill, which need no minimum.",
        context.family
    );
    context.report(event_reason::AUTO_DISABLED, message);
}

fn node_advice(info: &MissingNodeInfo) -> String {
    match info {
        MissingNodeInfo::NoNodes => {
            "No node is ready except those of the control plane: add nodes".to_owned()
        }
        MissingNodeInfo::NoZone(node) => {
            format!("Node {node} has no zone: add the label topology.kubernetes.io/zone")
        }
        MissingNodeInfo::NoCpu(node) => {
            format!("Node {node} reports no allocatable CPU: check its kubelet")
        }
        MissingNodeInfo::OneZone(zone) => format!(
            "All ready nodes are in {zone}, so there is nothing to distribute: add nodes in another zone"
        ),
    }
}

/// `zone-a needs 4 ready endpoints for its 36 % of the CPU, ..., together 12 and 11 are ready`.
fn minima(context: &HintContext<'_>) -> String {
    let ready = context.endpoints.ready;
    let ratios = ratios(context).unwrap_or_default();
    let needs: Vec<(usize, f64, usize)> =
        ratios.iter().map(|(zone, ratio)| (*zone, *ratio, cpu_allocation::needed(*ratio, ready))).collect();
    let together: usize = needs.iter().map(|(_, _, n)| n).sum();
    let needs = needs.iter().map(|(zone, ratio, needed)| {
        format!(
            "{} needs {needed} ready endpoints for its {} of the CPU",
            context.endpoints.zones.name(*zone),
            percent(*ratio)
        )
    });
    format!("{}, together {together}, and {ready} are ready", list(needs))
}

fn more_endpoints(context: &HintContext<'_>) -> String {
    let ratios = ratios(context).unwrap_or_default();
    let enough =
        (1..=ADVICE).find(|more| allocate(&ratios, context.endpoints.ready + more, OVERLOAD).is_ok());
    match enough {
        Some(more) => format!("add {}", count(more, "endpoint")),
        None => "add endpoints".to_owned(),
    }
}
