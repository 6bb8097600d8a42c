//! The L7 control plane as a party: `mesh::control` with what it publishes to two Envoys, a sidecar and a gateway, and
//! invariant 23: after healing, their resources equal those that are planned and rendered from nothing.
//!
//! ```text
//! Link -> ObjectSource -> mesh::control::run -> PublishedResources of each Envoy
//! engine -> Snapshot -> plan::routes, plan::backends -> xds::render(.., None)  = the same
//! ```

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use mesh::control::{EnvoySettings, Subscriptions};
use mesh::destination_port;
use mesh::object_source::ObjectSource;
use mesh::table_cache::KINDS;
use model::backend::{BackendTable, ConsumerLocation};
use model::random::Random;
use model::route::{EdgeSettings, RetryLimits, RouteTable};
use model::{
    Interner, Labels, Name, ObjectKey, ServiceKey, Snapshot, Timestamp, TrafficPolicy, annotation, parse,
};
use plan::FeatureGates;
use plan::backends::{fallbacks, locality_rule, table as backend_table};
use plan::routes::{MeshClient, gateway, sidecar};
use serde_json::{Value, json};
use store::engine::{Engine, ListQuery, ResourceId};
use store::kinds;
use tokio::sync::watch;
use xds::identity::{EnvoyIdentity, EnvoyRole, SidecarListeners};
use xds::render::{EnvoyListeners, RenderInput, render};
use xds::resource::ResourceType;
use xds::server::ResourceSource;
use xds::stream::PublishedResources;

use crate::link::Link;
use crate::time::PausedRuntime;
use crate::truth::Truth;
use crate::violation::BrokenInvariant;

/// All kinds of objects that the control plane reads are watched.
pub(crate) const CONTROL_WATCHES: usize = KINDS.len();
/// The MeshGateway of the gateway.
pub(crate) const GATEWAY: &str = "edge";
/// The Services of the sidecar, and of its own listener.
const CLIENT: &str = "s0";
const DESTINATION: &str = "s1";
const NAMESPACE: &str = "default";
const CAPTURE: u16 = 15_001;
/// Failover tiers after the first: zone, everything.
const FALLBACK_TIERS: usize = 2;

type Checked = Result<(), BrokenInvariant>;

/// An Envoy, and what was published for it.
struct Envoy {
    identity: EnvoyIdentity,
    resources: watch::Receiver<Option<Arc<PublishedResources>>>,
    /// The number of the last publication that was checked.
    checked: u64,
    /// What it stays with, if it is sabotaged.
    stale: Option<Arc<PublishedResources>>,
}

/// The control plane while it runs.
pub(crate) struct ControlProcess {
    envoys: Vec<Envoy>,
}

/// The control plane with its Envoys connected.
pub(crate) fn start_control(runtime: &PausedRuntime, link: &Link, random: Random) -> ControlProcess {
    let clock = runtime.clock();
    runtime.block_on(async {
        let source = ObjectSource::cluster(link.client(), random);
        let subscriptions = Arc::new(Subscriptions::new(8));
        let connect = |identity: EnvoyIdentity| {
            let resources = subscriptions.watch(&identity).expect("two identities are below the limit");
            Envoy { identity, resources, checked: 0, stale: None }
        };
        let envoys = vec![connect(sidecar_identity()), connect(gateway_identity())];
        let settings = EnvoySettings {
            allowlist: Default::default(),
            edge: Arc::default(),
            retries: RetryLimits::DEFAULT,
        };
        tokio::spawn(mesh::control::run(source, subscriptions, settings, clock, std::future::pending()));
        ControlProcess { envoys }
    })
}

fn sidecar_identity() -> EnvoyIdentity {
    let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 8_081);
    let outbounds = BTreeMap::from([(at, DESTINATION.to_owned())]);
    let listeners = SidecarListeners { capture: Some(CAPTURE), outbounds };
    EnvoyIdentity {
        namespace: NAMESPACE.to_owned(),
        role: EnvoyRole::Sidecar { from: CLIENT.to_owned(), tags: BTreeMap::new(), listeners },
        node: "node-0".to_owned(),
        zone: None,
    }
}

fn gateway_identity() -> EnvoyIdentity {
    let bind = IpAddr::from([0, 0, 0, 0]);
    EnvoyIdentity {
        namespace: NAMESPACE.to_owned(),
        role: EnvoyRole::Gateway { name: GATEWAY.to_owned(), bind, port_overrides: BTreeMap::new() },
        node: "node-1".to_owned(),
        zone: None,
    }
}

