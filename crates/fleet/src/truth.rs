//! What the API committed, read from its log beside the network, and the invariants of that history: 1 (acknowledged
//! writes survive), 2 (revisions grow), 3 (no lost update), 6 (slices name real pods), 7 (addresses are unique). It passes
//! changes on to the checks of 8, 12 and 14.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use model::{Interner, Node, Object, Service, Slice, parse};
use plan::PlanningConfig;
use plan::hints::TopologyScope;
use serde_json::Value;
use store::engine::{Engine, ResourceId, Revision, WatchEvent, WatchEventType, Watcher};
use store::kinds;

use crate::acknowledgements::Acknowledgements;
use crate::foreign::ForeignFields;
use crate::parties::service_range;
use crate::udp_history::UdpHistory;
use crate::violation::BrokenInvariant;

/// Versions of a Service that a node may still have.
const VERSIONS: usize = 400;

type Checked = Result<(), BrokenInvariant>;

struct CommittedChange {
    kind: u16,
    namespace: String,
    name: String,
    is_deletion: bool,
    hash: u64,
}

/// Versions of a Service and of its slices, as a node may have seen them.
#[derive(Default)]
pub(crate) struct ServiceVersions {
    pub services: Vec<Service>,
    pub slices: Vec<Vec<Slice>>,
    /// The revision of the change after which the slices were these.
    pub slice_revisions: Vec<u64>,
    /// Whether every version required its zone.
    pub always_requires_zone: bool,
}

#[derive(Default)]
pub(crate) struct Truth {
    changes: Vec<CommittedChange>,
    watchers: Vec<(u16, Watcher)>,
    /// The newest revision of each object, deleted ones included.
    newest: BTreeMap<(u16, String, String), u64>,
    revisions_by_kind: BTreeMap<u16, BTreeSet<u64>>,
    interner: Interner,
    pub versions: BTreeMap<String, ServiceVersions>,
    live_slices: BTreeMap<String, Slice>,
    /// Services that ever had a cluster IP, with their ports.
    pub frontends: BTreeMap<(IpAddr, u16), BTreeSet<String>>,
    endpoints: BTreeMap<String, BTreeSet<SocketAddr>>,
    /// Addresses of each Pod's uid; zones that an address was in.
    pod_addresses: BTreeMap<String, BTreeSet<IpAddr>>,
    pod_nodes: BTreeMap<IpAddr, BTreeSet<String>>,
    pub nodes: BTreeMap<String, Vec<Node>>,
    cluster_ips: BTreeMap<String, (String, Vec<u64>)>,
    deleted_services: BTreeSet<String>,
    ids: KnownKinds,
    /// Revision of the last change that is not a Lease's.
    pub last_change: u64,
    pub last_change_line: String,
    /// Simulated time.
    pub now: u64,
    pub foreign: ForeignFields,
    pub acknowledgements: Acknowledgements,
    pub udp: UdpHistory,
}

struct KnownKinds {
    service: u16,
    slice: u16,
    pod: u16,
    node: u16,
    lease: u16,
}

impl Default for KnownKinds {
    fn default() -> Self {
        let id = |kind: &str| kinds::named(kind).map_or(0, |row| row.id);
        Self {
            service: id("Service"),
            slice: id("EndpointSlice"),
            pod: id("Pod"),
            node: id("Node"),
            lease: id("Lease"),
        }
    }
}

fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

impl Truth {
    /// The newest revision.
    pub(crate) fn revision(&self) -> u64 {
        self.changes.len() as u64
    }

    /// The API started: its log must continue what was committed before.
    pub(crate) fn reopen(&mut self, engine: &Engine) -> Checked {
        self.watchers.clear();
        let revision = engine.revision().0;
        if revision < self.revision() {
            let text = format!(
                "the API is at revision {revision} after a restart and committed {}",
                self.revision()
            );
            return Err(BrokenInvariant::new(1, text));
        }
        let stats = engine.stats().map_err(|error| BrokenInvariant::new(1, error.to_string()))?;
        let from = stats.compacted.0.max(self.revision().saturating_sub(300)).min(self.revision());
        for kind in kinds::stored() {
            let opened = engine.watch(ResourceId(kind.id), None, Revision(from));
            let watcher =
                opened.map_err(|error| BrokenInvariant::new(1, format!("{}: {error}", kind.kind)))?;
            self.watchers.push((kind.id, watcher));
        }
        Ok(())
    }

