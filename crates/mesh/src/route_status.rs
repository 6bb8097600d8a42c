//! The status of routes and gateways: the conditions Accepted (valid by itself), ResolvedRefs (every reference exists) and
//! Programmed (proxies use it), with Events when they change.
//!
//! ```text
//! watches -> WatchCache (Services, routes, gateways), Secrets and ConfigMaps with certificates
//!         -> plan::routes: RouteStatus -> conditions -> written to the API if they differ
//!         -> plan::gateway_api: statuses of the Gateway API -> the same
//! ```
//!
//! Only the leader runs this. Unchanged status is not written, and conditions of other writers stay: a status is replaced
//! at the resourceVersion that it was read from, because API servers do not merge lists of custom resources. On conflict the
//! object is read again, and its status is planned from what was read.

mod conditions;
mod gateway_api;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use clock::Clock;
use http::Method;
use jiff::Timestamp;
use kube::Client;
use model::gateway_api::{CertificateKind, GatewayApiKind};
use model::parse::malformed_field;
use model::random::Random;
use model::route::PolicyTarget;
use model::{Name, Notice, ObjectKey, ObjectRef, ServiceKey, Snapshot};
use plan::dependents::{ChangedObject, StatusKey};
use plan::gateway_api::{AssignedAddresses, UnboundPorts};
use plan::routes::{
    RouteStatus, SecretState, never_matching, of_gateway, of_gateway_http_route, of_http_route,
    of_load_balancing, of_route_filter, of_tcp_route,
};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, warn};

pub use conditions::{ACCEPTED, PROGRAMMED, RESOLVED_REFS};
use conditions::{StatusWrite, StoredObject};

use super::certificate_watches::{CertificateKey, CertificateUpdate, CertificateWatches};
use super::tls_secret;
use cluster::events;
use cluster::write::{MERGE_PATCH, send};
use cluster::{
    Informer, InformerEvent, ObjectChange, ObjectKind, WatchCache, WatchSpec, api_outage, failure,
};
use gateway_api::{GatewayApiStatuses, VERSIONED_DEFINITION};

/// Concurrent writes.
const WRITERS: usize = 5;
/// Backoff after a failed write.
const BACKOFF: Duration = Duration::from_secs(5);
/// Conflicts in a row before a status waits: its other writer may answer each of our writes with one.
const MAX_CONFLICTS: u32 = 5;
/// Statuses of the Gateway API planned at once.
const BATCH: usize = 1_024;
/// Events applied before statuses are planned.
const EVENTS_PER_SYNC: usize = 1_024;
const KINDS: [ObjectKind; 8] = [
    ObjectKind::Service,
    ObjectKind::Namespace,
    ObjectKind::MeshHttpRoute,
    ObjectKind::MeshGatewayHttpRoute,
    ObjectKind::MeshTcpRoute,
    ObjectKind::MeshGateway,
    ObjectKind::MeshLoadBalancing,
    ObjectKind::MeshRouteFilter,
];

type Key = (ObjectKind, ObjectKey);

/// The watches: every kind of route and policy, metadata of Namespaces, and the CustomResourceDefinition whose annotation has
/// the version of the Gateway API.
fn wanted() -> Vec<WatchSpec> {
    let name = format!("metadata.name={VERSIONED_DEFINITION}");
    let definition = WatchSpec::all(ObjectKind::CustomResourceDefinition).fields(&name).metadata_only();
    let all = KINDS.into_iter().chain(ObjectKind::GATEWAY_API);
    let spec = |kind| match kind {
        ObjectKind::Namespace => WatchSpec::all(kind).metadata_only(),
        _ => WatchSpec::all(kind),
    };
    all.map(spec).chain([definition]).collect()
}

/// What is known of gateways beside their objects.
#[derive(Clone, Debug)]
pub struct ObservedGateways {
    pub addresses: AssignedAddresses,
    /// Ports that proxies could not bind; `None` where none report.
    pub unbound_ports: Option<watch::Receiver<UnboundPorts>>,
}

impl From<AssignedAddresses> for ObservedGateways {
    fn from(addresses: AssignedAddresses) -> Self {
        Self { addresses, unbound_ports: None }
    }
}

