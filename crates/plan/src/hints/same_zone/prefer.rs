//! `same-zone: Prefer` (seed 003).
//!
//! Rule: each zone is served by its own endpoints unless that overloads them by more than 50 %; then endpoints of other
//! zones are reassigned to it ([`rebalance_zones`]). Prefer starts at threshold + padding ready endpoints and ends at
//! threshold - padding; the threshold is three per zone unless the Service sets another. While it is active, endpoints that
//! come or go change nothing else unless a zone is overloaded; then everything is rebalanced. With same-region, all of this
//! applies per region.

use super::rebalance::{ZoneLoad, is_overloaded, rebalance_zones};
use super::require::{self, HintCapacity, MOST_ZONES, capacity, own_zone, put_hints};
use crate::hints::endpoints_by_zone::{EndpointsByZone, contents};
use crate::hints::expected_load::THRESHOLD;
use crate::hints::message::{count, list, percent};
use crate::hints::topology::ZoneWeight;
use crate::hints::{HintContext, MechanismOutcome, event_reason};
use crate::slices::Packing;

/// The default threshold per zone (seed 003: 3).
const PER_ZONE: usize = 3;
/// Hysteresis: the distance of start and end from the threshold (seed 003: 3).
const PADDING: usize = 3;

/// Zones that may reassign endpoints to each other.
#[derive(Debug)]
struct BalancingGroup {
    /// Sorted by name.
    zones: Vec<usize>,
    ready: usize,
    /// Zones that send traffic.
    senders: usize,
    threshold: usize,
}

/// Why Prefer is inactive.
enum InactiveReason {
    NoZones,
    EndpointWithoutZone,
    TooManyZones,
    TooFew { zones: String, ready: usize, threshold: usize, was_active: bool },
    Overload { zones: String, ready: usize },
}

/// Sets or removes the hints.
pub(in crate::hints) fn apply(context: &mut HintContext<'_>, packing: &mut Packing<'_>) -> MechanismOutcome {
    let groups = groups(context);
    match decide(context, &groups, packing).and_then(|serves| fitting(context, serves)) {
        Ok(serves) => {
            put_hints(context, packing, context.mechanism, &serves);
            if context.reports_notices() {
                report_groups(context, &groups, &serves);
                report_labels(context);
            }
            MechanismOutcome::programmed(context.mechanism)
        }
        Err(inactive) => {
            let own_zones: Vec<Option<usize>> =
                context.endpoints.zone_by_endpoint.iter().map(own_zone).collect();
            put_hints(context, packing, context.mechanism.inactive_form(), &own_zones);
            if context.reports_notices() {
                report_inactive(context, &inactive);
                report_labels(context);
            }
            MechanismOutcome::held_back(
                context.mechanism.inactive_form(),
                inactive.reason(),
                inactive.sentence(),
            )
        }
    }
}

/// Only hints can express reassignment: if they do not fit, Prefer is inactive.
fn fitting(
    context: &HintContext<'_>,
    serves: Vec<Option<usize>>,
) -> Result<Vec<Option<usize>>, InactiveReason> {
    match capacity(&context.endpoints, context.mechanism, &serves) {
        HintCapacity::Fits => Ok(serves),
        HintCapacity::Exceeded => Err(InactiveReason::TooManyZones),
    }
}

fn report_labels(context: &mut HintContext<'_>) {
    if context.mechanism.required().is_none() {
        context.report_nodes_without_zone();
    }
    require::report_regions(context);
}

/// All zones together, or one group per region.
fn groups(context: &HintContext<'_>) -> Vec<BalancingGroup> {
    let endpoints = &context.endpoints;
    let by_region = context.mechanism.is_regional();
    let mut groups: Vec<BalancingGroup> = Vec::new();
    for zone in endpoints.zones.by_name() {
        let region = endpoints.zones.region(zone);
        let same = |c: &&mut BalancingGroup| !by_region || endpoints.zones.region(c.zones[0]) == region;
        let sends = usize::from(endpoints.zones.weight(zone, context.config.prefer_by) > 0);
        let ready = endpoints.ready_by_zone[zone];
        match groups.iter_mut().find(same) {
            Some(group) => {
                group.zones.push(zone);
                group.ready += ready;
                group.senders += sends;
            }
            None => groups.push(BalancingGroup { zones: vec![zone], ready, senders: sends, threshold: 0 }),
        }
    }
    for group in &mut groups {
        group.threshold = context.starting_threshold.unwrap_or(PER_ZONE * group.senders);
    }
    // A region without endpoints has nothing to reassign: its traffic goes elsewhere, or is refused under Require.
    if endpoints.ready > 0 {
        groups.retain(|c| c.ready > 0);
    }
    groups
}

