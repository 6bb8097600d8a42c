//! Ports of gateways that proxies could not bind, as they report them, and what follows for the listeners.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use model::ObjectKey;
use serde::{Deserialize, Serialize};

use super::Problem;

/// A port of a gateway that a proxy could not bind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnboundPort {
    /// Namespace and name of the gateway.
    pub namespace: String,
    pub gateway: String,
    pub is_udp: bool,
    pub address: SocketAddr,
    /// The node of the proxy; empty if unknown.
    pub node: String,
    /// The error of the operating system.
    pub error: String,
}

/// By gateway.
pub type UnboundPorts = BTreeMap<ObjectKey, BTreeSet<UnboundPort>>;

/// How many addresses a message lists.
const LISTED: usize = 3;

impl UnboundPort {
    pub fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.namespace.as_str().into(), &self.gateway.as_str().into())
    }

    /// By gateway, sorted.
    pub fn by_gateway(ports: impl IntoIterator<Item = Self>) -> UnboundPorts {
        let mut all = UnboundPorts::new();
        for port in ports {
            all.entry(port.key()).or_default().insert(port);
        }
        all
    }
}

/// Whether every proxy has bound a port, as far as they reported; else which one did not, and why.
pub(crate) fn bound(unbound: Option<&BTreeSet<UnboundPort>>, port: u16, is_udp: bool) -> Result<(), String> {
    let is_this = |own: &&UnboundPort| own.address.port() == port && own.is_udp == is_udp;
    let failed: Vec<&UnboundPort> = unbound.into_iter().flatten().filter(is_this).collect();
    if failed.is_empty() {
        return Ok(());
    }
    let text = |own: &&UnboundPort| match own.node.as_str() {
        "" => format!("{}: {}", own.address, own.error),
        node => format!("{} on node {node}: {}", own.address, own.error),
    };
    let mut texts: Vec<String> = failed.iter().take(LISTED).map(text).collect();
    if failed.len() > LISTED {
        texts.push(format!("{} more", failed.len() - LISTED));
    }
    let protocol = if is_udp { "UDP port" } else { "port" };
    Err(format!("{protocol} {port} cannot be bound: {}: free it, or change the listener", texts.join("; ")))
}

/// The condition of a listener whose port is not bound: proxies go on trying, so it is pending.
pub(super) fn pending(message: String) -> Problem {
    Problem::new("Pending", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_told_by_number_and_protocol_and_a_message_lists_few_addresses() {
        let port = |node: &str, at: &str, is_udp| UnboundPort {
            namespace: "shop".to_owned(),
            gateway: "edge".to_owned(),
            is_udp,
            address: at.parse().unwrap(),
            node: node.to_owned(),
            error: "Address already in use (os error 98)".to_owned(),
        };
        let all = UnboundPort::by_gateway([
            port("n1", "10.0.0.1:80", false),
            port("n2", "10.0.0.2:80", false),
            port("n1", "10.0.0.1:80", false),
            port("", "10.0.0.1:53", true),
        ]);
        let own = all.get(&ObjectKey::new(&"shop".into(), &"edge".into()));
        assert_eq!(
            bound(own, 80, false).unwrap_err(),
            "port 80 cannot be bound: 10.0.0.1:80 on node n1: Address already in use (os error 98); \
             10.0.0.2:80 on node n2: Address already in use (os error 98): free it, or change the listener"
        );
        assert!(bound(own, 53, true).unwrap_err().starts_with("UDP port 53 cannot be bound: 10.0.0.1:53: "));
        assert_eq!(
            (bound(own, 53, false), bound(own, 81, false), bound(None, 80, false)),
            (Ok(()), Ok(()), Ok(()))
        );
        let many = UnboundPort::by_gateway((1..=9).map(|i| port("n", &format!("10.0.0.{i}:80"), false)));
        assert!(bound(many.values().next(), 80, false).unwrap_err().contains("; 6 more: free it"));
    }
}
