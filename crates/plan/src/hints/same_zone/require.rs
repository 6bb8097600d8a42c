//! Require at any level, and same-region (seed 003; design, "Require").
//!
//! Rule: a ready endpoint has hints for the zones that may use it: its own, or all of its region. With same-node it also has
//! one for its node. If the region is the fallback of the zone, zones of the region without endpoints are added, so that
//! hints alone express "zone, else region". Under Require, an endpoint outside the scope is not used even if there is no
//! other.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::{Hints, Name};

use crate::hints::endpoints_by_zone::{EndpointZone, EndpointsByZone, contents};
use crate::hints::expected_load::{self, ZoneFallback, zones_without_endpoints};
use crate::hints::mechanism::{Mechanism, TopologyScope};
use crate::hints::message::{count, list};
use crate::hints::prefer_same::warn_of_overload;
use crate::hints::write_hints::{DesiredHints, SliceAnnotations, UnreadyHints, write_hints};
use crate::hints::{HintContext, MechanismOutcome, event_reason};
use crate::slices::Packing;

/// The API's limit on the zones in an endpoint's hints.
pub(super) const MOST_ZONES: usize = 8;
/// The condition's message for that.
const TOO_WIDE: &str =
    "A region has more than 8 zones, more than hints can list, so only Zoneward's nodes follow it.";

pub(in crate::hints) fn apply(context: &mut HintContext<'_>, packing: &mut Packing<'_>) -> MechanismOutcome {
    let own_zones: Vec<Option<usize>> = context.endpoints.zone_by_endpoint.iter().map(own_zone).collect();
    let capacity = put_hints(context, packing, context.mechanism, &own_zones);
    let usable = context.mechanism.required().is_some()
        || context.endpoints.has_usable_hints(context.mechanism.prefers_node());
    if context.reports_notices() {
        match usable {
            true => report_all(context, packing, capacity),
            false => context.report_unusable(),
        }
    }
    let caveat = (capacity == HintCapacity::Exceeded).then_some(TOO_WIDE);
    match usable {
        true => MechanismOutcome { caveat, ..MechanismOutcome::programmed(context.mechanism) },
        false => MechanismOutcome::unusable(context.mechanism),
    }
}

fn report_all(context: &mut HintContext<'_>, packing: &Packing<'_>, capacity: HintCapacity) {
    report_programmed(context, capacity);
    if capacity == HintCapacity::Exceeded {
        report_too_many_zones(context);
    }
    match context.mechanism.required() {
        Some(TopologyScope::Node) => report_nodes_cut_off(context, packing),
        Some(scope) => report_zones_cut_off(context, scope),
        None => {}
    }
    if context.mechanism.required() == Some(TopologyScope::Zone) {
        let worst =
            expected_load::by_zone(&context.endpoints, context.config.prefer_by, ZoneFallback::Nowhere);
        warn_of_overload(context, worst.as_ref());
    }
    report_places(context);
}

pub(super) fn own_zone(zone_of: &EndpointZone) -> Option<usize> {
    match zone_of {
        EndpointZone::Zone(zone) => Some(*zone),
        EndpointZone::NoZone | EndpointZone::Unready => None,
    }
}

/// Whether the hints of a mechanism fit into an EndpointSlice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HintCapacity {
    Fits,
    /// An endpoint would need more than [`MOST_ZONES`]: no endpoint gets zone hints, and nodes use the regions in the
    /// slices' annotation.
    Exceeded,
}

/// Whether hints fit if endpoints serve these zones.
pub(super) fn capacity(
    endpoints: &EndpointsByZone<'_>,
    mechanism: Mechanism,
    serves: &[Option<usize>],
) -> HintCapacity {
    capacity_of(&hints_by_zone(endpoints, mechanism, serves), serves)
}

fn capacity_of(hints_by_zone: &[Option<Arc<Hints>>], serves: &[Option<usize>]) -> HintCapacity {
    let mut used = serves.iter().flatten().filter_map(|zone| hints_by_zone[*zone].as_ref());
    if used.any(|hints| hints.zones.len() > MOST_ZONES) { HintCapacity::Exceeded } else { HintCapacity::Fits }
}

