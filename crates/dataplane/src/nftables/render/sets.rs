//! Names and types of our tables, sets and maps.

use model::Family;
use model::forward::{ForwardingMode, FrontendAddress, FrontendHost, NodeRules};

use crate::nftables::ir::{self, DataType, FieldType, SetSpec, TableId};

/// The name of our tables, one per family.
pub const TABLE: &str = "zoneward";

/// Timeout of a connection counter in milliseconds: longer than the interval at which counters are read.
const COUNTER_TIMEOUT: u64 = 10 * 60 * 1000;

/// Our table of a family.
pub fn table_id(family: Family) -> TableId {
    let family = match family {
        Family::V4 => ir::NftFamily::Ip,
        Family::V6 => ir::NftFamily::Ip6,
    };
    TableId::new(family, TABLE)
}

/// The key of a frontend: an address and port, or a port on any address of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrontendLookup {
    /// (address . protocol . port).
    Address,
    /// (protocol . port).
    NodePort,
}

impl FrontendLookup {
    pub(super) const ALL: [Self; 2] = [Self::Address, Self::NodePort];

    pub(super) fn of(place: &FrontendAddress) -> Self {
        match place.host {
            FrontendHost::Address(_) => Self::Address,
            FrontendHost::Node(_) => Self::NodePort,
        }
    }

    pub(super) fn short_circuit(self) -> &'static str {
        match self {
            Self::Address => "short-circuit",
            Self::NodePort => "node-port-short-circuit",
        }
    }
}

/// Clients that a selection of endpoints is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClientScope {
    /// All clients without a selection of their own.
    All,
    /// Pods and the node itself, which bypass externalTrafficPolicy Local.
    Inside,
}

impl ClientScope {
    const ALL: [Self; 2] = [Self::All, Self::Inside];
}

/// The sets and maps of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetName {
    /// frontend -> class.
    Frontends(FrontendLookup, ClientScope),
    /// frontend . slot -> endpoint.
    Endpoints(FrontendLookup, ClientScope),
    /// frontend -> the number of the Service port in `Affinity`.
    StickyIds(FrontendLookup),
    /// frontend . slot -> the endpoint's number in `StickyEndpoints`.
    StickySlots(FrontendLookup, ClientScope),
    /// frontend . endpoint's number -> endpoint.
    StickyEndpoints(FrontendLookup, ClientScope),
    /// client . port's number -> endpoint's number; written by rules.
    Affinity,
    /// class -> chain. `Inside` has a map of its own: to the kernel, a chain that uses a map that jumps to it is a loop.
    Verdicts(ClientScope),
    /// frontend . allowed client range.
    SourceRanges,
    /// Addresses whose other ports are rejected.
    ClusterIps,
    /// Mode ipvs: load balancer IPs that are local, whose other ports are rejected.
    LocalLoadBalancers,
    /// Ranges whose unassigned addresses are dropped.
    ServiceCidrs,
    /// nodePortAddresses.
    NodePortRanges,
    /// client . endpoint, where both are the same pod.
    Hairpin,
    /// frontend . endpoint, with a connection counter; written by rules.
    Connections,
}

impl SetName {
    pub fn all() -> Vec<Self> {
        let mut all = vec![
            Self::Affinity,
            Self::Verdicts(ClientScope::All),
            Self::Verdicts(ClientScope::Inside),
            Self::SourceRanges,
            Self::ClusterIps,
            Self::LocalLoadBalancers,
            Self::ServiceCidrs,
            Self::NodePortRanges,
            Self::Hairpin,
            Self::Connections,
        ];
        for lookup in FrontendLookup::ALL {
            all.push(Self::StickyIds(lookup));
            for scope in ClientScope::ALL {
                all.extend([Self::Frontends(lookup, scope), Self::Endpoints(lookup, scope)]);
                all.extend([Self::StickySlots(lookup, scope), Self::StickyEndpoints(lookup, scope)]);
            }
        }
        all
    }

    /// Parses a name, with or without size.
    pub fn parse(name: &str) -> Option<Self> {
        let size = name.rsplit_once('-').and_then(|(stem, size)| {
            let digits = size.strip_suffix('k').filter(|digits| !digits.is_empty())?;
            digits.bytes().all(|digit| digit.is_ascii_digit()).then_some(stem)
        });
        let stem = size.unwrap_or(name);
        Self::all().into_iter().find(|set| set.stem() == stem && set.grows() == size.is_some())
    }

