//! The addresses of this machine, and notification of changes (pitfall 8).

use std::collections::BTreeSet;
use std::net::IpAddr;

use dataplane::ipvs::DUMMY_INTERFACE;
use ipnet::IpNet;
use model::Family;
use model::forward::{NodePortAddresses, NodeRules};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use tokio::sync::watch;

/// rtnetlink multicast groups of addresses: RTMGRP_IPV4_IFADDR and RTMGRP_IPV6_IFADDR.
const ADDRESS_GROUPS: u32 = 0x10 | 0x100;

/// The addresses of all interfaces but kube-ipvs0, whose addresses are those of Services.
pub fn local() -> Vec<IpAddr> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let address = |interface: nix::ifaddrs::InterfaceAddress| {
        if interface.interface_name == DUMMY_INTERFACE {
            return None;
        }
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    };
    let found: BTreeSet<IpAddr> = interfaces.filter_map(address).collect();
    found.into_iter().collect()
}

/// Counts changes of addresses. Without rtnetlink, it never changes.
pub fn changes() -> watch::Receiver<u64> {
    let (sender, receiver) = watch::channel(0);
    let listen = move || -> std::io::Result<()> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, ADDRESS_GROUPS))?;
        let mut buffer = vec![0; 8 << 10];
        loop {
            match socket.recv(&mut &mut buffer[..], 0) {
                Ok(_) => {}
                // Overrun: some address changed.
                Err(error) if error.raw_os_error() == Some(nix::errno::Errno::ENOBUFS as i32) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            if sender.is_closed() {
                return Ok(());
            }
            sender.send_modify(|count| *count += 1);
        }
    };
    #[allow(clippy::disallowed_methods, reason = "blocks in recv for the life of the process")]
    std::thread::spawn(move || {
        if let Err(error) = listen() {
            tracing::warn!(%error, "cannot watch the addresses of this machine");
        }
    });
    receiver
}

/// The addresses that accept node ports; health check servers listen there.
// Semantics D8: every address as one socket for each family.
pub fn of_node_ports(rules: &NodeRules, local: &[IpAddr]) -> Vec<IpAddr> {
    let mut found = BTreeSet::new();
    for family in [Family::V4, Family::V6] {
        match rules.node_ports(family) {
            NodePortAddresses::All => {
                found.insert(match family {
                    Family::V4 => IpAddr::from(std::net::Ipv4Addr::UNSPECIFIED),
                    Family::V6 => IpAddr::from(std::net::Ipv6Addr::UNSPECIFIED),
                });
            }
            NodePortAddresses::Within(ranges) => {
                let within = |address: &&IpAddr| ranges.iter().any(|range: &IpNet| range.contains(*address));
                found.extend(local.iter().filter(within));
            }
        }
    }
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_checks_are_answered_where_node_ports_are() {
        // healthcheck.json, health.013.
        let ranges: Box<[IpNet]> = ["127.0.0.0/8".parse().unwrap()].into();
        let rules = NodeRules {
            node_ports_v4: NodePortAddresses::Within(ranges),
            node_ports_v6: NodePortAddresses::Within(Box::default()),
            ..NodeRules::default()
        };
        let local: Vec<IpAddr> = ["127.0.0.1", "10.0.0.1", "::1"].map(|a| a.parse().unwrap()).into();
        assert_eq!(of_node_ports(&rules, &local), ["127.0.0.1".parse::<IpAddr>().unwrap()]);
        let all = of_node_ports(&NodeRules::default(), &local);
        assert_eq!(all, ["0.0.0.0", "::"].map(|a| a.parse::<IpAddr>().unwrap()));
    }
}
