//! Leader election by Lease: one of several controllers writes, the others stand by.
//!
//! ```text
//! Lease (get, watch) -> Election, which decides -> create | update with resourceVersion -> Lease
//!                            |
//!                            +-> leading: true | false, which stops the controllers
//! ```
//! [`election`] decides, with time as an argument; this is the loop around it.

pub mod election;
mod elector;
mod flags;
mod lease;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clock::Clock;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use kube::{Client, Error};
use model::annotation;
use model::random::Random;
use serde_json::json;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::{Informer, ObjectKind, WatchSpec, api_outage, failure};
use election::{Election, ElectionAction, ElectionTiming, LeaseRecord};
pub use elector::LeaderElector;
pub use flags::LeaderArgs;

/// Deadline of the release after a stop.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);
/// Requests in log lines.
const RENEW: &str = "renew the leader's Lease";
const CREATE: &str = "create the leader's Lease";

#[derive(Clone, Debug)]
pub struct LeaderElectionConfig {
    /// Namespace and name of the Lease.
    pub namespace: String,
    pub name: String,
    /// Unique among the candidates.
    pub identity: String,
    /// Annotations that the leader sets on the Lease.
    pub annotations: BTreeMap<String, String>,
    pub timing: ElectionTiming,
    pub clock: Clock,
    /// Jitters the backoff of the Lease's watch.
    pub random: Random,
    /// Where the leader's ledger is reported to; written into the Lease.
    pub ledger_address: LedgerAddressSource,
}

/// The address of this process' ledger at the time of a renewal: a reloaded certificate changes it.
#[derive(Clone, Default)]
pub struct LedgerAddressSource(Option<Arc<dyn Fn() -> String + Send + Sync>>);

impl LedgerAddressSource {
    pub fn new(address: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(address)))
    }

    pub fn current(&self) -> Option<String> {
        self.0.as_ref().map(|address| address())
    }
}

impl fmt::Debug for LedgerAddressSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LedgerAddressSource").field(&self.current()).finish()
    }
}

/// The host name with a random suffix, as in client-go.
fn identity(random: &mut Random) -> String {
    let host = crate::hostname();
    let host = if host.is_empty() { "zoneward" } else { &host };
    format!("{host}_{:016x}", random.next_u64())
}

/// Runs for election until `stop` is true, then releases the Lease. `leading` is true only while this process holds the
/// Lease for certain: it turns false at the renew deadline.
///
/// Stop the controllers first: after the release another process writes.
pub async fn run(
    client: Client,
    config: LeaderElectionConfig,
    leading: watch::Sender<bool>,
    mut stop: watch::Receiver<bool>,
) {
    let mut candidate = Candidate::new(client, config, leading);
    tokio::select! {
        biased;
        _ = stop.wait_for(|stop| *stop) => {}
        never = candidate.campaign() => match never {},
    }
    candidate.leading.send_replace(false);
    candidate.release().await;
}

/// Runs `work` while leading and drops it when the lease is lost. Returns when the work returns, or on `stop` while
/// standing by; running work has the same `stop`.
pub async fn while_leading<F: Future<Output = ()>>(
    mut leading: watch::Receiver<bool>,
    mut stop: watch::Receiver<bool>,
    mut work: impl FnMut() -> F,
) {
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            led = leading.wait_for(|leading| *leading) => { if led.is_err() { return } }
        }
        tokio::select! {
            biased;
            lost = leading.wait_for(|leading| !*leading) => { if lost.is_err() { return } }
            () = work() => return,
        }
    }
}

/// Logs a rejection. The client logs that the API is unreachable.
fn report(error: &anyhow::Error) {
    if let Some(Error::Api(status)) = error.chain().find_map(|cause| cause.downcast_ref::<Error>())
        && !api_outage::is_unreachable_status(status.code)
    {
        api_outage::request_failed(RENEW, &failure::text(error));
    }
}

struct Candidate {
    client: Client,
    config: LeaderElectionConfig,
    election: Election,
    leading: watch::Sender<bool>,
    start: Instant,
    /// The Lease as last read; unknown fields are preserved.
    lease: Option<DynamicObject>,
    resource: ApiResource,
}

impl Candidate {
    fn new(client: Client, config: LeaderElectionConfig, leading: watch::Sender<bool>) -> Self {
        let election = Election::new(&config.identity, config.timing);
        let resource = ObjectKind::Lease.resource();
        let start = config.clock.now();
        Self { client, config, election, leading, start, lease: None, resource }
    }

