//! Route policies and gateways, by namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Snapshot;
use crate::name::{Name, ObjectKey};
use crate::route::{
    Hostname, MeshGateway, MeshGatewayHttpRoute, MeshHttpRoute, MeshLoadBalancing, MeshRouteFilter,
    MeshTcpRoute, RouteRule,
};

#[derive(Debug, Default)]
pub(super) struct RouteIndex {
    http: BTreeMap<ObjectKey, MeshHttpRoute>,
    gateway_http: BTreeMap<ObjectKey, MeshGatewayHttpRoute>,
    gateway_http_by_host: BTreeMap<Hostname, BTreeSet<ObjectKey>>,
    tcp: BTreeMap<ObjectKey, MeshTcpRoute>,
    gateways: BTreeMap<ObjectKey, MeshGateway>,
    load_balancing: BTreeMap<ObjectKey, MeshLoadBalancing>,
    filters: BTreeMap<ObjectKey, MeshRouteFilter>,
}

impl RouteIndex {
    pub(super) fn put_http(&mut self, mut route: MeshHttpRoute) {
        if let Some(old) = self.http.get(&route.key) {
            for (to, old) in route.to.iter_mut().zip(&old.to) {
                reuse_equal_rules(&mut to.rules, &old.rules);
            }
        }
        self.http.insert(route.key.clone(), route);
    }

    pub(super) fn put_gateway_http(&mut self, mut route: MeshGatewayHttpRoute) {
        if let Some(old) = self.remove_gateway_http(&route.key) {
            reuse_equal_rules(&mut route.rules, &old.rules);
        }
        for host in &route.hostnames {
            self.gateway_http_by_host.entry(host.clone()).or_default().insert(route.key.clone());
        }
        self.gateway_http.insert(route.key.clone(), route);
    }

    fn remove_gateway_http(&mut self, key: &ObjectKey) -> Option<MeshGatewayHttpRoute> {
        let old = self.gateway_http.remove(key)?;
        for host in &old.hostnames {
            let Some(routes) = self.gateway_http_by_host.get_mut(host) else { continue };
            routes.remove(key);
            if routes.is_empty() {
                self.gateway_http_by_host.remove(host);
            }
        }
        Some(old)
    }

    pub(super) fn put_tcp(&mut self, route: MeshTcpRoute) {
        self.tcp.insert(route.key.clone(), route);
    }

    pub(super) fn put_mesh_gateway(&mut self, gateway: MeshGateway) {
        self.gateways.insert(gateway.key.clone(), gateway);
    }

    pub(super) fn put_route_filter(&mut self, filter: MeshRouteFilter) {
        self.filters.insert(filter.key.clone(), filter);
    }

    /// Objects of a file have no creation time: the revision that added them stands for it.
    pub(super) fn put_load_balancing(&mut self, mut policy: MeshLoadBalancing, revision: u64) {
        let known = self.load_balancing.get(&policy.identity.key).map(|held| held.identity.added);
        policy.identity.added = known.unwrap_or(revision);
        self.load_balancing.insert(policy.identity.key.clone(), policy);
    }
}

pub(super) fn within<'m, T>(
    map: &'m BTreeMap<ObjectKey, T>,
    namespace: &Name,
) -> impl Iterator<Item = &'m T> {
    let first = ObjectKey { namespace: namespace.clone(), name: Name::default() };
    let namespace = namespace.clone();
    map.range(first..).take_while(move |(key, _)| key.namespace == namespace).map(|(_, object)| object)
}

/// Keeps the old value of equal rules: planning and the proxy recognise them by their pointer.
fn reuse_equal_rules(rules: &mut [Arc<RouteRule>], old: &[Arc<RouteRule>]) {
    for (rule, old) in rules.iter_mut().zip(old).filter(|(rule, old)| rule == old) {
        *rule = old.clone();
    }
}

impl Snapshot {
    pub fn mesh_http_routes(&self, namespace: &Name) -> impl Iterator<Item = &MeshHttpRoute> {
        within(&self.routes.http, namespace)
    }

