//! The page of `simulate what-if`: what to change first, then every Service.

use std::collections::BTreeSet;

use model::Notice;
use output::count;
use output::html::{HtmlCell, HtmlPage, zone_matrix};
use plan::hints::Mechanism;
use sim::what_if::{MechanismOutcome, RULE};

use super::EvaluatedService;
use super::report::{by_gain, cost, crossing, endpoints, outcome_of, percent, short_hardship};
use crate::commands::simulate::SimulateWhatIf;

/// Maximum number of Services with a section of their own.
const MAX_SECTIONS: usize = 50;

pub(super) fn page(evaluated: &[EvaluatedService<'_>], notices: &[Notice], args: &SimulateWhatIf) -> String {
    let (served, empty): (Vec<&EvaluatedService<'_>>, Vec<&EvaluatedService<'_>>) =
        by_gain(evaluated).into_iter().partition(|one| !one.result.endpoints_by_zone.is_empty());
    let mut page = HtmlPage::new("What each traffic distribution would do");
    let changing = served.iter().filter(|one| !one.advice.commands.is_empty()).count();
    page.paragraph(&match changing {
        0 => format!("{}. No change is recommended.", count(served.len(), "Service")),
        _ => format!("{}. A change is recommended for {changing}.", count(served.len(), "Service")),
    });
    page.table(&SUMMARY, served.iter().map(|one| summary(one)).collect());
    if !empty.is_empty() {
        let names: Vec<String> = empty.iter().map(|one| one.service.key.to_string()).collect();
        page.remark(&format!("Without ready endpoints: {}.", names.join(", ")));
    }
    let left_out: Vec<String> = notices.iter().map(|n| format!("{}: {}", n.object, n.message)).collect();
    left_out.iter().for_each(|text| page.remark(text));
    page.remark(&format!("Rule of the recommendation: {RULE}."));
    if served.len() > MAX_SECTIONS {
        page.remark(&format!("The first {MAX_SECTIONS} follow in full; -o json has all of them."));
    }
    for one in served.iter().take(MAX_SECTIONS) {
        section(&mut page, one, args);
    }
    page.finish()
}

const SUMMARY: [&str; 7] =
    ["Service", "Now", "In zone now", "Recommended", "In zone then", "Gain, points", "Overload then"];

fn summary(one: &EvaluatedService<'_>) -> Vec<HtmlCell> {
    let name = one.service.key.to_string();
    let figures = |mechanism: Mechanism| outcome_of(one, mechanism).map(|o| &o.figures);
    let in_zone = |mechanism| figures(mechanism).map_or_else(String::new, |f| percent(f.in_zone));
    let overload = figures(one.advice.mechanism).map_or_else(String::new, |f| percent(f.max_overload));
    vec![
        HtmlCell::link(&name, &format!("#{name}")),
        HtmlCell::text(one.result.current.as_str()),
        in_zone(one.result.current).into(),
        HtmlCell::text(one.advice.mechanism.as_str()),
        in_zone(one.advice.mechanism).into(),
        format!("{:+.1}", 100.0 * one.advice.gain).into(),
        overload.into(),
    ]
}

fn section(page: &mut HtmlPage, one: &EvaluatedService<'_>, args: &SimulateWhatIf) {
    let name = one.service.key.to_string();
    page.section_at(&name, &name, &endpoints(one));
    page.paragraph(&format!("Recommended: {}.", one.advice.reason));
    if let Some((mechanism, why)) = &one.advice.runner_up {
        page.remark(&format!("Not {}: {why}.", mechanism.as_str()));
    }
    if !one.advice.commands.is_empty() {
        page.verbatim(&(one.advice.commands.join("\n") + "\n"));
    }
    if !one.advice.yaml.is_empty() {
        page.details("The same as YAML");
        page.verbatim(&one.advice.yaml);
        page.end_details();
    }
    page.table(&heads(one, args), one.result.outcomes.iter().map(|o| cells(o, one, args)).collect());
    let (now, then) = (one.result.current, one.advice.mechanism);
    let shown = |o: &MechanismOutcome| o.mechanism == now || o.mechanism == then;
    let zones = zones(one);
    for outcome in one.result.outcomes.iter().filter(|o| shown(o)) {
        let role = match (outcome.mechanism == now, outcome.mechanism == then) {
            (true, true) => "now and recommended",
            (true, false) => "now",
            _ => "recommended",
        };
        matrix(page, outcome, &zones, &format!("{}, {role}", outcome.mechanism.as_str()));
    }
    page.remark(
        "Percent of the Service's traffic. Rows: from zone; columns: to zone; framed: stays in its zone.",
    );
    page.details("The other traffic distributions");
    for outcome in one.result.outcomes.iter().filter(|o| !shown(o)) {
        matrix(page, outcome, &zones, outcome.mechanism.as_str());
    }
    page.end_details();
}

/// All zones that send or receive, under any mechanism.
fn zones<'e>(one: &'e EvaluatedService<'_>) -> Vec<&'e str> {
    let pairs = one.result.outcomes.iter().flat_map(|o| o.figures.zones.keys());
    let zones: BTreeSet<&str> = pairs.flat_map(|(from, to)| [from.as_str(), to.as_str()]).collect();
    zones.into_iter().collect()
}

fn matrix(page: &mut HtmlPage, outcome: &MechanismOutcome, zones: &[&str], caption: &str) {
    let share = |from: &str, to: &str| {
        let pair = outcome.figures.zones.iter().find(|((f, t), _)| *f == from && *t == to);
        pair.map_or(0.0, |(_, share)| *share)
    };
    page.matrix(&zone_matrix(zones, share), caption);
}

fn heads(one: &EvaluatedService<'_>, args: &SimulateWhatIf) -> Vec<&'static str> {
    let mut heads = vec![
        "Traffic distribution",
        "In zone",
        "Largest overload",
        "Refused",
        "Idle endpoints",
        "If a zone fails",
        "Rolling update",
        "Slices written",
    ];
    match (one.gb, args.price) {
        (None, _) => {}
        (Some(_), None) => heads.push("GB/month across"),
        (Some(_), Some(_)) => heads.extend(["GB/month across", "Cost/month"]),
    }
    heads
}

fn cells(o: &MechanismOutcome, one: &EvaluatedService<'_>, args: &SimulateWhatIf) -> Vec<HtmlCell> {
    let f = &o.figures;
    let now = if o.mechanism == one.result.current { " (now)" } else { "" };
    let held_back = if o.held_back.is_some() { " (held back)" } else { "" };
    let then = |figures: Option<_>| figures.map_or_else(|| "-".to_owned(), short_hardship);
    let name = HtmlCell::text(&format!("{}{now}{held_back}", o.mechanism.as_str()));
    let mut cells = vec![
        percent(f.in_zone),
        percent(f.max_overload),
        percent(f.refused),
        f.idle.to_string(),
        then(o.worst_failure.as_ref().map(|(_, figures)| figures)),
        then(o.rolling_update.as_ref().map(|(_, figures)| figures)),
        o.slices_written.to_string(),
    ];
    cells.extend(crossing(f, one).map(|gb| format!("{gb:.1}")));
    cells.extend(cost(f, one, args).map(|cost| format!("{cost:.2}")));
    std::iter::once(name).chain(cells.into_iter().map(HtmlCell::from)).collect()
}
