//! The names of our table and of everything in it, spelled once.

use model::Family;
use model::forward::{FrontendAddress, FrontendHost};

use crate::nftables::ir::{self, DataType, FieldType, SetSpec, TableId};

/// The name of our tables, one of each family.
pub const TABLE: &str = "zoneward";

/// How long the count of a frontend and an endpoint is kept after their last connection, in milliseconds: longer than
/// anybody takes to read it.
const COUNTED_FOR: u64 = 10 * 60 * 1000;

/// Our table of a family.
pub fn table_id(family: Family) -> TableId {
    let family = match family {
        Family::V4 => ir::Family::Ip,
        Family::V6 => ir::Family::Ip6,
    };
    TableId::new(family, TABLE)
}

/// How a frontend is found: by its address, or by its port on any address of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// (address . protocol . port).
    Address,
    /// (protocol . port).
    NodePort,
}

impl Kind {
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

/// For whom a choice of endpoints is: all clients, or those inside where they have a choice of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// Everybody else.
    Main,
    /// Pods and the node itself, past externalTrafficPolicy Local.
    Inside,
}

impl Side {
    const ALL: [Self; 2] = [Self::Main, Self::Inside];
}

/// The sets and maps of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetName {
    /// frontend -> class.
    Frontends(Kind, Side),
    /// frontend . number -> endpoint.
    Endpoints(Kind, Side),
    /// frontend -> the number under which clients are remembered, the same for all frontends of a port.
    StickyIds(Kind),
    /// frontend . number -> the endpoint's number in `StickyEndpoints`.
    StickySlots(Kind, Side),
    /// frontend . endpoint's number -> endpoint.
    StickyEndpoints(Kind, Side),
    /// client . port's number -> endpoint's number; rules write it.
    Affinity,
    /// class -> chain. Those inside have their own: a chain that leads to a map that leads to it is a loop to
    /// the kernel, whatever the elements.
    Verdicts(Side),
    /// frontend . allowed clients.
    SourceRanges,
    /// Addresses whose other ports are rejected.
    ClusterIps,
    /// Ranges whose other addresses are dropped.
    ServiceCidrs,
    /// Addresses that take node ports.
    NodePortRanges,
    /// client . endpoint, where both are the same pod.
    Hairpin,
    /// frontend . endpoint, with a counter of connections; rules write it.
    Connections,
}

impl SetName {
    /// All of them.
    pub fn all() -> Vec<Self> {
        let mut all = vec![
            Self::Affinity,
            Self::Verdicts(Side::Main),
            Self::Verdicts(Side::Inside),
            Self::SourceRanges,
            Self::ClusterIps,
            Self::ServiceCidrs,
            Self::NodePortRanges,
            Self::Hairpin,
            Self::Connections,
        ];
        for kind in Kind::ALL {
            all.push(Self::StickyIds(kind));
            for side in Side::ALL {
                all.extend([Self::Frontends(kind, side), Self::Endpoints(kind, side)]);
                all.extend([Self::StickySlots(kind, side), Self::StickyEndpoints(kind, side)]);
            }
        }
        all
    }

    /// The set of a name, whatever its size.
    pub fn parse(name: &str) -> Option<Self> {
        let size = name.rsplit_once('-').and_then(|(stem, size)| {
            let digits = size.strip_suffix('k').filter(|digits| !digits.is_empty())?;
            digits.bytes().all(|digit| digit.is_ascii_digit()).then_some(stem)
        });
        let stem = size.unwrap_or(name);
        Self::all().into_iter().find(|set| set.stem() == stem && set.grows() == size.is_some())
    }

