//! The tables of one consumer, brought up to date part by part: an outbound, a gateway's policy, a backend.
//!
//! What did not change is shared with the table before, so that whoever holds that one can compare by pointer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::backend::{Backend, BackendTable, ConsumerLocation};
use model::{BackendId, Labels, Name, Notice, ObjectKey, ObjectRef, RouteTable, ServiceKey, Snapshot};
use plan::FeatureGates;
use plan::backends::fallbacks;
use plan::routes::{GatewayRoutes, MeshClient, OutboundRoutes};

use super::consumer::{Consumer, Role};
use super::touch::Touched;

/// What one round of looking again needs.
pub(super) struct Round<'r> {
    pub(super) snapshot: &'r Snapshot,
    pub(super) touched: &'r Touched,
    pub(super) gates: FeatureGates,
    /// Whether lower choices are kept, too.
    pub(super) with_fallbacks: bool,
    /// Backends that were made in this round: consumers in the same place share them.
    pub(super) made: BTreeMap<(Name, Option<Name>, BackendId), Option<Arc<Backend>>>,
}

impl Round<'_> {
    fn backend(&mut self, id: &BackendId, place: &ConsumerLocation) -> Option<Arc<Backend>> {
        let key = (place.node.clone(), place.zone.clone(), id.clone());
        let (snapshot, gates) = (self.snapshot, self.gates);
        let make = || plan::backends::backend(snapshot, id, place, gates).map(Arc::new);
        self.made.entry(key).or_insert_with(make).clone()
    }
}

/// Which tables are others than before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turned {
    /// The routes.
    pub routes: bool,
    /// The backends.
    pub backends: bool,
    /// The certificates.
    pub certificates: bool,
}

impl Turned {
    /// Whether any is.
    pub fn any(self) -> bool {
        self.routes || self.backends || self.certificates
    }
}

/// A part of a sidecar's route table, planned in one go: a port of a Service.
type Part = (ServiceKey, u16);

/// What is kept of a part.
#[derive(Debug)]
struct Held {
    backends: BTreeSet<BackendId>,
    routes: OutboundRoutes,
}

/// The tables of one consumer.
#[derive(Debug)]
pub(super) struct View {
    consumer: Consumer,
    client: Option<MeshClient>,
    pub(super) routes: Arc<RouteTable>,
    pub(super) backends: Arc<BackendTable>,
    /// What would be chosen without those, where somebody asks for it.
    pub(super) fallbacks: Vec<Arc<BackendTable>>,
    parts: BTreeMap<Part, Held>,
    /// A gateway's routes, if there is such a gateway.
    gateway: Option<GatewayRoutes>,
    /// What there is to say about the gateway itself.
    gateway_notice: Option<Notice>,
    /// How many parts lead to each backend; a gateway counts as one.
    uses: BTreeMap<BackendId, usize>,
    /// The Secrets that its listeners name.
    pub(super) secrets: BTreeSet<ObjectKey>,
    is_new: bool,
}

impl View {
    pub(super) fn new(consumer: Consumer) -> Self {
        Self {
            consumer,
            client: None,
            routes: Arc::default(),
            backends: Arc::default(),
            fallbacks: Vec::new(),
            parts: BTreeMap::new(),
            gateway: None,
            gateway_notice: None,
            uses: BTreeMap::new(),
            secrets: BTreeSet::new(),
            is_new: true,
        }
    }

    /// Whether it has no tables yet.
    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    pub(super) fn notices(&self) -> Vec<Notice> {
        let mut notices: Vec<Notice> =
            self.parts.values().flat_map(|held| held.routes.notices.iter().cloned()).collect();
        notices.extend(self.gateway.iter().flat_map(GatewayRoutes::notices));
        notices.extend(self.gateway_notice.clone());
        notices
    }

    /// Looks again at what was touched.
    pub(super) fn refresh(&mut self, round: &mut Round<'_>) -> Turned {
        let everything = std::mem::take(&mut self.is_new) || round.touched.everything;
        let mut turned = Turned { backends: everything, routes: everything, certificates: everything };
        let mut stale = BTreeSet::new();
        let place = self.consumer.place(round.snapshot);
        if everything || place != self.backends.consumer {
            self.backends = Arc::new(BackendTable::new(place));
            stale.extend(self.uses.keys().cloned());
            turned.backends = true;
        }
        match &self.consumer.role {
            Role::Sidecar(service, _) => {
                let service = service.clone();
                turned.routes |= self.sidecar(&service, everything, round, &mut stale);
            }
            Role::Gateway(key, _) => {
                let key = key.clone();
                turned.routes |= if everything || round.touched.gateways.contains(&key) {
                    self.whole_gateway(&key, round.snapshot, &mut stale)
                } else {
                    self.gateway_routes(&key, round, &mut stale)
                };
                turned.certificates |= !self.secrets.is_disjoint(&round.touched.secrets);
            }
        }
        self.add_stale(round, &mut stale);
        turned.backends |= self.renew(stale, round);
        turned
    }

