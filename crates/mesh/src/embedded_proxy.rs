//! The embedded proxy in the mesh, from its first tables to its last connection.
//!
//! ```text
//! ObjectSource -> TableCache -> MeshTables -> proxy.swap;  BoundListeners: bound ports;  KernelRedirect: redirected connections
//! stop:  not ready -> redirect removed -> listeners closed -> open connections drained
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use clock::Clock;
use model::{Name, Notice, ObjectKey, ServiceKey, Snapshot};
use plan::gateway_api::UnboundPort;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use proxy::{CertificateAuthorities, ListenerKind, Proxy, ProxyTables, ServerCertificate};
use tokio::sync::watch;
use tracing::{info, warn};
use xds::render::PemKeyPair;

use super::listeners::{
    BoundListeners, FailedListener, ListenerId, ListenerSpec, SocketUse, unspecified_address,
};
use super::object_source::{MeshInput, ObjectSource};
use super::proxy_identity::{ProxyIdentity, ProxyRole};
use super::redirect::KernelRedirect;
use super::table_cache::{MeshTables, TableCache};
use crate::destination_port;
use cluster::log;

/// Inputs applied before tables are rebuilt.
const INPUTS_PER_SYNC: usize = 1_024;
/// Resync of ports in use, the redirect and Notices.
const RESYNC_PERIOD: Duration = Duration::from_secs(1);
/// Notices remembered as logged.
const MAX_LOGGED: usize = 10_000;
/// Ports that are reported as not bound.
const MAX_UNBOUND: usize = 64;

/// A listener of a sidecar for one port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboundListener {
    /// 0 binds a free port.
    pub listen: u16,
    pub service: ServiceKey,
    /// By number or name; `None` is the first HTTP port.
    pub port: Option<String>,
}

pub struct EmbeddedProxyConfig {
    pub identity: ProxyIdentity,
    /// Empty: loopback for a sidecar, all addresses for a gateway.
    pub bind: Vec<IpAddr>,
    pub outbounds: Vec<OutboundListener>,
    /// The port that connections to Services are redirected to.
    pub redirect: Option<u16>,
    /// The drain timeout.
    pub drain: Duration,
    pub clock: Clock,
}

/// Readiness and metrics of a running proxy.
#[derive(Debug, Default)]
pub struct TablesHealth {
    /// Why it is not ready; `None` when it is.
    unready: Mutex<Option<String>>,
    /// Ports of the gateway that could not be bound.
    unbound: watch::Sender<Vec<UnboundPort>>,
    swaps: Counter,
    last_swap: Gauge<f64, AtomicU64>,
    listeners: Gauge,
    notices: Gauge,
}

impl TablesHealth {
    /// Not ready.
    pub fn new() -> Self {
        Self { unready: Mutex::new(Some("no table yet".to_owned())), ..Self::default() }
    }

    /// For `/readyz`.
    pub fn check(&self) -> Result<(), String> {
        match &*self.unready.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some(why) => Err(why.clone()),
        }
    }

    /// The ports of the gateway that could not be bound, for reports to the controller.
    pub fn unbound_ports(&self) -> watch::Receiver<Vec<UnboundPort>> {
        self.unbound.subscribe()
    }

    fn set(&self, unready: Option<String>) {
        *self.unready.lock().unwrap_or_else(PoisonError::into_inner) = unready;
    }

    /// Adds the metrics to a registry.
    pub fn register_metrics(&self, registry: &mut Registry) {
        registry.register(
            "zoneward_mesh_table_swaps",
            "Route and backend tables swapped in",
            self.swaps.clone(),
        );
        let help = "Duration of building and swapping in the last tables";
        registry.register("zoneward_mesh_last_swap_seconds", help, self.last_swap.clone());
        registry.register("zoneward_mesh_listeners", "Open ports", self.listeners.clone());
        registry.register("zoneward_mesh_notices", "Current Notices, which are logged", self.notices.clone());
    }
}

