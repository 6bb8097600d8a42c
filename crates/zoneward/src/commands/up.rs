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
mod store_metrics;

use std::ffi::OsString;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::health_checks::readiness::CheckScope;
use anyhow::{Context, Result, bail};
use apimachinery::audit_policy::AuditPolicy;
use clock::Clock;
use ipnet::IpNet;
use model::annotation;
use model::random::Random;
use plan::gateway_api::AssignedAddresses;
use store::api::{Api, ApiLimits};
use store::audit::{AuditLog, AuditOptions, AuditStats};
use store::bootstrap::{self, BootstrapOptions, bootstrap};
use store::credentials::Credentials;
use store::engine::{Engine, EngineOptions, Migration, Reencryption};
use store::server::ApiServer;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tracing::{error, info, warn};

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
use controller::controllers::{ClusterIps, Controllers, ControllersOptions};
use insight::traffic_ledger::SharedLedger;

/// Identity in the leader lease. The data directory belongs to one process, so that a successor after a crash takes
/// over the lease immediately.
const IDENTITY: &str = "zoneward-up";
/// How often lost audit events are logged.
const AUDIT_REPORT_PERIOD: Duration = Duration::from_secs(60);

/// Runs until SIGINT or SIGTERM.
pub fn run(args: &cli::Up) -> Result<bool> {
    log::start(&args.log);
    args.gateway_api_channel.apply();
    let runtime = tokio::runtime::Runtime::new().context("starting threads")?;
    runtime.block_on(serve_all(args))?;
    Ok(true)
}

/// Opens the store in the format of this program, encrypted with the first key.
fn open_store(store: &Path, args: &cli::Up) -> Result<Engine> {
    let encryption = args.encryption.keys()?;
    if let Some(Migration { from, to, backup, .. }) = Engine::migrate(store)? {
        info!(from, to, backup = %backup.display(), "store migrated; the backup has the old format");
    }
    if let Some(Reencryption { versions, key }) = Engine::reencrypt(store, &encryption)? {
        let key = key.map_or("none".to_owned(), |key| key.to_string());
        info!(versions, key, "store re-encrypted");
    }
    Ok(Engine::open(store, EngineOptions { encryption, ..EngineOptions::default() })?)
}

