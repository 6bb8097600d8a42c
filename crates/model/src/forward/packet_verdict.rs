//! The verdict for the first packet of a connection, from the table alone.
//!
//! Data planes are tested against it, and `trace` shows its steps.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::{
    ForwardingMode, ForwardingTable, Frontend, FrontendAction, FrontendAddress, FrontendHost, FrontendKind,
    LocalTrafficDetector, TrafficPolicy,
};
use crate::address::{Family, Protocol};
use crate::name::Name;

/// The first packet of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstPacket {
    pub src: SocketAddr,
    pub dst: SocketAddr,
    pub protocol: Protocol,
    /// The incoming interface, if known.
    pub iif: Option<Name>,
}

/// Where a packet comes from, as far as this node can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficSource {
    Pod,
    /// This node itself.
    Node,
    Outside,
}

/// The kind of traffic, which decides between internalTrafficPolicy and externalTrafficPolicy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficClass {
    /// To the cluster IP.
    Internal,
    /// To any other frontend.
    External,
}

#[derive(Clone, Debug, PartialEq)]
pub enum PacketVerdict {
    /// To one of these endpoints, each with its share of such connections.
    Send(Vec<(SocketAddr, f64)>),
    /// Refused with an ICMP error.
    Reject,
    Drop,
    /// Accepted: the health check port of a Service.
    Accept,
    /// Passed through: no Service is involved.
    Untouched,
}

/// The verdict for a packet, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardingDecision<'t> {
    pub verdict: PacketVerdict,
    /// The frontend that the packet is sent to.
    pub frontend: Option<&'t Frontend>,
    /// The traffic policy whose endpoints are used.
    pub scope: Option<TrafficPolicy>,
    pub origin: TrafficSource,
    /// Whether the source address becomes one of the node's, whichever endpoint is chosen.
    pub masquerade: bool,
    /// The steps: the name of a rule and what it did.
    pub why: Vec<(&'static str, String)>,
}

impl ForwardingDecision<'_> {
    pub fn traffic(&self) -> Option<TrafficClass> {
        let kind = self.frontend?.kind;
        Some(if kind == FrontendKind::ClusterIp { TrafficClass::Internal } else { TrafficClass::External })
    }
}

impl ForwardingTable {
    pub fn decide(&self, packet: &FirstPacket) -> ForwardingDecision<'_> {
        let origin = self.origin(packet);
        let mut decision = ForwardingDecision {
            verdict: PacketVerdict::Untouched,
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
        self.protect_loopback(packet, &mut decision);
        decision
    }

    /// Where node ports are served on loopback addresses, the kernel routes packets to them (route_localnet); other
    /// packets to them are dropped.
    fn protect_loopback(&self, packet: &FirstPacket, decision: &mut ForwardingDecision<'_>) {
        let (src, dst) = (packet.src.ip(), packet.dst.ip());
        let is_martian = dst.is_ipv4() && dst.is_loopback() && !src.is_loopback();
        let is_sent = matches!(decision.verdict, PacketVerdict::Send(_));
        if is_martian && self.node.localhost_node_ports && !is_sent {
            decision.verdict = PacketVerdict::Drop;
            let detail = format!("{dst} is a loopback address and {src} is not: dropped");
            decision.why.push(("loopback", detail));
        }
    }

    /// The frontend that a packet is sent to: by address, else by node port.
    fn met(&self, packet: &FirstPacket) -> Option<&Frontend> {
        let (address, port) = (packet.dst.ip(), packet.dst.port());
        let by_address = self.frontend(&FrontendAddress::new(address, packet.protocol, port));
        by_address.or_else(|| {
            let family = Family::of(address);
            let place = FrontendAddress::node_port(family, packet.protocol, port);
            let frontend = self.frontend(&place)?;
            let refuses = frontend.actions().any(|action| !matches!(action, FrontendAction::Send(_)));
            let is_refused = self.is_iptables() && self.is_own(address) && refuses;
            (self.node.takes_node_ports(address) || is_refused).then_some(frontend)
        })
    }

    fn is_own(&self, address: IpAddr) -> bool {
        self.node.is_own(address)
    }

    fn is_iptables(&self) -> bool {
        self.node.mode == ForwardingMode::Iptables
    }

    fn is_kernelspace(&self) -> bool {
        self.node.mode == ForwardingMode::Kernelspace
    }

