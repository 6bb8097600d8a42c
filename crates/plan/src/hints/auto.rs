//! Auto: `topology-aware-hints` and `topology-mode` (seed 001, semantics A2).
//!
//! Rule: each zone gets ready endpoints in proportion to the allocatable CPU of its nodes, its own first, and lends
//! what it has too many of. Safeguards take all hints away: fewer endpoints than zones (1), a zone whose endpoints
//! would be overloaded by more than 20 % (2), a node without zone or CPU (3), an endpoint without a zone.
//! Safeguards 4 and 5 (a missing hint, a zone without hints) are the consumers'.
//!
//! Where Auto differs from upstream: equal zones go by name; a change of CPU counts; Auto's hints, once set by us,
//! stay as long as every zone can have half of its share, so that a rolling update does not switch them off and on;
//! no zone is left below its minimum; nothing is repeated.

pub(crate) mod allocation;
#[cfg(test)]
mod tests;

use model::Endpoint;

use super::facts::NodeGap;
use super::mechanism::Mechanism;
use super::survey::{Spot, Survey, contents};
use super::words::{count, list, percent};
use super::write::{Tag, Unready, Wanted, write};
use super::{Applied, Task, clear, reason};
use crate::slices::Packing;
use allocation::{
    Allocation, HOLD_OVERLOAD, OVERLOAD, Shortage, allocate, giving_and_receiving, redistribute,
};

/// How far to look for the number of endpoints that would do.
const ADVICE: usize = 200;

/// The zone that each endpoint is to serve; none for those whose slice stays as it is, and for those not ready.
struct Plan {
    serves: Vec<Option<usize>>,
    /// Endpoints that serve each zone, those of slices that stay included.
    counts: Vec<usize>,
}

/// Why there are no hints.
enum Refusal {
    Nodes(NodeGap),
    FewEndpoints { zones: usize },
    Minimum { zones: usize },
    EndpointWithoutZone,
}

/// Puts the hints on, or takes them off.
pub(super) fn apply(task: &mut Task<'_>, packing: &mut Packing<'_>) -> Applied {
    match decide(task, packing) {
        Ok((plan, allocations, overload)) => {
            let survey = &task.survey;
            let tag = Tag::new(task, Mechanism::Auto);
            write(packing, task.facts, &tag, Unready::ClearedInPassing, |place, _| {
                match plan.serves[place] {
                    Some(zone) => Wanted::These(survey.zones.own(zone)),
                    None => Wanted::Keep,
                }
            });
            if task.is_heard() {
                say_enabled(task, &plan, &allocations, overload);
            }
            Applied::programmed(Mechanism::Auto)
        }
        Err(refusal) => {
            clear(task, packing, Mechanism::Auto);
            if task.is_heard() {
                say_disabled(task, &refusal);
            }
            Applied::held_back(Mechanism::Auto, refusal.word(), refusal.sentence())
        }
    }
}

/// Auto was at work and no longer is asked for (semantics A1).
pub(super) fn say_switched_off(task: &mut Task<'_>) {
    let message = format!(
        "Topology Aware Hints has been disabled, addressType: {}. {} decides now, and Auto's hints are gone.",
        task.family,
        if task.source.is_empty() { "No setting" } else { &task.source },
    );
    task.say(reason::AUTO_DISABLED, message);
}

fn ratios(task: &Task<'_>) -> Result<Vec<(usize, f64)>, Refusal> {
    let ratios = task.facts.auto().map_err(|gap| Refusal::Nodes(gap.clone()))?;
    Ok(ratios.iter().map(|(zone, ratio)| (*zone, ratio.0)).collect())
}

fn decide(task: &Task<'_>, packing: &Packing<'_>) -> Result<(Plan, Vec<Allocation>, f64), Refusal> {
    let survey = &task.survey;
    let ratios = ratios(task)?;
    let zones = ratios.len();
    let was_on = task.memory.mechanism == Mechanism::Auto && task.memory.programmed;
    let allocated = match allocate(&ratios, survey.ready, OVERLOAD) {
        Err(Shortage::Minimum) if was_on => {
            allocate(&ratios, survey.ready, HOLD_OVERLOAD).map(|a| (a, HOLD_OVERLOAD))
        }
        strict => strict.map(|a| (a, OVERLOAD)),
    };
    let (allocations, overload) = allocated.map_err(|shortage| match shortage {
        Shortage::Zones => Refusal::FewEndpoints { zones },
        Shortage::Minimum => Refusal::Minimum { zones },
    })?;
    let before = lent_before(task, packing);
    let (stays, counts) = kept_slices(survey, packing, &allocations);
    let mut plan = share_out(survey, &stays, counts, &before, &allocations)?;
    let is_short = |plan: &Plan| allocations.iter().any(|a| plan.counts[a.zone] < a.minimum);
    if is_short(&plan) {
        // Slices that stay hold on to what a zone needs, or the halves of several zones do: upstream stops here.
        let nobody = vec![false; survey.spots.len()];
        plan = share_out(survey, &nobody, vec![0; survey.zones.len()], &before, &allocations)?;
        plan.fill_minimum(&allocations);
    }
    Ok((plan, allocations, overload))
}

