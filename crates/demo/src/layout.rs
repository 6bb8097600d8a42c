//! Zones, nodes and address plan of the cluster.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use model::Family;

pub(crate) const ZONES: [&str; 3] = ["zone-a", "zone-b", "zone-c"];
const NODES_PER_ZONE: usize = 2;

pub(crate) const POD_PORT: u16 = 8080;
pub(crate) const POD_HTTP_PORT: u16 = 8081;
pub(crate) const SIDECAR_PORT: u16 = 18_081;
pub(crate) const GATEWAY_PORT: u16 = 8090;
/// Port of the API on the loopback address of every namespace.
pub(crate) const API_PORT: u16 = 6443;
/// Pod CIDRs by family.
pub(crate) const POD_RANGES: [&str; 2] = ["10.1.0.0/16", "fd00:10:1::/48"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DemoNode {
    /// From 1; part of its addresses.
    pub number: u8,
    pub name: String,
    pub zone: &'static str,
}

/// All nodes, zone by zone.
pub(crate) fn nodes() -> Vec<DemoNode> {
    let nodes = ZONES.iter().flat_map(|zone| (1..=NODES_PER_ZONE).map(move |i| (*zone, i)));
    let node = |(number, (zone, i)): (usize, (&'static str, usize))| {
        let letter = zone.trim_start_matches("zone-");
        DemoNode { number: number as u8 + 1, name: format!("node-{letter}{i}"), zone }
    };
    nodes.enumerate().map(node).collect()
}

impl DemoNode {
    pub(crate) fn address(&self, family: Family) -> IpAddr {
        link(self.number, 2, family)
    }

    pub(crate) fn pod_cidr(&self, family: Family) -> String {
        match family {
            Family::V4 => format!("10.1.{}.0/24", self.number),
            Family::V6 => format!("fd00:10:1:{:x}::/64", self.number),
        }
    }
}

/// An address on the link between the fabric (side 1) and a node (side 2).
pub(crate) fn link(node: u8, side: u8, family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(172, 31, node, side).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, 0x31, 0, node.into(), 0, 0, 0, side.into()).into(),
    }
}

/// The address of a pod on a node; number 1 is the gateway.
pub(crate) fn pod(node: u8, number: u8, family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, 1, node, number).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, 0x10, 1, node.into(), 0, 0, 0, number.into()).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_nodes_in_three_zones_have_addresses_of_their_own() {
        let nodes = nodes();
        assert_eq!(nodes.len(), 6);
        assert_eq!(nodes[5].name, "node-c2");
        assert_eq!(nodes[5].zone, "zone-c");
        assert_eq!(nodes[3].address(Family::V4).to_string(), "172.31.4.2");
        assert_eq!(nodes[3].pod_cidr(Family::V6), "fd00:10:1:4::/64");
        assert_eq!(pod(4, 10, Family::V6).to_string(), "fd00:10:1:4::a");
    }
}
