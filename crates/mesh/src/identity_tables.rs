//! The tables of one proxy identity, updated part by part: an outbound, a gateway's policy, a backend.
//!
//! Unchanged parts are shared with the tables before, so that their users can compare by pointer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::backend::{Backend, BackendTable, ConsumerLocation};
use model::gateway_api::CertificateKind;
use model::route::LocalityRule;
use model::{
    BackendId, Labels, Name, Notice, ObjectKey, ObjectRef, Protocol, RouteTable, ServiceKey, Snapshot,
};
use plan::FeatureGates;
use plan::backends::{fallbacks, locality_rule};
use plan::dependents::AffectedTables;
use plan::routes::{
    GatewayRoutes, LoadBalancingByService, MeshClient, OutboundRoutes, PolicyConsumer, all_load_balancing,
    idle_fields,
};

use super::certificate_watches::CertificateKey;
use super::proxy_identity::{PlannedGateway, ProxyIdentity, ProxyRole};

/// Shared by all identities during one refresh.
pub(super) struct RefreshContext<'r> {
    pub(super) snapshot: &'r Snapshot,
    pub(super) affected: &'r AffectedTables,
    /// Also plan failover tiers.
    pub(super) with_fallbacks: bool,
    /// Backends planned in this refresh, shared by identities in the same place.
    pub(super) planned: BTreeMap<(Name, Option<Name>, BackendId), Option<Arc<Backend>>>,
}

