//! The sync loop of the node proxy: watch events in, rules into the kernel, conntrack and health checks after them.
//!
//! ```text
//!                      caches listed                 full sync                kernel accepted
//! Phase: WaitingForCaches ---------> Rebuild(config) ---------> Rebuilt ------------------> Steady
//!                                        ^                                                    |
//!                                        +---- the node, its addresses or a ServiceCIDR changed
//! ```
//!
//! A failed sync stays in its phase; the schedule retries with backoff. Watch events only mark what is `Pending`.

mod departed;
mod refused;
mod stale_udp;
#[cfg(test)]
mod tests;
mod watch_events;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clock::Clock;
use cluster::{ObjectKind, WatchCache};
use dataplane::backend::{BackendError, NodeBackend, PreviousMode};
use dataplane::conntrack::ConntrackTable;
use insight::status::convergence::DurationCounts;
use model::forward::FrontendKind;
use model::plant::{PlantedBug, is_planted};
use model::{Family, ForwardingTable, Frontend, Node, Notice, ObjectKey, ServiceKey, Timestamp};
use plan::capacity;
use plan::forward::{Forwarder, HealthCheck, NodeConfig, ServiceDelta, health_check, localhost_node_ports};
use plan::subsetting::SliceView;
use tokio::sync::watch;

use super::config::{Mode, NodeSettings, modes};
use super::health_check_ports::HealthCheckServers;
use super::kernel::{RefusedService, apply_deltas};
use super::localhost_node_ports::LocalhostNodePorts;
use super::metrics::{family, local_policy};
use super::node_events::EventRecorder;
use super::node_lease::ProgrammedState;
use super::run::SharedState;
use super::sync_schedule::{SyncKind, SyncSchedule};
use super::traffic::{Known, TrafficCounters};
use super::{local_addresses, sysctl};
use departed::DepartedSlices;
use refused::{LeftOut, RefusedServices};
use stale_udp::PendingFlows;

/// Startup timeout for this node's Node object (semantics D15).
const NODE_TIMEOUT: Duration = Duration::from_secs(30);
/// Startup timeout for the Node's podCIDRs in mode NodeCIDR (semantics D3).
const POD_CIDR_TIMEOUT: Duration = Duration::from_secs(300);
/// Startup timeout for ServiceCIDRs, which older clusters do not serve.
const SERVICE_CIDR_TIMEOUT: Duration = Duration::from_secs(2);
/// Delay between a sync and the deletion of chains that it left unused.
const CLEANUP_DELAY: Duration = Duration::from_millis(200);
/// Poll interval while waiting for caches.
const CACHE_POLL: Duration = Duration::from_millis(500);
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// What a sync loop is built from.
pub struct SyncLoopParts {
    pub settings: NodeSettings,
    pub node: String,
    pub shared: Arc<SharedState>,
    pub events: EventRecorder,
    pub programmed: watch::Sender<ProgrammedState>,
    pub backend: Box<dyn NodeBackend + Send>,
    /// Whose rules of this node proxy are removed after the first full sync.
    pub other_modes: Vec<Box<dyn PreviousMode + Send>>,
    pub conntrack: Option<Box<dyn ConntrackTable + Send>>,
    pub traffic: TrafficCounters,
    pub clock: Clock,
    /// The addresses of this machine.
    pub local_addresses: Vec<IpAddr>,
}

/// How far this node's configuration and all rules that follow from it are in the kernel.
enum Phase {
    /// The kernel keeps the rules that it has.
    WaitingForCaches { since: Instant },
    /// The next full sync decides everything with this configuration.
    Rebuild(Box<NodeConfig>),
    /// Everything is decided; the kernel has not accepted it yet.
    Rebuilt,
    /// The kernel holds all rules; changes are synced Service by Service.
    Steady,
}

/// What watch events changed since the last sync.
#[derive(Default)]
struct Pending {
    services: BTreeSet<ServiceKey>,
    /// Changed slices with shares of endpoints.
    shares: BTreeSet<ObjectKey>,
    /// The Node, a ServiceCIDR or a local address changed.
    node: bool,
    /// Trigger times whose programming latency is measured.
    triggers: Vec<(Family, Timestamp)>,
    /// The highest resourceVersion of an EndpointSlice.
    revision: u64,
    /// The same for a list in progress, whose objects are not ordered by version.
    listed_revision: u64,
    /// Stale UDP flows, until they are deleted.
    flows: PendingFlows,
}

