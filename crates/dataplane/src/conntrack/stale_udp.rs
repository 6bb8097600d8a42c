//! Deletes stale UDP entries.
//!
//! The kernel forwards a UDP flow to the endpoint of its first packet for as long as packets come. So after a change of
//! the rules, entries of a changed Service whose endpoint no longer serves are deleted, and the next packet meets the
//! new rules. TCP and SCTP recover by themselves.
//!
//! ```text
//! UdpService -> IPv4 frontends without endpoint: one delete, matched in the kernel
//!            -> all others: dump, matched in the kernel -> stale? -> delete that entry
//! ```

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::Family;
use model::forward::UdpService;
use nix::errno::Errno;

use super::{ConntrackEntry, ConntrackFilter, ConntrackTable, DumpStatus, UDP};
use crate::nfnetlink::NetlinkError;

/// A dump for one frontend walks the kernel's whole table. For more frontends than this, one dump of all UDP entries of
/// the family is cheaper (pitfall 23).
const MAX_DUMPS: usize = 4;
/// Attempts to get a complete dump (pitfall 25).
const ATTEMPTS: u32 = 5;

/// Result of [`delete_stale_udp`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StaleCleanup {
    /// Entries examined in this process.
    pub seen: usize,
    /// Entries deleted one by one.
    pub deleted: usize,
    /// The IPv6 entries among `deleted`.
    pub deleted_ipv6: usize,
    /// Deletes by filter; the kernel does not report how many entries each removed.
    pub matched: usize,
    /// Some entries may have been missed: the table kept being resized.
    pub partial: bool,
}

/// Deletes the stale entries of these Services. Must run after the rules changed: an entry deleted before is created
/// again by the old rules (pitfall 20).
pub fn delete_stale_udp(
    conntrack: &mut dyn ConntrackTable,
    services: &[UdpService],
    node_addresses: &[IpAddr],
) -> Result<StaleCleanup, NetlinkError> {
    let mut cleaned = StaleCleanup::default();
    let mut filters = BTreeSet::new();
    for service in services {
        delete_unserved(conntrack, service, &mut filters, &mut cleaned)?;
        dump_served(service, &mut filters);
    }
    let mut stale: BTreeSet<ConntrackEntry> = BTreeSet::new();
    for filter in coalesce(filters) {
        let seen = dump(conntrack, &filter, &mut |entry| {
            cleaned.seen += 1;
            if services.iter().any(|service| is_stale(service, node_addresses, &entry)) {
                stale.insert(entry);
            }
        })?;
        cleaned.partial |= seen == DumpStatus::Partial;
    }
    for entry in &stale {
        let deleted = usize::from(conntrack.delete(entry)?);
        cleaned.deleted += deleted;
        cleaned.deleted_ipv6 += if entry.dst.is_ipv6() { deleted } else { 0 };
    }
    Ok(cleaned)
}

/// Whether the entry belongs to this Service and its endpoint no longer serves.
pub fn is_stale(service: &UdpService, node_addresses: &[IpAddr], entry: &ConntrackEntry) -> bool {
    entry.protocol == UDP && service.is_stale(node_addresses, entry.dst, entry.reply_src)
}

fn has_serving(service: &UdpService, family: Family) -> bool {
    service.serving.iter().any(|endpoint| Family::of(endpoint.ip()) == family)
}

/// Frontends without a serving endpoint of their family: all entries go, so the kernel matches them alone. Where it
/// cannot, the entries are dumped like the others.
// pitfall 24: zero serving endpoints must be cleaned too.
fn delete_unserved(
    conntrack: &mut dyn ConntrackTable,
    service: &UdpService,
    filters: &mut BTreeSet<ConntrackFilter>,
    cleaned: &mut StaleCleanup,
) -> Result<(), NetlinkError> {
    for frontend in &service.frontends {
        let family = Family::of(frontend.ip());
        if has_serving(service, family) {
            continue;
        }
        let filter =
            ConntrackFilter { protocol: UDP, family, dst: Some(frontend.ip()), dport: Some(frontend.port()) };
        match conntrack.delete_matching(&filter) {
            Ok(()) => cleaned.matched += 1,
            // An old kernel takes the filter for the tuple of one entry.
            Err(error) if is_unsupported(&error) => {
                filters.insert(filter);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_unsupported(error: &NetlinkError) -> bool {
    matches!(error.errno(), Some(Errno::EOPNOTSUPP | Errno::ENOENT | Errno::EINVAL))
}

fn dump_served(service: &UdpService, filters: &mut BTreeSet<ConntrackFilter>) {
    for frontend in &service.frontends {
        let family = Family::of(frontend.ip());
        if has_serving(service, family) {
            let (dst, dport) = (Some(frontend.ip()), Some(frontend.port()));
            filters.insert(ConntrackFilter { protocol: UDP, family, dst, dport });
        }
    }
    for family in [Family::V4, Family::V6] {
        if let Some(port) = service.node_port.filter(|_| has_serving(service, family)) {
            filters.insert(ConntrackFilter { protocol: UDP, family, dst: None, dport: Some(port) });
        }
    }
}

/// The same filters, or one per family where that is cheaper.
fn coalesce(filters: BTreeSet<ConntrackFilter>) -> Vec<ConntrackFilter> {
    let mut coalesced = Vec::new();
    for family in [Family::V4, Family::V6] {
        let of_family: Vec<ConntrackFilter> =
            filters.iter().filter(|filter| filter.family == family).cloned().collect();
        match of_family.len() {
            0..=MAX_DUMPS => coalesced.extend(of_family),
            _ => coalesced.push(ConntrackFilter { protocol: UDP, family, dst: None, dport: None }),
        }
    }
    coalesced
}

/// Repeats the dump until it is complete or attempts run out: the next pass finds a missed entry. An entry seen twice
/// does no harm.
fn dump(
    conntrack: &mut dyn ConntrackTable,
    filter: &ConntrackFilter,
    take: &mut dyn FnMut(ConntrackEntry),
) -> Result<DumpStatus, NetlinkError> {
    for _ in 1..ATTEMPTS {
        match conntrack.dump(filter, take) {
            Ok(DumpStatus::Complete) => return Ok(DumpStatus::Complete),
            Ok(DumpStatus::Partial) | Err(NetlinkError::Interrupted | NetlinkError::Lost) => {}
            Err(error) => return Err(error),
        }
    }
    match conntrack.dump(filter, take) {
        Err(NetlinkError::Interrupted | NetlinkError::Lost) => Ok(DumpStatus::Partial),
        seen => seen,
    }
}