    fn api(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.config.namespace, &self.resource)
    }

    fn now(&self) -> Duration {
        self.config.clock.since(self.start)
    }

    async fn campaign(&mut self) -> Infallible {
        let field = format!("metadata.name={}", self.config.name);
        let spec = WatchSpec::all(ObjectKind::Lease).namespace(&self.config.namespace).fields(&field);
        let mut watches = Informer::start(&self.client, self.config.random.split(), [spec]);
        loop {
            // A hanging request must not outlast the renew deadline.
            let now = self.now();
            let until = self.election.leads_until(now);
            let limit = until.map_or(self.config.timing.renew_deadline, |until| until - now);
            match tokio::time::timeout(limit, self.step()).await {
                Ok(Ok(())) => api_outage::request_succeeded(RENEW),
                Ok(Err(error)) => report(&error),
                Err(_) => api_outage::api_failed("timed out renewing the leader's Lease"),
            }
            self.publish();
            let pause = self.election.pause(self.now());
            if self.election.is_leading(self.now()) {
                tokio::time::sleep(pause).await;
                while watches.ready().is_some() {}
            } else {
                // The watch shows a released Lease before the retry period ends.
                let _ = tokio::time::timeout(pause, watches.next()).await;
            }
            self.publish();
        }
    }

    /// Publishes whether this process leads, if that has changed.
    fn publish(&self) {
        let now = self.election.is_leading(self.now());
        let changed = self.leading.send_if_modified(|leading| std::mem::replace(leading, now) != now);
        match (changed, now) {
            (true, true) => info!(identity = self.config.identity, "leading"),
            (true, false) => warn!(identity = self.config.identity, "no longer leading"),
            (false, _) => {}
        }
    }

    /// Reads the Lease unless this process holds it, and acquires or renews it if possible. On conflict, re-reads
    /// immediately.
    async fn step(&mut self) -> Result<()> {
        for _ in 0..2 {
            if !self.election.is_leading(self.now()) || self.lease.is_none() {
                self.read().await?;
            }
            let seen = self.lease.as_ref().map(lease::parse);
            match self.election.observe(seen.as_ref(), self.now()) {
                ElectionAction::Wait => {
                    debug!(holder = seen.map(|seen| seen.holder), "another process leads");
                    return Ok(());
                }
                ElectionAction::Write(record) => {
                    if self.write(&record).await? {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    async fn read(&mut self) -> Result<()> {
        let found = self.api().get_opt(&self.config.name).await;
        self.lease = found.with_context(|| format!("reading Lease {}", self.lease_name()))?;
        Ok(())
    }

    fn lease_name(&self) -> String {
        format!("{}/{}", self.config.namespace, self.config.name)
    }

    /// Returns false on conflict.
    async fn write(&mut self, record: &LeaseRecord) -> Result<bool> {
        // The term starts before the request: the API may write long before the response arrives.
        let sent = self.now();
        let wall = self.config.clock.timestamp();
        let written = match self.lease.clone() {
            None => self.create(record, wall).await,
            Some(mut lease) => {
                lease::render(record, wall, &mut lease.data);
                self.annotate(&mut lease);
                self.advertise(&mut lease);
                self.api().replace(&self.config.name, &PostParams::default(), &lease).await
            }
        };
        match written {
            Ok(lease) => {
                let seen = lease::parse(&lease);
                self.election.wrote(&seen, sent, self.now());
                self.lease = Some(lease);
                Ok(true)
            }
            Err(Error::Api(status)) if matches!(status.code, 404 | 409) => {
                // Written by another candidate, or deleted.
                self.lease = None;
                debug!(code = status.code, "leader lease changed");
                Ok(false)
            }
            Err(error) => {
                // The outcome of the write is unknown.
                self.lease = None;
                Err(error).with_context(|| format!("writing Lease {}", self.lease_name()))
            }
        }
    }

    fn annotate(&self, lease: &mut DynamicObject) {
        let annotations = self.config.annotations.iter().map(|(key, value)| (key.clone(), value.clone()));
        lease.metadata.annotations.get_or_insert_default().extend(annotations);
    }

    /// The address of an earlier leader is replaced, or removed.
    fn advertise(&self, lease: &mut DynamicObject) {
        let annotations = lease.metadata.annotations.get_or_insert_default();
        match self.config.ledger_address.current() {
            Some(address) => annotations.insert(annotation::LEDGER_ADDRESS.to_owned(), address),
            None => annotations.remove(annotation::LEDGER_ADDRESS),
        };
    }

    async fn create(&self, record: &LeaseRecord, wall: Timestamp) -> kube::Result<DynamicObject> {
        let mut lease = DynamicObject::new(&self.config.name, &self.resource);
        lease.data = json!({});
        lease::render(record, wall, &mut lease.data);
        self.annotate(&mut lease);
        self.advertise(&mut lease);
        let created = self.api().create(&PostParams::default(), &lease).await;
        if created.is_ok() {
            api_outage::request_succeeded(CREATE);
        }
        if let Err(Error::Api(status)) = &created
            && status.code == 404
        {
            let exists = Api::<Namespace>::all(self.client.clone()).get_opt(&self.config.namespace).await;
            if let Ok(None) = exists {
                let advice = "create it, or name another with --leader-elect-resource-namespace";
                api_outage::request_failed(CREATE, &format!("no such namespace: {advice}"));
            }
        }
        created
    }

    /// Clears the holder, so that another candidate acquires the Lease immediately.
    async fn release(&mut self) {
        let Some(record) = self.election.release() else { return };
        if self.lease.is_none() {
            return;
        }
        match tokio::time::timeout(RELEASE_TIMEOUT, self.write(&record)).await {
            Ok(Ok(_)) => info!("released leader lease"),
            Ok(Err(error)) => {
                warn!(error = failure::text(&error), "failed to release leader lease; it expires")
            }
            Err(_) => warn!("timed out releasing leader lease; it expires"),
        }
    }
}
