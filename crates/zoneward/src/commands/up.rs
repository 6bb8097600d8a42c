//! `zoneward up`: the embedded API on this machine, from its data directory until it is told to stop.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use ipnet::IpNet;
use store::admission::service::Ranges;
use store::api::{Api, Limits};
use store::credentials::Credentials;
use store::engine::{Engine, Options};
use store::first_start::{Beginning, begin};
use store::server::Server;
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::cli;
use crate::output;

/// Serves until SIGINT or SIGTERM.
pub fn run(args: &cli::Up) -> Result<bool> {
    let runtime = tokio::runtime::Runtime::new().context("starting threads")?;
    runtime.block_on(serve(args))?;
    Ok(true)
}

async fn serve(args: &cli::Up) -> Result<()> {
    check_ranges(&args.service_cluster_ip_range)?;
    // Before anything is promised: from here on a signal means a clean stop.
    let mut signals = Signals::listen()?;
    let data = &args.data_dir;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data)
        .with_context(|| format!("making {}", data.display()))?;
    let engine = Engine::open(&data.join("store"), Options::default())?;
    let credentials =
        Credentials::open(data).with_context(|| format!("credentials in {}", data.display()))?;
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("listening on {}: choose another address with --listen", args.listen))?;
    let listen = listener.local_addr().context("asking for the address that we listen on")?;

    let ranges = Ranges { load_balancers: args.load_balancer_range.clone(), ..Ranges::default() };
    let api = Api::new(Arc::new(engine), ranges, Limits::default());
    begin(&api, Beginning { service_cidrs: args.service_cluster_ip_range.clone(), listen }).await?;

    let (stop, stopped) = watch::channel(false);
    let tls = credentials.server_config(&addresses(listen, &args.service_cluster_ip_range))?;
    let kubeconfig = credentials.write_kubeconfigs(reachable(listen))?;
    let server = Server::new(api.clone(), Arc::new(credentials), stopped.clone());
    let tasks = [
        tokio::spawn(server.clone().serve_unix(socket(&data.join("api.sock"))?)),
        tokio::spawn(server.serve_tls(listener, tls)),
        tokio::spawn(store::collect::run(api, stopped)),
    ];
    output::print_text(&format!("{}\n", kubeconfig.display()))?;
    eprintln!("zoneward: serving on https://{}; stop with Ctrl-C", reachable(listen));
    signals.wait().await;
    eprintln!("zoneward: stopping");
    stop.send_replace(true);
    for task in tasks {
        task.await.context("a part of the server ended badly")?;
    }
    Ok(())
}

fn check_ranges(ranges: &[IpNet]) -> Result<()> {
    let families = |v4: bool| ranges.iter().filter(|range| range.addr().is_ipv4() == v4).count();
    if ranges.is_empty() || families(true) > 1 || families(false) > 1 {
        bail!(
            "--service-cluster-ip-range: one range, or one of each family, as 10.96.0.0/16,fd00:10:96::/112"
        );
    }
    Ok(())
}

/// What clients on this machine connect to.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// Every address under which the API may be called: loopback, its own, and that of Service `kubernetes`.
fn addresses(listen: SocketAddr, ranges: &[IpNet]) -> Vec<IpAddr> {
    let mut all = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into(), reachable(listen).ip()];
    all.extend(ranges.first().and_then(|range| range.hosts().next()));
    all.sort();
    all.dedup();
    all
}

/// A socket for processes of this user. One that a killed server left behind is replaced.
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

/// The two ways to ask for a stop.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> Result<Self> {
        let terminate = signal(SignalKind::terminate()).context("waiting for SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("waiting for SIGINT")?;
        Ok(Self { terminate, interrupt })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
