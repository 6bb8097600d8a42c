//! `zoneward plan routes --as envoy`: the Envoy resources, and what other policies would change.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Result, bail};
use model::backend::{BackendTable, ConsumerLocation};
use model::route::RetryLimits;
use model::{Name, Notice, Snapshot};
use plan::FeatureGates;
use plan::backends::{fallbacks, locality_rule, table as backend_table};
use serde_json::{Value, json};
use xds::config_dump;
use xds::identity::CAPTURE_PORT;
use xds::render::{EnvoyListeners, RenderInput, Rendered, render};
use xds::resource::{ResourceSet, ResourceType};

use crate::cli::{Format, PlanRoutes};
use crate::routes::{PlannedRoutes, PlannedScope};
use cluster::input::LoadedObjects;
use output::{count, notices_text, notices_value, print_text, print_value, render as text_of, table};

pub(super) fn run(args: &PlanRoutes) -> Result<bool> {
    let mut loaded = LoadedObjects::read(&args.routes.input(&args.input))?;
    let namespace = args.input.namespace.as_deref().unwrap_or("default");
    let (before, mut notices) = rendered(args, &loaded.snapshot, namespace)?;
    if args.diff.is_empty() {
        notices.append(&mut loaded.notices);
        print_resources(&before.resources, &notices, args.output.format)?;
        return Ok(!loaded.unreadable);
    }
    let with = cluster::input::InputArgs {
        files: args.diff.clone(),
        namespace: args.input.namespace.clone(),
        ..cluster::input::InputArgs::default()
    };
    loaded.add(&with)?;
    let (after, mut notices) = rendered(args, &loaded.snapshot, namespace)?;
    notices.append(&mut loaded.notices);
    print_changes(&before.resources, &after.resources, &notices, args.output.format)?;
    Ok(!loaded.unreadable)
}

fn rendered(args: &PlanRoutes, snapshot: &Snapshot, namespace: &str) -> Result<(Rendered, Vec<Notice>)> {
    let routes = PlannedRoutes::plan(&args.routes, snapshot, namespace)?;
    if routes.has_standard_routes() {
        bail!(
            "--as envoy renders Mesh* policies only: routes of the Gateway API have no Envoy resources yet"
        );
    }
    let node = Name::new(args.node.as_deref().unwrap_or_default());
    let zone = args.zone.as_deref().map(Name::new);
    let zone = zone.or_else(|| snapshot.node(&node).and_then(|node| node.zone.clone()));
    let place = ConsumerLocation { node, zone };
    let ids = routes.table.backends();
    let gates = FeatureGates::OF_PROXIES;
    let first = backend_table(snapshot, &routes.table, &place, gates);
    let mut further = [BackendTable::new(place.clone()), BackendTable::new(place.clone())];
    for id in &ids {
        let rule = locality_rule(&routes.table, id, &place);
        for (table, backend) in further.iter_mut().zip(fallbacks(snapshot, id, &place, gates, rule)) {
            table.put(Arc::new(backend));
        }
    }
    let input = RenderInput {
        listeners: listeners(&routes),
        routes: Arc::new(routes.table),
        tiers: std::iter::once(first).chain(further).map(Arc::new).collect(),
        certificates: Arc::default(),
        authorities: Arc::default(),
        allowlist: Arc::default(),
        edge: Arc::new(args.edge.settings()?),
        retries: RetryLimits::DEFAULT,
    };
    let rendered = render(input, None);
    let mut notices = routes.notices;
    // Secrets are not read here.
    notices.extend(rendered.notices.iter().filter(|notice| notice.reason != "NoCertificate").cloned());
    Ok((rendered, notices))
}

