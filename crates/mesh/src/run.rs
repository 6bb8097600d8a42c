//! A proxy in the mesh, from its first table to its last connection.
//!
//! ```text
//! Source -> State -> Tables -> proxy.swap;  Doors: ports open and close;  Redirect: the kernel sends connections here
//! stop:  not ready -> nothing is redirected any more -> ports close -> open connections come to their end
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use model::{Name, Notice, ObjectKey, ServiceKey, Snapshot};
use plan::FeatureGates;
use proxy::{Entrance, KeyPair, Proxy};
use tracing::{info, warn};

use super::consumer::Consumer;
use super::doors::{DoorId, Doors, Wish};
use super::redirect::Redirect;
use super::secret::Pair;
use super::source::{Input, Source};
use super::state::{State, Tables};
use crate::destination_port;
use cluster::log;

/// How many inputs are taken in before tables are made.
const INPUTS_PER_TURN: usize = 1_024;
/// How often ports that are taken, the redirect and Notices are looked at again.
const TICK: Duration = Duration::from_secs(1);
/// How many Notices are remembered as said.
const MOST_SAID: usize = 10_000;

/// A port of the proxy that stands for a port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboundWish {
    /// Where to listen; 0 takes a free port.
    pub listen: u16,
    /// The Service.
    pub service: ServiceKey,
    /// Its port, by number or name; the first that speaks HTTP if it is not given.
    pub port: Option<String>,
}

/// What a proxy is told.
pub struct Plan {
    /// Who it is.
    pub consumer: Consumer,
    /// Where it listens; empty: loopback for a sidecar, everywhere for a gateway.
    pub bind: Vec<IpAddr>,
    /// Ports of a sidecar.
    pub outbounds: Vec<OutboundWish>,
    /// The port that the kernel sends connections to.
    pub redirect: Option<u16>,
    /// How long open connections may take to end.
    pub drain: Duration,
}

/// What others may see of a running proxy.
#[derive(Debug, Default)]
pub struct Shown {
    /// Why it is not ready; `None` when it is.
    unready: Mutex<Option<String>>,
    /// How often tables were swapped.
    swaps: AtomicU64,
    /// How long the last new tables took to make and swap in, in microseconds.
    last_swap: AtomicU64,
    listeners: AtomicU64,
    notices: AtomicU64,
}

impl Shown {
    /// Not ready yet.
    pub fn new() -> Self {
        Self { unready: Mutex::new(Some("no table yet".to_owned())), ..Self::default() }
    }

    /// For `/readyz`.
    pub fn check(&self) -> Result<(), String> {
        match &*self.unready.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some(why) => Err(why.clone()),
        }
    }

    fn set(&self, unready: Option<String>) {
        *self.unready.lock().unwrap_or_else(PoisonError::into_inner) = unready;
    }

    /// For `/metrics`, before what the proxy itself has counted.
    pub fn metrics(&self) -> String {
        let seconds = self.last_swap.load(Ordering::Relaxed) as f64 / 1e6;
        let lines = [
            (
                "zoneward_mesh_table_swaps_total",
                "counter",
                "Tables that were swapped in.",
                self.swaps.load(Ordering::Relaxed) as f64,
            ),
            (
                "zoneward_mesh_last_swap_seconds",
                "gauge",
                "How long the last tables took to make and swap in.",
                seconds,
            ),
            (
                "zoneward_mesh_listeners",
                "gauge",
                "Ports that are open.",
                self.listeners.load(Ordering::Relaxed) as f64,
            ),
            (
                "zoneward_mesh_notices",
                "gauge",
                "Things to put right, which the log names.",
                self.notices.load(Ordering::Relaxed) as f64,
            ),
        ];
        let line = |(name, kind, help, value): (&str, &str, &str, f64)| {
            format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n")
        };
        lines.into_iter().map(line).collect()
    }
}

/// Runs until `stop` ends; then connections have time to end.
pub async fn run(
    plan: Plan,
    mut source: Source,
    proxy: Proxy,
    shown: Arc<Shown>,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    let redirect = match plan.redirect {
        Some(port) => Some(Redirect::open(port, own_uid())?),
        None => None,
    };
    let mut state = State::new(FeatureGates::default());
    state.follow(plan.consumer.clone());
    info!(role = %plan.consumer.role, node = plan.consumer.node.as_str(), "waiting for the first table");
    let mut running = Running {
        doors: Doors::new(proxy.clone()),
        plan,
        state,
        proxy,
        redirect,
        shown,
        pairs: BTreeMap::new(),
        said: BTreeSet::new(),
        told_by_proxy: Vec::new(),
        is_changed: true,
        everywhere: super::doors::everywhere(),
        has_ipv6: has_ipv6(),
        has_tables: false,
    };
    let mut tick = tokio::time::interval(TICK);
    let mut stop = std::pin::pin!(stop);
    loop {
        tokio::select! {
            biased;
            () = &mut stop => break,
            _ = tick.tick() => running.look().await,
            input = source.next() => {
                running.take(input);
                for _ in 0..INPUTS_PER_TURN {
                    let Some(input) = source.ready() else { break };
                    running.take(input);
                }
                running.turn(&mut source).await;
            }
        }
    }
    running.end().await
}

