//! `zoneward controller`: runs the controllers. One of several leads and writes; the others watch and wait for its
//! lease.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use clock::Clock;
use tokio::sync::watch;
use tracing::info;

use super::status::server::StatusListener;
use crate::cli;
use cluster::admin_server::access::AdminAccess;
use cluster::admin_server::controller_health::{self, ApiHealth};
use cluster::admin_server::{self, HealthChecks};
use cluster::leader_election::{LeaderElector, LedgerAddressSource};
use cluster::ledger_client;
use cluster::log;
use cluster::signals::Signals;
use cluster::systemd;
use controller::controllers::{Controllers, ControllersOptions};
use insight::traffic_ledger::SharedLedger;
use model::annotation;
use output::print_text;
use plan::gateway_api::AssignedAddresses;
use tracing::warn;

/// Runs until SIGINT or SIGTERM.
pub(super) fn run(args: &cli::Controller) -> Result<bool> {
    log::start(&args.log);
    let runtime = tokio::runtime::Runtime::new().context("starting threads")?;
    match args.hand_back {
        true => print_text(&runtime.block_on(hand_back(args))?)?,
        false => runtime.block_on(control(args))?,
    }
    Ok(true)
}

/// A single pass, as leader: another controller would undo it.
async fn hand_back(args: &cli::Controller) -> Result<String> {
    let (clock, mut random) = (Clock::system(), model::random::Random::seeded(clock::os_seed()));
    let election = args.leader.config(&clock, &mut random)?;
    let client = cluster::connect(&args.connection, &clock).await?;
    let lease =
        format!("{}/{}", args.leader.leader_elect_resource_namespace, args.leader.leader_elect_resource_name);
    let elector = LeaderElector::start(client.clone(), election);
    let mut leading = elector.leading();
    // The lease of a dead controller expires within this time.
    let timeout = args.leader.leader_elect_lease_duration + args.leader.leader_elect_retry_period * 2;
    let leads = tokio::time::timeout(timeout, leading.wait_for(|leading| *leading)).await;
    if !matches!(leads, Ok(Ok(_))) {
        elector.release().await;
        bail!(
            "another Zoneward controller leads, or Lease {lease} cannot be written: stop all Zoneward \
             controllers first (kubectl -n kube-system scale deployment zoneward-controller --replicas=0)"
        );
    }
    drop(leads);
    let done = controller::hand_back::hand_back(&client, &elector.leading()).await;
    elector.release().await;
    Ok(done?.text(args.coexist.coexist))
}

async fn control(args: &cli::Controller) -> Result<()> {
    let (clock, mut random) = (Clock::system(), model::random::Random::seeded(clock::os_seed()));
    let mut election = args.leader.config(&clock, &mut random)?;
    let mut signals = Signals::listen()?;
    let client = cluster::connect(&args.connection, &clock).await?;
    let listener = admin_server::listen_or_fallback_port(
        args.bind_address,
        controller_health::ADDRESS,
        "--bind-address",
    )
    .await?;
    let access = args.access.access(listener.local_addr()?, Some(client.clone()), &clock)?;
    let status = StatusListener::bind(&args.status).await?;
    if let Some(election) = &mut election {
        election.annotations.insert(annotation::STATUS_ADDRESS.to_owned(), status.address().to_string());
    }

    let mut registry = admin_server::registry("controller");
    let ledger = SharedLedger::new(&clock, &args.prices.price).map_err(|why| anyhow!("--price {why}"))?;
    ledger.register(&mut registry);
    if let Some(election) = &mut election {
        election.ledger_address = ledger_address(args, listener.local_addr()?, access.clone());
    }
    let (done, finished) = watch::channel(false);
    let health = ApiHealth::poll(client.clone(), clock.clone(), finished.clone());
    let answering = health.clone();
    tokio::spawn(async move {
        answering.answered().await;
        systemd::notify_ready();
    });
    let slices = args.slice_controller();
    info!(url = status.url(), "serving the dashboard");
    let connection = args.connection.clone();
    status.serve(&slices, &args.access, client.clone(), connection, finished.clone()).await?;
    let options = ControllersOptions {
        slices,
        election,
        lease_name: args.leader.leader_elect_resource_name.clone(),
        ledger: ledger.clone(),
        gateway_addresses: AssignedAddresses::Services,
        cluster_ips: None,
    };
    let controllers = Controllers::start(client, options, &mut registry);
    let ready = HealthChecks::default().check("api", move || health.check());
    let routes = ledger.routes(controller_health::routes(registry, ready)).with_access(access);
    let server = tokio::spawn(admin_server::serve(listener, routes, finished));

    let advice = tokio::select! {
        biased;
        () = signals.wait() => None,
        advice = controllers.failure() => advice,
    };
    controllers.stop().await?;
    done.send_replace(true);
    server.await.context("admin server task panicked")?;
    advice.map_or(Ok(()), |advice| bail!(advice))
}

/// Where nodes report to. Without HTTPS and tokens nothing is received, and without an address nothing is found.
fn ledger_address(
    args: &cli::Controller,
    listening: SocketAddr,
    access: Option<Arc<AdminAccess>>,
) -> LedgerAddressSource {
    let own = Some(listening.ip()).filter(|ip| !ip.is_unspecified() && !ip.is_loopback());
    match (args.advertise_address.or(own), access) {
        (Some(ip), Some(access)) => {
            let host = SocketAddr::new(ip, listening.port());
            LedgerAddressSource::new(move || ledger_client::https_address(host, &access.certificate_digest()))
        }
        (None, Some(_)) => {
            warn!(
                "nodes cannot report their traffic: set --advertise-address to an address of this controller"
            );
            LedgerAddressSource::default()
        }
        (_, None) => LedgerAddressSource::default(),
    }
}