impl ControlProcess {
    /// Publications that were not looked at before, as lines of the story. Every endpoint in them was one.
    pub(crate) fn take_published(
        &mut self,
        truth: &Truth,
        is_stale: bool,
    ) -> Result<Vec<String>, BrokenInvariant> {
        let mut lines = Vec::new();
        for envoy in &mut self.envoys {
            let Some(published) = envoy.resources.borrow().clone() else { continue };
            if published.number == envoy.checked {
                continue;
            }
            envoy.checked = published.number;
            if is_stale {
                envoy.stale.get_or_insert_with(|| published.clone());
            }
            check_endpoints(&published, truth)?;
            let versions = published.resources.of(ResourceType::Endpoints).values();
            let versions: Vec<String> = versions.map(|resource| format!("{resource:?}")).collect();
            let role = envoy.identity.title();
            let len = published.resources.len();
            lines.push(format!("publishes {len} resources to {role}: {}", versions.join(", ")));
        }
        Ok(lines)
    }

    /// Sum of the numbers of all publications.
    pub(crate) fn publications(&self) -> u64 {
        self.envoys.iter().filter_map(|envoy| Some(envoy.resources.borrow().as_ref()?.number)).sum()
    }

    /// Invariant 23, once nothing changes any more.
    pub(crate) fn check(&self, engine: &Engine, now: Timestamp) -> Checked {
        let snapshot = snapshot(engine, now)?;
        self.envoys.iter().try_for_each(|envoy| envoy.check(&snapshot))
    }
}

impl Envoy {
    fn check(&self, snapshot: &Snapshot) -> Checked {
        let role = self.identity.title();
        let Some(published) = self.stale.clone().or_else(|| self.resources.borrow().clone()) else {
            return Err(BrokenInvariant::new(23, format!("{role} has no resources")));
        };
        let input = planned(snapshot, &self.identity);
        check_reachable(snapshot, &input)?;
        let wanted = render(input, None).resources;
        let differing = published.resources.changed_names(&wanted);
        if let Some((kind, names)) = differing.iter().next() {
            let shown = names.iter().next().map(|name| {
                let of = |set: &xds::resource::ResourceSet| {
                    set.find(*kind, name).map(|resource| xds::config_dump::value(*kind, resource))
                };
                (of(&published.resources), of(&wanted))
            });
            let text = format!("{role}: {kind} {names:?} differ from those planned from nothing: {shown:?}");
            return Err(BrokenInvariant::new(23, text));
        }
        Ok(())
    }
}

/// Endpoints that were published, by backend.
fn check_endpoints(published: &PublishedResources, truth: &Truth) -> Checked {
    for (name, resource) in published.resources.of(ResourceType::Endpoints) {
        let service = name.split(':').next().unwrap_or_default();
        // The API's own endpoint is no pod.
        if service == "default/kubernetes" {
            continue;
        }
        let value = xds::config_dump::value(ResourceType::Endpoints, resource);
        let mut addresses = Vec::new();
        collect_addresses(&value, &mut addresses);
        if let Some(address) = addresses.iter().find(|address| !truth.was_endpoint(service, **address)) {
            let text = format!("endpoints of {name} have {address}, which never was an endpoint");
            return Err(BrokenInvariant::new(23, text));
        }
    }
    Ok(())
}

