//! One Service: where each zone sends its traffic, what each endpoint gets, why, and the fix with its effect.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::status::{CanaryShare, ServiceDetail, ServiceStatus, ServiceView, StatusReport};
use crate::what_if::EndpointLoad;
use output::html::{HtmlMatrix, MatrixCell, escaped};

use crate::pages::figures::{HeadFigure, figure_list};
use crate::pages::overview::history_section;
use crate::pages::services::fix_effect;
use crate::pages::table::{TableColumn, copyable, share_bar, table};
use crate::pages::target::service_link;
use crate::pages::units::{amount, count, maybe, percent, sentence, size};
use crate::pages::{NavEntry, Page, PageFragment};

/// Endpoints with a row; the most loaded are shown.
const MAX_ENDPOINTS: usize = 40;
const AGREES_WITHIN: f64 = 0.1;

/// What the page shows beside the report and the view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceExtras {
    /// Whether a fix can be applied with the viewer's token.
    pub allow_apply: bool,
    /// What could not be read.
    pub notes: Vec<String>,
}

pub fn service_page(report: &StatusReport, view: &ServiceView, extras: &ServiceExtras) -> Page {
    let detail = &view.detail;
    let is_same = |s: &&ServiceStatus| s.namespace == detail.namespace && s.name == detail.name;
    let empty = ServiceStatus::default();
    let status = report.services.iter().find(is_same).unwrap_or(&empty);
    let currency = report.summary.currency.as_str();
    Page {
        title: format!("{}/{}", detail.namespace, detail.name),
        nav: NavEntry::Services,
        fragments: vec![
            PageFragment::new("figures", figures(status, currency)),
            PageFragment::new("fix", fix(status, detail, currency, extras)),
            PageFragment::new("flows", flows(detail)),
            PageFragment::new("endpoints", endpoints(&view.endpoints)),
            PageFragment::new("history", history_section(&view.history, report.summary.since.as_deref())),
            PageFragment::new("canary", canary(&detail.canary)),
            PageFragment::new("why", why(detail)),
            PageFragment::new("conditions", conditions(detail)),
            PageFragment::new("notes", notes(&extras.notes)),
        ],
    }
}

fn figures(status: &ServiceStatus, currency: &str) -> String {
    let shares = status.in_zone;
    let plan = shares.planned.map(|plan| {
        let best = shares.best.map(|best| format!(", {} at best", percent(best)));
        format!("{} planned{}", percent(plan), best.unwrap_or_default())
    });
    let below = shares.planned.zip(shares.measured).is_some_and(|(plan, share)| plan - share > AGREES_WITHIN);
    let rate = status.connections_per_second.map(|rate| format!("{rate:.1} connections/s"));
    let avoidable = status.avoidable_per_month.filter(|money| *money > 0.0);
    let mechanism = if status.mechanism.is_empty() { "-" } else { status.mechanism.as_str() };
    figure_list(&[
        HeadFigure::new("Mechanism", mechanism)
            .remark(if status.honored { "" } else { "not honored: see the conditions" })
            .attention(!status.honored && !status.name.is_empty()),
        HeadFigure::new("In zone", shares.measured.map_or_else(|| "not measured yet".to_owned(), percent))
            .remark(&plan.unwrap_or_default())
            .attention(below),
        HeadFigure::new(
            "Across zones",
            maybe(status.cross_zone_bytes_per_day.map(|b| format!("{}/day", size(b)))),
        )
        .remark(&rate.unwrap_or_default()),
        HeadFigure::new(
            "Cost per month",
            maybe(status.cost_per_month.map(|m| format!("{} {currency}", amount(m)))),
        )
        .remark(&avoidable.map(|m| format!("{} {currency} avoidable", amount(m))).unwrap_or_default()),
        HeadFigure::new(
            "Worst overload",
            maybe(status.worst_overload.map(|load| format!("+{}", percent(load)))),
        )
        .remark("of an endpoint, by the plan")
        .attention(status.worst_overload.is_some_and(|load| load > 0.2)),
    ])
}

