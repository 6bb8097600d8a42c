//! The status of routes and gateways: Accepted (valid by itself), ResolvedRefs (everything that it names is there) and
//! Programmed (proxies get something of it), with Events when they turn.
//!
//! ```text
//! watches -> WatchCache (Services, routes, gateways), Secrets that listeners name
//!         -> plan::routes: Standing -> conditions -> differ from the stored ones? -> the API
//! ```
//!
//! Only the leader runs this. Nothing is written that is there already, and conditions of other writers stay: a status is
//! replaced for the version that it was read from, because API servers merge no lists of kinds like these.

mod condition;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use kube::Client;
use model::parse::route::mesh_object;
use model::random::Random;
use model::route::PolicyTarget;
use model::{Interner, Name, Notice, Object, ObjectKey, ObjectRef, ServiceKey, Snapshot};
use plan::routes::{
    SecretState, Standing, never_matching, of_gateway, of_gateway_http_route, of_http_route, of_tcp_route,
};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, warn};

pub use condition::{ACCEPTED, PROGRAMMED, RESOLVED_REFS};
use condition::{Record, Work};

use super::secret::{self, Pair};
use super::secrets::Secrets;
use cluster::events;
use cluster::write::{MERGE_PATCH, send};
use cluster::{
    ObjectChange, ResourceKind, WatchCache, WatchEvent, WatchSpec, WatchStream, api_outage, failure,
};

/// How many are written at once.
const WRITERS: usize = 5;
/// How long a refused write waits.
const PAUSE: Duration = Duration::from_secs(5);
/// What is watched.
const KINDS: [ResourceKind; 5] = [
    ResourceKind::Service,
    ResourceKind::HttpRoute,
    ResourceKind::GatewayHttpRoute,
    ResourceKind::TcpRoute,
    ResourceKind::Gateway,
];

/// Which object.
type Key = (ResourceKind, ObjectKey);

/// Runs until `stop` turns true. Dropping the future ends everything that it began.
pub async fn run(client: Client, mut random: Random, mut stop: watch::Receiver<bool>) {
    let mut feed = WatchStream::start(&client, random.split(), KINDS.map(WatchSpec::all));
    let mut secrets = Secrets::new(client.clone(), random);
    let mut desk = Desk::default();
    let mut writers: JoinSet<(Key, Result<(), kube::Error>)> = JoinSet::new();
    loop {
        if let Some(wanted) = desk.take_wanted_secrets() {
            secrets.want(&wanted).iter().for_each(|gone| desk.forget_secret(gone));
        }
        while writers.len() < WRITERS
            && let Some((key, work)) = desk.next(Instant::now(), Timestamp::now())
        {
            let client = client.clone();
            writers.spawn(async move { (key, write(&client, &work).await) });
        }
        let wake = desk.wake();
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            Some(ended) = writers.join_next() => {
                if let Ok((key, result)) = ended {
                    desk.done(key, result, Instant::now());
                }
            }
            (key, pair) = secrets.next() => desk.put_secret(key, &pair),
            event = feed.next() => desk.take(event),
            () = tokio::time::sleep_until(wake), if desk.waits() => {}
        }
    }
    while writers.join_next().await.is_some() {}
}

/// The objects, and what of them is to be looked at.
#[derive(Default)]
struct Desk {
    mirror: WatchCache,
    records: BTreeMap<Key, Record>,
    secrets: BTreeMap<ObjectKey, SecretState>,
    wants_other_secrets: bool,
    /// To be looked at, in order and each once.
    order: VecDeque<Key>,
    queued: BTreeSet<Key>,
    /// Refused, to be tried again.
    later: VecDeque<(Instant, Key)>,
    /// Being written.
    busy: BTreeSet<Key>,
}