/// A sidecar under a user of its own is known by it. Under root it is not: others may be root as well.
fn own_uid() -> Option<u32> {
    let uid = nix::unistd::geteuid();
    (!uid.is_root()).then_some(uid.as_raw())
}

struct Running {
    plan: Plan,
    state: State,
    proxy: Proxy,
    doors: Doors,
    redirect: Option<Redirect>,
    shown: Arc<Shown>,
    /// Certificates as the proxy needs them, with what they were made from.
    pairs: BTreeMap<ObjectKey, (Arc<Pair>, Arc<KeyPair>)>,
    said: BTreeSet<Notice>,
    /// What the proxy cannot obey in its present tables.
    told_by_proxy: Vec<Notice>,
    /// Whether something came in since Notices were last gathered.
    is_changed: bool,
    /// Where a gateway listens unless it is told.
    everywhere: IpAddr,
    has_ipv6: bool,
    has_tables: bool,
}

impl Running {
    fn take(&mut self, input: Input) {
        self.is_changed = true;
        match input {
            Input::Event(event) => self.state.take(*event),
            Input::Secret(key, pair) => self.state.put_secret(&key, pair),
        }
    }

    /// New tables, if something changed.
    async fn turn(&mut self, source: &mut Source) {
        let began = Instant::now();
        let updates = self.state.refresh();
        for key in source.want(&self.state.secrets()) {
            self.state.forget_secret(&key);
        }
        let Some(tables) = self.state.tables(&self.plan.consumer).filter(|_| !updates.is_empty()) else {
            return;
        };
        self.redirecting(|redirect| redirect.narrow(&tables.routes));
        self.told_by_proxy = self.swap(&tables);
        self.has_tables = true;
        let micros = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.shown.last_swap.store(micros, Ordering::Relaxed);
        self.shown.swaps.fetch_add(1, Ordering::Relaxed);
        if updates.iter().any(|update| update.turned.routes) {
            self.fit().await;
        }
    }

    fn swap(&mut self, tables: &Tables) -> Vec<Notice> {
        self.pairs.retain(|key, _| tables.certificates.contains_key(key));
        for (key, pair) in &tables.certificates {
            if self.pairs.get(key).is_none_or(|(made_from, _)| !Arc::ptr_eq(made_from, pair))
                && let Ok(made) = KeyPair::parse(&pair.chain, &pair.key)
            {
                self.pairs.insert(key.clone(), (pair.clone(), Arc::new(made)));
            }
        }
        let certificates = self.pairs.iter().map(|(key, (_, made))| (key.clone(), made.clone())).collect();
        self.proxy.swap(proxy::Tables {
            routes: tables.routes.clone(),
            backends: tables.backends.clone(),
            certificates: Arc::new(certificates),
        })
    }

    fn redirecting(&mut self, act: impl FnOnce(&mut Redirect) -> Result<()>) -> Option<String> {
        let error = act(self.redirect.as_mut()?).err()?;
        let why = format!("{error:#}");
        warn!(error = why, "cannot redirect connections");
        Some(why)
    }

    /// Ports and redirect as the table asks.
    async fn fit(&mut self) {
        let Some(tables) = self.state.tables(&self.plan.consumer).filter(|_| self.has_tables) else { return };
        let (wishes, unknown) = self.wishes(&tables);
        self.doors.fit(&wishes).await;
        // Only when somebody listens does the kernel send connections there.
        let open = self.doors.troubles().next().is_none();
        let trouble = if open { self.redirecting(|redirect| redirect.widen(&tables.routes)) } else { None };
        let why: Vec<String> =
            self.doors.troubles().map(str::to_owned).chain(unknown).chain(trouble).collect();
        self.shown.listeners.store(self.doors.open() as u64, Ordering::Relaxed);
        self.shown.set((!why.is_empty()).then(|| why.join("; ")));
    }

