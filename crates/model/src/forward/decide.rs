//! What becomes of the first packet of a connection, by the table alone.
//!
//! This is the reading that a data plane has to agree with; its steps are the reasons that people get to see.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::{
    DetectLocal, ForwardingTable, Frontend, FrontendKind, Masquerade, NodePortAddresses, Outcome, Place,
    Scope,
};
use crate::address::{Family, Protocol};
use crate::name::Name;

/// The first packet of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Who sends it.
    pub src: SocketAddr,
    /// Whom it is sent to.
    pub dst: SocketAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The interface that it comes in by, where that is known.
    pub iif: Option<Name>,
}

/// Who sends a packet, as far as this node can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A pod.
    Pod,
    /// The node itself.
    Node,
    /// Anybody else.
    Outside,
}

/// Which traffic policy of the Service counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// To the cluster IP.
    Internal,
    /// To any other frontend.
    External,
}

/// What becomes of a packet.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It goes to one of these endpoints, each with its share of such packets.
    Send(Vec<(SocketAddr, f64)>),
    /// The sender is told that nobody is there.
    Reject,
    /// It disappears.
    Drop,
    /// It is no concern of ours.
    Untouched,
}

/// What becomes of a packet, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision<'t> {
    /// What.
    pub verdict: Verdict,
    /// The frontend that it met.
    pub frontend: Option<&'t Frontend>,
    /// The endpoints that were allowed.
    pub scope: Option<Scope>,
    /// Who sent it.
    pub origin: Origin,
    /// Whether its source becomes an address of the node, whichever endpoint it goes to.
    pub masquerade: bool,
    /// The steps, each a rule and what it did here.
    pub why: Vec<(&'static str, String)>,
}

impl Decision<'_> {
    /// Which traffic policy counted.
    pub fn traffic(&self) -> Option<Traffic> {
        let kind = self.frontend?.kind;
        Some(if kind == FrontendKind::ClusterIp { Traffic::Internal } else { Traffic::External })
    }
}

