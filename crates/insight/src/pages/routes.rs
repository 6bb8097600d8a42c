//! Routes: what each backend should get and gets, and whether the routes are accepted.

use crate::status::{CanaryShare, StatusCondition};
use output::html::escaped;
use serde_json::Value;

use crate::pages::query::link;
use crate::pages::service::notes as note_text;
use crate::pages::table::{TableColumn, share_bar, table};
use crate::pages::units::{maybe, percent};
use crate::pages::{NavEntry, Page, PageFragment};

/// Routes on the page; the search finds others.
const MAX_ROUTES: usize = 200;

/// A route, a Gateway, or a rule of one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouteRow {
    pub kind: String,
    pub namespace: String,
    pub name: String,
    /// What it is for: hosts, Services or ports.
    pub target: String,
    pub backends: Vec<RouteBackend>,
    pub conditions: Vec<StatusCondition>,
}

/// A backend of a rule.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouteBackend {
    pub name: String,
    pub planned: f64,
    /// By connections; absent until some are counted.
    pub measured: Option<f64>,
}

impl RouteRow {
    /// The rules of an object of group zoneward.dev, its conditions with the first. `connections` are those of a Service
    /// in the ledger.
    pub fn of_object(
        kind: &str,
        object: &Value,
        connections: &dyn Fn(&str, &str) -> Option<f64>,
    ) -> Vec<Self> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let namespace = text(&object["metadata"]["namespace"]);
        let spec = &object["spec"];
        let mut rules: Vec<(String, Vec<RouteBackend>)> = Vec::new();
        for to in list(&spec["to"]) {
            let service = text(&to["targetRef"]["name"]);
            for rule in list(&to["rules"]) {
                let target = format!("Service {service}{}", matched(rule));
                rules.push((target, backends(rule, &namespace, connections)));
            }
        }
        let hosts: Vec<&str> = list(&spec["hostnames"]).iter().filter_map(Value::as_str).collect();
        for rule in list(&spec["rules"]) {
            let target = format!("{}{}", hosts.join(", "), matched(rule));
            rules.push((target, backends(rule, &namespace, connections)));
        }
        let listener = |listener: &Value| {
            let host = listener["hostname"].as_str().unwrap_or("*");
            format!("{} {host}:{}", text(&listener["protocol"]), listener["port"])
        };
        if !list(&spec["listeners"]).is_empty() {
            let listeners: Vec<String> = list(&spec["listeners"]).iter().map(listener).collect();
            rules.push((listeners.join(", "), Vec::new()));
        }
        if rules.is_empty() {
            rules.push(Default::default());
        }
        let condition = |condition: &Value| StatusCondition {
            kind: text(&condition["type"]),
            status: text(&condition["status"]),
            reason: text(&condition["reason"]),
            message: text(&condition["message"]),
        };
        let mut conditions = list(&object["status"]["conditions"]).iter().map(condition).collect();
        let row = |(target, backends)| Self {
            kind: kind.to_owned(),
            namespace: namespace.clone(),
            name: text(&object["metadata"]["name"]),
            target,
            backends,
            conditions: std::mem::take(&mut conditions),
        };
        rules.into_iter().map(row).collect()
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The first path of a rule.
fn matched(rule: &Value) -> String {
    let path = &rule["matches"][0]["path"];
    let text = ["value", "prefix", "exact", "regex"].iter().find_map(|key| path[*key].as_str());
    text.map(|path| format!(" {path}")).unwrap_or_default()
}

/// Subsets of one Service have no counts of their own.
fn backends(
    rule: &Value,
    namespace: &str,
    connections: &dyn Fn(&str, &str) -> Option<f64>,
) -> Vec<RouteBackend> {
    let refs = match &rule["default"]["backendRefs"] {
        Value::Null => &rule["backendRefs"],
        refs => refs,
    };
    let backend = |backend: &Value| {
        let place = backend["namespace"].as_str().unwrap_or(namespace).to_owned();
        Some((place, backend["name"].as_str()?.to_owned(), backend["weight"].as_u64().unwrap_or(1)))
    };
    let parts: Vec<(String, String, u64)> = list(refs).iter().filter_map(backend).collect();
    let shares = CanaryShare::of_rule("", &parts, connections);
    let is_subset = |share: &CanaryShare| shares.iter().filter(|s| s.backend == share.backend).count() > 1;
    let tags = |backend: &Value| -> String {
        let tags = backend["tags"].as_object().into_iter().flatten();
        let tags: Vec<String> =
            tags.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
        if tags.is_empty() { String::new() } else { format!(" ({})", tags.join(", ")) }
    };
    let named = list(refs).iter().filter(|backend| backend["name"].is_string());
    let row = |(share, backend): (&CanaryShare, &Value)| RouteBackend {
        name: format!("{}{}", share.backend, tags(backend)),
        planned: share.planned,
        measured: share.measured.filter(|_| !is_subset(share)),
    };
    shares.iter().zip(named).map(row).collect()
}

/// `notes` say what could not be read.
pub fn routes_page(routes: &[RouteRow], search: &str, notes: &[String]) -> Page {
    Page {
        title: "Routes".to_owned(),
        nav: NavEntry::Routes,
        fragments: vec![
            PageFragment::new("search", form(search)),
            PageFragment::new("routes", routes_table(routes, &search.to_lowercase())),
            PageFragment::new("notes", note_text(notes)),
        ],
    }
}

fn form(search: &str) -> String {
    format!(
        "<form action=\"{}\" role=\"search\" data-soft><label>Search <input type=\"search\" name=\"q\" id=\"q\" \
         value=\"{}\" placeholder=\"route, namespace or backend\"></label> <button>Show</button></form>\n",
        link("/routes", &[]),
        escaped(search)
    )
}

fn routes_table(routes: &[RouteRow], wanted: &str) -> String {
    if routes.is_empty() {
        return "<p>There are no routes of group zoneward.dev.</p>\n".to_owned();
    }
    let matches = |route: &&RouteRow| {
        wanted.is_empty()
            || [&route.name, &route.namespace, &route.target].iter().any(|text| text.contains(wanted))
            || route.kind.to_lowercase().contains(wanted)
            || route.backends.iter().any(|backend| backend.name.contains(wanted))
    };
    let found: Vec<&RouteRow> = routes.iter().filter(matches).collect();
    let columns = [
        TableColumn::text("Route"),
        TableColumn::text("For"),
        TableColumn::text("Backends: planned, measured"),
        TableColumn::text("Status"),
    ];
    let rows: Vec<Vec<String>> = found.iter().take(MAX_ROUTES).map(|route| row(route)).collect();
    let hidden = match found.len().saturating_sub(MAX_ROUTES) {
        0 => String::new(),
        hidden => format!("<p class=\"faint\">{hidden} more: search for them.</p>\n"),
    };
    if rows.is_empty() {
        return "<p>No route matches.</p>\n".to_owned();
    }
    format!(
        "{}{hidden}<p class=\"faint\">Measured by new connections to the backend Services, also those that no route sends.</p>\n",
        table(&columns, None, &rows)
    )
}

fn row(route: &RouteRow) -> Vec<String> {
    let backend = |backend: &RouteBackend| {
        let measured = backend.measured.map(|share| share_bar(&percent(share), share, Some(backend.planned)));
        format!(
            "<div>{} <strong>{}</strong>, {}</div>",
            escaped(&backend.name),
            percent(backend.planned),
            maybe(measured)
        )
    };
    let condition = |condition: &StatusCondition| match condition.status.as_str() {
        "False" => format!(
            "<div><strong class=\"warn\">{} False</strong>: {} {}</div>",
            escaped(&condition.kind),
            escaped(&condition.reason),
            escaped(&condition.message)
        ),
        status => format!("<div>{} {}</div>", escaped(&condition.kind), escaped(status)),
    };
    let none = |text: String| match text.is_empty() {
        true => "-".to_owned(),
        false => format!("<div>{text}</div>"),
    };
    vec![
        format!(
            "{}/{} <span class=\"faint\">{}</span>",
            escaped(&route.namespace),
            escaped(&route.name),
            escaped(&route.kind)
        ),
        none(escaped(&route.target)),
        none(route.backends.iter().map(backend).collect()),
        none(route.conditions.iter().map(condition).collect()),
    ]
}
