//! `zoneward up`: the embedded API with its controllers, a node proxy and L7 proxies.
//!
//! ```text
//! start: API -> controllers -> node proxy, L7 proxies: child processes, restarted when they fail
//! stop:  node proxy (its rules stay), L7 proxies (drained) -> controllers -> leader lease released -> API
//! ```

mod backups;
pub(super) mod machine;
pub(super) mod mesh;
mod proxy_api;
pub(super) mod proxy_folder;
mod served_api;
mod store_metrics;

use std::ffi::OsString;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::health_checks::readiness::CheckScope;
use anyhow::{Context, Result, anyhow, bail};
use clock::Clock;
use ipnet::IpNet;
use kube::Client;
use model::annotation;
use model::random::Random;
use plan::gateway_api::AssignedAddresses;
use prometheus_client::registry::Registry;
use store::api::Api;
use store::server::ApiServer;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{error, info};

use self::served_api::{OpenStore, ServedApi};
use super::status::server::StatusListener;
use crate::cli;
use crate::health_checks::{self, HealthCheckMetrics};
use ::node::dns::{DnsContext, DnsServer};
use cluster::Connection;
use cluster::admin_server::access::AdminAccess;
use cluster::admin_server::controller_health::{self, ApiHealth};
use cluster::admin_server::{self, AdminRoutes, HealthChecks};
use cluster::leader_election::election::ElectionTiming;
use cluster::leader_election::{LeaderElectionConfig, LedgerAddressSource};
use cluster::ledger_client;
use cluster::log;
use cluster::log::LogFormat;
use cluster::signals::Signals;
use cluster::supervisor::{self, ChildPrivileges, ChildProgram, RestartBackoff};
use cluster::systemd;
use controller::controllers::{ClusterIpOptions, Controllers, ControllersOptions};
use insight::traffic_ledger::SharedLedger;

/// Identity in the leader lease. The data directory belongs to one process, so that a successor after a crash takes
/// over the lease immediately.
const IDENTITY: &str = "zoneward-up";

/// Runs until SIGINT or SIGTERM.
pub(super) fn run(args: &cli::Up) -> Result<bool> {
    log::start(&args.log);
    args.gateway_api_channel.apply();
    let runtime = tokio::runtime::Runtime::new().context("starting threads")?;
    runtime.block_on(serve_all(args))?;
    Ok(true)
}

async fn serve_all(args: &cli::Up) -> Result<()> {
    check_ranges(&args.service_cluster_ip_range)?;
    if !args.no_node {
        check_rights()?;
    }
    let proxies = mesh::ProxySupervisor::new(args)?;
    // From here on, signals shut down gracefully.
    let mut signals = Signals::listen()?;
    create_data_folder(&args.data_dir)?;
    let backup_schedule = backups::BackupSchedule::open(&args.backups)?;
    let store = OpenStore::open(args)?;
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("listening on {}: use another address with --listen", args.listen))?;
    let flag = "--metrics-bind-address";
    let overseers =
        admin_server::listen_or_fallback_port(args.metrics_bind_address, controller_health::ADDRESS, flag)
            .await?;
    let dns = DnsServer::bind(&args.dns).await?;

    let (stop, stopped) = watch::channel(false);
    let served = ServedApi::start(args, store, listener, stopped.clone()).await?;
    let mut daemon = Daemon::new(args, &served, stopped)?;
    let (dns_stop, dns_stopped) = watch::channel(false);
    let dns = dns.map(|server| server.start(daemon.dns_context(), &mut daemon.registry, dns_stopped));
    let access = args.access.access(overseers.local_addr()?, Some(daemon.client.clone()), &daemon.clock)?;
    let controllers = match args.no_controllers {
        true => None,
        false => Some(daemon.start_controllers(&served, overseers.local_addr()?, access.clone()).await?),
    };
    let mut jobs = daemon.start_jobs(&served.api, backup_schedule);
    jobs.extend(daemon.serve_admin(&served.api, overseers, access, controllers.as_ref())?);
    let (listen, kubeconfig) = (served.listen, served.kubeconfig.clone());
    let supervised = daemon.supervise(served.server.clone(), proxies).await?;
    output::print_text(&format!("{}\n", kubeconfig.display()))?;
    systemd::notify_ready();
    announce(args, "serving", &format!("serving on https://{}; stop with Ctrl-C", reachable(listen)));
    signals.wait().await;

    announce(args, "stopping", "stopping");
    supervised.stop.send_replace(true);
    dns_stop.send_replace(true);
    if let Some(dns) = dns {
        dns.await.context("DNS panicked")?;
    }
    supervised.ended().await?;
    if let Some(controllers) = controllers {
        controllers.stop().await?;
    }
    stop.send_replace(true);
    for job in jobs {
        job.await.context("a server task panicked")?;
    }
    served.ended().await
}

