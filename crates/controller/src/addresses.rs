//! The ServiceCIDR and IPAddress controllers, for the embedded API only: a cluster has its own. They set the finalizer
//! and condition of ServiceCIDRs, keep the default ServiceCIDR, and repair IPAddresses of Services.
//!
//! ```text
//! watches -> WatchCache -> apimachinery::cluster_ips (AddressPlan, CidrAction) -> AddressWriter, which re-reads before it writes
//! ```

mod address_writer;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use apimachinery::cluster_ips::service_cidr::DEFAULT_NAME;
use apimachinery::cluster_ips::{
    AddressInput, AddressPlan, CidrAction, DefaultCidrAction, repair_all, sync_default, sync_service_cidr,
};
use clock::Clock;
use ipnet::IpNet;
use kube::Client;
use model::random::Random;
use model::{IpAddress, Name, Notice, Object, Service, ServiceCidr, ServiceKey};
use tokio::sync::watch;
use tracing::warn;

use address_writer::AddressWriter;
use cluster::log;
use cluster::{Informer, InformerEvent, ObjectChange, ObjectKind, WatchCache, WatchSpec, failure};

const KINDS: [ObjectKind; 3] = [ObjectKind::Service, ObjectKind::ServiceCidr, ObjectKind::IpAddress];
/// Semantics E2: resync period of the default ServiceCIDR.
const DEFAULT_PERIOD: Duration = Duration::from_secs(10);
/// Semantics E5: resync period of everything else.
const RESYNC: Duration = Duration::from_secs(180);
/// Watches of different kinds are not ordered: related changes arrive within this delay.
const SETTLE: Duration = Duration::from_secs(1);
/// Delay after a failed write.
const RETRY: Duration = Duration::from_secs(1);
const EVENT_BATCH: usize = 1_024;

/// Runs until `stop` is true. `ranges` are those of `--service-cluster-ip-range`.
pub async fn run(
    client: Client,
    ranges: Vec<IpNet>,
    clock: Clock,
    random: Random,
    mut stop: watch::Receiver<bool>,
) {
    let watches = Informer::start(&client, random, KINDS.map(WatchSpec::all));
    let mut controller =
        AddressController::new(AddressWriter::new(client, clock.clone()), watches, ranges, clock);
    tokio::select! {
        biased;
        _ = stop.wait_for(|stop| *stop) => {}
        () = controller.run() => {}
    }
}

struct AddressController {
    writer: AddressWriter,
    clock: Clock,
    watches: Informer,
    cache: WatchCache,
    ranges: Vec<IpNet>,
    /// Services that exist and cannot be parsed: they keep their addresses.
    unreadable: BTreeSet<ServiceKey>,
    /// When the next repair, ServiceCIDR sync and sync of the default ServiceCIDR are due.
    repair_at: Instant,
    cidrs_at: Instant,
    default_at: Instant,
    /// Notices of the last repair, which are not repeated.
    reported: BTreeSet<Notice>,
    reported_default: Option<Notice>,
}

impl AddressController {
    fn new(writer: AddressWriter, watches: Informer, ranges: Vec<IpNet>, clock: Clock) -> Self {
        let now = clock.now();
        Self {
            writer,
            clock,
            watches,
            cache: WatchCache::default(),
            ranges,
            unreadable: BTreeSet::new(),
            repair_at: now,
            cidrs_at: now,
            default_at: now,
            reported: BTreeSet::new(),
            reported_default: None,
        }
    }

    async fn run(&mut self) {
        loop {
            let wake = self.repair_at.min(self.cidrs_at).min(self.default_at);
            tokio::select! {
                biased;
                event = self.watches.next() => self.apply_events(event),
                () = tokio::time::sleep_until(wake.into()), if self.cache.has_listed(&KINDS) => {}
            }
            if !self.cache.has_listed(&KINDS) {
                continue;
            }
            // One sync may change what the next one reads; the watch brings that.
            let now = self.clock.now();
            if now >= self.default_at {
                self.default_at = now + DEFAULT_PERIOD;
                self.sync_default_cidr().await;
            }
            if now >= self.cidrs_at {
                self.cidrs_at = now + RESYNC;
                self.sync_cidrs().await;
            }
            if now >= self.repair_at {
                self.repair_at = now + RESYNC;
                self.repair().await;
            }
        }
    }

    fn apply_events(&mut self, first: InformerEvent) {
        let mut next = Some(first);
        for _ in 0..EVENT_BATCH {
            let Some(event) = next.take().or_else(|| self.watches.ready()) else { return };
            for change in self.cache.read(event) {
                self.schedule(&change);
                self.cache.apply(change);
            }
        }
    }