impl ObservedGateways {
    /// Completes with the ports that could not be bound when they change.
    async fn unbound_ports_changed(&mut self) -> UnboundPorts {
        if let Some(ports) = &mut self.unbound_ports
            && ports.changed().await.is_ok()
        {
            return ports.borrow_and_update().clone();
        }
        std::future::pending().await
    }
}

/// Runs until `stop` turns true. Dropping the future cancels all writes.
pub async fn run(
    client: Client,
    gateways: impl Into<ObservedGateways>,
    clock: Clock,
    mut random: Random,
    mut stop: watch::Receiver<bool>,
) {
    let mut gateways: ObservedGateways = gateways.into();
    if let Some(ports) = &mut gateways.unbound_ports {
        ports.mark_changed();
    }
    let mut feed = Informer::start(&client, random.split(), wanted());
    let mut certificates = CertificateWatches::new(client.clone(), random);
    let mut reconciler = StatusReconciler::new(gateways.addresses.clone());
    let mut writers: JoinSet<(Key, StatusWriteResult)> = JoinSet::new();
    loop {
        if let Some(wanted) = reconciler.take_wanted_certificates() {
            certificates.watch(&wanted).iter().for_each(|gone| reconciler.forget_certificate(gone));
        }
        while writers.len() < WRITERS
            && let Some((key, work)) = reconciler.next(Instant::now(), clock.timestamp())
        {
            let client = client.clone();
            writers.spawn(async move { (key, write(&client, &work).await) });
        }
        let wake = reconciler.wake();
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            Some(ended) = writers.join_next() => {
                match ended {
                    Ok((key, StatusWriteResult::Done(result))) => reconciler.done(key, result, Instant::now()),
                    Ok((key, StatusWriteResult::Conflict(newest))) => {
                        reconciler.conflicted(key, newest, Instant::now());
                    }
                    Err(_) => {}
                }
            }
            ports = gateways.unbound_ports_changed() => reconciler.set_unbound_ports(ports),
            update = certificates.next() => reconciler.put_certificate(update),
            event = feed.next() => {
                reconciler.apply(event);
                for _ in 0..EVENTS_PER_SYNC {
                    let Some(event) = feed.ready() else { break };
                    reconciler.apply(event);
                }
            }
            () = tokio::time::sleep_until(wake), if reconciler.has_backoff() => {}
        }
    }
    while writers.join_next().await.is_some() {}
}

/// The result of a write.
enum StatusWriteResult {
    Done(Result<Value, kube::Error>),
    /// Another writer was first: the object as it is now.
    Conflict(Result<Value, kube::Error>),
}

/// The objects, and the work queue of their status.
struct StatusReconciler {
    mirror: WatchCache,
    records: BTreeMap<Key, StoredObject>,
    gateway_api: GatewayApiStatuses,
    /// Ports of gateways that proxies could not bind.
    unbound: UnboundPorts,
    secrets: BTreeMap<ObjectKey, SecretState>,
    wants_other_secrets: bool,
    /// The Secrets of MeshGateways.
    mesh_secrets: BTreeSet<ObjectKey>,
    gateway_api_certificates: BTreeSet<CertificateKey>,
    /// Secrets and ConfigMaps whose watch has answered: before that, absence means nothing.
    answered: BTreeSet<CertificateKey>,
    /// The work queue, each key once.
    queue: VecDeque<Key>,
    queued: BTreeSet<Key>,
    /// Objects of the Gateway API whose status may have changed.
    standard: BTreeSet<StatusKey>,
    /// Their writes that were planned.
    planned: BTreeMap<StatusKey, StatusWrite>,
    /// Failed writes with the time of their retry.
    backoff: VecDeque<(Instant, Key)>,
    /// Writes in flight.
    in_flight: BTreeSet<Key>,
    /// Conflicts in a row.
    conflicts: BTreeMap<Key, u32>,
}

impl StatusReconciler {
    fn new(addresses: AssignedAddresses) -> Self {
        Self {
            mirror: WatchCache::default(),
            records: BTreeMap::new(),
            gateway_api: GatewayApiStatuses::new(addresses),
            unbound: UnboundPorts::new(),
            secrets: BTreeMap::new(),
            wants_other_secrets: false,
            mesh_secrets: BTreeSet::new(),
            gateway_api_certificates: BTreeSet::new(),
            answered: BTreeSet::new(),
            queue: VecDeque::new(),
            queued: BTreeSet::new(),
            standard: BTreeSet::new(),
            planned: BTreeMap::new(),
            backoff: VecDeque::new(),
            in_flight: BTreeSet::new(),
            conflicts: BTreeMap::new(),
        }
    }