    /// The API is down.
    pub(crate) fn close(&mut self) {
        self.watchers.clear();
    }

    /// Reads what was committed since the last call.
    pub(crate) fn read(&mut self) -> Checked {
        let mut events: Vec<Arc<WatchEvent>> = Vec::new();
        for (_, watcher) in &mut self.watchers {
            loop {
                let more = watcher.ready().map_err(|error| BrokenInvariant::new(2, error.to_string()))?;
                if more.is_empty() {
                    break;
                }
                events.extend(more);
            }
        }
        events.sort_by_key(|event| event.revision);
        for event in events {
            let revision = event.revision.0;
            if revision <= self.revision() {
                self.compare(&event)?;
                continue;
            }
            if revision != self.revision() + 1 {
                let text = format!("revision {revision} follows {}", self.revision());
                return Err(BrokenInvariant::new(2, text));
            }
            self.append(&event)?;
        }
        Ok(())
    }

    fn compare(&self, event: &WatchEvent) -> Checked {
        let Some(known) = self.changes.get(event.revision.0 as usize - 1) else { return Ok(()) };
        let same = known.kind == event.key.resource.0
            && *known.name == *event.key.name
            && *known.namespace == *event.key.namespace
            && known.is_deletion == (event.kind == WatchEventType::Deleted)
            && known.hash == hash(&event.json);
        match same {
            true => Ok(()),
            false => Err(BrokenInvariant::new(
                1,
                format!(
                    "revision {} is another change after a restart: {} was {}/{}",
                    event.revision, event.key, known.namespace, known.name
                ),
            )),
        }
    }