/// Writes the hints of a mechanism whose endpoints serve these zones.
pub(super) fn put_hints(
    context: &HintContext<'_>,
    packing: &mut Packing<'_>,
    mechanism: Mechanism,
    serves: &[Option<usize>],
) -> HintCapacity {
    let mut hints_by_zone = hints_by_zone(&context.endpoints, mechanism, serves);
    let capacity = capacity_of(&hints_by_zone, serves);
    if capacity == HintCapacity::Exceeded {
        hints_by_zone.fill(None);
    }
    let annotations = match capacity {
        HintCapacity::Fits => SliceAnnotations::new(context, mechanism),
        HintCapacity::Exceeded => SliceAnnotations::by_region(context, mechanism),
    };
    let by_node = mechanism.prefers_node() || mechanism == Mechanism::RequireNode;
    write_hints(packing, context.topology, &annotations, UnreadyHints::ClearedInPassing, |index, _| {
        let hints = serves[index].and_then(|zone| hints_by_zone[zone].as_ref());
        match hints {
            Some(hints) if by_node => DesiredHints::NodeAnd(&hints.zones),
            Some(hints) => DesiredHints::Shared(hints),
            None if by_node => DesiredHints::NodeAnd(&[]),
            None => DesiredHints::Nothing,
        }
    });
    capacity
}

/// By zone: the hints of an endpoint that serves it.
fn hints_by_zone(
    endpoints: &EndpointsByZone<'_>,
    mechanism: Mechanism,
    serves: &[Option<usize>],
) -> Vec<Option<Arc<Hints>>> {
    use Mechanism as M;
    let zones = &endpoints.zones;
    let all = 0..zones.len();
    match mechanism {
        M::PreferZoneResting | M::PreferNodeZoneResting => vec![None; zones.len()],
        M::RequireRegion
        | M::PreferRegion
        | M::PreferZoneRegionResting
        | M::PreferNodeZoneRegionResting
        | M::PreferZoneRequireRegionResting
        | M::PreferNodeZoneRequireRegionResting => all.map(|z| Some(zones.regional(z).clone())).collect(),
        M::PreferNodeRegion
        | M::PreferNodeRequireRegion
        | M::PreferZoneRegion
        | M::PreferNodeZoneRegion
        | M::PreferZoneRequireRegion
        | M::PreferNodeZoneRequireRegion => with_unserved_zones(endpoints, serves),
        _ => all.map(|z| Some(zones.own(z).clone())).collect(),
    }
}

/// A zone and the zones of its region that no endpoint serves.
fn with_unserved_zones(endpoints: &EndpointsByZone<'_>, serves: &[Option<usize>]) -> Vec<Option<Arc<Hints>>> {
    let zones = &endpoints.zones;
    let mut served = vec![false; zones.len()];
    serves.iter().flatten().for_each(|zone| served[*zone] = true);
    let shape = |zone: usize| {
        let is_known = zones.known().contains(&zone);
        let unserved =
            zones.known().filter(|z| is_known && !served[*z] && zones.region(*z) == zones.region(zone));
        let mut names = vec![zones.name(zone).clone()];
        names.extend(unserved.filter(|z| *z != zone).map(|z| zones.name(z).clone()));
        match names.len() {
            1 => zones.own(zone).clone(),
            _ => Arc::new(Hints { zones: names.into(), nodes: Box::default() }),
        }
    };
    (0..zones.len()).map(|zone| served[zone].then(|| shape(zone))).collect()
}

fn report_programmed(context: &mut HintContext<'_>, capacity: HintCapacity) {
    let m = context.mechanism;
    let node = if m.prefers_node() { "its own node, else " } else { "" };
    // Only hints express the zone between node and region.
    let zone = if m.prefers_node() && capacity == HintCapacity::Fits { "its own zone, else " } else { "" };
    let path = match m.required() {
        Some(TopologyScope::Node) => "its own node or nowhere".to_owned(),
        Some(TopologyScope::Zone) => format!("{node}its own zone or nowhere"),
        Some(TopologyScope::Region) => format!("{node}{zone}its own region or nowhere"),
        None => format!("{node}{zone}its own region, else all endpoints"),
    };
    let caution = match m.required() {
        None => "",
        Some(_) => {
            " Make sure that each has enough endpoints. Consumers that read only hints use all endpoints if a hint is \
             missing, Zoneward's nodes do not."
        }
    };
    let ready = count(context.endpoints.ready, "ready endpoint");
    context.report(
        event_reason::PROGRAMMED,
        format!("{}: traffic goes to {path}; {ready}.{caution}", context.source),
    );
}

