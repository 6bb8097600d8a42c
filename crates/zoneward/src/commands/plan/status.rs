//! `zoneward plan status`: the statuses that the controller would write, without times.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use model::gateway_api::CertificateKind;
use model::route::MeshRouteFilter;
use model::{ObjectKey, Snapshot};
use plan::gateway_api::{AssignedAddresses, UnboundPort, UnboundPorts, statuses};
use plan::routes::{
    RouteCondition, RouteStatus, SecretState, of_gateway, of_gateway_http_route, of_http_route,
    of_load_balancing, of_route_filter, of_tcp_route,
};
use serde_json::{Value, json};

use crate::cli::{Format, PlanStatus};
use cluster::input::LoadedObjects;
use output::{notices_text, notices_value, print_text, print_value, render, table};

pub(crate) fn run(args: &PlanStatus) -> Result<bool> {
    if args.input.files.is_empty() {
        bail!(
            "plan status reads manifests: name them with -f; `kubectl get` shows the statuses in a cluster"
        );
    }
    let loaded = LoadedObjects::read(&args.input)?;
    let addresses = AssignedAddresses::Any(args.gateway_address.clone());
    let unbound = UnboundPort::by_gateway(args.unbound_port.iter().cloned());
    let mut all: Vec<PlannedStatus> = statuses(&loaded.snapshot, &args.controller_name, &addresses, &unbound)
        .into_iter()
        .map(|own| PlannedStatus {
            api_version: "gateway.networking.k8s.io/v1",
            kind: own.kind,
            key: own.key,
            status: own.status,
        })
        .collect();
    all.extend(mesh_statuses(&loaded.snapshot, &unbound));
    if let Some(namespace) = &args.input.namespace {
        all.retain(|own| own.key.namespace.is_empty() || own.key.namespace == namespace.as_str());
    }
    match args.output.format {
        Format::Table => print_text(&(text(&all) + &notices_text(&loaded.notices)))?,
        format => {
            let list: Vec<Value> = all.iter().map(PlannedStatus::value).collect();
            print_value(&json!({"statuses": list, "notices": notices_value(&loaded.notices)}), format)?;
        }
    }
    Ok(!loaded.unreadable)
}

struct PlannedStatus {
    api_version: &'static str,
    kind: &'static str,
    /// The namespace is empty for cluster-scoped kinds.
    key: ObjectKey,
    status: Value,
}

impl PlannedStatus {
    fn value(&self) -> Value {
        let mut value = json!({"apiVersion": self.api_version, "kind": self.kind});
        if !self.key.namespace.is_empty() {
            value["namespace"] = self.key.namespace.as_str().into();
        }
        value["name"] = self.key.name.as_str().into();
        value["status"] = self.status.clone();
        value
    }

    /// Every condition with the part of the status that has it.
    fn conditions(&self) -> Vec<(String, Value)> {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let mut found: Vec<(String, Value)> = list(&self.status["conditions"])
            .into_iter()
            .map(|condition| (String::new(), condition))
            .collect();
        for (field, name) in [("listeners", "listener"), ("parents", "parent"), ("ancestors", "ancestor")] {
            for entry in list(&self.status[field]) {
                let about = match name {
                    "listener" => &entry["name"],
                    "parent" => &entry["parentRef"]["name"],
                    _ => &entry["ancestorRef"]["name"],
                };
                let about = format!("{name} {}", about.as_str().unwrap_or_default());
                found.extend(list(&entry["conditions"]).into_iter().map(|c| (about.clone(), c)));
            }
        }
        found
    }
}

/// The statuses of the kinds of zoneward.dev.
fn mesh_statuses(snapshot: &Snapshot, unbound: &UnboundPorts) -> Vec<PlannedStatus> {
    let secrets = secret_states(snapshot);
    let http = snapshot.all_mesh_http_routes().map(|o| ("MeshHTTPRoute", &o.key, of_http_route(snapshot, o)));
    let gateway_http = snapshot.mesh_gateway_http_route_keys().filter_map(|key| {
        let route = snapshot.mesh_gateway_http_route(key)?;
        Some(("MeshGatewayHTTPRoute", &route.key, of_gateway_http_route(snapshot, route)))
    });
    let tcp = snapshot.all_mesh_tcp_routes().map(|o| ("MeshTCPRoute", &o.key, of_tcp_route(snapshot, o)));
    let gateways =
        snapshot.mesh_gateways().map(|o| ("MeshGateway", &o.key, of_gateway(o, &secrets, unbound)));
    let balancing = snapshot.all_load_balancing_policies();
    let balancing = balancing.map(|o| ("MeshLoadBalancing", &o.identity.key, of_load_balancing(snapshot, o)));
    http.chain(gateway_http)
        .chain(tcp)
        .chain(balancing)
        .chain(snapshot.route_filters().map(|o| (MeshRouteFilter::KIND, &o.key, of_route_filter())))
        .chain(gateways)
        .map(|(kind, key, status)| PlannedStatus {
            api_version: "zoneward.dev/v1alpha1",
            kind,
            key: key.clone(),
            status: mesh_value(&status),
        })
        .collect()
}

/// Objects that could be parsed are accepted; the others are notices.
fn mesh_value(status: &RouteStatus) -> Value {
    let one = |kind: &str, condition: &RouteCondition| {
        json!({"type": kind, "status": condition.status.as_str(), "reason": condition.reason,
            "message": condition.message})
    };
    json!({"conditions": [
        {"type": "Accepted", "status": "True", "reason": "Accepted", "message": ""},
        one("ResolvedRefs", &status.resolved),
        one("Programmed", &status.programmed),
    ]})
}

fn secret_states(snapshot: &Snapshot) -> BTreeMap<ObjectKey, SecretState> {
    let listeners = snapshot.mesh_gateways().flat_map(|gateway| gateway.listeners.iter());
    let secrets = listeners.flat_map(|listener| listener.certificates.iter().map(|own| &own.secret));
    let state = |key: &ObjectKey| match snapshot.certificate_source(CertificateKind::Secret, key) {
        None => SecretState::Unusable(format!("Secret {key} does not exist")),
        Some(source) => match &source.problem {
            Some(problem) => SecretState::Unusable(format!("Secret {key}: {problem}")),
            None => SecretState::Usable,
        },
    };
    secrets.map(|key| (key.clone(), state(key))).collect()
}

fn text(all: &[PlannedStatus]) -> String {
    let mut rows = table(&["OBJECT", "PART", "CONDITION", "STATUS", "REASON", "MESSAGE"]);
    for own in all {
        let name = match own.key.namespace.as_str() {
            "" => format!("{} {}", own.kind, own.key.name),
            _ => format!("{} {}", own.kind, own.key),
        };
        for (part, condition) in own.conditions() {
            let field = |name: &str| condition[name].as_str().unwrap_or_default().to_owned();
            rows.add_row([
                name.clone(),
                part,
                field("type"),
                field("status"),
                field("reason"),
                field("message"),
            ]);
        }
    }
    render(&rows)
}
