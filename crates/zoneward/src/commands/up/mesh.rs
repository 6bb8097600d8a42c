//! The L7 proxies of this machine, of `zoneward up` or of a joined one: one process per MeshGateway, per Gateway of the
//! Gateway API and per sidecar. Each is restarted when it fails, and stopped when its gateway is deleted.
//!
//! The machine of the API also grants each gateway its certificates, on whichever machine it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clock::Clock;
use kube::Client;
use model::ProxyUser;
use model::gateway_api::{CONTROLLER, CertificateKind};
use model::random::Random;
use model::{Name, ObjectKey};
use plan::gateway_api::{
    AssignedAddresses, AttachedRoutes, MachineAddresses, StatusPlanner, machine_addresses,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::proxy_api::{CertificateNames, GatewayName, ProxyApi, ProxySocket};
use crate::cli;
use crate::commands::join::proxy_credentials::{KeptCredential, ProxyCredentials};
use cluster::log::LogFormat;
use cluster::supervisor::{self, ChildPrivileges, ChildProgram, RestartBackoff};
use cluster::{Informer, InformerEvent, ObjectKind, WatchCache, WatchSpec};
use mesh::ProxyRole;
use mesh::embedded_proxy::outbound;

/// Maximum number of gateways; each is a process.
const MAX_GATEWAYS: usize = 64;
/// Events applied before proxies are started or stopped.
const EVENTS_PER_SYNC: usize = 1_024;
/// Beside the kinds of the Gateway API.
const WATCHED: [ObjectKind; 2] = [ObjectKind::MeshGateway, ObjectKind::Namespace];

/// How proxies reach the API.
pub(crate) enum ProxyAccess {
    /// By sockets of `zoneward up`.
    Sockets(Box<ProxyApi>),
    /// By credentials, on a joined machine.
    Credentials(ProxyCredentials),
}

/// What keeps one proxy connected to the API; ends when it is dropped.
enum ProxyLink {
    Socket(ProxySocket),
    Credential(KeptCredential),
}

impl ProxyAccess {
    fn link(&self, number: usize, proxy: &ProxyUser) -> Result<ProxyLink> {
        Ok(match self {
            Self::Sockets(api) => ProxyLink::Socket(api.socket(number, proxy)?),
            Self::Credentials(all) => ProxyLink::Credential(all.keep(number, proxy)),
        })
    }

    /// Grants a gateway its certificates. On a joined machine, that is done on the machine of the API.
    async fn grant(&self, gateway: &GatewayName, namespace: &str, sources: &CertificateNames) {
        if let Self::Sockets(api) = self {
            api.grant_sources(gateway, namespace, sources).await;
        }
    }

    async fn revoke(&self, gateway: &GatewayName, namespace: &str) {
        if let Self::Sockets(api) = self {
            api.revoke_sources(gateway, namespace).await;
        }
    }
}

impl ProxyLink {
    /// Tells the program where the API is, and as which user to run.
    fn apply(&self, program: &mut ChildProgram) {
        let user = match self {
            Self::Socket(socket) => {
                program.args.extend(["--api-socket".into(), socket.path.clone().into()]);
                // They may read neither Leases nor the socket of the ledger: each has a socket for its reports.
                program.args.push("--controller-lease=".into());
                if let Some(reports) = &socket.reports {
                    program.args.extend(["--ledger-socket".into(), reports.path.clone().into()]);
                }
                socket.user
            }
            Self::Credential(credential) => {
                program.args.extend(["--kubeconfig".into(), credential.path.clone().into()]);
                program.args.extend(["--report-as".into(), credential.reporter.clone().into()]);
                credential.user
            }
        };
        program.privileges = ChildPrivileges::Dropped { user };
    }
}

/// Settings of all proxies.
#[derive(Clone, Debug)]
pub struct ProxySupervisor {
    program: PathBuf,
    common: Vec<OsString>,
    /// Where MeshGateways listen; empty: on all addresses.
    bind: Vec<IpAddr>,
    /// The addresses of Gateways.
    machine: MachineAddresses,
    sidecars: Vec<Sidecar>,
    /// Whether gateways run here.
    runs_gateways: bool,
    /// Listen address of health and metrics of the first proxy; the others use the ports after it.
    metrics: SocketAddr,
    log: LogFormat,
}

/// What the flags say about all proxies.
pub struct ProxySupervisorSettings<'a> {
    /// Flags of every proxy.
    pub common: Vec<OsString>,
    pub zone: Option<&'a str>,
    pub bind: &'a [IpAddr],
    pub machine: MachineAddresses,
    pub sidecars: &'a [String],
    pub runs_gateways: bool,
    pub metrics: SocketAddr,
    pub log: LogFormat,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Sidecar {
    namespace: String,
    from: String,
    outbound: String,
}

impl ProxySupervisor {
    /// Parses the flags of `up`; without L7 proxies, only rights are granted.
    pub fn new(args: &cli::Up) -> Result<Self> {
        let mut common = args.access.words();
        common.extend(args.edge.words()?);
        Self::with(ProxySupervisorSettings {
            common,
            zone: args.zone.as_deref(),
            bind: &args.mesh_bind,
            machine: args.machine_addresses(),
            sidecars: &args.sidecar,
            runs_gateways: !args.no_mesh,
            metrics: args.mesh_metrics_bind_address,
            log: args.log.logging_format,
        })
    }

    pub fn with(settings: ProxySupervisorSettings<'_>) -> Result<Self> {
        let ProxySupervisorSettings { common: more, zone, machine, runs_gateways, metrics, log, .. } =
            settings;
        let program = std::env::current_exe().context("path of this program")?;
        let mut common: Vec<OsString> = vec!["mesh".into(), "proxy".into()];
        // Shorter than the stop timeout of child processes.
        common.extend(["--drain", "5s", "--logging-format", log.as_str()].map(OsString::from));
        common.extend(more);
        if let Some(zone) = zone {
            common.extend(["--zone".into(), zone.into()]);
        }
        let sidecars: Result<Vec<Sidecar>> = settings.sidecars.iter().map(|text| sidecar(text)).collect();
        let (bind, sidecars) = (settings.bind.to_vec(), sidecars?);
        let proxies = Self { program, common, bind, machine, sidecars, runs_gateways, metrics, log };
        let most = proxies.sidecars.len() + MAX_GATEWAYS;
        if proxies.metrics.port() != 0 && usize::from(u16::MAX - proxies.metrics.port()) < most {
            bail!(
                "--mesh-metrics-bind-address {}: {most} ports are needed; use a lower port",
                proxies.metrics
            );
        }
        Ok(proxies)
    }

    /// Listen address of health and metrics of a proxy; sidecars come first.
    fn metrics(&self, number: usize) -> SocketAddr {
        let port = match self.metrics.port() {
            0 => 0,
            first => first.saturating_add(u16::try_from(number).unwrap_or(u16::MAX)),
        };
        SocketAddr::new(self.metrics.ip(), port)
    }

    fn program(&self, name: String, number: usize, more: [&str; 4]) -> ChildProgram {
        let mut args = self.common.clone();
        args.extend(["--bind-address".into(), self.metrics(number).to_string().into()]);
        args.extend(more.map(OsString::from));
        ChildProgram {
            name,
            path: self.program.clone(),
            args,
            log: self.log,
            privileges: ChildPrivileges::Dropped { user: None },
        }
    }

    fn gateway(&self, number: usize, gateway: &GatewayName, bind: &[IpAddr]) -> ChildProgram {
        let GatewayName { namespace, name } = gateway;
        let more = ["-n", namespace, "--gateway", name];
        let title = format!("gateway {namespace}/{name}");
        let mut program = self.program(title, self.sidecars.len() + number, more);
        for ip in bind {
            program.args.extend(["--bind".into(), ip.to_string().into()]);
        }
        program
    }

    fn sidecar(&self, number: usize, sidecar: &Sidecar) -> ChildProgram {
        let Sidecar { namespace, from, outbound } = sidecar;
        let more = ["-n", namespace, "--from", from];
        let mut program = self.program(format!("sidecar {from}:{outbound}"), number, more);
        program.args.extend(["--outbound".into(), outbound.into()]);
        program
    }
}

/// Reads `[NAMESPACE/]FROM[,TAG=VALUE...]:PORT=SERVICE[:PORT]`.
fn sidecar(text: &str) -> Result<Sidecar> {
    let wrong =
        || format!("--sidecar {text}: expected CLIENT:PORT=SERVICE[:PORT], such as frontend:8081=backend");
    let (from, way) = text.split_once(':').with_context(wrong)?;
    let (namespace, from) = from.split_once('/').unwrap_or(("default", from));
    ProxyRole::sidecar(from, &Name::new(namespace)).with_context(wrong)?;
    outbound(way, &Name::new(namespace)).with_context(wrong)?;
    Ok(Sidecar { namespace: namespace.to_owned(), from: from.to_owned(), outbound: way.to_owned() })
}

/// A process that is kept running.
struct RunningProxy {
    /// Its number among its kind, which decides its port for metrics.
    number: usize,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
    /// Its way to the API.
    _link: ProxyLink,
}

impl RunningProxy {
    fn start(number: usize, mut program: ChildProgram, link: ProxyLink, clock: &Clock) -> Self {
        link.apply(&mut program);
        let (stop, mut stopped) = watch::channel(false);
        let ready = match &link {
            ProxyLink::Socket(_) => None,
            ProxyLink::Credential(credential) => Some(credential.ready.clone()),
        };
        let clock = clock.clone();
        let supervised = async move {
            if let Some(mut ready) = ready {
                tokio::select! {
                    biased;
                    _ = stopped.wait_for(|stop| *stop) => return,
                    _ = ready.wait_for(|ready| *ready) => {}
                }
            }
            supervisor::supervise(program, RestartBackoff::default(), clock, stopped).await;
        };
        Self { number, stop, task: tokio::spawn(supervised), _link: link }
    }

    async fn stop(self) {
        self.stop.send_replace(true);
        // One that panicked has nothing left to stop. The socket goes last.
        let _ = self.task.await;
    }
}

/// Keeps the proxies running until `stop` turns true.
pub(crate) async fn keep(
    client: Client,
    access: ProxyAccess,
    clock: Clock,
    random: Random,
    proxies: ProxySupervisor,
    mut stop: watch::Receiver<bool>,
) {
    let mut sidecars = Vec::new();
    for (i, sidecar) in proxies.sidecars.iter().enumerate() {
        match access.link(i, &ProxyUser::sidecar(&sidecar.namespace, i)) {
            Ok(link) => {
                sidecars.push(RunningProxy::start(i, proxies.sidecar(i, sidecar), link, &clock));
            }
            Err(error) => warn!(error = %format_args!("{error:#}"), "sidecar is not started"),
        }
    }
    let wanted = WATCHED.into_iter().chain(ObjectKind::GATEWAY_API);
    // A joined machine without gateways may not read them.
    let is_watching = proxies.runs_gateways || matches!(access, ProxyAccess::Sockets(_));
    let wanted = wanted.filter(|_| is_watching).map(WatchSpec::all);
    let mut feed = Informer::start(&client, random, wanted);
    let cache = WatchCache::default();
    let mut gateways =
        Gateways { proxies, access, clock, cache, kept: BTreeMap::new(), stopping: Vec::new() };
    loop {
        let event = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            event = feed.next(), if is_watching => event,
        };
        gateways.apply(event);
        for _ in 0..EVENTS_PER_SYNC {
            let Some(event) = feed.ready() else { break };
            gateways.apply(event);
        }
        gateways.sync().await;
    }
    // All at once: each has some seconds to let its connections end.
    let all: Vec<RunningProxy> =
        sidecars.into_iter().chain(gateways.kept.into_values().filter_map(|kept| kept.proxy)).collect();
    for kept in &all {
        kept.stop.send_replace(true);
    }
    for kept in all {
        kept.stop().await;
    }
    for task in gateways.stopping {
        let _ = task.await;
    }
}