/// The state of a running node proxy.
pub struct SyncLoop {
    settings: NodeSettings,
    node: String,
    clock: Clock,
    started_at: Timestamp,
    shared: Arc<SharedState>,
    events: EventRecorder,
    programmed: watch::Sender<ProgrammedState>,
    cache: WatchCache,
    forwarder: Forwarder,
    backend: Box<dyn NodeBackend + Send>,
    other_modes: Vec<Box<dyn PreviousMode + Send>>,
    conntrack: Option<Box<dyn ConntrackTable + Send>>,
    traffic: TrafficCounters,
    health_checks: HealthCheckServers,
    localhost: LocalhostNodePorts,
    local_addresses: Vec<IpAddr>,
    schedule: SyncSchedule,
    phase: Phase,
    pending: Pending,
    /// Slices that left the view of this node.
    departed: DepartedSlices,
    /// Services that the kernel refused; the Event of each has its reason.
    refused: RefusedServices,
    cleanup_at: Option<Instant>,
    /// When the share of an endpoint changes that warms up or is drained.
    shares_at: Option<Instant>,
    has_warned_of_mode: bool,
    has_warned_of_arp: bool,
    /// Times from changes to the kernel.
    delays: DurationCounts,
}

impl SyncLoop {
    pub fn new(parts: SyncLoopParts) -> Self {
        let now = parts.clock.now();
        let (shared, clock) = (parts.shared.clone(), parts.clock.clone());
        let is_healthy = Arc::new(move || shared.health(|health| health.is_healthy(clock.now())));
        // Until the Node is read.
        let (config, _) = NodeConfig::new(&parts.settings.proxy, &Node::named(parts.node.as_str()), &[], &[]);
        Self {
            schedule: SyncSchedule::new(parts.settings.min_sync_period, parts.settings.sync_period, now),
            forwarder: Forwarder::new(config),
            backend: parts.backend,
            other_modes: parts.other_modes,
            health_checks: HealthCheckServers::new(is_healthy),
            localhost: LocalhostNodePorts::new(parts.shared.metrics.localhost.clone()),
            refused: RefusedServices::new(parts.settings.sync_period),
            settings: parts.settings,
            node: parts.node,
            started_at: parts.clock.timestamp().into(),
            clock: parts.clock,
            shared: parts.shared,
            events: parts.events,
            programmed: parts.programmed,
            cache: WatchCache::default(),
            conntrack: parts.conntrack,
            traffic: parts.traffic,
            local_addresses: parts.local_addresses,
            phase: Phase::WaitingForCaches { since: now },
            pending: Pending { node: true, ..Pending::default() },
            departed: DepartedSlices::default(),
            cleanup_at: None,
            shares_at: None,
            has_warned_of_mode: false,
            has_warned_of_arp: false,
            delays: DurationCounts::default(),
        }
    }

    /// When to call [`Self::work`] again if no event comes.
    pub fn wake_at(&self) -> Instant {
        let now = self.clock.now();
        if matches!(self.phase, Phase::WaitingForCaches { .. }) {
            return now + CACHE_POLL;
        }
        let due = self.schedule.next_at().unwrap_or(now);
        // While a sync is pending, it includes the refused Services: their own retries wait for it.
        let retry = self.refused.next_retry().filter(|_| self.retries_refused());
        // A pending sync deletes the flows after its rules.
        let flows = self.pending.flows.retry_at().filter(|_| self.is_programmed());
        let others = [self.cleanup_at, self.shares_at, flows, retry, self.departed.next_at()];
        others.into_iter().flatten().fold(self.traffic.due().min(due), Instant::min)
    }

    /// Runs what is due.
    pub fn work(&mut self) {
        let now = self.clock.now();
        if let Phase::WaitingForCaches { since } = self.phase
            && !self.has_caches(now.duration_since(since))
        {
            return;
        }
        if self.pending.node {
            self.update_node_config();
        }
        self.advance_shares(now);
        if let Some(kind) = self.schedule.due(now) {
            self.sync(kind, now);
        } else if self.cleanup_at.is_some_and(|at| at <= now) {
            self.delete_unused_chains(now);
        }
        self.retry_refused(now);
        let departed = self.departed.expire(now);
        self.pending.flows.add_programmed(&departed);
        if self.is_programmed()
            && (!departed.is_empty() || self.pending.flows.retry_at().is_some_and(|at| at <= now))
        {
            self.delete_stale_udp();
        }
        if self.traffic.due() <= now {
            let is_programmed = self.is_programmed();
            let (snapshot, table) = (self.cache.snapshot(), self.forwarder.table());
            let known = Known { snapshot, table, node: self.forwarder.config(), is_programmed };
            self.traffic.count(&known, &self.shared.metrics, now);
        }
    }

