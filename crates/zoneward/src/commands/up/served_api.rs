//! The embedded API of `zoneward up`: its store, its listeners, and the tasks that keep its objects and its credentials.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use apimachinery::audit_policy::AuditPolicy;
use clock::Clock;
use cluster::log;
use ipnet::IpNet;
use store::api::{Api, ApiLimits};
use store::audit::{AuditLog, AuditOptions, AuditStats};
use store::bootstrap::{self, BootstrapOptions, bootstrap};
use store::credentials::Credentials;
use store::engine::{Engine, EngineOptions, Migration, Reencryption};
use store::server::ApiServer;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::{reachable, socket};
use crate::cli;

/// How often lost audit events are logged.
const AUDIT_REPORT_PERIOD: Duration = Duration::from_secs(60);

/// What the data directory holds. It belongs to one process.
pub(super) struct OpenStore {
    engine: Engine,
    credentials: Credentials,
}

impl OpenStore {
    pub(super) fn open(args: &cli::Up) -> Result<Self> {
        let data = &args.data_dir;
        let engine = open_engine(&data.join("store"), args)?;
        let credentials =
            Credentials::open(data).with_context(|| format!("credentials in {}", data.display()))?;
        Ok(Self { engine, credentials })
    }
}

/// The API while it is served.
pub(super) struct ServedApi {
    pub(super) api: Api,
    pub(super) server: ApiServer,
    pub(super) listen: SocketAddr,
    pub(super) kubeconfig: PathBuf,
    tasks: [JoinHandle<()>; 7],
    audit_losses: JoinHandle<AuditStats>,
}

impl ServedApi {
    /// Serves until `stopped` is true.
    pub(super) async fn start(
        args: &cli::Up,
        store: OpenStore,
        listener: TcpListener,
        stopped: watch::Receiver<bool>,
    ) -> Result<Self> {
        let (data, ranges) = (&args.data_dir, &args.service_cluster_ip_range);
        let OpenStore { engine, credentials } = store;
        let listen = listener.local_addr().context("listen address")?;
        let mut api = Api::new(Arc::new(engine), args.service_ranges(), ApiLimits::default());
        if let Some(path) = &args.audit_log_path {
            api = api.with_audit(audit_log(args, path)?);
        }
        api.set_node_credential_seconds(args.node_credential_ttl);
        api.open_signing_keys(data).with_context(|| format!("signing keys in {}", data.display()))?;
        let begun = bootstrap(&api, BootstrapOptions { service_cidrs: ranges.clone(), listen }).await?;
        begun.notices.iter().for_each(log::notice);
        let tls = credentials.server_config(&addresses(listen, ranges, begun.cluster_ip))?;
        let kubeconfig = credentials.write_kubeconfigs(reachable(listen))?;
        let credentials = Arc::new(credentials);
        let server = ApiServer::new(api.clone(), credentials.clone(), stopped.clone())
            .with_anonymous(args.anonymous_auth);
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
        let audit_losses = tokio::spawn(report_audit_losses(api.clone(), stopped));
        Ok(Self { api, server, listen, kubeconfig, tasks, audit_losses })
    }

    /// After `stopped` has turned true: waits for its tasks, and for the audit log.
    pub(super) async fn ended(self) -> Result<()> {
        for task in self.tasks {
            task.await.context("a server task panicked")?;
        }
        let logged = self.audit_losses.await.context("the report of the audit log panicked")?;
        let flushed = self.api.clone();
        tokio::task::spawn_blocking(move || flushed.flush_audit()).await.context("the audit log panicked")?;
        report_audit_loss(&self.api, logged);
        Ok(())
    }
}

/// Opens the store in the format of this program, encrypted with the first key.
fn open_engine(store: &Path, args: &cli::Up) -> Result<Engine> {
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

/// Logs lost audit events, at most once a minute, until `stop` turns true; returns the counts that were logged.
async fn report_audit_losses(api: Api, mut stop: watch::Receiver<bool>) -> AuditStats {
    let mut logged = AuditStats::default();
    while tokio::time::timeout(AUDIT_REPORT_PERIOD, stop.wait_for(|stop| *stop)).await.is_err() {
        logged = report_audit_loss(&api, logged);
    }
    logged
}

/// Logs the audit events that were lost since the last report; returns the counts of this one.
fn report_audit_loss(api: &Api, logged: AuditStats) -> AuditStats {
    let stats = api.audit_stats().unwrap_or_default();
    let (dropped, errors) = (stats.dropped - logged.dropped, stats.errors - logged.errors);
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

/// Addresses of the API for its certificate: loopback, its own, and that of Service `kubernetes`.
fn addresses(listen: SocketAddr, ranges: &[IpNet], cluster_ip: Option<IpAddr>) -> Vec<IpAddr> {
    let mut all = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into(), reachable(listen).ip()];
    all.extend(ranges.first().and_then(|range| range.hosts().next()));
    all.extend(cluster_ip);
    all.sort();
    all.dedup();
    all
}
