//! The L7 proxies of this machine: one process per MeshGateway and per sidecar. Each is restarted when it fails, and
//! stopped when its gateway is deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clock::Clock;
use kube::Client;
use model::Name;
use model::random::Random;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::proxy_api::{self, ProxyApi, ProxySocket};
use crate::cli;
use cluster::log::LogFormat;
use cluster::supervisor::{self, ChildPrivileges, ChildProgram, RestartBackoff};
use cluster::{Informer, InformerEvent, ObjectKind, WatchSpec};
use mesh::ProxyRole;
use mesh::embedded_proxy::outbound;

/// Maximum number of gateways; each is a process.
const MAX_GATEWAYS: usize = 64;

/// Settings of all proxies.
#[derive(Clone, Debug)]
pub struct ProxySupervisor {
    program: PathBuf,
    common: Vec<OsString>,
    bind: Vec<IpAddr>,
    sidecars: Vec<Sidecar>,
    /// Listen address of health and metrics of the first proxy; the others use the ports after it.
    metrics: SocketAddr,
    log: LogFormat,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Sidecar {
    namespace: String,
    from: String,
    outbound: String,
}

impl ProxySupervisor {
    /// Parses the flags.
    pub fn new(args: &cli::Up) -> Result<Self> {
        let program = std::env::current_exe().context("path of this program")?;
        // They may read neither Leases nor the socket of the ledger: each has a socket for its reports.
        let mut common: Vec<OsString> = vec!["mesh".into(), "proxy".into(), "--controller-lease=".into()];
        // Shorter than the stop timeout of child processes.
        let log = args.log.logging_format;
        common.extend(["--drain", "5s", "--logging-format", log.as_str()].map(OsString::from));
        common.extend(args.access.words());
        if let Some(zone) = &args.zone {
            common.extend(["--zone".into(), zone.into()]);
        }
        common.extend(args.edge.words()?);
        let sidecars: Result<Vec<Sidecar>> = args.sidecar.iter().map(|text| sidecar(text)).collect();
        let proxies = Self {
            program,
            common,
            bind: args.mesh_bind.clone(),
            sidecars: sidecars?,
            metrics: args.mesh_metrics_bind_address,
            log,
        };
        let most = proxies.sidecars.len() + MAX_GATEWAYS;
        if proxies.metrics.port() != 0 && usize::from(u16::MAX - proxies.metrics.port()) < most {
            bail!(
                "--mesh-metrics-bind-address {}: {most} ports are needed; use a lower port",
                proxies.metrics
            );
        }
        Ok(proxies)
    }

    /// Listen address of health and metrics of a proxy; sidecars come first.
    fn metrics(&self, number: usize) -> SocketAddr {
        let port = match self.metrics.port() {
            0 => 0,
            first => first.saturating_add(u16::try_from(number).unwrap_or(u16::MAX)),
        };
        SocketAddr::new(self.metrics.ip(), port)
    }

    fn program(&self, name: String, number: usize, more: [&str; 4]) -> ChildProgram {
        let mut args = self.common.clone();
        args.extend(["--bind-address".into(), self.metrics(number).to_string().into()]);
        args.extend(more.map(OsString::from));
        ChildProgram {
            name,
            path: self.program.clone(),
            args,
            log: self.log,
            privileges: ChildPrivileges::Dropped { user: None },
        }
    }

    fn gateway(&self, number: usize, namespace: &str, name: &str) -> ChildProgram {
        let more = ["-n", namespace, "--gateway", name];
        let title = format!("gateway {namespace}/{name}");
        let mut program = self.program(title, self.sidecars.len() + number, more);
        for ip in &self.bind {
            program.args.extend(["--bind".into(), ip.to_string().into()]);
        }
        program
    }

    fn sidecar(&self, number: usize, sidecar: &Sidecar) -> ChildProgram {
        let Sidecar { namespace, from, outbound } = sidecar;
        let more = ["-n", namespace, "--from", from];
        let mut program = self.program(format!("sidecar {from}:{outbound}"), number, more);
        program.args.extend(["--outbound".into(), outbound.into()]);
        program
    }
}

/// Reads `[NAMESPACE/]FROM[,TAG=VALUE...]:PORT=SERVICE[:PORT]`.
fn sidecar(text: &str) -> Result<Sidecar> {
    let wrong =
        || format!("--sidecar {text}: expected CLIENT:PORT=SERVICE[:PORT], such as frontend:8081=backend");
    let (from, way) = text.split_once(':').with_context(wrong)?;
    let (namespace, from) = from.split_once('/').unwrap_or(("default", from));
    ProxyRole::sidecar(from, &Name::new(namespace)).with_context(wrong)?;
    outbound(way, &Name::new(namespace)).with_context(wrong)?;
    Ok(Sidecar { namespace: namespace.to_owned(), from: from.to_owned(), outbound: way.to_owned() })
}

/// A process that is kept running.
struct RunningProxy {
    /// Its number among its kind, which decides its port for metrics.
    number: usize,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
    /// Its API.
    _socket: ProxySocket,
}

impl RunningProxy {
    fn start(number: usize, mut program: ChildProgram, socket: ProxySocket, clock: &Clock) -> Self {
        program.args.extend(["--api-socket".into(), socket.path.clone().into()]);
        if let Some(reports) = &socket.reports {
            program.args.extend(["--ledger-socket".into(), reports.path.clone().into()]);
        }
        program.privileges = ChildPrivileges::Dropped { user: socket.user };
        let (stop, stopped) = watch::channel(false);
        let supervised = supervisor::supervise(program, RestartBackoff::default(), clock.clone(), stopped);
        Self { number, stop, task: tokio::spawn(supervised), _socket: socket }
    }

