//! Tables for Envoys: each connected Envoy identifies itself and gets the resources of its identity.
//!
//! ```text
//! ObjectSource -> TableCache -> MeshTables per identity -> xds::render -> PublishedResources -> streams
//! Subscriptions: an Envoy connects -> its identity is added, and removed when no stream has used it for a while
//! ```

mod admin_pages;
mod subscriptions;
mod unbound_ports;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clock::Clock;
use model::route::{EdgeSettings, RetryLimits};
use model::{Labels, Name, Notice, ObjectKey, ObjectRef, ServiceKey, Snapshot};
use tokio::sync::watch;
use tracing::info;
use xds::identity::{EnvoyIdentity, EnvoyRole, SidecarListeners};
use xds::render::{DirectResponseAllowlist, EnvoyListeners, RenderInput, Rendered, render};
use xds::stream::PublishedResources;

use super::object_source::{MeshInput, ObjectSource};
use super::proxy_identity::{ProxyIdentity, ProxyRole};
use super::table_cache::{MeshTables, TableCache};
use crate::destination_port;
use cluster::log;

pub use admin_pages::pages;
pub use subscriptions::Subscriptions;

/// Inputs applied before anything is rendered.
const INPUTS_PER_SYNC: usize = 1_024;
/// Resync of Notices and unused identities.
const RESYNC_PERIOD: Duration = Duration::from_secs(1);
/// How long an unused identity is kept: Envoys reconnect within seconds.
const UNUSED_TIMEOUT: Duration = Duration::from_secs(60);
/// Notices remembered as logged.
const MAX_LOGGED: usize = 10_000;

/// What the operator allows and requires, for all Envoys.
pub struct EnvoySettings {
    pub allowlist: Arc<DirectResponseAllowlist>,
    pub edge: Arc<EdgeSettings>,
    pub retries: RetryLimits,
}

/// Runs until `stop` completes.
pub async fn run(
    mut source: ObjectSource,
    subscriptions: Arc<Subscriptions>,
    settings: EnvoySettings,
    clock: Clock,
    stop: impl Future<Output = ()>,
) {
    let cache = TableCache::default().with_fallbacks();
    let mut control = ControlLoop {
        cache,
        clock,
        subscriptions: subscriptions.clone(),
        settings,
        served: BTreeMap::new(),
        logged: BTreeSet::new(),
    };
    let mut tick = tokio::time::interval(RESYNC_PERIOD);
    let mut stop = std::pin::pin!(stop);
    loop {
        tokio::select! {
            biased;
            () = &mut stop => return,
            _ = tick.tick() => control.resync(&mut source),
            () = subscriptions.changed() => control.sync(&mut source),
            input = source.next() => {
                control.apply(input);
                for _ in 0..INPUTS_PER_SYNC {
                    let Some(input) = source.ready() else { break };
                    control.apply(input);
                }
                control.sync(&mut source);
            }
        }
    }
}

struct ControlLoop {
    cache: TableCache,
    clock: Clock,
    subscriptions: Arc<Subscriptions>,
    settings: EnvoySettings,
    served: BTreeMap<EnvoyIdentity, ServedIdentity>,
    logged: BTreeSet<Notice>,
}

/// An identity with at least one stream, or recently so.
struct ServedIdentity {
    sender: watch::Sender<Option<Arc<PublishedResources>>>,
    identity: ProxyIdentity,
    rendered: Option<Rendered>,
    /// About its listeners.
    notices: Vec<Notice>,
    /// Since when it has no stream.
    unused_since: Option<Instant>,
}

impl ControlLoop {
    fn apply(&mut self, input: MeshInput) {
        match input {
            MeshInput::Event(event) => self.cache.apply(*event),
            MeshInput::Certificate(update) => self.cache.put_certificate(*update),
        }
    }

    /// Adds new identities, and renders what changed.
    fn sync(&mut self, source: &mut ObjectSource) {
        for (identity, sender) in self.subscriptions.take_new() {
            let proxy = proxy_identity(&identity);
            self.cache.add(proxy.clone());
            let served = ServedIdentity {
                sender,
                identity: proxy,
                rendered: None,
                notices: Vec::new(),
                unused_since: None,
            };
            self.served.insert(identity, served);
        }
        self.cache.advance_shares(self.clock.timestamp().into());
        let updated: BTreeSet<ProxyIdentity> =
            self.cache.refresh().into_iter().map(|update| update.identity).collect();
        for key in source.watch_certificates(&self.cache.wanted_certificates()) {
            self.cache.remove_certificate(&key);
        }
        self.subscriptions.set_ready(self.cache.is_listed(), self.cache.watch_errors());
        if !self.cache.is_listed() {
            return;
        }
        for (identity, served) in &mut self.served {
            let (listeners, notices) = listeners(identity, self.cache.snapshot());
            let moved = served.rendered.as_ref().is_none_or(|rendered| *rendered.listeners() != listeners);
            served.notices = notices;
            if moved || updated.contains(&served.identity) {
                let Some(tables) = self.cache.tables(&served.identity) else { continue };
                served.publish(input(tables, listeners, &self.settings));
            }
        }
    }