    fn append(&mut self, event: &WatchEvent) -> Checked {
        let (kind, revision) = (event.key.resource.0, event.revision.0);
        let is_deletion = event.kind == WatchEventType::Deleted;
        let (namespace, name) = (event.key.namespace.to_string(), event.key.name.to_string());
        self.newest.insert((kind, namespace.clone(), name.clone()), revision);
        self.revisions_by_kind.entry(kind).or_default().insert(revision);
        let hash = hash(&event.json);
        self.changes.push(CommittedChange { kind, namespace, name: name.clone(), is_deletion, hash });
        if kind != self.ids.lease {
            self.last_change = revision;
            let text = String::from_utf8_lossy(&event.json);
            self.last_change_line = format!("{:?} {}: {text}", event.kind, event.key);
        }
        let row = [
            (self.ids.service, "v1", "Service"),
            (self.ids.slice, "discovery.k8s.io/v1", "EndpointSlice"),
            (self.ids.pod, "v1", "Pod"),
            (self.ids.node, "v1", "Node"),
        ];
        if kind == self.ids.lease {
            let lease = serde_json::from_slice(&event.json).unwrap_or_default();
            self.acknowledgements.lease(&name, &lease, self.now);
        }
        let Some((_, version, word)) = row.into_iter().find(|(id, ..)| *id == kind) else { return Ok(()) };
        let text = String::from_utf8_lossy(&event.json).into_owned();
        let (object, _) = parse::text(version, word, &text, &mut self.interner);
        let full_name = format!("{}/{name}", event.key.namespace);
        match object {
            Some(Object::Service(service)) => self.service(&full_name, *service, &text, is_deletion),
            Some(Object::Slice(slice)) => {
                let json = serde_json::from_str(&text).unwrap_or_default();
                self.foreign.slice(&full_name, &json, is_deletion)?;
                self.slice(&full_name, *slice, is_deletion)
            }
            Some(Object::Node(node)) => {
                self.acknowledgements.node(&name, is_deletion, self.now);
                self.nodes.entry(name).or_default().push(*node);
                Ok(())
            }
            Some(Object::Pod(_)) => {
                self.pod(&text);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn pod(&mut self, text: &str) {
        let pod: Value = serde_json::from_str(text).unwrap_or_default();
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
        if let Some(address) = pod["status"]["podIP"].as_str().and_then(|ip| ip.parse::<IpAddr>().ok()) {
            self.pod_addresses.entry(uid).or_default().insert(address);
            self.pod_nodes.entry(address).or_default().insert(node.to_owned());
        }
    }

    fn service(&mut self, name: &str, service: Service, text: &str, is_deletion: bool) -> Checked {
        let json: Value = serde_json::from_str(text).unwrap_or_default();
        self.foreign.service(name, &json, is_deletion)?;
        self.acknowledgements.service(name, &json, is_deletion, self.now)?;
        self.udp.service(name, &service, is_deletion);
        self.cluster_ips.remove(name);
        let versions = self.versions.entry(name.to_owned()).or_default();
        // By the mechanism that is chosen: our own annotation comes before that of the zone.
        let chosen = PlanningConfig::without_flags().choose(&service, None).mechanism;
        let requires = chosen.required() == Some(TopologyScope::Zone);
        versions.always_requires_zone =
            requires && (versions.services.is_empty() || versions.always_requires_zone);
        if is_deletion {
            self.deleted_services.insert(name.to_owned());
            return Ok(());
        }
        let ports = json["spec"]["ports"].as_array().cloned().unwrap_or_default();
        let node_ports: Vec<u64> = ports.iter().filter_map(|port| port["nodePort"].as_u64()).collect();
        let ip = json["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned();
        if let Ok(address) = ip.parse::<IpAddr>() {
            if !service_range().contains(&address) {
                return Err(BrokenInvariant::new(
                    7,
                    format!("Service {name} has {address}, outside of the range"),
                ));
            }
            for port in ports.iter().filter_map(|port| port["port"].as_u64()) {
                self.frontends.entry((address, port as u16)).or_default().insert(name.to_owned());
            }
        }
        for (other, (theirs, their_ports)) in &self.cluster_ips {
            if *theirs == ip && ip != "None" && !ip.is_empty() {
                return Err(BrokenInvariant::new(7, format!("Services {name} and {other} have {ip}")));
            }
            if node_ports.iter().any(|port| their_ports.contains(port)) {
                return Err(BrokenInvariant::new(
                    7,
                    format!("Services {name} and {other} share a node port"),
                ));
            }
        }
        if let Some(port) = node_ports.iter().find(|port| !(30_000..=32_767).contains(*port)) {
            return Err(BrokenInvariant::new(
                7,
                format!("Service {name} has node port {port}, outside of the range"),
            ));
        }
        self.cluster_ips.insert(name.to_owned(), (ip, node_ports));
        versions.services.push(service);
        let extra = versions.services.len().saturating_sub(VERSIONS);
        versions.services.drain(..extra);
        Ok(())
    }

    fn slice(&mut self, name: &str, slice: Slice, is_deletion: bool) -> Checked {
        if slice.content.endpoints.len() > 100 {
            let text = format!("EndpointSlice {name} has {} endpoints", slice.content.endpoints.len());
            return Err(BrokenInvariant::new(5, text));
        }
        let Some(service) = slice.service().map(|key| key.to_string()) else { return Ok(()) };
        for endpoint in &slice.content.endpoints {
            let address = endpoint.addresses.first();
            // Endpoints of other managers are no pods.
            if let Some(target) = endpoint.target() {
                let uid = target.uid.as_ref().map(ToString::to_string).unwrap_or_default();
                if !self.pod_addresses.get(&uid).is_some_and(|known| known.contains(&address)) {
                    let text =
                        format!("EndpointSlice {name} says that Pod {} ({uid}) has {address}", target.name);
                    return Err(BrokenInvariant::new(6, text));
                }
            }
            let known = self.endpoints.entry(service.clone()).or_default();
            known.extend(
                slice.content.ports.iter().filter_map(|port| Some(SocketAddr::new(address, port.port?))),
            );
        }
        match is_deletion {
            true => drop(self.live_slices.remove(name)),
            false => drop(self.live_slices.insert(name.to_owned(), slice)),
        }
        let of_service = |slice: &&Slice| slice.service().is_some_and(|key| key.to_string() == service);
        let now: Vec<Slice> = self.live_slices.values().filter(of_service).cloned().collect();
        let revision = |slice: &Slice| slice.resource_version.as_ref().and_then(|text| text.parse().ok());
        let newest = now.iter().filter_map(revision).max().unwrap_or_default();
        self.acknowledgements.slices(&service, newest, self.now);
        self.udp.slices(&service, &now);
        let revision = self.revision();
        let versions = self.versions.entry(service).or_default();
        versions.slices.push(now);
        versions.slice_revisions.push(revision);
        let extra = versions.slices.len().saturating_sub(VERSIONS);
        versions.slices.drain(..extra);
        versions.slice_revisions.drain(..extra);
        Ok(())
    }

    /// Whether the addresses of a Service were never those of another one.
    pub(crate) fn has_own_addresses(&self, service: &str) -> bool {
        !self.frontends.values().any(|services| services.len() > 1 && services.contains(service))
    }

    /// Whether a Service exists, was never deleted, and its addresses were never those of another one.
    pub(crate) fn is_constant(&self, service: &str) -> bool {
        self.cluster_ips.contains_key(service)
            && !self.deleted_services.contains(service)
            && self.has_own_addresses(service)
    }

    /// Whether an address was ever an endpoint of a Service.
    pub(crate) fn was_endpoint(&self, service: &str, address: SocketAddr) -> bool {
        self.endpoints.get(service).is_some_and(|known| known.contains(&address))
    }

    /// The zones in which the Pods of an address were.
    pub(crate) fn zones_of(&self, address: IpAddr) -> BTreeSet<String> {
        let nodes = self.pod_nodes.get(&address).into_iter().flatten();
        let versions = nodes.filter_map(|node| self.nodes.get(node)).flatten();
        versions.filter_map(|node| node.zone.as_ref().map(ToString::to_string)).collect()
    }

    /// A successful response to a write: invariants 1 and 3.
    pub(crate) fn acknowledged(&self, line: &str, sent: &Value, response: &Value) -> Checked {
        let meta = &response["metadata"];
        let revision =
            |meta: &Value| meta["resourceVersion"].as_str().and_then(|text| text.parse::<u64>().ok());
        let Some(written) = revision(meta) else { return Ok(()) };
        let Some(change) = written.checked_sub(1).and_then(|at| self.changes.get(at as usize)) else {
            return Err(BrokenInvariant::new(
                1,
                format!("{line} was acknowledged with revision {written}, not committed"),
            ));
        };
        if Some(change.name.as_str()) != meta["name"].as_str() {
            let text =
                format!("{line} was acknowledged with revision {written}, which changed {}", change.name);
            return Err(BrokenInvariant::new(1, text));
        }
        if !line.starts_with("PUT ") {
            return Ok(());
        }
        let Some(expected) = revision(&sent["metadata"]) else { return Ok(()) };
        // The version before the write; an update that changes nothing commits nothing.
        let all = self.revisions_by_kind.get(&change.kind);
        let same = |at: &&u64| {
            let before = &self.changes[**at as usize - 1];
            before.name == change.name && before.namespace == change.namespace
        };
        let before = all.and_then(|all| all.range(..written).rev().find(same)).copied();
        match before == Some(expected) || written == expected {
            true => Ok(()),
            false => Err(BrokenInvariant::new(
                3,
                format!("{line} expected revision {expected} and replaced revision {before:?}"),
            )),
        }
    }

    /// Whether a kind changed after one revision and before another.
    pub(crate) fn changed_between(
        &self,
        kind: u16,
        namespace: Option<&str>,
        after: u64,
        before: u64,
    ) -> Option<u64> {
        let revisions = self.revisions_by_kind.get(&kind)?.range(after + 1..before);
        let in_scope =
            |at: &&u64| namespace.is_none_or(|wanted| self.changes[**at as usize - 1].namespace == wanted);
        revisions.into_iter().find(in_scope).copied()
    }
}
