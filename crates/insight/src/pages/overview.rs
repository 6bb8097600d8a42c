//! The first page: what crosses zones, what it costs, and what to change first.

use crate::ledger::TrafficMinute;
use crate::status::{ServiceStatus, StatusReport, StatusSummary, ZonePairStatus};
use output::html::{HtmlMatrix, MatrixCell, escaped};

use crate::pages::figures::{HeadFigure, figure_list};
use crate::pages::history::history_plot;
use crate::pages::services::fix_item;
use crate::pages::table::anchor;
use crate::pages::target::service_link;
use crate::pages::units::{amount, count, listed, maybe, percent, seconds, size};
use crate::pages::{NavEntry, Page, PageFragment};

/// Services with a fix on the first page.
const MAX_FIXES: usize = 5;
/// Names in a remark.
const MAX_NAMES: usize = 3;
/// A share differs from its plan if it is off by more.
const AGREES_WITHIN: f64 = 0.1;
/// More zones make a matrix that no screen holds.
const MAX_ZONES: usize = 12;

pub fn overview_page(report: &StatusReport, history: &[TrafficMinute]) -> Page {
    Page {
        title: "Overview".to_owned(),
        nav: NavEntry::Overview,
        fragments: vec![
            PageFragment::new("figures", head_figures(report, true)),
            PageFragment::new("matrix", zone_section(&report.summary)),
            PageFragment::new("history", history_section(history, report.summary.since.as_deref())),
            PageFragment::new("fixes", fixes(report)),
            PageFragment::new("limits", limits(&report.limits)),
        ],
    }
}

pub(crate) fn history_section(history: &[TrafficMinute], since: Option<&str>) -> String {
    format!("<h2>Traffic over time</h2>\n{}", history_plot(history, since))
}

/// `links` to other pages, which a file does not have.
pub(crate) fn head_figures(report: &StatusReport, links: bool) -> String {
    let summary = &report.summary;
    let in_zone = match summary.in_zone {
        Some(share) => HeadFigure::new("In zone", percent(share)),
        None => HeadFigure::new("In zone", "not measured yet"),
    };
    let planned = summary.in_zone_planned;
    let below = planned.zip(summary.in_zone).is_some_and(|(plan, share)| plan - share > AGREES_WITHIN);
    let plan = planned.map(|share| format!("{} planned", percent(share)));
    let across = match summary.cross_zone_bytes_per_day {
        Some(bytes) => HeadFigure::new("Across zones", format!("{}/day", size(bytes))),
        None => HeadFigure::new("Across zones", "-"),
    };
    figure_list(&[
        in_zone.remark(&plan.unwrap_or_default()).attention(below),
        across.remark(&measured_text(summary)),
        cost(summary),
        saved(summary),
        overload(summary, links),
        nodes(report),
        convergence(summary),
        honored(summary),
    ])
}

fn measured_text(summary: &StatusSummary) -> String {
    match summary.since {
        Some(_) => {
            let minutes = summary.window_seconds.div_ceil(60);
            format!("by the last {}", count(minutes as usize, "minute"))
        }
        None => "no traffic is measured".to_owned(),
    }
}

fn cost(summary: &StatusSummary) -> HeadFigure {
    let Some(cost) = summary.cost_per_month else {
        let why = if summary.in_zone.is_some() { "the price is unknown: set --price" } else { "" };
        return HeadFigure::new("Cost per month", "-").remark(why);
    };
    let avoidable = summary.avoidable_per_month.filter(|money| *money > 0.0);
    let remark = avoidable.map(|money| format!("{} {} avoidable", amount(money), summary.currency));
    HeadFigure::new("Cost per month", format!("{} {}", amount(cost), summary.currency))
        .remark(&remark.unwrap_or_else(|| "nothing avoidable is known".to_owned()))
}

/// Compared with an even spread over all endpoints.
fn saved(summary: &StatusSummary) -> HeadFigure {
    let name = "Saved per month";
    let Some(bytes) = summary.saved_bytes_per_day else { return HeadFigure::new(name, "-") };
    let than = if bytes < 0.0 { "more" } else { "less" };
    let remark = format!("{}/day {than} across zones than by an even spread", size(bytes.abs()));
    let value = summary.saved_per_month.map(|money| format!("{} {}", amount(money), summary.currency));
    HeadFigure::new(name, maybe(value)).remark(&remark)
}

fn overload(summary: &StatusSummary, links: bool) -> HeadFigure {
    match (summary.worst_overload, &summary.worst_overload_service) {
        (Some(load), Some(service)) => {
            let link = match service.split_once('/') {
                Some((namespace, name)) if links => anchor(service, &service_link(namespace, name)),
                _ => escaped(service),
            };
            HeadFigure::new("Worst overload", format!("+{}", percent(load)))
                .remark_html(format!("{link}, by the plan"))
                .attention(load > 0.2)
        }
        (Some(_), None) => HeadFigure::new("Worst overload", "none").remark("by the plan"),
        (None, _) => HeadFigure::new("Worst overload", "not evaluated yet"),
    }
}

pub(crate) fn nodes(report: &StatusReport) -> HeadFigure {
    let nodes = &report.summary.nodes;
    let mut parts = Vec::new();
    for (state, names) in [("behind", &nodes.behind), ("silent", &nodes.silent)] {
        if !names.is_empty() {
            parts.push(format!("{} {state}: {}", names.len(), listed(names, MAX_NAMES)));
        }
    }
    if nodes.without_proxy > 0 {
        parts.push(format!("{} without a Zoneward node proxy", nodes.without_proxy));
    }
    let needs_attention = !nodes.behind.is_empty() || !nodes.silent.is_empty();
    let remark = if parts.is_empty() { "none behind, none silent".to_owned() } else { parts.join("; ") };
    HeadFigure::new("Nodes", format!("{} current", nodes.current)).remark(&remark).attention(needs_attention)
}