impl ForwardingTable {
    /// What becomes of the first packet of a connection.
    pub fn decide(&self, packet: &Packet) -> Decision<'_> {
        let origin = self.origin(packet);
        let mut decision = Decision {
            verdict: Verdict::Untouched,
            frontend: self.met(packet),
            scope: None,
            origin,
            masquerade: false,
            why: vec![("origin", self.describe_origin(packet, origin))],
        };
        match decision.frontend {
            Some(frontend) => self.enter(frontend, packet, &mut decision),
            None => self.pass(packet, &mut decision),
        }
        decision
    }

    /// The frontend that a packet is sent to: by address, else by a port of the node.
    fn met(&self, packet: &Packet) -> Option<&Frontend> {
        let (address, port) = (packet.dst.ip(), packet.dst.port());
        let by_address = self.frontend(&Place::address(address, packet.protocol, port));
        by_address.or_else(|| {
            let family = Family::of(address);
            let place = Place::node_port(family, packet.protocol, port);
            self.takes_node_ports(address).then(|| self.frontend(&place)).flatten()
        })
    }

    /// Semantics D4: addresses of this node within the ranges; loopback never.
    fn takes_node_ports(&self, address: IpAddr) -> bool {
        let listed = match self.node.node_ports(Family::of(address)) {
            NodePortAddresses::All => true,
            NodePortAddresses::Within(ranges) => ranges.iter().any(|range| range.contains(&address)),
        };
        listed && !address.is_loopback() && self.is_own(address)
    }

    fn is_own(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.node.addresses.contains(&address)
    }

    /// A pod is asked for first: with a range that holds the node's own address the node counts as a pod.
    fn origin(&self, packet: &Packet) -> Origin {
        let source = packet.src.ip();
        let is_pod = match &self.node.detect_local {
            DetectLocal::Unknown => false,
            ranges @ DetectLocal::Ranges { .. } => {
                ranges.range(Family::of(source)).is_some_and(|range| range.contains(&source))
            }
            // What the node sends itself comes in by no interface.
            DetectLocal::Bridge(name) => !self.is_own(source) && packet.iif.as_ref() == Some(name),
            DetectLocal::InterfacePrefix(prefix) => {
                !self.is_own(source)
                    && packet.iif.as_ref().is_some_and(|iif| iif.starts_with(prefix.as_str()))
            }
        };
        match is_pod {
            true => Origin::Pod,
            false if self.is_own(source) => Origin::Node,
            false => Origin::Outside,
        }
    }

    fn enter(&self, frontend: &Frontend, packet: &Packet, decision: &mut Decision<'_>) {
        let (port, kind) = (&frontend.port, frontend.kind.as_str());
        decision.why.push(("frontend", format!("{} is the {kind} of Service {port}", frontend.place)));
        if !admits(frontend.source_ranges.as_deref(), packet.src.ip()) {
            // Pitfall 13: before anything else, endpoints or not.
            decision.verdict = Verdict::Drop;
            let detail = format!(
                "{} is in none of spec.loadBalancerSourceRanges: dropped before any choice",
                packet.src.ip()
            );
            decision.why.push(("source ranges", detail));
            return;
        }
        let outcome = self.outcome(frontend, decision);
        match outcome {
            Outcome::Send(scope) => self.send(frontend, scope, decision),
            Outcome::Reject => {
                decision.verdict = Verdict::Reject;
                let detail =
                    "no endpoint can be used by such traffic, here or elsewhere: the client is told at once";
                decision.why.push(("rejected", detail.to_owned()));
            }
            Outcome::Drop => {
                decision.verdict = Verdict::Drop;
                let detail = "only endpoints of this node may be used and it has none; others do: dropped, so that a load balancer tries them";
                decision.why.push(("dropped", detail.to_owned()));
            }
        }
    }

    /// Semantics D2: pods and the node itself are not bound by externalTrafficPolicy Local.
    fn outcome(&self, frontend: &Frontend, decision: &mut Decision<'_>) -> Outcome {
        match frontend.inside {
            Some(inside) if decision.origin != Origin::Outside => {
                let detail = "externalTrafficPolicy Local binds clients from outside; this one is inside and may use every endpoint";
                decision.why.push(("short circuit", detail.to_owned()));
                inside
            }
            _ => frontend.outside,
        }
    }

    fn send(&self, frontend: &Frontend, scope: Scope, decision: &mut Decision<'_>) {
        let set = frontend.port.endpoints(scope);
        decision.verdict = Verdict::Send(set.shares().collect());
        decision.scope = Some(scope);
        let whose = match scope {
            Scope::Cluster => "selected for this node",
            Scope::Local => "on this node",
        };
        let count = set.endpoints.len();
        let even = if set.is_even() { "each with the same chance" } else { "by weight" };
        decision.why.push(("endpoints", format!("one of the {count} endpoints {whose}, {even}")));
        if let Some(seconds) = frontend.port.affinity_seconds {
            let detail = format!("a client keeps its endpoint for {seconds} s after its last new connection");
            decision.why.push(("session affinity", detail));
        }
        let (masquerade, reason) =
            self.masquerade(frontend, decision.origin, Family::of(frontend.port.cluster_ip));
        decision.masquerade = masquerade;
        decision.why.push(("masquerade", reason.to_owned()));
    }

    /// Semantics D3.
    fn masquerade(&self, frontend: &Frontend, origin: Origin, family: Family) -> (bool, &'static str) {
        match frontend.masquerade {
            Masquerade::Everyone => (
                true,
                "yes: under externalTrafficPolicy Cluster the answer has to come back through this node",
            ),
            Masquerade::NodeItself if origin == Origin::Node => (true, "yes: the node itself is the client"),
            Masquerade::NodeItself => (false, "no: externalTrafficPolicy Local keeps the client's address"),
            Masquerade::NotPods if self.node.masquerade_all => (true, "yes: masqueradeAll is set"),
            Masquerade::NotPods if !self.node.detect_local.knows(family) => {
                (false, "no: pods cannot be told from others here (no detectLocal for this family)")
            }
            Masquerade::NotPods if origin == Origin::Pod => (false, "no: the client is a pod"),
            Masquerade::NotPods => {
                (true, "yes: the client is no pod, its answer has to come back through this node")
            }
        }
    }

    /// A packet that meets no frontend (semantics D2, the last two rows).
    fn pass(&self, packet: &Packet, decision: &mut Decision<'_>) {
        let address = packet.dst.ip();
        if let Some(service) = self.cluster_ip_holder(address) {
            decision.verdict = Verdict::Reject;
            let (protocol, port) = (packet.protocol, packet.dst.port());
            let detail = format!(
                "{address} is the cluster IP of Service {service}, which has no port {port}/{protocol}"
            );
            decision.why.push(("unknown port", detail));
        } else if let Some(range) = self.node.service_cidrs.iter().find(|range| range.contains(&address)) {
            decision.verdict = Verdict::Drop;
            let detail = format!("{address} is in the ServiceCIDR {range} and belongs to no Service");
            decision.why.push(("unassigned address", detail));
        } else {
            decision.why.push(("no Service", format!("{} leads to no Service", packet.dst)));
        }
    }

    fn describe_origin(&self, packet: &Packet, origin: Origin) -> String {
        let source = packet.src.ip();
        match (origin, &self.node.detect_local) {
            (Origin::Pod, DetectLocal::Bridge(name)) => format!("{source} comes in by bridge {name}: a pod"),
            (Origin::Pod, DetectLocal::InterfacePrefix(prefix)) => {
                format!("{source} comes in by an interface {prefix}*: a pod")
            }
            (Origin::Pod, _) => format!("{source} is in the range of pods"),
            (Origin::Node, _) => format!("{source} is an address of this node"),
            (Origin::Outside, DetectLocal::Unknown) => {
                format!("{source} counts as outside: no way to tell pods is configured")
            }
            (Origin::Outside, _) => format!("{source} is neither a pod nor this node"),
        }
    }
}

fn admits(ranges: Option<&[IpNet]>, source: IpAddr) -> bool {
    ranges.is_none_or(|ranges| ranges.iter().any(|range| range.contains(&source)))
}