/// Runs until `stop` completes, then drains connections.
pub async fn run(
    config: EmbeddedProxyConfig,
    mut source: ObjectSource,
    proxy: Proxy,
    health: Arc<TablesHealth>,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    let redirect = match config.redirect {
        Some(port) => Some(KernelRedirect::open(port, own_uid())?),
        None => None,
    };
    let mut cache = TableCache::default();
    cache.add(config.identity.clone());
    info!(role = %config.identity.role, node = config.identity.node.as_str(), "waiting for the first table");
    let mut proxy_loop = ProxyLoop {
        listeners: BoundListeners::new(proxy.clone()),
        config,
        cache,
        proxy,
        redirect,
        health,
        certificates: BTreeMap::new(),
        authorities: BTreeMap::new(),
        logged: BTreeSet::new(),
        proxy_notices: Vec::new(),
        is_changed: true,
        unspecified: unspecified_address(),
        has_ipv6: has_ipv6(),
        has_tables: false,
    };
    let mut tick = tokio::time::interval(RESYNC_PERIOD);
    let mut stop = std::pin::pin!(stop);
    loop {
        tokio::select! {
            biased;
            () = &mut stop => break,
            _ = tick.tick() => {
                // Endpoints that warm up or are drained change with time.
                proxy_loop.sync_tables(&mut source).await;
                proxy_loop.resync().await;
            }
            input = source.next() => {
                proxy_loop.apply(input);
                for _ in 0..INPUTS_PER_SYNC {
                    let Some(input) = source.ready() else { break };
                    proxy_loop.apply(input);
                }
                proxy_loop.sync_tables(&mut source).await;
            }
        }
    }
    proxy_loop.shut_down().await
}

/// The user whose connections are not redirected; `None` for root, which other processes may use as well.
fn own_uid() -> Option<u32> {
    let uid = nix::unistd::geteuid();
    (!uid.is_root()).then_some(uid.as_raw())
}

struct ProxyLoop {
    config: EmbeddedProxyConfig,
    cache: TableCache,
    proxy: Proxy,
    listeners: BoundListeners,
    redirect: Option<KernelRedirect>,
    health: Arc<TablesHealth>,
    /// Parsed certificates with their source.
    certificates: BTreeMap<ObjectKey, (Arc<PemKeyPair>, Arc<ServerCertificate>)>,
    /// Parsed certificate authorities with their source.
    authorities: BTreeMap<ObjectKey, (Arc<[u8]>, Arc<CertificateAuthorities>)>,
    logged: BTreeSet<Notice>,
    /// About the proxy's current tables.
    proxy_notices: Vec<Notice>,
    /// Inputs arrived since Notices were last collected.
    is_changed: bool,
    unspecified: IpAddr,
    has_ipv6: bool,
    has_tables: bool,
}

impl ProxyLoop {
    fn apply(&mut self, input: MeshInput) {
        self.is_changed = true;
        match input {
            MeshInput::Event(event) => self.cache.apply(*event),
            MeshInput::Certificate(update) => self.cache.put_certificate(*update),
        }
    }

    /// Swaps in new tables if something changed.
    async fn sync_tables(&mut self, source: &mut ObjectSource) {
        let started = self.config.clock.now();
        self.cache.advance_shares(self.config.clock.timestamp().into());
        let updates = self.cache.refresh();
        for key in source.watch_certificates(&self.cache.wanted_certificates()) {
            self.cache.remove_certificate(&key);
        }
        let Some(tables) = self.cache.tables(&self.config.identity).filter(|_| !updates.is_empty()) else {
            return;
        };
        self.update_redirect(|redirect| redirect.narrow(&tables.routes));
        self.proxy_notices = self.swap(&tables);
        self.has_tables = true;
        self.health.last_swap.set(self.config.clock.since(started).as_secs_f64());
        self.health.swaps.inc();
        if updates.iter().any(|update| update.changed.routes) {
            self.sync_listeners().await;
        }
    }

    fn swap(&mut self, tables: &MeshTables) -> Vec<Notice> {
        self.certificates.retain(|key, _| tables.certificates.contains_key(key));
        for (key, pair) in &tables.certificates {
            if self.certificates.get(key).is_none_or(|(made_from, _)| !Arc::ptr_eq(made_from, pair))
                && let Ok(made) = ServerCertificate::parse(&pair.chain, &pair.key)
            {
                self.certificates.insert(key.clone(), (pair.clone(), Arc::new(made)));
            }
        }
        self.authorities.retain(|key, _| tables.authorities.contains_key(key));
        for (key, pem) in &tables.authorities {
            if self.authorities.get(key).is_none_or(|(made_from, _)| !Arc::ptr_eq(made_from, pem))
                && let Ok(made) = CertificateAuthorities::parse(pem)
            {
                self.authorities.insert(key.clone(), (pem.clone(), Arc::new(made)));
            }
        }
        let certificates =
            self.certificates.iter().map(|(key, (_, made))| (key.clone(), made.clone())).collect();
        let authorities =
            self.authorities.iter().map(|(key, (_, made))| (key.clone(), made.clone())).collect();
        self.proxy.swap(ProxyTables {
            routes: tables.routes.clone(),
            backends: tables.backends.clone(),
            certificates: Arc::new(certificates),
            authorities: Arc::new(authorities),
        })
    }

