//! The report as text: a summary, Services by avoidable cost with reason and fix, and nodes, within 80 columns.

use std::collections::BTreeMap;

use super::{checks, local};
use insight::status::convergence::DurationQuantiles;
use insight::status::{
    CanaryShare, NodeState, NodeStatus, ServiceDetail, ServiceStatus, SpillDemandStatus, SpillZoneStatus,
    StatusReport, StatusSummary, ZonePairStatus,
};
use output::count;
use output::units::{amount, listed, maybe, percent, plain, seconds, size};

/// Rows without `-o wide`.
const MAX_SERVICES: usize = 20;
const MAX_NODES: usize = 12;
/// Names that a line lists.
const MAX_NAMES: usize = 4;
/// Width of a terminal.
const COLUMNS: usize = 80;

pub(super) fn text(report: &StatusReport, wide: bool) -> String {
    let mut text = summary(report);
    match &report.detail {
        Some(detail) => {
            text += &services(report, wide);
            text += &checks::text(&report.health_checks, wide);
            text += &one(detail);
        }
        None => {
            text += &zones(&report.summary.zones, wide);
            text += &services(report, wide);
            text += &checks::text(&report.health_checks, wide);
            text += &nodes(&report.nodes, wide);
        }
    }
    let limits = report.limits.iter().map(|limit| paragraph("Note: ", &format!("{limit}.")));
    match report.limits.is_empty() {
        true => text,
        false => text + "\n" + &limits.collect::<String>(),
    }
}

/// Text after a head, wrapped to 80 columns under itself.
pub(super) fn paragraph(head: &str, text: &str) -> String {
    let indent = head.chars().count();
    let (mut lines, mut line) = (String::new(), head.to_owned());
    let mut is_empty = true;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            lines += &(std::mem::replace(&mut line, " ".repeat(indent)) + "\n");
            is_empty = true;
        }
        line += if is_empty { "" } else { " " };
        line += word;
        is_empty = false;
    }
    plain(&(lines + &line + "\n"))
}

fn line(head: &str, text: &str) -> String {
    paragraph(&format!("{head:<15}"), text)
}

/// Columns two blanks apart, some aligned to the right. A first cell that would make a line longer than 80 columns gets
/// a line of its own.
pub(super) fn columns(
    heads: &[&str],
    rows: &[Vec<String>],
    right: std::ops::Range<usize>,
    wide: bool,
) -> String {
    let length = |text: &str| text.chars().count();
    let mut widths: Vec<usize> = heads.iter().map(|head| length(head)).collect();
    for row in rows {
        row.iter().zip(&mut widths).for_each(|(cell, width)| *width = length(cell).max(*width));
    }
    let others: usize = widths.iter().skip(1).map(|width| width + 2).sum();
    if !wide && widths[0] + others > COLUMNS {
        widths[0] = COLUMNS.saturating_sub(others).max(length(heads[0]));
    }
    let padded = |at: usize, cell: &str| {
        let blanks = " ".repeat(widths[at].saturating_sub(length(cell)));
        if right.contains(&at) { format!("{blanks}{cell}") } else { format!("{cell}{blanks}") }
    };
    let joined = |cells: &[&str]| {
        let cells: Vec<String> = cells.iter().enumerate().map(|(at, cell)| padded(at, cell)).collect();
        cells.join("  ").trim_end().to_owned() + "\n"
    };
    let mut text = joined(heads);
    for row in rows {
        let mut cells: Vec<&str> = row.iter().map(String::as_str).collect();
        if length(cells[0]) > widths[0] {
            text += &format!("{}\n", cells[0]);
            cells[0] = "";
        }
        text += &joined(&cells);
    }
    plain(&text)
}