    /// Whether the kernel holds rules of this proxy mode; rules that cannot be read may be there.
    pub fn kernel_has_rules(&mut self) -> bool {
        self.backend.has_services().unwrap_or(true)
    }

    /// Slow start and drains: endpoints get the shares of now, those of changed slices at once and the others when one is
    /// due, so that a change does not visit all slices with shares.
    fn advance_shares(&mut self, now: Instant) {
        let changed = std::mem::take(&mut self.pending.shares);
        let is_due = self.shares_at.is_some_and(|at| at <= now);
        if changed.is_empty() && !is_due {
            return;
        }
        let time = Timestamp::from(self.clock.timestamp());
        let snapshot = self.cache.snapshot_mut();
        let changes = match is_due {
            true => capacity::advance(snapshot, time),
            false => capacity::advance_slices(snapshot, &changed, time),
        };
        let until = |next: Timestamp| Duration::from_secs_f64(next.seconds_since(time).max(0.0));
        let others = self.shares_at.filter(|_| !is_due);
        self.shares_at = others.into_iter().chain(changes.next.map(|next| now + until(next))).min();
        if !changes.services.is_empty() {
            self.pending.services.extend(changes.services);
            self.schedule.request_partial();
        }
    }

    /// The slices to watch, if they are not those of `watched`: the zone of the Node decides, and all of them count if
    /// there is no Node at the start.
    pub fn slice_view(&self, watched: Option<&SliceView>) -> Option<SliceView> {
        let has_waited = match self.phase {
            Phase::WaitingForCaches { since } => self.clock.since(since) >= NODE_TIMEOUT,
            _ => true,
        };
        let view = match self.cache.snapshot().node(&self.node) {
            Some(_) => self.view_of_node(),
            None if watched.is_none() && has_waited => SliceView::All,
            None => return None,
        };
        (watched != Some(&view)).then_some(view)
    }

    /// The slices that nodes with the zone of this node receive.
    fn view_of_node(&self) -> SliceView {
        let zone = self.cache.snapshot().node(&self.node).and_then(|node| node.zone.as_deref());
        SliceView::of(self.settings.watch_own_zone, zone, self.settings.proxy.gates.select)
    }

    /// Semantics D1: no sync until Services and EndpointSlices are listed.
    fn has_caches(&self, waited: Duration) -> bool {
        let snapshot = self.cache.snapshot();
        let node = snapshot.node(&self.node);
        let needs_pod_cidrs = self.settings.proxy.detect_local_mode == "NodeCIDR";
        let has_pod_cidrs = !needs_pod_cidrs || node.is_some_and(|node| !node.pod_cidrs.is_empty());
        self.cache.has_listed(&[ObjectKind::Service, ObjectKind::Slice])
            && (node.is_some() || waited >= NODE_TIMEOUT)
            && (has_pod_cidrs || waited >= POD_CIDR_TIMEOUT)
            && (self.cache.has_listed(&[ObjectKind::ServiceCidr]) || waited >= SERVICE_CIDR_TIMEOUT)
    }

    /// Computes the node's configuration, and rebuilds where rules depend on what changed (pitfall 7: a ServiceCIDR does).
    fn update_node_config(&mut self) {
        self.pending.node = false;
        let snapshot = self.cache.snapshot();
        let node = snapshot.node(&self.node);
        if self.cache.has_listed(&[ObjectKind::Node]) {
            self.shared.health(|health| health.node(node));
        }
        let cidrs: Vec<_> = snapshot.service_cidrs().flat_map(|c| c.cidrs.iter().copied()).collect();
        let node = node.cloned().unwrap_or_else(|| Node::named(self.node.as_str()));
        let (config, notices) = NodeConfig::new(&self.settings.proxy, &node, &cidrs, &self.local_addresses);
        self.warn_all(&notices);
        let is_first = matches!(self.phase, Phase::WaitingForCaches { .. });
        let in_force = match &self.phase {
            Phase::Rebuild(config) => config,
            _ => self.forwarder.config(),
        };
        if is_first || !is_same_but_for_addresses(&config, in_force) {
            self.phase = Phase::Rebuild(Box::new(config));
            self.schedule.request_full();
        } else if config != *in_force {
            // Rules match local addresses by the kernel's own lookup: only health check servers and external addresses of
            // Services that are the node's own depend on the list.
            if let Phase::Rebuild(pending) = &mut self.phase {
                **pending = config;
            } else {
                let affected = self.forwarder.set_addresses(config.rules.addresses);
                if self.settings.mode == Mode::Ipvs {
                    // Node ports are virtual servers on each address.
                    self.schedule.request_full();
                }
                if !affected.is_empty() {
                    self.pending.services.extend(affected);
                    self.schedule.request_partial();
                }
                self.listen_for_health_checks();
            }
        }
    }