impl RefreshContext<'_> {
    fn backend(
        &mut self,
        id: &BackendId,
        place: &ConsumerLocation,
        rule: Option<&LocalityRule>,
    ) -> Option<Arc<Backend>> {
        if rule.is_some() {
            // By a policy for some of the identities.
            return plan::backends::backend(self.snapshot, id, place, FeatureGates::OF_PROXIES, rule)
                .map(Arc::new);
        }
        let key = (place.node.clone(), place.zone.clone(), id.clone());
        let (snapshot, gates) = (self.snapshot, FeatureGates::OF_PROXIES);
        let make = || plan::backends::backend(snapshot, id, place, gates, None).map(Arc::new);
        self.planned.entry(key).or_insert_with(make).clone()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangedTables {
    pub routes: bool,
    pub backends: bool,
    pub certificates: bool,
}

impl ChangedTables {
    pub fn any(self) -> bool {
        self.routes || self.backends || self.certificates
    }
}

/// A port of a Service, whose outbound is planned at once.
type OutboundKey = (ServiceKey, u16);

#[derive(Debug)]
struct PlannedOutbound {
    backends: BTreeSet<BackendId>,
    routes: OutboundRoutes,
}

#[derive(Debug)]
pub(super) struct IdentityTables {
    identity: ProxyIdentity,
    client: Option<MeshClient>,
    pub(super) routes: Arc<RouteTable>,
    pub(super) backends: Arc<BackendTable>,
    /// Failover tiers, in priority order.
    pub(super) fallbacks: Vec<Arc<BackendTable>>,
    outbounds: BTreeMap<OutboundKey, PlannedOutbound>,
    /// `None` unless it is a MeshGateway.
    gateway: Option<GatewayRoutes>,
    load_balancing: LoadBalancingByService,
    load_balancing_notices: Vec<Notice>,
    /// About zones and slow starts of policies that have no effect, by Service.
    idle_fields: BTreeMap<ServiceKey, Vec<Notice>>,
    /// About a gateway that does not exist, or about the routes of one of the Gateway API.
    gateway_notices: Vec<Notice>,
    /// Reference counts of backends: outbounds, or one for a gateway.
    uses: BTreeMap<BackendId, usize>,
    /// The Secrets and ConfigMaps of its listeners and backends.
    pub(super) certificates: BTreeSet<CertificateKey>,
    is_new: bool,
}

impl IdentityTables {
    pub(super) fn new(identity: ProxyIdentity) -> Self {
        Self {
            identity,
            client: None,
            routes: Arc::default(),
            backends: Arc::default(),
            fallbacks: Vec::new(),
            outbounds: BTreeMap::new(),
            gateway: None,
            load_balancing: BTreeMap::new(),
            load_balancing_notices: Vec::new(),
            idle_fields: BTreeMap::new(),
            gateway_notices: Vec::new(),
            uses: BTreeMap::new(),
            certificates: BTreeSet::new(),
            is_new: true,
        }
    }

    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    pub(super) fn notices(&self) -> Vec<Notice> {
        let mut notices: Vec<Notice> =
            self.outbounds.values().flat_map(|held| held.routes.notices.iter().cloned()).collect();
        notices.extend(self.gateway.iter().flat_map(GatewayRoutes::notices));
        notices.extend(self.gateway_notices.iter().cloned());
        notices.extend(self.load_balancing_notices.iter().cloned());
        notices.extend(self.idle_fields.values().flatten().cloned());
        notices
    }

    /// Updates what is affected.
    pub(super) fn refresh(&mut self, context: &mut RefreshContext<'_>) -> ChangedTables {
        let everything = std::mem::take(&mut self.is_new) || context.affected.everything;
        let mut changed =
            ChangedTables { backends: everything, routes: everything, certificates: everything };
        let mut stale = BTreeSet::new();
        let place = self.identity.place(context.snapshot);
        if everything || place != self.backends.consumer {
            self.backends = Arc::new(BackendTable::new(place));
            stale.extend(self.uses.keys().cloned());
            changed.backends = true;
        }
        match &self.identity.role {
            ProxyRole::Sidecar(service, _) => {
                let service = service.clone();
                changed.routes |= self.sidecar(&service, everything, context, &mut stale);
            }
            ProxyRole::Gateway(key, _) => {
                let key = key.clone();
                let affected = context.affected;
                // A MeshGateway comes before a Gateway of the same name.
                let is_standard = context.snapshot.mesh_gateway(&key).is_none();
                let is_affected = affected.mesh_gateways.contains(&key)
                    || (is_standard && (affected.all_gateways || affected.gateways.contains(&key)));
                changed.routes |= if everything || is_affected {
                    self.plan_gateway(&key, context.snapshot, &mut stale)
                } else {
                    self.gateway_routes(&key, context, &mut stale)
                };
                changed.certificates |= !self.certificates.is_disjoint(&affected.certificates);
            }
        }
        let mut services: BTreeSet<ServiceKey> = BTreeSet::new();
        if everything || changed.routes || context.affected.may_change_load_balancing() {
            changed.routes |= self.set_load_balancing(context.snapshot, &mut stale);
            services.extend(self.load_balancing.keys().chain(self.idle_fields.keys()).cloned());
        }
        self.add_stale(context, &mut stale);
        services.extend(stale.iter().map(|id| id.service.clone()));
        self.check_idle_fields(context.snapshot, services);
        changed.backends |= self.sync_backends(stale, context);
        changed
    }

    /// Until it is planned anew, a table has the load balancing of the one before.
    fn keep_load_balancing(&self, table: &mut Arc<RouteTable>) {
        if !self.load_balancing.is_empty() {
            Arc::make_mut(table).set_load_balancing(self.load_balancing.clone());
        }
    }

    /// Plans how requests are balanced, after routes were planned.
    fn set_load_balancing(&mut self, snapshot: &Snapshot, stale: &mut BTreeSet<BackendId>) -> bool {
        let consumer = match (&self.identity.role, &self.client) {
            (ProxyRole::Gateway(key, _), _) => PolicyConsumer::Gateway(key),
            (ProxyRole::Sidecar(..), Some(client)) => PolicyConsumer::Client(client),
            (ProxyRole::Sidecar(..), None) => return false,
        };
        let (all, notices) = all_load_balancing(&self.routes, &self.load_balancing, snapshot, consumer);
        self.load_balancing_notices = notices;
        let is_changed = *self.routes.all_load_balancing() != all;
        if is_changed {
            Arc::make_mut(&mut self.routes).set_load_balancing(all.clone());
        }
        // Other priorities of zones select other endpoints.
        for service in self.load_balancing.keys().chain(all.keys()) {
            let of = |all: &LoadBalancingByService| {
                all.get(service).and_then(|policy| policy.settings.localities.clone())
            };
            if of(&self.load_balancing) != of(&all) {
                stale.extend(self.backends_of(service).cloned());
            }
        }
        self.load_balancing = all;
        is_changed
    }

    /// Whether the zones and the slow start of policies have an effect on these Services.
    fn check_idle_fields(&mut self, snapshot: &Snapshot, services: BTreeSet<ServiceKey>) {
        for service in services {
            let policy = self.load_balancing.get(&service);
            let notices = policy.map(|found| idle_fields(snapshot, &service, found)).unwrap_or_default();
            match notices.is_empty() {
                true => self.idle_fields.remove(&service),
                false => self.idle_fields.insert(service, notices),
            };
        }
    }

    /// Adds new and unused backends to `stale`.
    fn sidecar(
        &mut self,
        own: &ServiceKey,
        everything: bool,
        context: &RefreshContext<'_>,
        stale: &mut BTreeSet<BackendId>,
    ) -> bool {
        let RefreshContext { snapshot, affected, .. } = context;
        let moved = self.client.is_none()
            || affected.clients.contains(own)
            || !affected.nodes.is_empty()
            || self.backends.consumer.node != self.identity.node;
        let mut destinations = affected.destinations.clone();
        if everything || moved {
            let client = self.identity.client(snapshot, &self.backends.consumer);
            if client != self.client {
                // Only policies depend on the client.
                destinations.extend(plan::routes::destinations(snapshot));
                self.client = client;
            }
        }
        if everything {
            destinations.extend(snapshot.services().map(|(service, _)| service.key.clone()));
            destinations.extend(self.outbounds.keys().map(|(service, _)| service.clone()));
        }
        let mut changed = false;
        let by_policies = affected.http_routes_by_destination.iter();
        for (key, policies) in by_policies.filter(|(key, _)| !destinations.contains(key)) {
            changed |= self.destination(key, Some(policies), snapshot, stale);
        }
        for key in destinations {
            changed |= self.destination(&key, None, snapshot, stale);
        }
        changed
    }

    /// Plans the outbounds of a Service; with `policies`, only their changes.
    fn destination(
        &mut self,
        key: &ServiceKey,
        policies: Option<&BTreeSet<ObjectKey>>,
        snapshot: &Snapshot,
        stale: &mut BTreeSet<BackendId>,
    ) -> bool {
        let Some(client) = self.client.clone() else { return false };
        let ports = (key.clone(), 0)..=(key.clone(), u16::MAX);
        let mut gone: BTreeSet<OutboundKey> =
            self.outbounds.range(ports).map(|(part, _)| part.clone()).collect();
        let mut changed = false;
        let service = snapshot.service(key);
        for port in service.into_iter().flat_map(|service| service.ports.iter()) {
            let Some(service) = service else { continue };
            let part = (key.clone(), port.port);
            let held = self.outbounds.get(&part).zip(policies);
            let routes = match held {
                Some((held, policies)) => held.routes.after(snapshot, &client, service, port, policies),
                None => OutboundRoutes::new(snapshot, &client, service, port),
            };
            let Some(routes) = routes else { continue };
            gone.remove(&part);
            let outbound = &routes.outbound;
            let mut backends = BTreeSet::new();
            outbound.routing.add_backends(&mut backends);
            if self.routes.outbound(key, port.port).is_none_or(|held| held != outbound) {
                Arc::make_mut(&mut self.routes).put_outbound(outbound.clone());
                changed = true;
            }
            self.put_outbound(part, PlannedOutbound { backends, routes }, stale);
        }
        for part in gone {
            self.remove_outbound(&part, stale);
            Arc::make_mut(&mut self.routes).remove_outbound(&part.0, part.1);
            changed = true;
        }
        changed
    }

    /// Plans a gateway from scratch, because its listeners may have changed.
    fn plan_gateway(
        &mut self,
        key: &ObjectKey,
        snapshot: &Snapshot,
        stale: &mut BTreeSet<BackendId>,
    ) -> bool {
        let found = self.identity.mesh_gateway(snapshot);
        if found.is_none()
            && let Some(gateway) = snapshot.gateway(key)
            && let Some(planned) = self.identity.gateway(snapshot, gateway)
        {
            return self.put_gateway(planned, stale);
        }
        self.gateway_notices = match &found {
            Some(gateway) => self.no_such_listener(key, gateway).into_iter().collect(),
            None => vec![no_gateway(key)],
        };
        self.gateway = found.map(|gateway| GatewayRoutes::new(snapshot, gateway));
        let mut table = self.gateway.as_ref().map(|gateway| gateway.table().clone()).unwrap_or_default();
        self.keep_load_balancing(&mut table);
        let listeners = table.ports().flat_map(|port| port.listeners.iter());
        self.certificates = listeners
            .flat_map(|listener| listener.certificates.iter())
            .map(|certificate| (CertificateKind::Secret, certificate.secret.clone()))
            .collect();
        let before: Vec<BackendId> = self.uses.keys().cloned().collect();
        self.count_backends(before, stale);
        let changed = *self.routes != *table;
        if changed {
            self.routes = table;
        }
        changed
    }

    /// Takes over the table of a Gateway of the Gateway API.
    fn put_gateway(&mut self, planned: PlannedGateway, stale: &mut BTreeSet<BackendId>) -> bool {
        let PlannedGateway { mut table, certificates, notices } = planned;
        table.set_load_balancing(self.load_balancing.clone());
        self.gateway = None;
        self.gateway_notices = notices;
        self.certificates = certificates;
        let used = table.backends();
        stale.extend(self.uses.keys().filter(|id| !used.contains(*id)).cloned());
        stale.extend(used.iter().filter(|id| !self.uses.contains_key(*id)).cloned());
        self.uses = used.into_iter().map(|id| (id, 1)).collect();
        let changed = *self.routes != table;
        if changed {
            self.routes = Arc::new(table);
        }
        changed
    }

    /// Plans the affected routes of a gateway.
    fn gateway_routes(
        &mut self,
        key: &ObjectKey,
        context: &RefreshContext<'_>,
        stale: &mut BTreeSet<BackendId>,
    ) -> bool {
        let of_namespace = context.affected.gateway_routes.iter().filter(|r| r.namespace == key.namespace);
        let names: BTreeSet<Name> = of_namespace.map(|route| route.name.clone()).collect();
        let Some(gateway) = self.gateway.as_mut().filter(|_| !names.is_empty()) else { return false };
        let changed = gateway.update(context.snapshot, &names);
        if changed {
            let mut table = gateway.table().clone();
            self.keep_load_balancing(&mut table);
            self.routes = table;
            self.count_backends(Vec::new(), stale);
        }
        changed
    }

    /// Updates the reference counts of these backends and of those that the gateway reports.
    fn count_backends(&mut self, mut backends: Vec<BackendId>, stale: &mut BTreeSet<BackendId>) {
        backends.extend(self.gateway.iter_mut().flat_map(GatewayRoutes::take_changed_backends));
        for id in backends {
            let is_used = self.gateway.as_ref().is_some_and(|gateway| gateway.leads_to(&id));
            let was_used = match is_used {
                true => self.uses.insert(id.clone(), 1).is_some(),
                false => self.uses.remove(&id).is_some(),
            };
            if is_used != was_used {
                stale.insert(id);
            }
        }
    }

    fn no_such_listener(&self, key: &ObjectKey, gateway: &model::route::MeshGateway) -> Option<Notice> {
        let ProxyRole::Gateway(_, Some(listener)) = &self.identity.role else { return None };
        let message =
            format!("no listener {listener}, so nothing is served; compare spec.listeners with --gateway");
        gateway.listeners.is_empty().then(|| {
            Notice::new(ObjectRef::new("MeshGateway", &key.namespace, &key.name), "NoListener", message)
        })
    }

    fn put_outbound(&mut self, key: OutboundKey, planned: PlannedOutbound, stale: &mut BTreeSet<BackendId>) {
        for id in &planned.backends {
            let uses = self.uses.entry(id.clone()).or_default();
            *uses += 1;
            if *uses == 1 {
                stale.insert(id.clone());
            }
        }
        if let Some(before) = self.outbounds.insert(key, planned) {
            self.drop_uses(before.backends, stale);
        }
    }

    fn remove_outbound(&mut self, part: &OutboundKey, stale: &mut BTreeSet<BackendId>) {
        if let Some(before) = self.outbounds.remove(part) {
            self.drop_uses(before.backends, stale);
        }
    }

    fn drop_uses(&mut self, backends: BTreeSet<BackendId>, stale: &mut BTreeSet<BackendId>) {
        for id in backends {
            let Some(uses) = self.uses.get_mut(&id) else { continue };
            *uses = uses.saturating_sub(1);
            if *uses == 0 {
                self.uses.remove(&id);
                stale.insert(id);
            }
        }
    }

    /// Adds the backends that changes of Services, slices, pods and nodes affect.
    fn add_stale(&self, context: &RefreshContext<'_>, stale: &mut BTreeSet<BackendId>) {
        let RefreshContext { snapshot, affected, .. } = context;
        for service in &affected.backends {
            stale.extend(self.backends_of(service).cloned());
        }
        if affected.pods.is_empty() && affected.nodes.is_empty() {
            return;
        }
        for id in self.uses.keys().filter(|id| !id.tags.is_empty()) {
            let is_member = |endpoint: &model::Endpoint| {
                let pod = endpoint.target().map(|t| ObjectKey::new(&id.service.namespace, &t.name));
                pod.is_some_and(|pod| affected.pods.contains(&pod))
                    || endpoint.node.as_ref().is_some_and(|node| affected.nodes.contains(node))
            };
            let mut slices = snapshot.slices(&id.service).iter();
            if slices.any(|slice| slice.content.endpoints.iter().any(is_member)) {
                stale.insert(id.clone());
            }
        }
    }

    fn backends_of(&self, service: &ServiceKey) -> impl Iterator<Item = &BackendId> {
        let first =
            BackendId { service: service.clone(), port: 0, protocol: Protocol::Tcp, tags: Labels::EMPTY };
        let service = service.clone();
        self.uses.range(first..).map(|(id, _)| id).take_while(move |id| id.service == service)
    }

    /// Plans stale backends, and removes unused ones.
    fn sync_backends(&mut self, stale: BTreeSet<BackendId>, context: &mut RefreshContext<'_>) -> bool {
        let place = self.backends.consumer.clone();
        let routes = self.routes.clone();
        let mut changed = false;
        for id in stale {
            let rule = locality_rule(&routes, &id, &place);
            let backend = if self.uses.contains_key(&id) { context.backend(&id, &place, rule) } else { None };
            if context.with_fallbacks {
                let found = backend
                    .as_ref()
                    .map(|_| fallbacks(context.snapshot, &id, &place, FeatureGates::OF_PROXIES, rule));
                changed |= self.put_fallbacks(&id, found.unwrap_or_default());
            }
            if self.backends.backend(&id).map(|held| &**held) == backend.as_deref() {
                continue;
            }
            let table = Arc::make_mut(&mut self.backends);
            match backend {
                Some(backend) => table.put(backend),
                None => table.remove(&id),
            }
            changed = true;
        }
        changed
    }
}

impl IdentityTables {
    /// At most two tiers follow the first: node, zone, everything.
    fn put_fallbacks(&mut self, id: &BackendId, found: Vec<Backend>) -> bool {
        let place = self.backends.consumer.clone();
        self.fallbacks.resize_with(2, || Arc::new(BackendTable::new(place.clone())));
        let mut found = found.into_iter();
        let mut changed = false;
        for table in &mut self.fallbacks {
            let backend = found.next();
            if table.backend(id).map(|held| &**held) == backend.as_ref() {
                continue;
            }
            match backend {
                Some(backend) => Arc::make_mut(table).put(Arc::new(backend)),
                None => Arc::make_mut(table).remove(id),
            }
            changed = true;
        }
        changed
    }
}

fn no_gateway(key: &ObjectKey) -> Notice {
    let message = format!(
        "no MeshGateway and no Gateway {key}, so nothing is served; create it, or correct --gateway or -n"
    );
    Notice::new(ObjectRef::new("MeshGateway", &key.namespace, &key.name), "TargetNotFound", message)
}