/// A destination is rendered for a client with redirected connections; without a cluster IP, by port.
fn listeners(routes: &PlannedRoutes) -> EnvoyListeners {
    match &routes.scope {
        PlannedScope::Outbound(service, port) => {
            let outbound = routes.table.outbound(service, *port);
            let has_address = outbound.is_some_and(|outbound| !outbound.addresses.is_empty());
            let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), *port);
            let own = (!has_address).then(|| (at, (service.clone(), *port)));
            EnvoyListeners::Sidecar {
                capture: has_address.then_some(CAPTURE_PORT),
                outbounds: own.into_iter().collect(),
            }
        }
        PlannedScope::MeshGateway(gateway, _) | PlannedScope::Gateway(gateway, _) => {
            EnvoyListeners::Gateway {
                gateway: gateway.clone(),
                bind: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                port_overrides: BTreeMap::new(),
            }
        }
    }
}

fn print_resources(set: &ResourceSet, notices: &[Notice], format: Format) -> Result<()> {
    let all = ResourceType::ALL
        .into_iter()
        .flat_map(|kind| set.of(kind).values().map(move |resource| (kind, resource)));
    if format == Format::Table {
        let mut rows = table(&["KIND", "NAME", "VERSION", "BYTES"]);
        for (kind, resource) in all {
            let version = resource.version.to_string().chars().take(12).collect::<String>();
            rows.add_row([
                kind.to_string(),
                resource.name.to_string(),
                version,
                resource.body.len().to_string(),
            ]);
        }
        return print_text(&(text_of(&rows) + &notices_text(notices)));
    }
    let resources: Vec<Value> = all
        .map(|(kind, resource)| {
            json!({"kind": kind.as_str(), "name": &*resource.name, "version": resource.version.to_string(),
                "resource": config_dump::value(kind, resource)})
        })
        .collect();
    print_value(&json!({"resources": resources, "notices": notices_value(notices)}), format)
}

fn print_changes(
    before: &ResourceSet,
    after: &ResourceSet,
    notices: &[Notice],
    format: Format,
) -> Result<()> {
    let (mut changes, mut text) = (Vec::new(), String::new());
    for (kind, names) in before.changed_names(after) {
        for name in names {
            let shown =
                |set: &ResourceSet| set.find(kind, &name).map(|resource| config_dump::value(kind, resource));
            let (old, new) = (shown(before), shown(after));
            let change = match (&old, &new) {
                (None, _) => "added",
                (_, None) => "removed",
                _ => "changed",
            };
            text += &format!("{change} {kind} {name}\n");
            if let (Some(old), Some(new)) = (&old, &new) {
                differences("", old, new, &mut text);
            }
            changes.push(
                json!({"change": change, "kind": kind.as_str(), "name": &*name, "before": old, "after": new}),
            );
        }
    }
    if format == Format::Table {
        let summary = format!("{} of {} would change\n", changes.len(), count(after.len(), "resource"));
        return print_text(&(text + &summary + &notices_text(notices)));
    }
    print_value(&json!({"changes": changes, "notices": notices_value(notices)}), format)
}

/// Longer values are truncated; JSON output has them in full.
const SHOWN: usize = 120;

/// One line per difference.
fn differences(path: &str, old: &Value, new: &Value, text: &mut String) {
    match (old, new) {
        _ if old == new => {}
        (Value::Object(a), Value::Object(b)) => {
            let names: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for name in names {
                let (a, b) = (a.get(name).unwrap_or(&Value::Null), b.get(name).unwrap_or(&Value::Null));
                differences(&format!("{path}.{name}"), a, b, text);
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            for i in 0..a.len().max(b.len()) {
                let (a, b) = (a.get(i).unwrap_or(&Value::Null), b.get(i).unwrap_or(&Value::Null));
                differences(&format!("{path}[{i}]"), a, b, text);
            }
        }
        _ => {
            let short = |value: &Value| match value {
                Value::Null => "nothing".to_owned(),
                value => value.to_string().chars().take(SHOWN).collect::<String>(),
            };
            *text += &format!("  {}: {} -> {}\n", path.trim_start_matches('.'), short(old), short(new));
        }
    }
}
