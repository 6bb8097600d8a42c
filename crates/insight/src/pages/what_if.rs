//! What a change would do: another mechanism, a zone that fails, more or fewer replicas, before and after.

use std::collections::{BTreeMap, BTreeSet};

use crate::status::{ServiceStatus, StatusReport, WhatIfView};
use crate::what_if::{ComparedState, MECHANISMS, TrafficFigures, setting_value};
use output::html::{escaped, zone_matrix};
use plan::hints::Mechanism;

use crate::pages::query::{QueryPairs, link};
use crate::pages::table::{TableColumn, copyable, table};
use crate::pages::units::{amount, percent};
use crate::pages::{NavEntry, Page, PageFragment};

/// Services that the form suggests.
const MAX_SUGGESTIONS: usize = 200;
/// Replicas that can be added or removed.
const MAX_REPLICAS: i64 = 100;

/// The parameters of the page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WhatIfForm {
    /// namespace/name
    pub service: String,
    /// `None` for the present one.
    pub mechanism: Option<Mechanism>,
    /// The zone that fails.
    pub failed_zone: String,
    /// Where replicas are added or removed.
    pub scaled_zone: String,
    pub replicas: i64,
}

impl WhatIfForm {
    pub(crate) fn parse(pairs: &QueryPairs) -> Self {
        let text = |key| pairs.value(key).unwrap_or_default().to_owned();
        let mechanism = pairs.value("mechanism").unwrap_or_default();
        let replicas = pairs.value("replicas").and_then(|text| text.parse::<i64>().ok()).unwrap_or(0);
        Self {
            service: text("service"),
            mechanism: MECHANISMS.iter().copied().find(|known| setting_value(*known) == mechanism),
            failed_zone: text("zone"),
            scaled_zone: text("add"),
            replicas: replicas.clamp(-MAX_REPLICAS, MAX_REPLICAS),
        }
    }

    pub(crate) fn link(&self) -> String {
        let replicas = if self.replicas == 0 { String::new() } else { self.replicas.to_string() };
        let pairs = [
            ("service", self.service.as_str()),
            ("mechanism", self.mechanism.map(setting_value).unwrap_or_default()),
            ("zone", &self.failed_zone),
            ("add", &self.scaled_zone),
            ("replicas", &replicas),
        ];
        link("/what-if", &pairs)
    }

    /// Namespace and name of the Service; `None` until one is chosen.
    pub fn key(&self) -> Option<(&str, &str)> {
        self.service.split_once('/').filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty())
    }

    /// Replicas to add or remove, by zone.
    pub fn replicas_by_zone(&self) -> Vec<(String, i64)> {
        match self.replicas == 0 || self.scaled_zone.is_empty() {
            true => Vec::new(),
            false => vec![(self.scaled_zone.clone(), self.replicas)],
        }
    }
}

/// `view` is the answer for the form, if a Service was chosen and nodes proxy it.
pub fn what_if_page(report: &StatusReport, form: &WhatIfForm, view: Option<&WhatIfView>) -> Page {
    let result = match (form.key(), view) {
        (None, _) => "<p class=\"faint\">Choose a Service, and what changes.</p>\n".to_owned(),
        (Some(_), None) => {
            format!("<p>There is no Service {} that nodes proxy.</p>\n", escaped(&form.service))
        }
        (Some(_), Some(view)) => outcome(report, form, view),
    };
    Page {
        title: "What-if".to_owned(),
        nav: NavEntry::WhatIf,
        fragments: vec![
            PageFragment::new("form", form_html(report, form)),
            PageFragment::new("outcome", result),
        ],
    }
}

fn form_html(report: &StatusReport, form: &WhatIfForm) -> String {
    let zones: BTreeSet<&str> = report.nodes.iter().filter_map(|node| node.zone.as_deref()).collect();
    let measured = report.summary.zones.iter().flat_map(|pair| [pair.from.as_str(), pair.to.as_str()]);
    let zones: BTreeSet<&str> = zones.into_iter().chain(measured).filter(|zone| !zone.is_empty()).collect();
    let option = |value: &str, text: &str, chosen: &str| {
        let selected = if value == chosen { " selected" } else { "" };
        format!("<option value=\"{}\"{selected}>{}</option>", escaped(value), escaped(text))
    };
    let zone_options = |none: &str, chosen: &str| {
        let known = zones.contains(chosen) || chosen.is_empty();
        let extra = if known { String::new() } else { option(chosen, chosen, chosen) };
        let all: String = zones.iter().map(|zone| option(zone, zone, chosen)).collect();
        option("", none, chosen) + &all + &extra
    };
    let chosen = form.mechanism.map(setting_value).unwrap_or_default();
    let mechanisms: String = MECHANISMS
        .iter()
        .map(|mechanism| option(setting_value(*mechanism), setting_value(*mechanism), chosen))
        .collect();
    let names = report.services.iter().take(MAX_SUGGESTIONS);
    let names: String =
        names.map(|service| format!("<option value=\"{}\"></option>", escaped(&service.key()))).collect();
    format!(
        "<form action=\"/what-if\" class=\"stacked\" data-soft>\n\
         <label>Service <input name=\"service\" list=\"services\" value=\"{}\" placeholder=\"namespace/name\" required></label>\
         <datalist id=\"services\">{names}</datalist>\n\
         <label>Mechanism <select name=\"mechanism\">{}{mechanisms}</select></label>\n\
         <label>Zone that fails <select name=\"zone\">{}</select></label>\n\
         <label>Add or remove replicas <input type=\"number\" name=\"replicas\" value=\"{}\" min=\"-{MAX_REPLICAS}\" max=\"{MAX_REPLICAS}\"></label>\n\
         <label>in zone <select name=\"add\">{}</select></label>\n<button>Compare</button></form>\n",
        escaped(&form.service),
        option("", "the present one", chosen),
        zone_options("none", &form.failed_zone),
        form.replicas,
        zone_options("none", &form.scaled_zone),
    )
}