fn fix(status: &ServiceStatus, detail: &ServiceDetail, currency: &str, extras: &ServiceExtras) -> String {
    let mut html = "<h2>What to do</h2>\n".to_owned();
    if let Some(reason) = &status.reason {
        let _ = writeln!(html, "<p>{}</p>", escaped(&sentence(reason)));
    }
    let Some(command) = &status.fix else {
        html += "<p>No setting is known that keeps more traffic in its zone.</p>\n";
        return html + &what_if_link(detail);
    };
    html += &copyable(command);
    if let Some(effect) = fix_effect(status, currency) {
        let _ = writeln!(
            html,
            "<p>Predicted effect on the measured demand: <strong>{}</strong></p>",
            escaped(&effect)
        );
    }
    html += &what_if_link(detail);
    if extras.allow_apply {
        let _ = writeln!(
            html,
            "<form method=\"post\" action=\"{}/apply\" autocomplete=\"off\"><label>Your token <input type=\"password\" \
             name=\"token\" required autocomplete=\"off\"></label> <button>Apply</button> <span class=\"faint\">The token is \
             sent to the API with this one change, and is not stored.</span></form>",
            service_link(&detail.namespace, &detail.name)
        );
    }
    html
}

fn what_if_link(detail: &ServiceDetail) -> String {
    let target = crate::pages::query::link(
        "/what-if",
        &[("service", &format!("{}/{}", detail.namespace, detail.name))],
    );
    format!(
        "<p><a href=\"{}\">Compare with other mechanisms, replicas, or without a zone</a></p>\n",
        escaped(&target)
    )
}

fn flows(detail: &ServiceDetail) -> String {
    let head = "<h2>From zone to zone</h2>\n";
    if detail.zones.is_empty() {
        return format!(
            "{head}<p class=\"faint\">Nodes do not proxy this Service, so there is no plan for it.</p>\n"
        );
    }
    let targets: BTreeSet<&str> =
        detail.zones.iter().flat_map(|row| row.flows.iter().map(|flow| flow.to.as_str())).collect();
    let name = |zone: &str| if zone.is_empty() { "(no zone)".to_owned() } else { zone.to_owned() };
    let mut rows = Vec::new();
    for row in &detail.zones {
        let cell = |to: &&str| {
            let framed = row.from == **to;
            let Some(flow) = row.flows.iter().find(|flow| flow.to == **to) else {
                return MatrixCell { text: "-".to_owned(), shade: 0.0, framed, marked: false };
            };
            let planned = percent(flow.planned);
            MatrixCell {
                text: match flow.measured {
                    Some(measured) => format!("{}\nplan {planned}", percent(measured)),
                    None => format!("plan {planned}"),
                },
                shade: flow.measured.unwrap_or(flow.planned),
                framed,
                marked: flow.measured.is_some_and(|share| (share - flow.planned).abs() > AGREES_WITHIN),
            }
        };
        let label =
            format!("{}\n{} of demand\n{}", row.from, percent(row.demand), count(row.endpoints, "endpoint"));
        rows.push((label, targets.iter().map(cell).collect()));
    }
    let matrix = HtmlMatrix {
        corner: "from \\ to".to_owned(),
        columns: targets.iter().map(|zone| name(zone)).collect(),
        rows,
    };
    format!(
        "{head}<p class=\"faint\">The measured share of what each zone sends, and the planned one. A dashed underline differs \
         from the plan by more than 10 points.</p>\n<div class=\"scroll\">{}</div>\n",
        matrix.html()
    )
}