async fn serve_all(args: &cli::Up) -> Result<()> {
    check_ranges(&args.service_cluster_ip_range)?;
    if !args.no_node {
        check_rights()?;
    }
    let proxies = mesh::ProxySupervisor::new(args)?;
    // From here on, signals shut down gracefully.
    let mut signals = Signals::listen()?;
    let data = &args.data_dir;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data)
        .with_context(|| format!("creating {}", data.display()))?;
    let backup_schedule = backups::BackupSchedule::open(&args.backups)?;
    let engine = open_store(&data.join("store"), args)?;
    let credentials =
        Credentials::open(data).with_context(|| format!("credentials in {}", data.display()))?;
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("listening on {}: use another address with --listen", args.listen))?;
    let listen = listener.local_addr().context("listen address")?;
    let overseers = admin_server::listen_or_fallback_port(
        args.metrics_bind_address,
        controller_health::ADDRESS,
        "--metrics-bind-address",
    )
    .await?;

    let dns = DnsServer::bind(&args.dns).await?;

    let service_cidrs = args.service_cluster_ip_range.clone();
    let ranges = args.service_ranges();
    let gates = ranges.gates;
    let mut api = Api::new(Arc::new(engine), ranges, ApiLimits::default());
    if let Some(path) = &args.audit_log_path {
        api = api.with_audit(audit_log(args, path)?);
    }
    api.set_node_credential_seconds(args.node_credential_ttl);
    api.open_signing_keys(data).with_context(|| format!("signing keys in {}", data.display()))?;
    let begun = bootstrap(&api, BootstrapOptions { service_cidrs, listen }).await?;
    for notice in &begun.notices {
        log::notice(notice);
    }

    let (stop, stopped) = watch::channel(false);
    let tls =
        credentials.server_config(&addresses(listen, &args.service_cluster_ip_range, begun.cluster_ip))?;
    let kubeconfig = credentials.write_kubeconfigs(reachable(listen))?;
    let credentials = Arc::new(credentials);
    let server =
        ApiServer::new(api.clone(), credentials.clone(), stopped.clone()).with_anonymous(args.anonymous_auth);
    let tasks = [
        tokio::spawn(server.clone().serve_unix(socket(&data.join("api.sock"))?)),
        tokio::spawn(server.clone().serve_tls(listener, tls)),
        tokio::spawn(store::garbage_collector::run(api.clone(), stopped.clone())),
        tokio::spawn(bootstrap::keep_api_service(api.clone(), listen, stopped.clone())),
        tokio::spawn(store::rbac_controller::run(api.clone(), stopped.clone())),
        tokio::spawn(store::credentials::keep_credentials(
            credentials,
            |renewed| match renewed {
                Ok(()) => info!("credentials renewed"),
                Err(error) => warn!(%error, "credentials were not renewed: retrying in a minute"),
            },
            stopped.clone(),
        )),
        tokio::spawn(store::authenticator::keep_signing_keys(
            api.clone(),
            |error| warn!(%error, "signing keys were not rotated: retrying in an hour"),
            stopped.clone(),
        )),
    ];
    let losses = tokio::spawn(report_audit_losses(api.clone(), stopped.clone()));
    let mut registry = admin_server::registry("up");
    store_metrics::register(api.clone(), &mut registry);
    let (clock, mut random) = (Clock::system(), model::random::Random::seeded(clock::os_seed()));
    let client = cluster::in_process(api.local(), &clock);
    let ledger =
        SharedLedger::new(&clock, &args.prices.price).map_err(|why| anyhow::anyhow!("--price {why}"))?;
    ledger.register(&mut registry);
    let (dns_stop, dns_stopped) = watch::channel(false);
    let dns = dns.map(|server| {
        let context = DnsContext {
            client: client.clone(),
            node: cluster::hostname(),
            zone: args.zone.clone(),
            gates,
            snapshot: None,
            clock: clock.clone(),
            random: random.split(),
        };
        server.start(context, &mut registry, dns_stopped)
    });
    let access = args.access.access(overseers.local_addr()?, Some(client.clone()), &clock)?;
    let mut controllers = None;
    if !args.no_controllers {
        let status = StatusListener::bind(&args.status).await?;
        let remote = remote_ledger(overseers.local_addr()?, listen, access.clone());
        let election = election(args, status.address(), remote, &clock, random.split());
        let slices = args.slice_controller();
        info!(url = status.url(), "serving the dashboard");
        // A viewer's token needs the API over TLS: in this process and on the socket, the client is trusted.
        let connection = Connection { kubeconfig: Some(kubeconfig.clone()), ..Connection::default() };
        status.serve(&slices, &args.access, client.clone(), connection, stopped.clone()).await?;
        let options = ControllersOptions {
            slices,
            lease_name: election.name.clone(),
            election: Some(election),
            ledger: ledger.clone(),
            gateway_addresses: AssignedAddresses::Machine(args.machine_addresses()),
            cluster_ips: Some(ClusterIps {
                ranges: args.service_cluster_ip_range.clone(),
                leader_only: false,
            }),
        };
        let started = Controllers::start(client.clone(), options, &mut registry);
        let failure = started.failure();
        tokio::spawn(async move {
            if let Some(advice) = failure.await {
                error!(advice, "EndpointSlice controller ended");
            }
        });
        controllers = Some(started);
    }
    let checks = HealthCheckMetrics::default();
    checks.register(&mut registry);
    let scope = CheckScope { node: cluster::hostname(), without_node: true };
    let checking =
        health_checks::run(client.clone(), scope, clock.clone(), random.split(), checks, stopped.clone());
    let checking = tokio::spawn(checking);
    let backing_up = backup_schedule.map(|schedule| {
        let metrics = backups::BackupMetrics::default();
        metrics.register(&mut registry);
        let (api, client) = (api.clone(), client.clone());
        tokio::spawn(backups::run(api, client, schedule, clock.clone(), metrics, stopped.clone()))
    });
    let health = ApiHealth::poll(client.clone(), clock.clone(), stopped.clone());
    let mut ready = HealthChecks::default().check("api", move || health.check());
    if let Some(controllers) = &controllers {
        ready = controllers.check(ready);
    }
    let registry = Arc::new(registry);
    let metrics = registry.clone();
    api.serve_metrics(Box::new(move |accept| {
        let page = admin_server::metrics_accepted(&metrics, accept);
        (page.content_type, page.body)
    }));
    let routes = ledger.routes(controller_health::routes(registry, ready)).with_access(access);
    let reports = ledger.routes(AdminRoutes::default());
    let counting =
        tokio::spawn(admin_server::serve_unix(socket(&ledger_socket(args))?, reports, stopped.clone()));
    let overseen = tokio::spawn(admin_server::serve(overseers, routes, stopped));
    if !args.no_node {
        machine::register(client.clone(), &machine::name()?, args.zone.as_deref(), "up").await?;
    }
    let (node_stop, node_stopped) = watch::channel(false);
    let node = match args.no_node {
        true => None,
        false => Some(tokio::spawn(supervisor::supervise(
            node_proxy(args)?,
            RestartBackoff::default(),
            clock.clone(),
            node_stopped,
        ))),
    };
    let mesh_stopped = node_stop.subscribe();
    let reports = (!args.no_controllers).then_some(ledger);
    let access = proxy_api::ProxyApi::open(server, client.clone(), data, reports)?;
    let access = mesh::ProxyAccess::Sockets(Box::new(access));
    let mesh = tokio::spawn(mesh::keep(client, access, clock, random, proxies, mesh_stopped));
    output::print_text(&format!("{}\n", kubeconfig.display()))?;
    systemd::notify_ready();
    announce(args, "serving", &format!("serving on https://{}; stop with Ctrl-C", reachable(listen)));
    signals.wait().await;
    announce(args, "stopping", "stopping");
    node_stop.send_replace(true);
    dns_stop.send_replace(true);
    if let Some(dns) = dns {
        dns.await.context("DNS panicked")?;
    }
    if let Some(node) = node {
        node.await.context("supervisor of the node proxy panicked")?;
    }
    mesh.await.context("supervisor of the L7 proxies panicked")?;
    if let Some(controllers) = controllers {
        controllers.stop().await?;
    }
    stop.send_replace(true);
    for task in tasks.into_iter().chain([overseen, counting, checking]).chain(backing_up) {
        task.await.context("a server task panicked")?;
    }
    let told = losses.await.context("the report of the audit log panicked")?;
    let flushed = api.clone();
    tokio::task::spawn_blocking(move || flushed.flush_audit()).await.context("the audit log panicked")?;
    report_audit_loss(&api, told);
    Ok(())
}

