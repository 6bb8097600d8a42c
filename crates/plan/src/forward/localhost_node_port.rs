//! Node ports on localhost: which are served, and where the node proxy connects to for a client (KEP-6032).
//!
//! ```text
//! client on this node -> 127.0.0.1:30080, the listener of the node proxy -> the node's own address:30080 -> kernel rules
//! ```
//!
//! Endpoints are selected where those of every other packet are: the second connection is one of the node itself, and
//! the rules choose (weights, session affinity, semantics D2 for clients on the node) and count.

use std::net::SocketAddr;
use std::sync::Arc;

use model::forward::{
    FirstPacket, ForwardedPort, ForwardingTable, FrontendAddress, FrontendHost, PacketVerdict,
};
use model::{Family, Notice, ObjectRef, Protocol, ServiceKey, TrafficPolicy};

use super::NodeConfig;

/// A node port that the node proxy serves on loopback.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalhostNodePort {
    pub listen: SocketAddr,
    /// An address whose rules select the endpoint.
    pub connect: SocketAddr,
    pub port: Arc<ForwardedPort>,
}

/// The node ports of a Service on loopback, of both families. None without endpoints: such connections are refused.
pub fn localhost_node_ports(
    service: &ServiceKey,
    table: &ForwardingTable,
    node: &NodeConfig,
) -> (Vec<LocalhostNodePort>, Vec<Notice>) {
    let (mut served, mut notices) = (Vec::new(), Vec::new());
    for frontend in table.frontends(service) {
        let FrontendAddress { host: FrontendHost::Node(family), protocol: Protocol::Tcp, port } =
            frontend.address
        else {
            continue;
        };
        let addresses = table.node.localhost_listeners.iter().copied();
        let Some(listen) = addresses.into_iter().find(|address| Family::of(*address) == family) else {
            continue;
        };
        let listen = SocketAddr::new(listen, port);
        match connect(&frontend.port, port, table, node) {
            Ok(connect) => {
                served.extend(connect.map(|connect| LocalhostNodePort {
                    listen,
                    connect,
                    port: frontend.port.clone(),
                }));
            }
            Err(problem) => {
                let message = format!("spec.ports[].nodePort: {listen} is not served: {problem}");
                notices.push(Notice::new(ObjectRef::service(service), "LocalhostNodePortNotServed", message));
            }
        }
    }
    (served, notices)
}

/// Where the node connects to: its own address, if node ports are served there, else the cluster IP, which serves a
/// client on the node in the same way unless internalTrafficPolicy is Local.
fn connect(
    port: &ForwardedPort,
    node_port: u16,
    table: &ForwardingTable,
    node: &NodeConfig,
) -> Result<Option<SocketAddr>, &'static str> {
    let Some(own) = node.primary(port.family()) else {
        return Err("the node has no address of this family; see the addresses of the Node");
    };
    let is_own = table.node.takes_node_ports(own);
    let dst = match is_own {
        true => SocketAddr::new(own, node_port),
        false => SocketAddr::new(port.cluster_ip, port.number),
    };
    let packet = FirstPacket { src: SocketAddr::new(own, 0), dst, protocol: Protocol::Tcp, iif: None };
    let decision = table.decide(&packet);
    let is_sent = matches!(decision.verdict, PacketVerdict::Send(_));
    let is_of_port = decision.frontend.is_some_and(|frontend| *frontend.port == *port);
    if !is_own && decision.scope == Some(TrafficPolicy::Local) {
        return Err("internalTrafficPolicy is Local; add primary to nodePortAddresses");
    }
    Ok((is_sent && is_of_port).then_some(dst))
}

/// What becomes of a packet to a node port on loopback, which no rule touches; `None` for any other packet.
pub fn explain_localhost_node_port(
    packet: &FirstPacket,
    table: &ForwardingTable,
    node: &NodeConfig,
) -> Option<String> {
    let (address, number) = (packet.dst.ip(), packet.dst.port());
    if !table.node.localhost_listeners.contains(&address) {
        return None;
    }
    let at = FrontendAddress::node_port(Family::of(address), packet.protocol, number);
    let port = &table.frontend(&at)?.port;
    if packet.protocol != Protocol::Tcp {
        return Some(format!(
            "{number}/{} is a node port of Service {port}; on loopback only TCP is served: refused unless another process listens",
            packet.protocol
        ));
    }
    Some(match connect(port, number, table, node) {
        Ok(Some(to)) => format!(
            "the node proxy listens on {} for Service {port}, and connects to {to} as a client on this node: trace that packet for the endpoints",
            packet.dst
        ),
        Ok(None) => format!(
            "{number} is a node port of Service {port}, which has no endpoint for this node: the node proxy does not listen, the connection is refused"
        ),
        Err(problem) => {
            format!("{number} is a node port of Service {port}; the node proxy does not listen: {problem}")
        }
    })
}
