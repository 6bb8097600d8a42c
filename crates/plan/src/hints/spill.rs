//! Spill on slices: the demand annotation and hints (design, "Spill"). [`crate::spill`] computes the weights.
//!
//! Rule: the slices carry the expected share of traffic from each zone, and consumers that implement Spill compute weights
//! from it. For consumers that read only hints, endpoints have own-zone hints if no zone spills and none otherwise, so that
//! Spill never overloads a zone more than an even spread does.

use super::endpoints_by_zone::{EndpointZone, EndpointsByZone};
use super::expected_load::{self, ZoneFallback};
use super::mechanism::Mechanism;
use super::message::{count, list, percent};
use super::write_hints::{DesiredHints, SliceAnnotations, UnreadyHints, write_hints};
use super::{HintContext, MechanismOutcome, clear, event_reason};
use crate::hints::ZoneWeight;
use crate::slices::Packing;
use crate::spill::{PARTS, SpillDemand, zone_spills};

/// Hysteresis: a smaller change of a zone's share, in 256ths, does not rewrite the slices of every Service.
const STEADY_PARTS: u16 = 2;
/// Hysteresis: existing hints stay until an endpoint would get more than twice its fair share, so that a rolling update
/// does not toggle them with each pod.
const HINT_OVERLOAD: f64 = 1.0;

pub(super) fn apply(context: &mut HintContext<'_>, packing: &mut Packing<'_>) -> MechanismOutcome {
    let Some(demand) = steady_demand(context) else {
        clear(context, packing, Mechanism::None);
        context.report(
            event_reason::WITHHELD,
            format!(
                "{}: traffic is spread evenly: no ready node has the label topology.kubernetes.io/zone. Add it to the \
                 nodes.",
                context.source
            ),
        );
        return MechanismOutcome::held_back(Mechanism::None, "NoZones", "No ready node has a zone label.");
    };
    let endpoints = &context.endpoints;
    let hinted = carries_hints(context, &demand);
    let annotations = SliceAnnotations::spill(context, &demand);
    write_hints(packing, context.topology, &annotations, UnreadyHints::ClearedInPassing, |index, _| {
        match endpoints.zone_by_endpoint[index] {
            EndpointZone::Zone(zone) if hinted => DesiredHints::Shared(endpoints.zones.own(zone)),
            _ => DesiredHints::Nothing,
        }
    });
    if context.reports_notices() {
        report_programmed(context, &demand, hinted);
        context.report_nodes_without_zone();
    }
    MechanismOutcome { demand: Some(demand), ..MechanismOutcome::programmed(Mechanism::Spill) }
}

/// The demand of the nodes, or that of the slices if the difference is small.
fn steady_demand(context: &HintContext<'_>) -> Option<SpillDemand> {
    let now = context.topology.demand()?;
    let before = context.hysteresis.demand.as_ref().filter(|before| before.is_near(now, STEADY_PARTS));
    Some(before.unwrap_or(now).clone())
}

fn carries_hints(context: &HintContext<'_>, demand: &SpillDemand) -> bool {
    let was_hinted = context.hysteresis.mechanism == Mechanism::Spill && context.hysteresis.hinted;
    if was_hinted && context.endpoints.without_zone == 0 {
        let worst = expected_load::by_zone(&context.endpoints, ZoneWeight::Cpu, ZoneFallback::Everywhere);
        return worst.is_none_or(|w| w.overload() <= HINT_OVERLOAD);
    }
    !spilling_zones(&context.endpoints, demand).any(|_| true)
}

/// Zones that send part of their traffic elsewhere, with the share that they keep.
fn spilling_zones<'s>(
    endpoints: &'s EndpointsByZone<'_>,
    demand: &'s SpillDemand,
) -> impl Iterator<Item = (usize, f64)> + 's {
    // The demand lists the zones of the cluster in the order of their numbers.
    let zones = demand.zones().iter().enumerate();
    let spilling =
        zones.filter(|(zone, d)| zone_spills(d.share, endpoints.ready_by_zone[*zone], endpoints.ready));
    spilling.map(|(zone, d)| {
        let capacity = endpoints.ready_by_zone[zone] as f64 / endpoints.ready as f64;
        (zone, capacity * PARTS as f64 / f64::from(d.share))
    })
}

fn report_programmed(context: &mut HintContext<'_>, demand: &SpillDemand, hinted: bool) {
    let endpoints = &context.endpoints;
    let spilling = spilling_zones(endpoints, demand).map(|(zone, keeps)| {
        format!(
            "{} keeps {} with {}",
            endpoints.zones.name(zone),
            percent(keeps),
            count(endpoints.ready_by_zone[zone], "endpoint")
        )
    });
    let spilling = list(spilling);
    let shares = demand.zones().iter().filter(|z| z.share > 0);
    let shares = list(shares.map(|z| format!("{} {}", z.zone, percent(f64::from(z.share) / PARTS as f64))));
    let (outcome, advice) = match spilling.is_empty() {
        _ if endpoints.ready == 0 => ("no endpoint is ready".to_owned(), ""),
        true => ("all traffic stays in its zone".to_owned(), ""),
        false => (
            format!("{spilling}, the rest goes to zones with spare capacity"),
            " Add endpoints there to keep more.",
        ),
    };
    let others = if hinted { "stay in their zone" } else { "spread traffic evenly" };
    let message = format!(
        "{}: {outcome}; {}, expected traffic by CPU: {shares}. Consumers that read only hints {others}.{advice}",
        context.source,
        count(endpoints.ready, "ready endpoint"),
    );
    context.report(event_reason::PROGRAMMED, message);
}