/// The zone that each endpoint serves.
fn decide(
    context: &HintContext<'_>,
    groups: &[BalancingGroup],
    packing: &Packing<'_>,
) -> Result<Vec<Option<usize>>, InactiveReason> {
    if context.topology.ready_zones() == 0 {
        return Err(InactiveReason::NoZones);
    }
    if context.endpoints.without_zone > 0 {
        return Err(InactiveReason::EndpointWithoutZone);
    }
    let was_active = context.hysteresis.mechanism.rebalances() && !context.hysteresis.mechanism.is_resting();
    if !was_active {
        return start(context, groups);
    }
    keep_active(context, groups, packing).map_err(|end| match start(context, groups) {
        // Report what prevents a restart, since that stays true.
        Err(obstacle) if obstacle.reason() != end.reason() => obstacle,
        _ => end,
    })
}

fn start(context: &HintContext<'_>, groups: &[BalancingGroup]) -> Result<Vec<Option<usize>>, InactiveReason> {
    for group in groups {
        group.check_size(&context.endpoints, context.config.prefer_by, false)?;
    }
    let own_zones = context.endpoints.zone_by_endpoint.iter().map(own_zone).collect();
    rebalance(context, groups, own_zones)
}

fn keep_active(
    context: &HintContext<'_>,
    groups: &[BalancingGroup],
    packing: &Packing<'_>,
) -> Result<Vec<Option<usize>>, InactiveReason> {
    for group in groups {
        group.check_size(&context.endpoints, context.config.prefer_by, true)?;
    }
    let mut serves: Vec<Option<usize>> = context.endpoints.zone_by_endpoint.iter().map(own_zone).collect();
    restore_lent(context, groups, packing, &mut serves);
    // Seed 003, "Lazy Rebalance": without overload, no other endpoint is reassigned.
    if groups.iter().all(|c| c.fits(&context.endpoints, context.config.prefer_by, &serves)) {
        return Ok(serves);
    }
    rebalance(context, groups, serves)
}

fn rebalance(
    context: &HintContext<'_>,
    groups: &[BalancingGroup],
    mut serves: Vec<Option<usize>>,
) -> Result<Vec<Option<usize>>, InactiveReason> {
    for group in groups {
        group.rebalance(&context.endpoints, context.config.prefer_by, &mut serves)?;
    }
    Ok(serves)
}

/// Reassigned endpoints stay reassigned, unless the receiving zone has no more traffic.
fn restore_lent(
    context: &HintContext<'_>,
    groups: &[BalancingGroup],
    packing: &Packing<'_>,
    serves: &mut [Option<usize>],
) {
    if context.hysteresis.reassigned.is_empty() {
        return;
    }
    let endpoints = contents(packing).flat_map(|c| &c.endpoints);
    for (serves, endpoint) in serves.iter_mut().zip(endpoints) {
        let (Some(own), Some(name)) = (*serves, context.hysteresis.lent_to(endpoint.addresses.first()))
        else {
            continue;
        };
        let Some(zone) = context.endpoints.zones.find(name) else { continue };
        let in_reach = groups.iter().any(|c| c.zones.contains(&own) && c.zones.contains(&zone));
        if in_reach && context.endpoints.zones.weight(zone, context.config.prefer_by) > 0 {
            *serves = Some(zone);
        }
    }
}

impl BalancingGroup {
    fn check_size(
        &self,
        endpoints: &EndpointsByZone<'_>,
        by: ZoneWeight,
        was_active: bool,
    ) -> Result<(), InactiveReason> {
        if self.senders == 0 {
            // Nothing to reassign to.
            return Ok(());
        }
        let bound = match was_active {
            true => self.threshold.saturating_sub(PADDING) + 1,
            false => self.threshold.saturating_add(PADDING),
        };
        let (ready, threshold) = (self.ready, self.threshold);
        if ready < bound {
            return Err(InactiveReason::TooFew {
                zones: self.describe(endpoints),
                ready,
                threshold,
                was_active,
            });
        }
        // Three per zone can always be balanced. With a lower threshold, Prefer starts only if it can also be balanced with
        // a few endpoints more or less, so that a rolling update does not toggle it.
        let around = ready.saturating_sub(PADDING)..=ready + PADDING;
        let is_unstable = !was_active && around.into_iter().any(|n| self.minimum(endpoints, by, n) > n);
        if is_unstable {
            Err(InactiveReason::Overload { zones: self.describe(endpoints), ready })
        } else {
            Ok(())
        }
    }

