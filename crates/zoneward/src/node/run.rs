//! The loop: events in, rules out, until somebody asks for a stop. Rules stay when it ends.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use dataplane::conntrack::ConntrackSocket;
use dataplane::nftables::NftablesBackend;
use http::StatusCode;

use kube::Client;
use model::Notice;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::config::Settings;
use super::health::{Health, Question};
use super::metrics::{Metrics, status};
use super::proxy::{Parts, Proxy};
use super::report::{self, Reporter};
use super::{addresses, effective, sysctl, traffic};
use crate::cluster::{Connection, Feed, Kind, Wanted};
use crate::serve::{self, Page, Routes};

/// Events that are taken before rules are looked at again.
const BATCH: usize = 1000;
/// How often the configuration file is looked at.
const CONFIG_LOOK: Duration = Duration::from_secs(2);

/// What others see of a running proxy.
pub struct Shared {
    /// Whether rules keep up.
    pub health: Mutex<Health>,
    /// What is measured.
    pub metrics: Metrics,
}

impl Shared {
    /// The health, for as short as it takes.
    pub fn health<T>(&self, look: impl FnOnce(&mut Health) -> T) -> T {
        look(&mut self.health.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What a run needs beside the settings.
pub struct Start<'a> {
    /// The API.
    pub client: Client,
    /// How the API is reached, for commands that ask.
    pub connection: Connection,
    /// The name of the Node.
    pub node: String,
    /// Where the Lease is kept; empty: nowhere.
    pub lease_namespace: String,
    /// The file whose change ends the run.
    pub config_file: Option<&'a Path>,
    /// What there is to say already.
    pub notices: Vec<Notice>,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Somebody asked for it.
    Stopped,
    /// The configuration changed: whoever started us starts us anew.
    Reconfigured,
}

/// Runs until a signal or a change of the configuration.
pub async fn run(settings: Settings, start: Start<'_>) -> Result<End> {
    let mut terminate = signal(SignalKind::terminate()).context("waiting for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("waiting for SIGINT")?;
    let backend =
        NftablesBackend::open().context("opening a netlink socket for nf_tables; NET_ADMIN is needed")?;
    let mut reporter = Reporter::start(start.client.clone(), &start.node);
    start.notices.into_iter().for_each(|notice| reporter.warn(notice));
    let wishes = sysctl::wishes(&settings.configuration, sysctl::cpus());
    sysctl::set(&wishes).into_iter().for_each(|notice| reporter.warn(notice));
    let score = settings.configuration.oom_score_adj.unwrap_or(-999);
    sysctl::set_oom_score(score).into_iter().for_each(|notice| reporter.warn(notice));

    let shared = Arc::new(Shared {
        health: Mutex::new(Health::new(settings.sync_period)),
        metrics: Metrics::default(),
    });
    // The servers end with this.
    let (_serving, served) = watch::channel(false);
    let configz = effective::value(&settings, &start.node, &start.connection);
    effective::serve(&configz);
    serve_all(&settings, &shared, &configz, &served)?;
    let (progress, heard) = watch::channel(report::Progress::default());
    if !start.lease_namespace.is_empty() {
        tokio::spawn(report::keep_lease(
            start.client.clone(),
            start.lease_namespace,
            start.node.clone(),
            heard,
        ));
    }
    let feed = Feed::start(&start.client, wanted(&start.node));
    let parts = Parts {
        settings,
        node: start.node,
        shared,
        reporter,
        progress,
        backend: Box::new(backend),
        conntrack: ConntrackSocket::open().ok(),
        traffic: traffic::start(),
    };
    let proxy = Proxy::new(parts, Instant::now());
    let reconfigured = config_change(start.config_file);
    tokio::select! {
        end = turn(proxy, feed) => end,
        _ = terminate.recv() => Ok(End::Stopped),
        _ = interrupt.recv() => Ok(End::Stopped),
        () = reconfigured => Ok(End::Reconfigured),
    }
}

/// Semantics D1: not what another proxy serves, not headless, and of Nodes our own.
fn wanted(node: &str) -> Vec<Wanted> {
    vec![
        Wanted::all(Kind::Service).labels("!service.kubernetes.io/service-proxy-name"),
        Wanted::all(Kind::Slice).labels("!service.kubernetes.io/headless"),
        Wanted::all(Kind::Node).fields(&format!("metadata.name={node}")),
        Wanted::all(Kind::ServiceCidr),
    ]
}

async fn turn(mut proxy: Proxy, mut feed: Feed) -> Result<End> {
    let mut moved = addresses::changes();
    let mut hears_of_moves = true;
    loop {
        let wake = tokio::time::Instant::from_std(proxy.wake(Instant::now()));
        tokio::select! {
            event = feed.next() => {
                proxy.take(event);
                for _ in 0..BATCH {
                    let Some(event) = feed.ready() else { break };
                    proxy.take(event);
                }
            }
            () = tokio::time::sleep_until(wake) => {}
            change = moved.changed(), if hears_of_moves => {
                hears_of_moves = change.is_ok();
                proxy.take_addresses(addresses::local());
            }
        }
        proxy.work();
        // The servers of this process are tasks, too.
        tokio::task::yield_now().await;
    }
}

/// Ends when the file is another one than at first.
async fn config_change(path: Option<&Path>) {
    let Some(path) = path else { return std::future::pending().await };
    let first = std::fs::read(path).ok();
    loop {
        tokio::time::sleep(CONFIG_LOOK).await;
        // A file that is away for a moment is being replaced.
        if let Ok(now) = std::fs::read(path)
            && Some(&now) != first.as_ref()
        {
            tracing::info!(file = %path.display(), "configuration changed; exiting for a restart");
            return;
        }
    }
}

fn serve_all(
    settings: &Settings,
    shared: &Arc<Shared>,
    configz: &Value,
    stop: &watch::Receiver<bool>,
) -> Result<()> {
    let config = &settings.configuration;
    let servers: [(&'static str, Option<SocketAddr>, Routes); 2] = [
        ("health", settings.healthz, health_pages(shared)),
        ("metrics", settings.metrics, metrics_pages(shared, configz.clone())),
    ];
    for (name, address, routes) in servers {
        let Some(address) = address else { continue };
        match serve::listen_alone(address) {
            Ok(listener) => drop(tokio::spawn(serve::serve(listener, routes, stop.clone()))),
            Err(error) if config.bind_address_hard_fail => {
                bail!("cannot listen on {address} for {name}: {error}; bindAddressHardFail asks to stop then")
            }
            Err(_) => drop(tokio::spawn(serve::keep_serving(name, address, routes, stop.clone()))),
        }
    }
    Ok(())
}

fn health_pages(shared: &Arc<Shared>) -> Routes {
    let page = |question: Question| {
        let shared = shared.clone();
        move |_: &http::request::Parts| {
            let now = jiff::Timestamp::now();
            let answer = shared.health(|health| health.answer(question, Instant::now(), now));
            let counts = match question {
                Question::Healthz => &shared.metrics.healthz,
                Question::Livez => &shared.metrics.livez,
            };
            counts.get_or_create(&status(answer.code)).inc();
            let status = StatusCode::from_u16(answer.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            Page::json(status, &answer.body)
        }
    };
    Routes::default().page("/healthz", page(Question::Healthz)).page("/livez", page(Question::Livez))
}

fn metrics_pages(shared: &Arc<Shared>, configz: Value) -> Routes {
    let shared = shared.clone();
    Routes::default()
        .page("/metrics", move |head| serve::metrics(shared.metrics.registry(), head))
        .page("/healthz", |_| Page::text(StatusCode::OK, "ok"))
        .page("/proxyMode", |_| Page::text(StatusCode::OK, "nftables"))
        .page("/configz", move |_| Page::json(StatusCode::OK, &configz))
}
