//! Spill, our own (semantics M6).
//!
//! Rule: the slices carry the share of traffic expected from each zone, and consumers that know Spill do the rest with
//! [`crate::spill`]. For those that know only hints, slices carry own-zone hints where no zone spills and none where
//! one does, so that they never overload a zone by more than they would without Spill.

use super::mechanism::Mechanism;
use super::overload::{self, Strays};
use super::survey::{Spot, Survey};
use super::words::{count, list, percent};
use super::write::{Tag, Unready, Wanted, write};
use super::{Applied, Task, clear, reason};
use crate::hints::PreferBy;
use crate::slices::Packing;
use crate::spill::{Demand, PARTS, zone_spills};

/// A share that moves by no more than this many 256ths is not worth rewriting the slices of every Service for.
const STEADY_PARTS: u16 = 2;
/// Own-zone hints that stand go only when an endpoint would get more than twice its fair share because of them:
/// otherwise each pod of a rolling update would take the hints of all others away and give them back.
const HINT_OVERLOAD: f64 = 1.0;

/// Puts demand and hints on.
pub(super) fn apply(task: &mut Task<'_>, packing: &mut Packing<'_>) -> Applied {
    let Some(demand) = steady_demand(task) else {
        clear(task, packing, Mechanism::None);
        task.say(
            reason::WITHHELD,
            format!(
                "{}: traffic spreads evenly: no ready node carries the label topology.kubernetes.io/zone. Add it to \
                 the nodes.",
                task.source
            ),
        );
        return Applied::held_back(Mechanism::None, "NoZones", "No ready node carries a zone label.");
    };
    let survey = &task.survey;
    let hinted = carries_hints(task, &demand);
    let tag = Tag::spill(task, &demand);
    write(packing, task.facts, &tag, Unready::ClearedInPassing, |place, _| match survey.spots[place] {
        Spot::Zone(zone) if hinted => Wanted::These(survey.zones.own(zone)),
        _ => Wanted::Nothing,
    });
    if task.is_heard() {
        say(task, &demand, hinted);
        task.remark_nodes_without_zone();
    }
    Applied { demand: Some(demand), ..Applied::programmed(Mechanism::Spill) }
}

/// What the nodes say, or what the slices said already if that is hardly different.
fn steady_demand(task: &Task<'_>) -> Option<Demand> {
    let now = task.facts.demand()?;
    let before = task.memory.demand.as_ref().filter(|before| before.is_near(now, STEADY_PARTS));
    Some(before.unwrap_or(now).clone())
}

fn carries_hints(task: &Task<'_>, demand: &Demand) -> bool {
    let stands = task.memory.mechanism == Mechanism::Spill && task.memory.hinted;
    if stands && task.survey.without_zone == 0 {
        let worst = overload::by_zone(&task.survey, PreferBy::Cpu, Strays::Everywhere);
        return worst.is_none_or(|w| w.overload() <= HINT_OVERLOAD);
    }
    !spilling_zones(&task.survey, demand).any(|_| true)
}

/// Zones that send some of their traffic elsewhere, with the share that they can keep.
fn spilling_zones<'s>(survey: &'s Survey<'_>, demand: &'s Demand) -> impl Iterator<Item = (usize, f64)> + 's {
    // The demand lists the zones of the cluster, in the same order as the survey numbers them.
    let zones = demand.zones().iter().enumerate();
    let spilling = zones.filter(|(zone, d)| zone_spills(d.share, survey.ready_by_zone[*zone], survey.ready));
    spilling.map(|(zone, d)| {
        let capacity = survey.ready_by_zone[zone] as f64 / survey.ready as f64;
        (zone, capacity * PARTS as f64 / f64::from(d.share))
    })
}

fn say(task: &mut Task<'_>, demand: &Demand, hinted: bool) {
    let survey = &task.survey;
    let spilling = spilling_zones(survey, demand).map(|(zone, keeps)| {
        format!(
            "{} keeps {} with {}",
            survey.zones.name(zone),
            percent(keeps),
            count(survey.ready_by_zone[zone], "endpoint")
        )
    });
    let spilling = list(spilling);
    let shares = demand.zones().iter().filter(|z| z.share > 0);
    let shares = list(shares.map(|z| format!("{} {}", z.zone, percent(f64::from(z.share) / PARTS as f64))));
    let (outcome, advice) = match spilling.is_empty() {
        _ if survey.ready == 0 => ("there is no endpoint that could take traffic".to_owned(), ""),
        true => ("all traffic stays in its zone".to_owned(), ""),
        false => (
            format!("{spilling}, and sends the rest where endpoints are idle"),
            " Add endpoints there to keep more.",
        ),
    };
    let others = if hinted { "keep to their zone" } else { "spread evenly" };
    let message = format!(
        "{}: {outcome}; {}, expected traffic by CPU: {shares}. Consumers that know only hints {others}.{advice}",
        task.source,
        count(survey.ready, "ready endpoint"),
    );
    task.say(reason::PROGRAMMED, message);
}
