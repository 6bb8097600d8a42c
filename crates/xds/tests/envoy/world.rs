//! Tables for tests: from policies by the plan, with backends that really listen.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use model::backend::{Backend, BackendEndpoint, BackendTable, ConsumerLocation};
use model::route::{AppProtocol, BackendId, RouteTable};
use model::{Interner, Labels, Name, ObjectKey, ServiceKey, Snapshot, parse};
use plan::routes::{MeshClient, PolicyConsumer, gateway, outbound, set_load_balancing};
use serde_json::{Value, json};
use xds::render::{EnvoyListeners, RenderInput};

pub fn items(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn names_in(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            let of_service =
                map.get("kind").and_then(Value::as_str).is_some_and(|k| k.starts_with("MeshService"));
            names.extend(map.get("name").and_then(Value::as_str).filter(|_| of_service).map(str::to_owned));
            map.values().for_each(|inner| names_in(inner, names));
        }
        Value::Array(list) => list.iter().for_each(|inner| names_in(inner, names)),
        _ => {}
    }
}

/// Policies as `{type, name, spec}` in a namespace, a Service for every name that does not begin with `missing`.
pub fn snapshot(namespace: &str, resources: &[Value], others: &[&str], listeners: &Value) -> Snapshot {
    let mut names: BTreeSet<String> = others.iter().map(|name| (*name).to_owned()).collect();
    resources.iter().for_each(|resource| names_in(resource, &mut names));
    let metadata = |name: &str| json!({"name": name, "namespace": namespace});
    let there = names.iter().filter(|name| !name.starts_with("missing"));
    let service = |name: &String| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata(name),
            "spec": {"ports": [{"port": 80, "appProtocol": "http"}]}})
    };
    let mut values: Vec<Value> = there.map(service).collect();
    values.extend(resources.iter().map(|r| {
        json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": r["type"], "spec": r["spec"],
            "metadata": metadata(r["name"].as_str().unwrap())})
    }));
    if listeners.is_array() {
        values.push(json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshGateway",
            "metadata": metadata("edge"), "spec": {"listeners": listeners}}));
    }
    let (mut snapshot, mut interner) = (Snapshot::default(), Interner::default());
    for value in &values {
        let (object, notices) = parse::object(value, &mut interner);
        assert!(notices.iter().all(|notice| notice.reason == "IgnoredField"), "{notices:?}: {value}");
        snapshot.apply(object.expect("a known kind"));
    }
    snapshot
}

/// The same backends, spoken to in another way.
pub fn speaking(mut input: RenderInput, protocol: AppProtocol) -> RenderInput {
    let mut table = BackendTable::new(ConsumerLocation::default());
    for backend in input.tiers.iter().flat_map(|tier| tier.backends()) {
        table.put(Arc::new(Backend { protocol, ..Backend::clone(backend) }));
    }
    input.tiers = vec![Arc::new(table)];
    input
}

/// Where each Service's endpoints are: address, zone, weight.
pub type Places = BTreeMap<String, Vec<(SocketAddr, &'static str, f32)>>;

pub fn table(routes: &RouteTable, places: &Places) -> BackendTable {
    let mut table = BackendTable::new(ConsumerLocation::default());
    for id in routes.backends() {
        let endpoints = places.get(id.service.name.as_str()).map(Vec::as_slice).unwrap_or_default();
        table.put(Arc::new(backend(&id, endpoints)));
    }
    table
}

pub fn backend(id: &BackendId, endpoints: &[(SocketAddr, &'static str, f32)]) -> Backend {
    let endpoint = |(address, zone, weight): &(SocketAddr, &'static str, f32)| BackendEndpoint {
        address: *address,
        weight: *weight,
        priority: 0,
        zone: Some(Name::new(zone)),
        locality: model::Locality::Unknown,
    };
    let mut endpoints: Vec<BackendEndpoint> = endpoints.iter().map(endpoint).collect();
    endpoints.sort_by_key(|endpoint| endpoint.address);
    Backend {
        id: id.clone(),
        protocol: AppProtocol::Http,
        proxy_protocol: None,
        endpoints: endpoints.into(),
        mode: "all",
        is_warmed: false,
    }
}

pub fn key(namespace: &str, name: &str) -> ServiceKey {
    ServiceKey::new(&namespace.into(), &name.into())
}

/// A gateway `edge` whose ports are elsewhere.
pub fn gateway_input(
    snapshot: &Snapshot,
    namespace: &str,
    at: &[(u16, SocketAddr)],
    places: &Places,
) -> RenderInput {
    let gateway_key = ObjectKey::new(&namespace.into(), &"edge".into());
    let (mut routes, _) = gateway(snapshot, snapshot.mesh_gateway(&gateway_key).unwrap());
    set_load_balancing(&mut routes, snapshot, PolicyConsumer::Gateway(&gateway_key));
    RenderInput {
        tiers: vec![Arc::new(table(&routes, places))],
        routes: Arc::new(routes),
        certificates: Arc::default(),
        authorities: Arc::default(),
        listeners: EnvoyListeners::Gateway {
            gateway: gateway_key,
            bind: "127.0.0.1".parse().unwrap(),
            port_overrides: at.iter().copied().collect(),
        },
        allowlist: Arc::default(),
        edge: Arc::default(),
        retries: model::route::RetryLimits::DEFAULT,
    }
}

/// A sidecar with a port for one destination.
pub fn sidecar_input(
    snapshot: &Snapshot,
    namespace: &str,
    (client, tags): (&str, &Labels),
    destination: &str,
    at: SocketAddr,
    places: &Places,
) -> RenderInput {
    let client = MeshClient::of_service(snapshot, &key(namespace, client), tags);
    let service = snapshot.service(&key(namespace, destination)).unwrap();
    let mut routes = RouteTable::default();
    routes.put_outbound(outbound(snapshot, &client, service, &service.ports[0]).unwrap().0.into());
    set_load_balancing(&mut routes, snapshot, PolicyConsumer::Client(&client));
    RenderInput {
        tiers: vec![Arc::new(table(&routes, places))],
        routes: Arc::new(routes),
        certificates: Arc::default(),
        authorities: Arc::default(),
        listeners: EnvoyListeners::Sidecar {
            capture: None,
            outbounds: [(at, (key(namespace, destination), 80))].into(),
        },
        allowlist: Arc::default(),
        edge: Arc::default(),
        retries: model::route::RetryLimits::DEFAULT,
    }
}
