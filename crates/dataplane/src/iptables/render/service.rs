//! The chains of one Service, and its rules in the chains that all Services share.

use std::net::IpAddr;

use arcstr::ArcStr;
use model::forward::{
    ForwardedEndpoint, ForwardedPort, Frontend, FrontendAction, FrontendHost, FrontendKind,
    LocalTrafficDetector, Masquerade,
};
use model::{Family, Protocol, TrafficPolicy};

use super::dispatch::{DispatchRules, KeyBytes};
use super::{RenderContext, RenderedChain};
use crate::iptables::names::{
    LOCALHOST_COUNTER, MARK_MASQ, PROXY_FIREWALL, PortChain, choice_chain, endpoint_name, port_chain,
};
use crate::iptables::rule::{RuleText, loopback_v4, probability};
use crate::iptables::tree::{Branches, Subtree};

/// One Service in one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RenderedService {
    /// In nat; a chain comes after those that it jumps to.
    pub chains: Vec<RenderedChain>,
    pub dispatch: DispatchRules,
}

/// Renders the frontends of a Service.
pub fn render_service(frontends: &[Frontend], context: RenderContext<'_>) -> RenderedService {
    let mut rendered = RenderedService::default();
    let of_ports = frontends.chunk_by(|a, b| a.port.cluster_address() == b.port.cluster_address());
    for frontends in of_ports.filter(|of_port| of_port[0].port.family() == context.family) {
        let port = PortRenderer {
            port: &frontends[0].port,
            frontends,
            context,
            name: frontends[0].port.to_string(),
        };
        port.add_chains(&mut rendered.chains);
        port.add_dispatch(&mut rendered.dispatch);
    }
    rendered
}

/// One Service port with its frontends.
struct PortRenderer<'a> {
    port: &'a ForwardedPort,
    frontends: &'a [Frontend],
    context: RenderContext<'a>,
    /// `namespace/name:port`
    name: String,
}