fn outcome(report: &StatusReport, form: &WhatIfForm, view: &WhatIfView) -> String {
    let (before, after) = (&view.comparison.before, &view.comparison.after);
    let demand = match view.is_measured {
        true => "On the measured demand by zone.",
        false => "No traffic is measured: zones are assumed to send by the CPU of their nodes.",
    };
    let held = after.held_back.map(|why| {
        format!(
            "<p class=\"warn\">The hints of {} would be held back: {}.</p>\n",
            after.mechanism.as_str(),
            escaped(why)
        )
    });
    let refused = match after.figures.refused > 1e-9 {
        true => format!(
            "<p class=\"warn\">{} of the traffic would reach no endpoint.</p>\n",
            percent(after.figures.refused)
        ),
        false => String::new(),
    };
    let fails = match form.failed_zone.as_str() {
        "" => String::new(),
        zone => format!("<p>After the failure, {} sends nothing and has no endpoints.</p>\n", escaped(zone)),
    };
    let status = report.services.iter().find(|service| service.key() == form.service);
    let zones: BTreeSet<&str> = [before, after]
        .iter()
        .flat_map(|state| state.figures.zones.keys().flat_map(|(from, to)| [from.as_str(), to.as_str()]))
        .collect();
    let zones: Vec<&str> = zones.into_iter().collect();
    let matrix = |title: &str, figures: &TrafficFigures| {
        let shares: BTreeMap<(&str, &str), f64> =
            figures.zones.iter().map(|((from, to), share)| ((from.as_str(), to.as_str()), *share)).collect();
        let matrix = zone_matrix(&zones, |from, to| shares.get(&(from, to)).copied().unwrap_or(0.0));
        format!(
            "<figure><figcaption>{title}: % of all traffic</figcaption><div class=\"scroll\">{}</div></figure>\n",
            matrix.html()
        )
    };
    let command = view
        .command
        .as_deref()
        .map(|command| format!("<h2>The change as a command</h2>\n{}", copyable(command)));
    format!(
        "<h2>Before and after</h2>\n<p class=\"faint\">{demand} By the decisions of the controller and of the nodes.</p>\n\
         {fails}{}{refused}{}<div class=\"pair\">{}{}</div>\n{}",
        held.unwrap_or_default(),
        compared(before, after, status, &report.summary.currency),
        matrix("Before", &before.figures),
        matrix("After", &after.figures),
        command.unwrap_or_default()
    )
}

fn compared(
    before: &ComparedState,
    after: &ComparedState,
    status: Option<&ServiceStatus>,
    currency: &str,
) -> String {
    let columns = [
        TableColumn::text("Figure"),
        TableColumn::number("Before"),
        TableColumn::number("After"),
        TableColumn::number("Difference"),
    ];
    let points = |a: f64, b: f64| match (b - a).abs() < 5e-4 {
        true => "0".to_owned(),
        false => format!("{:+.1} points", 100.0 * (b - a)),
    };
    let shares = |name: &str, a: f64, b: f64, sign: &str| {
        vec![name.to_owned(), format!("{sign}{}", percent(a)), format!("{sign}{}", percent(b)), points(a, b)]
    };
    // As other pages name it; after a chosen change, as the form does.
    let before_name = if before.mechanism == Mechanism::None { "default" } else { before.mechanism.as_str() };
    let after_name = match after.mechanism == before.mechanism {
        true => before_name,
        false => setting_value(after.mechanism),
    };
    let (a, b) = (&before.figures, &after.figures);
    let mut rows = vec![
        vec!["Mechanism".to_owned(), before_name.to_owned(), after_name.to_owned(), String::new()],
        shares("In zone", a.in_zone, b.in_zone, ""),
        shares("Worst overload", a.max_overload, b.max_overload, "+"),
        shares("Refused", a.refused, b.refused, ""),
    ];
    let counts = |name: String, a: i64, b: i64| {
        let difference = if a == b { "0".to_owned() } else { format!("{:+}", b - a) };
        vec![name, a.to_string(), b.to_string(), difference]
    };
    rows.push(counts("Idle endpoints".to_owned(), a.idle as i64, b.idle as i64));
    let zones: BTreeSet<&str> = before
        .endpoints_by_zone
        .keys()
        .chain(after.endpoints_by_zone.keys())
        .map(|zone| zone.as_str())
        .collect();
    for zone in zones {
        let ready = |state: &ComparedState| {
            let found = state.endpoints_by_zone.iter().find(|(name, _)| name.as_str() == zone);
            found.map_or(0, |(_, count)| *count) as i64
        };
        let (a, b) = (ready(before), ready(after));
        let name = format!("Endpoints in {}", escaped(if zone.is_empty() { "no zone" } else { zone }));
        rows.push(counts(name, a, b));
    }
    // The cost of what crosses now, by the share that would cross.
    let crossing = 1.0 - a.in_zone - a.refused;
    let cost = status.and_then(|status| status.cost_per_month).filter(|_| crossing > 1e-6);
    if let Some(cost) = cost {
        let then = cost * (1.0 - b.in_zone - b.refused) / crossing;
        let money = |money: f64| escaped(&format!("{} {currency}", amount(money)));
        rows.push(vec!["Cost/month".to_owned(), money(cost), money(then), money(then - cost)]);
    }
    table(&columns, None, &rows)
}
