//! Stale UDP flows that are still to be deleted. They wait until the rules are programmed (pitfall 20: after the rules,
//! never before) and until the deletion succeeds.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use dataplane::conntrack::{ConntrackTable, StaleCleanup, delete_stale_udp};
use dataplane::nfnetlink::NetlinkError;
use model::forward::{FrontendAddress, UdpService};
use model::{ForwardingTable, Frontend, Protocol, ServiceKey, Snapshot};
use plan::forward::{Forwarder, ServiceDelta, stale_udp};

use super::departed::DepartedSlices;
use crate::sync_schedule::backoff;

/// Most removed frontends that are remembered while deletion fails.
const MAX_REMOVED: usize = 10_000;

/// What a deletion has to look at.
#[derive(Default)]
pub(super) struct PendingFlows {
    /// Services whose rules were programmed since the last deletion.
    services: BTreeSet<ServiceKey>,
    /// UDP frontends that were removed.
    removed: BTreeSet<SocketAddr>,
    failures: u32,
    retry_at: Option<Instant>,
}

impl PendingFlows {
    /// Remembers the frontends that changes removed, whether or not they are programmed yet.
    pub(super) fn add_removed(&mut self, deltas: &[ServiceDelta]) {
        let removed = deltas.iter().filter_map(stale_udp::lost).flat_map(|service| service.frontends);
        let room = MAX_REMOVED.saturating_sub(self.removed.len());
        self.removed.extend(removed.take(room));
    }

    /// Remembers all frontends: a rebuild or a failed sync may remove any of them. [`Self::drop_served`] forgets those that
    /// stay.
    pub(super) fn add_all(&mut self, table: &ForwardingTable) {
        for (service, frontends) in table.services() {
            self.add_frontends(service, frontends);
        }
    }

    /// Remembers the frontends of changes whose sync failed: the kernel may hold them, although the table does not.
    pub(super) fn add_uncertain(&mut self, deltas: &[ServiceDelta]) {
        deltas.iter().for_each(|delta| self.add_frontends(&delta.service, &delta.new));
    }

    fn add_frontends(&mut self, service: &ServiceKey, frontends: &[Frontend]) {
        let all = ServiceDelta { service: service.clone(), old: frontends.to_vec(), new: Vec::new() };
        self.removed.extend(stale_udp::lost(&all).into_iter().flat_map(|lost| lost.frontends));
    }

    /// Frontends that are in the table again belong to the Services that own them now.
    pub(super) fn drop_served(&mut self, table: &ForwardingTable) {
        let holder = |address: &SocketAddr| {
            table.frontend(&FrontendAddress::new(address.ip(), Protocol::Udp, address.port()))
        };
        self.services.extend(self.removed.iter().filter_map(holder).map(|held| held.port.service.clone()));
        self.removed.retain(|address| holder(address).is_none());
    }

    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// The rules of these Services are programmed.
    pub(super) fn add_programmed(&mut self, services: &BTreeSet<ServiceKey>) {
        self.services.extend(services.iter().cloned());
    }

    /// Deletes the flows; what fails stays pending.
    pub(super) fn delete(
        &mut self,
        conntrack: &mut dyn ConntrackTable,
        snapshot: &Snapshot,
        forwarder: &Forwarder,
        departed: &DepartedSlices,
        node_addresses: &[IpAddr],
    ) -> Result<Option<StaleCleanup>, NetlinkError> {
        self.drop_served(forwarder.table());
        let mut services: Vec<UdpService> =
            self.services.iter().flat_map(|key| forwarder.udp(snapshot, key, &departed.of(key))).collect();
        if !self.removed.is_empty() {
            services.push(UdpService { frontends: self.removed.clone(), ..UdpService::default() });
        }
        if services.is_empty() {
            *self = Self::default();
            return Ok(None);
        }
        let cleaned = delete_stale_udp(conntrack, &services, node_addresses)?;
        if !cleaned.partial {
            *self = Self::default();
        }
        Ok(Some(cleaned))
    }

    /// Schedules the next attempt.
    pub(super) fn put_off(&mut self, now: Instant, max_backoff: Duration) {
        self.failures = self.failures.saturating_add(1);
        self.retry_at = Some(now + backoff(self.failures, max_backoff));
    }
}
