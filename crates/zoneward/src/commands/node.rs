//! `zoneward node`: the node proxy.

use anyhow::{Context, Result};
use clock::Clock;
use dataplane::nftables::apply::check_kernel;
use model::random::Random;

use crate::cli::{Cleanup, Format, OutputArgs};
use cluster::Connection;
use cluster::log::{self, LogFormat};
use node::config::flags::NodeFlags;
use node::config::{Configuration, Mode, NodeSettings, settings};
use node::dns::DnsServer;
use node::run::{self, RunEnd, RunOptions};
use node::sysctl;

/// Worker threads of servers and watches; the sync loop runs on the main thread.
const THREADS: usize = 2;

pub(super) fn run(args: &NodeFlags) -> Result<bool> {
    let (settings, notices) = settings(args)?;
    if let Some(path) = &args.write_config_to {
        let text = serde_saphyr::to_string(&settings.configuration).context("writing the configuration")?;
        std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
        return Ok(true);
    }
    start_logs(&settings.configuration);
    if args.cleanup == Some(true) {
        return super::cleanup::run(&Cleanup {
            output: OutputArgs { format: Format::Table },
            dry_run: false,
            only_zoneward: false,
        });
    }
    if args.init_only == Some(true) {
        // Sysctls of IPVS are there when its module is.
        if settings.mode == Mode::Ipvs {
            run::open_ipvs(&settings)?;
        }
        let sysctls = sysctl::wanted(&settings.configuration, sysctl::cpus());
        let denied = sysctl::set(&sysctls);
        denied.iter().for_each(log::notice);
        return Ok(denied.is_empty());
    }
    let skip =
        std::env::var_os("KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK").is_some_and(|v| !v.is_empty());
    check_kernel(&proc_text("kernel/osrelease"), skip)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build()
        .context("starting threads")?;
    let end = runtime.block_on(async {
        let connection = connection(args, &settings);
        let clock = Clock::system();
        let start = RunOptions {
            client: cluster::connect(&connection, &clock).await?,
            clock,
            random: Random::seeded(clock::os_seed()),
            connection,
            node: node_name(&settings.configuration)?,
            lease_namespace: args.lease_namespace.clone(),
            controller_lease: args.controller_lease.0.clone(),
            service_traffic_metrics: args.service_traffic_metrics,
            dns: DnsServer::bind(&args.dns).await?,
            config_file: args.config.as_deref(),
            snapshot: args.snapshot.as_deref(),
            access: &args.access,
            notices,
        };
        tracing::info!(node = start.node, "starting; existing rules stay in place");
        run::run(settings, start).await
    })?;
    tracing::info!("stopping; rules stay in place");
    Ok(end == RunEnd::Stopped)
}

/// The API of the flags, or of the configuration.
fn connection(args: &NodeFlags, settings: &NodeSettings) -> Connection {
    let mut connection = args.connection.clone();
    if connection.api_socket.is_none() {
        connection.kubeconfig = settings.kubeconfig.clone().or(connection.kubeconfig);
    }
    connection.server.clone_from(&args.master);
    connection
}

fn node_name(config: &Configuration) -> Result<String> {
    let host = cluster::hostname();
    let name = if config.hostname_override.is_empty() { host } else { config.hostname_override.clone() };
    if name.is_empty() {
        anyhow::bail!("this machine has no hostname: set --hostname-override to the name of its Node");
    }
    Ok(name)
}

fn proc_text(name: &str) -> String {
    std::fs::read_to_string(format!("/proc/sys/{name}")).unwrap_or_default().trim().to_owned()
}

fn start_logs(config: &Configuration) {
    let level = match config.logging.verbosity {
        0 | 1 => "warn,zoneward=info",
        2..=4 => "info,zoneward=debug",
        _ => "debug,zoneward=trace",
    };
    let format = if config.logging.format == "json" { LogFormat::Json } else { LogFormat::Text };
    log::start_at(format, level);
}
