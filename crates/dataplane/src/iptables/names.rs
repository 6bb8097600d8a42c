//! Names that other software relies on: kube-proxy's chains, jumps and comments, byte for byte.
//!
//! `kube-proxy --cleanup` deletes jumps by exact match, and a returning kube-proxy deletes every chain of nat that begins
//! with one of [`SERVICE_PREFIXES`] and is not its own. So chains of ours in nat begin with one of them.

use std::fmt;
use std::net::SocketAddr;

use arcstr::ArcStr;
use model::forward::ForwardedPort;
use model::{Protocol, TrafficPolicy};
use ring::digest::{SHA256, digest};

/// A table of iptables that has chains of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IptablesTableName {
    Filter,
    Nat,
    Mangle,
}

impl IptablesTableName {
    /// In the order in which changes are committed: refusals are in place before nat stops sending to endpoints.
    pub const ALL: [Self; 3] = [Self::Filter, Self::Nat, Self::Mangle];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
            Self::Mangle => "mangle",
        }
    }
}

impl fmt::Display for IptablesTableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

pub const SERVICES: &str = "KUBE-SERVICES";
pub const EXTERNAL_SERVICES: &str = "KUBE-EXTERNAL-SERVICES";
pub const NODE_PORTS: &str = "KUBE-NODEPORTS";
pub const POSTROUTING: &str = "KUBE-POSTROUTING";
pub const MARK_MASQ: &str = "KUBE-MARK-MASQ";
pub const FORWARD: &str = "KUBE-FORWARD";
pub const PROXY_FIREWALL: &str = "KUBE-PROXY-FIREWALL";
/// Empty; absent if another program flushed the tables.
pub const CANARY: &str = "KUBE-PROXY-CANARY";
/// The kubelet's: never deleted.
pub const KUBELET_FIREWALL: &str = "KUBE-FIREWALL";
/// Empty, in nat: the rules are Zoneward's. A kube-proxy that returns deletes it with its first sync.
pub const OWNER: &str = "KUBE-SVC-ZONEWARD";

/// Prefixes of the chains of one Service in nat.
pub const SERVICE_PREFIXES: [&str; 5] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-"];

/// The nfacct object of dropped INVALID packets.
pub const INVALID_COUNTER: &str = "ct_state_invalid_dropped_pkts";
/// The nfacct object of connections to node ports on loopback addresses.
pub const LOCALHOST_COUNTER: &str = "localhost_nps_accepted_pkts";

/// A jump from a built-in chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jump {
    pub table: IptablesTableName,
    pub from: &'static str,
    /// As iptables-save prints it.
    pub rule: &'static str,
}

const fn jump(table: IptablesTableName, from: &'static str, rule: &'static str) -> Jump {
    Jump { table, from, rule }
}

/// In the order in which they are prepended to a fresh node: the last one comes first in its chain.
pub const JUMPS: [Jump; 14] = {
    use IptablesTableName::{Filter, Nat};
    [
        jump(
            Filter,
            "INPUT",
            "-m conntrack --ctstate NEW -m comment --comment \"kubernetes externally-visible service portals\" -j KUBE-EXTERNAL-SERVICES",
        ),
        jump(
            Filter,
            "FORWARD",
            "-m conntrack --ctstate NEW -m comment --comment \"kubernetes externally-visible service portals\" -j KUBE-EXTERNAL-SERVICES",
        ),
        jump(
            Filter,
            "INPUT",
            "-m comment --comment \"kubernetes health check service ports\" -j KUBE-NODEPORTS",
        ),
        jump(
            Filter,
            "FORWARD",
            "-m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES",
        ),
        jump(
            Filter,
            "OUTPUT",
            "-m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES",
        ),
        jump(Filter, "FORWARD", "-m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD"),
        jump(
            Filter,
            "INPUT",
            "-m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL",
        ),
        jump(
            Filter,
            "OUTPUT",
            "-m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL",
        ),
        jump(
            Filter,
            "FORWARD",
            "-m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL",
        ),
        jump(Nat, "OUTPUT", "-m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES"),
        jump(Nat, "PREROUTING", "-m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES"),
        jump(Nat, "POSTROUTING", "-m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING"),
        jump(Filter, "INPUT", "-j KUBE-FIREWALL"),
        jump(Filter, "OUTPUT", "-j KUBE-FIREWALL"),
    ]
};

/// Protects what route_localnet opens. The kubelet has the same rule.
pub const ANTI_MARTIAN: &str = "! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming localnet connections\" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP";

/// What a chain of a Service port is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PortChain {
    /// Sends to an endpoint of this policy.
    Policy(TrafficPolicy),
    /// Traffic to external addresses and node ports.
    External,
    /// Checks loadBalancerSourceRanges.
    Firewall,
}

/// The name of a chain of a Service port.
pub fn port_chain(port: &ForwardedPort, chain: PortChain) -> ArcStr {
    let prefix = match chain {
        PortChain::Policy(TrafficPolicy::Cluster) => "KUBE-SVC-",
        PortChain::Policy(TrafficPolicy::Local) => "KUBE-SVL-",
        PortChain::External => "KUBE-EXT-",
        PortChain::Firewall => "KUBE-FW-",
    };
    hashed(prefix, &port_key(port))
}

/// The name of an endpoint's chain in kube-proxy. Here it names the list of its clients, so that session affinity
/// survives a change between the two proxies.
pub fn endpoint_name(port: &ForwardedPort, endpoint: SocketAddr) -> ArcStr {
    hashed("KUBE-SEP-", &format!("{}{endpoint}", port_key(port)))
}

/// The name of a chain that chooses among a part of a port's endpoints.
pub fn choice_chain(port: &ForwardedPort, policy: TrafficPolicy, part: &str) -> ArcStr {
    hashed("KUBE-SEP-", &format!("{} {policy:?} {part}", port_key(port)))
}

fn port_key(port: &ForwardedPort) -> String {
    format!("{port}{}", protocol(port.protocol))
}

/// As in iptables.
pub fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}

/// `prefix` and the first 16 characters of the base32 of a SHA-256.
pub fn hashed(prefix: &str, text: &str) -> ArcStr {
    const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let digest = digest(&SHA256, text.as_bytes());
    let (bytes, _) = digest.as_ref().as_chunks::<5>();
    let mut name = prefix.to_owned();
    for chunk in bytes.iter().take(2) {
        let bits = chunk.iter().fold(0u64, |bits, byte| bits << 8 | u64::from(*byte));
        let letters = (0..8).rev().map(|i| char::from(ALPHABET[(bits >> (5 * i) & 31) as usize]));
        name.extend(letters);
    }
    name.into()
}

/// Whether a chain belongs to one Service, or to the way to it.
pub fn is_service_chain(chain: &str) -> bool {
    SERVICE_PREFIXES.iter().any(|prefix| chain.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_named_as_kube_proxy_does() {
        // Names that every cluster has.
        assert_eq!(hashed("KUBE-SVC-", "default/kubernetes:httpstcp"), "KUBE-SVC-NPX46M4PTMTKRN6Y");
        assert_eq!(hashed("KUBE-SVC-", "kube-system/kube-dns:dnsudp"), "KUBE-SVC-TCOU7JCQXEZGVUNU");
        assert_eq!(hashed("KUBE-SVC-", "kube-system/kube-dns:dns-tcptcp"), "KUBE-SVC-ERIFXISQEP7F7OF4");
    }
}