    /// Pods are checked first: if the pod range contains the node's own address, the node counts as a pod.
    fn origin(&self, packet: &FirstPacket) -> TrafficSource {
        let source = packet.src.ip();
        let is_pod = match &self.node.detect_local {
            LocalTrafficDetector::Unknown => false,
            ranges @ LocalTrafficDetector::Ranges { .. } => {
                ranges.range(Family::of(source)).is_some_and(|range| range.contains(&source))
            }
            // Traffic from the node itself has no incoming interface.
            LocalTrafficDetector::Bridge(name) => !self.is_own(source) && packet.iif.as_ref() == Some(name),
            LocalTrafficDetector::InterfacePrefix(prefix) => {
                !self.is_own(source)
                    && packet.iif.as_ref().is_some_and(|iif| iif.starts_with(prefix.as_str()))
            }
        };
        match is_pod {
            true => TrafficSource::Pod,
            false if self.is_own(source) => TrafficSource::Node,
            false => TrafficSource::Outside,
        }
    }

    fn enter(&self, frontend: &Frontend, packet: &FirstPacket, decision: &mut ForwardingDecision<'_>) {
        let (port, kind) = (&frontend.port, frontend.kind.as_str());
        decision.why.push(("frontend", format!("{} is the {kind} of Service {port}", frontend.address)));
        // Pitfall 13: before anything else, endpoints or not; in mode iptables only with endpoints.
        let is_checked = frontend.is_served() || !self.is_iptables();
        if is_checked && !admits(frontend.source_ranges.as_deref(), packet.src.ip()) {
            decision.verdict = PacketVerdict::Drop;
            let detail = format!("{} is not in spec.loadBalancerSourceRanges: dropped", packet.src.ip());
            decision.why.push(("source ranges", detail));
            return;
        }
        let mut outcome = self.outcome(frontend, decision);
        if frontend.kind == FrontendKind::NodePort && !self.node.takes_node_ports(packet.dst.ip()) {
            // Semantics D4: refusals match every address of the node, whatever nodePortAddresses says.
            let mut all = std::iter::once(outcome).chain(frontend.actions());
            outcome = all.find(|action| !matches!(action, FrontendAction::Send(_))).unwrap_or(outcome);
        }
        if !matches!(outcome, FrontendAction::Send(_))
            && let Some(detail) = self.leaves_unrefused(frontend, decision.origin)
        {
            decision.why.push(("not refused", detail.to_owned()));
            return;
        }
        match outcome {
            FrontendAction::Send(scope) => self.send(frontend, scope, decision),
            FrontendAction::Pass => {
                decision.why.push(("passed", "left to another part of the kernel".to_owned()))
            }
            FrontendAction::Reject => {
                decision.verdict = PacketVerdict::Reject;
                let detail =
                    "no endpoint is available to this traffic on any node: the connection is refused";
                decision.why.push(("rejected", detail.to_owned()));
            }
            FrontendAction::Drop => {
                decision.verdict = PacketVerdict::Drop;
                let detail = "only endpoints on this node may be used and there are none, but other nodes have some: dropped, so that a load balancer tries another node";
                decision.why.push(("dropped", detail.to_owned()));
            }
        }
    }

