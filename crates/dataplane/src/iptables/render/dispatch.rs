//! The rules that lead to the chains of a Service, and the trees that they are put into.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use arcstr::ArcStr;
use model::Protocol;

use super::RenderedChain;
use crate::iptables::names::{hashed, protocol};
use crate::iptables::rule::{RuleText, range_of};
use crate::iptables::tree::{Branches, Subtree};

/// Longest name of a chain.
const LONGEST_NAME: usize = 28;

/// One Service's rules in chains that all Services share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DispatchRules {
    /// nat KUBE-SERVICES.
    pub portals: Vec<(IpAddr, ArcStr)>,
    /// nat KUBE-NODEPORTS.
    pub node_ports: Vec<(Protocol, u16, ArcStr)>,
    /// filter KUBE-SERVICES.
    pub refused: Vec<(IpAddr, ArcStr)>,
    /// filter KUBE-EXTERNAL-SERVICES.
    pub refused_external: Vec<(IpAddr, ArcStr)>,
    pub refused_node_ports: Vec<(Protocol, u16, ArcStr)>,
    /// filter KUBE-PROXY-FIREWALL.
    pub firewall: Vec<(IpAddr, ArcStr)>,
    /// filter KUBE-NODEPORTS.
    pub health_checks: Vec<(u16, ArcStr)>,
    /// Endpoints on this node, which may be their own clients.
    pub local_endpoints: BTreeSet<IpAddr>,
}

/// A key of a tree: an address, an address and a port, or a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KeyBytes {
    bytes: [u8; 18],
    len: usize,
}

impl KeyBytes {
    fn new(parts: &[&[u8]]) -> Self {
        let mut key = Self { bytes: [0; 18], len: 0 };
        for byte in parts.iter().copied().flatten() {
            key.bytes[key.len] = *byte;
            key.len += 1;
        }
        key
    }

    fn of_address(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self::new(&[&v4.octets()]),
            IpAddr::V6(v6) => Self::new(&[&v6.octets()]),
        }
    }

    pub(super) fn of_endpoint(endpoint: SocketAddr) -> Self {
        let address = Self::of_address(endpoint.ip());
        Self::new(&[address.as_ref(), &endpoint.port().to_be_bytes()])
    }

    fn of_port(port: u16) -> Self {
        Self::new(&[&port.to_be_bytes()])
    }
}

impl AsRef<[u8]> for KeyBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Rules by their keys.
type Entry<V> = (KeyBytes, V);

/// Adds the chains of a tree over addresses, and returns the rules of its root.
pub(super) fn address_tree<'r>(
    prefix: &str,
    rules: impl Iterator<Item = &'r (IpAddr, ArcStr)>,
    chains: &mut Vec<RenderedChain>,
) -> Vec<ArcStr> {
    let mut entries: Vec<Entry<(IpAddr, ArcStr)>> =
        rules.map(|(address, rule)| (KeyBytes::of_address(*address), (*address, rule.clone()))).collect();
    entries.sort_by_key(|(key, _)| *key);
    let tree = TreeRenderer {
        prefix: format!("{prefix}IP-"),
        branch: &|part, chain| {
            let (address, _) = &part.entries()[0].1;
            RuleText::new().to(range_of(*address, part.steps())).jump(chain).text()
        },
        rule: &|(_, rule): &(IpAddr, ArcStr)| rule.clone(),
    };
    tree.render(&Subtree::new(&entries), chains)
}

/// The same over the ports of one protocol.
pub(super) fn port_tree<'r>(
    prefix: &str,
    of: Protocol,
    rules: impl Iterator<Item = (u16, &'r ArcStr)>,
    chains: &mut Vec<RenderedChain>,
) -> Vec<ArcStr> {
    let mut entries: Vec<Entry<(u16, ArcStr)>> =
        rules.map(|(port, rule)| (KeyBytes::of_port(port), (port, rule.clone()))).collect();
    entries.sort_by_key(|(key, _)| *key);
    let tree = TreeRenderer {
        prefix: format!("{prefix}{}-", protocol(of).to_uppercase()),
        branch: &|part, chain| {
            let (port, _): &(u16, ArcStr) = &part.entries()[0].1;
            let mask = u16::MAX.checked_shr(4 * part.steps() as u32).unwrap_or_default();
            let (first, last): (u16, u16) = (port & !mask, port | mask);
            let range = if first == last { first.to_string() } else { format!("{first}:{last}") };
            RuleText::new().port(of, range).jump(chain).text()
        },
        rule: &|(_, rule): &(u16, ArcStr)| rule.clone(),
    };
    tree.render(&Subtree::new(&entries), chains)
}

type Branch<'f, V> = &'f dyn Fn(&Subtree<'_, KeyBytes, V>, &ArcStr) -> ArcStr;

struct TreeRenderer<'f, V> {
    prefix: String,
    /// The rule that leads to a part.
    branch: Branch<'f, V>,
    rule: &'f dyn Fn(&V) -> ArcStr,
}

impl<V> TreeRenderer<'_, V> {
    fn render(&self, part: &Subtree<'_, KeyBytes, V>, chains: &mut Vec<RenderedChain>) -> Vec<ArcStr> {
        match part.branches() {
            Branches::List(entries) => entries.iter().map(|(_, value)| (self.rule)(value)).collect(),
            Branches::Parts(parts) => {
                let add = |part: &Subtree<'_, KeyBytes, V>| {
                    let name = self.name(&part.path());
                    let rules = self.render(part, chains);
                    chains.push(RenderedChain::new(name.clone(), rules));
                    (self.branch)(part, &name)
                };
                parts.iter().map(add).collect()
            }
        }
    }

    fn name(&self, path: &str) -> ArcStr {
        let readable = format!("{}{path}", self.prefix);
        if readable.len() <= LONGEST_NAME {
            return readable.into();
        }
        // `KUBE-SVC-`, of `KUBE-SVC-IP-`.
        let kind = self.prefix.match_indices('-').nth(1).map_or(self.prefix.len(), |(at, _)| at + 1);
        hashed(&self.prefix[..kind], &readable)
    }
}
