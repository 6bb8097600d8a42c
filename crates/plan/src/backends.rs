//! The endpoints of a backend for one proxy: [`crate::select`] applied to a Service or to a subset of its pods.
//!
//! Endpoints are selected from the subset, so that safeguards apply within it: a canary without a pod in a zone is reachable
//! from there, unless the Service requires otherwise. A MeshLoadBalancing with `localities` replaces the preferences of the
//! Service by its own priorities and weights of zones.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use model::backend::{Backend, BackendEndpoint, BackendTable, ConsumerLocation, ProxyProtocol};
use model::route::{AppProtocol, BackendId, LocalityRule, RouteTable};
use model::{
    Endpoint, Family, Labels, Locality, ObjectKey, Service, ServicePort, Slice, SlicePort, Snapshot,
    TrafficPolicy, annotation,
};

use crate::capacity::has_slow_start;
use crate::feature_gates::FeatureGates;
use crate::routes::{HOSTNAME, REGION, ZONE};
use crate::select::{NodeView, PrioritizedEndpoint, select_by_localities, select_for_proxy};

/// The backends of a proxy. Those whose Service or port does not exist are left out.
pub fn table(
    snapshot: &Snapshot,
    routes: &RouteTable,
    consumer: &ConsumerLocation,
    gates: FeatureGates,
) -> BackendTable {
    let mut table = BackendTable::new(consumer.clone());
    for id in routes.backends() {
        let rule = locality_rule(routes, &id, consumer);
        if let Some(backend) = backend(snapshot, &id, consumer, gates, rule) {
            table.put(Arc::new(backend));
        }
    }
    table
}

/// The zones of a backend by MeshLoadBalancing; `None`: as its Service says.
pub fn locality_rule<'r>(
    routes: &'r RouteTable,
    id: &BackendId,
    consumer: &ConsumerLocation,
) -> Option<&'r LocalityRule> {
    routes.load_balancing(&id.service)?.settings.locality_rule(consumer.zone.as_deref())
}

/// One backend, by the [`locality_rule`] of its consumer; `None` if its Service or port does not exist.
pub fn backend(
    snapshot: &Snapshot,
    id: &BackendId,
    consumer: &ConsumerLocation,
    gates: FeatureGates,
    rule: Option<&LocalityRule>,
) -> Option<Backend> {
    let target = BackendPort::find(snapshot, id)?;
    let slices = target.slices(snapshot);
    let by_rule = rule.and_then(|rule| target.choose_by(rule, &slices, consumer, gates));
    Some(by_rule.unwrap_or_else(|| target.choose(&slices, consumer, gates)))
}

/// Failover tiers in priority order: the selection without the endpoints of the previous tiers, for proxies that see
/// endpoints fail before the API does. Empty under Require, if a policy has its own priorities, or if all endpoints are
/// already selected.
pub fn fallbacks(
    snapshot: &Snapshot,
    id: &BackendId,
    consumer: &ConsumerLocation,
    gates: FeatureGates,
    rule: Option<&LocalityRule>,
) -> Vec<Backend> {
    let Some(target) = BackendPort::find(snapshot, id) else { return Vec::new() };
    let mut slices = target.slices(snapshot).into_owned();
    if rule.is_some_and(|rule| target.choose_by(rule, &slices, consumer, gates).is_some()) {
        return Vec::new();
    }
    let mut chosen = target.choose(&slices, consumer, gates);
    let mut fallbacks = Vec::new();
    // Each round removes endpoints: node, zone, everything.
    while matches!(chosen.mode, "same-node" | "same-zone") {
        let taken: BTreeSet<SocketAddr> = chosen.endpoints.iter().map(|e| e.address).collect();
        for slice in &mut slices {
            let ports = slice.content.ports.clone();
            let is_taken = |endpoint: &Endpoint| places(endpoint, &ports).any(|place| taken.contains(&place));
            slice.content.endpoints.retain(|endpoint| !is_taken(endpoint));
        }
        let next = target.choose(&slices, consumer, gates);
        if taken.is_empty() || next.endpoints.is_empty() {
            break;
        }
        fallbacks.push(next.clone());
        chosen = next;
    }
    fallbacks
}

/// The Service port of a backend.
struct BackendPort<'s> {
    id: &'s BackendId,
    service: &'s Service,
    port: &'s ServicePort,
}

impl<'s> BackendPort<'s> {
    fn find(snapshot: &'s Snapshot, id: &'s BackendId) -> Option<Self> {
        let service = snapshot.service(&id.service)?;
        let port = service.ports.iter().find(|port| port.port == id.port && port.protocol == id.protocol)?;
        Some(Self { id, service, port })
    }