/// What a gateway needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct WantedGateway {
    /// Its kind, as in manifests.
    kind: &'static str,
    /// Where it listens on this machine; `None` if it does not run here.
    bind: Option<Vec<IpAddr>>,
    /// By namespace.
    sources: BTreeMap<String, CertificateNames>,
}

/// A gateway that is served here, or that has its rights from here.
struct KeptGateway {
    /// `None` if it does not run here.
    proxy: Option<RunningProxy>,
    wanted: WantedGateway,
}

struct Gateways {
    proxies: ProxySupervisor,
    access: ProxyAccess,
    clock: Clock,
    cache: WatchCache,
    kept: BTreeMap<GatewayName, KeptGateway>,
    stopping: Vec<JoinHandle<()>>,
}

impl Gateways {
    fn apply(&mut self, event: InformerEvent) {
        for change in self.cache.read(event) {
            self.cache.apply(change);
        }
    }

    /// All gateways, and where they listen on this machine. A MeshGateway comes before a Gateway of the same name.
    fn wanted(&self) -> BTreeMap<GatewayName, WantedGateway> {
        let snapshot = self.cache.snapshot();
        let name = |key: &ObjectKey| GatewayName {
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
        };
        let machine = &self.proxies.machine;
        let mut wanted = BTreeMap::new();
        let addresses = AssignedAddresses::Machine(machine.clone());
        let mut attached = AttachedRoutes::default();
        let planner = StatusPlanner::new(snapshot, CONTROLLER, &addresses, &mut attached);
        let mut own = machine_addresses(snapshot, CONTROLLER, machine);
        for key in planner.gateways() {
            let mut sources: BTreeMap<String, CertificateNames> = BTreeMap::new();
            for (kind, source) in planner.certificates(Some(&key)) {
                let names = sources.entry(source.namespace.to_string()).or_default();
                match kind {
                    CertificateKind::Secret => names.secrets.insert(source.name.to_string()),
                    CertificateKind::ConfigMap => names.config_maps.insert(source.name.to_string()),
                };
            }
            let bind = own.remove(&key).filter(|_| self.proxies.runs_gateways);
            wanted.insert(name(&key), WantedGateway { kind: "Gateway", bind, sources });
        }
        for gateway in snapshot.mesh_gateways() {
            let secrets = gateway.listeners.iter().flat_map(|listener| listener.certificates.iter());
            let secrets = secrets.map(|certificate| certificate.secret.name.to_string()).collect();
            let names = CertificateNames { secrets, ..CertificateNames::default() };
            let sources = [(gateway.key.namespace.to_string(), names)].into();
            let bind = self.proxies.runs_gateways.then(|| self.proxies.bind.clone());
            wanted.insert(name(&gateway.key), WantedGateway { kind: "MeshGateway", bind, sources });
        }
        wanted
    }