impl PortRenderer<'_> {
    fn add_chains(&self, chains: &mut Vec<RenderedChain>) {
        for policy in [TrafficPolicy::Cluster, TrafficPolicy::Local] {
            let uses = |frontend: &Frontend| {
                let send = FrontendAction::Send(policy);
                frontend.outside == send || frontend.inside == Some(send)
            };
            if self.frontends.iter().any(uses) {
                self.add_policy_chain(policy, chains);
            }
        }
        let external = self.frontends.iter().filter(|f| f.kind != FrontendKind::ClusterIp && f.is_served());
        if let Some(frontend) = external.clone().next() {
            chains.push(RenderedChain::new(self.chain(PortChain::External), self.external(frontend)));
        }
        if let Some(ranges) = external.filter_map(|frontend| frontend.source_ranges.as_deref()).next() {
            chains.push(RenderedChain::new(self.chain(PortChain::Firewall), self.firewall(ranges)));
        }
    }

    fn chain(&self, chain: PortChain) -> ArcStr {
        port_chain(self.port, chain)
    }

    /// The chain that sends to an endpoint.
    fn add_policy_chain(&self, policy: TrafficPolicy, chains: &mut Vec<RenderedChain>) {
        let mut rules = Vec::new();
        let is_internal = |frontend: &Frontend| {
            frontend.kind == FrontendKind::ClusterIp && frontend.outside == FrontendAction::Send(policy)
        };
        if self.frontends.iter().any(is_internal) {
            rules.extend(self.masquerade_outsiders());
        }
        let endpoints = &self.port.endpoints(policy).endpoints;
        if let Some(seconds) = self.port.affinity_seconds {
            rules.extend(endpoints.iter().map(|endpoint| self.known_client(endpoint, seconds)));
        }
        let mut entries: Vec<(KeyBytes, &ForwardedEndpoint)> =
            endpoints.iter().map(|endpoint| (KeyBytes::of_endpoint(endpoint.address()), endpoint)).collect();
        entries.sort_by_key(|(key, _)| *key);
        rules.extend(self.choose(policy, &Subtree::new(&entries), chains));
        chains.push(RenderedChain::new(self.chain(PortChain::Policy(policy)), rules));
    }

    /// Semantics D3: traffic to the cluster IP from outside, whose reply has to pass through this node.
    fn masquerade_outsiders(&self) -> Option<ArcStr> {
        let rule = self
            .commented(&format!("{} cluster IP", self.name))
            .port(self.port.protocol, self.port.number)
            .to(self.port.cluster_ip);
        let rule = if self.context.node.masquerade_all { rule } else { self.others_only(rule)? };
        Some(rule.jump(MARK_MASQ).text())
    }

    /// Semantics D5: a client that the endpoint has seen within the timeout.
    fn known_client(&self, endpoint: &ForwardedEndpoint, seconds: u32) -> ArcStr {
        let list = self.client_list(endpoint);
        RuleText::new()
            .protocol(self.port.protocol)
            .matching(format_args!("-m recent --rcheck --seconds {seconds} --reap {list}"))
            .matching(format_args!("-m recent --set {list}"))
            .dnat(endpoint.address())
            .text()
    }

    fn client_list(&self, endpoint: &ForwardedEndpoint) -> String {
        let mask = match self.context.family {
            Family::V4 => "255.255.255.255",
            Family::V6 => "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        };
        format!("--name {} --mask {mask} --rsource", endpoint_name(self.port, endpoint.address()))
    }

    /// The rules that choose an endpoint at random, by weight.
    fn choose(
        &self,
        policy: TrafficPolicy,
        part: &Subtree<'_, KeyBytes, &ForwardedEndpoint>,
        chains: &mut Vec<RenderedChain>,
    ) -> Vec<ArcStr> {
        let weight = |part: &[(KeyBytes, &ForwardedEndpoint)]| {
            part.iter().map(|(_, endpoint)| f64::from(endpoint.weight)).sum::<f64>()
        };
        let ways: Vec<(f64, Way<'_>)> = match part.branches() {
            Branches::List(entries) => entries
                .iter()
                .map(|(_, endpoint)| (f64::from(endpoint.weight), Way::Endpoint(endpoint)))
                .collect(),
            Branches::Parts(parts) => {
                let chain = |part: &Subtree<'_, KeyBytes, &ForwardedEndpoint>| {
                    let name = choice_chain(self.port, policy, &part.path());
                    let rules = self.choose(policy, part, chains);
                    chains.push(RenderedChain::new(name.clone(), rules));
                    (weight(part.entries()), Way::Chain(name))
                };
                parts.iter().map(chain).collect()
            }
        };
        let mut rules: Vec<ArcStr> = Vec::with_capacity(ways.len());
        let mut rest = 0.0;
        // From the end, where the sum of the weights that follow is exact.
        for (weight, way) in ways.iter().rev() {
            let share = (rest > 0.0).then(|| weight / (weight + rest));
            rest += weight;
            rules.push(self.way(way, share));
        }
        rules.reverse();
        rules
    }

    fn way(&self, way: &Way<'_>, share: Option<f64>) -> ArcStr {
        let mut rule = RuleText::new();
        if let Some(share) = share {
            rule = rule
                .matching(format_args!("-m statistic --mode random --probability {}", probability(share)));
        }
        match way {
            Way::Chain(name) => rule.jump(name),
            Way::Endpoint(endpoint) => {
                if self.port.affinity_seconds.is_some() {
                    rule = rule.matching(format_args!("-m recent --set {}", self.client_list(endpoint)));
                }
                rule.protocol(self.port.protocol).dnat(endpoint.address())
            }
        }
        .text()
    }

    /// The chain of external addresses and node ports. All of a port have the same actions.
    fn external(&self, frontend: &Frontend) -> Vec<ArcStr> {
        let (name, mut rules) = (&self.name, Vec::new());
        if frontend.masquerade != Masquerade::NodeItself {
            let text = format!("masquerade traffic for {name} external destinations");
            rules.push(self.commented(&text).jump(MARK_MASQ).text());
        }
        if let Some(inside) = frontend.inside {
            // Clients inside that have no endpoint are refused in filter.
            let target = self.policy_target(inside).unwrap_or_else(|| "RETURN".into());
            let pods = self.commented(&format!("pod traffic for {name} external destinations"));
            rules.extend(self.pods_only(pods).map(|rule| rule.jump(&target).text()));
            let local = "-m addrtype --src-type LOCAL";
            if matches!(inside, FrontendAction::Send(_)) {
                let text = format!("masquerade LOCAL traffic for {name} external destinations");
                rules.push(self.commented(&text).matching(local).jump(MARK_MASQ).text());
            }
            let text = format!("route LOCAL traffic for {name} external destinations");
            rules.push(self.commented(&text).matching(local).jump(&target).text());
        }
        rules.extend(self.policy_target(frontend.outside).map(|chain| RuleText::new().jump(chain).text()));
        rules
    }

    fn policy_target(&self, action: FrontendAction) -> Option<ArcStr> {
        match action {
            FrontendAction::Send(policy) => Some(self.chain(PortChain::Policy(policy))),
            _ => None,
        }
    }

    /// The chain that lets allowed sources through; the rest is dropped in filter.
    fn firewall(&self, ranges: &[ipnet::IpNet]) -> Vec<ArcStr> {
        let (external, text) = (self.chain(PortChain::External), format!("{} loadbalancer IP", self.name));
        let allow = |range: &ipnet::IpNet| self.commented(&text).from(*range).jump(&external).text();
        let mut rules: Vec<ArcStr> = ranges.iter().map(allow).collect();
        let rest = format!("other traffic to {} will be dropped by {PROXY_FIREWALL}", self.name);
        rules.push(self.commented(&rest).text());
        rules
    }

    fn add_dispatch(&self, dispatch: &mut DispatchRules) {
        let endpoints = self.port.cluster.endpoints.iter().chain(&self.port.local.endpoints);
        dispatch.local_endpoints.extend(endpoints.filter(|e| e.is_local).map(|e| e.address().ip()));
        for frontend in self.frontends {
            match frontend.address.host {
                FrontendHost::Address(address) => self.add_portal(frontend, address, dispatch),
                FrontendHost::Node(_) => self.add_node_port(frontend, dispatch),
            }
        }
        if let Some(check) = self.port.health_check_port {
            let rule = self.commented(&format!("{} health check node port", self.name));
            dispatch.health_checks.push((check, rule.port(Protocol::Tcp, check).jump("ACCEPT").text()));
        }
    }

    fn add_portal(&self, frontend: &Frontend, address: IpAddr, dispatch: &mut DispatchRules) {
        let to = |text: &str| {
            self.commented(text).port(frontend.address.protocol, frontend.address.port).to(address)
        };
        let is_restricted = frontend.source_ranges.is_some() && frontend.is_served();
        let (kind, chain) = match frontend.kind {
            FrontendKind::ClusterIp => ("cluster IP", self.policy_target(frontend.outside)),
            FrontendKind::LoadBalancer if is_restricted => {
                ("loadbalancer IP", Some(self.chain(PortChain::Firewall)))
            }
            FrontendKind::LoadBalancer => ("loadbalancer IP", Some(self.chain(PortChain::External))),
            FrontendKind::ExternalIp | FrontendKind::NodePort => {
                ("external IP", Some(self.chain(PortChain::External)))
            }
        };
        if let Some(chain) = chain.filter(|_| frontend.is_served()) {
            dispatch.portals.push((address, to(&format!("{} {kind}", self.name)).jump(chain).text()));
        }
        let refusals = self.refusals(frontend, &to).into_iter().map(|rule| (address, rule));
        match frontend.kind {
            FrontendKind::ClusterIp => dispatch.refused.extend(refusals),
            _ => dispatch.refused_external.extend(refusals),
        }
        if is_restricted {
            let firewall = self.chain(PortChain::Firewall);
            let text = format!("{} traffic not accepted by {firewall}", self.name);
            dispatch.firewall.push((address, to(&text).jump("DROP").text()));
        }
    }

    fn add_node_port(&self, frontend: &Frontend, dispatch: &mut DispatchRules) {
        let (protocol, port) = (frontend.address.protocol, frontend.address.port);
        if frontend.is_served() {
            let external = self.chain(PortChain::External);
            let mut add =
                |rule: RuleText| dispatch.node_ports.push((protocol, port, rule.jump(&external).text()));
            let RenderContext { family, node, features } = self.context;
            let to = || self.commented(&self.name).port(protocol, port);
            if node.localhost_node_ports && family == Family::V4 && features.nfacct {
                add(to()
                    .to(loopback_v4())
                    .matching(format_args!("-m nfacct --nfacct-name {LOCALHOST_COUNTER}")));
            }
            add(to());
        }
        let to =
            |text: &str| self.commented(text).matching("-m addrtype --dst-type LOCAL").port(protocol, port);
        let refusals = self.refusals(frontend, &to).into_iter().map(|rule| (protocol, port, rule));
        dispatch.refused_node_ports.extend(refusals);
    }

    /// The rules in filter for clients that the frontend sends to no endpoint; connections to endpoints have another
    /// destination by then.
    fn refusals(&self, frontend: &Frontend, to: &dyn Fn(&str) -> RuleText) -> Vec<ArcStr> {
        let outside = self.refusal(frontend.outside, to);
        let inside = frontend.inside.and_then(|action| self.refusal(action, to));
        match (outside, inside) {
            (Some(outside), Some(inside)) if outside != inside => {
                let pods = self.pods_only(inside.clone());
                let local = inside.matching("-m addrtype --src-type LOCAL");
                pods.into_iter().chain([local, outside]).map(|rule| rule.text()).collect()
            }
            (outside, inside) => outside.or(inside).into_iter().map(|rule| rule.text()).collect(),
        }
    }

    fn refusal(&self, action: FrontendAction, to: &dyn Fn(&str) -> RuleText) -> Option<RuleText> {
        let name = &self.name;
        match action {
            FrontendAction::Drop => Some(to(&format!("{name} has no local endpoints")).jump("DROP")),
            FrontendAction::Reject => {
                // An ICMP error counts as soft while connect() holds the socket: a client on this node would wait a
                // second.
                let how = match (self.port.protocol, self.context.family) {
                    (Protocol::Tcp, _) => "tcp-reset",
                    (_, Family::V4) => "icmp-port-unreachable",
                    (_, Family::V6) => "icmp6-port-unreachable",
                };
                let rule = to(&format!("{name} has no endpoints"));
                Some(rule.jump(format_args!("REJECT --reject-with {how}")))
            }
            _ => None,
        }
    }

    fn commented(&self, text: &str) -> RuleText {
        RuleText::new().comment(text)
    }

    /// Only packets of local pods; none if they cannot be recognised.
    fn pods_only(&self, rule: RuleText) -> Option<RuleText> {
        match &self.context.node.detect_local {
            LocalTrafficDetector::Unknown => None,
            ranges @ LocalTrafficDetector::Ranges { .. } => {
                Some(rule.from(ranges.range(self.context.family)?))
            }
            LocalTrafficDetector::Bridge(name) => Some(rule.on(name)),
            LocalTrafficDetector::InterfacePrefix(prefix) => Some(rule.on(&format!("{prefix}+"))),
        }
    }

    /// Packets of all others; none if pods cannot be recognised.
    fn others_only(&self, rule: RuleText) -> Option<RuleText> {
        match &self.context.node.detect_local {
            LocalTrafficDetector::Unknown => None,
            ranges @ LocalTrafficDetector::Ranges { .. } => {
                Some(rule.not_from(ranges.range(self.context.family)?))
            }
            LocalTrafficDetector::Bridge(name) => Some(rule.not_on(name)),
            LocalTrafficDetector::InterfacePrefix(prefix) => Some(rule.not_on(&format!("{prefix}+"))),
        }
    }
}

/// One alternative of a choice.
enum Way<'a> {
    Endpoint(&'a ForwardedEndpoint),
    Chain(ArcStr),
}
