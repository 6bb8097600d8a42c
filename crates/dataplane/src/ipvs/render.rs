//! Renders a ForwardingTable as virtual servers, local routes, and the table that the nftables backend gets.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use model::forward::{
    EndpointSet, ForwardingTable, Frontend, FrontendAction, FrontendHost, FrontendKind, NodeRules,
};
use model::hash::{BASIS_64, fnv1a_64};
use model::{Family, ServiceKey};

use super::abi;
use super::backend::IpvsSettings;
use super::message::{RealServer, VirtualServer, VirtualServerKey};
use super::route::LocalRoute;
use super::scheduler::IpvsScheduler;
use crate::nftables::render::slots_per_endpoint;

/// The sum of unequal weights: wrr starts each round with the heaviest server, so a round has to be short.
const WEIGHT_SUM: usize = 32;

/// A virtual server as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WantedServer {
    pub(super) service: ServiceKey,
    pub(super) server: VirtualServer,
    /// In the order in which they are added.
    pub(super) reals: Vec<RealServer>,
}

/// The virtual servers of all Services.
pub(super) fn servers(
    table: &ForwardingTable,
    settings: &IpvsSettings,
) -> BTreeMap<VirtualServerKey, WantedServer> {
    let frontends = table.services().flat_map(|(_, frontends)| frontends);
    frontends.flat_map(|frontend| servers_of(frontend, &table.node, settings)).collect()
}

/// The virtual servers of a frontend: one, or for a node port one for each address of the node; none if the nftables
/// backend carries it.
pub(super) fn servers_of(
    frontend: &Frontend,
    node: &NodeRules,
    settings: &IpvsSettings,
) -> Vec<(VirtualServerKey, WantedServer)> {
    let (FrontendAction::Send(policy), true) = (frontend.outside, node.is_forwarded_by_ipvs(frontend)) else {
        return Vec::new();
    };
    let port = &frontend.port;
    let (scheduler, reals) = reals(port.endpoints(policy), settings);
    let server = VirtualServer {
        scheduler: scheduler.as_str().to_owned(),
        flags: scheduler.flags() | abi::OWNER,
        persistence: port.affinity_seconds,
    };
    let wanted = WantedServer { service: port.service.clone(), server, reals };
    let addresses: Vec<IpAddr> = match frontend.address.host {
        FrontendHost::Address(address) => vec![address],
        FrontendHost::Node(family) => node_port_addresses(node, family).collect(),
    };
    let (protocol, port) = (frontend.address.protocol, frontend.address.port);
    let key = |address| VirtualServerKey { address, protocol, port };
    addresses.into_iter().map(|address| (key(address), wanted.clone())).collect()
}

/// Link-local addresses of IPv6 are left out: a node has one for each interface.
pub(super) fn node_port_addresses(node: &NodeRules, family: Family) -> impl Iterator<Item = IpAddr> {
    let is_link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let addresses = node.addresses.iter().copied().filter(move |ip| Family::of(*ip) == family);
    addresses.filter(move |ip| !is_link_local(ip) && node.takes_node_ports(*ip))
}

/// The configured scheduler where shares are even; where they are not, wrr with weights.
fn reals(set: &EndpointSet, settings: &IpvsSettings) -> (IpvsScheduler, Vec<RealServer>) {
    let (scheduler, weights) = if set.is_even() {
        (settings.scheduler, vec![1; set.endpoints.len()])
    } else {
        let total = WEIGHT_SUM.max(4 * set.endpoints.len());
        (IpvsScheduler::Wrr, slots_per_endpoint(set, total))
    };
    // An endpoint whose share rounds to nothing gets its connections from other nodes.
    let weighted = set.endpoints.iter().zip(weights).filter(|(_, weight)| *weight > 0);
    let mut reals: Vec<RealServer> = weighted
        .map(|(endpoint, weight)| RealServer {
            address: endpoint.address(),
            weight: u32::try_from(weight).unwrap_or(u32::MAX),
        })
        .collect();
    // Schedulers start with the first: in another order on each node, not all nodes start with the same.
    reals.sort_by_cached_key(|real| (place(&settings.node, real.address), real.address));
    (scheduler, reals)
}

fn place(node: &str, address: SocketAddr) -> u64 {
    let hash = fnv1a_64(BASIS_64, node.as_bytes());
    let hash = fnv1a_64(hash, address.to_string().as_bytes());
    // The last bytes of an address change only the low bits of FNV.
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The range that has to be local for a frontend: its ServiceCIDR, or its address alone. None for node ports, and for
/// what the nftables backend carries.
fn local_range(frontend: &Frontend, node: &NodeRules) -> Option<IpNet> {
    let FrontendHost::Address(address) = frontend.address.host else { return None };
    node.is_forwarded_by_ipvs(frontend).then_some(())?;
    let cidr = node.service_cidrs.iter().find(|cidr| cidr.contains(&address));
    let cidr = cidr.filter(|_| frontend.kind == FrontendKind::ClusterIp);
    Some(cidr.copied().unwrap_or_else(|| IpNet::from(address)))
}

/// The same, with the address itself where it is on the dummy interface.
pub(super) fn local_ranges(frontend: &Frontend, node: &NodeRules, settings: &IpvsSettings) -> Vec<IpNet> {
    let range = local_range(frontend, node);
    let mut ranges: Vec<IpNet> = range.into_iter().collect();
    let is_on_interface = frontend.kind == FrontendKind::ClusterIp || range.is_some();
    if let (FrontendHost::Address(address), true) =
        (frontend.address.host, settings.has_dummy_interface && is_on_interface)
    {
        ranges.push(address.into());
        ranges.dedup();
    }
    ranges
}

pub(super) fn route(range: IpNet, node: &NodeRules) -> LocalRoute {
    let family = Family::of(range.addr());
    let is_source = |ip: &IpAddr| Family::of(*ip) == family && node.addresses.contains(ip);
    LocalRoute { range, source: node.primary.iter().copied().find(is_source) }
}

/// Frontends as the nftables backend gets them: what IPVS forwards passes.
pub(super) fn nft_frontends(frontends: &[Frontend], node: &NodeRules) -> Vec<Frontend> {
    let derive = |frontend: &Frontend| match node.is_forwarded_by_ipvs(frontend) {
        true => Frontend { outside: FrontendAction::Pass, ..frontend.clone() },
        false => frontend.clone(),
    };
    frontends.iter().map(derive).collect()
}

/// The table that the nftables backend gets: what IPVS forwards passes its rules.
pub fn nft_table(table: &ForwardingTable) -> ForwardingTable {
    let mut derived = ForwardingTable::new(table.node.clone());
    for (service, frontends) in table.services() {
        derived.replace(service, nft_frontends(frontends, &table.node));
    }
    derived
}