    async fn sync(&mut self) {
        let is_listed = self.cache.has_listed(&WATCHED) && self.cache.has_listed(&ObjectKind::GATEWAY_API);
        if !is_listed {
            return;
        }
        let wanted = self.wanted();
        let gone: Vec<GatewayName> =
            self.kept.keys().filter(|name| !wanted.contains_key(*name)).cloned().collect();
        for name in &gone {
            self.gone(name).await;
        }
        // In the order of their names, so that the same gateways get the same ports at every start.
        for (name, wanted) in wanted {
            self.put(name, wanted).await;
        }
    }

    async fn put(&mut self, name: GatewayName, wanted: WantedGateway) {
        let before = self.kept.get(&name).map(|kept| kept.wanted.clone());
        if before.as_ref() == Some(&wanted) {
            return;
        }
        let had = before.as_ref().map(|before| before.sources.clone()).unwrap_or_default();
        for (namespace, sources) in wanted.sources.iter().filter(|(at, own)| had.get(*at) != Some(own)) {
            self.access.grant(&name, namespace, sources).await;
        }
        for namespace in had.keys().filter(|namespace| !wanted.sources.contains_key(*namespace)) {
            self.access.revoke(&name, namespace).await;
        }
        let keeps_proxy =
            before.is_some_and(|before| (before.kind, &before.bind) == (wanted.kind, &wanted.bind));
        if let Some(mut kept) = self.kept.remove(&name) {
            if keeps_proxy {
                kept.wanted = wanted;
                self.kept.insert(name, kept);
                return;
            }
            // It listens elsewhere: the new one needs its socket and ports.
            if let Some(proxy) = kept.proxy {
                proxy.stop().await;
            }
        }
        let proxy = wanted.bind.as_ref().and_then(|bind| self.start(&name, wanted.kind, bind));
        self.kept.insert(name, KeptGateway { proxy, wanted });
    }

