//! The report as text: a summary, Services by avoidable cost with reason and fix, and nodes, within 80 columns.

use output::{align_right, count, render, table_within, wrapped};
use plan::status::convergence::DurationQuantiles;
use plan::status::{
    NodeState, NodeStatus, ServiceDetail, ServiceStatus, StatusReport, StatusSummary, ZonePairStatus,
};

/// Rows without `-o wide`.
const MAX_SERVICES: usize = 20;
const MAX_NODES: usize = 12;
/// Names that a line lists.
const MAX_NAMES: usize = 4;
const INDENT: &str = "               ";

pub(super) fn text(report: &StatusReport, wide: bool) -> String {
    let mut text = summary(report);
    match &report.detail {
        Some(detail) => {
            text += &services(report, wide);
            text += &one(detail);
        }
        None => {
            text += &zones(&report.summary.zones, wide);
            text += &services(report, wide);
            text += &nodes(&report.nodes, wide);
        }
    }
    let limits = report.limits.iter().map(|limit| wrapped(&format!("Note: {limit}."), "  "));
    match report.limits.is_empty() {
        true => text,
        false => text + "\n" + &limits.collect::<String>(),
    }
}

fn line(head: &str, text: &str) -> String {
    wrapped(&format!("{head:<15}{text}"), INDENT)
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
        names => format!("not by {}: {}", count(names.len(), "Service"), listed(names)),
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
            parts.push(format!("{} {state} ({})", names.len(), listed(names)));
        }
    }
    if nodes.without_proxy > 0 {
        parts.push(format!("{} without a Zoneward node proxy", nodes.without_proxy));
    }
    parts.join(", ")
}

fn quantiles(to: &str, times: &DurationQuantiles) -> Option<String> {
    let (p50, p99) = (times.p50?, times.p99?);
    Some(format!("{to} p50 {} p99 {}", seconds(p50), seconds(p99)))
}

fn seconds(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.0} ms", seconds * 1e3) } else { format!("{seconds:.1} s") }
}

fn listed(names: &[String]) -> String {
    let shown: Vec<&str> = names.iter().take(MAX_NAMES).map(String::as_str).collect();
    let more = names.len() - shown.len();
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", shown.join(", "))
}

fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent > 99.0 && percent < 100.0 || percent > 0.0 && percent < 1.0 {
        return format!("{percent:.1} %");
    }
    format!("{percent:.0} %")
}

fn maybe_percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), percent)
}

fn amount(money: f64) -> String {
    if money.abs() < 10.0 { format!("{money:.2}") } else { format!("{money:.0}") }
}

fn maybe_amount(money: Option<f64>) -> String {
    money.map_or_else(|| "-".to_owned(), amount)
}

fn size(bytes: f64) -> String {
    let units = ["B", "KB", "MB", "GB", "TB", "PB"];
    let mut value = bytes;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    if value < 10.0 && unit > 0 {
        format!("{value:.1} {}", units[unit])
    } else {
        format!("{value:.0} {}", units[unit])
    }
}

/// From zone (rows) to zone (columns): measured share, and the planned one where it differs.
fn zones(pairs: &[ZonePairStatus], wide: bool) -> String {
    let mut names: Vec<&str> = pairs.iter().flat_map(|pair| [pair.from.as_str(), pair.to.as_str()]).collect();
    names.sort_unstable();
    names.dedup();
    if names.len() < 2 || (names.len() > 6 && !wide) {
        return String::new();
    }
    let heads: Vec<String> =
        std::iter::once("FROM \\ TO".to_owned()).chain(names.iter().map(|name| (*name).to_owned())).collect();
    let mut table = table_within(&heads, wide);
    for from in &names {
        let cell = |to: &&str| match pairs.iter().find(|pair| pair.from == *from && pair.to == **to) {
            Some(pair) => match pair.planned {
                Some(planned) => format!("{} ({})", percent(pair.measured), percent(planned)),
                None => percent(pair.measured),
            },
            None => "-".to_owned(),
        };
        table.add_row(std::iter::once((*from).to_owned()).chain(names.iter().map(cell)).collect::<Vec<_>>());
    }
    align_right(&mut table, &(1..=names.len()).collect::<Vec<_>>());
    format!("\nTraffic by zone, measured (planned):\n{}", render(&table))
}

fn services(report: &StatusReport, wide: bool) -> String {
    if report.services.is_empty() {
        return "\nNo Services here; -A shows those of all namespaces.\n".to_owned();
    }
    let shown = if wide { report.services.len() } else { report.services.len().min(MAX_SERVICES) };
    let mut text = format!("\n{}", service_table(&report.services[..shown], wide));
    let hidden = report.services.len() - shown;
    if hidden > 0 {
        text += &format!("... and {}: -o wide shows all\n", count(hidden, "more Service"));
    }
    for service in report.services[..shown].iter().filter(|s| s.reason.is_some() || s.fix.is_some()) {
        text += &remark(service, &report.summary.currency);
    }
    text
}

