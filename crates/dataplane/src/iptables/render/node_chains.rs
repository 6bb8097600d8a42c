//! The chains that a node has once: where packets come in, find their Service, and are masqueraded.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

use arcstr::ArcStr;
use ipnet::IpNet;
use model::forward::NodePortAddresses;
use model::{Family, Protocol};

use super::dispatch::{DispatchRules, address_tree, port_tree};
use super::{ChainGroups, RenderContext, RenderedChain};
use crate::iptables::names::{
    CANARY, EXTERNAL_SERVICES, FORWARD, INVALID_COUNTER, IptablesTableName, MARK_MASQ, NODE_PORTS, OWNER,
    POSTROUTING, PROXY_FIREWALL, SERVICES,
};
use crate::iptables::rule::{RuleText, loopback_v4};

const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

/// Finds packets whose source is their destination: a pod that is its own client. Classic BPF over the packet, in the
/// words of the match `bpf`: the sum of `load source word, remember, load destination word, compare`.
const SAME_ADDRESS_V4: &str = "6,32 0 0 12,7 0 0 0,32 0 0 16,29 0 1 0,6 0 0 65535,6 0 0 0";
const SAME_ADDRESS_V6: &str = "18,32 0 0 8,7 0 0 0,32 0 0 24,29 0 13 0,32 0 0 12,7 0 0 0,32 0 0 28,29 0 9 0,32 0 0 16,7 0 0 0,32 0 0 32,29 0 5 0,32 0 0 20,7 0 0 0,32 0 0 36,29 0 1 0,6 0 0 65535,6 0 0 0";

/// The chains of a node with these Services. In nat, the first group is what Services refer to.
pub fn node_chains<'d>(
    services: impl Iterator<Item = &'d DispatchRules> + Clone,
    context: RenderContext<'_>,
) -> BTreeMap<IptablesTableName, ChainGroups> {
    let node = NodeRenderer { context };
    let canary = || RenderedChain::new(CANARY, Vec::new());
    let masquerading = vec![node.mark_masq(), RenderedChain::new(OWNER, Vec::new()), canary()];
    let mut nat = vec![masquerading, vec![node.postrouting(services.clone())]];
    nat.extend(node.nat(services.clone()).into_iter().map(|chain| vec![chain]));
    let mut filter = vec![vec![canary(), node.forward()]];
    filter.extend(node.filter(services).into_iter().map(|chain| vec![chain]));
    let mangle = vec![vec![canary()]];
    [(IptablesTableName::Filter, filter), (IptablesTableName::Nat, nat), (IptablesTableName::Mangle, mangle)]
        .into()
}

struct NodeRenderer<'a> {
    context: RenderContext<'a>,
}

