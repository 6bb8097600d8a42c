//! The state of a running proxy, and its steps: take what came, decide, send, tell.

mod intake;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::backend::{BackendError, NodeBackend};
use dataplane::conntrack::{ConntrackSocket, delete_stale_udp};
use model::forward::UdpService;
use model::{Family, ForwardingTable, Notice, ServiceKey, Timestamp};
use plan::forward::{Delta, Forwarder, HealthCheck, NodeConfig, health_check, udp};
use tokio::sync::watch;

use super::checks::Checks;
use super::config::{Mode, Settings, modes};
use super::kernel::apply_deltas;
use super::metrics::{family, local_policy};
use super::pace::{Pace, Work};
use super::report::{Progress, Reporter};
use super::run::Shared;
use super::traffic::{Known, Traffic};
use super::{addresses, unknown};
use crate::cluster::{Kind, Mirror};

/// How long the start waits for this node's Node (semantics D15).
const NODE_PATIENCE: Duration = Duration::from_secs(30);
/// How long for its podCIDRs, in mode NodeCIDR (semantics D3).
const POD_CIDR_PATIENCE: Duration = Duration::from_secs(300);
/// How long for ServiceCIDRs, which an older cluster does not have.
const SERVICE_CIDR_PATIENCE: Duration = Duration::from_secs(2);
/// How long after a change its traces are cleared away.
const TIDY_AFTER: Duration = Duration::from_millis(200);
/// How often it is looked whether the start can go on.
const START_LOOK: Duration = Duration::from_millis(500);
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// What a proxy is made of.
pub struct Parts {
    /// What it was told.
    pub settings: Settings,
    /// The name of its Node.
    pub node: String,
    /// What others see.
    pub shared: Arc<Shared>,
    /// Where warnings go.
    pub reporter: Reporter,
    /// Where progress goes.
    pub progress: watch::Sender<Progress>,
    /// The kernel's rules.
    pub backend: Box<dyn NodeBackend + Send>,
    /// The kernel's connections.
    pub conntrack: Option<ConntrackSocket>,
    /// Where traffic went.
    pub traffic: Traffic,
}

/// A running proxy.
pub struct Proxy {
    settings: Settings,
    node: String,
    shared: Arc<Shared>,
    reporter: Reporter,
    progress: watch::Sender<Progress>,
    conntrack: Option<ConntrackSocket>,
    traffic: Traffic,
    mirror: Mirror,
    forwarder: Forwarder,
    backend: Box<dyn NodeBackend + Send>,
    checks: Checks,
    wanted_checks: BTreeMap<ServiceKey, HealthCheck>,
    pace: Pace,
    began: Instant,
    has_started: bool,
    node_changed: bool,
    rebuild: Option<NodeConfig>,
    /// Everything was decided anew, and what follows from that is yet to be done.
    all_is_new: bool,
    dirty: BTreeSet<ServiceKey>,
    failed: BTreeMap<ServiceKey, String>,
    triggers: Vec<(Family, Timestamp)>,
    began_at: Timestamp,
    seen_revision: u64,
    local: Vec<IpAddr>,
    tidy_at: Option<Instant>,
}

impl Proxy {
    /// A proxy that has seen nothing yet.
    pub fn new(parts: Parts, now: Instant) -> Self {
        let shared = parts.shared.clone();
        let is_healthy = Arc::new(move || shared.health(|health| health.is_healthy(Instant::now())));
        let pace = Pace::new(parts.settings.spacing, parts.settings.sync_period, now);
        let config = NodeConfig { name: parts.node.as_str().into(), ..NodeConfig::default() };
        Self {
            forwarder: Forwarder::new(config),
            backend: parts.backend,
            checks: Checks::new(is_healthy),
            wanted_checks: BTreeMap::new(),
            settings: parts.settings,
            node: parts.node,
            shared: parts.shared,
            reporter: parts.reporter,
            progress: parts.progress,
            conntrack: parts.conntrack,
            traffic: parts.traffic,
            mirror: Mirror::default(),
            pace,
            began: now,
            has_started: false,
            node_changed: true,
            rebuild: None,
            all_is_new: false,
            dirty: BTreeSet::new(),
            failed: BTreeMap::new(),
            triggers: Vec::new(),
            began_at: wall(),
            seen_revision: 0,
            local: addresses::local(),
            tidy_at: None,
        }
    }

