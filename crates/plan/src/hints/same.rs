//! PreferSameZone and PreferSameNode (KEP-4444, semantics A3).
//!
//! Rule: every ready endpoint carries a hint for its own zone if that is known, and under PreferSameNode one for its
//! own node. There is no safeguard: a Service that asks for it gets it, with a Notice of the load to expect. Where an
//! endpoint has no zone the hints are set all the same, as upstream sets them, and the Notice says that they are unusable.

use super::mechanism::Mechanism;
use super::overload::{self, Strays, THRESHOLD, Worst};
use super::survey::Spot;
use super::words::{count, list, percent};
use super::write::{Tag, Unready, Wanted, write};
use super::{Applied, Task, reason};
use crate::slices::Packing;

/// Puts the hints on.
pub(super) fn apply(task: &mut Task<'_>, packing: &mut Packing<'_>) -> Applied {
    let by_node = task.mechanism == Mechanism::PreferSameNode;
    let survey = &task.survey;
    write(packing, task.facts, &Tag::new(task, task.mechanism), Unready::Untouched, |place, _| match survey
        .spots[place]
    {
        Spot::Zone(zone) if by_node => Wanted::NodeAnd(&survey.zones.own(zone).zones),
        Spot::Zone(zone) => Wanted::These(survey.zones.own(zone)),
        _ if by_node => Wanted::NodeAnd(&[]),
        _ => Wanted::Nothing,
    });
    let usable = task.survey.has_usable_hints(by_node);
    if task.is_heard() {
        match usable {
            true => say_all(task, packing, by_node),
            false => task.say_unusable(),
        }
    }
    match usable {
        true => Applied::programmed(task.mechanism),
        false => Applied::unusable(task.mechanism),
    }
}

fn say_all(task: &mut Task<'_>, packing: &Packing<'_>, by_node: bool) {
    let by = task.config.prefer_by;
    let worst = match by_node {
        true => overload::by_node(&task.survey, packing, by),
        false => overload::by_zone(&task.survey, by, Strays::Everywhere),
    };
    say(task, by_node);
    warn_of_overload(task, worst.as_ref());
    task.remark_endpoints_without_zone("so consumers ignore the hints for zones of the whole Service");
    task.remark_nodes_without_zone();
}

fn say(task: &mut Task<'_>, by_node: bool) {
    let survey = &task.survey;
    let zones = (0..survey.zones.len()).filter(|z| survey.ready_by_zone[*z] > 0);
    let counts = list(zones.map(|z| format!("{} {}", survey.zones.name(z), survey.ready_by_zone[z])));
    let place = if by_node { "stays on the node, else in the zone," } else { "stays in the zone" };
    let ready = count(survey.ready, "ready endpoint");
    let spread = if counts.is_empty() { String::new() } else { format!(" ({counts})") };
    task.say(
        reason::PROGRAMMED,
        format!(
            "{}: traffic {place} where it starts, and goes everywhere where there is no endpoint; \
             {ready}{spread}. No minimum applies.",
            task.source
        ),
    );
}

/// Also for Require, which keeps its word at any load.
pub(super) fn warn_of_overload(task: &mut Task<'_>, worst: Option<&Worst>) {
    let Some(worst) = worst.filter(|w| w.overload() > THRESHOLD) else { return };
    let advice = match worst.missing() {
        Some(more) => format!("Add {more} there, or use Spill, which sends the excess elsewhere."),
        None => "Spread the endpoints as the nodes are, or use Spill, which sends the excess elsewhere."
            .to_owned(),
    };
    let each = if worst.endpoints == 1 { "it" } else { "each" };
    let message = format!(
        "{} sends {} of the traffic (by {}) to {}, so {each} has to expect {} more than its fair share; the hints \
         stay. {advice}",
        worst.place,
        percent(worst.share),
        task.config.prefer_by.noun(),
        count(worst.endpoints, "ready endpoint"),
        percent(worst.overload()),
    );
    task.say(reason::OVERLOAD, message);
}