    fn start(&self, gateway: &GatewayName, kind: &str, bind: &[IpAddr]) -> Option<RunningProxy> {
        let GatewayName { namespace, name } = gateway;
        let running = self.kept.values().filter_map(|kept| kept.proxy.as_ref());
        let taken: BTreeSet<usize> = running.map(|proxy| proxy.number).collect();
        let Some(number) = (0..MAX_GATEWAYS).find(|number| !taken.contains(number)) else {
            warn!(
                kind,
                namespace,
                name,
                most = MAX_GATEWAYS,
                "gateway is not served: too many on this machine"
            );
            return None;
        };
        let of_all = self.proxies.sidecars.len() + number;
        let address = self.proxies.metrics(of_all);
        let link = match self.access.link(of_all, &gateway.proxy()) {
            Ok(link) => link,
            Err(error) => {
                warn!(kind, namespace, name, error = %format_args!("{error:#}"), "gateway is not served");
                return None;
            }
        };
        info!(kind, namespace, name, metrics = %address, "starting a proxy for a gateway");
        let program = self.proxies.gateway(number, gateway, bind);
        Some(RunningProxy::start(number, program, link, &self.clock))
    }

    async fn gone(&mut self, name: &GatewayName) {
        self.stopping.retain(|task| !task.is_finished());
        let Some(kept) = self.kept.remove(name) else { return };
        for namespace in kept.wanted.sources.keys() {
            self.access.revoke(name, namespace).await;
        }
        self.stopping.extend(kept.proxy.map(|proxy| tokio::spawn(proxy.stop())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sidecars_are_read_and_mistakes_show_the_right_form() {
        let read = |text: &str| sidecar(text);
        let plain = read("frontend:8081=backend").unwrap();
        assert_eq!((plain.namespace.as_str(), plain.from.as_str()), ("default", "frontend"));
        let full = read("shop/frontend,version=v2:8081=pay/backend:http").unwrap();
        assert_eq!(
            (full.namespace.as_str(), full.from.as_str(), full.outbound.as_str()),
            ("shop", "frontend,version=v2", "8081=pay/backend:http")
        );
        for wrong in ["frontend", "frontend=8081", ":8081=backend", "frontend:x=backend"] {
            let error = format!("{:#}", read(wrong).unwrap_err());
            assert!(error.contains("CLIENT:PORT=SERVICE"), "{error}");
        }
    }
}