    /// When there will be something to do if nothing comes.
    pub fn wake(&self, now: Instant) -> Instant {
        if !self.has_started {
            return now + START_LOOK;
        }
        let due = self.pace.due().unwrap_or(now);
        let due = self.tidy_at.map_or(due, |tidy| tidy.min(due));
        self.traffic.due().min(due)
    }

    /// Does what is due.
    pub fn work(&mut self) {
        let now = Instant::now();
        if !self.has_started && !self.may_start(now) {
            return;
        }
        if self.node_changed {
            self.look_at_node();
        }
        if let Some(work) = self.pace.work(now) {
            self.run(work, now);
        } else if self.tidy_at.is_some_and(|at| at <= now) {
            self.tidy(now);
        }
        if self.traffic.due() <= now {
            let (snapshot, table) = (self.mirror.snapshot(), self.forwarder.table());
            let known = Known { snapshot, table, node: self.forwarder.config() };
            self.traffic.count(&known, &self.shared.metrics);
        }
    }

    /// Semantics D1: nothing is done until Services and slices are all there. The kernel keeps what it has.
    fn may_start(&self, now: Instant) -> bool {
        let waited = now.duration_since(self.began);
        let snapshot = self.mirror.snapshot();
        let node = snapshot.node(&self.node);
        let by_node_range = self.settings.proxy.detect_local_mode == "NodeCIDR";
        let knows_pods = !by_node_range || node.is_some_and(|node| !node.pod_cidrs.is_empty());
        self.mirror.has_listed(&[Kind::Service, Kind::Slice])
            && (node.is_some() || waited >= NODE_PATIENCE)
            && (knows_pods || waited >= POD_CIDR_PATIENCE)
            && (self.mirror.has_listed(&[Kind::ServiceCidr]) || waited >= SERVICE_CIDR_PATIENCE)
    }

    /// The node's own facts, and whether rules depend on what changed (pitfall 7: a ServiceCIDR does).
    fn look_at_node(&mut self) {
        self.node_changed = false;
        let snapshot = self.mirror.snapshot();
        let node = snapshot.node(&self.node);
        if self.mirror.has_listed(&[Kind::Node]) {
            self.shared.health(|health| health.node(node));
        }
        let cidrs: Vec<_> = snapshot.service_cidrs().flat_map(|c| c.cidrs.iter().copied()).collect();
        let node = node.cloned().unwrap_or_else(|| unknown(&self.node));
        let (config, notices) = NodeConfig::new(&self.settings.proxy, &node, &cidrs, &self.local);
        self.say_all(&notices);
        if !self.has_started || !is_same_but_for_addresses(&config, self.forwarder.config()) {
            self.rebuild = Some(config);
            self.pace.compare();
        } else if config != *self.forwarder.config() {
            // The rules ask the kernel what is local: only who answers health checks depends on this.
            self.forwarder.set_addresses(config.rules.addresses);
            self.set_checks();
        }
    }

    fn run(&mut self, work: Work, started: Instant) {
        let revision = self.seen_revision;
        let dirty = std::mem::take(&mut self.dirty);
        let outcome = match work {
            Work::Whole => self.whole(&dirty),
            Work::Changes => self.changes(&dirty),
            Work::Look => self.look(),
        };
        let ended = Instant::now();
        self.pace.done(work, started, ended, outcome.is_ok());
        match outcome {
            Ok(()) => self.succeeded(work, started, ended, revision),
            Err(trouble) => {
                // Their turn comes with everything else (pitfall 1).
                self.dirty.extend(dirty);
                self.shared.metrics.sync_failed();
                self.reporter.warn_of_node("SyncFailed", trouble.to_string());
            }
        }
    }