fn service_table(services: &[ServiceStatus], wide: bool) -> String {
    let mut heads =
        vec!["SERVICE", "MECHANISM", "MEASURED", "PLANNED", "BEST", "OVERLOAD", "COST", "AVOIDABLE"];
    if wide {
        heads.extend(["BYTES/DAY", "ACROSS/DAY", "CONN/S", "HONORED"]);
    }
    let mut table = table_within(&heads, wide);
    for service in services {
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
        table.add_row(row);
    }
    align_right(&mut table, &(2..heads.len()).collect::<Vec<_>>());
    render(&table)
}

/// Why, the fix, and what it would do.
fn remark(service: &ServiceStatus, currency: &str) -> String {
    let mut text = format!("\n{}{}\n", service.key(), if service.honored { "" } else { " (not honored)" });
    if let Some(reason) = &service.reason {
        text += &wrapped(&format!("  why     {reason}"), "          ");
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
        text += &wrapped(
            &format!(
                "  effect  {} to {} in zone{}, overload {}{}",
                maybe_percent(before),
                percent(effect.in_zone),
                money.unwrap_or_default(),
                if load < 0.0 { "-" } else { "+" },
                percent(load.abs())
            ),
            "          ",
        );
    }
    text
}

fn nodes(nodes: &[NodeStatus], wide: bool) -> String {
    if nodes.is_empty() {
        return "\nNo node runs a Zoneward node proxy.\n".to_owned();
    }
    let shown = if wide { nodes.len() } else { nodes.len().min(MAX_NODES) };
    let heads = ["NODE", "ZONE", "STATE", "BEHIND", "FAILED", "REPAIRS", "LOST", "REPORT"];
    let mut table = table_within(&heads, wide);
    for node in &nodes[..shown] {
        let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        table.add_row(vec![
            node.name.clone(),
            node.zone.clone().unwrap_or_else(|| "-".to_owned()),
            node.state.as_str().to_owned(),
            if node.services_behind == 0 { "-".to_owned() } else { count(node.services_behind, "Service") },
            if node.failed_services.is_empty() { "-".to_owned() } else { listed(&node.failed_services) },
            number(node.repairs),
            number(node.lost_events),
            format!("{} s ago", node.report_age_seconds),
        ]);
    }
    let hidden = nodes.len() - shown;
    let current = nodes[shown..].iter().all(|node| node.state == NodeState::Current);
    let rest = match (hidden, current) {
        (0, _) => String::new(),
        (hidden, true) => format!("... and {}, all current: -o wide shows all\n", count(hidden, "more node")),
        (hidden, false) => format!("... and {}: -o wide shows all\n", count(hidden, "more node")),
    };
    format!("\n{}{rest}", render(&table))
}

fn one(detail: &ServiceDetail) -> String {
    let mut text = String::new();
    if !detail.zones.is_empty() {
        let mut table =
            table_within(&["FROM", "DEMAND", "ENDPOINTS", "MODE", "TO", "PLANNED", "MEASURED"], false);
        for row in &detail.zones {
            for (at, flow) in row.flows.iter().enumerate() {
                let first = |text: String| if at == 0 { text } else { String::new() };
                table.add_row(vec![
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
        align_right(&mut table, &[1, 2, 5, 6]);
        text += &format!("\n{}", render(&table));
        text += "\nWhy, as `zoneward trace select` says it:\n";
        for row in &detail.zones {
            text += &format!("  from {}\n", row.from);
            for why in &row.why {
                text += &wrapped(&format!("    {}: {}", why.rule, why.detail), "      ");
            }
        }
    }
    if !detail.conditions.is_empty() {
        text += "\nConditions:\n";
        for condition in &detail.conditions {
            let kind = condition.kind.trim_start_matches("zoneward.dev/TrafficDistribution");
            let head =
                format!("  {kind:<11}{:<8}{}: {}", condition.status, condition.reason, condition.message);
            text += &wrapped(&head, "                     ");
        }
    }
    if !detail.canary.is_empty() {
        let mut table = table_within(&["ROUTE", "BACKEND", "PLANNED", "MEASURED"], false);
        for share in &detail.canary {
            table.add_row(vec![
                share.route.clone(),
                share.backend.clone(),
                percent(share.planned),
                maybe_percent(share.measured),
            ]);
        }
        align_right(&mut table, &[2, 3]);
        text += &format!("\n{}", render(&table));
    }
    if !detail.events.is_empty() {
        text += "\nEvents:\n";
        for event in &detail.events {
            let times = if event.count > 1 { format!(" (x{})", event.count) } else { String::new() };
            let line = format!("  {} {} {}{times}: {}", event.time, event.kind, event.reason, event.message);
            text += &wrapped(&line, "    ");
        }
    }
    text
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
    let mut table = table_within(&["SERVICE", "CONN/S", "BYTES/S", "ACROSS/S", "IN ZONE", "PLANNED"], false);
    for service in busy.iter().take(MAX_SERVICES) {
        let rate = |bytes: Option<f64>| bytes.map_or_else(|| "-".to_owned(), |bytes| size(bytes / 86_400.0));
        table.add_row(vec![
            service.key(),
            service.connections_per_second.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}")),
            rate(service.bytes_per_day),
            rate(service.cross_zone_bytes_per_day),
            maybe_percent(service.in_zone.measured),
            maybe_percent(service.in_zone.planned),
        ]);
    }
    align_right(&mut table, &[1, 2, 3, 4, 5]);
    text += &format!("\n{}", render(&table));
    text
}