fn create_data_folder(data: &Path) -> Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(data);
    made.with_context(|| format!("creating {}", data.display()))
}

/// What runs beside the API in this process, as its client.
struct Daemon<'a> {
    args: &'a cli::Up,
    client: Client,
    clock: Clock,
    random: Random,
    registry: Registry,
    ledger: SharedLedger,
    stopped: watch::Receiver<bool>,
}

impl<'a> Daemon<'a> {
    fn new(args: &'a cli::Up, served: &ServedApi, stopped: watch::Receiver<bool>) -> Result<Self> {
        let mut registry = admin_server::registry("up");
        store_metrics::register(served.api.clone(), &mut registry);
        let (clock, random) = (Clock::system(), Random::seeded(clock::os_seed()));
        let client = cluster::in_process(served.api.local(), &clock);
        let ledger = SharedLedger::new(&clock, &args.prices.price).map_err(|why| anyhow!("--price {why}"))?;
        ledger.register(&mut registry);
        Ok(Self { args, client, clock, random, registry, ledger, stopped })
    }

    fn dns_context(&mut self) -> DnsContext {
        DnsContext {
            client: self.client.clone(),
            node: cluster::hostname(),
            zone: self.args.zone.clone(),
            gates: self.args.service_ranges().gates,
            snapshot: None,
            clock: self.clock.clone(),
            random: self.random.split(),
        }
    }

    /// The controllers and their dashboard.
    async fn start_controllers(
        &mut self,
        served: &ServedApi,
        overseers: SocketAddr,
        access: Option<Arc<AdminAccess>>,
    ) -> Result<Controllers> {
        let args = self.args;
        let status = StatusListener::bind(&args.status).await?;
        let remote = remote_ledger(overseers, served.listen, access);
        let election = election(args, status.address(), remote, &self.clock, self.random.split());
        let slices = args.slice_controller();
        info!(url = status.url(), "serving the dashboard");
        // A viewer's token needs the API over TLS: in this process and on the socket, the client is trusted.
        let connection = Connection { kubeconfig: Some(served.kubeconfig.clone()), ..Connection::default() };
        let (client, stopped) = (self.client.clone(), self.stopped.clone());
        status.serve(&slices, &args.access, client.clone(), connection, stopped).await?;
        let ranges = args.service_cluster_ip_range.clone();
        let options = ControllersOptions {
            slices,
            lease_name: election.name.clone(),
            election: Some(election),
            ledger: self.ledger.clone(),
            gateway_addresses: AssignedAddresses::Machine(args.machine_addresses()),
            cluster_ips: Some(ClusterIpOptions { ranges, leader_only: false }),
        };
        let controllers = Controllers::start(client, options, &mut self.registry);
        let failure = controllers.failure();
        tokio::spawn(async move {
            if let Some(advice) = failure.await {
                error!(advice, "EndpointSlice controller ended");
            }
        });
        Ok(controllers)
    }

    /// Health checks of endpoints, and backups.
    fn start_jobs(
        &mut self,
        api: &Api,
        backup_schedule: Option<backups::BackupSchedule>,
    ) -> Vec<JoinHandle<()>> {
        let (client, clock, stopped) = (self.client.clone(), self.clock.clone(), self.stopped.clone());
        let checks = HealthCheckMetrics::default();
        checks.register(&mut self.registry);
        let scope = CheckScope { node: cluster::hostname(), without_node: true };
        let random = self.random.split();
        let checking =
            health_checks::run(client.clone(), scope, clock.clone(), random, checks, stopped.clone());
        let backing_up = backup_schedule.map(|schedule| {
            let metrics = backups::BackupMetrics::default();
            metrics.register(&mut self.registry);
            tokio::spawn(backups::run(api.clone(), client, schedule, clock, metrics, stopped))
        });
        [tokio::spawn(checking)].into_iter().chain(backing_up).collect()
    }