    /// `3 zones`, or `2 zones of region west`.
    fn describe(&self, endpoints: &EndpointsByZone<'_>) -> String {
        let zones = count(self.senders, "zone");
        let is_part = self.zones.len() < endpoints.zones.len();
        match self.zones.first().and_then(|z| endpoints.zones.region(*z)).filter(|_| is_part) {
            Some(region) => format!("{zones} of region {region}"),
            None => zones,
        }
    }

    /// The part of `ready` endpoints that is proportional to each zone's traffic.
    fn expected(&self, endpoints: &EndpointsByZone<'_>, by: ZoneWeight, ready: usize) -> Vec<f64> {
        let weights = self.zones.iter().map(|z| endpoints.zones.weight(*z, by));
        let all = weights.clone().fold(0u64, u64::saturating_add);
        let ratio = |w: u64| if all == 0 { 0.0 } else { w as f64 / all as f64 };
        weights.map(|w| ratio(w) * ready as f64).collect()
    }

    /// The fewest endpoints so that the traffic of `ready` ones overloads no zone. A zone keeps its last endpoint.
    fn minimum(&self, endpoints: &EndpointsByZone<'_>, by: ZoneWeight, ready: usize) -> usize {
        let enough = |(zone, expected): (&usize, f64)| {
            let last = usize::from(endpoints.ready_by_zone[*zone] > 0);
            let guess = (expected / (1.0 + THRESHOLD)) as usize;
            let needed = (guess..).find(|n| !is_overloaded(expected, *n, THRESHOLD)).unwrap_or(guess);
            needed.max(last)
        };
        self.zones.iter().zip(self.expected(endpoints, by, ready)).map(enough).sum()
    }

    fn fits(&self, endpoints: &EndpointsByZone<'_>, by: ZoneWeight, serves: &[Option<usize>]) -> bool {
        let mut sizes = vec![0usize; endpoints.zones.len()];
        serves.iter().flatten().for_each(|zone| sizes[*zone] += 1);
        let mut zones = self.zones.iter().zip(self.expected(endpoints, by, self.ready));
        zones.all(|(zone, expected)| !is_overloaded(expected, sizes[*zone], THRESHOLD))
    }

    fn rebalance(
        &self,
        endpoints: &EndpointsByZone<'_>,
        by: ZoneWeight,
        serves: &mut [Option<usize>],
    ) -> Result<(), InactiveReason> {
        let load = |z: &usize| ZoneLoad {
            nodes: endpoints.zones.weight(*z, by),
            endpoints: endpoints.ready_by_zone[*z],
        };
        let loads: Vec<ZoneLoad> = self.zones.iter().map(load).collect();
        let Some(groups) = rebalance_zones(&loads, 0, THRESHOLD) else {
            return Err(InactiveReason::Overload { zones: self.describe(endpoints), ready: self.ready });
        };
        self.assign(endpoints, groups, serves);
        Ok(())
    }

    /// Assigns a zone to each endpoint according to the groups; as many as possible keep their zone.
    fn assign(
        &self,
        endpoints: &EndpointsByZone<'_>,
        mut groups: Vec<Vec<usize>>,
        serves: &mut [Option<usize>],
    ) {
        let mut at_by_zone = vec![None; endpoints.zones.len()];
        self.zones.iter().enumerate().for_each(|(at, zone)| at_by_zone[*zone] = Some(at));
        let mut unplaced = Vec::new();
        for (index, zone_of) in endpoints.zone_by_endpoint.iter().enumerate() {
            let Some(giver) = own_zone(zone_of).and_then(|zone| at_by_zone[zone]) else { continue };
            let receiver = serves[index].and_then(|zone| at_by_zone[zone]);
            match receiver.filter(|receiver| groups[*receiver][giver] > 0) {
                Some(receiver) => groups[receiver][giver] -= 1,
                None => unplaced.push((index, giver)),
            }
        }
        for (index, giver) in unplaced {
            if let Some(receiver) = (0..groups.len()).find(|receiver| groups[*receiver][giver] > 0) {
                groups[receiver][giver] -= 1;
                serves[index] = Some(self.zones[receiver]);
            }
        }
    }
}

