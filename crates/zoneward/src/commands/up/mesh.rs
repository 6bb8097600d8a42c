//! The L7 proxies of this machine: one process for each MeshGateway, one for each sidecar that was asked for. Each is
//! started anew alone when it fails, and stopped when its gateway goes.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use kube::Client;
use model::Name;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::children::{self, Backoff, Program};
use crate::cli;
use crate::cluster::{Event, Feed, Kind, Wanted};
use crate::mesh::Role;
use crate::mesh::run::outbound;

/// How many gateways one machine serves; each is a process.
const MOST: usize = 64;

/// What all proxies of the machine are told.
#[derive(Clone, Debug)]
pub struct Proxies {
    program: PathBuf,
    common: Vec<OsString>,
    bind: Vec<IpAddr>,
    sidecars: Vec<Sidecar>,
}

/// A sidecar listener.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sidecar {
    namespace: String,
    from: String,
    outbound: String,
}

impl Proxies {
    /// Reads what the flags say. Mistakes are told before anything begins.
    pub fn new(args: &cli::Up) -> Result<Self> {
        let program = std::env::current_exe().context("finding this program's own file")?;
        let socket = args.data_dir.join("api.sock");
        let mut common: Vec<OsString> =
            vec!["mesh".into(), "proxy".into(), "--api-socket".into(), socket.into()];
        // Below the time that children have to stop, so that they end by themselves.
        common.extend(["--drain", "5s", "--bind-address", "127.0.0.1:0"].map(OsString::from));
        if let Some(zone) = &args.zone {
            common.extend(["--zone".into(), zone.into()]);
        }
        let sidecars: Result<Vec<Sidecar>> = args.sidecar.iter().map(|text| sidecar(text)).collect();
        Ok(Self { program, common, bind: args.mesh_bind.clone(), sidecars: sidecars? })
    }

    fn gateway(&self, namespace: &str, name: &str) -> Program {
        let mut args = self.common.clone();
        args.extend(["-n", namespace, "--gateway", name].map(OsString::from));
        for ip in &self.bind {
            args.extend(["--bind".into(), ip.to_string().into()]);
        }
        Program { name: format!("gateway {namespace}/{name}"), path: self.program.clone(), args }
    }

    fn sidecar(&self, sidecar: &Sidecar) -> Program {
        let Sidecar { namespace, from, outbound } = sidecar;
        let mut args = self.common.clone();
        args.extend(["-n", namespace, "--from", from, "--outbound", outbound].map(OsString::from));
        Program { name: format!("sidecar {from}:{outbound}"), path: self.program.clone(), args }
    }
}

/// Reads `[NAMESPACE/]FROM[,TAG=VALUE...]:PORT=SERVICE[:PORT]`.
fn sidecar(text: &str) -> Result<Sidecar> {
    let wrong =
        || format!("--sidecar {text}: write it as CLIENT:PORT=SERVICE[:PORT], as frontend:8081=backend");
    let (from, way) = text.split_once(':').with_context(wrong)?;
    let (namespace, from) = from.split_once('/').unwrap_or(("default", from));
    Role::sidecar(from, &Name::new(namespace)).with_context(wrong)?;
    outbound(way, &Name::new(namespace)).with_context(wrong)?;
    Ok(Sidecar { namespace: namespace.to_owned(), from: from.to_owned(), outbound: way.to_owned() })
}

/// A process that is kept running.
struct Kept {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Kept {
    fn start(program: Program) -> Self {
        let (stop, stopped) = watch::channel(false);
        Self { stop, task: tokio::spawn(children::keep(program, Backoff::default(), stopped)) }
    }

    async fn stop(self) {
        self.stop.send_replace(true);
        // One that panicked has nothing left to stop.
        let _ = self.task.await;
    }
}

/// Keeps the proxies running until `stop` turns true.
pub async fn keep(client: Client, proxies: Proxies, mut stop: watch::Receiver<bool>) {
    let sidecars: Vec<Kept> = proxies.sidecars.iter().map(|s| Kept::start(proxies.sidecar(s))).collect();
    let mut feed = Feed::start(&client, [Wanted::all(Kind::Gateway)]);
    let mut gateways = Gateways { proxies, kept: BTreeMap::new(), listing: None, stopping: Vec::new() };
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            event = feed.next() => gateways.take(event),
        }
    }
    // All at once: each has some seconds to let its connections end.
    let all: Vec<Kept> = sidecars.into_iter().chain(gateways.kept.into_values()).collect();
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
    proxies: Proxies,
    kept: BTreeMap<(String, String), Kept>,
    /// What has come of a list so far.
    listing: Option<BTreeSet<(String, String)>>,
    stopping: Vec<JoinHandle<()>>,
}

impl Gateways {
    fn take(&mut self, event: Event) {
        match event {
            Event::Listing(_) => self.listing = Some(BTreeSet::new()),
            Event::Put(_, object) => self.put((object.namespace().to_owned(), object.name().to_owned())),
            Event::Gone(_, object) => self.gone(&(object.namespace().to_owned(), object.name().to_owned())),
            Event::Listed(_) => {
                let seen = self.listing.take().unwrap_or_default();
                let gone: Vec<_> = self.kept.keys().filter(|key| !seen.contains(*key)).cloned().collect();
                gone.iter().for_each(|key| self.gone(key));
            }
            Event::Trouble(_, why) => warn!("MeshGateways cannot be watched: {why}"),
        }
    }

    fn put(&mut self, key: (String, String)) {
        if let Some(seen) = &mut self.listing {
            seen.insert(key.clone());
        }
        if self.kept.contains_key(&key) {
            return;
        }
        let (namespace, name) = &key;
        if self.kept.len() >= MOST {
            return warn!("MeshGateway {namespace}/{name} is not served: this machine serves {MOST} already");
        }
        info!("a proxy for MeshGateway {namespace}/{name}");
        let kept = Kept::start(self.proxies.gateway(namespace, name));
        self.kept.insert(key, kept);
    }

    fn gone(&mut self, key: &(String, String)) {
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