    /// Health, metrics and the ledger. Metrics are registered before.
    fn serve_admin(
        &mut self,
        api: &Api,
        overseers: TcpListener,
        access: Option<Arc<AdminAccess>>,
        controllers: Option<&Controllers>,
    ) -> Result<[JoinHandle<()>; 2]> {
        let health = ApiHealth::poll(self.client.clone(), self.clock.clone(), self.stopped.clone());
        let mut ready = HealthChecks::default().check("api", move || health.check());
        if let Some(controllers) = controllers {
            ready = controllers.check(ready);
        }
        let registry = Arc::new(std::mem::take(&mut self.registry));
        let metrics = registry.clone();
        api.serve_metrics(Box::new(move |accept| {
            let page = admin_server::metrics_accepted(&metrics, accept);
            (page.content_type, page.body)
        }));
        let routes = self.ledger.routes(controller_health::routes(registry, ready)).with_access(access);
        let reports = self.ledger.routes(AdminRoutes::default());
        let local = socket(&ledger_socket(self.args))?;
        Ok([
            tokio::spawn(admin_server::serve(overseers, routes, self.stopped.clone())),
            tokio::spawn(admin_server::serve_unix(local, reports, self.stopped.clone())),
        ])
    }

    /// The proxies, as child processes.
    async fn supervise(self, server: ApiServer, proxies: mesh::ProxySupervisor) -> Result<Supervised> {
        let Self { args, client, clock, random, ledger, .. } = self;
        let (stop, stopped) = watch::channel(false);
        let mut node = None;
        if !args.no_node {
            machine::register(client.clone(), &machine::name()?, args.zone.as_deref(), "up").await?;
            let (program, backoff) = (node_proxy(args)?, RestartBackoff::default());
            node =
                Some(tokio::spawn(supervisor::supervise(program, backoff, clock.clone(), stopped.clone())));
        }
        let reports = (!args.no_controllers).then_some(ledger);
        let access = proxy_api::ProxyApi::open(server, client.clone(), &args.data_dir, reports)?;
        let access = mesh::ProxyAccess::Sockets(Box::new(access));
        let mesh = tokio::spawn(mesh::keep(client, access, clock, random, proxies, stopped));
        Ok(Supervised { stop, node, mesh })
    }
}

/// The proxies on this machine.
struct Supervised {
    stop: watch::Sender<bool>,
    node: Option<JoinHandle<()>>,
    mesh: JoinHandle<()>,
}

impl Supervised {
    /// After `stop` has turned true.
    async fn ended(self) -> Result<()> {
        if let Some(node) = self.node {
            node.await.context("supervisor of the node proxy panicked")?;
        }
        self.mesh.await.context("supervisor of the L7 proxies panicked")
    }
}

/// A line on stderr, or a JSON log record.
fn announce(args: &cli::Up, state: &str, text: &str) {
    match args.log.logging_format {
        LogFormat::Text => eprintln!("zoneward: {text}"),
        LogFormat::Json => info!(state, detail = text, "state changed"),
    }
}

/// The node proxy as a child process, which needs more privileges than the rest.
fn node_proxy(args: &cli::Up) -> Result<ChildProgram> {
    let path = std::env::current_exe().context("path of this program")?;
    let socket = args.data_dir.join("api.sock");
    let mut words: Vec<OsString> = vec!["node".into(), "--api-socket".into(), socket.into()];
    words.extend(["--logging-format", args.log.logging_format.as_str()].map(OsString::from));
    words.extend(args.watch_own_zone.then(|| "--watch-own-zone".into()));
    match &args.node_config {
        Some(config) => words.extend(["--config".into(), config.into()]),
        // An explicit mode avoids a warning. NodePorts are served on all addresses, as without a mode.
        None => words.extend(["--proxy-mode", "nftables", "--nodeport-addresses", "all"].map(OsString::from)),
    }
    Ok(ChildProgram {
        name: "node".to_owned(),
        path,
        args: words,
        log: args.log.logging_format,
        privileges: ChildPrivileges::Inherited,
    })
}