    fn update_redirect(&mut self, act: impl FnOnce(&mut KernelRedirect) -> Result<()>) -> Option<String> {
        let error = act(self.redirect.as_mut()?).err()?;
        let why = format!("{error:#}");
        warn!(error = why, "cannot redirect connections");
        Some(why)
    }

    /// Syncs listeners and redirect with the tables.
    async fn sync_listeners(&mut self) {
        let Some(tables) = self.cache.tables(&self.config.identity).filter(|_| self.has_tables) else {
            return;
        };
        let (wanted, unresolved) = self.wanted_listeners(&tables);
        self.listeners.sync(&wanted).await;
        // Connections are redirected only to a port that is bound.
        let all_bound = self.listeners.errors().next().is_none();
        let redirect_error =
            if all_bound { self.update_redirect(|redirect| redirect.widen(&tables.routes)) } else { None };
        let why: Vec<String> = self.listeners.errors().chain(unresolved).chain(redirect_error).collect();
        let unbound = self.unbound_ports();
        self.health.unbound.send_if_modified(|known| {
            let is_changed = *known != unbound;
            *known = unbound;
            is_changed
        });
        self.health.listeners.set(self.listeners.open() as i64);
        self.health.set((!why.is_empty()).then(|| why.join("; ")));
    }

    fn unbound_ports(&self) -> Vec<UnboundPort> {
        let ProxyRole::Gateway(key, _) = &self.config.identity.role else { return Vec::new() };
        let failed = self.listeners.failed_gateway_ports().take(MAX_UNBOUND);
        let port = |(is_udp, failed): (bool, &FailedListener)| UnboundPort {
            namespace: key.namespace.to_string(),
            gateway: key.name.to_string(),
            is_udp,
            address: failed.at,
            listener_port: None,
            envoy: String::new(),
            node: self.config.identity.node.to_string(),
            error: failed.error.clone(),
        };
        failed.map(port).collect()
    }

    /// The wanted listeners, and why some cannot be resolved yet.
    fn wanted_listeners(&self, tables: &MeshTables) -> (BTreeMap<ListenerId, ListenerSpec>, Vec<String>) {
        let (mut wanted, mut unresolved) = (BTreeMap::new(), Vec::new());
        let bind = |default: IpAddr| match self.config.bind.is_empty() {
            true => vec![default],
            false => self.config.bind.clone(),
        };
        for port in tables.routes.ports() {
            for ip in bind(self.unspecified) {
                let kind = SocketUse::Connections(ListenerKind::Gateway { port: port.number });
                let at = SocketAddr::new(ip, port.number);
                wanted
                    .insert(ListenerId::Gateway(port.number, ip), ListenerSpec { at, kind, flag: "--bind" });
            }
        }
        for (port, _) in tables.routes.udp_ports() {
            for ip in bind(self.unspecified) {
                let (kind, at) = (SocketUse::Datagrams(port), SocketAddr::new(ip, port));
                wanted.insert(ListenerId::GatewayUdp(port, ip), ListenerSpec { at, kind, flag: "--bind" });
            }
        }
        for (i, outbound) in self.config.outbounds.iter().enumerate() {
            let port = match service_port(outbound, self.cache.snapshot()) {
                Ok(port) => port,
                Err(why) => {
                    unresolved.push(why);
                    continue;
                }
            };
            for ip in bind(Ipv4Addr::LOCALHOST.into()) {
                let kind = ListenerKind::Outbound { service: outbound.service.clone(), port };
                let kind = SocketUse::Connections(kind);
                let at = SocketAddr::new(ip, outbound.listen);
                wanted.insert(ListenerId::Outbound(i, ip), ListenerSpec { at, kind, flag: "--outbound" });
            }
        }
        if let Some(port) = self.config.redirect {
            let families = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
            for ip in families.into_iter().filter(|ip: &IpAddr| ip.is_ipv4() || self.has_ipv6) {
                let spec = ListenerSpec {
                    at: SocketAddr::new(ip, port),
                    kind: SocketUse::Connections(ListenerKind::OriginalDestination),
                    flag: "--redirect=PORT",
                };
                wanted.insert(ListenerId::Redirect(ip), spec);
            }
        }
        (wanted, unresolved)
    }