    /// Why a packet without an endpoint is not refused. Mode iptables: kube-proxy refuses external traffic in INPUT and
    /// FORWARD, not in OUTPUT.
    fn leaves_unrefused(&self, frontend: &Frontend, origin: TrafficSource) -> Option<&'static str> {
        if self.is_kernelspace() {
            return Some(
                "no endpoint is available; mode kernelspace cannot refuse, so the client gets no answer",
            );
        }
        let is_elsewhere =
            matches!(frontend.address.host, FrontendHost::Address(address) if !self.is_own(address));
        let is_external = frontend.kind != FrontendKind::ClusterIp;
        let is_left = self.is_iptables() && origin == TrafficSource::Node && is_external && is_elsewhere;
        is_left.then_some("no endpoint is available; mode iptables does not refuse packets of the node itself to addresses that are not its own")
    }

    /// Semantics D2: externalTrafficPolicy Local does not restrict pods and the node itself.
    fn outcome(&self, frontend: &Frontend, decision: &mut ForwardingDecision<'_>) -> FrontendAction {
        match frontend.inside {
            Some(inside) if decision.origin != TrafficSource::Outside => {
                let detail = "externalTrafficPolicy Local restricts only clients outside the cluster; this client is inside and may use every endpoint";
                decision.why.push(("short circuit", detail.to_owned()));
                inside
            }
            _ => frontend.outside,
        }
    }

    fn send(&self, frontend: &Frontend, policy: TrafficPolicy, decision: &mut ForwardingDecision<'_>) {
        let set = frontend.port.endpoints(policy);
        decision.verdict = PacketVerdict::Send(set.shares().collect());
        decision.scope = Some(policy);
        let whose = match policy {
            TrafficPolicy::Cluster => "selected for this node",
            TrafficPolicy::Local => "on this node",
        };
        let count = set.endpoints.len();
        let how = if set.is_even() { "with equal probability" } else { "by weight" };
        decision.why.push(("endpoints", format!("one of {count} endpoints {whose}, {how}")));
        if let Some(seconds) = frontend.port.affinity_seconds {
            let detail = match self.is_kernelspace() {
                true => "a client keeps its endpoint while the endpoints stay the same".to_owned(),
                false => {
                    format!("a client keeps its endpoint until {seconds} s after its last new connection")
                }
            };
            decision.why.push(("session affinity", detail));
        }
        // Its load balancers replace the source or not by flags of their own.
        if self.is_kernelspace() {
            return;
        }
        let (masquerade, reason) = self.masquerade(frontend, decision.origin);
        decision.masquerade = masquerade;
        decision.why.push(("masquerade", reason.to_owned()));
    }

    /// A packet to no frontend (semantics D2, the last two rows).
    fn pass(&self, packet: &FirstPacket, decision: &mut ForwardingDecision<'_>) {
        let address = packet.dst.ip();
        if self.is_iptables() {
            self.pass_iptables(packet, decision);
        } else if self.is_kernelspace() {
            let detail = format!("{} is not an address of a Service, or not one of its ports", packet.dst);
            decision.why.push(("no Service", detail));
        } else if let Some(service) = self.cluster_ip_holder(address) {
            decision.verdict = PacketVerdict::Reject;
            let (protocol, port) = (packet.protocol, packet.dst.port());
            let detail = format!(
                "{address} is the cluster IP of Service {service}, which has no port {port}/{protocol}: refused"
            );
            decision.why.push(("unknown port", detail));
        } else if let Some(frontend) = self.local_load_balancer(address) {
            decision.verdict = PacketVerdict::Reject;
            let (protocol, port, service) = (packet.protocol, packet.dst.port(), &frontend.port.service);
            let detail = format!(
                "{address} is a load balancer IP of Service {service} and local in mode ipvs, and no Service has port {port}/{protocol} on it: refused"
            );
            decision.why.push(("unknown port", detail));
        } else if let Some(range) = self.node.service_cidrs.iter().find(|range| range.contains(&address)) {
            decision.verdict = PacketVerdict::Drop;
            let detail =
                format!("{address} is in the ServiceCIDR {range} but belongs to no Service: dropped");
            decision.why.push(("unassigned address", detail));
        } else {
            decision.why.push(("no Service", format!("{} is not an address of a Service", packet.dst)));
        }
    }

    /// Semantics D8: only mode iptables opens health check ports.
    fn pass_iptables(&self, packet: &FirstPacket, decision: &mut ForwardingDecision<'_>) {
        let (address, port) = (packet.dst.ip(), packet.dst.port());
        let is_check = |frontend: &&Frontend| {
            frontend.port.health_check_port == Some(port) && frontend.port.family() == Family::of(address)
        };
        let may_be_check = packet.protocol == Protocol::Tcp && self.is_own(address);
        let all = self.services().filter(|_| may_be_check).flat_map(|(_, frontends)| frontends);
        match all.into_iter().find(is_check) {
            Some(frontend) => {
                decision.verdict = PacketVerdict::Accept;
                let service = &frontend.port.service;
                decision.why.push((
                    "health check",
                    format!("{port} is the health check port of Service {service}: accepted"),
                ));
            }
            None => {
                decision.why.push(("no Service", format!("{} is not an address of a Service", packet.dst)))
            }
        }
    }

    fn describe_origin(&self, packet: &FirstPacket, origin: TrafficSource) -> String {
        let source = packet.src.ip();
        match (origin, &self.node.detect_local) {
            (TrafficSource::Pod, LocalTrafficDetector::Bridge(name)) => {
                format!("{source} arrives on bridge {name}: a pod")
            }
            (TrafficSource::Pod, LocalTrafficDetector::InterfacePrefix(prefix)) => {
                format!("{source} arrives on an interface {prefix}*: a pod")
            }
            (TrafficSource::Pod, _) => format!("{source} is in the pod range"),
            (TrafficSource::Node, _) => format!("{source} is an address of this node"),
            (TrafficSource::Outside, LocalTrafficDetector::Unknown) => {
                format!("{source} counts as outside the cluster: detectLocal is not configured")
            }
            (TrafficSource::Outside, _) => format!("{source} is neither a pod nor this node"),
        }
    }
}

fn admits(ranges: Option<&[IpNet]>, source: IpAddr) -> bool {
    ranges.is_none_or(|ranges| ranges.iter().any(|range| range.contains(&source)))
}