    async fn stop(self) {
        self.stop.send_replace(true);
        // One that panicked has nothing left to stop. The socket goes last.
        let _ = self.task.await;
    }
}

/// Keeps the proxies running until `stop` turns true.
pub async fn keep(
    client: Client,
    api: ProxyApi,
    clock: Clock,
    random: Random,
    proxies: ProxySupervisor,
    mut stop: watch::Receiver<bool>,
) {
    api.grant_common().await;
    let mut sidecars = Vec::new();
    for (i, sidecar) in proxies.sidecars.iter().enumerate() {
        let user = format!("system:zoneward:sidecar:{}:{i}", sidecar.namespace);
        match api.socket(i, &user, &format!("proxy/{}/sidecar-{i}", sidecar.namespace)) {
            Ok(socket) => {
                sidecars.push(RunningProxy::start(i, proxies.sidecar(i, sidecar), socket, &clock));
            }
            Err(error) => warn!(error = %format_args!("{error:#}"), "sidecar is not started"),
        }
    }
    let mut feed = Informer::start(&client, random, [WatchSpec::all(ObjectKind::Gateway)]);
    let mut gateways =
        Gateways { proxies, api, clock, kept: BTreeMap::new(), listing: None, stopping: Vec::new() };
    loop {
        let event = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            event = feed.next() => event,
        };
        gateways.take(event).await;
    }
    // All at once: each has some seconds to let its connections end.
    let all: Vec<RunningProxy> = sidecars.into_iter().chain(gateways.kept.into_values()).collect();
    for kept in &all {
        kept.stop.send_replace(true);
    }
    for kept in all {
        kept.stop().await;
    }
    for task in gateways.stopping {
        let _ = task.await;
    }
}

struct Gateways {
    proxies: ProxySupervisor,
    api: ProxyApi,
    clock: Clock,
    kept: BTreeMap<(String, String), RunningProxy>,
    /// What has come of a list so far, with the Secrets of each.
    listing: Option<BTreeMap<(String, String), BTreeSet<String>>>,
    stopping: Vec<JoinHandle<()>>,
}

impl Gateways {
    async fn take(&mut self, event: InformerEvent) {
        match event {
            InformerEvent::ListStarted(_) => self.listing = Some(BTreeMap::new()),
            InformerEvent::Applied(_, object) => {
                let key = (object.namespace().to_owned(), object.name().to_owned());
                let secrets = proxy_api::secrets(object.text());
                match &mut self.listing {
                    Some(seen) => drop(seen.insert(key, secrets)),
                    None => self.put(key, &secrets).await,
                }
            }
            InformerEvent::Deleted(_, object) => {
                self.gone(&(object.namespace().to_owned(), object.name().to_owned())).await;
            }
            InformerEvent::ListCompleted(_) => {
                let seen = self.listing.take().unwrap_or_default();
                let gone: Vec<_> = self.kept.keys().filter(|key| !seen.contains_key(*key)).cloned().collect();
                for key in &gone {
                    self.gone(key).await;
                }
                // In the order of their names, so that the same gateways get the same ports at every start.
                for (key, secrets) in seen {
                    self.put(key, &secrets).await;
                }
            }
            InformerEvent::Failed(..) => {}
        }
    }

    async fn put(&mut self, key: (String, String), secrets: &BTreeSet<String>) {
        self.api.grant_secrets(&key.0, &key.1, secrets).await;
        if self.kept.contains_key(&key) {
            return;
        }
        let (namespace, name) = &key;
        let taken: BTreeSet<usize> = self.kept.values().map(|kept| kept.number).collect();
        let Some(number) = (0..MAX_GATEWAYS).find(|number| !taken.contains(number)) else {
            return warn!(
                namespace,
                name,
                most = MAX_GATEWAYS,
                "MeshGateway is not served: too many on this machine"
            );
        };
        let of_all = self.proxies.sidecars.len() + number;
        let address = self.proxies.metrics(of_all);
        let reporter = format!("proxy/{namespace}/gateway-{name}");
        let socket = match self.api.socket(of_all, &proxy_api::gateway_user(namespace, name), &reporter) {
            Ok(socket) => socket,
            Err(error) => {
                return warn!(namespace, name, error = %format_args!("{error:#}"), "MeshGateway is not served");
            }
        };
        info!(namespace, name, metrics = %address, "starting a proxy for a MeshGateway");
        let kept =
            RunningProxy::start(number, self.proxies.gateway(number, namespace, name), socket, &self.clock);
        self.kept.insert(key, kept);
    }

    async fn gone(&mut self, key: &(String, String)) {
        self.api.revoke_secrets(&key.0, &key.1).await;
        self.stopping.retain(|task| !task.is_finished());
        if let Some(kept) = self.kept.remove(key) {
            self.stopping.push(tokio::spawn(kept.stop()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sidecars_are_read_and_mistakes_show_the_right_form() {
        let read = |text: &str| sidecar(text);
        let plain = read("frontend:8081=backend").unwrap();
        assert_eq!((plain.namespace.as_str(), plain.from.as_str()), ("default", "frontend"));
        let full = read("shop/frontend,version=v2:8081=pay/backend:http").unwrap();
        assert_eq!(
            (full.namespace.as_str(), full.from.as_str(), full.outbound.as_str()),
            ("shop", "frontend,version=v2", "8081=pay/backend:http")
        );
        for wrong in ["frontend", "frontend=8081", ":8081=backend", "frontend:x=backend"] {
            let error = format!("{:#}", read(wrong).unwrap_err());
            assert!(error.contains("CLIENT:PORT=SERVICE"), "{error}");
        }
    }
}
