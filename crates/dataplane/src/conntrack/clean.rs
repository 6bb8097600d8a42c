//! One pass: asks for the flows of the Services that changed, and deletes the stale ones.

use std::collections::BTreeSet;
use std::net::IpAddr;

use nix::errno::Errno;

use super::stale::{UdpService, is_stale};
use super::{Conntrack, Family, Filter, Flow, Seen, UDP};
use crate::nftables::netlink::NetlinkError;

/// A question for one frontend walks the kernel's whole table. For more frontends than this, one walk over all UDP flows
/// of the family is cheaper (pitfall 23).
const FEW: usize = 4;
/// How often a dump is repeated that the kernel could not finish in peace (pitfall 25).
const ATTEMPTS: u32 = 5;

/// What a pass did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cleaned {
    /// Flows that were looked at here.
    pub seen: usize,
    /// Flows that were deleted one by one.
    pub deleted: usize,
    /// Those of them that are of IPv6.
    pub deleted_ipv6: usize,
    /// Deletes that matched within the kernel; how many flows each removed is not told.
    pub matched: usize,
    /// Some flows may not have been seen: the table kept changing its size.
    pub partial: bool,
}

/// Deletes the stale flows of these Services. To be called after the rules changed, never before: a flow that is deleted
/// too early comes back the old way (pitfall 20).
pub fn clean(
    conntrack: &mut dyn Conntrack,
    services: &[UdpService],
    node_addresses: &[IpAddr],
) -> Result<Cleaned, NetlinkError> {
    let mut cleaned = Cleaned::default();
    let mut filters = BTreeSet::new();
    for service in services {
        delete_unserved(conntrack, service, &mut filters, &mut cleaned)?;
        ask_for_served(service, &mut filters);
    }
    let mut stale: BTreeSet<Flow> = BTreeSet::new();
    for filter in few(filters) {
        let seen = dump(conntrack, &filter, &mut |flow| {
            cleaned.seen += 1;
            if services.iter().any(|service| is_stale(service, node_addresses, &flow)) {
                stale.insert(flow);
            }
        })?;
        cleaned.partial |= seen == Seen::Some;
    }
    for flow in &stale {
        let deleted = usize::from(conntrack.delete(flow)?);
        cleaned.deleted += deleted;
        cleaned.deleted_ipv6 += if flow.dst.is_ipv6() { deleted } else { 0 };
    }
    Ok(cleaned)
}

fn has_serving(service: &UdpService, family: Family) -> bool {
    service.serving.iter().any(|endpoint| Family::of(endpoint.ip()) == family)
}

/// Frontends without any serving endpoint of their family: everything goes, so the kernel can match it alone. Where it
/// cannot, it is asked for the flows like for the others.
// pitfall 24: zero serving endpoints must be cleaned too.
fn delete_unserved(
    conntrack: &mut dyn Conntrack,
    service: &UdpService,
    filters: &mut BTreeSet<Filter>,
    cleaned: &mut Cleaned,
) -> Result<(), NetlinkError> {
    for frontend in &service.frontends {
        let family = Family::of(frontend.ip());
        if has_serving(service, family) {
            continue;
        }
        let filter = Filter { protocol: UDP, family, dst: Some(frontend.ip()), dport: Some(frontend.port()) };
        match conntrack.delete_matching(&filter) {
            Ok(()) => cleaned.matched += 1,
            // An older kernel took the filter for the whole description of one flow, and found none.
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

fn ask_for_served(service: &UdpService, filters: &mut BTreeSet<Filter>) {
    for frontend in &service.frontends {
        let family = Family::of(frontend.ip());
        if has_serving(service, family) {
            let (dst, dport) = (Some(frontend.ip()), Some(frontend.port()));
            filters.insert(Filter { protocol: UDP, family, dst, dport });
        }
    }
    for family in [Family::Ip, Family::Ip6] {
        if let Some(port) = service.node_port.filter(|_| has_serving(service, family)) {
            filters.insert(Filter { protocol: UDP, family, dst: None, dport: Some(port) });
        }
    }
}

/// The same questions, or one per family where that is cheaper.
fn few(filters: BTreeSet<Filter>) -> Vec<Filter> {
    let mut questions = Vec::new();
    for family in [Family::Ip, Family::Ip6] {
        let of_family: Vec<Filter> =
            filters.iter().filter(|filter| filter.family == family).cloned().collect();
        match of_family.len() {
            0..=FEW => questions.extend(of_family),
            _ => questions.push(Filter { protocol: UDP, family, dst: None, dport: None }),
        }
    }
    questions
}

/// Dumps until the kernel could finish in peace, or what there is after so many attempts: a flow that was missed is found
/// by the next pass. A flow that is seen twice does no harm.
fn dump(
    conntrack: &mut dyn Conntrack,
    filter: &Filter,
    take: &mut dyn FnMut(Flow),
) -> Result<Seen, NetlinkError> {
    for _ in 1..ATTEMPTS {
        match conntrack.dump(filter, take) {
            Ok(Seen::All) => return Ok(Seen::All),
            Ok(Seen::Some) | Err(NetlinkError::Interrupted | NetlinkError::Lost) => {}
            Err(error) => return Err(error),
        }
    }
    match conntrack.dump(filter, take) {
        Err(NetlinkError::Interrupted | NetlinkError::Lost) => Ok(Seen::Some),
        seen => seen,
    }
}