/// The socket addresses anywhere in a resource.
fn collect_addresses(value: &Value, found: &mut Vec<SocketAddr>) {
    match value {
        Value::Object(fields) => {
            let ip = fields.get("address").and_then(Value::as_str).and_then(|text| text.parse().ok());
            let port = fields.get("port_value").or_else(|| fields.get("portValue")).and_then(Value::as_u64);
            if let (Some(ip), Some(port)) = (ip, port) {
                found.push(SocketAddr::new(ip, port as u16));
            }
            fields.values().for_each(|value| collect_addresses(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| collect_addresses(value, found)),
        _ => {}
    }
}

/// The objects that the control plane reads; of Pods and Namespaces the metadata.
fn snapshot(engine: &Engine, now: Timestamp) -> Result<Snapshot, BrokenInvariant> {
    let (mut snapshot, mut interner) = (Snapshot::default(), Interner::default());
    for kind in KINDS.into_iter().filter_map(|kind| kinds::named(kind.as_str())) {
        let page = engine.list(&ListQuery::all(ResourceId(kind.id)));
        let page = page.map_err(|error| BrokenInvariant::new(23, format!("{}: {error}", kind.kind)))?;
        for stored in page.items {
            let mut text = String::from_utf8_lossy(&stored.json).into_owned();
            if ["Pod", "Namespace"].contains(&kind.kind) {
                let object: Value = serde_json::from_str(&text).unwrap_or_default();
                text = json!({"metadata": object["metadata"]}).to_string();
            }
            if let (Some(object), _) = parse::text(&kind.api_version(), kind.kind, &text, &mut interner) {
                snapshot.apply(object);
            }
        }
    }
    plan::capacity::advance(&mut snapshot, now);
    Ok(snapshot)
}

/// As `zoneward plan routes --as envoy` does it.
fn planned(snapshot: &Snapshot, identity: &EnvoyIdentity) -> RenderInput {
    let node = Name::new(&identity.node);
    let place = ConsumerLocation { zone: snapshot.node(&node).and_then(|node| node.zone.clone()), node };
    let gates = FeatureGates::OF_PROXIES;
    let (routes, listeners) = match &identity.role {
        EnvoyRole::Sidecar { from, .. } => {
            let client = client(snapshot, from, &place);
            (sidecar(snapshot, &client).0, sidecar_listeners(snapshot))
        }
        EnvoyRole::Gateway { name, bind, .. } => {
            let key = ObjectKey::new(&Name::new(NAMESPACE), &Name::new(name));
            let routes = snapshot.mesh_gateway(&key).map(|found| gateway(snapshot, found).0);
            let listeners =
                EnvoyListeners::Gateway { gateway: key, bind: *bind, port_overrides: BTreeMap::new() };
            (routes.unwrap_or_default(), listeners)
        }
    };
    RenderInput {
        tiers: tiers(snapshot, &routes, &place, gates),
        routes: Arc::new(routes),
        certificates: Arc::default(),
        authorities: Arc::default(),
        listeners,
        allowlist: Arc::default(),
        edge: Arc::new(EdgeSettings::default()),
        retries: RetryLimits::DEFAULT,
    }
}

/// The client of the sidecar, at its place.
fn client(snapshot: &Snapshot, from: &str, place: &ConsumerLocation) -> MeshClient {
    let key = ServiceKey::new(&Name::new(NAMESPACE), &Name::new(from));
    let mut client = MeshClient::of_service(snapshot, &key, &Labels::EMPTY);
    let mut pairs = client.tags.as_slice().to_vec();
    pairs.extend(place.zone.clone().map(|zone| (Name::new(annotation::ZONE), zone)));
    pairs.push((Name::new("kubernetes.io/hostname"), place.node.clone()));
    client.tags = Labels::from_pairs(pairs);
    client
}

fn sidecar_listeners(snapshot: &Snapshot) -> EnvoyListeners {
    let key = ServiceKey::new(&Name::new(NAMESPACE), &Name::new(DESTINATION));
    let port = snapshot.service(&key).and_then(|service| destination_port(service, None).ok());
    let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 8_081);
    let outbounds = port.map(|port| (at, (key.clone(), port.port))).into_iter().collect();
    EnvoyListeners::Sidecar { capture: Some(CAPTURE), outbounds }
}

fn tiers(
    snapshot: &Snapshot,
    routes: &RouteTable,
    place: &ConsumerLocation,
    gates: FeatureGates,
) -> Vec<Arc<BackendTable>> {
    let first = backend_table(snapshot, routes, place, gates);
    let mut further = vec![BackendTable::new(place.clone()); FALLBACK_TIERS];
    for backend in first.backends() {
        let rule = locality_rule(routes, &backend.id, place);
        for (table, backend) in further.iter_mut().zip(fallbacks(snapshot, &backend.id, place, gates, rule)) {
            table.put(Arc::new(backend));
        }
    }
    std::iter::once(first).chain(further).map(Arc::new).collect()
}

/// A request to a backend finds an endpoint whenever one is ready and nothing confines it to a place: no Require, no policy
/// Local, no localities of a MeshLoadBalancing (run 50004).
fn check_reachable(snapshot: &Snapshot, input: &RenderInput) -> Checked {
    let Some(table) = input.tiers.first() else { return Ok(()) };
    for backend in table.backends().filter(|backend| backend.endpoints.is_empty()) {
        let Some(service) = snapshot.service(&backend.id.service) else { continue };
        let is_free = service.annotations.is_empty()
            && service.internal_policy == TrafficPolicy::Cluster
            && backend.id.tags.is_empty()
            && locality_rule(&input.routes, &backend.id, &table.consumer).is_none();
        let mut endpoints =
            snapshot.slices(&backend.id.service).iter().flat_map(|slice| &slice.content.endpoints);
        if is_free && endpoints.any(|endpoint| endpoint.conditions.is_ready()) {
            let text = format!("requests to {:?} are dropped although an endpoint is ready", backend.id);
            return Err(BrokenInvariant::new(23, text));
        }
    }
    Ok(())
}