    fn succeeded(&mut self, work: Work, started: Instant, ended: Instant, revision: u64) {
        let metrics = &self.shared.metrics;
        let took = ended.duration_since(started).as_secs_f64();
        let of_kind = if work == Work::Changes { &metrics.sync_partial } else { &metrics.sync_full };
        for at in FAMILIES {
            if work != Work::Look {
                metrics.sync.get_or_create(&family(at)).observe(took);
                of_kind.get_or_create(&family(at)).observe(took);
            }
            metrics.last_sync.get_or_create(&family(at)).set(seconds_now());
            self.shared.health(|health| health.updated(at, ended));
        }
        metrics.service_pending.set(0);
        metrics.endpoint_pending.set(0);
        metrics.programmed.set(i64::try_from(revision).unwrap_or(i64::MAX));
        metrics.failed_services.set(i64::try_from(self.failed.len()).unwrap_or(i64::MAX));
        for (at, trigger) in self.triggers.drain(..) {
            metrics.programming.get_or_create(&family(at)).observe(seconds_since(trigger));
        }
        self.count_dropped();
        let failed: Vec<String> = self.failed.keys().map(ToString::to_string).collect();
        self.progress.send_if_modified(|progress| {
            let new = Progress { programmed: Some(revision), failed };
            let changed = *progress != new;
            *progress = new;
            changed
        });
        if work != Work::Look {
            self.tidy_at = Some(ended + TIDY_AFTER);
        }
        if !self.has_started {
            self.has_started = true;
            let services = self.forwarder.table().services().count();
            tracing::info!(services, seconds = took, "all rules are programmed");
            self.say_mode();
        }
    }

    fn count_dropped(&self) {
        let dropped = self.forwarder.dropped();
        let no_local = &self.shared.metrics.no_local;
        for (i, at) in FAMILIES.into_iter().enumerate() {
            for (policy, count) in [("internal", dropped.internal[i]), ("external", dropped.external[i])] {
                no_local.get_or_create(&local_policy(at, policy)).set(i64::from(count));
            }
        }
    }

    /// That another mode was asked for, and what that means here.
    fn say_mode(&mut self) {
        let mode = self.settings.mode;
        if mode == Mode::Nftables {
            return;
        }
        let lines = modes::differences(mode, &self.settings.configuration, self.mirror.snapshot());
        let reason = if mode == Mode::Default { "KubeProxyDefaultMode" } else { "ProxyModeReplaced" };
        let message = format!("mode {} runs as nftables. What differs: {}", mode.as_str(), lines.join("; "));
        self.reporter.warn_of_node(reason, message);
    }

    /// Everything: decided anew where the node changed, compared with the kernel, repaired.
    fn whole(&mut self, dirty: &BTreeSet<ServiceKey>) -> Result<(), BackendError> {
        let snapshot = self.mirror.snapshot();
        let mut lost = Vec::new();
        self.all_is_new |= self.rebuild.is_some();
        match self.rebuild.take() {
            Some(config) => self.forwarder.rebuild(snapshot, config),
            None => {
                let dirty: BTreeSet<ServiceKey> = dirty.iter().chain(self.failed.keys()).cloned().collect();
                lost.extend(self.forwarder.update(snapshot, &dirty).iter().filter_map(udp::lost));
            }
        }
        let compared = self.backend.load(self.forwarder.table());
        self.failed.clear();
        match compared {
            Ok(compared) => {
                tracing::debug!(
                    changes = compared.transactions,
                    first = compared.is_initial,
                    "compared with the kernel"
                );
                for problem in compared.problems {
                    self.reporter.warn_of_node("ForeignRules", problem);
                }
            }
            Err(trouble) if trouble.is_refusal() => self.load_apart(&trouble)?,
            Err(trouble) => return Err(trouble),
        }
        let mut keys = dirty.clone();
        if std::mem::take(&mut self.all_is_new) {
            keys.extend(self.mirror.snapshot().services().map(|(service, _)| service.key.clone()));
            self.after(&keys, lost);
            // The addresses that take node ports may be others.
            self.set_checks();
        } else {
            self.after(&keys, lost);
        }
        Ok(())
    }

    /// The kernel refused the whole: find the Services that it refuses, so that the others work.
    fn load_apart(&mut self, trouble: &BackendError) -> Result<(), BackendError> {
        tracing::warn!(%trouble, "kernel refused a transaction; isolating the Services");
        let all: Vec<Delta> = self
            .forwarder
            .table()
            .services()
            .map(|(key, new)| Delta { service: key.clone(), old: Vec::new(), new: new.to_vec() })
            .collect();
        if self.backend.has_services()? {
            // What is there carries traffic: it stays until what is wrong is put right.
            return Err(BackendError::failed(format!("{trouble}; the old rules stay in force")));
        }
        self.backend.load(&ForwardingTable::new(self.forwarder.config().rules.clone()))?;
        let failed = apply_deltas(&mut *self.backend, &mut self.forwarder, &all.iter().collect::<Vec<_>>())?;
        self.failed.extend(failed.into_iter().map(|failed| (failed.service, failed.reason)));
        Ok(())
    }

