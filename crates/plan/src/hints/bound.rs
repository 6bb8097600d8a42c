//! Require at any level, and the region (seed 003, semantics M3 and M5).
//!
//! Rule: a ready endpoint carries hints for the zones that may use it: its own, or all of its region. Where the own
//! node comes first it carries a hint for that too, and where a region comes after the zone the zones of the region
//! that have no endpoint are added, so that hints alone say "zone, else region". Require is the user's duty: an
//! endpoint that is too far away is not used even if there is no other.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::{Hints, Name};

use super::mechanism::{Mechanism, Scope};
use super::overload::{self, Strays, zones_without_endpoints};
use super::same::warn_of_overload;
use super::survey::{Spot, Survey, contents};
use super::words::{count, list};
use super::write::{Tag, Unready, Wanted, write};
use super::{Applied, Task, reason};
use crate::slices::Packing;

/// An endpoint's hints name at most so many zones: the API refuses a slice with more.
pub(super) const MOST_ZONES: usize = 8;
/// The condition's words for that.
const TOO_WIDE: &str =
    "A region has more than 8 zones, which hints cannot name, so only Zoneward's nodes obey it.";

/// Puts the hints on.
pub(super) fn apply(task: &mut Task<'_>, packing: &mut Packing<'_>) -> Applied {
    let own_zones: Vec<Option<usize>> = task.survey.spots.iter().map(own_zone).collect();
    let width = put(task, packing, task.mechanism, &own_zones);
    let usable =
        task.mechanism.required().is_some() || task.survey.has_usable_hints(task.mechanism.prefers_node());
    if task.is_heard() {
        match usable {
            true => say_all(task, packing, width),
            false => task.say_unusable(),
        }
    }
    let caveat = (width == Width::TooWide).then_some(TOO_WIDE);
    match usable {
        true => Applied { caveat, ..Applied::programmed(task.mechanism) },
        false => Applied::unusable(task.mechanism),
    }
}

fn say_all(task: &mut Task<'_>, packing: &Packing<'_>, width: Width) {
    say(task, width);
    if width == Width::TooWide {
        remark_too_wide(task);
    }
    match task.mechanism.required() {
        Some(Scope::Node) => remark_nodes_cut_off(task, packing),
        Some(scope) => remark_zones_cut_off(task, scope),
        None => {}
    }
    if task.mechanism.required() == Some(Scope::Zone) {
        let worst = overload::by_zone(&task.survey, task.config.prefer_by, Strays::Nowhere);
        warn_of_overload(task, worst.as_ref());
    }
    remark_places(task);
}

pub(super) fn own_zone(spot: &Spot) -> Option<usize> {
    match spot {
        Spot::Zone(zone) => Some(*zone),
        Spot::NoZone | Spot::Unready => None,
    }
}

/// Whether the hints that a mechanism asks for fit into an EndpointSlice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    /// They do.
    Fits,
    /// An endpoint would have to name more than [`MOST_ZONES`]: none of the endpoints names any, and nodes go by the
    /// mechanism and their region.
    TooWide,
}

/// Whether the hints of endpoints that serve these zones fit.
pub(super) fn width(survey: &Survey<'_>, mechanism: Mechanism, serves: &[Option<usize>]) -> Width {
    width_of(&shapes(survey, mechanism, serves), serves)
}

fn width_of(shapes: &[Option<Arc<Hints>>], serves: &[Option<usize>]) -> Width {
    let mut used = serves.iter().flatten().filter_map(|zone| shapes[*zone].as_ref());
    if used.any(|hints| hints.zones.len() > MOST_ZONES) { Width::TooWide } else { Width::Fits }
}

/// Writes the hints of a mechanism whose endpoints serve these zones, each in the shape that the mechanism asks for.
pub(super) fn put(
    task: &Task<'_>,
    packing: &mut Packing<'_>,
    mechanism: Mechanism,
    serves: &[Option<usize>],
) -> Width {
    let mut shapes = shapes(&task.survey, mechanism, serves);
    let width = width_of(&shapes, serves);
    if width == Width::TooWide {
        shapes.fill(None);
    }
    let tag = match width {
        Width::Fits => Tag::new(task, mechanism),
        Width::TooWide => Tag::by_region(task, mechanism),
    };
    let by_node = mechanism.prefers_node() || mechanism == Mechanism::RequireNode;
    write(packing, task.facts, &tag, Unready::ClearedInPassing, |place, _| {
        let hints = serves[place].and_then(|zone| shapes[zone].as_ref());
        match hints {
            Some(hints) if by_node => Wanted::NodeAnd(&hints.zones),
            Some(hints) => Wanted::These(hints),
            None if by_node => Wanted::NodeAnd(&[]),
            None => Wanted::Nothing,
        }
    });
    width
}

/// The hints of an endpoint that serves a zone, by zone.
fn shapes(survey: &Survey<'_>, mechanism: Mechanism, serves: &[Option<usize>]) -> Vec<Option<Arc<Hints>>> {
    use Mechanism as M;
    let zones = &survey.zones;
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
        | M::PreferNodeZoneRequireRegion => with_unserved_zones(survey, serves),
        _ => all.map(|z| Some(zones.own(z).clone())).collect(),
    }
}

