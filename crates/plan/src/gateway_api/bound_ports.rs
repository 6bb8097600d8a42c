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
    /// Where it was to be bound.
    pub address: SocketAddr,
    /// The listener's port, if the address has another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listener_port: Option<u16>,
    /// The node of the proxy; empty if unknown.
    pub node: String,
    /// The id of an Envoy; empty for an embedded proxy.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub envoy: String,
    /// The error of the operating system.
    pub error: String,
}

/// By gateway.
pub type UnboundPorts = BTreeMap<ObjectKey, BTreeSet<UnboundPort>>;

/// What an embedded proxy reports of itself, and `mesh control` of its Envoys: all ports that could not be bound.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortReport {
    /// `proxy/NAMESPACE/POD` or `control/NAMESPACE/POD`.
    pub reporter: String,
    pub unbound_ports: Vec<UnboundPort>,
}

/// How many addresses a message lists.
const LISTED: usize = 3;
/// What a report has of one port, and of all; and the length of names and errors in it.
const MAX_PER_PORT: usize = 8;
const MAX_REPORTED: usize = 512;
const MAX_CHARS: usize = 200;

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

    /// The port of the listener.
    pub fn port(&self) -> u16 {
        self.listener_port.unwrap_or(self.address.port())
    }

    /// The same with names and errors of bounded length.
    #[must_use]
    pub fn truncated(self) -> Self {
        let cut = |text: String| text.chars().take(MAX_CHARS).collect();
        Self { node: cut(self.node), envoy: cut(self.envoy), error: cut(self.error), ..self }
    }
}

impl PortReport {
    /// A report of bounded size: sorted, with a few Envoys of each port.
    pub fn new(reporter: &str, ports: impl IntoIterator<Item = UnboundPort>) -> Self {
        let mut count_by_port: BTreeMap<(ObjectKey, u16), usize> = BTreeMap::new();
        let sorted: BTreeSet<UnboundPort> = ports.into_iter().map(UnboundPort::truncated).collect();
        let is_kept = |port: &UnboundPort| {
            let count = count_by_port.entry((port.key(), port.port())).or_default();
            *count += 1;
            *count <= MAX_PER_PORT
        };
        let unbound_ports = sorted.into_iter().filter(is_kept).take(MAX_REPORTED).collect();
        Self { reporter: reporter.to_owned(), unbound_ports }
    }
}

/// Whether every proxy has bound a port, as far as they reported; else which one did not, and why.
pub(crate) fn bound(unbound: Option<&BTreeSet<UnboundPort>>, port: u16, is_udp: bool) -> Result<(), String> {
    let is_this = |own: &&UnboundPort| own.port() == port && own.is_udp == is_udp;
    let failed: Vec<&UnboundPort> = unbound.into_iter().flatten().filter(is_this).collect();
    if failed.is_empty() {
        return Ok(());
    }
    let place = |before: &str, name: &str| match name {
        "" => String::new(),
        name => format!(" {before} {name}"),
    };
    let text = |own: &&UnboundPort| {
        let (envoy, node) = (place("by Envoy", &own.envoy), place("on node", &own.node));
        format!("{}{envoy}{node}: {}", own.address, own.error)
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
            listener_port: None,
            envoy: String::new(),
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
    #[test]
    fn an_envoy_is_named_and_counts_for_the_listeners_port() {
        let port = |envoy: &str, at: &str| UnboundPort {
            namespace: "shop".to_owned(),
            gateway: "edge".to_owned(),
            is_udp: false,
            address: at.parse().unwrap(),
            listener_port: Some(80),
            envoy: envoy.to_owned(),
            node: "n1".to_owned(),
            error: "Permission denied".to_owned(),
        };
        let all = UnboundPort::by_gateway([port("edge-1", "10.0.0.1:8080")]);
        let own = all.values().next();
        assert_eq!(
            bound(own, 80, false).unwrap_err(),
            "port 80 cannot be bound: 10.0.0.1:8080 by Envoy edge-1 on node n1: Permission denied: free it, or \
             change the listener"
        );
        assert_eq!(bound(own, 8080, false), Ok(()));
        let many = (0..100).map(|i| port(&format!("edge-{i:03}"), "10.0.0.1:8080"));
        let long = port(&"x".repeat(300), "10.0.0.1:8080");
        let other = UnboundPort { listener_port: None, ..long.clone() };
        let report = PortReport::new("control/a/b", many.chain([long, other]));
        assert_eq!(report.unbound_ports.len(), 8 + 1, "{report:?}");
        assert!(report.unbound_ports.iter().all(|own| own.envoy.len() <= 200));
        // An earlier version says neither Envoy nor listener.
        let text =
            r#"{"namespace":"a","gateway":"b","isUdp":false,"address":"10.0.0.1:80","node":"","error":""}"#;
        let read: UnboundPort = serde_json::from_str(text).unwrap();
        assert_eq!((read.port(), serde_json::to_string(&read).unwrap().as_str()), (80, text));
    }
}