    /// Retries failed listeners, and logs new Notices.
    async fn resync(&mut self) {
        if !self.has_tables {
            let why: Vec<String> = self
                .cache
                .watch_errors()
                .iter()
                .map(|(kind, why)| format!("failed to watch {}: {why}", kind.as_str()))
                .collect();
            self.health.set(Some(format!("no table yet; {}", why.join("; "))));
            return;
        }
        self.sync_listeners().await;
        if !std::mem::take(&mut self.is_changed) {
            return;
        }
        let notices: BTreeSet<Notice> =
            self.cache.notices().into_iter().chain(self.proxy_notices.iter().cloned()).collect();
        self.health.notices.set(notices.len() as i64);
        self.logged.retain(|notice| notices.contains(notice));
        self.log_notices(notices);
    }

    /// Logs each Notice once, until it disappears.
    fn log_notices(&mut self, notices: BTreeSet<Notice>) {
        for notice in notices {
            if self.logged.len() < MAX_LOGGED && !self.logged.contains(&notice) {
                log::notice(&notice);
                self.logged.insert(notice);
            }
        }
    }

    async fn shut_down(mut self) -> Result<()> {
        self.health.set(Some("stopping".to_owned()));
        info!(drain = ?self.config.drain, "stopping; draining connections");
        self.update_redirect(KernelRedirect::remove);
        self.listeners.close_all().await;
        self.proxy.drain(self.config.drain).await;
        Ok(())
    }
}

fn has_ipv6() -> bool {
    std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
}

fn service_port(listener: &OutboundListener, snapshot: &Snapshot) -> Result<u16, String> {
    let service = snapshot.service(&listener.service);
    let service = service
        .ok_or_else(|| format!("--outbound {}={}: no such Service yet", listener.listen, listener.service))?;
    let port = destination_port(service, listener.port.as_deref());
    port.map(|port| port.port)
        .map_err(|error| format!("--outbound {}={}: {error}", listener.listen, listener.service))
}

/// Parses `PORT=[NAMESPACE/]SERVICE[:PORT]`.
pub fn outbound(text: &str, namespace: &Name) -> Result<OutboundListener> {
    let wrong = |what: &str| {
        anyhow::anyhow!(
            "--outbound {text}: {what}; expected PORT=SERVICE[:PORT], such as 8081=backend or 8081=backend:http"
        )
    };
    let (listen, service) = text.split_once('=').ok_or_else(|| wrong("missing ="))?;
    let listen = listen.parse().map_err(|_| wrong(&format!("{listen:?} is not a port")))?;
    let (service, port) = match service.split_once(':') {
        Some((_, "")) => return Err(wrong("missing port after the colon")),
        Some((service, port)) => (service, Some(port.to_owned())),
        None => (service, None),
    };
    let (namespace, name) = match service.split_once('/') {
        Some((namespace, name)) => (Name::new(namespace), name),
        None => (namespace.clone(), service),
    };
    if name.is_empty() || namespace.is_empty() {
        return Err(wrong("missing Service name"));
    }
    Ok(OutboundListener { listen, service: ServiceKey::new(&namespace, &Name::new(name)), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outbounds_are_read_and_mistakes_show_the_right_form() {
        let namespace = Name::new("shop");
        let read = |text: &str| outbound(text, &namespace);
        let service = |namespace: &str, name: &str| ServiceKey::new(&namespace.into(), &name.into());
        let plain = OutboundListener { listen: 8081, service: service("shop", "backend"), port: None };
        assert_eq!(read("8081=backend").unwrap(), plain);
        let named =
            OutboundListener { listen: 0, service: service("pay", "backend"), port: Some("http".to_owned()) };
        assert_eq!(read("0=pay/backend:http").unwrap(), named);
        for wrong in ["backend", "x=backend", "70000=backend", "80=", "80=backend:", "80=/backend"] {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.contains(wrong) && error.contains("PORT=SERVICE[:PORT]"), "{error}");
        }
    }
}