    /// Whether the kernel holds all that is planned, but for refused Services: flows that are deleted before would be
    /// created again by the old rules (pitfall 20).
    fn is_programmed(&self) -> bool {
        matches!(self.phase, Phase::Steady) && !self.schedule.has_changes()
    }

    /// Whether refused Services are retried by themselves: no other change is pending.
    fn retries_refused(&self) -> bool {
        let is_held = self.schedule.is_held(self.clock.now());
        matches!(self.phase, Phase::Steady) && self.pending.services.is_empty() && !is_held
    }

    /// Retries a Service that the kernel refused, when its backoff is over.
    fn retry_refused(&mut self, now: Instant) {
        if !self.retries_refused() {
            return;
        }
        if let Some(key) = self.refused.due(now) {
            self.pending.services.insert(key);
            self.sync(SyncKind::Partial, now);
        }
    }

    fn sync(&mut self, kind: SyncKind, started: Instant) {
        let revision = self.pending.revision;
        let services = std::mem::take(&mut self.pending.services);
        let outcome = match kind {
            SyncKind::Full => self.sync_full(&services),
            SyncKind::Partial => self.sync_services(&services),
            SyncKind::Verify => self.verify(),
        };
        let ended = self.clock.now();
        self.schedule.finished(kind, started, ended, outcome.is_ok());
        match outcome {
            Ok(()) => self.synced(kind, started, ended, revision),
            Err(trouble) => {
                // The full sync that follows covers them (pitfall 1).
                self.pending.services.extend(services);
                if is_planted(PlantedBug::LostDirtySet) {
                    self.pending.services.clear();
                }
                match self.settings.mode {
                    Mode::Iptables => self.shared.metrics.restore_failed(kind == SyncKind::Partial),
                    _ => self.shared.metrics.sync_failed(),
                }
                self.events.warn_of_node("SyncFailed", trouble.to_string());
            }
        }
    }

