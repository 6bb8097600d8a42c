//! Leader election by Lease: of several controllers one writes, the others wait.
//!
//! ```text
//! Lease (get, watch) -> Election, which decides -> create | update with resourceVersion -> Lease
//!                            |
//!                            +-> leading: true | false, which the controllers obey at once
//! ```
//! [`election`] decides and knows no clock; this is the loop around it.

mod args;
pub mod election;
mod leader_handle;
mod record;

use std::convert::Infallible;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use kube::{Client, Error};
use serde_json::json;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::{Feed, Kind, Wanted, failure, outage};
pub use args::LeaderArgs;
use election::{Action, Election, Seen, Timing};
pub use leader_handle::LeaderHandle;

/// How long the Lease may take to be given up at the end.
const RELEASE: Duration = Duration::from_secs(3);
/// Requests in log lines.
const RENEW: &str = "renew the leader's Lease";
const CREATE: &str = "create the leader's Lease";

/// Which Lease, and who we are.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The namespace of the Lease.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Who we are in it: nobody else may have this name.
    pub identity: String,
    /// How long things take.
    pub timing: Timing,
}

/// A name for this process that no other has: the machine's, and a random part.
pub fn identity() -> String {
    use std::hash::{BuildHasher, RandomState};
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "zoneward" } else { host.trim() };
    format!("{host}_{:016x}", RandomState::new().hash_one(std::process::id()))
}

/// Takes part in the election until `stop` turns true, then gives the Lease up. `leading` is true only while the
/// Lease is surely ours: it turns false by itself when renewing does not succeed in time.
///
/// Stop the controllers before this: when it ends, somebody else writes.
pub async fn run(
    client: Client,
    settings: Settings,
    leading: watch::Sender<bool>,
    mut stop: watch::Receiver<bool>,
) {
    let mut candidate = Candidate::new(client, settings, leading);
    tokio::select! {
        never = candidate.take_part() => match never {},
        _ = stop.wait_for(|stop| *stop) => {}
    }
    candidate.leading.send_replace(false);
    candidate.give_up().await;
}

/// Runs `work` whenever we lead, and drops it at once when we no longer do. Ends with the work, or when `stop`
/// turns true and the work has ended by itself (it has the same stop).
pub async fn while_leading<F: Future<Output = ()>>(
    mut leading: watch::Receiver<bool>,
    mut stop: watch::Receiver<bool>,
    mut work: impl FnMut() -> F,
) {
    loop {
        tokio::select! {
            led = leading.wait_for(|leading| *leading) => { if led.is_err() { return } }
            _ = stop.wait_for(|stop| *stop) => return,
        }
        tokio::select! {
            biased;
            lost = leading.wait_for(|leading| !*leading) => { if lost.is_err() { return } }
            () = work() => return,
        }
    }
}

/// Logs a refusal; that the API is away is logged by its client.
fn report(error: &anyhow::Error) {
    if let Some(Error::Api(status)) = error.chain().find_map(|cause| cause.downcast_ref::<Error>())
        && !outage::means_away(status.code)
    {
        outage::request_failed(RENEW, &failure::text(error));
    }
}

struct Candidate {
    client: Client,
    settings: Settings,
    election: Election,
    leading: watch::Sender<bool>,
    start: Instant,
    /// The Lease as last seen: what we do not know of it is written back as it was.
    lease: Option<DynamicObject>,
    resource: ApiResource,
}

impl Candidate {
    fn new(client: Client, settings: Settings, leading: watch::Sender<bool>) -> Self {
        let election = Election::new(&settings.identity, settings.timing);
        let resource = Kind::Lease.resource();
        Self { client, settings, election, leading, start: Instant::now(), lease: None, resource }
    }

    fn api(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.settings.namespace, &self.resource)
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    async fn take_part(&mut self) -> Infallible {
        let field = format!("metadata.name={}", self.settings.name);
        let wanted = Wanted::all(Kind::Lease).within(&self.settings.namespace).fields(&field);
        let mut feed = Feed::start(&self.client, [wanted]);
        loop {
            // A request that hangs must not prolong our term: it is left when our time is over.
            let now = self.now();
            let until = self.election.leads_until(now);
            let limit = until.map_or(self.settings.timing.renew_deadline, |until| until - now);
            match tokio::time::timeout(limit, self.step()).await {
                Ok(Ok(())) => outage::request_worked(RENEW),
                Ok(Err(error)) => report(&error),
                Err(_) => outage::api_failed("no answer about the leader's Lease in time"),
            }
            self.tell();
            let pause = self.election.pause(self.now());
            if self.election.is_leading(self.now()) {
                tokio::time::sleep(pause).await;
                while feed.ready().is_some() {}
            } else {
                // A Lease that is given up is seen at once by the watch, not only at the next look.
                let _ = tokio::time::timeout(pause, feed.next()).await;
            }
            self.tell();
        }
    }