impl InactiveReason {
    /// The condition's reason.
    fn reason(&self) -> &'static str {
        match self {
            Self::NoZones => "NoZones",
            Self::EndpointWithoutZone => "EndpointWithoutZone",
            Self::TooManyZones => "TooManyZones",
            Self::TooFew { .. } => "TooFewEndpoints",
            Self::Overload { .. } => "OverloadUnavoidable",
        }
    }

    /// The condition's message. It does not change with a single pod.
    fn sentence(&self) -> &'static str {
        match self {
            Self::NoZones => "No ready node has a zone label.",
            Self::EndpointWithoutZone => "A ready endpoint has no zone.",
            Self::TooManyZones => "A region has more than 8 zones, more than hints can list.",
            Self::TooFew { .. } => "There are too few ready endpoints for Prefer to start.",
            Self::Overload { .. } => "No distribution keeps every endpoint below the overload threshold.",
        }
    }
}

fn report_inactive(context: &mut HintContext<'_>, inactive: &InactiveReason) {
    let why = match inactive {
        InactiveReason::NoZones => {
            "no ready node has the label topology.kubernetes.io/zone. Add it to the nodes.".to_owned()
        }
        InactiveReason::EndpointWithoutZone => {
            let first = context.endpoints.first_without_zone.as_deref().unwrap_or_default();
            format!("{first} has no zone. Add the label topology.kubernetes.io/zone to its node.")
        }
        InactiveReason::TooManyZones => format!(
            "a region has more than {MOST_ZONES} zones, more than hints can list, so endpoints have no zone hints and only \
             Zoneward's nodes keep traffic in the region. Use same-zone alone, or smaller regions."
        ),
        InactiveReason::TooFew { ready, threshold, zones, was_active } => {
            let start = threshold.saturating_add(PADDING);
            let ended = match was_active {
                true => format!("ended at {} and starts again", threshold.saturating_sub(PADDING)),
                false => "starts".to_owned(),
            };
            format!(
                "{} in {zones}, Prefer {ended} at {start} (threshold {threshold}, padding {PADDING}). Add {}, lower \
                 endpointslice.kubernetes.io/same-zone-starting-threshold, or use Spill, which needs no minimum.",
                count(*ready, "ready endpoint"),
                start - ready,
            )
        }
        InactiveReason::Overload { zones, ready } => format!(
            "{}, plus or minus {PADDING}, cannot always be distributed over {zones} without giving one {} more than its \
             fair share. Add endpoints, or use Spill, which overloads none.",
            count(*ready, "ready endpoint"),
            percent(THRESHOLD),
        ),
    };
    let meanwhile = match context.mechanism.required() {
        Some(_) => "traffic is spread evenly over the region",
        None if context.mechanism.is_regional() => {
            "traffic is spread evenly over the region, else over all endpoints"
        }
        None => "traffic is spread evenly",
    };
    let first = if context.mechanism.prefers_node() { ", after its own node" } else { "" };
    context.report(event_reason::WITHHELD, format!("{}: {meanwhile}{first}: {why}", context.source));
}

fn report_groups(context: &mut HintContext<'_>, groups: &[BalancingGroup], serves: &[Option<usize>]) {
    let endpoints = &context.endpoints;
    let mut sizes = vec![0usize; endpoints.zones.len()];
    serves.iter().flatten().for_each(|zone| sizes[*zone] += 1);
    let by = context.config.prefer_by;
    let mut worst = 0.0f64;
    let mut zones = Vec::new();
    for group in groups {
        let all = group.ready as f64;
        for (zone, expected) in
            group.zones.iter().zip(group.expected(endpoints, by, group.ready)).filter(|(z, _)| sizes[**z] > 0)
        {
            worst = worst.max(expected / sizes[*zone] as f64 - 1.0);
            let share = percent(expected / all);
            zones.push(format!(
                "{} has {} for {share} of the {}",
                endpoints.zones.name(*zone),
                sizes[*zone],
                by.noun()
            ));
        }
    }
    let reassigned = serves
        .iter()
        .zip(&endpoints.zone_by_endpoint)
        .filter(|(serves, zone_of)| **serves != own_zone(zone_of))
        .count();
    let mut thresholds: Vec<usize> = groups.iter().map(|c| c.threshold).collect();
    thresholds.dedup();
    let bounds = list(thresholds.into_iter().map(|threshold| {
        let (start, end) = (threshold.saturating_add(PADDING), threshold.saturating_sub(PADDING));
        format!("starts at {start}, ends at {end}")
    }));
    let advice = if reassigned > 0 {
        " To keep more traffic in its zone, add endpoints in the zones that they are reassigned to."
    } else {
        ""
    };
    let message = format!(
        "{}: {}; {reassigned} of {} serve another zone than their own; highest overload {}, threshold {} ({bounds}).{advice}",
        context.source,
        list(zones),
        count(endpoints.ready, "ready endpoint"),
        percent(worst),
        percent(THRESHOLD),
    );
    context.report(event_reason::PROGRAMMED, message);
}
