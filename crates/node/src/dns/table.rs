//! The objects that answers are made of, kept up to date by watches.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use clock::Clock;
use cluster::{Informer, InformerEvent, ObjectChange, ObjectKind, WatchCache, WatchSpec};
use ipnet::IpNet;
use kube::Client;
use model::random::Random;
use model::{ServiceKey, Slice, Timestamp};
use plan::FeatureGates;
use plan::dependents::Change;
use plan::dns::{DnsDecision, DnsName, DnsQuestion, DnsView, ReverseIndex, answer};
use plan::select::NodeView;
use tokio::sync::watch;

use crate::snapshot_file::{self, SnapshotFile};

/// Most events applied while readers wait.
const EVENT_BATCH: usize = 100;
/// How often shares of endpoints are looked at where none is known to change.
const IDLE: Duration = Duration::from_secs(60);

/// This machine, as selections see it.
#[derive(Clone, Debug)]
pub(super) struct AskingNode {
    pub(super) name: String,
    pub(super) zone: Option<String>,
    pub(super) gates: FeatureGates,
}

#[derive(Debug)]
pub(super) struct DnsTable {
    cache: WatchCache,
    reverse: ReverseIndex,
    domain: DnsName,
    server: IpAddr,
    asking: AskingNode,
    /// Seconds of the last change.
    serial: u32,
}

impl DnsTable {
    pub(super) fn new(domain: DnsName, server: IpAddr, asking: AskingNode) -> Self {
        let (cache, reverse) = (WatchCache::default(), ReverseIndex::default());
        Self { cache, reverse, domain, server, asking, serial: 0 }
    }

    pub(super) fn answer(&self, question: &DnsQuestion) -> DnsDecision {
        let snapshot = self.cache.snapshot();
        let node = snapshot.node(&self.asking.name);
        let zone = node.and_then(|node| node.zone.as_deref()).or(self.asking.zone.as_deref());
        let view = DnsView {
            snapshot,
            reverse: &self.reverse,
            domain: &self.domain,
            node: NodeView { name: &self.asking.name, zone, gates: self.asking.gates },
            servers: &[self.server],
            serial: self.serial,
            synced: self.has_synced(),
        };
        answer(question, &view)
    }

    fn has_synced(&self) -> bool {
        self.cache.has_listed(&[ObjectKind::Service, ObjectKind::Slice])
    }

    pub(super) fn observe(&mut self, event: InformerEvent, now: Timestamp) {
        for change in self.cache.read(event) {
            let keys = self.affected(&change);
            let is_change = !matches!(change, ObjectChange::Listed(..) | ObjectChange::Failed(..));
            self.cache.apply(change);
            if is_change {
                self.serial = u32::try_from(now.unix_seconds()).unwrap_or_default();
            }
            for key in keys {
                self.reverse.update(self.cache.snapshot(), &key);
            }
        }
    }

    /// Services whose addresses a change may alter.
    fn affected(&self, change: &ObjectChange) -> BTreeSet<ServiceKey> {
        match change.compared(self.cache.snapshot()) {
            Some(Change::Service((old, new))) => {
                old.or(new).map(|service| service.key.clone()).into_iter().collect()
            }
            Some(Change::Slice((old, new))) => {
                [old, new].into_iter().flatten().filter_map(Slice::service).collect()
            }
            _ => BTreeSet::new(),
        }
    }
}

pub(super) fn read(table: &RwLock<DnsTable>) -> RwLockReadGuard<'_, DnsTable> {
    table.read().unwrap_or_else(PoisonError::into_inner)
}

/// Whether names can be answered, and the ranges of cluster IPs.
pub(super) fn ranges(table: &RwLock<DnsTable>) -> (bool, Vec<IpNet>) {
    let table = read(table);
    let cidrs = table.cache.snapshot().service_cidrs().flat_map(|cidr| &cidr.cidrs);
    (table.has_synced(), cidrs.map(IpNet::trunc).collect())
}

/// The kinds of [`watch_specs`].
const WATCHED: [ObjectKind; 5] = [
    ObjectKind::Service,
    ObjectKind::Slice,
    ObjectKind::Namespace,
    ObjectKind::ServiceCidr,
    ObjectKind::Node,
];

fn watch_specs(node: &str) -> Vec<WatchSpec> {
    vec![
        WatchSpec::all(ObjectKind::Service),
        WatchSpec::all(ObjectKind::Slice),
        WatchSpec::all(ObjectKind::Namespace).metadata_only(),
        WatchSpec::all(ObjectKind::ServiceCidr),
        WatchSpec::all(ObjectKind::Node).fields(&format!("metadata.name={node}")),
    ]
}

/// Follows the API until `stop` is true. The objects are kept in a file, if there is one, for a start while the API is
/// away.
pub(super) async fn keep(
    table: Arc<RwLock<DnsTable>>,
    client: Client,
    random: Random,
    clock: Clock,
    file: Option<PathBuf>,
    mut stop: watch::Receiver<bool>,
) {
    let specs = watch_specs(&read(&table).asking.name);
    let mut watches = Informer::start(&client, random, specs);
    let mut next_share = IDLE;
    let mut snapshot = file.map(|path| SnapshotFile::new(&path, WATCHED.to_vec()));
    let mut replay_at = snapshot.as_ref().map(|_| clock.now() + snapshot_file::API_TIMEOUT);
    loop {
        let due = snapshot.as_ref().and_then(SnapshotFile::due_at);
        let wake = [Some(clock.now() + next_share), replay_at, due].into_iter().flatten().min();
        let wake = tokio::time::Instant::from_std(wake.unwrap_or_else(|| clock.now()));
        let event = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            event = watches.next() => Some(event),
            () = tokio::time::sleep_until(wake) => None,
        };
        let now = Timestamp::from(clock.timestamp());
        let mut replayed = Vec::new();
        if let Some(snapshot) = snapshot.as_ref().filter(|_| replay_at.is_some_and(|at| at <= clock.now())) {
            replay_at = None;
            replayed = snapshot
                .is_unheard()
                .then(|| snapshot.load())
                .flatten()
                .map(|loaded| loaded.events)
                .unwrap_or_default();
        }
        {
            let mut table = table.write().unwrap_or_else(PoisonError::into_inner);
            replayed.into_iter().for_each(|event| table.observe(event, now));
            let mut next = event;
            let mut observe = |event: InformerEvent| {
                if let Some(snapshot) = &mut snapshot {
                    snapshot.observe(&event);
                }
                table.observe(event, now);
            };
            for _ in 0..EVENT_BATCH {
                let Some(event) = next.take() else { break };
                observe(event);
                next = watches.ready();
            }
            if let Some(event) = next {
                observe(event);
            }
            // Slow start and drains: endpoints get the shares of now.
            let changes = plan::capacity::advance(table.cache.snapshot_mut(), now);
            let until = |next: Timestamp| Duration::from_secs_f64(next.seconds_since(now).max(0.0));
            next_share = changes.next.map_or(IDLE, until).min(IDLE);
        }
        if let Some(snapshot) = &mut snapshot
            && let Some((path, content)) = snapshot.due(clock.now(), clock.timestamp())
        {
            tokio::task::spawn_blocking(move || snapshot_file::write_logged(&path, &content));
        }
        tokio::task::yield_now().await;
    }
}
