//! PreferSameZone and PreferSameNode (KEP-4444, semantics A3).
//!
//! Rule: every ready endpoint has a hint for its own zone, if known, and under PreferSameNode one for its own node. There is
//! no safeguard, only a Notice about the expected load. If an endpoint has no zone, the others still get hints, as upstream
//! does, and a Notice says that consumers ignore them.

use super::endpoints_by_zone::EndpointZone;
use super::expected_load::{self, HighestLoad, THRESHOLD, ZoneFallback};
use super::mechanism::Mechanism;
use super::message::{count, list, percent};
use super::write_hints::{DesiredHints, SliceAnnotations, UnreadyHints, write_hints};
use super::{HintContext, MechanismOutcome, event_reason};
use crate::slices::Packing;

pub(super) fn apply(context: &mut HintContext<'_>, packing: &mut Packing<'_>) -> MechanismOutcome {
    let by_node = context.mechanism == Mechanism::PreferSameNode;
    let endpoints = &context.endpoints;
    write_hints(
        packing,
        context.topology,
        &SliceAnnotations::new(context, context.mechanism),
        UnreadyHints::Untouched,
        |index, _| match endpoints.zone_by_endpoint[index] {
            EndpointZone::Zone(zone) if by_node => DesiredHints::NodeAnd(&endpoints.zones.own(zone).zones),
            EndpointZone::Zone(zone) => DesiredHints::Shared(endpoints.zones.own(zone)),
            _ if by_node => DesiredHints::NodeAnd(&[]),
            _ => DesiredHints::Nothing,
        },
    );
    let usable = context.endpoints.has_usable_hints(by_node);
    if context.reports_notices() {
        match usable {
            true => report_all(context, packing, by_node),
            false => context.report_unusable(),
        }
    }
    match usable {
        true => MechanismOutcome::programmed(context.mechanism),
        false => MechanismOutcome::unusable(context.mechanism),
    }
}

fn report_all(context: &mut HintContext<'_>, packing: &Packing<'_>, by_node: bool) {
    let by = context.config.prefer_by;
    let worst = match by_node {
        true => expected_load::by_node(&context.endpoints, packing, by),
        false => expected_load::by_zone(&context.endpoints, by, ZoneFallback::Everywhere),
    };
    report_programmed(context, by_node);
    warn_of_overload(context, worst.as_ref());
    context.report_endpoints_without_zone("so consumers ignore all zone hints of the Service");
    context.report_nodes_without_zone();
}

fn report_programmed(context: &mut HintContext<'_>, by_node: bool) {
    let endpoints = &context.endpoints;
    let zones = (0..endpoints.zones.len()).filter(|z| endpoints.ready_by_zone[*z] > 0);
    let counts = list(zones.map(|z| format!("{} {}", endpoints.zones.name(z), endpoints.ready_by_zone[z])));
    let place = if by_node { "stays on its node, else in its zone" } else { "stays in its zone" };
    let ready = count(endpoints.ready, "ready endpoint");
    let spread = if counts.is_empty() { String::new() } else { format!(" ({counts})") };
    context.report(
        event_reason::PROGRAMMED,
        format!(
            "{}: traffic {place}, and goes to all endpoints if there is none; {ready}{spread}. There is no minimum \
             number of endpoints.",
            context.source
        ),
    );
}

/// Also used by Require, which has no safeguard either.
pub(super) fn warn_of_overload(context: &mut HintContext<'_>, worst: Option<&HighestLoad>) {
    let Some(worst) = worst.filter(|w| w.overload() > THRESHOLD) else { return };
    let advice = match worst.missing() {
        Some(more) => format!("Add {more} there, or use Spill, which sends the excess elsewhere."),
        None => {
            "Spread the endpoints like the nodes, or use Spill, which sends the excess elsewhere.".to_owned()
        }
    };
    let each = if worst.endpoints == 1 { "it" } else { "each" };
    let message = format!(
        "{} sends {} of the traffic (by {}) to {}, so {each} gets about {} more than its fair share; the hints stay. \
         {advice}",
        worst.place,
        percent(worst.share),
        context.config.prefer_by.noun(),
        count(worst.endpoints, "ready endpoint"),
        percent(worst.overload()),
    );
    context.report(event_reason::OVERLOAD, message);
}