    /// Says whether we lead, if that has changed.
    fn tell(&self) {
        let now = self.election.is_leading(self.now());
        let changed = self.leading.send_if_modified(|leading| std::mem::replace(leading, now) != now);
        match (changed, now) {
            (true, true) => info!(identity = self.settings.identity, "leading"),
            (true, false) => warn!(identity = self.settings.identity, "no longer leading"),
            (false, _) => {}
        }
    }

    /// Looks at the Lease if it may be somebody else's, and writes it if that is ours to do. When somebody was quicker,
    /// it is looked at once more at once: whoever is deposed must not find out later than it could.
    async fn step(&mut self) -> Result<()> {
        for _ in 0..2 {
            if !self.election.is_leading(self.now()) || self.lease.is_none() {
                self.look().await?;
            }
            let seen = self.lease.as_ref().map(record::parse);
            match self.election.observe(seen.as_ref(), self.now()) {
                Action::Wait => {
                    debug!(holder = seen.map(|seen| seen.holder), "another process leads");
                    return Ok(());
                }
                Action::Write(record) => {
                    if self.write(&record).await? {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    async fn look(&mut self) -> Result<()> {
        let found = self.api().get_opt(&self.settings.name).await;
        self.lease = found.with_context(|| format!("reading Lease {}", self.place()))?;
        Ok(())
    }

    fn place(&self) -> String {
        format!("{}/{}", self.settings.namespace, self.settings.name)
    }

    /// False: the Lease is not what it was when we saw it.
    async fn write(&mut self, record: &election::Record) -> Result<bool> {
        // Counted from before the request: the API may have written long before we hear of it.
        let sent = self.now();
        let wall = Timestamp::now();
        let written = match self.lease.clone() {
            None => self.create(record, wall).await,
            Some(mut lease) => {
                record::render(record, wall, &mut lease.data);
                self.api().replace(&self.settings.name, &PostParams::default(), &lease).await
            }
        };
        match written {
            Ok(lease) => {
                let seen: Seen = record::parse(&lease);
                self.election.wrote(&seen, sent, self.now());
                self.lease = Some(lease);
                Ok(true)
            }
            Err(Error::Api(status)) if matches!(status.code, 404 | 409) => {
                // Somebody else was quicker, or the Lease is gone.
                self.lease = None;
                debug!(code = status.code, "leader lease changed");
                Ok(false)
            }
            Err(error) => {
                // Nobody knows whether it was written.
                self.lease = None;
                Err(error).with_context(|| format!("writing Lease {}", self.place()))
            }
        }
    }

    async fn create(&self, record: &election::Record, wall: Timestamp) -> kube::Result<DynamicObject> {
        let mut lease = DynamicObject::new(&self.settings.name, &self.resource);
        lease.data = json!({});
        record::render(record, wall, &mut lease.data);
        let made = self.api().create(&PostParams::default(), &lease).await;
        if made.is_ok() {
            outage::request_worked(CREATE);
        }
        if let Err(Error::Api(status)) = &made
            && status.code == 404
        {
            let exists = Api::<Namespace>::all(self.client.clone()).get_opt(&self.settings.namespace).await;
            if let Ok(None) = exists {
                let advice = "create it, or name another with --leader-elect-resource-namespace";
                outage::request_failed(CREATE, &format!("no such namespace: {advice}"));
            }
        }
        made
    }

    /// Hands over: a Lease without a holder is taken by whoever sees it first.
    async fn give_up(&mut self) {
        let Some(record) = self.election.release() else { return };
        if self.lease.is_none() {
            return;
        }
        match tokio::time::timeout(RELEASE, self.write(&record)).await {
            Ok(Ok(_)) => info!("released leader lease"),
            Ok(Err(error)) => {
                warn!(error = failure::text(&error), "failed to release leader lease; it expires")
            }
            Err(_) => warn!("timed out releasing leader lease; it expires"),
        }
    }
}
