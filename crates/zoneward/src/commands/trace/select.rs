//! `zoneward trace select`: the endpoints that a node selects for each Service port.

use anyhow::Result;
use model::{Family, Notice, ObjectRef, Service, Slice};
use plan::select::{
    NodeView, PortSelection, SelectedEndpoint, SelectedEndpoints, explain, not_proxied, select,
};
use serde_json::{Value, json};

use crate::cli::{Format, TraceSelect};
use cluster::input::LoadedObjects;
use node::offline;
use output::{count, notices_text, print_text, print_value};

pub(crate) fn run(args: &TraceSelect) -> Result<bool> {
    let mut loaded = LoadedObjects::read(&args.input)?;
    if let Some(name) = &args.service {
        loaded.check_service(name, args.input.namespace.as_deref())?;
    }
    if loaded.node(&args.node)?.is_none() {
        loaded.notices.push(unknown_node(&args.node));
    }
    let mut remarks = Vec::new();
    let settings =
        offline::settings(args.config.as_deref(), args.feature_gates.as_ref(), None, &mut remarks)?;
    offline::apply_view(args.watch_own_zone, &args.node, settings.gates.select, &mut loaded);
    let zone = loaded.snapshot.node(&args.node).and_then(|node| node.zone.as_deref());
    let view = NodeView { name: &args.node, zone, gates: settings.gates.select };
    let mut report = SelectionReport { rows: Vec::new(), text: String::new(), notices: Vec::new() };
    let services = loaded.snapshot.services().filter(|(service, _)| is_wanted(service, args));
    for (service, slices) in services {
        report.add(service, slices, &view);
    }
    loaded.notices.append(&mut remarks);
    loaded.notices.append(&mut report.notices);
    match args.output.format {
        Format::Table => {
            if report.rows.is_empty() {
                report.text = "No proxied Services.\n".to_owned();
            }
            print_text(&(report.text + &notices_text(&loaded.notices)))?;
        }
        format => {
            eprint!("{}", notices_text(&loaded.notices).trim_start());
            print_value(&Value::Array(report.rows), format)?;
        }
    }
    Ok(!loaded.unreadable)
}

fn is_wanted(service: &Service, args: &TraceSelect) -> bool {
    let namespace = args.input.namespace.as_deref();
    match &args.service {
        Some(name) => name.matches(&service.key, namespace),
        None => namespace.is_none_or(|namespace| service.key.namespace == namespace),
    }
}

/// Without Nodes in the input, the node has no zone, as while its object is missing.
fn unknown_node(name: &str) -> Notice {
    let message = "no Node in the input, so the node has no zone: add its Node object";
    Notice::new(ObjectRef::new("Node", "", name), "NodeUnknown", message)
}

struct SelectionReport {
    rows: Vec<Value>,
    text: String,
    notices: Vec<Notice>,
}

impl SelectionReport {
    fn add(&mut self, service: &Service, slices: &[Slice], node: &NodeView<'_>) {
        if let Some(reason) = not_proxied(service) {
            let object = ObjectRef::service(&service.key);
            self.notices.push(Notice::new(object, "NotProxied", format!("skipped: {reason}.")));
            return;
        }
        for family in families(service) {
            for selection in select(service, slices, family, node) {
                self.rows.push(row(service, &selection, node));
                self.text += &block(service, &selection, node);
            }
        }
    }
}

/// The families of its addresses, or those that it will get.
fn families(service: &Service) -> Vec<Family> {
    let mut families: Vec<Family> =
        service.cluster_ips.addresses().iter().map(|ip| Family::of(*ip)).collect();
    if families.is_empty() {
        families = if service.families.is_empty() { vec![Family::V4] } else { service.families.to_vec() };
    }
    families.sort();
    families.dedup();
    families
}

fn row(service: &Service, selection: &PortSelection<'_>, node: &NodeView<'_>) -> Value {
    let why = explain(service, selection, node);
    let why: Vec<Value> = why.iter().map(|r| json!({"rule": r.rule, "detail": r.detail})).collect();
    let reachable: Vec<String> = selection.reachable().iter().map(|a| a.to_string()).collect();
    json!({
        "service": service.key.to_string(),
        "port": selection.port.name.as_str(),
        "protocol": selection.port.protocol.as_str(),
        "family": selection.family.as_str(),
        "cluster": selection.cluster.as_ref().map(set),
        "local": selection.local.as_ref().map(set),
        "reachable": reachable,
        "hasAny": selection.has_any,
        "why": why,
    })
}

fn set(set: &SelectedEndpoints) -> Value {
    let target = |t: &SelectedEndpoint| json!({"address": t.address.to_string(), "weight": t.weight});
    json!({"mode": set.mode.as_str(), "endpoints": set.endpoints.iter().map(target).collect::<Vec<_>>()})
}

fn block(service: &Service, selection: &PortSelection<'_>, node: &NodeView<'_>) -> String {
    let port = selection.port;
    let name = if port.name.is_empty() { port.port.to_string() } else { port.name.to_string() };
    let zone = node.zone.map_or("without a zone".to_owned(), |zone| format!("in {zone}"));
    let mut text = format!(
        "{}:{name} ({} {}) from node {} {zone}\n",
        service.key, selection.family, port.protocol, node.name
    );
    let sets = [("cluster", &selection.cluster), ("local", &selection.local)];
    for (class, set) in sets.into_iter().filter_map(|(class, set)| Some((class, set.as_ref()?))) {
        text += &format!("  {class:<8} {:<12} {}\n", set.mode.as_str(), targets(&set.endpoints));
    }
    for reason in explain(service, selection, node) {
        text += &format!("  because  {}: {}\n", reason.rule, reason.detail);
    }
    text + "\n"
}

/// Maximum number of endpoints in the text.
const SHOWN: usize = 8;

fn targets(targets: &[SelectedEndpoint]) -> String {
    if targets.is_empty() {
        return "no endpoint".to_owned();
    }
    let even = targets.iter().all(|t| t.weight == targets[0].weight);
    let one = |t: &SelectedEndpoint| match even {
        true => t.address.to_string(),
        false => format!("{} (x{:.2})", t.address, t.weight),
    };
    let mut text = targets.iter().take(SHOWN).map(one).collect::<Vec<_>>().join(", ");
    if targets.len() > SHOWN {
        text += &format!(" and {} more", targets.len() - SHOWN);
    }
    format!("{}: {text}", count(targets.len(), "endpoint"))
}