    fn slices(&self, snapshot: &'s Snapshot) -> Cow<'s, [Slice]> {
        let all = snapshot.slices(&self.id.service);
        if self.id.tags.is_empty() {
            return Cow::Borrowed(all);
        }
        Cow::Owned(subset_of(snapshot, all, &self.id.tags))
    }

    fn choose(&self, slices: &[Slice], consumer: &ConsumerLocation, gates: FeatureGates) -> Backend {
        let Self { service, port, .. } = self;
        let node = NodeView { name: &consumer.node, zone: consumer.zone.as_deref(), gates };
        let set = families(service).into_iter().find_map(|family| {
            let selections = select_for_proxy(service, slices, family, &node);
            let of_port = selections.into_iter().find(|s| std::ptr::eq(s.port, *port))?;
            let set = match service.internal_policy {
                TrafficPolicy::Local => of_port.local,
                TrafficPolicy::Cluster => of_port.cluster,
            };
            set.filter(|set| !set.endpoints.is_empty())
        });
        let mode = set.as_ref().map_or("", |set| set.mode.as_str());
        let selected: Vec<PrioritizedEndpoint> = set
            .into_iter()
            .flat_map(|set| set.endpoints)
            .map(|selected| PrioritizedEndpoint { selected, priority: 0 })
            .collect();
        self.backend(mode, &selected, slices, consumer)
    }

    /// The endpoints by a policy's zones; `None`: traffic has to stay in the scope that the Service says.
    fn choose_by(
        &self,
        rule: &LocalityRule,
        slices: &[Slice],
        consumer: &ConsumerLocation,
        gates: FeatureGates,
    ) -> Option<Backend> {
        let node = NodeView { name: &consumer.node, zone: consumer.zone.as_deref(), gates };
        let of = |family| select_by_localities(self.service, self.port, slices, family, &node, rule);
        let all: Option<Vec<_>> = families(self.service).into_iter().map(of).collect();
        let found = all?.into_iter().find(|endpoints| !endpoints.is_empty()).unwrap_or_default();
        let mode = if found.is_empty() { "" } else { "localities" };
        Some(self.backend(mode, &found, slices, consumer))
    }

    fn backend(
        &self,
        mode: &'static str,
        selected: &[PrioritizedEndpoint],
        slices: &[Slice],
        consumer: &ConsumerLocation,
    ) -> Backend {
        Backend {
            id: self.id.clone(),
            protocol: AppProtocol::of(self.port.app_protocol.as_deref(), &self.port.name),
            proxy_protocol: proxy_protocol(self.service),
            mode,
            is_warmed: has_slow_start(slices),
            endpoints: endpoints(selected, slices, consumer),
        }
    }
}

/// The header that the endpoints of a Service expect. A wrong value is reported where the Service is parsed.
fn proxy_protocol(service: &Service) -> Option<ProxyProtocol> {
    ProxyProtocol::parse(service.annotations.value(annotation::PROXY_PROTOCOL)?)
}

/// The primary family first; the other one is used if it has no endpoint.
fn families(service: &Service) -> Vec<Family> {
    let addresses = service.cluster_ips.addresses().iter().map(|ip| Family::of(*ip));
    let mut families: Vec<Family> = service.families.iter().copied().chain(addresses).collect();
    families.extend([Family::V4, Family::V6]);
    let mut seen = Vec::new();
    families.retain(|family| {
        let fresh = !seen.contains(family);
        seen.push(*family);
        fresh
    });
    families
}

fn endpoints(
    selected: &[PrioritizedEndpoint],
    slices: &[Slice],
    consumer: &ConsumerLocation,
) -> Box<[BackendEndpoint]> {
    let mut found: BTreeMap<SocketAddr, &Endpoint> = BTreeMap::new();
    for slice in slices {
        for endpoint in &slice.content.endpoints {
            found.extend(places(endpoint, &slice.content.ports).map(|place| (place, endpoint)));
        }
    }
    let here = (Some(consumer.node.as_str()), consumer.zone.as_deref());
    let endpoint = |PrioritizedEndpoint { selected: target, priority }: &PrioritizedEndpoint| {
        let stored = found.get(&target.address);
        let zone = stored.and_then(|endpoint| endpoint.zone.clone());
        let node = stored.and_then(|endpoint| endpoint.node.as_deref());
        let locality = Locality::of(here, (node, zone.as_deref()));
        BackendEndpoint {
            address: target.address,
            weight: target.weight as f32,
            priority: *priority,
            zone,
            locality,
        }
    };
    let weighted = selected.iter().map(endpoint);
    weighted.filter(|endpoint| endpoint.weight > 0.0 && endpoint.weight.is_finite()).collect()
}

/// The addresses of an endpoint. Processes on one machine share its IP and differ in their ports.
fn places(endpoint: &Endpoint, ports: &[SlicePort]) -> impl Iterator<Item = SocketAddr> {
    let ip = endpoint.addresses.first();
    ports.iter().filter_map(move |port| Some(SocketAddr::new(ip, port.port?)))
}

/// The slices with only those endpoints whose pods have all tags.
fn subset_of(snapshot: &Snapshot, slices: &[Slice], tags: &Labels) -> Vec<Slice> {
    let only = |slice: &Slice| {
        let mut slice = slice.clone();
        let endpoints = std::mem::take(&mut slice.content.endpoints);
        let members = endpoints.into_iter().filter(|endpoint| carries(snapshot, &slice, endpoint, tags));
        slice.content.endpoints = members.collect();
        slice
    };
    slices.iter().map(only).collect()
}

/// Zone, region and node come from topology, other tags from the pod's labels, or from the slice's if the endpoint is not a
/// pod.
fn carries(snapshot: &Snapshot, slice: &Slice, endpoint: &Endpoint, tags: &Labels) -> bool {
    let namespace = &slice.key.namespace;
    let pod = endpoint.target().map(|t| snapshot.pod(&ObjectKey::new(namespace, &t.name)));
    let labels = match pod {
        Some(pod) => pod.map(|pod| &pod.labels),
        None => Some(&slice.content.labels),
    };
    let node = endpoint.node.as_ref();
    let known = node.and_then(|name| snapshot.node(name));
    tags.iter().all(|(key, value)| {
        let own = match key.as_str() {
            ZONE => endpoint.zone.as_ref().or_else(|| known?.zone.as_ref()),
            REGION => known.and_then(|node| node.region.as_ref()),
            HOSTNAME => node,
            label => labels.and_then(|labels| labels.value(label)),
        };
        own == Some(value)
    })
}

#[cfg(test)]
mod tests;