    fn synced(&mut self, kind: SyncKind, started: Instant, ended: Instant, revision: u64) {
        let metrics = &self.shared.metrics;
        let took = ended.duration_since(started).as_secs_f64();
        let wall = self.clock.timestamp();
        let of_kind = if kind == SyncKind::Partial { &metrics.sync_partial } else { &metrics.sync_full };
        for at in FAMILIES {
            if kind != SyncKind::Verify {
                metrics.sync.get_or_create(&family(at)).observe(took);
                of_kind.get_or_create(&family(at)).observe(took);
            }
            metrics.last_sync.get_or_create(&family(at)).set(wall.as_duration().as_secs_f64());
            self.shared.health(|health| health.updated(at, ended));
        }
        metrics.service_pending.set(0);
        metrics.endpoint_pending.set(0);
        metrics.programmed.set(i64::try_from(revision).unwrap_or(i64::MAX));
        metrics.failed_services.set(i64::try_from(self.refused.len()).unwrap_or(i64::MAX));
        let wall = Timestamp::from(wall);
        for (at, trigger) in self.pending.triggers.drain(..) {
            let seconds = wall.seconds_since(trigger).max(0.0);
            metrics.programming.get_or_create(&family(at)).observe(seconds);
            self.delays.add(seconds);
        }
        self.count_dropped();
        metrics.set_rule_counts(&self.backend.rule_counts());
        metrics.set_packet_counts(&self.backend.packet_counts());
        let failed: Vec<String> = self.refused.keys().map(ToString::to_string).collect();
        let watched_zone = match self.view_of_node() {
            SliceView::Zone(zone) => zone.to_string(),
            SliceView::All => String::new(),
        };
        self.programmed.send_if_modified(|state| {
            let new = ProgrammedState {
                revision: Some(revision),
                watched_zone: watched_zone.clone(),
                failed,
                delays: self.delays.clone(),
                repairs: metrics.repairs.get(),
                lost_events: metrics.lost_events.get(),
                last_outage: state.last_outage.clone(),
            };
            let changed = *state != new;
            *state = new;
            changed
        });
        if kind != SyncKind::Verify {
            self.cleanup_at = Some(ended + CLEANUP_DELAY);
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

    /// Warns once where another proxy mode is configured, with what differs.
    fn warn_of_mode(&mut self) {
        let mode = self.settings.mode;
        if mode != Mode::Default {
            return;
        }
        let lines = modes::differences(&self.settings.configuration, self.cache.snapshot());
        let message = format!("mode {} runs as nftables. What differs: {}", mode.as_str(), lines.join("; "));
        self.events.warn_of_node("KubeProxyDefaultMode", message);
    }

    /// Decides everything if a rebuild is due, then reconciles the kernel with the table.
    fn sync_full(&mut self, services: &BTreeSet<ServiceKey>) -> Result<(), BackendError> {
        let previous = self.plan_all(services);
        let mut left_out = LeftOut::new(&mut self.forwarder, previous, &self.refused);
        let loaded = match left_out.load(&mut *self.backend, &mut self.forwarder) {
            Err(trouble) if trouble.is_refusal() => self.load_service_by_service(&trouble).map(|()| None),
            loaded => loaded.map(Some),
        };
        match loaded {
            Ok(Some(loaded)) => {
                let (changes, first) = (loaded.transactions, loaded.is_initial);
                tracing::debug!(changes, first, "reconciled the kernel's tables");
                for problem in loaded.problems {
                    self.events.warn_of_node("ForeignRules", problem);
                }
                let left_out: BTreeSet<&ServiceKey> = left_out.deltas.iter().map(|d| &d.service).collect();
                self.refused.retain(|key| left_out.contains(key));
            }
            Ok(None) => {}
            Err(trouble) => {
                // The kernel may hold what is undone in the table.
                self.pending.flows.add_all(self.forwarder.table());
                self.pending.services.extend(left_out.undo_all(&mut self.forwarder));
                return Err(trouble);
            }
        }
        self.apply_left_out(&left_out, services)?;
        if matches!(self.phase, Phase::Rebuilt) {
            self.phase = Phase::Steady;
            let mut all = services.clone();
            all.extend(self.cache.snapshot().services().map(|(service, _)| service.key.clone()));
            self.after_sync(&all);
            // The addresses that accept node ports may have changed.
            self.listen_for_health_checks();
            let services = self.forwarder.table().services().count();
            tracing::info!(services, "all rules are programmed");
            self.remove_other_modes();
            if !std::mem::replace(&mut self.has_warned_of_mode, true) {
                self.warn_of_mode();
            }
        } else {
            self.after_sync(services);
        }
        Ok(())
    }

    /// Removes the rules that this node proxy left in another mode: the new ones are in force.
    fn remove_other_modes(&mut self) {
        self.other_modes.retain_mut(|mode| match mode.retire() {
            Ok(None) => true,
            Ok(Some(items)) => {
                if !items.is_empty() {
                    let failed = items.iter().find_map(|item| item.error.as_ref());
                    let failed = failed.map(ToString::to_string).unwrap_or_default();
                    tracing::info!(objects = items.len(), failed, "removed the rules of another proxy mode");
                }
                false
            }
            Err(error) => {
                tracing::warn!(%error, "cannot remove the rules of another proxy mode; the next sync retries");
                true
            }
        });
    }

    /// Plans everything if a rebuild is due, else these Services and the refused ones. Returns the previous frontends of
    /// those that changed; of a rebuild, only of the refused ones.
    fn plan_all(&mut self, services: &BTreeSet<ServiceKey>) -> BTreeMap<ServiceKey, Vec<Frontend>> {
        let snapshot = self.cache.snapshot();
        match std::mem::replace(&mut self.phase, Phase::Rebuilt) {
            Phase::Rebuild(config) => {
                let table = self.forwarder.table();
                let refused = self.refused.keys();
                let previous = refused.map(|key| (key.clone(), table.frontends(key).to_vec())).collect();
                self.pending.flows.add_all(table);
                self.forwarder.rebuild(snapshot, *config);
                self.pending.flows.drop_served(self.forwarder.table());
                previous
            }
            phase => {
                self.phase = phase;
                let keys = services.iter().chain(self.refused.keys()).cloned().collect();
                let deltas = self.forwarder.update(snapshot, &keys);
                self.pending.flows.add_removed(&deltas);
                deltas.into_iter().map(|delta| (delta.service, delta.old)).collect()
            }
        }
    }

    /// Applies what a full sync left out, each Service alone: the newly refused ones, those that changed, and those
    /// whose backoff is over.
    fn apply_left_out(
        &mut self,
        left_out: &LeftOut,
        changed: &BTreeSet<ServiceKey>,
    ) -> Result<(), BackendError> {
        let now = self.clock.now();
        for delta in &left_out.deltas {
            if changed.contains(&delta.service) || self.refused.is_due(&delta.service, now) {
                self.forwarder.redo(delta);
                let refused = self.apply_deltas(std::slice::from_ref(delta))?;
                self.set_refused(std::iter::once(&delta.service), refused);
            }
        }
        Ok(())
    }

    /// Applies planned changes. After a failure they are undone in the table, so that the full sync plans them again.
    fn apply_deltas(&mut self, deltas: &[ServiceDelta]) -> Result<Vec<RefusedService>, BackendError> {
        let refs: Vec<&ServiceDelta> = deltas.iter().collect();
        apply_deltas(&mut *self.backend, &mut self.forwarder, &refs).inspect_err(|_| {
            self.pending.flows.add_uncertain(deltas);
            deltas.iter().for_each(|delta| self.forwarder.undo(delta));
            self.pending.services.extend(deltas.iter().map(|delta| delta.service.clone()));
        })
    }

    /// Records which of the Services of a sync the kernel refused.
    fn set_refused<'k>(
        &mut self,
        synced: impl Iterator<Item = &'k ServiceKey>,
        refused: Vec<RefusedService>,
    ) {
        let refused_keys: BTreeSet<ServiceKey> = refused.iter().map(|r| r.service.clone()).collect();
        synced.filter(|key| !refused_keys.contains(key)).for_each(|key| self.refused.remove(key));
        let now = self.clock.now();
        for RefusedService { service, reason } in refused {
            let object = model::ObjectRef::service(&service);
            self.events.warn(Notice::new(object, "NotProgrammed", &reason));
            self.refused.insert(service, now);
        }
    }

    /// The kernel refused the whole table: finds the Services that it refuses, so that the others work.
    fn load_service_by_service(&mut self, trouble: &BackendError) -> Result<(), BackendError> {
        tracing::warn!(%trouble, "kernel refused the rules; loading Services one by one to find the bad ones");
        let all: Vec<ServiceDelta> = self
            .forwarder
            .table()
            .services()
            .map(|(key, new)| ServiceDelta { service: key.clone(), old: Vec::new(), new: new.to_vec() })
            .collect();
        if self.backend.has_services()? {
            // The rules in the kernel carry traffic: they stay until the cause is fixed.
            return Err(BackendError::failed(format!("{trouble}; the old rules stay in force")));
        }
        self.backend.load(&ForwardingTable::new(self.forwarder.config().rules.clone()))?;
        let refused = apply_deltas(&mut *self.backend, &mut self.forwarder, &all.iter().collect::<Vec<_>>())?;
        let synced: BTreeSet<&ServiceKey> = all.iter().map(|delta| &delta.service).collect();
        self.refused.retain(|key| synced.contains(key));
        self.set_refused(synced.into_iter(), refused);
        Ok(())
    }

    fn sync_services(&mut self, services: &BTreeSet<ServiceKey>) -> Result<(), BackendError> {
        let deltas = self.forwarder.update(self.cache.snapshot(), services);
        self.pending.flows.add_removed(&deltas);
        let refused = self.apply_deltas(&deltas)?;
        self.set_refused(services.iter(), refused);
        self.after_sync(services);
        Ok(())
    }

    /// Every syncPeriod: repairs external modifications.
    fn verify(&mut self) -> Result<(), BackendError> {
        let reconciled = self.backend.reconcile(self.forwarder.table())?;
        if reconciled.transactions > 0 {
            self.shared.metrics.repairs.inc();
            tracing::warn!(changes = reconciled.transactions, "tables were modified externally; restored");
        }
        self.remove_other_modes();
        if self.health_checks.has_failed_ports() {
            self.listen_for_health_checks();
        }
        if self.localhost.has_failed_ports() {
            let notices = self.localhost.listen();
            self.warn_all(&notices);
        }
        Ok(())
    }

    /// What follows a sync: health checks, warnings, stale UDP flows.
    fn after_sync(&mut self, services: &BTreeSet<ServiceKey>) {
        let snapshot = self.cache.snapshot();
        let config = self.forwarder.config();
        let mut checks: Vec<(ServiceKey, Option<HealthCheck>)> = Vec::new();
        for key in services {
            let service = snapshot.service(key);
            let check = service.and_then(|service| health_check(service, snapshot.slices(key), config));
            checks.push((key.clone(), check));
        }
        if self.health_checks.update(checks) {
            self.listen_for_health_checks();
        }
        self.serve_localhost(services);
        let notices = services.iter().flat_map(|key| self.forwarder.notices(key)).cloned();
        let notices: Vec<Notice> = notices.collect();
        self.warn_all(&notices);
        self.warn_of_arp(services);
        self.pending.flows.add_programmed(services);
        self.delete_stale_udp();
    }

    /// Warns once where load balancer IPs are local to every node and each of them answers ARP requests for them.
    fn warn_of_arp(&mut self, services: &BTreeSet<ServiceKey>) {
        if self.settings.mode != Mode::Ipvs || self.has_warned_of_arp || !sysctl::answers_arp() {
            return;
        }
        let table = self.forwarder.table();
        let is_local =
            |f: &&Frontend| f.kind == FrontendKind::LoadBalancer && table.node.is_forwarded_by_ipvs(f);
        let found = services.iter().flat_map(|key| table.frontends(key)).find(is_local);
        let Some(frontend) = found else { return };
        let message = format!(
            "{} of Service {} is local to this node, which answers ARP requests for it: where a load balancer announces addresses by ARP, such as MetalLB in layer 2 mode, set ipvs.strictARP",
            frontend.address, frontend.port
        );
        self.has_warned_of_arp = true;
        self.events.warn_of_node("ArpForLoadBalancerIPs", message);
    }

    /// After the rules, which the connections of the listeners go through.
    fn serve_localhost(&mut self, services: &BTreeSet<ServiceKey>) {
        let (mut is_changed, mut notices) = (false, Vec::new());
        for key in services {
            let (ports, more) = localhost_node_ports(key, self.forwarder.table(), self.forwarder.config());
            notices.extend(more);
            is_changed |= self.localhost.update(key, ports);
        }
        if is_changed {
            notices.extend(self.localhost.listen());
        }
        self.warn_all(&notices);
    }

    fn listen_for_health_checks(&mut self) {
        let addresses = local_addresses::of_node_ports(&self.forwarder.config().rules, &self.local_addresses);
        let notices = self.health_checks.listen(&addresses);
        self.warn_all(&notices);
    }

    /// Pitfall 20: after the rules, never before.
    fn delete_stale_udp(&mut self) {
        let (started, flows) = (self.clock.now(), &mut self.pending.flows);
        let Some(conntrack) = &mut self.conntrack else {
            *flows = PendingFlows::default();
            return;
        };
        let metrics = &self.shared.metrics;
        let snapshot = self.cache.snapshot();
        match flows.delete(&mut **conntrack, snapshot, &self.forwarder, &self.departed, &self.local_addresses)
        {
            Ok(None) => {}
            Ok(Some(cleaned)) => {
                metrics.deleted_flows(&cleaned);
                let took = self.clock.since(started).as_secs_f64();
                FAMILIES.iter().for_each(|at| metrics.conntrack.get_or_create(&family(*at)).observe(took));
                if cleaned.partial {
                    tracing::warn!("stale UDP flows may be left: conntrack dumps were interrupted; retrying");
                    flows.put_off(started, self.settings.sync_period);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "failed to delete stale UDP flows; retrying");
                flows.put_off(started, self.settings.sync_period);
            }
        }
    }

    fn delete_unused_chains(&mut self, now: Instant) {
        self.cleanup_at = match self.backend.maintain() {
            Ok(true) => Some(now + CLEANUP_DELAY),
            Ok(false) => None,
            Err(error) => {
                tracing::warn!(%error, "failed to delete unused chains; scheduling a full sync");
                self.shared.metrics.cleanup_failed();
                self.schedule.request_full();
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