/// The zone that each endpoint was lent to, so that the same ones are lent again when their slice is written.
fn lent_before(task: &Task<'_>, packing: &Packing<'_>) -> Vec<Option<usize>> {
    if task.memory.lent.is_empty() {
        return Vec::new();
    }
    let endpoints = contents(packing).flat_map(|c| &c.endpoints);
    let zone = |e: &Endpoint| task.survey.zones.find(task.memory.lent_to(e.addresses.first())?);
    endpoints.map(zone).collect()
}

/// Semantics A2, assignment 1: an unchanged slice stays if each of its ready endpoints serves a zone of the allocation,
/// and no zone gets more than its maximum. Says for each endpoint whether its slice stays, and what those hold.
fn kept_slices(
    survey: &Survey<'_>,
    packing: &Packing<'_>,
    allocations: &[Allocation],
) -> (Vec<bool>, Vec<usize>) {
    let planned = packing.creates.iter().chain(packing.updates.iter().map(|(_, content)| content));
    let mut stays = vec![false; planned.map(|c| c.endpoints.len()).sum()];
    let mut counts = vec![0usize; survey.zones.len()];
    for slice in &packing.unchanged {
        let endpoints = &slice.content.endpoints;
        let hints = slice_hints(survey, endpoints, &counts, allocations);
        stays.resize(stays.len() + endpoints.len(), hints.is_some());
        for (count, more) in counts.iter_mut().zip(hints.into_iter().flatten()) {
            *count += more;
        }
    }
    (stays, counts)
}

/// The hints of a slice per zone, if it may stay beside those that hold `counts` already.
fn slice_hints(
    survey: &Survey<'_>,
    endpoints: &[Endpoint],
    counts: &[usize],
    allocations: &[Allocation],
) -> Option<Vec<usize>> {
    let mut hints = vec![0usize; survey.zones.len()];
    for endpoint in endpoints.iter().filter(|e| e.conditions.is_ready_for_hints()) {
        if endpoint.zone_hints().is_empty() {
            return None;
        }
        for name in endpoint.zone_hints() {
            let zone = survey.zones.find(name)?;
            allocations.iter().find(|a| a.zone == zone)?;
            hints[zone] += 1;
        }
    }
    let fits = |a: &Allocation| hints[a.zone] == 0 || counts[a.zone] + hints[a.zone] <= a.maximum;
    allocations.iter().all(fits).then_some(hints)
}