    fn apply(&mut self, event: InformerEvent) {
        let stored = stored(&event);
        if let InformerEvent::Applied(ObjectKind::CustomResourceDefinition, object) = &event {
            let affected = self.gateway_api.set_definition(Some(object.text()));
            self.enqueue_standard(affected);
        }
        for change in self.mirror.read(event) {
            if let Some((key, object)) = &stored {
                self.store(key, object, &change);
            }
            self.note_presence(&change);
            let snapshot = self.mirror.snapshot();
            let changed = change.compared(snapshot).and_then(|change| ChangedObject::of(&change, snapshot));
            self.enqueue_dependents(changed.as_ref());
            self.mirror.apply(change);
            self.enqueue_dependents(changed.as_ref());
        }
    }

    /// Keeps what the status of a created or changed object depends on.
    fn store(&mut self, key: &Key, object: &Value, change: &ObjectChange) {
        if let ObjectKind::GatewayApi(kind) = key.0 {
            self.gateway_api.store(kind, object);
        } else {
            let (problems, idle) = match change {
                ObjectChange::Applied(object, _) => (Vec::new(), never_matching(object)),
                ObjectChange::Unreadable(.., notices) => {
                    let problems = notices.iter().filter_map(malformed_field).map(str::to_owned);
                    (problems.collect(), Vec::new())
                }
                _ => return,
            };
            self.records.insert(key.clone(), StoredObject::new(object, problems, idle));
        }
        self.enqueue(key.clone());
    }

    /// Enqueues what depends on an object, before or after its change is applied.
    fn enqueue_dependents(&mut self, changed: Option<&ChangedObject>) {
        let Some(changed) = changed else { return };
        self.wants_other_secrets |= matches!(changed, ChangedObject::MeshGateway(_));
        let affected = self.gateway_api.affected(changed, self.mirror.snapshot());
        self.enqueue_standard(affected.gateway_api);
        affected.namespaces.iter().for_each(|namespace| self.enqueue_users(namespace));
        for key in affected.mesh_gateway_http_routes {
            self.enqueue((ObjectKind::MeshGatewayHttpRoute, key));
        }
    }

    fn enqueue_standard(&mut self, keys: impl IntoIterator<Item = StatusKey>) {
        for key in keys {
            // What was planned before is out of date.
            self.planned.remove(&key);
            self.standard.insert(key);
        }
    }

    /// Forgets objects that are gone, and enqueues all when a kind that they may refer to has been listed.
    fn note_presence(&mut self, change: &ObjectChange) {
        match change {
            ObjectChange::Deleted(kind, key) => {
                self.records.remove(&(*kind, key.clone()));
                if let ObjectKind::GatewayApi(kind) = kind {
                    self.gateway_api.forget(*kind, key);
                }
            }
            ObjectChange::Listed(kind, seen) => {
                self.records.retain(|(of, key), _| of != kind || seen.contains(key));
                let all: Vec<Key> = self.records.keys().cloned().collect();
                all.into_iter().for_each(|key| self.enqueue(key));
                if let ObjectKind::GatewayApi(kind) = kind {
                    self.gateway_api.retain(*kind, seen);
                }
            }
            ObjectChange::Applied(..)
            | ObjectChange::Unreadable(..)
            | ObjectChange::Other(..)
            | ObjectChange::Failed(..) => {}
        }
    }

    fn enqueue(&mut self, key: Key) {
        if let (ObjectKind::GatewayApi(kind), key) = key {
            return self.enqueue_standard([(kind, key)]);
        }
        if self.queued.insert(key.clone()) {
            self.queue.push_back(key);
        }
    }