/// The zone itself, and the zones of its region that no endpoint serves.
fn with_unserved_zones(survey: &Survey<'_>, serves: &[Option<usize>]) -> Vec<Option<Arc<Hints>>> {
    let zones = &survey.zones;
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

fn say(task: &mut Task<'_>, width: Width) {
    let m = task.mechanism;
    let node = if m.prefers_node() { "the own node, else " } else { "" };
    // Between node and region only hints know the zone.
    let zone = if m.prefers_node() && width == Width::Fits { "the own zone, else " } else { "" };
    let path = match m.required() {
        Some(Scope::Node) => "the own node or nowhere".to_owned(),
        Some(Scope::Zone) => format!("{node}the own zone or nowhere"),
        Some(Scope::Region) => format!("{node}{zone}the own region or nowhere"),
        None => format!("{node}{zone}the own region, else everywhere"),
    };
    let duty = match m.required() {
        None => "",
        Some(_) => {
            " It is your duty that there are enough endpoints in each; consumers that know only hints still go \
             everywhere when a hint is missing, Zoneward's do not."
        }
    };
    let ready = count(task.survey.ready, "ready endpoint");
    task.say(reason::PROGRAMMED, format!("{}: traffic goes to {path}; {ready}.{duty}", task.source));
}

fn remark_too_wide(task: &mut Task<'_>) {
    let message = format!(
        "{}: a region has more than {MOST_ZONES} zones, and an endpoint's hints can name no more, so endpoints carry \
         none for zones. Zoneward's nodes go by their region; consumers that know only hints go everywhere. Use \
         same-zone, or smaller regions, for those.",
        task.source
    );
    task.say(reason::TOO_MANY_ZONES, message);
}

/// Nodes that get nothing at all because they run no endpoint.
fn remark_nodes_cut_off(task: &mut Task<'_>, packing: &Packing<'_>) {
    let endpoints = contents(packing).flat_map(|c| &c.endpoints);
    let ready = endpoints.filter(|e| e.conditions.is_ready_for_hints());
    let serving: BTreeSet<&Name> = ready.filter_map(|e| e.node.as_ref()).collect();
    let nodes = task.facts.ready_nodes();
    if serving.len() < nodes {
        let message = format!(
            "Clients on {} of {} cannot reach the Service: no endpoint is ready there. Run one on every node, as a \
             DaemonSet does, or write Prefer instead of Require.",
            nodes - serving.len(),
            count(nodes, "ready node"),
        );
        task.say(reason::UNREACHABLE, message);
    }
}

/// Zones that get nothing at all because no endpoint is near enough.
fn remark_zones_cut_off(task: &mut Task<'_>, scope: Scope) {
    let survey = &task.survey;
    let zones = &survey.zones;
    let region_serves = |zone: usize| {
        let same = |z: &usize| zones.region(*z) == zones.region(zone);
        zones.known().filter(same).any(|z| survey.ready_by_zone[z] > 0)
    };
    let is_cut_off = |zone: &usize| scope != Scope::Region || !region_serves(*zone);
    let cut_off: Vec<usize> = zones_without_endpoints(survey).filter(is_cut_off).collect();
    if !cut_off.is_empty() {
        let names = list(cut_off.iter().map(|z| format!("{} ({})", zones.name(*z), count_nodes(survey, *z))));
        let message = format!(
            "Clients in {names} cannot reach the Service: it has no ready endpoint that they may use. Add one there, \
             or write Prefer instead of Require."
        );
        task.say(reason::UNREACHABLE, message);
    }
    if let Some((nodes, first)) = task.facts.nodes_without_zone() {
        let message = format!(
            "Clients on {} without the label topology.kubernetes.io/zone ({first}) cannot reach the Service. Add the \
             label, or write Prefer instead of Require.",
            count(nodes, "node")
        );
        task.say(reason::UNREACHABLE, message);
    }
}

fn count_nodes(survey: &Survey<'_>, zone: usize) -> String {
    count(usize::try_from(survey.zones.ready_nodes(zone)).unwrap_or(usize::MAX), "node")
}

fn remark_places(task: &mut Task<'_>) {
    match task.mechanism.required() {
        Some(_) => task.remark_endpoints_without_zone("so Zoneward's nodes do not use it"),
        None => {
            task.remark_endpoints_without_zone(
                "so consumers ignore the hints for zones of the whole Service",
            );
            task.remark_nodes_without_zone();
        }
    }
    remark_regions(task);
}

/// Labels that keep regions from working.
pub(super) fn remark_regions(task: &mut Task<'_>) {
    if !task.mechanism.is_regional() {
        return;
    }
    if let Some(torn) = task.facts.torn_zone() {
        let message = format!(
            "The nodes of zone {} name different regions (node {} does not agree with the first), so the first one by \
             name counts. Put topology.kubernetes.io/region right.",
            torn.zone, torn.node
        );
        task.say(reason::PLACE_UNKNOWN, message);
    }
    if task.facts.zones().iter().all(|z| z.region.is_none()) {
        let message = "No node carries the label topology.kubernetes.io/region, so the whole cluster counts as one \
             region. Add the label, or use same-zone.";
        task.say(reason::PLACE_UNKNOWN, message.to_owned());
    }
}