/// Semantics A2, assignment 2 to 4: the own zone first, then from surplus to lack, in slice order.
fn share_out(
    survey: &Survey<'_>,
    stays: &[bool],
    mut counts: Vec<usize>,
    before: &[Option<usize>],
    allocations: &[Allocation],
) -> Result<Plan, Refusal> {
    let mut serves = Vec::with_capacity(survey.spots.len());
    for (spot, stays) in survey.spots.iter().zip(stays) {
        serves.push(match spot {
            Spot::Unready => None,
            _ if *stays => None,
            Spot::NoZone => return Err(Refusal::EndpointWithoutZone),
            Spot::Zone(zone) => {
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
    let mut plan = Plan { serves, counts };
    plan.recount(survey, stays);
    Ok(plan)
}

impl Plan {
    /// Moves the endpoints that were lent from one count to the other.
    fn recount(&mut self, survey: &Survey<'_>, stays: &[bool]) {
        for ((spot, serves), stays) in survey.spots.iter().zip(&self.serves).zip(stays) {
            if let (Spot::Zone(own), Some(zone), false) = (spot, serves, stays) {
                self.counts[*own] -= 1;
                self.counts[*zone] += 1;
            }
        }
    }

    /// Lends on until every zone has its minimum, from the zone with most above its own; zones outside of the
    /// allocation need none. There are always enough, since the minima fit into the number of endpoints.
    fn fill_minimum(&mut self, allocations: &[Allocation]) {
        let mut minimum = vec![0usize; self.counts.len()];
        allocations.iter().for_each(|a| minimum[a.zone] = a.minimum);
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

impl Refusal {
    /// The condition's reason.
    fn word(&self) -> &'static str {
        match self {
            Self::Nodes(NodeGap::OneZone(_)) => "OneZoneOnly",
            Self::Nodes(_) => "InsufficientNodeInformation",
            Self::FewEndpoints { .. } => "FewerEndpointsThanZones",
            Self::Minimum { .. } => "OverloadUnavoidable",
            Self::EndpointWithoutZone => "EndpointWithoutZone",
        }
    }

    /// The condition's message: nothing in it changes with a single pod.
    fn sentence(&self) -> &'static str {
        match self {
            Self::Nodes(NodeGap::OneZone(_)) => "All ready nodes are in one zone.",
            Self::Nodes(_) => {
                "A ready node has no zone label or reports no allocatable CPU, or there is none."
            }
            Self::FewEndpoints { .. } => "There are fewer ready endpoints than zones.",
            Self::Minimum { .. } => "There are too few ready endpoints for the minimum of every zone.",
            Self::EndpointWithoutZone => "A ready endpoint is in no known zone.",
        }
    }
}

fn say_enabled(task: &mut Task<'_>, plan: &Plan, allocations: &[Allocation], overload: f64) {
    let survey = &task.survey;
    let shares = ratios(task).unwrap_or_default();
    let zones = allocations.iter().zip(shares).map(|(a, (_, ratio))| {
        format!(
            "{} has {} for {} of the CPU (at least {})",
            survey.zones.name(a.zone),
            plan.counts[a.zone],
            percent(ratio),
            a.minimum
        )
    });
    let zones = list(zones);
    let held = if overload > OVERLOAD {
        " New hints would not be set with so few endpoints, but those that stand are kept as long as every zone can \
         have half of its share."
    } else {
        ""
    };
    let outside =
        (0..survey.zones.len()).filter(|z| plan.counts[*z] > 0 && !allocations.iter().any(|a| a.zone == *z));
    let outside = list(outside.map(|z| format!("{} {}", survey.zones.name(z), plan.counts[z])));
    let idle = if outside.is_empty() {
        String::new()
    } else {
        format!(" Endpoints in zones without ready nodes get next to no traffic: {outside}.")
    };
    task.say(
        reason::AUTO_ENABLED,
        format!(
            "Topology Aware Hints has been enabled, addressType: {}. {}: {zones}.{held}{idle}",
            task.family, task.source
        ),
    );
}

/// Upstream's sentence first, so that what watches for it goes on working, then the numbers and the way out.
fn say_disabled(task: &mut Task<'_>, refusal: &Refusal) {
    let ready = task.survey.ready;
    let (upstream, ours) = match refusal {
        Refusal::Nodes(gap) => (
            "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes"
                .to_owned(),
            gap_advice(gap),
        ),
        Refusal::FewEndpoints { zones } => (
            format!("Insufficient number of endpoints ({ready} endpoints, {zones} zones)"),
            format!("Every zone needs one of its own to serve it: {}", more_endpoints(task)),
        ),
        Refusal::Minimum { zones } => (
            format!(
                "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold \
                 ({ready} endpoints, {zones} zones)"
            ),
            format!("{}: {}", minima(task), more_endpoints(task)),
        ),
        Refusal::EndpointWithoutZone => {
            let first = task.survey.first_without_zone.as_deref().unwrap_or_default();
            (
                "One or more endpoints do not have a zone specified".to_owned(),
                format!(
                    "{first} is the first of {}: add topology.kubernetes.io/zone to its node",
                    task.survey.without_zone
                ),
            )
        }
    };
    let message = format!(
        "{upstream}, addressType: {}. {ours}, or use PreferSameZone, or Spill, which needs no minimum.",
        task.family
    );
    task.say(reason::AUTO_DISABLED, message);
}

fn gap_advice(gap: &NodeGap) -> String {
    match gap {
        NodeGap::NoNodes => "No node is ready beside those of the control plane: wait for one".to_owned(),
        NodeGap::NoZone(node) => {
            format!("Node {node} has no zone: give it the label topology.kubernetes.io/zone")
        }
        NodeGap::NoCpu(node) => format!("Node {node} reports no allocatable CPU: put its kubelet right"),
        NodeGap::OneZone(zone) => format!(
            "All ready nodes are in {zone}, so there is nothing to keep apart: add nodes in another zone"
        ),
    }
}

/// `zone-a needs 4 ready endpoints for its 36 % of the CPU, ..., together 12 and 11 are ready`.
fn minima(task: &Task<'_>) -> String {
    let ready = task.survey.ready;
    let ratios = ratios(task).unwrap_or_default();
    let needs: Vec<(usize, f64, usize)> =
        ratios.iter().map(|(zone, ratio)| (*zone, *ratio, allocation::needed(*ratio, ready))).collect();
    let together: usize = needs.iter().map(|(_, _, n)| n).sum();
    let needs = needs.iter().map(|(zone, ratio, needed)| {
        format!(
            "{} needs {needed} ready endpoints for its {} of the CPU",
            task.survey.zones.name(*zone),
            percent(*ratio)
        )
    });
    format!("{}, together {together}, and {ready} are ready", list(needs))
}

fn more_endpoints(task: &Task<'_>) -> String {
    let ratios = ratios(task).unwrap_or_default();
    let enough = (1..=ADVICE).find(|more| allocate(&ratios, task.survey.ready + more, OVERLOAD).is_ok());
    match enough {
        Some(more) => format!("add {}", count(more, "endpoint")),
        None => "add endpoints".to_owned(),
    }
}