fn summary(report: &StatusReport) -> String {
    let summary = &report.summary;
    let in_zone = match (summary.in_zone, summary.in_zone_planned) {
        (Some(measured), Some(planned)) => {
            format!("{} measured, {} planned", percent(measured), percent(planned))
        }
        (Some(measured), None) => format!("{} measured", percent(measured)),
        (None, _) => "not measured yet".to_owned(),
    };
    let mut text = line("In zone", &in_zone);
    if let Some(bytes) = summary.cross_zone_bytes_per_day {
        text += &line("Across zones", &format!("{}/day{}", size(bytes), cost(summary)));
    }
    if let Some(bytes) = summary.saved_bytes_per_day {
        text += &line("Saved", &saved(summary, bytes));
    }
    text += &line("Overload", &overload(summary));
    text += &line("Nodes", &node_counts(report));
    let convergence = &summary.convergence;
    if convergence.slices.changes + convergence.kernels.changes > 0 {
        let parts = [("to slice", convergence.slices), ("to kernel", convergence.kernels)];
        let parts: Vec<String> = parts.iter().filter_map(|(to, times)| quantiles(to, times)).collect();
        text += &line("Convergence", &format!("Pod Ready {}", parts.join(", ")));
    }
    let honored = match summary.not_honored.as_slice() {
        [] => "every Service that requests a distribution".to_owned(),
        names => format!("not by {}: {}", count(names.len(), "Service"), listed(names, MAX_NAMES)),
    };
    text += &line("Honored", &honored);
    if let Some(since) = &summary.since {
        let minutes = summary.window_seconds.div_ceil(60);
        text += &line(
            "Measured",
            &format!("the last {}, counted since {since}", count(minutes as usize, "minute")),
        );
    }
    text
}

fn cost(summary: &StatusSummary) -> String {
    let Some(cost) = summary.cost_per_month else {
        return "; the price is unknown, see --price of the controller".to_owned();
    };
    let avoidable = summary.avoidable_per_month.filter(|money| *money > 0.0);
    let avoidable = avoidable.map(|money| format!(", {} of it avoidable", amount(money)));
    format!(", {} {}/month{}", amount(cost), summary.currency, avoidable.unwrap_or_default())
}

fn saved(summary: &StatusSummary, bytes: f64) -> String {
    let money =
        summary.saved_per_month.map(|money| format!(", {} {}/month", amount(money), summary.currency));
    let sign = if bytes < 0.0 { "-" } else { "" };
    format!("{sign}{}/day{} against an even spread", size(bytes.abs()), money.unwrap_or_default())
}

fn overload(summary: &StatusSummary) -> String {
    match (summary.worst_overload, &summary.worst_overload_service) {
        (Some(load), Some(service)) => {
            format!("{} above the fair share at most ({service}, planned)", percent(load))
        }
        (Some(_), None) => "none planned".to_owned(),
        (None, _) => "not evaluated yet".to_owned(),
    }
}

fn node_counts(report: &StatusReport) -> String {
    let nodes = &report.summary.nodes;
    let mut parts = vec![format!("{} current", nodes.current)];
    for (state, names) in [("behind", &nodes.behind), ("silent", &nodes.silent)] {
        if !names.is_empty() {
            parts.push(format!("{} {state} ({})", names.len(), listed(names, MAX_NAMES)));
        }
    }
    if nodes.without_proxy > 0 {
        parts.push(format!("{} without a Zoneward node proxy", nodes.without_proxy));
    }
    parts.join(", ")
}

fn quantiles(to: &str, times: &DurationQuantiles) -> Option<String> {
    let (p50, p99) = (times.p50?, times.p99?);
    Some(format!("{to} p50\u{a0}{} p99\u{a0}{}", seconds(p50), seconds(p99)))
}

fn maybe_percent(share: Option<f64>) -> String {
    maybe(share.map(percent))
}

fn maybe_amount(money: Option<f64>) -> String {
    maybe(money.map(amount))
}

/// From zone (rows) to zone (columns): measured share, and the planned one where it differs.
fn zones(pairs: &[ZonePairStatus], wide: bool) -> String {
    let mut names: Vec<&str> = pairs.iter().flat_map(|pair| [pair.from.as_str(), pair.to.as_str()]).collect();
    names.sort_unstable();
    names.dedup();
    if names.len() < 2 || (names.len() > 6 && !wide) {
        return String::new();
    }
    let heads: Vec<&str> = std::iter::once("FROM \\ TO").chain(names.iter().copied()).collect();
    let mut rows = Vec::new();
    for from in &names {
        let cell = |to: &&str| match pairs.iter().find(|pair| pair.from == *from && pair.to == **to) {
            Some(pair) => match pair.planned {
                Some(planned) => format!("{} ({})", percent(pair.measured), percent(planned)),
                None => percent(pair.measured),
            },
            None => "-".to_owned(),
        };
        rows.push(std::iter::once((*from).to_owned()).chain(names.iter().map(cell)).collect());
    }
    let right = 1..heads.len();
    format!("\nTraffic by zone, measured (planned):\n{}", columns(&heads, &rows, right, wide))
}

