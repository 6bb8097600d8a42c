//! The demo's cluster on paper: zones, nodes, and the addresses that everything has.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use model::Family;

/// The zones, each with two nodes.
pub const ZONES: [&str; 3] = ["zone-a", "zone-b", "zone-c"];
const NODES_PER_ZONE: usize = 2;

/// The port that every pod listens on.
pub const POD_PORT: u16 = 8080;
/// The port on which every pod answers HTTP requests.
pub const POD_HTTP_PORT: u16 = 8081;
/// The port of a sidecar, in the namespace of its client.
pub const SIDECAR_PORT: u16 = 18_081;
/// The port of the API on the loopback of every namespace.
pub const API_PORT: u16 = 6443;
/// What pods have their addresses from, of each family.
pub const POD_RANGES: [&str; 2] = ["10.1.0.0/16", "fd00:10:1::/48"];

/// A node of the demo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Counted from 1; part of its addresses.
    pub number: u8,
    /// As `node-a1`.
    pub name: String,
    /// Where it is.
    pub zone: &'static str,
}

/// All nodes, zone by zone.
pub fn nodes() -> Vec<Node> {
    let places = ZONES.iter().flat_map(|zone| (1..=NODES_PER_ZONE).map(move |i| (*zone, i)));
    let node = |(number, (zone, i)): (usize, (&'static str, usize))| {
        let letter = zone.trim_start_matches("zone-");
        Node { number: number as u8 + 1, name: format!("node-{letter}{i}"), zone }
    };
    places.enumerate().map(node).collect()
}

impl Node {
    /// Its own address.
    pub fn address(&self, family: Family) -> IpAddr {
        link(self.number, 2, family)
    }

    /// The prefix that its pods have their addresses from.
    pub fn pod_range(&self, family: Family) -> String {
        match family {
            Family::V4 => format!("10.1.{}.0/24", self.number),
            Family::V6 => format!("fd00:10:1:{:x}::/64", self.number),
        }
    }
}

/// An address on the way between the fabric (side 1) and a node (side 2).
pub fn link(node: u8, side: u8, family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(172, 31, node, side).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, 0x31, 0, node.into(), 0, 0, 0, side.into()).into(),
    }
}

/// The address of a pod on a node; number 1 is the node's own side of the way to its pods.
pub fn pod(node: u8, number: u8, family: Family) -> IpAddr {
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
        assert_eq!(nodes[3].pod_range(Family::V6), "fd00:10:1:4::/64");
        assert_eq!(pod(4, 10, Family::V6).to_string(), "fd00:10:1:4::a");
    }
}