    pub fn mesh_gateway_http_routes(&self, namespace: &Name) -> impl Iterator<Item = &MeshGatewayHttpRoute> {
        within(&self.routes.gateway_http, namespace)
    }

    /// The MeshGatewayHTTPRoutes that name this host.
    pub fn mesh_gateway_http_routes_of_host(
        &self,
        host: &Hostname,
    ) -> impl Iterator<Item = &MeshGatewayHttpRoute> {
        let keys = self.routes.gateway_http_by_host.get(host).into_iter().flatten();
        keys.filter_map(|key| self.routes.gateway_http.get(key))
    }

    pub fn mesh_tcp_routes(&self, namespace: &Name) -> impl Iterator<Item = &MeshTcpRoute> {
        within(&self.routes.tcp, namespace)
    }

    pub fn all_mesh_http_routes(&self) -> impl Iterator<Item = &MeshHttpRoute> {
        self.routes.http.values()
    }

    pub fn all_mesh_tcp_routes(&self) -> impl Iterator<Item = &MeshTcpRoute> {
        self.routes.tcp.values()
    }

    pub fn mesh_http_route(&self, key: &ObjectKey) -> Option<&MeshHttpRoute> {
        self.routes.http.get(key)
    }

    pub fn mesh_gateway_http_route(&self, key: &ObjectKey) -> Option<&MeshGatewayHttpRoute> {
        self.routes.gateway_http.get(key)
    }

    pub fn mesh_tcp_route(&self, key: &ObjectKey) -> Option<&MeshTcpRoute> {
        self.routes.tcp.get(key)
    }

    pub fn mesh_http_route_keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.routes.http.keys()
    }

    pub fn mesh_gateway_http_route_keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.routes.gateway_http.keys()
    }

    pub fn mesh_tcp_route_keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.routes.tcp.keys()
    }

    pub fn mesh_gateway(&self, key: &ObjectKey) -> Option<&MeshGateway> {
        self.routes.gateways.get(key)
    }

    pub fn mesh_gateways(&self) -> impl Iterator<Item = &MeshGateway> {
        self.routes.gateways.values()
    }

    pub fn route_filter(&self, key: &ObjectKey) -> Option<&MeshRouteFilter> {
        self.routes.filters.get(key)
    }

    pub fn route_filters(&self) -> impl Iterator<Item = &MeshRouteFilter> {
        self.routes.filters.values()
    }

    pub fn remove_route_filter(&mut self, key: &ObjectKey) {
        self.revision.0 += 1;
        self.routes.filters.remove(key);
    }

    pub fn load_balancing_policies(&self, namespace: &Name) -> impl Iterator<Item = &MeshLoadBalancing> {
        within(&self.routes.load_balancing, namespace)
    }

    pub fn all_load_balancing_policies(&self) -> impl Iterator<Item = &MeshLoadBalancing> {
        self.routes.load_balancing.values()
    }

    pub fn load_balancing_policy(&self, key: &ObjectKey) -> Option<&MeshLoadBalancing> {
        self.routes.load_balancing.get(key)
    }

    pub fn remove_load_balancing_policy(&mut self, key: &ObjectKey) {
        self.revision.0 += 1;
        self.routes.load_balancing.remove(key);
    }

    pub fn remove_mesh_http_route(&mut self, key: &ObjectKey) {
        self.revision.0 += 1;
        self.routes.http.remove(key);
    }

    pub fn remove_mesh_gateway_http_route(&mut self, key: &ObjectKey) {
        self.revision.0 += 1;
        self.routes.remove_gateway_http(key);
    }

    pub fn remove_mesh_tcp_route(&mut self, key: &ObjectKey) {
        self.revision.0 += 1;
        self.routes.tcp.remove(key);
    }

    pub fn remove_mesh_gateway(&mut self, key: &ObjectKey) {
        self.revision.0 += 1;
        self.routes.gateways.remove(key);
    }
}