    /// Its name but for the size.
    pub fn stem(self) -> &'static str {
        // By address and by node port, and either for those inside.
        let pick =
            |kind, side, [main, inside, node_port, node_port_inside]: [&'static str; 4]| match (kind, side) {
                (Kind::Address, Side::Main) => main,
                (Kind::Address, Side::Inside) => inside,
                (Kind::NodePort, Side::Main) => node_port,
                (Kind::NodePort, Side::Inside) => node_port_inside,
            };
        match self {
            Self::Frontends(kind, side) => {
                pick(kind, side, ["services", "services-inside", "node-ports", "node-ports-inside"])
            }
            Self::Endpoints(kind, side) => {
                let names =
                    ["endpoints", "endpoints-inside", "node-port-endpoints", "node-port-endpoints-inside"];
                pick(kind, side, names)
            }
            Self::StickyIds(Kind::Address) => "sticky-ids",
            Self::StickyIds(Kind::NodePort) => "node-port-sticky-ids",
            Self::StickySlots(kind, side) => pick(
                kind,
                side,
                [
                    "sticky-slots",
                    "sticky-slots-inside",
                    "node-port-sticky-slots",
                    "node-port-sticky-slots-inside",
                ],
            ),
            Self::StickyEndpoints(kind, side) => pick(
                kind,
                side,
                [
                    "sticky-endpoints",
                    "sticky-endpoints-inside",
                    "node-port-sticky-endpoints",
                    "node-port-sticky-endpoints-inside",
                ],
            ),
            Self::Affinity => "affinity",
            Self::Verdicts(Side::Main) => "verdicts",
            Self::Verdicts(Side::Inside) => "verdicts-inside",
            Self::SourceRanges => "source-ranges",
            Self::ClusterIps => "cluster-ips",
            Self::ServiceCidrs => "service-cidrs",
            Self::NodePortRanges => "node-port-ranges",
            Self::Hairpin => "hairpin",
            Self::Connections => "connections",
        }
    }

    /// Whether its size follows what is in it. Ranges and what rules write are not hash tables of a fixed size.
    pub(super) fn grows(self) -> bool {
        let is_fixed = matches!(self, Self::ServiceCidrs | Self::NodePortRanges | Self::SourceRanges);
        !is_fixed && !matches!(self, Self::Affinity | Self::Connections)
    }

    /// What it is, but for its size.
    pub(super) fn spec(self, family: Family) -> SetSpec {
        let address = match family {
            Family::V4 => FieldType::Ipv4Addr,
            Family::V6 => FieldType::Ipv6Addr,
        };
        let (protocol, port, number) = (FieldType::InetProto, FieldType::InetService, FieldType::Mark);
        let endpoint = || DataType::Fields(vec![address, port]);
        let a_number = || DataType::Fields(vec![number]);
        let frontend = |kind, more: &[FieldType]| {
            let mut key = if kind == Kind::Address { vec![address] } else { Vec::new() };
            key.extend([protocol, port]);
            key.extend(more);
            key
        };
        match self {
            Self::Frontends(kind, _) | Self::StickyIds(kind) => {
                SetSpec::map(&frontend(kind, &[]), a_number())
            }
            Self::Endpoints(kind, _) | Self::StickyEndpoints(kind, _) => {
                SetSpec::map(&frontend(kind, &[number]), endpoint())
            }
            Self::StickySlots(kind, _) => SetSpec::map(&frontend(kind, &[number]), a_number()),
            Self::Affinity => {
                SetSpec { dynamic: true, expires: true, ..SetSpec::map(&[address, number], a_number()) }
            }
            Self::Verdicts(_) => SetSpec::map(&[number], DataType::Verdict),
            Self::SourceRanges => {
                SetSpec { interval: true, ..SetSpec::new(&frontend(Kind::Address, &[address])) }
            }
            Self::ClusterIps => SetSpec::new(&[address]),
            Self::ServiceCidrs | Self::NodePortRanges => {
                SetSpec { interval: true, ..SetSpec::new(&[address]) }
            }
            Self::Hairpin => SetSpec::new(&[address, address, protocol, port]),
            Self::Connections => SetSpec {
                dynamic: true,
                timeout: Some(COUNTED_FOR),
                ..SetSpec::new(&[address, protocol, port, address, port])
            },
        }
    }

    /// What nft prints beside it.
    pub(super) fn comment(self) -> &'static str {
        match self {
            Self::Frontends(Kind::Address, Side::Main) => "address of a Service -> class",
            Self::Frontends(Kind::NodePort, Side::Main) => "node port of a Service -> class",
            Self::Frontends(_, Side::Inside) => "externalTrafficPolicy Local: the class for clients inside",
            Self::Endpoints(..) => "frontend . number -> endpoint",
            Self::StickyIds(_) => "session affinity: frontend -> number of the Service port",
            Self::StickySlots(..) => "session affinity: frontend . number -> number of the endpoint",
            Self::StickyEndpoints(..) => "session affinity: frontend . number of the endpoint -> endpoint",
            Self::Affinity => {
                "session affinity: client . number of the Service port -> number of the endpoint"
            }
            Self::Verdicts(_) => "class -> what to do",
            Self::SourceRanges => "loadBalancerSourceRanges: who may come",
            Self::ClusterIps => "cluster IPs: ports without a Service are rejected",
            Self::ServiceCidrs => "ServiceCIDRs: addresses without a Service are dropped",
            Self::NodePortRanges => "nodePortAddresses",
            Self::Connections => "connections counted: frontend . endpoint",
            Self::Hairpin => "endpoints of this node: client and endpoint are the same pod",
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