    /// Enqueues everything that may refer to objects of a namespace: its own, and policies with a destination in it.
    fn enqueue_users(&mut self, namespace: &Name) {
        let snapshot = self.mirror.snapshot();
        let names = |(kind, key): &Key| {
            let is_there = |service: &ServiceKey| service.namespace == *namespace;
            key.namespace == *namespace
                || match kind {
                    ObjectKind::MeshHttpRoute => snapshot
                        .mesh_http_route(key)
                        .is_some_and(|p| p.to.iter().any(|to| is_there(&to.service))),
                    ObjectKind::MeshTcpRoute => snapshot.mesh_tcp_route(key).is_some_and(|policy| {
                        policy.to.iter().filter_map(|to| to.service.as_ref()).any(is_there)
                    }),
                    ObjectKind::MeshLoadBalancing => {
                        snapshot.load_balancing_policy(key).is_some_and(|policy| {
                            policy.to.iter().filter_map(|to| to.service.as_ref()).any(is_there)
                        })
                    }
                    _ => false,
                }
        };
        let users: Vec<Key> = self.records.keys().filter(|key| names(key)).cloned().collect();
        users.into_iter().for_each(|key| self.enqueue(key));
    }

    /// The Secrets and ConfigMaps that gateways refer to, if they may have changed.
    fn take_wanted_certificates(&mut self) -> Option<BTreeSet<CertificateKey>> {
        let snapshot = self.mirror.snapshot();
        let is_changed = std::mem::take(&mut self.wants_other_secrets);
        if is_changed {
            let listeners = snapshot.mesh_gateways().flat_map(|gateway| gateway.listeners.iter());
            let certificates = listeners.flat_map(|listener| listener.certificates.iter());
            self.mesh_secrets = certificates.map(|certificate| certificate.secret.clone()).collect();
        }
        let standard = self.gateway_api.take_wanted_certificates(snapshot);
        if !is_changed && standard.is_none() {
            return None;
        }
        self.gateway_api_certificates =
            standard.unwrap_or_else(|| std::mem::take(&mut self.gateway_api_certificates));
        let mesh = self.mesh_secrets.iter().map(|key| (CertificateKind::Secret, key.clone()));
        Some(mesh.chain(self.gateway_api_certificates.iter().cloned()).collect())
    }

    fn put_certificate(&mut self, update: CertificateUpdate) {
        let CertificateUpdate { key: (kind, key), data, source } = update;
        self.answered.insert((kind, key.clone()));
        if self.mirror.snapshot().certificate_source(kind, &key) != source.as_ref() {
            self.mirror.put_certificate(kind, &key, source);
            self.enqueue_dependents(Some(&ChangedObject::Certificate));
        }
        if kind != CertificateKind::Secret {
            return;
        }
        let text = |notice: &Notice| format!("Secret {key}: {}", notice.message);
        let state = match &data {
            Ok(_) => SecretState::Usable,
            Err(notice) if notice.reason == tls_secret::NOT_READABLE => SecretState::Unknown(text(notice)),
            Err(notice) => SecretState::Unusable(text(notice)),
        };
        let namespace = key.namespace.clone();
        self.secrets.insert(key, state);
        self.enqueue_users(&namespace);
    }

    fn forget_certificate(&mut self, (kind, key): &CertificateKey) {
        self.answered.remove(&(*kind, key.clone()));
        self.mirror.put_certificate(*kind, key, None);
        if *kind == CertificateKind::Secret {
            self.secrets.remove(key);
        }
    }

    fn set_unbound_ports(&mut self, ports: UnboundPorts) {
        let before = std::mem::replace(&mut self.unbound, ports);
        let all: BTreeSet<&ObjectKey> = before.keys().chain(self.unbound.keys()).collect();
        let is_changed = |key: &&ObjectKey| before.get(*key) != self.unbound.get(*key);
        let changed: Vec<ObjectKey> = all.into_iter().filter(is_changed).cloned().collect();
        for key in changed {
            self.enqueue_dependents(Some(&ChangedObject::BoundPorts(key.clone())));
            self.enqueue((ObjectKind::MeshGateway, key));
        }
    }