/// Fails early instead of letting the child process fail repeatedly.
pub(super) fn check_rights() -> Result<()> {
    let status = fs::read_to_string("/proc/self/status").context("reading capabilities")?;
    if !has_net_admin(&status) {
        bail!("the node proxy requires NET_ADMIN: run as root, or disable it with --no-node");
    }
    Ok(())
}

/// Whether CAP_NET_ADMIN (12) is effective in a `/proc/PID/status`.
fn has_net_admin(status: &str) -> bool {
    const NET_ADMIN: u64 = 1 << 12;
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    effective.is_some_and(|effective| effective & NET_ADMIN != 0)
}

/// Where nodes of this machine report their traffic. A path that other processes can open.
fn ledger_socket(args: &cli::Up) -> PathBuf {
    let folder = fs::canonicalize(&args.data_dir).unwrap_or_else(|_| args.data_dir.clone());
    folder.join("ledger.sock")
}

/// Where joined machines report their traffic: `--metrics-bind-address`, if it can be reached from them.
fn remote_ledger(
    overseers: SocketAddr,
    listen: SocketAddr,
    access: Option<Arc<AdminAccess>>,
) -> Option<LedgerAddressSource> {
    let is_specific = |ip: &IpAddr| !ip.is_unspecified() && !ip.is_loopback();
    let ip = [overseers.ip(), listen.ip()].into_iter().find(is_specific)?;
    let (host, access) = (SocketAddr::new(ip, overseers.port()), access?);
    Some(LedgerAddressSource::new(move || ledger_client::https_address(host, &access.certificate_digest())))
}

/// As the only process with this API; a `zoneward controller` may run against it as well, and one of them leads.
fn election(
    args: &cli::Up,
    status: SocketAddr,
    remote_ledger: Option<LedgerAddressSource>,
    clock: &Clock,
    random: Random,
) -> LeaderElectionConfig {
    let local = format!("unix:{}", ledger_socket(args).display());
    let ledger_address = LedgerAddressSource::new(move || {
        match remote_ledger.as_ref().and_then(LedgerAddressSource::current) {
            Some(remote) => format!("{local} {remote}"),
            None => local.clone(),
        }
    });
    LeaderElectionConfig {
        namespace: "kube-system".to_owned(),
        name: "zoneward-controller".to_owned(),
        identity: IDENTITY.to_owned(),
        annotations: [(annotation::STATUS_ADDRESS.to_owned(), status.to_string())].into(),
        timing: ElectionTiming::default(),
        clock: clock.clone(),
        random,
        ledger_address,
    }
}

fn check_ranges(ranges: &[IpNet]) -> Result<()> {
    let families = |v4: bool| ranges.iter().filter(|range| range.addr().is_ipv4() == v4).count();
    if ranges.is_empty() || families(true) > 1 || families(false) > 1 {
        bail!(
            "--service-cluster-ip-range: expected one range, or one per family, such as 10.96.0.0/16,fd00:10:96::/112"
        );
    }
    Ok(())
}

/// The address for clients on this machine.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// A unix socket for this user; replaces a stale one.
fn socket(path: &Path) -> Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("removing {}", path.display()));
        }
        _ => {}
    }
    let listener = UnixListener::bind(path).with_context(|| format!("listening on {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))
        .with_context(|| format!("protecting {}", path.display()))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn net_admin_is_detected() {
        assert!(has_net_admin("Name:\tx\nCapEff:\t000001fffeffffff\n"));
        assert!(has_net_admin("CapEff:\t0000000000001000\n"));
        assert!(!has_net_admin("CapPrm:\t000001ffffffffff\nCapEff:\t0000000000000000\n"));
        assert!(!has_net_admin(""));
    }
}
