//! `zoneward controller`: the cluster's controllers, until they are told to stop.

use anyhow::{Context, Result, bail};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::EnvFilter;

use crate::cli;
use crate::cluster;
use crate::controller::{self, Metrics};

/// Runs until SIGINT or SIGTERM.
pub fn run(args: &cli::Controller) -> Result<bool> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Somebody who embeds us may have set up logs already.
    let _ = logs.try_init();
    let runtime = tokio::runtime::Runtime::new().context("starting threads")?;
    runtime.block_on(control(args))?;
    Ok(true)
}

async fn control(args: &cli::Controller) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("waiting for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("waiting for SIGINT")?;
    let client = cluster::connect(&args.connection).await?;
    let (stop, stopped) = watch::channel(false);
    let slices = controller::run(client, args.slice_controller(), Metrics::default(), stopped);
    tokio::pin!(slices);
    let ended = tokio::select! {
        ended = &mut slices => ended,
        _ = terminate.recv() => { stop.send_replace(true); slices.await }
        _ = interrupt.recv() => { stop.send_replace(true); slices.await }
    };
    match ended.advice() {
        Some(advice) => bail!(advice),
        None => Ok(()),
    }
}