impl Desk {
    fn take(&mut self, event: WatchEvent) {
        if let WatchEvent::Applied(kind, object) = &event
            && ResourceKind::MESH.contains(kind)
        {
            let key = (*kind, ObjectKey::new(&Name::new(object.namespace()), &Name::new(object.name())));
            match record(*kind, object.text()) {
                Some(record) => drop(self.records.insert(key.clone(), record)),
                None => drop(self.records.remove(&key)),
            }
            self.mark(key);
        }
        for change in self.mirror.read(event) {
            self.note(&change);
            self.mirror.apply(change);
        }
    }

    /// Notes what a change may alter in the status of others.
    fn note(&mut self, change: &ObjectChange) {
        match change {
            ObjectChange::Applied(Object::Service(new), _) => {
                let looks = |service: &model::Service| (service.kind, service.ports.clone());
                if self.mirror.snapshot().service(&new.key).map(looks) != Some(looks(new)) {
                    self.mark_users(&new.key.namespace);
                }
            }
            ObjectChange::Applied(Object::Gateway(gateway), _) => self.gateway_changed(&gateway.key),
            ObjectChange::Deleted(kind, key) | ObjectChange::Unreadable(kind, key, _) => {
                if matches!(change, ObjectChange::Deleted(..)) {
                    self.records.remove(&(*kind, key.clone()));
                }
                match kind {
                    ResourceKind::Service => self.mark_users(&key.namespace),
                    ResourceKind::Gateway => self.gateway_changed(key),
                    _ => {}
                }
            }
            ObjectChange::Listed(kind, seen) => {
                self.records.retain(|(of, key), _| of != kind || seen.contains(key));
                // What waited for this kind can be judged now.
                let all: Vec<Key> = self.records.keys().cloned().collect();
                all.into_iter().for_each(|key| self.mark(key));
            }
            ObjectChange::Applied(..) | ObjectChange::Other(..) | ObjectChange::Failed(..) => {}
        }
    }

    fn gateway_changed(&mut self, key: &ObjectKey) {
        self.wants_other_secrets = true;
        self.mark_users(&key.namespace);
    }

    fn mark(&mut self, key: Key) {
        if self.queued.insert(key.clone()) {
            self.order.push_back(key);
        }
    }

    /// Marks everything that may name an object of a namespace: what is in it, and policies with a destination there.
    fn mark_users(&mut self, namespace: &Name) {
        let snapshot = self.mirror.snapshot();
        let names = |(kind, key): &Key| {
            let is_there = |service: &ServiceKey| service.namespace == *namespace;
            key.namespace == *namespace
                || match kind {
                    ResourceKind::HttpRoute => {
                        snapshot.http_route(key).is_some_and(|p| p.to.iter().any(|to| is_there(&to.service)))
                    }
                    ResourceKind::TcpRoute => snapshot.tcp_route(key).is_some_and(|policy| {
                        policy.to.iter().filter_map(|to| to.service.as_ref()).any(is_there)
                    }),
                    _ => false,
                }
        };
        let users: Vec<Key> = self.records.keys().filter(|key| names(key)).cloned().collect();
        users.into_iter().for_each(|key| self.mark(key));
    }

    /// The Secrets that listeners name, if these may be others than before.
    fn take_wanted_secrets(&mut self) -> Option<BTreeSet<ObjectKey>> {
        std::mem::take(&mut self.wants_other_secrets).then(|| {
            let listeners = self.mirror.snapshot().gateways().flat_map(|gateway| gateway.listeners.iter());
            listeners.filter_map(|listener| Some(listener.certificate.as_ref()?.secret.clone())).collect()
        })
    }

    fn put_secret(&mut self, key: ObjectKey, pair: &Result<Pair, Notice>) {
        let text = |notice: &Notice| format!("Secret {key}: {}", notice.message);
        let state = match pair {
            Ok(_) => SecretState::Usable,
            Err(notice) if notice.reason == secret::NOT_READABLE => SecretState::Unknown(text(notice)),
            Err(notice) => SecretState::Unusable(text(notice)),
        };
        let namespace = key.namespace.clone();
        self.secrets.insert(key, state);
        self.mark_users(&namespace);
    }