    /// The outbounds of a sidecar. `stale` gets the backends that are new.
    fn sidecar(
        &mut self,
        own: &ServiceKey,
        everything: bool,
        round: &Round<'_>,
        stale: &mut BTreeSet<BackendId>,
    ) -> bool {
        let Round { snapshot, touched, .. } = round;
        let moved = self.client.is_none()
            || touched.clients.contains(own)
            || !touched.nodes.is_empty()
            || self.backends.consumer.node != self.consumer.node;
        let mut destinations = touched.destinations.clone();
        if everything || moved {
            let client = self.consumer.client(snapshot, &self.backends.consumer);
            if client != self.client {
                // Without a policy nothing depends on the client.
                destinations.extend(plan::routes::destinations(snapshot));
                self.client = client;
            }
        }
        if everything {
            destinations.extend(snapshot.services().map(|(service, _)| service.key.clone()));
            destinations.extend(self.parts.keys().map(|(service, _)| service.clone()));
        }
        let mut turned = false;
        let by_policies = touched.http_routes_by_destination.iter();
        for (key, policies) in by_policies.filter(|(key, _)| !destinations.contains(key)) {
            turned |= self.destination(key, Some(policies), snapshot, stale);
        }
        for key in destinations {
            turned |= self.destination(&key, None, snapshot, stale);
        }
        turned
    }