pub(crate) fn convergence(summary: &StatusSummary) -> HeadFigure {
    let figures = &summary.convergence;
    let remark = |p50: Option<f64>| p50.map(|p50| format!("p50 {}", seconds(p50))).unwrap_or_default();
    let slice = figures.slices.p99.map(|p99| format!("p99 {}", seconds(p99)));
    match (figures.kernels.p99, slice) {
        (Some(kernel), slice) => {
            let slice = slice.map(|slice| format!("; to EndpointSlice {slice}")).unwrap_or_default();
            HeadFigure::new("Pod Ready to kernel", format!("p99 {}", seconds(kernel)))
                .remark(&(remark(figures.kernels.p50) + &slice))
        }
        (None, Some(slice)) => {
            HeadFigure::new("Pod Ready to EndpointSlice", slice).remark(&remark(figures.slices.p50))
        }
        (None, None) => HeadFigure::new("Convergence", "-").remark("no pod has become ready yet"),
    }
}

fn honored(summary: &StatusSummary) -> HeadFigure {
    match summary.not_honored.as_slice() {
        [] => HeadFigure::new("Services", summary.services.to_string())
            .remark("every requested distribution is honored"),
        names => HeadFigure::new("Services", summary.services.to_string())
            .remark(&format!("{} not honored: {}", names.len(), listed(names, MAX_NAMES)))
            .attention(true),
    }
}

pub(crate) fn zone_section(summary: &StatusSummary) -> String {
    let head = "<h2>Traffic between zones</h2>\n";
    let pairs = &summary.zones;
    if pairs.is_empty() {
        let text = "No traffic is measured yet: node proxies report every 30 seconds.";
        return format!("{head}<p class=\"faint\">{text}</p>\n");
    }
    let matrix = zones_matrix(pairs, &summary.currency);
    let legend = "From the zone at the left to the zone at the top: the measured share of what the zone sends, the planned \
                  one, bytes per day, and cost per month. Darker is more; a frame is traffic that stays in its zone; a \
                  dashed underline differs from the plan by more than 10 points.";
    format!(
        "{head}<p class=\"faint\">{legend}</p>\n<div class=\"scroll\">{}</div>\n{}",
        matrix.html(),
        hidden_zones(pairs)
    )
}

fn zone_names(pairs: &[ZonePairStatus]) -> Vec<&str> {
    let mut names: Vec<&str> = pairs.iter().flat_map(|pair| [pair.from.as_str(), pair.to.as_str()]).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn hidden_zones(pairs: &[ZonePairStatus]) -> String {
    let hidden = zone_names(pairs).len().saturating_sub(MAX_ZONES);
    match hidden {
        0 => String::new(),
        hidden => format!(
            "<p class=\"faint\">{} not shown: see zoneward status -o json.</p>\n",
            count(hidden, "more zone")
        ),
    }
}

fn zones_matrix(pairs: &[ZonePairStatus], currency: &str) -> HtmlMatrix {
    let names: Vec<&str> = zone_names(pairs).into_iter().take(MAX_ZONES).collect();
    let cell = |from: &str, to: &str| match pairs.iter().find(|pair| pair.from == from && pair.to == to) {
        None => MatrixCell { text: "-".to_owned(), shade: 0.0, framed: from == to, marked: false },
        Some(pair) => {
            let planned = pair.planned.map(|share| format!("\nplan {}", percent(share)));
            let cost = pair.cost_per_month.filter(|cost| *cost > 0.0);
            let cost = cost.map(|cost| format!("\n{} {currency}", amount(cost)));
            MatrixCell {
                text: format!(
                    "{}{}\n{}{}",
                    percent(pair.measured),
                    planned.unwrap_or_default(),
                    size(pair.bytes_per_day),
                    cost.unwrap_or_default()
                ),
                shade: pair.measured,
                framed: from == to,
                marked: pair.planned.is_some_and(|plan| (plan - pair.measured).abs() > AGREES_WITHIN),
            }
        }
    };
    let row = |from: &&str| ((*from).to_owned(), names.iter().map(|to| cell(from, to)).collect());
    HtmlMatrix {
        corner: "from \\ to".to_owned(),
        columns: names.iter().map(|name| (*name).to_owned()).collect(),
        rows: names.iter().map(row).collect(),
    }
}

/// The Services whose fix would save most.
fn fixes(report: &StatusReport) -> String {
    let found: Vec<&ServiceStatus> =
        report.services.iter().filter(|service| service.fix.is_some()).take(MAX_FIXES).collect();
    let all = report.services.iter().filter(|service| service.fix.is_some()).count();
    let head = "<h2>What to change first</h2>\n";
    if found.is_empty() {
        let text = match report.summary.services {
            0 => "There are no Services.",
            _ => "No setting is known that keeps more traffic in its zone.",
        };
        return format!("{head}<p>{text}</p>\n");
    }
    let items: String = found.iter().map(|service| fix_item(service, &report.summary.currency)).collect();
    let more = match all - found.len() {
        0 => String::new(),
        more => format!("<p><a href=\"/services\">{} with a fix</a></p>\n", count(more, "more Service")),
    };
    format!("{head}{items}{more}")
}

/// What the figures do not cover.
pub(crate) fn limits(limits: &[String]) -> String {
    if limits.is_empty() {
        return String::new();
    }
    let items: String = limits.iter().map(|limit| format!("<li>{}.</li>\n", escaped(limit))).collect();
    format!("<h2>What these figures do not cover</h2>\n<ul>\n{items}</ul>\n")
}
