//! The status of routes and gateways: the conditions Accepted (valid by itself), ResolvedRefs (every reference exists) and
//! Programmed (proxies use it), with Events when they change.
//!
//! ```text
//! watches -> WatchCache (Services, routes, gateways), Secrets of listeners
//!         -> plan::routes: RouteStatus -> conditions -> written to the API if they differ
//! ```
//!
//! Only the leader runs this. Unchanged status is not written, and conditions of other writers stay: a status is replaced
//! at the resourceVersion that it was read from, because API servers do not merge lists of custom resources.

mod conditions;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use clock::Clock;
use http::Method;
use jiff::Timestamp;
use kube::Client;
use model::parse::route::mesh_object;
use model::random::Random;
use model::route::PolicyTarget;
use model::{Interner, Name, Notice, Object, ObjectKey, ObjectRef, ServiceKey, Snapshot};
use plan::routes::{
    RouteStatus, SecretState, never_matching, of_gateway, of_gateway_http_route, of_http_route, of_tcp_route,
};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, warn};
use xds::render::PemKeyPair;

pub use conditions::{ACCEPTED, PROGRAMMED, RESOLVED_REFS};
use conditions::{StatusWrite, StoredObject};

use super::secret_watches::SecretWatches;
use super::tls_secret;
use cluster::events;
use cluster::write::{MERGE_PATCH, send};
use cluster::{
    Informer, InformerEvent, ObjectChange, ObjectKind, WatchCache, WatchSpec, api_outage, failure,
};

/// Concurrent writes.
const WRITERS: usize = 5;
/// Backoff after a failed write.
const BACKOFF: Duration = Duration::from_secs(5);
const KINDS: [ObjectKind; 5] = [
    ObjectKind::Service,
    ObjectKind::HttpRoute,
    ObjectKind::GatewayHttpRoute,
    ObjectKind::TcpRoute,
    ObjectKind::Gateway,
];

type Key = (ObjectKind, ObjectKey);

/// Runs until `stop` turns true. Dropping the future cancels all writes.
pub async fn run(client: Client, clock: Clock, mut random: Random, mut stop: watch::Receiver<bool>) {
    let mut feed = Informer::start(&client, random.split(), KINDS.map(WatchSpec::all));
    let mut secrets = SecretWatches::new(client.clone(), random);
    let mut reconciler = StatusReconciler::default();
    let mut writers: JoinSet<(Key, Result<(), kube::Error>)> = JoinSet::new();
    loop {
        if let Some(wanted) = reconciler.take_wanted_secrets() {
            secrets.watch(&wanted).iter().for_each(|gone| reconciler.forget_secret(gone));
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
                if let Ok((key, result)) = ended {
                    reconciler.done(key, result, Instant::now());
                }
            }
            (key, pair) = secrets.next() => reconciler.put_secret(key, &pair),
            event = feed.next() => reconciler.apply(event),
            () = tokio::time::sleep_until(wake), if reconciler.has_backoff() => {}
        }
    }
    while writers.join_next().await.is_some() {}
}

/// The objects, and the work queue of their status.
#[derive(Default)]
struct StatusReconciler {
    mirror: WatchCache,
    records: BTreeMap<Key, StoredObject>,
    secrets: BTreeMap<ObjectKey, SecretState>,
    wants_other_secrets: bool,
    /// The work queue, each key once.
    queue: VecDeque<Key>,
    queued: BTreeSet<Key>,
    /// Failed writes with the time of their retry.
    backoff: VecDeque<(Instant, Key)>,
    /// Writes in flight.
    in_flight: BTreeSet<Key>,
}

impl StatusReconciler {
    fn apply(&mut self, event: InformerEvent) {
        if let InformerEvent::Applied(kind, object) = &event
            && ObjectKind::MESH.contains(kind)
        {
            let key = (*kind, ObjectKey::new(&Name::new(object.namespace()), &Name::new(object.name())));
            match record(*kind, object.text()) {
                Some(record) => drop(self.records.insert(key.clone(), record)),
                None => drop(self.records.remove(&key)),
            }
            self.enqueue(key);
        }
        for change in self.mirror.read(event) {
            self.enqueue_affected(&change);
            self.mirror.apply(change);
        }
    }

    /// Enqueues objects whose status a change may affect.
    fn enqueue_affected(&mut self, change: &ObjectChange) {
        match change {
            ObjectChange::Applied(Object::Service(new), _) => {
                let looks = |service: &model::Service| (service.kind, service.ports.clone());
                if self.mirror.snapshot().service(&new.key).map(looks) != Some(looks(new)) {
                    self.enqueue_users(&new.key.namespace);
                }
            }
            ObjectChange::Applied(Object::Gateway(gateway), _) => self.gateway_changed(&gateway.key),
            ObjectChange::Deleted(kind, key) | ObjectChange::Unreadable(kind, key, _) => {
                if matches!(change, ObjectChange::Deleted(..)) {
                    self.records.remove(&(*kind, key.clone()));
                }
                match kind {
                    ObjectKind::Service => self.enqueue_users(&key.namespace),
                    ObjectKind::Gateway => self.gateway_changed(key),
                    _ => {}
                }
            }
            ObjectChange::Listed(kind, seen) => {
                self.records.retain(|(of, key), _| of != kind || seen.contains(key));
                // Objects that refer to this kind can be evaluated now.
                let all: Vec<Key> = self.records.keys().cloned().collect();
                all.into_iter().for_each(|key| self.enqueue(key));
            }
            ObjectChange::Applied(..) | ObjectChange::Other(..) | ObjectChange::Failed(..) => {}
        }
    }

