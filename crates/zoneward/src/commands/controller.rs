//! `zoneward controller`: runs the controllers. One of several leads and writes; the others watch and wait for its
//! lease.

use anyhow::{Context, Result, bail};
use tokio::sync::watch;

use crate::controller::{self, Metrics};
use crate::leader::{Office, while_leading};
use crate::mesh::accepted;
use crate::output::print_text;
use crate::oversight::{self, Heard};
use crate::serve::{self, Checks};
use crate::signals::Signals;
use crate::{cli, cluster, log};

/// Runs until SIGINT or SIGTERM.
pub fn run(args: &cli::Controller) -> Result<bool> {
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
    let election = args.leader.settings()?;
    let client = cluster::connect(&args.connection).await?;
    let lease =
        format!("{}/{}", args.leader.leader_elect_resource_namespace, args.leader.leader_elect_resource_name);
    let office = Office::seek(client.clone(), election);
    let mut leading = office.leading();
    // The lease of a dead controller expires within this time.
    let timeout = args.leader.leader_elect_lease_duration + args.leader.leader_elect_retry_period * 2;
    let leads = tokio::time::timeout(timeout, leading.wait_for(|leading| *leading)).await;
    if !matches!(leads, Ok(Ok(_))) {
        office.leave().await;
        bail!(
            "another Zoneward controller leads, or Lease {lease} cannot be written: stop all Zoneward \
             controllers first (kubectl -n kube-system scale deployment zoneward-controller --replicas=0)"
        );
    }
    drop(leads);
    let done = controller::hand_back::hand_back(&client, &office.leading()).await;
    office.leave().await;
    Ok(done?.text())
}

async fn control(args: &cli::Controller) -> Result<()> {
    let election = args.leader.settings()?;
    let mut signals = Signals::listen()?;
    let client = cluster::connect(&args.connection).await?;
    let listener = serve::listen_or_near(args.bind_address, oversight::ADDRESS, "--bind-address").await?;
    let (stop, stopped) = watch::channel(false);

    let mut registry = serve::registry("controller");
    let metrics = Metrics::default();
    metrics.register(&mut registry);
    let office = Office::seek(client.clone(), election);
    office.show(&args.leader.leader_elect_resource_name, &mut registry);
    let (done, finished) = watch::channel(false);
    let heard = Heard::follow(client.clone(), finished.clone());
    let ready = Checks::default().check("api", move || heard.check());
    let server = tokio::spawn(serve::serve(listener, oversight::routes(registry, ready), finished));

    let config = args.slice_controller();
    let slices = controller::run(client.clone(), config, metrics, office.leading(), stopped.clone());
    tokio::pin!(slices);
    let (accepting, begun) = (office.leading(), (client.clone(), stopped.clone()));
    let conditions = tokio::spawn(async move {
        let (client, stopped) = begun;
        while_leading(accepting, stopped.clone(), || accepted::run(client.clone(), stopped.clone())).await
    });
    let ended = tokio::select! {
        biased;
        ended = &mut slices => ended,
        () = signals.wait() => { stop.send_replace(true); slices.await }
    };
    // Stop writing before the lease is released.
    stop.send_replace(true);
    conditions.await.context("route condition task panicked")?;
    office.leave().await;
    done.send_replace(true);
    server.await.context("admin server task panicked")?;
    match ended.advice() {
        Some(advice) => bail!(advice),
        None => Ok(()),
    }
}
