//! The tables for Envoys: each that connects says who it is, and gets what such a proxy is to have.
//!
//! ```text
//! Source -> State -> Tables of each Identity -> xds::render -> Published -> the streams that watch it
//! Desk: an Envoy asks -> its Identity is followed from now on, and forgotten when nobody asks any more
//! ```

mod desk;
mod pages;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::{Labels, Name, Notice, ObjectKey, ObjectRef, ServiceKey, Snapshot};
use plan::FeatureGates;
use tokio::sync::watch;
use tracing::info;
use xds::identity::{Entrances, Identity, Role as Stands};
use xds::render::{Allowed, Entrance, Input, KeyPair, Rendered, render};
use xds::stream::Published;

use super::consumer::{Consumer, Role};
use super::source::{self, Source};
use super::state::{State, Tables};
use crate::destination_port;
use cluster::log;

pub use desk::Desk;
pub use pages::pages;

/// How many inputs are taken in before anything is rendered.
const INPUTS_PER_TURN: usize = 1_024;
/// How often Notices and leavers are looked at.
const TICK: Duration = Duration::from_secs(1);
/// How long somebody may be away before what it had is forgotten: Envoys come again within seconds.
const KEPT: Duration = Duration::from_secs(60);
/// How many Notices are remembered as said.
const MOST_SAID: usize = 10_000;

/// Runs until `stop` ends.
pub async fn run(mut source: Source, desk: Arc<Desk>, allowed: Allowed, stop: impl Future<Output = ()>) {
    let state = State::new(FeatureGates::default()).with_fallbacks();
    let mut running = Running {
        state,
        desk: desk.clone(),
        allowed: Arc::new(allowed),
        served: BTreeMap::new(),
        said: BTreeSet::new(),
    };
    let mut tick = tokio::time::interval(TICK);
    let mut stop = std::pin::pin!(stop);
    loop {
        tokio::select! {
            biased;
            () = &mut stop => return,
            _ = tick.tick() => running.look(&mut source),
            () = desk.somebody_came() => running.turn(&mut source),
            input = source.next() => {
                running.take(input);
                for _ in 0..INPUTS_PER_TURN {
                    let Some(input) = source.ready() else { break };
                    running.take(input);
                }
                running.turn(&mut source);
            }
        }
    }
}

struct Running {
    state: State,
    desk: Arc<Desk>,
    allowed: Arc<Allowed>,
    served: BTreeMap<Identity, Served>,
    said: BTreeSet<Notice>,
}

/// One kind of proxy that somebody asked for.
struct Served {
    sender: watch::Sender<Option<Arc<Published>>>,
    consumer: Consumer,
    rendered: Option<Rendered>,
    /// What is wrong with its entrances.
    notices: Vec<Notice>,
    /// Since when nobody watches it.
    alone: Option<Instant>,
}

impl Running {
    fn take(&mut self, input: source::Input) {
        match input {
            source::Input::Event(event) => self.state.take(*event),
            source::Input::Secret(key, pair) => self.state.put_secret(&key, pair),
        }
    }

    /// Follows who came, and renders what changed.
    fn turn(&mut self, source: &mut Source) {
        for (identity, sender) in self.desk.newcomers() {
            let consumer = consumer(&identity);
            self.state.follow(consumer.clone());
            let served = Served { sender, consumer, rendered: None, notices: Vec::new(), alone: None };
            self.served.insert(identity, served);
        }
        let updated: BTreeSet<Consumer> =
            self.state.refresh().into_iter().map(|update| update.consumer).collect();
        for key in source.want(&self.state.secrets()) {
            self.state.forget_secret(&key);
        }
        self.desk.set_ready(self.state.is_listed(), self.state.troubles());
        if !self.state.is_listed() {
            return;
        }
        for (identity, served) in &mut self.served {
            let (entrance, notices) = entrance(identity, self.state.snapshot());
            let moved = served.rendered.as_ref().is_none_or(|rendered| *rendered.entrance() != entrance);
            served.notices = notices;
            if moved || updated.contains(&served.consumer) {
                let Some(tables) = self.state.tables(&served.consumer) else { continue };
                served.publish(input(tables, entrance, &self.allowed));
            }
        }
    }

    /// What there is to say, and whom nobody needs any more.
    fn look(&mut self, source: &mut Source) {
        for served in self.served.values_mut() {
            let watched = served.sender.receiver_count() > 0;
            served.alone = if watched { None } else { served.alone.or_else(|| Some(Instant::now())) };
        }
        let gone = |served: &Served| served.alone.is_some_and(|since| since.elapsed() > KEPT);
        let leavers: Vec<Identity> = self
            .served
            .iter()
            .filter(|(_, served)| gone(served))
            .map(|(identity, _)| identity.clone())
            .collect();
        for identity in leavers.into_iter().filter(|identity| self.desk.release(identity)) {
            let Some(left) = self.served.remove(&identity) else { continue };
            // Another entrance to the same tables may still be in use.
            if !self.served.values().any(|served| served.consumer == left.consumer) {
                self.state.forget(&left.consumer);
            }
        }
        self.turn(source);
        self.say();
    }