    /// The way to one Service, port by port; if only policies changed, these.
    fn destination(
        &mut self,
        key: &ServiceKey,
        policies: Option<&BTreeSet<ObjectKey>>,
        snapshot: &Snapshot,
        stale: &mut BTreeSet<BackendId>,
    ) -> bool {
        let Some(client) = self.client.clone() else { return false };
        let ports = (key.clone(), 0)..=(key.clone(), u16::MAX);
        let mut gone: BTreeSet<Part> = self.parts.range(ports).map(|(part, _)| part.clone()).collect();
        let mut turned = false;
        let service = snapshot.service(key);
        for port in service.into_iter().flat_map(|service| service.ports.iter()) {
            let Some(service) = service else { continue };
            let part = (key.clone(), port.port);
            let held = self.parts.get(&part).zip(policies);
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
                turned = true;
            }
            self.hold(part, Held { backends, routes }, stale);
        }
        for part in gone {
            self.let_go(&part, stale);
            Arc::make_mut(&mut self.routes).remove_outbound(&part.0, part.1);
            turned = true;
        }
        turned
    }

    /// All routes of a gateway, made from nothing: its listeners may be others.
    fn whole_gateway(
        &mut self,
        key: &ObjectKey,
        snapshot: &Snapshot,
        stale: &mut BTreeSet<BackendId>,
    ) -> bool {
        let found = self.consumer.gateway(snapshot);
        self.gateway_notice = match &found {
            Some(gateway) => self.no_such_listener(key, gateway),
            None => Some(no_gateway(key)),
        };
        self.gateway = found.map(|gateway| GatewayRoutes::new(snapshot, gateway));
        let table = self.gateway.as_ref().map(|gateway| gateway.table().clone()).unwrap_or_default();
        self.secrets = table
            .ports()
            .flat_map(|port| port.listeners.iter())
            .filter_map(|listener| Some(listener.certificate.as_ref()?.secret.clone()))
            .collect();
        let before: Vec<BackendId> = self.uses.keys().cloned().collect();
        self.turn_backends(before, stale);
        let turned = *self.routes != *table;
        if turned {
            self.routes = table;
        }
        turned
    }

    /// Those routes of a gateway that changes touched.
    fn gateway_routes(
        &mut self,
        key: &ObjectKey,
        round: &Round<'_>,
        stale: &mut BTreeSet<BackendId>,
    ) -> bool {
        let of_namespace = round.touched.gateway_routes.iter().filter(|r| r.namespace == key.namespace);
        let names: BTreeSet<Name> = of_namespace.map(|route| route.name.clone()).collect();
        let Some(gateway) = self.gateway.as_mut().filter(|_| !names.is_empty()) else { return false };
        let turned = gateway.update(round.snapshot, &names);
        if turned {
            self.routes = gateway.table().clone();
            self.turn_backends(Vec::new(), stale);
        }
        turned
    }

    /// Sees which backends the gateway leads to now, of these and of those that it says have turned.
    fn turn_backends(&mut self, mut backends: Vec<BackendId>, stale: &mut BTreeSet<BackendId>) {
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

    fn no_such_listener(&self, key: &ObjectKey, gateway: &model::route::Gateway) -> Option<Notice> {
        let Role::Gateway(_, Some(listener)) = &self.consumer.role else { return None };
        let message = format!(
            "it has no listener {listener}, so nothing is served there; compare spec.listeners with --gateway"
        );
        gateway.listeners.is_empty().then(|| {
            Notice::new(ObjectRef::new("MeshGateway", &key.namespace, &key.name), "NoListener", message)
        })
    }

    /// Keeps what is known of a part in the place of what was.
    fn hold(&mut self, part: Part, held: Held, stale: &mut BTreeSet<BackendId>) {
        for id in &held.backends {
            let uses = self.uses.entry(id.clone()).or_default();
            *uses += 1;
            if *uses == 1 {
                stale.insert(id.clone());
            }
        }
        if let Some(before) = self.parts.insert(part, held) {
            self.drop_uses(before.backends, stale);
        }
    }

    fn let_go(&mut self, part: &Part, stale: &mut BTreeSet<BackendId>) {
        if let Some(before) = self.parts.remove(part) {
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

    /// Adds the backends that changes of Services, slices, pods and nodes alter.
    fn add_stale(&self, round: &Round<'_>, stale: &mut BTreeSet<BackendId>) {
        let Round { snapshot, touched, .. } = round;
        for service in &touched.backends {
            stale.extend(self.backends_of(service).cloned());
        }
        if touched.pods.is_empty() && touched.nodes.is_empty() {
            return;
        }
        for id in self.uses.keys().filter(|id| !id.tags.is_empty()) {
            let is_member = |endpoint: &model::Endpoint| {
                let pod = endpoint.target.as_ref().map(|t| ObjectKey::new(&id.service.namespace, &t.name));
                pod.is_some_and(|pod| touched.pods.contains(&pod))
                    || endpoint.node.as_ref().is_some_and(|node| touched.nodes.contains(node))
            };
            let mut slices = snapshot.slices(&id.service).iter();
            if slices.any(|slice| slice.content.endpoints.iter().any(is_member)) {
                stale.insert(id.clone());
            }
        }
    }

    fn backends_of(&self, service: &ServiceKey) -> impl Iterator<Item = &BackendId> {
        let first = BackendId { service: service.clone(), port: 0, tags: Labels::EMPTY };
        let service = service.clone();
        self.uses.range(first..).map(|(id, _)| id).take_while(move |id| id.service == service)
    }

    /// Makes backends anew, and takes those out that nothing leads to any more.
    fn renew(&mut self, stale: BTreeSet<BackendId>, round: &mut Round<'_>) -> bool {
        let place = self.backends.consumer.clone();
        let mut turned = false;
        for id in stale {
            let backend = if self.uses.contains_key(&id) { round.backend(&id, &place) } else { None };
            if round.with_fallbacks {
                let found = backend.as_ref().map(|_| fallbacks(round.snapshot, &id, &place, round.gates));
                turned |= self.put_fallbacks(&id, found.unwrap_or_default());
            }
            if self.backends.backend(&id).map(|held| &**held) == backend.as_deref() {
                continue;
            }
            let table = Arc::make_mut(&mut self.backends);
            match backend {
                Some(backend) => table.put(backend),
                None => table.remove(&id),
            }
            turned = true;
        }
        turned
    }
}

impl View {
    /// The node, then the zone, then everything: there are at most two choices behind the first.
    fn put_fallbacks(&mut self, id: &BackendId, found: Vec<Backend>) -> bool {
        let place = self.backends.consumer.clone();
        self.fallbacks.resize_with(2, || Arc::new(BackendTable::new(place.clone())));
        let mut found = found.into_iter();
        let mut turned = false;
        for table in &mut self.fallbacks {
            let backend = found.next();
            if table.backend(id).map(|held| &**held) == backend.as_ref() {
                continue;
            }
            match backend {
                Some(backend) => Arc::make_mut(table).put(Arc::new(backend)),
                None => Arc::make_mut(table).remove(id),
            }
            turned = true;
        }
        turned
    }
}

fn no_gateway(key: &ObjectKey) -> Notice {
    let message =
        format!("there is no MeshGateway {key}, so nothing is served; create it, or correct --gateway or -n");
    Notice::new(ObjectRef::new("MeshGateway", &key.namespace, &key.name), "TargetNotFound", message)
}