    /// Schedules the syncs that a change needs, before it is applied.
    fn schedule(&mut self, change: &ObjectChange) {
        let snapshot = self.cache.snapshot();
        let settled = self.clock.now() + SETTLE;
        let (mut addresses, mut cidrs) = (false, false);
        match change {
            ObjectChange::Applied(Object::Service(new), _) => {
                self.unreadable.remove(&new.key);
                let old = snapshot.service(&new.key);
                addresses = old.is_none_or(|old| {
                    old.cluster_ips != new.cluster_ips || old.kind != new.kind || old.uid != new.uid
                });
            }
            ObjectChange::Applied(Object::IpAddress(_), _)
            | ObjectChange::Deleted(ObjectKind::IpAddress, _) => {
                addresses = true;
                cidrs = snapshot.service_cidrs().any(|cidr| cidr.deleting.is_some());
            }
            ObjectChange::Applied(Object::ServiceCidr(_), _)
            | ObjectChange::Deleted(ObjectKind::ServiceCidr, _) => {
                (addresses, cidrs) = (true, true);
                self.default_at = self.default_at.min(settled);
            }
            ObjectChange::Deleted(ObjectKind::Service, key) => {
                self.unreadable.remove(&ServiceKey::new(&key.namespace, &key.name));
                addresses = true;
            }
            ObjectChange::Unreadable(ObjectKind::Service, key, _) => {
                self.unreadable.insert(ServiceKey::new(&key.namespace, &key.name));
            }
            _ => {}
        }
        if addresses {
            self.repair_at = self.repair_at.min(settled);
        }
        if cidrs {
            self.cidrs_at = self.cidrs_at.min(settled);
        }
    }

    /// Semantics E2, pitfall 42: creates the default ServiceCIDR, and adds a second family to it.
    async fn sync_default_cidr(&mut self) {
        let stored = self.cache.snapshot().service_cidrs().find(|cidr| cidr.name == *DEFAULT_NAME).cloned();
        let done = match sync_default(&self.ranges, stored.as_ref()) {
            DefaultCidrAction::Nothing => Ok(()),
            DefaultCidrAction::Create(ranges) => self.writer.create_default(&ranges).await,
            DefaultCidrAction::Upgrade(ranges) => self.writer.upgrade_default(&ranges).await,
            DefaultCidrAction::Mismatch(notice) => {
                if self.reported_default.as_ref() != Some(&notice) {
                    log::notice(&notice);
                    self.writer.record(&notice).await;
                    self.reported_default = Some(notice);
                }
                Ok(())
            }
        };
        if let Err(error) = done {
            warn!(error = failure::text(&error), "failed to sync the default ServiceCIDR; retrying");
            self.default_at = self.clock.now() + RETRY;
        }
    }

    /// Semantics E4.
    async fn sync_cidrs(&mut self) {
        let snapshot = self.cache.snapshot();
        let all: Vec<&ServiceCidr> = snapshot.service_cidrs().collect();
        let ips: Vec<&IpAddress> = snapshot.ip_addresses().collect();
        let now = self.clock.timestamp().into();
        let decide = |cidr: &&ServiceCidr| (cidr.name.clone(), sync_service_cidr(cidr, &all, &ips, now));
        let actions: Vec<(Name, Vec<CidrAction>)> = all.iter().map(decide).collect();
        for (name, action) in actions
            .into_iter()
            .flat_map(|(name, list)| list.into_iter().map(move |action| (name.clone(), action)))
        {
            let again = match &action {
                CidrAction::Wait(seconds) => Some(Duration::from_secs(*seconds)),
                action => match self.writer.sync_cidr(&name, action).await {
                    Ok(()) => None,
                    Err(error) => {
                        warn!(%name, error = failure::text(&error), "failed to sync a ServiceCIDR; retrying");
                        Some(RETRY)
                    }
                },
            };
            if let Some(again) = again {
                self.cidrs_at = self.cidrs_at.min(self.clock.now() + again);
            }
        }
    }

    /// Semantics E5.
    async fn repair(&mut self) {
        let plan = self.plan();
        if let Some(seconds) = plan.resync_after {
            self.repair_at = self.repair_at.min(self.clock.now() + Duration::from_secs(seconds));
        }
        let mut settled = true;
        for ip in &plan.deletes {
            let stored = self.cache.snapshot().ip_addresses().find(|stored| stored.address == *ip);
            let Some(stored) = stored.cloned() else { continue };
            settled &= self.worked(self.writer.delete_ip(&stored).await, &stored.address.to_string());
        }
        for (ip, service) in &plan.creates {
            let Some(lists) = self.cache.snapshot().service(service).cloned() else { continue };
            settled &= self.worked(self.writer.create_ip(*ip, &lists).await, &ip.to_string());
        }
        if !settled {
            // The plan is outdated: it is not reported, and made again.
            self.repair_at = self.repair_at.min(self.clock.now() + RETRY);
            return;
        }
        self.report(plan.notices).await;
    }

    fn worked(&self, done: anyhow::Result<bool>, ip: &str) -> bool {
        match done {
            Ok(done) => done,
            Err(error) => {
                warn!(ip, error = failure::text(&error), "failed to sync an IPAddress; retrying");
                false
            }
        }
    }

    fn plan(&self) -> AddressPlan {
        let snapshot = self.cache.snapshot();
        let services: Vec<&Service> = snapshot.services().map(|(service, _)| service).collect();
        let service_cidrs: Vec<&ServiceCidr> = snapshot.service_cidrs().collect();
        let ip_addresses: Vec<&IpAddress> = snapshot.ip_addresses().collect();
        let unreadable: Vec<ServiceKey> = self.unreadable.iter().cloned().collect();
        repair_all(&AddressInput {
            services: &services,
            unreadable: &unreadable,
            service_cidrs: &service_cidrs,
            ip_addresses: &ip_addresses,
            seed: 0,
            now: Some(self.clock.timestamp().into()),
        })
    }

    async fn report(&mut self, notices: Vec<Notice>) {
        let now: BTreeSet<Notice> = notices.into_iter().collect();
        for notice in now.difference(&self.reported) {
            log::notice(notice);
            self.writer.record(notice).await;
        }
        self.reported = now;
    }
}
