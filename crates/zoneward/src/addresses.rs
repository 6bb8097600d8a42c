//! The controllers of cluster IPs, for the embedded API only: elsewhere Kubernetes has them. ServiceCIDRs get their
//! finalizer and condition, the default one is kept, and Services and IPAddresses are made to name each other.
//!
//! ```text
//! watches -> Mirror -> plan::cluster_ips (what differs, what to do) -> act, on what the API has now
//! ```

mod act;

use std::collections::BTreeSet;
use std::time::Duration;

use ipnet::IpNet;
use jiff::Timestamp;
use kube::Client;
use model::{IpAddress, Name, Notice, Object, Service, ServiceCidr, ServiceKey};
use plan::cluster_ips::service_cidr::DEFAULT_NAME;
use plan::cluster_ips::{
    AddressInput, AddressPlan, CidrAction, DefaultCidrAction, repair_all, sync_default, sync_service_cidr,
};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::warn;

use crate::cluster::{Change, Event, Feed, Kind, Mirror, Wanted, failure};
use crate::log;
use act::Hands;

const KINDS: [Kind; 3] = [Kind::Service, Kind::ServiceCidr, Kind::IpAddress];
/// Semantics E2: how often the default ServiceCIDR is looked for.
const DEFAULT_PERIOD: Duration = Duration::from_secs(10);
/// Semantics E5: how often everything is compared without a reason.
const RESYNC: Duration = Duration::from_secs(180);
/// Watches of different kinds come in any order: what belongs together has come by then.
const SETTLE: Duration = Duration::from_secs(1);
/// After a write that did not succeed.
const RETRY: Duration = Duration::from_secs(1);
const EVENTS_PER_TURN: usize = 1_024;