    /// The doors that should be open, and why some cannot be yet.
    fn wishes(&self, tables: &Tables) -> (BTreeMap<DoorId, Wish>, Vec<String>) {
        let (mut wishes, mut unknown) = (BTreeMap::new(), Vec::new());
        let bind = |otherwise: IpAddr| match self.plan.bind.is_empty() {
            true => vec![otherwise],
            false => self.plan.bind.clone(),
        };
        for port in tables.routes.ports() {
            for ip in bind(self.everywhere) {
                let entrance = Entrance::Gateway { port: port.number };
                let at = SocketAddr::new(ip, port.number);
                wishes.insert(DoorId::Gateway(port.number, ip), Wish { at, entrance, flag: "--bind" });
            }
        }
        for (i, outbound) in self.plan.outbounds.iter().enumerate() {
            let port = match service_port(outbound, self.state.snapshot()) {
                Ok(port) => port,
                Err(why) => {
                    unknown.push(why);
                    continue;
                }
            };
            for ip in bind(Ipv4Addr::LOCALHOST.into()) {
                let entrance = Entrance::Outbound { service: outbound.service.clone(), port };
                let at = SocketAddr::new(ip, outbound.listen);
                wishes.insert(DoorId::Outbound(i, ip), Wish { at, entrance, flag: "--outbound" });
            }
        }
        if let Some(port) = self.plan.redirect {
            let families = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
            for ip in families.into_iter().filter(|ip: &IpAddr| ip.is_ipv4() || self.has_ipv6) {
                let wish = Wish {
                    at: SocketAddr::new(ip, port),
                    entrance: Entrance::OriginalDestination,
                    flag: "--redirect=PORT",
                };
                wishes.insert(DoorId::Redirect(ip), wish);
            }
        }
        (wishes, unknown)
    }

    /// What may have become possible by itself, and what there is to say.
    async fn look(&mut self) {
        if !self.has_tables {
            let why: Vec<String> = self
                .state
                .troubles()
                .iter()
                .map(|(kind, why)| format!("{} cannot be watched: {why}", kind.as_str()))
                .collect();
            self.shown.set(Some(format!("no table yet; {}", why.join("; "))));
            return;
        }
        self.fit().await;
        if !std::mem::take(&mut self.is_changed) {
            return;
        }
        let notices: BTreeSet<Notice> =
            self.state.notices().into_iter().chain(self.told_by_proxy.iter().cloned()).collect();
        self.shown.notices.store(notices.len() as u64, Ordering::Relaxed);
        self.said.retain(|said| notices.contains(said));
        self.say(notices);
    }

    /// Each Notice once, for as long as it holds.
    fn say(&mut self, notices: BTreeSet<Notice>) {
        for notice in notices {
            if self.said.len() < MOST_SAID && !self.said.contains(&notice) {
                log::notice(&notice);
                self.said.insert(notice);
            }
        }
    }

    async fn end(mut self) -> Result<()> {
        self.shown.set(Some("stopping".to_owned()));
        info!(drain = ?self.plan.drain, "stopping; draining connections");
        self.redirecting(Redirect::remove);
        self.doors.close_all().await;
        self.proxy.drain(self.plan.drain).await;
        Ok(())
    }
}

fn has_ipv6() -> bool {
    std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
}

/// The number of the Service's port.
fn service_port(wish: &OutboundWish, snapshot: &Snapshot) -> Result<u16, String> {
    let service = snapshot.service(&wish.service);
    let service = service.ok_or_else(|| {
        format!("--outbound {}={}: there is no such Service yet", wish.listen, wish.service)
    })?;
    let port = destination_port(service, wish.port.as_deref());
    port.map(|port| port.port)
        .map_err(|error| format!("--outbound {}={}: {error}", wish.listen, wish.service))
}

/// Reads `PORT=[NAMESPACE/]SERVICE[:PORT]`.
pub fn outbound(text: &str, namespace: &Name) -> Result<OutboundWish> {
    let wrong = |what: &str| {
        anyhow::anyhow!(
            "--outbound {text}: {what}; write it as PORT=SERVICE[:PORT], as 8081=backend or 8081=backend:http"
        )
    };
    let (listen, service) = text.split_once('=').ok_or_else(|| wrong("there is no ="))?;
    let listen = listen.parse().map_err(|_| wrong(&format!("{listen:?} is no port")))?;
    let (service, port) = match service.split_once(':') {
        Some((_, "")) => return Err(wrong("the port behind the colon is missing")),
        Some((service, port)) => (service, Some(port.to_owned())),
        None => (service, None),
    };
    let (namespace, name) = match service.split_once('/') {
        Some((namespace, name)) => (Name::new(namespace), name),
        None => (namespace.clone(), service),
    };
    if name.is_empty() || namespace.is_empty() {
        return Err(wrong("it names no Service"));
    }
    Ok(OutboundWish { listen, service: ServiceKey::new(&namespace, &Name::new(name)), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outbounds_are_read_and_mistakes_show_the_right_form() {
        let namespace = Name::new("shop");
        let read = |text: &str| outbound(text, &namespace);
        let service = |namespace: &str, name: &str| ServiceKey::new(&namespace.into(), &name.into());
        let plain = OutboundWish { listen: 8081, service: service("shop", "backend"), port: None };
        assert_eq!(read("8081=backend").unwrap(), plain);
        let named =
            OutboundWish { listen: 0, service: service("pay", "backend"), port: Some("http".to_owned()) };
        assert_eq!(read("0=pay/backend:http").unwrap(), named);
        for wrong in ["backend", "x=backend", "70000=backend", "80=", "80=backend:", "80=/backend"] {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.contains(wrong) && error.contains("PORT=SERVICE[:PORT]"), "{error}");
        }
    }
}