impl NodeRenderer<'_> {
    fn mark(&self) -> String {
        format!("{:#x}", self.context.node.mark())
    }

    fn mark_masq(&self) -> RenderedChain {
        let mark = self.mark();
        let rule = RuleText::new().jump(format_args!("MARK --set-xmark {mark}/{mark}"));
        RenderedChain::new(MARK_MASQ, vec![rule.text()])
    }

    fn postrouting<'d>(&self, services: impl Iterator<Item = &'d DispatchRules>) -> RenderedChain {
        let mark = self.mark();
        let mut rules = self.hairpin(services);
        let unmarked = format!("-m mark ! --mark {mark}/{mark}");
        rules.push(RuleText::new().matching(unmarked).jump("RETURN").text());
        // Cleared, so that a packet that passes the stack again is not masqueraded again.
        rules.push(RuleText::new().jump(format_args!("MARK --set-xmark {mark}/0x0")).text());
        let masquerade = RuleText::new().comment("kubernetes service traffic requiring SNAT");
        rules.push(masquerade.jump("MASQUERADE --random-fully").text());
        RenderedChain::new(POSTROUTING, rules)
    }

    /// Semantics D3: a pod that reaches itself through its Service.
    fn hairpin<'d>(&self, services: impl Iterator<Item = &'d DispatchRules>) -> Vec<ArcStr> {
        let rule = || RuleText::new().matching("-m conntrack --ctstate DNAT");
        if self.context.features.bpf {
            let program = match self.context.family {
                Family::V4 => SAME_ADDRESS_V4,
                Family::V6 => SAME_ADDRESS_V6,
            };
            return vec![
                rule().matching(format_args!("-m bpf --bytecode \"{program}\"")).jump(MARK_MASQ).text(),
            ];
        }
        let local: BTreeSet<IpAddr> =
            services.flat_map(|service| &service.local_endpoints).copied().collect();
        local.into_iter().map(|pod| rule().from(pod).to(pod).jump(MARK_MASQ).text()).collect()
    }

    fn nat<'d>(&self, services: impl Iterator<Item = &'d DispatchRules> + Clone) -> Vec<RenderedChain> {
        let mut chains = Vec::new();
        let ports = services.clone().flat_map(|service| &service.node_ports);
        let node_ports = port_trees("KUBE-SVC-", ports, &mut chains);
        chains.push(RenderedChain::new(NODE_PORTS, node_ports));
        let portals = services.flat_map(|service| &service.portals);
        let mut rules = address_tree("KUBE-SVC-", portals, &mut chains);
        rules.extend(self.jumps_to_node_ports());
        chains.push(RenderedChain::new(SERVICES, rules));
        chains
    }

    /// Semantics D4. The kernel knows which addresses are the node's own.
    fn jumps_to_node_ports(&self) -> Vec<ArcStr> {
        let RenderContext { family, node, .. } = self.context;
        let jump = |rule: RuleText| {
            let text = "kubernetes service nodeports; NOTE: this must be the last rule in this chain";
            rule.comment(text).matching("-m addrtype --dst-type LOCAL").jump(NODE_PORTS).text()
        };
        let loopback = match family {
            Family::V4 => loopback_v4(),
            Family::V6 => IpNet::from(IpAddr::from(Ipv6Addr::LOCALHOST)),
        };
        let serves_loopback = family == Family::V4 && node.localhost_node_ports;
        match node.node_ports(family) {
            NodePortAddresses::All if serves_loopback => vec![jump(RuleText::new())],
            NodePortAddresses::All => vec![jump(RuleText::new().not_to(loopback))],
            NodePortAddresses::Within(ranges) => {
                let is_closed = |range: &IpNet| loopback.contains(range) && !serves_loopback;
                let open: Vec<IpNet> = ranges.iter().filter(|range| !is_closed(range)).copied().collect();
                let has_closed_part = !serves_loopback && open.iter().any(|range| range.contains(&loopback));
                let skip = has_closed_part.then(|| RuleText::new().to(loopback).jump("RETURN").text());
                skip.into_iter()
                    .chain(open.into_iter().map(|range| jump(RuleText::new().to(range))))
                    .collect()
            }
        }
    }

    fn filter<'d>(&self, services: impl Iterator<Item = &'d DispatchRules> + Clone) -> Vec<RenderedChain> {
        let mut chains = Vec::new();
        let refused = services.clone().flat_map(|service| &service.refused);
        let rules = address_tree("KUBE-SVC-", refused, &mut chains);
        chains.push(RenderedChain::new(SERVICES, rules));
        let external = services.clone().flat_map(|service| &service.refused_external);
        let mut rules = address_tree("KUBE-EXT-", external, &mut chains);
        let ports = services.clone().flat_map(|service| &service.refused_node_ports);
        rules.extend(port_trees("KUBE-EXT-", ports, &mut chains));
        chains.push(RenderedChain::new(EXTERNAL_SERVICES, rules));
        let firewall = services.clone().flat_map(|service| &service.firewall);
        let rules = address_tree("KUBE-FW-", firewall, &mut chains);
        chains.push(RenderedChain::new(PROXY_FIREWALL, rules));
        let checks = services.flat_map(|service| &service.health_checks).map(|(port, rule)| (*port, rule));
        let rules = port_tree("KUBE-SVC-", Protocol::Tcp, checks, &mut chains);
        chains.push(RenderedChain::new(NODE_PORTS, rules));
        chains
    }

    fn forward(&self) -> RenderedChain {
        let mark = self.mark();
        let mut rules = Vec::new();
        if self.context.features.drops_invalid {
            let mut rule = RuleText::new().matching("-m conntrack --ctstate INVALID");
            if self.context.features.nfacct {
                rule = rule.matching(format_args!("-m nfacct --nfacct-name {INVALID_COUNTER}"));
            }
            rules.push(rule.jump("DROP").text());
        }
        let marked = RuleText::new().comment("kubernetes forwarding rules");
        rules.push(marked.matching(format_args!("-m mark --mark {mark}/{mark}")).jump("ACCEPT").text());
        let established = RuleText::new().comment("kubernetes forwarding conntrack rule");
        rules.push(established.matching("-m conntrack --ctstate RELATED,ESTABLISHED").jump("ACCEPT").text());
        RenderedChain::new(FORWARD, rules)
    }
}

fn port_trees<'d>(
    prefix: &str,
    rules: impl Iterator<Item = &'d (Protocol, u16, ArcStr)> + Clone,
    chains: &mut Vec<RenderedChain>,
) -> Vec<ArcStr> {
    let mut root = Vec::new();
    for protocol in PROTOCOLS {
        let of_protocol = rules.clone().filter(|(of, ..)| *of == protocol);
        root.extend(port_tree(prefix, protocol, of_protocol.map(|(_, port, rule)| (*port, rule)), chains));
    }
    root
}