/// Keeps addresses right until `stop` turns true. `ranges` are those of `--service-cluster-ip-range`.
pub async fn run(client: Client, ranges: Vec<IpNet>, mut stop: watch::Receiver<bool>) {
    let feed = Feed::start(&client, KINDS.map(Wanted::all));
    let mut keeper = Keeper::new(Hands::new(client), feed, ranges);
    tokio::select! {
        () = keeper.keep() => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

struct Keeper {
    hands: Hands,
    feed: Feed,
    mirror: Mirror,
    ranges: Vec<IpNet>,
    /// Services that are there and cannot be read: what they hold stays theirs.
    unreadable: BTreeSet<ServiceKey>,
    /// When to compare Services with IPAddresses, when to look after ServiceCIDRs, and when after the default one.
    repair_at: Instant,
    cidrs_at: Instant,
    default_at: Instant,
    /// What the last comparison had to say: it is not said again.
    said: BTreeSet<Notice>,
    said_of_default: Option<Notice>,
}

impl Keeper {
    fn new(hands: Hands, feed: Feed, ranges: Vec<IpNet>) -> Self {
        let now = Instant::now();
        Self {
            hands,
            feed,
            mirror: Mirror::default(),
            ranges,
            unreadable: BTreeSet::new(),
            repair_at: now,
            cidrs_at: now,
            default_at: now,
            said: BTreeSet::new(),
            said_of_default: None,
        }
    }

    async fn keep(&mut self) {
        loop {
            let wake = self.repair_at.min(self.cidrs_at).min(self.default_at);
            tokio::select! {
                event = self.feed.next() => self.take(event),
                () = tokio::time::sleep_until(wake), if self.mirror.has_listed(&KINDS) => {}
            }
            if !self.mirror.has_listed(&KINDS) {
                continue;
            }
            // A look at one of them may change what the next one sees; the watch brings that.
            let now = Instant::now();
            if now >= self.default_at {
                self.default_at = now + DEFAULT_PERIOD;
                self.keep_default().await;
            }
            if now >= self.cidrs_at {
                self.cidrs_at = now + RESYNC;
                self.look_after_cidrs().await;
            }
            if now >= self.repair_at {
                self.repair_at = now + RESYNC;
                self.repair().await;
            }
        }
    }

    fn take(&mut self, first: Event) {
        let mut next = Some(first);
        for _ in 0..EVENTS_PER_TURN {
            let Some(event) = next.take().or_else(|| self.feed.ready()) else { return };
            for change in self.mirror.read(event) {
                self.note(&change);
                self.mirror.apply(change);
            }
        }
    }

    /// Decides whom a change concerns, before it is applied.
    fn note(&mut self, change: &Change) {
        let snapshot = self.mirror.snapshot();
        let settled = Instant::now() + SETTLE;
        let (mut addresses, mut cidrs) = (false, false);
        match change {
            Change::Put(Object::Service(new), _) => {
                self.unreadable.remove(&new.key);
                let old = snapshot.service(&new.key);
                addresses = old.is_none_or(|old| {
                    old.cluster_ips != new.cluster_ips || old.kind != new.kind || old.uid != new.uid
                });
            }
            Change::Put(Object::IpAddress(_), _) | Change::Gone(Kind::IpAddress, _) => {
                addresses = true;
                cidrs = snapshot.service_cidrs().any(|cidr| cidr.deleting.is_some());
            }
            Change::Put(Object::ServiceCidr(_), _) | Change::Gone(Kind::ServiceCidr, _) => {
                (addresses, cidrs) = (true, true);
                self.default_at = self.default_at.min(settled);
            }
            Change::Gone(Kind::Service, key) => {
                self.unreadable.remove(&ServiceKey::new(&key.namespace, &key.name));
                addresses = true;
            }
            Change::Unreadable(Kind::Service, key, _) => {
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

    /// Semantics E2, pitfall 42: the default ServiceCIDR is made when it is missing, and gets a second family.
    async fn keep_default(&mut self) {
        let stored = self.mirror.snapshot().service_cidrs().find(|cidr| cidr.name == *DEFAULT_NAME).cloned();
        let done = match sync_default(&self.ranges, stored.as_ref()) {
            DefaultCidrAction::Nothing => Ok(()),
            DefaultCidrAction::Create(ranges) => self.hands.create_default(&ranges).await,
            DefaultCidrAction::Upgrade(ranges) => self.hands.upgrade_default(&ranges).await,
            DefaultCidrAction::Mismatch(notice) => {
                if self.said_of_default.as_ref() != Some(&notice) {
                    log::notice(&notice);
                    self.hands.say(&notice).await;
                    self.said_of_default = Some(notice);
                }
                Ok(())
            }
        };
        if let Err(error) = done {
            warn!(error = failure::text(&error), "failed to sync the default ServiceCIDR; retrying");
            self.default_at = Instant::now() + RETRY;
        }
    }

    /// Semantics E4.
    async fn look_after_cidrs(&mut self) {
        let snapshot = self.mirror.snapshot();
        let all: Vec<&ServiceCidr> = snapshot.service_cidrs().collect();
        let ips: Vec<&IpAddress> = snapshot.ip_addresses().collect();
        let now = Timestamp::now().into();
        let decide = |cidr: &&ServiceCidr| (cidr.name.clone(), sync_service_cidr(cidr, &all, &ips, now));
        let wanted: Vec<(Name, Vec<CidrAction>)> = all.iter().map(decide).collect();
        for (name, action) in wanted
            .into_iter()
            .flat_map(|(name, list)| list.into_iter().map(move |action| (name.clone(), action)))
        {
            let again = match &action {
                CidrAction::Wait(seconds) => Some(Duration::from_secs(*seconds)),
                action => match self.hands.sync_cidr(&name, action).await {
                    Ok(()) => None,
                    Err(error) => {
                        warn!(%name, error = failure::text(&error), "failed to sync a ServiceCIDR; retrying");
                        Some(RETRY)
                    }
                },
            };
            if let Some(again) = again {
                self.cidrs_at = self.cidrs_at.min(Instant::now() + again);
            }
        }
    }

    /// Semantics E5.
    async fn repair(&mut self) {
        let plan = self.plan();
        if let Some(seconds) = plan.resync_after {
            self.repair_at = self.repair_at.min(Instant::now() + Duration::from_secs(seconds));
        }
        let mut settled = true;
        for ip in &plan.deletes {
            let stored = self.mirror.snapshot().ip_addresses().find(|stored| stored.address == *ip);
            let Some(stored) = stored.cloned() else { continue };
            settled &= self.worked(self.hands.delete_ip(&stored).await, &stored.address.to_string());
        }
        for (ip, service) in &plan.creates {
            let Some(lists) = self.mirror.snapshot().service(service).cloned() else { continue };
            settled &= self.worked(self.hands.create_ip(*ip, &lists).await, &ip.to_string());
        }
        if !settled {
            // What was found is not what is there now: nothing is told of it, and it is compared anew.
            self.repair_at = self.repair_at.min(Instant::now() + RETRY);
            return;
        }
        self.tell(plan.notices).await;
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
        let snapshot = self.mirror.snapshot();
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
            now: Some(Timestamp::now().into()),
        })
    }

    async fn tell(&mut self, notices: Vec<Notice>) {
        let now: BTreeSet<Notice> = notices.into_iter().collect();
        for notice in now.difference(&self.said) {
            log::notice(notice);
            self.hands.say(notice).await;
        }
        self.said = now;
    }
}