fn endpoints(loads: &[EndpointLoad]) -> String {
    let head = "<h2>Load of endpoints</h2>\n";
    if loads.is_empty() {
        return format!("{head}<p class=\"faint\">There are no ready endpoints.</p>\n");
    }
    let times = |load: &EndpointLoad| if load.fair > 0.0 { load.load / load.fair } else { 0.0 };
    let most = loads.iter().map(times).fold(1.0, f64::max);
    let mut shown: Vec<&EndpointLoad> = loads.iter().collect();
    if shown.len() > MAX_ENDPOINTS {
        shown.sort_by(|a, b| times(b).total_cmp(&times(a)));
        shown.truncate(MAX_ENDPOINTS);
    }
    let columns = [
        TableColumn::text("Endpoint"),
        TableColumn::text("Zone"),
        TableColumn::text("Node"),
        TableColumn::number("Share"),
        TableColumn::number("Of the fair share"),
    ];
    let text = |name: Option<&str>| name.map_or_else(|| "-".to_owned(), escaped);
    let row = |load: &&EndpointLoad| {
        vec![
            load.address.to_string(),
            text(load.zone.as_deref()),
            text(load.node.as_deref()),
            percent(load.load),
            share_bar(&percent(times(load)), times(load) / most, Some(1.0 / most)),
        ]
    };
    let rows: Vec<Vec<String>> = shown.iter().map(row).collect();
    let hidden = match loads.len() - shown.len() {
        0 => String::new(),
        hidden => format!("<p class=\"faint\">{} with less load not shown.</p>\n", count(hidden, "endpoint")),
    };
    format!(
        "{head}<p class=\"faint\">By the plan, for the measured demand. The tick is the fair share, in proportion to \
         capacity.</p>\n{}{hidden}",
        table(&columns, None, &rows)
    )
}

fn canary(shares: &[CanaryShare]) -> String {
    if shares.is_empty() {
        return String::new();
    }
    let columns = [
        TableColumn::text("Route"),
        TableColumn::text("Backend"),
        TableColumn::number("Planned"),
        TableColumn::number("Measured"),
    ];
    let row = |share: &CanaryShare| {
        let measured = share.measured.map(|m| share_bar(&percent(m), m, Some(share.planned)));
        vec![escaped(&share.route), escaped(&share.backend), percent(share.planned), maybe(measured)]
    };
    let rows: Vec<Vec<String>> = shares.iter().map(row).collect();
    format!("<h2>Canary</h2>\n{}", table(&columns, None, &rows))
}

fn why(detail: &ServiceDetail) -> String {
    if detail.zones.is_empty() {
        return String::new();
    }
    let mut html = "<h2>Why</h2>\n<p class=\"faint\">As <code>zoneward trace select</code> says it, from a node of each \
                    zone.</p>\n"
        .to_owned();
    for row in &detail.zones {
        let _ = writeln!(
            html,
            "<details id=\"why-{0}\"><summary>from {0}: {1}</summary><dl class=\"reasons\">",
            escaped(&row.from),
            escaped(&row.mode)
        );
        for reason in &row.why {
            let _ = writeln!(html, "<dt>{}</dt><dd>{}</dd>", escaped(&reason.rule), escaped(&reason.detail));
        }
        html += "</dl></details>\n";
    }
    html
}

fn conditions(detail: &ServiceDetail) -> String {
    let mut html = String::new();
    if !detail.conditions.is_empty() {
        let columns = ["Condition", "Status", "Reason", "Message"].map(TableColumn::text);
        let rows: Vec<Vec<String>> = detail
            .conditions
            .iter()
            .map(|c| {
                let status = match c.status.as_str() {
                    "False" => "<strong class=\"warn\">False</strong>".to_owned(),
                    other => escaped(other),
                };
                let kind = c.kind.trim_start_matches("zoneward.dev/TrafficDistribution");
                vec![escaped(kind), status, escaped(&c.reason), escaped(&c.message)]
            })
            .collect();
        html += &format!("<h2>Conditions</h2>\n{}", table(&columns, None, &rows));
    }
    if !detail.events.is_empty() {
        let columns = ["Time", "Type", "Reason", "Message"].map(TableColumn::text);
        let rows: Vec<Vec<String>> = detail
            .events
            .iter()
            .map(|event| {
                let times = if event.count > 1 { format!(" (x{})", event.count) } else { String::new() };
                let message = event.message.clone() + &times;
                [&event.time, &event.kind, &event.reason, &message].map(|text| escaped(text)).into()
            })
            .collect();
        html += &format!("<h2>Events</h2>\n{}", table(&columns, None, &rows));
    }
    html
}

pub(crate) fn notes(notes: &[String]) -> String {
    notes.iter().map(|note| format!("<p class=\"faint\">{}.</p>\n", escaped(note))).collect()
}
