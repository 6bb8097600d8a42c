//! Spill on slices: the demand annotation and hints (design, "Spill"). [`crate::spill`] computes the weights.
//!
//! Rule: the slices carry the expected share of traffic from each zone, and consumers that implement Spill compute weights
//! from it. For consumers that read only hints, endpoints have own-zone hints if no zone spills and none otherwise, so that
//! Spill never overloads a zone more than an even spread does.

use std::collections::BTreeMap;

use model::Name;

use super::endpoints_by_zone::{EndpointZone, EndpointsByZone};
use super::expected_load::{self, ZoneFallback};
use super::mechanism::Mechanism;
use super::message::{count, list, percent};
use super::write_hints::{DesiredHints, SliceAnnotations, UnreadyHints, write_hints};
use super::{HintContext, MechanismOutcome, clear, event_reason};
use crate::capacity::format_thousandths;
use crate::hints::ZoneWeight;
use crate::slices::Packing;
use crate::spill::{MeasuredDemand, SpillDemand, SpillDemandMode, ZoneCapacity, kept_share, zone_spills};

/// Hysteresis: a smaller change of a zone's share, in 256ths, does not rewrite the slices of every Service.
const STEADY_PARTS: u32 = 2;
/// Hysteresis: existing hints stay until an endpoint would get more than twice its fair share, so that a rolling update
/// does not toggle them with each pod.
const HINT_OVERLOAD: f64 = 1.0;

pub(super) fn apply(context: &mut HintContext<'_>, packing: &mut Packing<'_>) -> MechanismOutcome {
    let Some(MeasuredDemand { demand, proved }) = steady_demand(context) else {
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
    let annotations = SliceAnnotations::spill(context, &demand, proved);
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
    MechanismOutcome { demand: Some(demand), proved, ..MechanismOutcome::programmed(Mechanism::Spill) }
}

/// Measured demand where it decides, else that of the nodes; or that of the slices if the difference is small.
fn steady_demand(context: &HintContext<'_>) -> Option<MeasuredDemand> {
    let now = context.topology.demand()?;
    let has_same_zones = |demand: &SpillDemand| {
        let place = |d: &SpillDemand| -> Vec<_> {
            d.zones().iter().map(|z| (z.region.clone(), z.zone.clone())).collect()
        };
        place(demand) == place(now)
    };
    let stored = context.hysteresis.demand.as_ref();
    // Who does not know the mode leaves measured demand as it is.
    if context.demand_mode.is_none_or(|mode| mode == SpillDemandMode::Measured) {
        let new = context.hysteresis.measured.as_ref().filter(|new| has_same_zones(&new.demand));
        let kept = stored.filter(|demand| demand.keep().is_some() && has_same_zones(demand));
        let kept =
            kept.map(|demand| MeasuredDemand { demand: demand.clone(), proved: context.hysteresis.proved });
        if let Some(measured) = new.cloned().or(kept) {
            return Some(measured);
        }
    }
    let before = stored.filter(|before| before.is_near(now, STEADY_PARTS));
    Some(MeasuredDemand { demand: before.unwrap_or(now).clone(), proved: None })
}

fn carries_hints(context: &HintContext<'_>, demand: &SpillDemand) -> bool {
    let was_hinted = context.hysteresis.mechanism == Mechanism::Spill && context.hysteresis.hinted;
    if demand.keep().is_some() && was_hinted {
        let endpoints = &context.endpoints;
        return demand.zones().iter().enumerate().all(|(zone, d)| {
            let fair = endpoints.ready_by_zone[zone] as f64 / endpoints.ready.max(1) as f64;
            f64::from(d.share) / demand.parts() as f64 <= fair * (1.0 + HINT_OVERLOAD)
        });
    }
    if was_hinted && context.endpoints.without_zone == 0 {
        let worst = expected_load::by_zone(&context.endpoints, ZoneWeight::Cpu, ZoneFallback::Everywhere);
        return worst.is_none_or(|w| w.overload() <= HINT_OVERLOAD);
    }
    // Consumers that read only hints treat all endpoints alike.
    let endpoints = &context.endpoints;
    let by_count = |zone: usize| endpoints.ready_by_zone[zone] as u64;
    !spilling_zones(demand, by_count, endpoints.ready as u64).any(|_| true)
}

/// Zones that send part of their traffic elsewhere, with the share that they keep at an equal load.
fn spilling_zones(
    demand: &SpillDemand,
    capacity: impl Fn(usize) -> u64,
    all: u64,
) -> impl Iterator<Item = (usize, f64)> {
    // The demand lists the zones of the cluster in the order of their numbers.
    let zones = demand.zones().iter().enumerate();
    zones.filter_map(move |(zone, d)| {
        let own = capacity(zone);
        let kept = || own as f64 / all as f64 * demand.parts() as f64 / f64::from(d.share);
        zone_spills(demand, d.share, own, all).then(|| (zone, kept()))
    })
}

fn capacity_by_zone(endpoints: &EndpointsByZone<'_>) -> BTreeMap<Name, ZoneCapacity> {
    let zones = (0..endpoints.ready_by_zone.len()).map(|zone| {
        (Name::new(endpoints.zones.name(zone)), ZoneCapacity::from_thousandths(endpoints.capacity(zone)))
    });
    let without_zone = (Name::default(), ZoneCapacity::from(endpoints.without_zone));
    zones.chain([without_zone]).filter(|(_, capacity)| capacity.thousandths() > 0).collect()
}

fn report_programmed(context: &mut HintContext<'_>, demand: &SpillDemand, hinted: bool) {
    let endpoints = &context.endpoints;
    let all = endpoints.capacity_of_all();
    let spilling = spilling_zones(demand, |zone| endpoints.capacity(zone), all).map(|(zone, keeps)| {
        let keeps = match demand.keep() {
            Some(_) => kept_share(demand, &capacity_by_zone(endpoints), endpoints.zones.name(zone)),
            None => keeps,
        };
        (zone, keeps)
    });
    let of_capacity = |capacity: u64| match endpoints.capacity_by_zone {
        Some(_) => format!(" of capacity {}", format_thousandths(capacity)),
        None => String::new(),
    };
    let spilling = spilling.filter(|(_, keeps)| *keeps < 0.995).map(|(zone, keeps)| {
        format!(
            "{} keeps {} with {}{}",
            endpoints.zones.name(zone),
            percent(keeps),
            count(endpoints.ready_by_zone[zone], "endpoint"),
            of_capacity(endpoints.capacity(zone))
        )
    });
    let spilling = list(spilling);
    let shares = demand.zones().iter().filter(|z| z.share > 0);
    let shares =
        list(shares.map(|z| format!("{} {}", z.zone, percent(f64::from(z.share) / demand.parts() as f64))));
    let (outcome, advice) = match spilling.is_empty() {
        _ if endpoints.ready == 0 => ("no endpoint is ready".to_owned(), ""),
        true => ("all traffic stays in its zone".to_owned(), ""),
        false => (
            format!("{spilling}, the rest goes to zones with spare capacity"),
            " Add endpoints there to keep more.",
        ),
    };
    let basis = if demand.keep().is_some() { "measured traffic" } else { "expected traffic by CPU" };
    let others = if hinted { "stay in their zone" } else { "spread traffic evenly" };
    let message = format!(
        "{}: {outcome}; {}{}, {basis}: {shares}. Consumers that read only hints {others}.{advice}",
        context.source,
        count(endpoints.ready, "ready endpoint"),
        of_capacity(all),
    );
    context.report(event_reason::PROGRAMMED, message);
}