    fn say(&mut self) {
        let mut notices = self.state.notices();
        for served in self.served.values() {
            notices.extend(served.notices.iter().cloned());
            notices.extend(served.rendered.iter().flat_map(|rendered| rendered.notices.iter().cloned()));
        }
        notices.extend(self.desk.ledger.notices());
        notices.sort();
        notices.dedup();
        self.said.retain(|said| notices.binary_search(said).is_ok());
        for notice in &notices {
            if self.said.len() < MOST_SAID && self.said.insert(notice.clone()) {
                log::notice(notice);
            }
        }
        self.desk.set_notices(notices);
    }
}

impl Served {
    fn publish(&mut self, input: Input) {
        let rendered = render(input, self.rendered.as_ref());
        self.sender.send_if_modified(|held| {
            let next = match held {
                None => Some(Published::first(rendered.resources.clone())),
                Some(held) => held.next(rendered.resources.clone()),
            };
            let is_news = next.is_some();
            if let Some(next) = next {
                *held = Some(Arc::new(next));
            }
            is_news
        });
        if self.rendered.is_none() {
            info!(role = %self.consumer.role, resources = rendered.resources.len(), "rendered the first resources");
        }
        self.rendered = Some(rendered);
    }
}

/// Whose tables an Envoy obeys.
fn consumer(identity: &Identity) -> Consumer {
    let namespace = Name::new(&identity.namespace);
    let role = match &identity.role {
        Stands::Sidecar { from, tags, .. } => {
            let pairs = tags.iter().map(|(key, value)| (Name::new(key), Name::new(value)));
            Role::Sidecar(ServiceKey::new(&namespace, &Name::new(from)), Labels::from_pairs(pairs.collect()))
        }
        Stands::Gateway { name, .. } => Role::Gateway(ObjectKey::new(&namespace, &Name::new(name)), None),
    };
    Consumer { role, node: Name::new(&identity.node), zone: identity.zone.as_deref().map(Name::new) }
}

/// Where an Envoy listens, with ports by number.
fn entrance(identity: &Identity, snapshot: &Snapshot) -> (Entrance, Vec<Notice>) {
    match &identity.role {
        Stands::Gateway { name, bind, places } => {
            let gateway = ObjectKey::new(&Name::new(&identity.namespace), &Name::new(name));
            (Entrance::Gateway { gateway, bind: *bind, places: places.clone() }, Vec::new())
        }
        Stands::Sidecar { entrances: Entrances { capture, outbounds }, .. } => {
            let (mut found, mut notices) = (BTreeMap::new(), Vec::new());
            for (at, to) in outbounds {
                match outbound(to, &identity.namespace, snapshot) {
                    Ok(to) => drop(found.insert(*at, to)),
                    Err(why) => notices.push(nowhere(identity, at, to, &why)),
                }
            }
            (Entrance::Sidecar { capture: *capture, outbounds: found }, notices)
        }
    }
}

/// `[NAMESPACE/]SERVICE[:PORT]` as it is now.
fn outbound(text: &str, namespace: &str, snapshot: &Snapshot) -> Result<(ServiceKey, u16), String> {
    let (service, port) = match text.split_once(':') {
        Some((service, port)) => (service, Some(port)),
        None => (text, None),
    };
    let (namespace, name) = service.split_once('/').unwrap_or((namespace, service));
    let key = ServiceKey::new(&Name::new(namespace), &Name::new(name));
    let service = snapshot.service(&key).ok_or_else(|| format!("there is no Service {key}"))?;
    let port = destination_port(service, port).map_err(|error| error.to_string())?;
    Ok((key, port.port))
}

fn nowhere(identity: &Identity, at: &SocketAddr, to: &str, why: &str) -> Notice {
    let message = format!(
        "its bootstrap asks for {at}={to}, and {why}: nothing listens there until there is; create it, or print another bootstrap"
    );
    Notice::new(ObjectRef::new("Envoy", &identity.namespace, &identity.title()), "OutboundNotFound", message)
}

fn input(tables: Tables, entrance: Entrance, allowed: &Arc<Allowed>) -> Input {
    let certificates = tables.certificates.iter().map(|(key, pair)| {
        let pair = KeyPair { chain: pair.chain.clone(), key: pair.key.clone() };
        (key.clone(), Arc::new(pair))
    });
    Input {
        certificates: Arc::new(certificates.collect()),
        routes: tables.routes,
        tiers: std::iter::once(tables.backends).chain(tables.fallbacks).collect(),
        entrance,
        allowed: allowed.clone(),
    }
}