fn services(report: &StatusReport, wide: bool) -> String {
    if report.services.is_empty() {
        return "\nNo Services here; -A shows those of all namespaces.\n".to_owned();
    }
    let shown = if wide { report.services.len() } else { report.services.len().min(MAX_SERVICES) };
    let services = &report.services[..shown];
    let mut text = format!("\n{}", service_table(services, &report.summary.currency, wide));
    let hidden = report.services.len() - shown;
    if hidden > 0 {
        text += &format!("... and {}: -o wide shows all\n", count(hidden, "more Service"));
    }
    for service in services.iter().filter(|s| s.fix.is_some() || !s.honored) {
        text += &remark(service, &report.summary.currency);
    }
    text + &other_reasons(services)
}

fn service_table(services: &[ServiceStatus], currency: &str, wide: bool) -> String {
    let mut heads = vec!["SERVICE", "MECHANISM", "MEAS", "PLAN", "BEST", "LOAD", "COST", "SAVE"];
    if wide {
        heads.extend(["BYTES/DAY", "ACROSS/DAY", "CONN/S", "HONORED"]);
    }
    let row = |service: &ServiceStatus| {
        let mut row = vec![
            service.key(),
            if service.mechanism.is_empty() { "-".to_owned() } else { service.mechanism.clone() },
            maybe_percent(service.in_zone.measured),
            maybe_percent(service.in_zone.planned),
            maybe_percent(service.in_zone.best),
            service.worst_overload.map_or_else(|| "-".to_owned(), |load| format!("+{}", percent(load))),
            maybe_amount(service.cost_per_month),
            maybe_amount(service.avoidable_per_month),
        ];
        if wide {
            row.extend([
                service.bytes_per_day.map_or_else(|| "-".to_owned(), size),
                service.cross_zone_bytes_per_day.map_or_else(|| "-".to_owned(), size),
                service.connections_per_second.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}")),
                if service.honored { "yes" } else { "no" }.to_owned(),
            ]);
        }
        row
    };
    let rows: Vec<Vec<String>> = services.iter().map(row).collect();
    format!(
        "Share in zone: measured, planned, best possible; planned overload; {currency} a month.\n{}",
        columns(&heads, &rows, 2..heads.len(), wide)
    )
}

/// Why, the fix, and what it would do.
fn remark(service: &ServiceStatus, currency: &str) -> String {
    let mut text = format!("\n{}{}\n", service.key(), if service.honored { "" } else { " (not honored)" });
    if let Some(reason) = &service.reason {
        text += &paragraph("  why     ", reason);
    }
    let Some(fix) = &service.fix else { return text };
    // Two lines that a shell joins again.
    let (words, change) = match fix.find(" -p ").or_else(|| fix.rfind(' ')) {
        Some(at) => fix.split_at(at),
        None => (fix.as_str(), ""),
    };
    text += &format!("  fix     {words} \\\n            {}\n", change.trim_start());
    if let Some(effect) = &service.effect {
        let before = service.in_zone.measured.or(service.in_zone.planned);
        let load = effect.worst_overload - service.worst_overload.unwrap_or(0.0);
        let money = effect.cost_per_month.map(|m| format!(", {} {currency}/month", amount(m)));
        text += &paragraph(
            "  effect  ",
            &format!(
                "{} to {} in zone{}, overload {}{}",
                maybe_percent(before),
                percent(effect.in_zone),
                money.unwrap_or_default(),
                if load < 0.0 { "-" } else { "+" },
                percent(load.abs())
            ),
        );
    }
    text
}

/// Reasons without a command, each with its Services.
fn other_reasons(services: &[ServiceStatus]) -> String {
    let mut by_reason: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for service in services.iter().filter(|s| s.fix.is_none() && s.honored) {
        if let Some(reason) = &service.reason {
            by_reason.entry(reason).or_default().push(service.key());
        }
    }
    let mut text = String::new();
    for (reason, names) in by_reason {
        text += &format!("\n{}", paragraph("", &listed(&names, MAX_NAMES)));
        text += &paragraph("  why     ", reason);
    }
    text
}