    fn next(&mut self, now: Instant, time: Timestamp) -> Option<(Key, StatusWrite)> {
        while self.backoff.front().is_some_and(|(due, _)| *due <= now) {
            if let Some((_, key)) = self.backoff.pop_front() {
                self.enqueue(key);
            }
        }
        // A batch may need no write at all.
        while self.planned.is_empty() && self.plan_standard(time) {}
        if let Some(((kind, key), work)) = self.planned.pop_first() {
            let key = (ObjectKind::GatewayApi(kind), key);
            self.in_flight.insert(key.clone());
            return Some((key, work));
        }
        for _ in 0..self.queue.len() {
            let key = self.queue.pop_front()?;
            if self.in_flight.contains(&key) {
                // Wait for the result of the write in flight.
                self.queue.push_back(key);
                continue;
            }
            self.queued.remove(&key);
            if let Some(work) = self.reconcile(&key, time) {
                self.in_flight.insert(key.clone());
                return Some((key, work));
            }
        }
        None
    }

    /// Plans the queued statuses of the Gateway API together: they share what is known of their Gateways.
    /// Returns whether there were any.
    fn plan_standard(&mut self, time: Timestamp) -> bool {
        let is_known = self.mirror.has_listed(&KINDS) && self.mirror.has_listed(&ObjectKind::GATEWAY_API);
        if !is_known || !self.gateway_api_certificates.is_subset(&self.answered) {
            return false;
        }
        let is_free = |(kind, key): &&StatusKey| {
            !self.in_flight.contains(&(ObjectKind::GatewayApi(*kind), key.clone()))
        };
        let keys: Vec<StatusKey> = self.standard.iter().filter(is_free).take(BATCH).cloned().collect();
        for key in &keys {
            self.standard.remove(key);
        }
        self.planned.extend(self.gateway_api.writes(self.mirror.snapshot(), &self.unbound, &keys, time));
        !keys.is_empty()
    }

    /// The write that an object needs; `None` if its status is current.
    fn reconcile(&self, (kind, key): &Key, time: Timestamp) -> Option<StatusWrite> {
        let record = self.records.get(&(*kind, key.clone()))?;
        let about = ObjectRef::new(kind.as_str(), &key.namespace, &key.name);
        let standing = match record.problems.is_empty() {
            true => Some(self.standing(*kind, key)?),
            false => None,
        };
        record.status_write(*kind, &about, standing, time)
    }

    /// `None` until every referenced kind and Secret has been listed; the listing enqueues the object again.
    fn standing(&self, kind: ObjectKind, key: &ObjectKey) -> Option<RouteStatus> {
        let snapshot: &Snapshot = self.mirror.snapshot();
        let has_listed = |kinds: &[ObjectKind]| self.mirror.has_listed(kinds);
        match kind {
            ObjectKind::MeshHttpRoute if !has_listed(&[ObjectKind::Service]) => None,
            ObjectKind::MeshHttpRoute => Some(of_http_route(snapshot, snapshot.mesh_http_route(key)?)),
            ObjectKind::MeshGatewayHttpRoute
                if !has_listed(&[ObjectKind::Service, ObjectKind::MeshGateway]) =>
            {
                None
            }
            ObjectKind::MeshGatewayHttpRoute => {
                Some(of_gateway_http_route(snapshot, snapshot.mesh_gateway_http_route(key)?))
            }
            ObjectKind::MeshRouteFilter => Some(of_route_filter()),
            ObjectKind::MeshLoadBalancing => {
                let policy = snapshot.load_balancing_policy(key)?;
                let at_gateway = matches!(policy.target, PolicyTarget::Gateway(..));
                let of_gateways = [ObjectKind::MeshGateway, ObjectKind::GatewayApi(GatewayApiKind::Gateway)];
                let is_known =
                    has_listed(&[ObjectKind::Service]) && (!at_gateway || has_listed(&of_gateways));
                is_known.then(|| of_load_balancing(snapshot, policy))
            }
            ObjectKind::MeshTcpRoute => {
                let policy = snapshot.mesh_tcp_route(key)?;
                let at_gateway = matches!(policy.target, PolicyTarget::Gateway(..));
                let is_known = has_listed(&[ObjectKind::Service])
                    && (!at_gateway || has_listed(&[ObjectKind::MeshGateway]));
                is_known.then(|| of_tcp_route(snapshot, policy))
            }
            _ => {
                let gateway = snapshot.mesh_gateway(key)?;
                let mut named = gateway.listeners.iter().flat_map(|listener| listener.certificates.iter());
                let is_known = named.all(|certificate| self.secrets.contains_key(&certificate.secret));
                is_known.then(|| of_gateway(gateway, &self.secrets, &self.unbound))
            }
        }
    }

