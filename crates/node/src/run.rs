//! Runs the node proxy: watches, sync loop, servers, Lease, until a signal or a configuration change. Rules stay.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clock::Clock;
use dataplane::backend::{NodeBackend, PreviousMode};
use dataplane::conntrack::ConntrackSocket;
use dataplane::iptables::IptablesBackend;
use dataplane::iptables::commands::{IptablesFlavour, IptablesPrograms};
use dataplane::iptables::names::OWNER;
use dataplane::iptables::render::KernelFeatures;
use dataplane::ipvs::{
    BackendTime, IpvsBackend, IpvsLeftovers, IpvsScheduler, IpvsSettings, IpvsSocket, IpvsTimeouts, probe,
    set_timeouts,
};
use dataplane::nfnetlink::NetlinkSocket;
use dataplane::nftables::{NftablesBackend, list_chains};
use http::StatusCode;

use crate::offline_start::OfflineStart;
use insight::ledger::ZoneLookup;
use kube::Client;
use model::random::Random;
use model::{GoDuration, Notice};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::config::{Mode, NodeSettings};
use super::connections::ConnectionLog;
use super::dns::{DnsContext, DnsServer};
use super::health::{HealthEndpoint, ProxyHealth};
use super::metrics::{NodeMetrics, status};
use super::node_events::EventRecorder;
use super::node_lease::{self, ProgrammedState};
use super::object_contact::{self, ObjectContact};
use super::slice_watches::NodeWatches;
use super::snapshot_file::{self, SnapshotFile};
use super::sync_loop::{SyncLoop, SyncLoopParts};
use super::traffic::{ConnectionSource, NodeTraffic, NodeTrafficSource};
use super::{local_addresses, running_config, sysctl, traffic};
use cluster::admin_server::access::AdminAccessArgs;
use cluster::admin_server::{self, AdminPage, AdminRoutes};
use cluster::ledger_client::LedgerClient;
use cluster::{Connection, InformerEvent, ObjectKind, systemd};
use insight::traffic_reporter::TrafficReporter;

/// Most watch events applied between two syncs.
const EVENT_BATCH: usize = 1000;
/// Poll interval of the configuration file.
const CONFIG_POLL: Duration = Duration::from_secs(2);

/// Rules that are not updated any more send connections to endpoints that are gone.
const IPTABLES_CHAINS_LEFT: &str = "the chains of mode iptables are still in the kernel and nothing updates them: the programs of iptables \
     are missing. Use the image zoneward:VERSION-iptables until they are removed, or install iptables";

/// Health and metrics, shared with the servers.
pub struct SharedState {
    pub health: Mutex<ProxyHealth>,
    pub metrics: NodeMetrics,
    pub objects: ObjectContact,
}