fn report_too_many_zones(context: &mut HintContext<'_>) {
    let message = format!(
        "{}: a region has more than {MOST_ZONES} zones, more than hints can list, so endpoints have no zone hints. \
         Zoneward's nodes keep traffic in the region, consumers that read only hints use all endpoints. Use same-zone or \
         smaller regions for those.",
        context.source
    );
    context.report(event_reason::TOO_MANY_ZONES, message);
}

/// Nodes that cannot reach the Service because they run no endpoint.
fn report_nodes_cut_off(context: &mut HintContext<'_>, packing: &Packing<'_>) {
    let endpoints = contents(packing).flat_map(|c| &c.endpoints);
    let ready = endpoints.filter(|e| e.conditions.is_ready_for_hints());
    let serving: BTreeSet<&Name> = ready.filter_map(|e| e.node.as_ref()).collect();
    let nodes = context.topology.ready_nodes();
    if serving.len() < nodes {
        let message = format!(
            "Clients on {} of {} cannot reach the Service: no endpoint is ready there. Run one on every node, e.g. with a \
             DaemonSet, or use Prefer instead of Require.",
            nodes - serving.len(),
            count(nodes, "ready node"),
        );
        context.report(event_reason::UNREACHABLE, message);
    }
}

/// Zones that cannot reach the Service because no endpoint is in scope.
fn report_zones_cut_off(context: &mut HintContext<'_>, scope: TopologyScope) {
    let endpoints = &context.endpoints;
    let zones = &endpoints.zones;
    let region_serves = |zone: usize| {
        let same = |z: &usize| zones.region(*z) == zones.region(zone);
        zones.known().filter(same).any(|z| endpoints.ready_by_zone[z] > 0)
    };
    let is_cut_off = |zone: &usize| scope != TopologyScope::Region || !region_serves(*zone);
    let cut_off: Vec<usize> = zones_without_endpoints(endpoints).filter(is_cut_off).collect();
    if !cut_off.is_empty() {
        let names =
            list(cut_off.iter().map(|z| format!("{} ({})", zones.name(*z), count_nodes(endpoints, *z))));
        let message = format!(
            "Clients in {names} cannot reach the Service: no endpoint that they may use is ready. Add one there, or use \
             Prefer instead of Require."
        );
        context.report(event_reason::UNREACHABLE, message);
    }
    if let Some((nodes, first)) = context.topology.nodes_without_zone() {
        let message = format!(
            "Clients on {} without the label topology.kubernetes.io/zone ({first}) cannot reach the Service. Add the \
             label, or use Prefer instead of Require.",
            count(nodes, "node")
        );
        context.report(event_reason::UNREACHABLE, message);
    }
}

fn count_nodes(endpoints: &EndpointsByZone<'_>, zone: usize) -> String {
    count(usize::try_from(endpoints.zones.ready_nodes(zone)).unwrap_or(usize::MAX), "node")
}

fn report_places(context: &mut HintContext<'_>) {
    match context.mechanism.required() {
        Some(_) => context.report_endpoints_without_zone("so Zoneward's nodes do not use it"),
        None => {
            context.report_endpoints_without_zone("so consumers ignore all zone hints of the Service");
            context.report_nodes_without_zone();
        }
    }
    report_regions(context);
}

/// Missing or inconsistent region labels.
pub(super) fn report_regions(context: &mut HintContext<'_>) {
    if !context.mechanism.is_regional() {
        return;
    }
    if let Some(torn) = context.topology.zone_in_two_regions() {
        let message = format!(
            "The nodes of zone {} have different regions (node {} differs from the first), so the region of the first node \
             by name is used. Correct the label topology.kubernetes.io/region.",
            torn.zone, torn.node
        );
        context.report(event_reason::TOPOLOGY_UNKNOWN, message);
    }
    if context.topology.zones().iter().all(|z| z.region.is_none()) {
        let message = "No node has the label topology.kubernetes.io/region, so the whole cluster counts as one \
             region. Add the label, or use same-zone.";
        context.report(event_reason::TOPOLOGY_UNKNOWN, message.to_owned());
    }
}