    fn forget_secret(&mut self, key: &ObjectKey) {
        self.secrets.remove(key);
    }

    fn next(&mut self, now: Instant, time: Timestamp) -> Option<(Key, Work)> {
        while self.later.front().is_some_and(|(due, _)| *due <= now) {
            if let Some((_, key)) = self.later.pop_front() {
                self.mark(key);
            }
        }
        for _ in 0..self.order.len() {
            let key = self.order.pop_front()?;
            if self.busy.contains(&key) {
                // Its last version is being written; the answer decides.
                self.order.push_back(key);
                continue;
            }
            self.queued.remove(&key);
            if let Some(work) = self.judge(&key, time) {
                self.busy.insert(key.clone());
                return Some((key, work));
            }
        }
        None
    }

    /// What has to be written about an object; nothing if its status says so already.
    fn judge(&self, (kind, key): &Key, time: Timestamp) -> Option<Work> {
        let record = self.records.get(&(*kind, key.clone()))?;
        let about = ObjectRef::new(kind.as_str(), &key.namespace, &key.name);
        let standing = match record.problems.is_empty() {
            true => Some(self.standing(*kind, key)?),
            false => None,
        };
        record.work(*kind, &about, standing, time)
    }

    /// `None` while a kind or a Secret that it names was not read yet: absence says nothing then. What comes brings it here
    /// again.
    fn standing(&self, kind: ResourceKind, key: &ObjectKey) -> Option<Standing> {
        let snapshot: &Snapshot = self.mirror.snapshot();
        let has_listed = |kinds: &[ResourceKind]| self.mirror.has_listed(kinds);
        match kind {
            ResourceKind::HttpRoute if !has_listed(&[ResourceKind::Service]) => None,
            ResourceKind::HttpRoute => Some(of_http_route(snapshot, snapshot.http_route(key)?)),
            ResourceKind::GatewayHttpRoute
                if !has_listed(&[ResourceKind::Service, ResourceKind::Gateway]) =>
            {
                None
            }
            ResourceKind::GatewayHttpRoute => {
                Some(of_gateway_http_route(snapshot, snapshot.gateway_http_route(key)?))
            }
            ResourceKind::TcpRoute => {
                let policy = snapshot.tcp_route(key)?;
                let at_gateway = matches!(policy.target, PolicyTarget::Gateway(..));
                let is_known = has_listed(&[ResourceKind::Service])
                    && (!at_gateway || has_listed(&[ResourceKind::Gateway]));
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
        self.busy.remove(&key);
        let (kind, object) = (key.0.as_str(), &key.1);
        match result {
            Ok(()) => debug!(kind, %object, "wrote the status of a route or gateway"),
            // The watch brings what another writer wrote.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => {
                if !api_outage::is_api_unreachable() {
                    let error = failure::cause(&error);
                    warn!(kind, %object, error, "failed to write the status of a route or gateway; retrying");
                }
                self.later.push_back((now + PAUSE, key));
            }
        }
    }

    fn waits(&self) -> bool {
        !self.later.is_empty()
    }

    fn wake(&self) -> Instant {
        self.later.front().map_or_else(Instant::now, |(due, _)| *due)
    }
}

/// What is kept of an object's JSON.
fn record(kind: ResourceKind, text: &str) -> Option<Record> {
    let mut object: Value = serde_json::from_str(text).ok()?;
    let resource = kind.resource();
    object["kind"] = resource.kind.as_str().into();
    object["apiVersion"] = resource.api_version.as_str().into();
    let reading = mesh_object(&object, &mut Interner::default());
    let idle = reading.object.as_ref().map(never_matching).unwrap_or_default();
    Some(Record::new(&object, reading.problems, idle))
}

async fn write(client: &Client, work: &Work) -> Result<(), kube::Error> {
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