    fn gateway_changed(&mut self, key: &ObjectKey) {
        self.wants_other_secrets = true;
        self.enqueue_users(&key.namespace);
    }

    fn enqueue(&mut self, key: Key) {
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
                    ObjectKind::HttpRoute => {
                        snapshot.http_route(key).is_some_and(|p| p.to.iter().any(|to| is_there(&to.service)))
                    }
                    ObjectKind::TcpRoute => snapshot.tcp_route(key).is_some_and(|policy| {
                        policy.to.iter().filter_map(|to| to.service.as_ref()).any(is_there)
                    }),
                    _ => false,
                }
        };
        let users: Vec<Key> = self.records.keys().filter(|key| names(key)).cloned().collect();
        users.into_iter().for_each(|key| self.enqueue(key));
    }

    /// The Secrets of listeners, if they may have changed.
    fn take_wanted_secrets(&mut self) -> Option<BTreeSet<ObjectKey>> {
        std::mem::take(&mut self.wants_other_secrets).then(|| {
            let listeners = self.mirror.snapshot().gateways().flat_map(|gateway| gateway.listeners.iter());
            listeners.filter_map(|listener| Some(listener.certificate.as_ref()?.secret.clone())).collect()
        })
    }

    fn put_secret(&mut self, key: ObjectKey, pair: &Result<PemKeyPair, Notice>) {
        let text = |notice: &Notice| format!("Secret {key}: {}", notice.message);
        let state = match pair {
            Ok(_) => SecretState::Usable,
            Err(notice) if notice.reason == tls_secret::NOT_READABLE => SecretState::Unknown(text(notice)),
            Err(notice) => SecretState::Unusable(text(notice)),
        };
        let namespace = key.namespace.clone();
        self.secrets.insert(key, state);
        self.enqueue_users(&namespace);
    }

    fn forget_secret(&mut self, key: &ObjectKey) {
        self.secrets.remove(key);
    }

    fn next(&mut self, now: Instant, time: Timestamp) -> Option<(Key, StatusWrite)> {
        while self.backoff.front().is_some_and(|(due, _)| *due <= now) {
            if let Some((_, key)) = self.backoff.pop_front() {
                self.enqueue(key);
            }
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
            ObjectKind::HttpRoute if !has_listed(&[ObjectKind::Service]) => None,
            ObjectKind::HttpRoute => Some(of_http_route(snapshot, snapshot.http_route(key)?)),
            ObjectKind::GatewayHttpRoute if !has_listed(&[ObjectKind::Service, ObjectKind::Gateway]) => None,
            ObjectKind::GatewayHttpRoute => {
                Some(of_gateway_http_route(snapshot, snapshot.gateway_http_route(key)?))
            }
            ObjectKind::TcpRoute => {
                let policy = snapshot.tcp_route(key)?;
                let at_gateway = matches!(policy.target, PolicyTarget::Gateway(..));
                let is_known =
                    has_listed(&[ObjectKind::Service]) && (!at_gateway || has_listed(&[ObjectKind::Gateway]));
                is_known.then(|| of_tcp_route(snapshot, policy))
            }
            _ => {
                let gateway = snapshot.gateway(key)?;
                let mut named = gateway.listeners.iter().filter_map(|listener| listener.certificate.as_ref());
                let is_known = named.all(|certificate| self.secrets.contains_key(&certificate.secret));
                is_known.then(|| of_gateway(gateway, &self.secrets))
            }
        }
    }

    fn done(&mut self, key: Key, result: Result<(), kube::Error>, now: Instant) {
        self.in_flight.remove(&key);
        let (kind, object) = (key.0.as_str(), &key.1);
        match result {
            Ok(()) => debug!(kind, %object, "wrote status"),
            // The watch delivers the conflicting write.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => {
                if !api_outage::is_api_unreachable() {
                    let error = failure::cause(&error);
                    warn!(kind, %object, error, "failed to write status; retrying");
                }
                self.backoff.push_back((now + BACKOFF, key));
            }
        }
    }

    fn has_backoff(&self) -> bool {
        !self.backoff.is_empty()
    }

    fn wake(&self) -> Instant {
        self.backoff.front().map_or_else(Instant::now, |(due, _)| *due)
    }
}

fn record(kind: ObjectKind, text: &str) -> Option<StoredObject> {
    let mut object: Value = serde_json::from_str(text).ok()?;
    let resource = kind.resource();
    object["kind"] = resource.kind.as_str().into();
    object["apiVersion"] = resource.api_version.as_str().into();
    let reading = mesh_object(&object, &mut Interner::default());
    let idle = reading.object.as_ref().map(never_matching).unwrap_or_default();
    Some(StoredObject::new(&object, reading.errors, idle))
}

async fn write(client: &Client, work: &StatusWrite) -> Result<(), kube::Error> {
    send::<Value>(client, Method::PATCH, &work.path, MERGE_PATCH, &work.patch).await?;
    for event in &work.events {
        if let Err(error) = events::record(client, event).await {
            debug!(error = failure::cause(&error), "failed to write an Event");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