    fn changes(&mut self, dirty: &BTreeSet<ServiceKey>) -> Result<(), BackendError> {
        let deltas = self.forwarder.update(self.mirror.snapshot(), dirty);
        let all: Vec<&Delta> = deltas.iter().collect();
        let failed = apply_deltas(&mut *self.backend, &mut self.forwarder, &all)?;
        for key in dirty {
            self.failed.remove(key);
        }
        for failed in failed {
            let notice =
                Notice::new(model::ObjectRef::service(&failed.service), "NotProgrammed", &failed.reason);
            self.reporter.warn(notice);
            self.failed.insert(failed.service, failed.reason);
        }
        self.after(dirty, deltas.iter().filter_map(udp::lost).collect());
        Ok(())
    }

    /// Every syncPeriod: what others altered is put right, and what was refused is tried again.
    fn look(&mut self) -> Result<(), BackendError> {
        let compared = self.backend.reconcile(self.forwarder.table())?;
        if compared.transactions > 0 {
            self.shared.metrics.repairs.inc();
            tracing::warn!(changes = compared.transactions, "tables were modified externally; restored");
        }
        if self.checks.lacks_some() {
            self.set_checks();
        }
        if self.failed.is_empty() {
            return Ok(());
        }
        let again: BTreeSet<ServiceKey> = self.failed.keys().cloned().collect();
        self.changes(&again)
    }

    /// What follows a change of rules: stale flows, health checks, words.
    fn after(&mut self, keys: &BTreeSet<ServiceKey>, lost: Vec<UdpService>) {
        let snapshot = self.mirror.snapshot();
        let mut udp_services = lost;
        let before = self.wanted_checks.clone();
        for key in keys {
            udp_services.extend(self.forwarder.udp(snapshot, key));
            let check = snapshot
                .service(key)
                .and_then(|service| health_check(service, snapshot.slices(key), &self.node));
            match check {
                Some(check) => drop(self.wanted_checks.insert(key.clone(), check)),
                None => drop(self.wanted_checks.remove(key)),
            }
        }
        if before != self.wanted_checks {
            self.set_checks();
        }
        let said = keys.iter().flat_map(|key| self.forwarder.notices(key)).cloned();
        let notices: Vec<Notice> = said.collect();
        self.say_all(&notices);
        if !udp_services.is_empty() {
            self.clean(&udp_services);
        }
    }

    fn set_checks(&mut self) {
        let at = addresses::listening(&self.forwarder.config().rules, &self.local);
        let notices = self.checks.set(&self.wanted_checks, &at);
        self.say_all(&notices);
    }

    /// Pitfall 20: after the rules, never before.
    fn clean(&mut self, services: &[UdpService]) {
        let Some(conntrack) = &mut self.conntrack else { return };
        let started = Instant::now();
        let metrics = &self.shared.metrics;
        match delete_stale_udp(conntrack, services, &self.local) {
            Ok(cleaned) => {
                metrics.deleted_flows(&cleaned);
                let took = started.elapsed().as_secs_f64();
                FAMILIES.iter().for_each(|at| metrics.conntrack.get_or_create(&family(*at)).observe(took));
            }
            Err(error) => {
                tracing::warn!(%error, "failed to delete stale UDP flows; the next change retries")
            }
        }
    }

    fn tidy(&mut self, now: Instant) {
        self.tidy_at = match self.backend.maintain() {
            Ok(true) => Some(now + TIDY_AFTER),
            Ok(false) => None,
            Err(error) => {
                tracing::warn!(%error, "failed to delete unused chains; scheduling a full sync");
                self.shared.metrics.cleanup_failed();
                self.pace.compare();
                None
            }
        };
    }
}

fn is_same_but_for_addresses(a: &NodeConfig, b: &NodeConfig) -> bool {
    let mut a = a.clone();
    a.rules.addresses.clone_from(&b.rules.addresses);
    a == *b
}

fn wall() -> Timestamp {
    jiff::Timestamp::now().into()
}

fn seconds_now() -> f64 {
    jiff::Timestamp::now().as_duration().as_secs_f64()
}

fn seconds_since(at: Timestamp) -> f64 {
    wall().seconds_since(at).max(0.0)
}
