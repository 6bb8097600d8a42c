//! Output of what-if: text, CSV and JSON.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Context, Result};
use model::Notice;
use plan::hints::Mechanism;
use serde_json::{Map, Value, json};
use sim::what_if::{MechanismOutcome, TrafficFigures, WhatIfEvaluator};

use super::{EvaluatedService, in_parallel};
use crate::commands::simulate::{DemandBy, ReportFormat, SimulateWhatIf};
use output::{align_right, count, notices_value, render, table_within, wrapped};

/// Maximum number of Services with commands below the summary.
const MOST_COMMANDS: usize = 10;

/// Cross-zone traffic in GB per month.
pub(super) fn crossing(figures: &TrafficFigures, one: &EvaluatedService<'_>) -> Option<f64> {
    Some(one.gb? * (1.0 - figures.in_zone - figures.refused).max(0.0))
}

pub(super) fn cost(
    figures: &TrafficFigures,
    one: &EvaluatedService<'_>,
    args: &SimulateWhatIf,
) -> Option<f64> {
    Some(crossing(figures, one)? * args.price?)
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

const HEADS: [&str; 13] = [
    "MECHANISM",
    "IN ZONE",
    "MAX OVERLOAD",
    "MEAN",
    "IDLE",
    "REFUSED",
    "SLICES",
    "HINTS",
    "GB/MONTH",
    "COST",
    "IF A ZONE FAILS",
    "ROLLING UPDATE",
    "+1 REPLICA",
];

fn cells(o: &MechanismOutcome, one: &EvaluatedService<'_>, args: &SimulateWhatIf) -> Vec<String> {
    let f = &o.figures;
    let none = || "-".to_owned();
    let mark = if o.mechanism == one.result.current { " *" } else { "" };
    let rest = if o.held_back.is_some() { " (held back)" } else { "" };
    vec![
        format!("{}{rest}{mark}", o.mechanism.as_str()),
        percent(f.in_zone),
        percent(f.max_overload),
        percent(f.mean_overload),
        f.idle.to_string(),
        percent(f.refused),
        o.slices_written.to_string(),
        o.hints_changed.to_string(),
        number(crossing(f, one), 1),
        number(cost(f, one, args), 2),
        o.worst_failure.as_ref().map_or_else(none, |(zone, f)| format!("{zone}: {}", hardship(f))),
        o.rolling_update.as_ref().map_or_else(none, |(ready, f)| format!("{ready} ready: {}", hardship(f))),
        o.replica_added
            .as_ref()
            .map_or_else(none, |(zone, f)| format!("{zone}: {} in zone", percent(f.in_zone))),
    ]
}

/// The worst of zone failure and rolling update.
fn hardship(figures: &TrafficFigures) -> String {
    match figures.refused > 1e-9 {
        true => format!("{} refused", percent(figures.refused)),
        false => format!("overload {}", percent(figures.max_overload)),
    }
}

fn heading(evaluated: &EvaluatedService<'_>) -> String {
    format!("{}: {}", evaluated.service.key, endpoints(evaluated))
}

/// Ready endpoints by zone, and what was measured.
pub(super) fn endpoints(evaluated: &EvaluatedService<'_>) -> String {
    let zones = evaluated.result.endpoints_by_zone.iter();
    let zones: Vec<String> = zones.map(|(zone, n)| format!("{zone} {n}")).collect();
    let measured = evaluated.measured_in_zone.map(|share| format!("; measured: {} in zone", percent(share)));
    format!("ready endpoints: {}{}", zones.join(", "), measured.unwrap_or_default())
}

pub(super) fn text(evaluated: &[EvaluatedService<'_>], args: &SimulateWhatIf) -> String {
    if evaluated.is_empty() {
        return "No Service to compare.\n".to_owned();
    }
    let rule = wrapped(&format!("Rule: {}.", sim::what_if::RULE), "");
    if args.input.all_namespaces {
        return summary(evaluated, args) + &rule;
    }
    let wide = args.format == ReportFormat::Wide;
    let mut text = String::new();
    for one in evaluated {
        text += &wrapped(&heading(one), "  ");
        text += &mechanisms(one, args, wide);
        text += &recommended(one);
        text += "\n";
    }
    text += &wrapped(
        &format!(
            "{}. * is the present or tried mechanism, ~ one whose hints are held back.",
            count(evaluated.len(), "Service")
        ),
        "",
    );
    text + &rule
}

/// One row per mechanism.
fn mechanisms(one: &EvaluatedService<'_>, args: &SimulateWhatIf, wide: bool) -> String {
    let (heads, rows): (Vec<&str>, Vec<Vec<String>>) = match wide {
        true => (HEADS.to_vec(), one.result.outcomes.iter().map(|o| cells(o, one, args)).collect()),
        false => {
            let rows = one.result.outcomes.iter().map(|o| narrow_cells(o, one, args));
            (narrow_heads(one, args), rows.collect())
        }
    };
    let mut table = table_within(&heads, wide);
    table.add_rows(rows);
    if !wide {
        align_right(&mut table, &(1..heads.len()).collect::<Vec<usize>>());
    }
    render(&table)
}

/// If traffic is known, cross-zone traffic and cost replace idle endpoints and the rollout.
fn narrow_heads(one: &EvaluatedService<'_>, args: &SimulateWhatIf) -> Vec<&'static str> {
    let mut heads = vec!["MECHANISM", "IN ZONE", "OVERLOAD", "REFUSED", "A ZONE FAILS"];
    match (one.gb, args.price) {
        (None, _) => heads.extend(["ROLLOUT", "IDLE"]),
        (Some(_), None) => heads.push("GB/MONTH"),
        (Some(_), Some(_)) => heads.extend(["GB/MONTH", "COST"]),
    }
    heads
}

fn narrow_cells(o: &MechanismOutcome, one: &EvaluatedService<'_>, args: &SimulateWhatIf) -> Vec<String> {
    let f = &o.figures;
    let then = |figures: Option<&TrafficFigures>| figures.map_or_else(|| "-".to_owned(), short_hardship);
    let mut cells = vec![
        format!("{}{}", o.mechanism.as_str(), marks(o, one)),
        percent(f.in_zone),
        percent(f.max_overload),
        percent(f.refused),
        then(o.worst_failure.as_ref().map(|(_, figures)| figures)),
    ];
    match (one.gb, args.price) {
        (None, _) => {
            let rollout = o.rolling_update.as_ref().map(|(_, figures)| figures);
            cells.extend([then(rollout), f.idle.to_string()]);
        }
        (Some(_), None) => cells.push(number(crossing(f, one), 1)),
        (Some(_), Some(_)) => cells.extend([number(crossing(f, one), 1), number(cost(f, one, args), 2)]),
    }
    cells
}

fn marks(o: &MechanismOutcome, one: &EvaluatedService<'_>) -> &'static str {
    match (o.mechanism == one.result.current, o.held_back.is_some()) {
        (true, true) => " *~",
        (true, false) => " *",
        (false, true) => " ~",
        (false, false) => "",
    }
}

/// `+28.6 %` load, or `50.0 % lost`.
pub(super) fn short_hardship(figures: &TrafficFigures) -> String {
    match figures.refused > 1e-9 {
        true => format!("{} lost", percent(figures.refused)),
        false => format!("+{}", percent(figures.max_overload)),
    }
}

/// The recommendation with reasons and commands.
fn recommended(one: &EvaluatedService<'_>) -> String {
    let mut text = wrapped(&format!("Recommended: {}.", one.advice.reason), "  ");
    if let Some((mechanism, why)) = &one.advice.runner_up {
        text += &wrapped(&format!("Not {}: {why}.", mechanism.as_str()), "  ");
    }
    if one.advice.has_blanks {
        text += &wrapped(
            "The input names neither the workload of the pods nor its template: -o json has YAML with placeholders.",
            "  ",
        );
    }
    for command in &one.advice.commands {
        text += &format!("{command}\n");
    }
    text
}

/// Highest gain first.
pub(super) fn by_gain<'e, 'w>(evaluated: &'e [EvaluatedService<'w>]) -> Vec<&'e EvaluatedService<'w>> {
    let mut order: Vec<&EvaluatedService<'_>> = evaluated.iter().collect();
    order.sort_by(|a, b| b.advice.gain.total_cmp(&a.advice.gain));
    order
}

pub(super) fn outcome_of<'e>(
    one: &'e EvaluatedService<'_>,
    mechanism: Mechanism,
) -> Option<&'e MechanismOutcome> {
    one.result.outcomes.iter().find(|o| o.mechanism == mechanism)
}

/// One row per Service, highest gain first, and the commands of the first ones.
fn summary(evaluated: &[EvaluatedService<'_>], args: &SimulateWhatIf) -> String {
    let wide = args.format == ReportFormat::Wide;
    let order = by_gain(evaluated);
    let heads = ["SERVICE", "NOW", "IN ZONE", "RECOMMENDED", "IN ZONE", "GAIN", "OVERLOAD"];
    let mut rows = table_within(&heads, wide);
    let of = |one: &EvaluatedService<'_>, mechanism| {
        outcome_of(one, mechanism).map(|o| (o.figures.in_zone, o.figures.max_overload)).unwrap_or_default()
    };
    for one in &order {
        let (now, _) = of(one, one.result.current);
        let (then, overload) = of(one, one.advice.mechanism);
        rows.add_row([
            one.service.key.to_string(),
            one.result.current.as_str().to_owned(),
            percent(now),
            one.advice.mechanism.as_str().to_owned(),
            percent(then),
            format!("{:+.1}", 100.0 * one.advice.gain),
            percent(overload),
        ]);
    }
    align_right(&mut rows, &[2, 4, 5, 6]);
    let mut text = render(&rows) + "\n";
    let changing: Vec<&&EvaluatedService<'_>> =
        order.iter().filter(|one| !one.advice.commands.is_empty()).collect();
    for one in changing.iter().take(MOST_COMMANDS) {
        text += &format!("# {}\n{}\n", one.service.key, one.advice.commands.join("\n"));
    }
    if changing.len() > MOST_COMMANDS {
        text += &format!("# and {} more: -o json has all of them\n", changing.len() - MOST_COMMANDS);
    }
    text += if changing.is_empty() { "" } else { "\n" };
    text + &wrapped(
        &format!("{}. Name one, with its -n, to see each mechanism.", count(evaluated.len(), "Service")),
        "",
    )
}

pub(super) fn csv(evaluated: &[EvaluatedService<'_>], args: &SimulateWhatIf) -> String {
    let mut text =
        "service,mechanism,current,programmed,in_zone_pct,refused_pct,max_overload_pct,mean_overload_pct,\
                    idle_endpoints,slices_written,hints_changed,cross_zone_gb,cost,zone_failure_max_overload_pct,\
                    zone_failure_refused_pct,rolling_update_in_zone_pct,rolling_update_max_overload_pct,\
                    replica_added_in_zone_pct,replica_added_max_overload_pct\n"
            .to_owned();
    for one in evaluated {
        for o in &one.result.outcomes {
            let f = &o.figures;
            let optional = |value: Option<f64>| value.map(|v| v.to_string()).unwrap_or_default();
            text += &format!(
                "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n",
                one.service.key,
                o.mechanism.as_str(),
                o.mechanism == one.result.current,
                o.programmed,
                100.0 * f.in_zone,
                100.0 * f.refused,
                100.0 * f.max_overload,
                100.0 * f.mean_overload,
                f.idle,
                o.slices_written,
                o.hints_changed,
                optional(crossing(f, one)),
                optional(cost(f, one, args)),
                optional(o.worst_failure.as_ref().map(|(_, f)| 100.0 * f.max_overload)),
                optional(o.worst_failure.as_ref().map(|(_, f)| 100.0 * f.refused)),
                optional(o.rolling_update.as_ref().map(|(_, f)| 100.0 * f.in_zone)),
                optional(o.rolling_update.as_ref().map(|(_, f)| 100.0 * f.max_overload)),
                optional(o.replica_added.as_ref().map(|(_, f)| 100.0 * f.in_zone)),
                optional(o.replica_added.as_ref().map(|(_, f)| 100.0 * f.max_overload)),
            );
        }
    }
    text
}

/// One line per Service, serialized separately: one tree for all would need too much memory and time.
pub(super) fn print_json(
    evaluated: &[EvaluatedService<'_>],
    evaluator: &WhatIfEvaluator,
    args: &SimulateWhatIf,
    notices: &[Notice],
) -> Result<()> {
    let shares: Map<String, Value> =
        evaluator.shares().iter().map(|(zone, share)| (zone.to_string(), json!(share))).collect();
    let demand = match args.demand {
        DemandBy::Nodes => "nodes",
        DemandBy::Cpu => "cpu",
        DemandBy::Measured => "measured",
    };
    let lines = in_parallel(evaluated, || (), |(), one| service_value(one, args).to_string());
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut write = || -> std::io::Result<()> {
        write!(
            out,
            "{{\"demand\": \"{demand}\",\n\"rule\": {},\n\"shares\": {},\n\"services\": [",
            json!(sim::what_if::RULE),
            Value::Object(shares.clone())
        )?;
        for (at, line) in lines.iter().enumerate() {
            let comma = if at == 0 { "\n" } else { ",\n" };
            write!(out, "{comma}{line}")?;
        }
        writeln!(out, "],\n\"notices\": {}}}", notices_value(notices))?;
        out.flush()
    };
    write().context("writing the result")
}

fn service_value(one: &EvaluatedService<'_>, args: &SimulateWhatIf) -> Value {
    let endpoints: Map<String, Value> =
        one.result.endpoints_by_zone.iter().map(|(zone, n)| (zone.to_string(), json!(n))).collect();
    let mechanisms: Vec<Value> = one.result.outcomes.iter().map(|o| outcome_value(o, one, args)).collect();
    let measured = one.measured_in_zone.map(|share| json!({"gb": one.gb, "in_zone_pct": 100.0 * share}));
    json!({
        "service": one.service.key.to_string(),
        "current": one.result.current.as_str(),
        "endpoints": endpoints,
        "measured": measured,
        "mechanisms": mechanisms,
        "recommendation": {
            "mechanism": one.advice.mechanism.as_str(),
            "reason": one.advice.reason,
            "runner_up": one.advice.runner_up.as_ref()
                .map(|(mechanism, why)| json!({"mechanism": mechanism.as_str(), "why_not": why})),
            "gain_pct": 100.0 * one.advice.gain,
            "commands": one.advice.commands,
            "placement": one.advice.placement,
            "yaml": one.advice.yaml,
        },
    })
}

fn outcome_value(o: &MechanismOutcome, one: &EvaluatedService<'_>, args: &SimulateWhatIf) -> Value {
    let mut value = figures_value(&o.figures);
    value["zones"] = zones_value(&o.figures);
    value["mechanism"] = json!(o.mechanism.as_str());
    value["programmed"] = json!(o.programmed);
    value["held_back"] = json!(o.held_back);
    value["slices_written"] = json!(o.slices_written);
    value["hints_changed"] = json!(o.hints_changed);
    value["cross_zone_gb"] = json!(crossing(&o.figures, one));
    value["cost"] = json!(cost(&o.figures, one, args));
    value["zone_failure"] = then_value(o.worst_failure.as_ref(), "zone", |zone| json!(zone.as_str()));
    value["replica_added"] = then_value(o.replica_added.as_ref(), "zone", |zone| json!(zone.as_str()));
    value["rolling_update"] = then_value(o.rolling_update.as_ref(), "ready", |ready| json!(ready));
    value
}

fn then_value<T>(then: Option<&(T, TrafficFigures)>, field: &str, shown: impl Fn(&T) -> Value) -> Value {
    then.map_or(Value::Null, |(what, figures)| {
        let mut value = figures_value(figures);
        value[field] = shown(what);
        value
    })
}

fn figures_value(f: &TrafficFigures) -> Value {
    json!({
        "in_zone_pct": 100.0 * f.in_zone,
        "refused_pct": 100.0 * f.refused,
        "max_overload_pct": 100.0 * f.max_overload,
        "mean_overload_pct": 100.0 * f.mean_overload,
        "idle_endpoints": f.idle,
    })
}

/// Only for the healthy cluster, to limit the output.
fn zones_value(f: &TrafficFigures) -> Value {
    let mut zones: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for ((from, to), share) in &f.zones {
        zones.entry(from).or_default().insert(to.to_string(), json!(share));
    }
    json!(zones)
}