    fn done(&mut self, key: Key, result: Result<Value, kube::Error>, now: Instant) {
        self.in_flight.remove(&key);
        self.conflicts.remove(&key);
        let (kind, object) = (key.0.as_str(), &key.1);
        match result {
            Ok(written) => {
                debug!(kind, %object, "wrote status");
                // The watch brings it later; what is planned until then knows it.
                if let ObjectKind::GatewayApi(kind) = key.0
                    && written["metadata"]["name"].is_string()
                    && self.gateway_api.is_current((kind, &key.1), &written)
                {
                    self.gateway_api.store(kind, &written);
                }
            }
            // Deleted.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => {
                if !api_outage::is_api_unreachable() {
                    let error = failure::cause(&error);
                    warn!(kind, %object, error, "failed to write status; retrying");
                }
                self.backoff.push_back((now + BACKOFF, key));
            }
        }
    }

    /// Plans a status again from the newest object, after another writer was first.
    fn conflicted(&mut self, key: Key, newest: Result<Value, kube::Error>, now: Instant) {
        let newest = match newest {
            Ok(newest) => newest,
            Err(error) => return self.done(key, Err(error), now),
        };
        self.in_flight.remove(&key);
        debug!(kind = key.0.as_str(), object = %key.1, "status was written by another client; planning again");
        // A new specification comes by the watch, and the status has to be planned from it.
        if !self.store_status(&key, &newest) {
            return;
        }
        let conflicts = self.conflicts.entry(key.clone()).or_default();
        *conflicts += 1;
        if *conflicts < MAX_CONFLICTS {
            self.enqueue(key);
        } else {
            self.backoff.push_back((now + BACKOFF, key));
        }
    }

    /// Takes the status of an object whose specification is known; returns whether it is known.
    fn store_status(&mut self, key: &Key, object: &Value) -> bool {
        if let ObjectKind::GatewayApi(kind) = key.0 {
            let is_known = self.gateway_api.has_generation((kind, &key.1), object);
            if is_known && self.gateway_api.is_current((kind, &key.1), object) {
                self.gateway_api.store(kind, object);
            }
            return is_known;
        }
        match self.records.get_mut(key) {
            Some(record) if record.has_generation(object) => {
                record.set_status(object);
                true
            }
            _ => false,
        }
    }

    fn has_backoff(&self) -> bool {
        !self.backoff.is_empty()
    }

    fn wake(&self) -> Instant {
        self.backoff.front().map_or_else(Instant::now, |(due, _)| *due)
    }
}

/// The metadata and status of a created or changed object whose status we write.
fn stored(event: &InformerEvent) -> Option<(Key, Value)> {
    let InformerEvent::Applied(kind, object) = event else { return None };
    let is_ours = ObjectKind::MESH.contains(kind)
        || matches!(kind, ObjectKind::GatewayApi(kind) if *kind != GatewayApiKind::Grant);
    let key = ObjectKey::new(&Name::new(object.namespace()), &Name::new(object.name()));
    is_ours.then(|| object.metadata_and_status())?.map(|value| ((*kind, key), value))
}

async fn write(client: &Client, work: &StatusWrite) -> StatusWriteResult {
    let written = match send::<Value>(client, Method::PATCH, &work.path, MERGE_PATCH, &work.patch).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {
            return StatusWriteResult::Conflict(read(client, work).await);
        }
        Err(error) => return StatusWriteResult::Done(Err(error)),
        Ok(written) => written,
    };
    for event in &work.events {
        if let Err(error) = events::record(client, event).await {
            debug!(error = failure::cause(&error), "failed to write an Event");
        }
    }
    StatusWriteResult::Done(Ok(written))
}

/// The object that a write is about; null if it is gone. It is listed, as the controller's role allows.
async fn read(client: &Client, work: &StatusWrite) -> Result<Value, kube::Error> {
    let object = work.path.split("/status?").next().unwrap_or(&work.path);
    let (collection, name) = object.rsplit_once('/').unwrap_or((object, ""));
    let path = format!("{collection}?fieldSelector=metadata.name%3D{name}");
    let request = http::Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
    let list: Value = client.request(request).await?;
    Ok(list["items"][0].clone())
}

#[cfg(test)]
mod tests;