    /// Removes unused identities, and logs new Notices.
    fn resync(&mut self, source: &mut ObjectSource) {
        for served in self.served.values_mut() {
            let watched = served.sender.receiver_count() > 0;
            served.unused_since =
                if watched { None } else { served.unused_since.or_else(|| Some(self.clock.now())) };
        }
        let is_unused = |served: &ServedIdentity| {
            served.unused_since.is_some_and(|since| self.clock.since(since) > UNUSED_TIMEOUT)
        };
        let unused: Vec<EnvoyIdentity> = self
            .served
            .iter()
            .filter(|(_, served)| is_unused(served))
            .map(|(identity, _)| identity.clone())
            .collect();
        for identity in unused.into_iter().filter(|identity| self.subscriptions.release(identity)) {
            let Some(left) = self.served.remove(&identity) else { continue };
            // Another Envoy may share the tables with other listeners.
            if !self.served.values().any(|served| served.identity == left.identity) {
                self.cache.remove(&left.identity);
            }
        }
        self.sync(source);
        self.log_notices();
        let streams = self.subscriptions.streams.streams();
        self.subscriptions.set_unbound_ports(unbound_ports::of_streams(&streams));
    }

    fn log_notices(&mut self) {
        let mut notices = self.cache.notices();
        for served in self.served.values() {
            notices.extend(served.notices.iter().cloned());
            notices.extend(served.rendered.iter().flat_map(|rendered| rendered.notices.iter().cloned()));
        }
        notices.extend(self.subscriptions.streams.notices());
        notices.sort();
        notices.dedup();
        self.logged.retain(|notice| notices.binary_search(notice).is_ok());
        for notice in &notices {
            if self.logged.len() < MAX_LOGGED && self.logged.insert(notice.clone()) {
                log::notice(notice);
            }
        }
        self.subscriptions.set_notices(notices);
    }
}

impl ServedIdentity {
    fn publish(&mut self, input: RenderInput) {
        let rendered = render(input, self.rendered.as_ref());
        self.sender.send_if_modified(|held| {
            let next = match held {
                None => Some(PublishedResources::first(rendered.resources.clone())),
                Some(held) => held.next(rendered.resources.clone()),
            };
            let is_news = next.is_some();
            if let Some(next) = next {
                *held = Some(Arc::new(next));
            }
            is_news
        });
        if self.rendered.is_none() {
            info!(role = %self.identity.role, resources = rendered.resources.len(), "rendered the first resources");
        }
        self.rendered = Some(rendered);
    }
}

/// The identity whose tables an Envoy uses.
fn proxy_identity(identity: &EnvoyIdentity) -> ProxyIdentity {
    let namespace = Name::new(&identity.namespace);
    let role = match &identity.role {
        EnvoyRole::Sidecar { from, tags, .. } => {
            let pairs = tags.iter().map(|(key, value)| (Name::new(key), Name::new(value)));
            ProxyRole::Sidecar(
                ServiceKey::new(&namespace, &Name::new(from)),
                Labels::from_pairs(pairs.collect()),
            )
        }
        EnvoyRole::Gateway { name, .. } => {
            ProxyRole::Gateway(ObjectKey::new(&namespace, &Name::new(name)), None)
        }
    };
    ProxyIdentity { role, node: Name::new(&identity.node), zone: identity.zone.as_deref().map(Name::new) }
}

/// The listeners of an Envoy, with ports resolved to numbers.
fn listeners(identity: &EnvoyIdentity, snapshot: &Snapshot) -> (EnvoyListeners, Vec<Notice>) {
    match &identity.role {
        EnvoyRole::Gateway { name, bind, port_overrides } => {
            let gateway = ObjectKey::new(&Name::new(&identity.namespace), &Name::new(name));
            (
                EnvoyListeners::Gateway { gateway, bind: *bind, port_overrides: port_overrides.clone() },
                Vec::new(),
            )
        }
        EnvoyRole::Sidecar { listeners: SidecarListeners { capture, outbounds }, .. } => {
            let (mut found, mut notices) = (BTreeMap::new(), Vec::new());
            for (at, to) in outbounds {
                match outbound(to, &identity.namespace, snapshot) {
                    Ok(to) => drop(found.insert(*at, to)),
                    Err(why) => notices.push(unresolved_outbound(identity, at, to, &why)),
                }
            }
            (EnvoyListeners::Sidecar { capture: *capture, outbounds: found }, notices)
        }
    }
}

/// Resolves `[NAMESPACE/]SERVICE[:PORT]`.
fn outbound(text: &str, namespace: &str, snapshot: &Snapshot) -> Result<(ServiceKey, u16), String> {
    let (service, port) = match text.split_once(':') {
        Some((service, port)) => (service, Some(port)),
        None => (text, None),
    };
    let (namespace, name) = service.split_once('/').unwrap_or((namespace, service));
    let key = ServiceKey::new(&Name::new(namespace), &Name::new(name));
    let service = snapshot.service(&key).ok_or_else(|| format!("no Service {key}"))?;
    let port = destination_port(service, port).map_err(|error| error.to_string())?;
    Ok((key, port.port))
}

fn unresolved_outbound(identity: &EnvoyIdentity, at: &SocketAddr, to: &str, why: &str) -> Notice {
    let message =
        format!("cannot listen on {at} for {to}: {why}; create {to}, or print a bootstrap without it");
    Notice::new(ObjectRef::new("Envoy", &identity.namespace, &identity.title()), "OutboundNotFound", message)
}

fn input(tables: MeshTables, listeners: EnvoyListeners, settings: &EnvoySettings) -> RenderInput {
    RenderInput {
        certificates: Arc::new(tables.certificates),
        authorities: Arc::new(tables.authorities),
        routes: tables.routes,
        tiers: std::iter::once(tables.backends).chain(tables.fallbacks).collect(),
        listeners,
        allowlist: settings.allowlist.clone(),
        edge: settings.edge.clone(),
        retries: settings.retries,
    }
}
