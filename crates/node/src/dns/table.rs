//! The objects that answers are made of, kept up to date by watches.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use clock::Clock;
use cluster::{Informer, InformerEvent, ObjectChange, ObjectKind, WatchCache, WatchSpec};
use ipnet::IpNet;
use kube::Client;
use model::random::Random;
use model::{Object, ServiceKey, Timestamp};
use plan::FeatureGates;
use plan::dns::{DnsDecision, DnsName, DnsQuestion, DnsView, ReverseIndex, answer};
use plan::select::NodeView;
use tokio::sync::watch;

/// Most events applied while readers wait.
const EVENT_BATCH: usize = 100;
/// How often shares of endpoints are looked at where none is known to change.
const IDLE: Duration = Duration::from_secs(60);

/// This machine, as selections see it.
#[derive(Clone, Debug)]
pub(super) struct AskingNode {
    pub(super) name: String,
    pub(super) zone: Option<String>,
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
            node: NodeView { name: &self.asking.name, zone, gates: FeatureGates::default() },
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
        let snapshot = self.cache.snapshot();
        match change {
            ObjectChange::Applied(Object::Service(service), _) => [service.key.clone()].into(),
            ObjectChange::Applied(Object::Slice(slice), _) => {
                slice.service().into_iter().chain(snapshot.service_of_slice(&slice.key)).collect()
            }
            ObjectChange::Deleted(ObjectKind::Service, key)
            | ObjectChange::Unreadable(ObjectKind::Service, key, _) => {
                [ServiceKey::new(&key.namespace, &key.name)].into()
            }
            ObjectChange::Deleted(ObjectKind::Slice, key)
            | ObjectChange::Unreadable(ObjectKind::Slice, key, _) => {
                snapshot.service_of_slice(key).into_iter().collect()
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

fn watch_specs(node: &str) -> Vec<WatchSpec> {
    vec![
        WatchSpec::all(ObjectKind::Service),
        WatchSpec::all(ObjectKind::Slice),
        WatchSpec::all(ObjectKind::Namespace).metadata_only(),
        WatchSpec::all(ObjectKind::ServiceCidr),
        WatchSpec::all(ObjectKind::Node).fields(&format!("metadata.name={node}")),
    ]
}

/// Follows the API until `stop` is true.
pub(super) async fn keep(
    table: Arc<RwLock<DnsTable>>,
    client: Client,
    random: Random,
    clock: Clock,
    mut stop: watch::Receiver<bool>,
) {
    let specs = watch_specs(&read(&table).asking.name);
    let mut watches = Informer::start(&client, random, specs);
    let mut next_share = IDLE;
    loop {
        let event = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            event = watches.next() => Some(event),
            () = tokio::time::sleep(next_share) => None,
        };
        let now = Timestamp::from(clock.timestamp());
        {
            let mut table = table.write().unwrap_or_else(PoisonError::into_inner);
            let mut next = event;
            for _ in 0..EVENT_BATCH {
                let Some(event) = next.take() else { break };
                table.observe(event, now);
                next = watches.ready();
            }
            if let Some(event) = next {
                table.observe(event, now);
            }
            // Slow start and drains: endpoints get the shares of now.
            let changes = plan::capacity::advance(table.cache.snapshot_mut(), now);
            let until = |next: Timestamp| Duration::from_secs_f64(next.seconds_since(now).max(0.0));
            next_share = changes.next.map_or(IDLE, until).min(IDLE);
        }
        tokio::task::yield_now().await;
    }
}