impl SharedState {
    /// Calls a function with the locked health.
    pub fn health<T>(&self, look: impl FnOnce(&mut ProxyHealth) -> T) -> T {
        look(&mut self.health.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What a run needs beside its settings.
pub struct RunOptions<'a> {
    pub client: Client,
    /// How the API is reached; served to commands with --live.
    pub connection: Connection,
    pub node: String,
    /// Namespace of the node's Lease; empty writes none.
    pub lease_namespace: String,
    /// The Lease of the leading controller; `None` reports no traffic.
    pub controller_lease: Option<(String, String)>,
    /// Whether metrics have a series per Service.
    pub service_traffic_metrics: bool,
    /// Keeps the watched objects for a start while the API is away.
    pub snapshot: Option<&'a Path>,
    /// A change of this file ends the run.
    pub config_file: Option<&'a Path>,
    /// DNS of this machine, bound.
    pub dns: Option<DnsServer>,
    /// Who may read the metrics.
    pub access: &'a AdminAccessArgs,
    /// Warnings from reading the configuration.
    pub notices: Vec<Notice>,
    pub clock: Clock,
    /// Jitters the backoff of the watches.
    pub random: Random,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// SIGTERM or SIGINT.
    Stopped,
    /// The configuration changed: the supervisor restarts the process.
    Reconfigured,
}

/// Runs until a signal or a change of the configuration.
pub async fn run(settings: NodeSettings, mut options: RunOptions<'_>) -> Result<RunEnd> {
    let mut terminate = signal(SignalKind::terminate()).context("waiting for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("waiting for SIGINT")?;
    let mut events = EventRecorder::start(options.client.clone(), &options.node, options.clock.clone());
    let sysctls = sysctl::wanted(&settings.configuration, sysctl::cpus());
    let notices = std::mem::take(&mut options.notices).into_iter().chain(sysctl::set(&sysctls));
    notices.for_each(|notice| events.warn(notice));
    let backend = open_backend(&settings, &options.node, &options.clock)?;
    let score = settings.configuration.oom_score_adj.unwrap_or(-999);
    sysctl::set_oom_score(score).into_iter().for_each(|notice| events.warn(notice));

    let mut metrics = NodeMetrics::default();
    let (dns_stop, dns_stopped) = watch::channel(false);
    let dns = options
        .dns
        .take()
        .map(|server| server.start(dns_context(&settings, &options), metrics.registry_mut(), dns_stopped));
    let shared = Arc::new(SharedState {
        health: Mutex::new(ProxyHealth::new(settings.sync_period)),
        metrics,
        objects: ObjectContact::default(),
    });
    // Dropping the sender stops the servers.
    let (_serving, served) = watch::channel(false);
    serve_all(&settings, &options, &shared, &served)?;
    let (programmed, lease_state) = watch::channel(ProgrammedState::default());
    let snapshot = options.snapshot.map(Path::to_owned);
    tokio::spawn(object_contact::follow(shared.clone(), programmed.clone(), snapshot, options.clock.clone()));
    tokio::spawn(notify_ready(programmed.subscribe()));
    if !options.lease_namespace.is_empty() {
        tokio::spawn(node_lease::keep_lease(
            options.client.clone(),
            options.lease_namespace.clone(),
            options.node.clone(),
            settings.metrics,
            lease_state,
            options.clock.clone(),
        ));
    }
    let (zones, zones_of_pods) = watch::channel(ZoneLookup::default());
    let (sums, published) = watch::channel(NodeTraffic::default());
    let source = NodeTrafficSource { sums: published, zones, shared: shared.clone() };
    if let Some(reporter) = traffic_reporter(source, &options) {
        tokio::spawn(reporter.run());
    }
    let watches = NodeWatches::start(
        &options.client,
        options.random.clone(),
        &options.node,
        settings.watch_own_zone,
        settings.configuration.client_connection.accepts_protobuf(),
    );
    let snapshot = options.snapshot.map(|path| SnapshotFile::new(path, WATCHED.to_vec()));
    let source = connection_source(settings.mode);
    let other_modes = other_modes(settings.mode, &options.clock, &mut events);
    let parts = SyncLoopParts {
        settings,
        node: options.node,
        shared,
        events,
        programmed,
        backend,
        other_modes,
        conntrack: ConntrackSocket::open().ok().map(|socket| Box::new(socket) as _),
        traffic: traffic::start(&options.clock, source, zones_of_pods, sums, options.service_traffic_metrics),
        clock: options.clock.clone(),
        local_addresses: local_addresses::local(),
    };
    let reconfigured = config_change(options.config_file);
    let objects = parts.shared.clone();
    let end = tokio::select! {
        biased;
        _ = terminate.recv() => Ok(RunEnd::Stopped),
        _ = interrupt.recv() => Ok(RunEnd::Stopped),
        () = reconfigured => Ok(RunEnd::Reconfigured),
        end = run_loop(SyncLoop::new(parts), watches, local_addresses::changes(), snapshot, &objects, &options.clock) => end,
    };
    dns_stop.send_replace(true);
    if let Some(dns) = dns {
        dns.await.context("DNS panicked")?;
    }
    end
}

fn dns_context(settings: &NodeSettings, options: &RunOptions<'_>) -> DnsContext {
    DnsContext {
        client: options.client.clone(),
        node: options.node.clone(),
        zone: None,
        gates: settings.proxy.gates.select,
        snapshot: options.snapshot.map(|path| path.with_file_name(DNS_SNAPSHOT)),
        clock: options.clock.clone(),
        random: Random::seeded(clock::os_seed()),
    }
}

/// Tells systemd about the first complete sync.
async fn notify_ready(mut programmed: watch::Receiver<ProgrammedState>) {
    if programmed.wait_for(|state| state.revision.is_some()).await.is_ok() {
        systemd::notify_ready();
    }
}

fn traffic_reporter(source: NodeTrafficSource, options: &RunOptions<'_>) -> Option<TrafficReporter> {
    let lease = options.controller_lease.clone()?;
    Some(TrafficReporter {
        channel: Box::new(LedgerClient::new(options.client.clone(), options.connection.clone(), lease)),
        reporter: format!("node/{}", options.node),
        source: Box::new(source),
        clock: options.clock.clone(),
        random: Random::seeded(clock::os_seed()),
    })
}

/// Where the connections of Services are counted.
fn connection_source(mode: Mode) -> ConnectionSource {
    match mode {
        Mode::Iptables => ConnectionSource::Conntrack,
        Mode::Ipvs => ConnectionSource::Ipvs,
        Mode::Nftables | Mode::Default => ConnectionSource::Rules,
    }
}

/// The backend of the configured mode. Mode iptables needs its programs, because other software expects its chains; mode
/// ipvs fails where the kernel lacks a module, which the error names: another mode would not have its schedulers.
fn open_backend(settings: &NodeSettings, node: &str, clock: &Clock) -> Result<Box<dyn NodeBackend + Send>> {
    match settings.mode {
        Mode::Iptables => Ok(Box::new(open_iptables()?)),
        Mode::Ipvs => Ok(Box::new(open_ipvs_backend(settings, node, clock)?)),
        Mode::Nftables | Mode::Default => Ok(Box::new(open_nftables()?)),
    }
}

fn open_nftables() -> Result<NftablesBackend> {
    NftablesBackend::open().context("opening nf_tables over netlink; CAP_NET_ADMIN is required")
}

/// Where rules of this node proxy may be left from another mode. The chains of mode iptables are looked for without its
/// programs, which would create tables.
fn other_modes(mode: Mode, clock: &Clock, events: &mut EventRecorder) -> Vec<Box<dyn PreviousMode + Send>> {
    let mut found: Vec<Box<dyn PreviousMode + Send>> = Vec::new();
    if mode != Mode::Ipvs {
        found.extend(ipvs_leftovers(clock).map(|left| Box::new(left) as _));
    }
    if mode == Mode::Iptables {
        found.extend(NftablesBackend::open().ok().map(|nft| Box::new(nft) as _));
        return found;
    }
    let chains = NetlinkSocket::open().and_then(|mut kernel| list_chains(&mut kernel));
    let in_nft = chains.is_ok_and(|chains| chains.iter().any(|(_, chain)| *chain == OWNER));
    let names = ["/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"];
    let has_nat =
        |path: &&str| std::fs::read_to_string(path).is_ok_and(|text| text.lines().any(|t| t == "nat"));
    let in_legacy = names.iter().any(has_nat);
    for (is_there, flavour) in [(in_nft, IptablesFlavour::Nft), (in_legacy, IptablesFlavour::Legacy)] {
        match is_there.then(|| IptablesPrograms::find_flavour(flavour)) {
            Some(Ok(programs)) => {
                found.push(Box::new(IptablesBackend::new(Box::new(programs), KernelFeatures::default())));
            }
            Some(Err(_)) if flavour == IptablesFlavour::Nft => {
                events.warn_of_node("IptablesChainsLeft", IPTABLES_CHAINS_LEFT);
            }
            // The table may be of another program alone: only its programs could tell.
            Some(Err(_)) => tracing::info!(
                "table nat of iptables-legacy exists and its programs are missing; chains of mode iptables are not removed"
            ),
            None => {}
        }
    }
    found
}

fn open_iptables() -> Result<IptablesBackend> {
    let programs = IptablesPrograms::find()?;
    let features = KernelFeatures { drops_invalid: !sysctl::is_tcp_liberal(), ..KernelFeatures::default() };
    let backend = IptablesBackend::open(programs, features);
    tracing::info!(flavour = backend.flavour().as_str(), "mode iptables");
    Ok(backend)
}

fn open_ipvs_backend(settings: &NodeSettings, node: &str, clock: &Clock) -> Result<IpvsBackend> {
    let nft = open_nftables()?;
    let config = &settings.configuration.ipvs;
    let (mut kernel, scheduler) = open_ipvs(settings)?;
    let ipvs = IpvsSettings {
        scheduler,
        exclude_cidrs: config.exclude_cidrs.iter().filter_map(|text| text.parse().ok()).collect(),
        node: node.into(),
        has_dummy_interface: settings.ipvs_dummy_interface,
    };
    let seconds =
        |period: Option<GoDuration>| period.map_or(0, |p| u32::try_from(p.0.as_secs()).unwrap_or(u32::MAX));
    let timeouts = IpvsTimeouts {
        tcp: seconds(config.tcp_timeout),
        tcp_fin: seconds(config.tcp_fin_timeout),
        udp: seconds(config.udp_timeout),
    };
    set_timeouts(&mut kernel, timeouts).context("setting the timeouts of IPVS")?;
    Ok(IpvsBackend::new(nft, Box::new(kernel), ipvs, monotonic(clock)))
}

/// Opens IPVS; the kernel loads the modules that mode ipvs needs if it can.
pub fn open_ipvs(settings: &NodeSettings) -> Result<(IpvsSocket, IpvsScheduler)> {
    let scheduler = settings.configuration.ipvs.scheduler.parse().context("ipvs.scheduler")?;
    let mut kernel = IpvsSocket::open()?;
    // Shares that are not equal need wrr.
    probe(&mut kernel, &[scheduler, IpvsScheduler::Wrr])?;
    Ok((kernel, scheduler))
}

/// What mode ipvs left in this kernel. A kernel without the file has no IPVS, and asking it would load the module.
fn ipvs_leftovers(clock: &Clock) -> Option<IpvsLeftovers> {
    let kernel = Path::new("/proc/net/ip_vs").exists().then(IpvsSocket::open)?.ok()?;
    let nft = NetlinkSocket::open().ok()?;
    Some(IpvsLeftovers::new(Box::new(nft), Box::new(kernel), monotonic(clock)))
}

fn monotonic(clock: &Clock) -> BackendTime {
    let (clock, start) = (clock.clone(), clock.now());
    Box::new(move || clock.since(start))
}

/// The objects of DNS, beside the snapshot: other kinds, and headless Services.
const DNS_SNAPSHOT: &str = "dns-snapshot.json";

/// The kinds of [`NodeWatches`].
const WATCHED: [ObjectKind; 4] =
    [ObjectKind::Service, ObjectKind::Slice, ObjectKind::Node, ObjectKind::ServiceCidr];

/// The loop of [`run`] on a machine whose addresses never change, without a snapshot file: for simulations.
pub async fn run_with_fixed_addresses(
    sync_loop: SyncLoop,
    watches: NodeWatches,
    shared: &SharedState,
    clock: &Clock,
) -> Result<RunEnd> {
    let (_sender, no_changes) = watch::channel(0);
    run_loop(sync_loop, watches, no_changes, None, shared, clock).await
}

async fn run_loop(
    mut sync_loop: SyncLoop,
    mut watches: NodeWatches,
    mut address_changes: watch::Receiver<u64>,
    mut snapshot: Option<SnapshotFile>,
    shared: &SharedState,
    clock: &Clock,
) -> Result<RunEnd> {
    let mut watches_addresses = true;
    let mut replay_at = snapshot.as_ref().map(|_| clock.now() + snapshot_file::API_TIMEOUT);
    loop {
        let due = snapshot.as_ref().and_then(SnapshotFile::due_at);
        let wake = [Some(sync_loop.wake_at()), replay_at, due, watches.next_at()].into_iter().flatten().min();
        let wake = tokio::time::Instant::from_std(wake.unwrap_or_else(|| clock.now()));
        tokio::select! {
            // Address changes first: they coalesce, and watch events may never pause.
            biased;
            change = address_changes.changed(), if watches_addresses => {
                watches_addresses = change.is_ok();
                sync_loop.set_local_addresses(local_addresses::local());
            }
            event = watches.next() => {
                let events = watches.read(event, clock.now());
                observe(&mut sync_loop, &mut snapshot, shared, events);
                for _ in 0..EVENT_BATCH {
                    let Some(event) = watches.ready() else { break };
                    let events = watches.read(event, clock.now());
                    observe(&mut sync_loop, &mut snapshot, shared, events);
                }
            }
            () = tokio::time::sleep_until(wake) => {}
        }
        let gone = watches.gone(clock.now());
        observe(&mut sync_loop, &mut snapshot, shared, gone);
        if let Some(view) = sync_loop.slice_view(watches.view()) {
            watches.set_view(view);
        }
        if let Some(snapshot) = &mut snapshot {
            if replay_at.is_some_and(|at| at <= clock.now()) {
                replay_at = None;
                replay(snapshot, &mut sync_loop, shared, clock);
            }
            mark(snapshot);
            if let Some((path, content)) = snapshot.due(clock.now(), clock.timestamp()) {
                tokio::task::spawn_blocking(move || snapshot_file::write_logged(&path, &content));
            }
        }
        sync_loop.work();
        // Lets the servers of this process run.
        tokio::task::yield_now().await;
    }
}

fn observe(
    sync_loop: &mut SyncLoop,
    snapshot: &mut Option<SnapshotFile>,
    shared: &SharedState,
    events: Vec<InformerEvent>,
) {
    for event in events {
        if let InformerEvent::ListCompleted(ObjectKind::Slice) = event {
            shared.objects.listed();
        }
        if let Some(snapshot) = snapshot {
            snapshot.observe(&event);
        }
        sync_loop.observe(event);
    }
}

/// Serves the snapshot if the API has not answered.
fn replay(snapshot: &SnapshotFile, sync_loop: &mut SyncLoop, shared: &SharedState, clock: &Clock) {
    if !snapshot.is_unheard() {
        return;
    }
    let Some(loaded) = snapshot.load() else {
        tracing::warn!("the API does not answer, and there is no snapshot: rules stay as they are");
        return;
    };
    let saved_at = loaded.saved_at;
    let age_seconds = clock.timestamp().duration_since(saved_at).as_secs();
    shared.objects.serves_file(saved_at.as_second());
    match snapshot.offline_start(&loaded, sync_loop.kernel_has_rules()) {
        OfflineStart::Kernel => tracing::warn!(
            %saved_at,
            age_seconds,
            "the API does not answer, and the kernel's rules are newer than the snapshot of its objects: they stay"
        ),
        OfflineStart::Snapshot => {
            tracing::warn!(%saved_at, age_seconds, "the API does not answer; serving the snapshot of its objects");
            loaded.events.into_iter().for_each(|event| sync_loop.observe(event));
        }
    }
}

/// Says in the snapshot file that the rules in the kernel may be newer, before the first sync.
fn mark(snapshot: &mut SnapshotFile) {
    if let Err(error) = snapshot.mark() {
        tracing::warn!(%error, "failed to mark the snapshot file as older than the rules in the kernel; a restart without the API may serve older objects");
    }
}

/// Returns when the content of the file changes.
async fn config_change(path: Option<&Path>) {
    let Some(path) = path else { return std::future::pending().await };
    let first = std::fs::read(path).ok();
    loop {
        tokio::time::sleep(CONFIG_POLL).await;
        // A missing file is being replaced.
        if let Ok(now) = std::fs::read(path)
            && Some(&now) != first.as_ref()
        {
            tracing::info!(file = %path.display(), "configuration changed; exiting for a restart");
            return;
        }
    }
}

fn serve_all(
    settings: &NodeSettings,
    options: &RunOptions<'_>,
    shared: &Arc<SharedState>,
    stop: &watch::Receiver<bool>,
) -> Result<()> {
    let (config, clock) = (&settings.configuration, &options.clock);
    let configz = running_config::value(settings, &options.node, &options.connection);
    let (live, of) = (configz.clone(), shared.clone());
    running_config::serve(move || running_config::with_age(&live, &of.objects.age()), clock);
    let access = match settings.metrics {
        Some(address) => options.access.access(address, Some(options.client.clone()), clock)?,
        None => None,
    };
    let servers: [(&'static str, Option<SocketAddr>, AdminRoutes); 2] = [
        ("health", settings.healthz, health_pages(shared, clock)),
        (
            "metrics",
            settings.metrics,
            metrics_pages(shared, settings.mode, configz, clock).with_access(access),
        ),
    ];
    for (name, address, routes) in servers {
        let Some(address) = address else { continue };
        match admin_server::listen_single_family(address) {
            Ok(listener) => drop(tokio::spawn(admin_server::serve(listener, routes, stop.clone()))),
            Err(error) if config.bind_address_hard_fail => {
                bail!("cannot listen on {address} for {name}: {error}; bindAddressHardFail is set")
            }
            Err(_) => drop(tokio::spawn(admin_server::serve_with_retry(
                name,
                address,
                routes,
                clock.clone(),
                stop.clone(),
            ))),
        }
    }
    Ok(())
}

fn health_pages(shared: &Arc<SharedState>, clock: &Clock) -> AdminRoutes {
    let page = |endpoint: HealthEndpoint| {
        let (shared, clock) = (shared.clone(), clock.clone());
        move |_: &http::request::Parts| {
            let answer = shared.health(|health| health.response(endpoint, clock.now(), clock.timestamp()));
            let counts = match endpoint {
                HealthEndpoint::Healthz => &shared.metrics.healthz,
                HealthEndpoint::Livez => &shared.metrics.livez,
            };
            counts.get_or_create(&status(answer.code)).inc();
            let status = StatusCode::from_u16(answer.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            AdminPage::json(status, &answer.body)
        }
    };
    AdminRoutes::default()
        .page("/healthz", page(HealthEndpoint::Healthz))
        .page("/livez", page(HealthEndpoint::Livez))
}

fn metrics_pages(shared: &Arc<SharedState>, mode: Mode, configz: Value, clock: &Clock) -> AdminRoutes {
    let shared = shared.clone();
    let mode = if mode == Mode::Default { Mode::Nftables.as_str() } else { mode.as_str() };
    let connections = ConnectionLog::new(clock.clone());
    AdminRoutes::default()
        .page("/metrics", move |head| admin_server::metrics(shared.metrics.registry(), head))
        .open_page("/healthz", |_| AdminPage::text(StatusCode::OK, "ok"))
        .page("/proxyMode", move |_| AdminPage::text(StatusCode::OK, mode))
        .page("/configz", move |_| AdminPage::json(StatusCode::OK, &configz))
        .page("/connections", move |head| connections.page(head.uri.query().unwrap_or_default()))
}