fn nodes(nodes: &[NodeStatus], wide: bool) -> String {
    if nodes.is_empty() {
        return "\nNo node runs a Zoneward node proxy.\n".to_owned();
    }
    let shown = if wide { nodes.len() } else { nodes.len().min(MAX_NODES) };
    let heads = ["NODE", "ZONE", "STATE", "BEHIND", "FAILED", "REPAIRS", "LOST", "REPORTED"];
    let row = |node: &NodeStatus| {
        let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        let services = |number: usize| if number == 0 { "-".to_owned() } else { count(number, "Service") };
        vec![
            node.name.clone(),
            node.zone.clone().unwrap_or_else(|| "-".to_owned()),
            node.state.as_str().to_owned(),
            services(node.services_behind),
            services(node.failed_services.len()),
            number(node.repairs),
            number(node.lost_events),
            format!("{} s ago", node.report_age_seconds),
        ]
    };
    let rows: Vec<Vec<String>> = nodes[..shown].iter().map(row).collect();
    let mut text = format!("\n{}", columns(&heads, &rows, 5..8, wide));
    for node in nodes.iter().filter(|node| !node.failed_services.is_empty()) {
        text += &paragraph(&format!("{} failed: ", node.name), &listed(&node.failed_services, MAX_NAMES));
    }
    for (node, last) in nodes.iter().filter_map(|node| Some((node, node.last_outage.as_ref()?))) {
        let (source, ended) =
            (if last.from_file { " of its snapshot" } else { "" }, local::time(last.ended_at));
        let said = format!("objects{source} were {} s old when the API was back, {ended}", last.age_seconds);
        text += &paragraph(&format!("{} served alone: ", node.name), &said);
    }
    let hidden = nodes.len() - shown;
    let current = nodes[shown..].iter().all(|node| node.state == NodeState::Current);
    let rest = match (hidden, current) {
        (0, _) => String::new(),
        (hidden, true) => format!("... and {}, all current: -o wide shows all\n", count(hidden, "more node")),
        (hidden, false) => format!("... and {}: -o wide shows all\n", count(hidden, "more node")),
    };
    text + &rest
}

fn one(detail: &ServiceDetail) -> String {
    let mut text = String::new();
    if !detail.zones.is_empty() {
        let heads = ["FROM", "DEMAND", "ENDPOINTS", "MODE", "TO", "PLANNED", "MEASURED"];
        let mut rows = Vec::new();
        for row in &detail.zones {
            for (at, flow) in row.flows.iter().enumerate() {
                let first = |text: String| if at == 0 { text } else { String::new() };
                rows.push(vec![
                    first(row.from.clone()),
                    first(percent(row.demand)),
                    first(row.endpoints.to_string()),
                    first(row.mode.clone()),
                    if flow.to.is_empty() { "(no zone)".to_owned() } else { flow.to.clone() },
                    percent(flow.planned),
                    maybe_percent(flow.measured),
                ]);
            }
        }
        text += &format!("\n{}", columns(&heads, &rows, 5..7, false));
        text += "\nWhy, as `zoneward trace select` says it:\n";
        for row in &detail.zones {
            text += &format!("  from {}\n", row.from);
            for why in &row.why {
                text += &paragraph("    ", &format!("{}: {}", why.rule, why.detail));
            }
        }
    }
    if let Some(demand) = &detail.spill_demand {
        text += &spill_demand(demand);
    }
    if !detail.conditions.is_empty() {
        text += "\nConditions:\n";
        for condition in &detail.conditions {
            let kind = condition.kind.trim_start_matches("zoneward.dev/TrafficDistribution");
            let head = format!("  {kind:<11}{:<8}", condition.status);
            text += &paragraph(&head, &format!("{}: {}", condition.reason, condition.message));
        }
    }
    if !detail.canary.is_empty() {
        let row = |share: &CanaryShare| {
            let shares = [percent(share.planned), maybe_percent(share.measured)];
            [share.route.clone(), share.backend.clone()].into_iter().chain(shares).collect()
        };
        let rows: Vec<Vec<String>> = detail.canary.iter().map(row).collect();
        text += &format!("\n{}", columns(&["ROUTE", "BACKEND", "PLANNED", "MEASURED"], &rows, 2..4, false));
    }
    if !detail.events.is_empty() {
        text += "\nEvents:\n";
        for event in &detail.events {
            let times = if event.count > 1 { format!(" (x{})", event.count) } else { String::new() };
            text += &format!("  {} {} {}{times}\n", event.time, event.kind, event.reason);
            text += &paragraph("    ", &event.message);
        }
    }
    text
}