    /// The name without size.
    pub fn stem(self) -> &'static str {
        let pick = |lookup, scope, [main, inside, node_port, node_port_inside]: [&'static str; 4]| match (
            lookup, scope,
        ) {
            (FrontendLookup::Address, ClientScope::All) => main,
            (FrontendLookup::Address, ClientScope::Inside) => inside,
            (FrontendLookup::NodePort, ClientScope::All) => node_port,
            (FrontendLookup::NodePort, ClientScope::Inside) => node_port_inside,
        };
        match self {
            Self::Frontends(lookup, scope) => {
                pick(lookup, scope, ["services", "services-inside", "node-ports", "node-ports-inside"])
            }
            Self::Endpoints(lookup, scope) => {
                let names =
                    ["endpoints", "endpoints-inside", "node-port-endpoints", "node-port-endpoints-inside"];
                pick(lookup, scope, names)
            }
            Self::StickyIds(FrontendLookup::Address) => "sticky-ids",
            Self::StickyIds(FrontendLookup::NodePort) => "node-port-sticky-ids",
            Self::StickySlots(lookup, scope) => pick(
                lookup,
                scope,
                [
                    "sticky-slots",
                    "sticky-slots-inside",
                    "node-port-sticky-slots",
                    "node-port-sticky-slots-inside",
                ],
            ),
            Self::StickyEndpoints(lookup, scope) => pick(
                lookup,
                scope,
                [
                    "sticky-endpoints",
                    "sticky-endpoints-inside",
                    "node-port-sticky-endpoints",
                    "node-port-sticky-endpoints-inside",
                ],
            ),
            Self::Affinity => "affinity",
            Self::Verdicts(ClientScope::All) => "verdicts",
            Self::Verdicts(ClientScope::Inside) => "verdicts-inside",
            Self::SourceRanges => "source-ranges",
            Self::ClusterIps => "cluster-ips",
            Self::LocalLoadBalancers => "local-load-balancers",
            Self::ServiceCidrs => "service-cidrs",
            Self::NodePortRanges => "node-port-ranges",
            Self::Hairpin => "hairpin",
            Self::Connections => "connections",
        }
    }

    /// Whether a table of the node has it.
    pub(super) fn is_of(self, node: &NodeRules) -> bool {
        self != Self::LocalLoadBalancers || node.mode == ForwardingMode::Ipvs
    }

    /// Whether the declared size follows the number of elements.
    pub(super) fn grows(self) -> bool {
        let is_fixed = matches!(self, Self::ServiceCidrs | Self::NodePortRanges | Self::SourceRanges);
        !is_fixed && !matches!(self, Self::Affinity | Self::Connections)
    }

    /// Its type, without size.
    pub(super) fn spec(self, family: Family) -> SetSpec {
        let address = match family {
            Family::V4 => FieldType::Ipv4Addr,
            Family::V6 => FieldType::Ipv6Addr,
        };
        let (protocol, port, number) = (FieldType::InetProto, FieldType::InetService, FieldType::Mark);
        let endpoint = || DataType::Fields(vec![address, port]);
        let a_number = || DataType::Fields(vec![number]);
        let frontend = |lookup, more: &[FieldType]| {
            let mut key = if lookup == FrontendLookup::Address { vec![address] } else { Vec::new() };
            key.extend([protocol, port]);
            key.extend(more);
            key
        };
        match self {
            Self::Frontends(lookup, _) | Self::StickyIds(lookup) => {
                SetSpec::map(&frontend(lookup, &[]), a_number())
            }
            Self::Endpoints(lookup, _) | Self::StickyEndpoints(lookup, _) => {
                SetSpec::map(&frontend(lookup, &[number]), endpoint())
            }
            Self::StickySlots(lookup, _) => SetSpec::map(&frontend(lookup, &[number]), a_number()),
            Self::Affinity => {
                SetSpec { dynamic: true, expires: true, ..SetSpec::map(&[address, number], a_number()) }
            }
            Self::Verdicts(_) => SetSpec::map(&[number], DataType::Verdict),
            Self::SourceRanges => {
                SetSpec { interval: true, ..SetSpec::new(&frontend(FrontendLookup::Address, &[address])) }
            }
            Self::ClusterIps | Self::LocalLoadBalancers => SetSpec::new(&[address]),
            Self::ServiceCidrs | Self::NodePortRanges => {
                SetSpec { interval: true, ..SetSpec::new(&[address]) }
            }
            Self::Hairpin => SetSpec::new(&[address, address, protocol, port]),
            Self::Connections => SetSpec {
                dynamic: true,
                timeout: Some(COUNTER_TIMEOUT),
                ..SetSpec::new(&[address, protocol, port, address, port])
            },
        }
    }

    pub(super) fn comment(self) -> &'static str {
        match self {
            Self::Frontends(FrontendLookup::Address, ClientScope::All) => "frontend address -> class",
            Self::Frontends(FrontendLookup::NodePort, ClientScope::All) => "node port -> class",
            Self::Frontends(_, ClientScope::Inside) => {
                "externalTrafficPolicy Local: class for in-cluster clients"
            }
            Self::Endpoints(..) => "frontend . slot -> endpoint",
            Self::StickyIds(_) => "session affinity: frontend -> service port ID",
            Self::StickySlots(..) => "session affinity: frontend . slot -> endpoint ID",
            Self::StickyEndpoints(..) => "session affinity: frontend . endpoint ID -> endpoint",
            Self::Affinity => "session affinity: client . service port ID -> endpoint ID",
            Self::Verdicts(_) => "class -> verdict",
            Self::SourceRanges => "loadBalancerSourceRanges: allowed sources",
            Self::ClusterIps => "cluster IPs: unknown ports are rejected",
            Self::LocalLoadBalancers => "load balancer IPs of IPVS: unknown ports are rejected",
            Self::ServiceCidrs => "ServiceCIDRs: unassigned addresses are dropped",
            Self::NodePortRanges => "nodePortAddresses",
            Self::Connections => "connection counters: frontend . endpoint",
            Self::Hairpin => "hairpin: client and endpoint are the same pod",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_is_found_again_by_its_name() {
        for set in SetName::all() {
            let name = if set.grows() { format!("{}-16k", set.stem()) } else { set.stem().to_owned() };
            assert_eq!(SetName::parse(&name), Some(set), "{name}");
        }
        for other in ["endpoints", "endpoints-k", "endpoints-1mk", "affinity-1k", "stranger"] {
            assert_eq!(SetName::parse(other), None, "{other}");
        }
    }
}