/// Logs lost audit events, at most once a minute, until `stop` turns true; returns the counts that were logged.
async fn report_audit_losses(api: Api, mut stop: watch::Receiver<bool>) -> AuditStats {
    let mut told = AuditStats::default();
    while tokio::time::timeout(AUDIT_REPORT_PERIOD, stop.wait_for(|stop| *stop)).await.is_err() {
        told = report_audit_loss(&api, told);
    }
    told
}

/// Logs the audit events that were lost since the last report; returns the counts of this one.
fn report_audit_loss(api: &Api, told: AuditStats) -> AuditStats {
    let stats = api.audit_stats().unwrap_or_default();
    let (dropped, errors) = (stats.dropped - told.dropped, stats.errors - told.errors);
    if dropped > 0 || errors > 0 {
        warn!(dropped, errors, "audit events were lost: the log is too slow, or cannot be written");
    }
    stats
}

/// The audit log of the flags.
fn audit_log(args: &cli::Up, path: &Path) -> Result<AuditLog> {
    let policy = match &args.audit_policy_file {
        None => AuditPolicy::metadata(),
        Some(file) => {
            let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
            let object: serde_json::Value =
                serde_saphyr::from_str(&text).with_context(|| format!("parsing {}", file.display()))?;
            AuditPolicy::parse(&object)
                .map_err(|why| anyhow::anyhow!("--audit-policy-file: {}: {why}", file.display()))?
        }
    };
    let (max_size, max_backups) = (args.audit_log_maxsize.saturating_mul(1 << 20), args.audit_log_maxbackup);
    let options = AuditOptions { policy, path: path.to_owned(), max_size, max_backups };
    AuditLog::open(options, Clock::system()).with_context(|| format!("--audit-log-path {}", path.display()))
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

/// Addresses of the API for its certificate: loopback, its own, and that of Service `kubernetes`.
fn addresses(listen: SocketAddr, ranges: &[IpNet], cluster_ip: Option<IpAddr>) -> Vec<IpAddr> {
    let mut all = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into(), reachable(listen).ip()];
    all.extend(ranges.first().and_then(|range| range.hosts().next()));
    all.extend(cluster_ip);
    all.sort();
    all.dedup();
    all
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