/// What Spill rests on, and what it would do on measured demand.
fn spill_demand(demand: &SpillDemandStatus) -> String {
    let row = |zone: &SpillZoneStatus| {
        let rate = zone.connections_per_second.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"));
        let share =
            if zone.is_spread { format!("{} (spread)", percent(zone.share)) } else { percent(zone.share) };
        vec![zone.zone.clone(), rate, share, percent(zone.cpu_share)]
    };
    let rows: Vec<Vec<String>> = demand.zones.iter().map(row).collect();
    let table = columns(&["ZONE", "CONNECTIONS/S", "MEASURED", "BY CPU"], &rows, 1..4, false);
    let figures =
        |in_zone, load| format!("{} in zone, highest load {load:.2} of the fair share", percent(in_zone));
    let now = figures(demand.in_zone, demand.highest_load);
    let then = figures(demand.measured_in_zone, demand.measured_highest_load);
    let keep = demand.keep.as_deref().unwrap_or("none");
    let proved = demand.proved.as_deref().unwrap_or("none yet");
    let mut text = format!("\nDemand of Spill ({}):\n{table}", demand.mode);
    for zone in &demand.zones {
        let Some(suspected) = &zone.suspected_node else { continue };
        let what = format!(
            "{}: node {} reports {:.1} connections/s, and no other node more than {:.1}: other zones keep no more because of it",
            zone.zone,
            suspected.node,
            suspected.connections_per_second,
            suspected.next_connections_per_second
        );
        text += &paragraph("  ", &what);
    }
    text += &paragraph("  now:      ", &now);
    text + &paragraph(
        "  measured: ",
        &format!("{then}; zoneward.dev/keep {keep}, zoneward.dev/proved {proved}"),
    )
}

/// Live rates, for `zoneward top`.
pub(super) fn rates(report: &StatusReport) -> String {
    let mut text = summary(report);
    let mut busy: Vec<&ServiceStatus> =
        report.services.iter().filter(|s| s.connections_per_second.is_some()).collect();
    busy.sort_by(|a, b| {
        let bytes = |s: &ServiceStatus| s.bytes_per_day.unwrap_or(0.0);
        bytes(b).total_cmp(&bytes(a))
    });
    if busy.is_empty() {
        return text + "\nNo traffic in the last minute.\n";
    }
    let row = |service: &&ServiceStatus| {
        let rate = |bytes: Option<f64>| bytes.map_or_else(|| "-".to_owned(), |bytes| size(bytes / 86_400.0));
        vec![
            service.key(),
            service.connections_per_second.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}")),
            rate(service.bytes_per_day),
            rate(service.cross_zone_bytes_per_day),
            maybe_percent(service.in_zone.measured),
            maybe_percent(service.in_zone.planned),
        ]
    };
    let rows: Vec<Vec<String>> = busy.iter().take(MAX_SERVICES).map(row).collect();
    let heads = ["SERVICE", "CONN/S", "BYTES/S", "ACROSS/S", "IN ZONE", "PLANNED"];
    text += &format!("\n{}", columns(&heads, &rows, 1..6, false));
    text
}

#[cfg(test)]
mod tests {
    use insight::status::SuspectedNodeStatus;

    use super::*;

    #[test]
    fn a_long_name_gets_a_line_of_its_own() {
        let row = |name: &str| vec![name.to_owned(), "x".repeat(50), "1".to_owned()];
        let text = columns(&["NAME", "B", "C"], &[row("short"), row(&"n".repeat(40))], 2..3, false);
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
        assert_eq!(text.lines().count(), 4);
        assert_eq!(text.lines().nth(2), Some("n".repeat(40).as_str()));
    }

    #[test]
    fn a_suspected_node_is_named_below_the_demand_of_its_zone() {
        let suspected_node = SuspectedNodeStatus {
            node: "n7".to_owned(),
            connections_per_second: 50.0,
            next_connections_per_second: 2.6,
        };
        let zone = SpillZoneStatus {
            zone: "zone-c".to_owned(),
            connections_per_second: Some(57.5),
            share: 0.1,
            is_spread: true,
            suspected_node: Some(suspected_node),
            ..SpillZoneStatus::default()
        };
        let text = spill_demand(&SpillDemandStatus { zones: vec![zone], ..SpillDemandStatus::default() });
        let words = "  zone-c: node n7 reports 50.0 connections/s, and no other node more than 2.6:";
        assert!(text.lines().any(|line| line.starts_with(words)), "{text}");
    }

    #[test]
    fn paragraphs_are_wrapped_under_their_head() {
        let text = paragraph("  why     ", &"word ".repeat(40));
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with("          word")), "{text}");
    }
}
