//! `zoneward controller`: the cluster's controllers, until they are told to stop. One of several leads and writes; the
//! others wait for its Lease.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::cli;
use crate::cluster;
use crate::controller::{self, Metrics};
use crate::leader::{Office, while_leading};
use crate::log;
use crate::mesh::accepted;
use crate::serve::{self, Checks, Routes};
use crate::signals::Signals;

/// Where health and metrics are, unless `--bind-address` says otherwise.
const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 10_270);
/// How often the API is asked whether it is there, and after how long without an answer we are not ready.
const ASK: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_secs(20);

/// Runs until SIGINT or SIGTERM.
pub fn run(args: &cli::Controller) -> Result<bool> {
    log::start(&args.log);
    let runtime = tokio::runtime::Runtime::new().context("starting threads")?;
    runtime.block_on(control(args))?;
    Ok(true)
}

async fn control(args: &cli::Controller) -> Result<()> {
    let election = args.leader.settings()?;
    let mut signals = Signals::listen()?;
    let client = cluster::connect(&args.connection).await?;
    let listener = listen(args.bind_address).await?;
    let (stop, stopped) = watch::channel(false);

    let mut registry = Registry::default();
    let metrics = Metrics::default();
    metrics.register(&mut registry);
    let office = Office::seek(client.clone(), election);
    office.show(&args.leader.leader_elect_resource_name, &mut registry);
    let (done, finished) = watch::channel(false);
    let server = tokio::spawn(serve::serve(listener, routes(registry, &client, &finished), finished));

    let config = args.slice_controller();
    let slices = while_leading(office.leading(), stopped.clone(), || {
        controller::run(client.clone(), config.clone(), metrics.clone(), stopped.clone())
    });
    tokio::pin!(slices);
    let (accepting, begun) = (office.leading(), (client.clone(), stopped.clone()));
    let conditions = tokio::spawn(async move {
        let (client, stopped) = begun;
        while_leading(accepting, stopped.clone(), || accepted::run(client.clone(), stopped.clone())).await
    });
    let ended = tokio::select! {
        ended = &mut slices => Some(ended.context("the election of a leader ended badly")?),
        () = signals.wait() => { stop.send_replace(true); slices.await }
    };
    // First the writing ends, then somebody else may begin.
    stop.send_replace(true);
    conditions.await.context("whoever writes the conditions of routes ended badly")?;
    office.leave().await;
    done.send_replace(true);
    server.await.context("the server of health and metrics ended badly")?;
    match ended.and_then(|ended| ended.advice()) {
        Some(advice) => bail!(advice),
        None => Ok(()),
    }
}

/// Two controllers on one machine are nothing unusual while one tries them: the usual port may be taken.
async fn listen(wish: Option<SocketAddr>) -> Result<TcpListener> {
    let listener = match wish {
        Some(address) => serve::listen(address, "--bind-address").await?,
        None => match TcpListener::bind(ADDRESS).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                warn!(
                    "{ADDRESS} is taken: health and metrics get another port; choose one with --bind-address"
                );
                serve::listen(SocketAddr::new(ADDRESS.ip(), 0), "--bind-address").await?
            }
            bound => bound.with_context(|| format!("listening on {ADDRESS}: choose with --bind-address"))?,
        },
    };
    let address = listener.local_addr().context("asking for the address that we listen on")?;
    info!("health and metrics on http://{address}");
    Ok(listener)
}

fn routes(registry: Registry, client: &Client, stop: &watch::Receiver<bool>) -> Routes {
    let heard = Heard::follow(client.clone(), stop.clone());
    // Alive is whoever answers; a restart would not bring an API back that is away.
    let alive = Checks::default().check("ping", || Ok(()));
    let ready = Checks::default().check("api", move || heard.check());
    Routes::default()
        .checks("/healthz", alive.clone())
        .checks("/livez", alive)
        .checks("/readyz", ready)
        .metrics(registry)
}

/// When the API last answered.
struct Heard {
    start: Instant,
    /// Milliseconds after the start, and one; zero is never.
    last: AtomicU64,
}

impl Heard {
    fn follow(client: Client, mut stop: watch::Receiver<bool>) -> Arc<Self> {
        let heard = Arc::new(Self { start: Instant::now(), last: AtomicU64::new(0) });
        let noted = heard.clone();
        tokio::spawn(async move {
            let asking = async {
                loop {
                    if let Ok(Ok(_)) = tokio::time::timeout(ASK, client.apiserver_version()).await {
                        let after = noted.start.elapsed().as_millis() as u64;
                        noted.last.store(after + 1, Ordering::Relaxed);
                    }
                    tokio::time::sleep(ASK).await;
                }
            };
            tokio::select! {
                () = asking => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
        });
        heard
    }

    fn check(&self) -> Result<(), String> {
        let last = self.last.load(Ordering::Relaxed);
        if last == 0 {
            return Err("the API has not answered yet".to_owned());
        }
        let silence = self.start.elapsed().saturating_sub(Duration::from_millis(last - 1));
        if silence > SILENCE {
            return Err(format!("the API has not answered for {} s", silence.as_secs()));
        }
        Ok(())
    }
}
