//! Which ports of gateways connected Envoys could not bind.
//!
//! An Envoy may report for the gateway of its identity, and only if the identity is proven: by its certificate, or by a
//! connection from this machine. Elsewhere a client declares what it likes, and could spoil the status of any gateway.

use plan::gateway_api::UnboundPort;
use xds::identity::EnvoyRole;
use xds::server::{StreamStatus, UnboundListener};

/// Sorted.
pub(super) fn of_streams(streams: &[StreamStatus]) -> Vec<UnboundPort> {
    let proven = streams.iter().filter(|stream| stream.is_proven);
    let mut ports: Vec<UnboundPort> = proven.flat_map(of_stream).collect();
    ports.sort();
    ports.dedup();
    ports
}

fn of_stream(stream: &StreamStatus) -> Vec<UnboundPort> {
    let EnvoyRole::Gateway { name, .. } = &stream.identity.role else { return Vec::new() };
    let port = |listener: UnboundListener| UnboundPort {
        namespace: stream.identity.namespace.clone(),
        gateway: name.clone(),
        is_udp: false,
        address: listener.address,
        listener_port: (listener.address.port() != listener.port).then_some(listener.port),
        node: stream.identity.node.clone(),
        envoy: stream.id.clone(),
        error: listener.error,
    };
    stream.unbound_listeners().into_iter().map(port).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use xds::identity::EnvoyIdentity;
    use xds::resource::ResourceType;
    use xds::server::RejectedResource;

    use super::*;

    fn stream(id: &str, is_proven: bool) -> StreamStatus {
        let role = EnvoyRole::Gateway {
            name: "edge".to_owned(),
            bind: [192, 0, 2, 7].into(),
            port_overrides: [(80, "192.0.2.7:8080".parse().unwrap())].into(),
        };
        let message =
            "Error adding/updating listener(s) shop/edge:80: cannot bind '192.0.2.7:8080': Permission denied";
        let rejected = RejectedResource { version: None, message: message.to_owned(), is_retryable: true };
        StreamStatus {
            identity: EnvoyIdentity { namespace: "shop".to_owned(), role, node: "n1".to_owned(), zone: None },
            id: id.to_owned(),
            is_proven,
            protocol: "delta",
            number: 1,
            rejected: BTreeMap::from([((ResourceType::Listener, Some("shop/edge:80".into())), rejected)]),
        }
    }

    #[test]
    fn envoys_with_a_proven_identity_have_a_say_about_their_gateway() {
        let ports = of_streams(&[stream("edge-2", true), stream("other", false), stream("edge-1", true)]);
        let found: Vec<_> =
            ports.iter().map(|own| (own.envoy.as_str(), own.port(), own.error.as_str())).collect();
        assert_eq!(found, [("edge-1", 80, "Permission denied"), ("edge-2", 80, "Permission denied")]);
        assert_eq!((ports[0].namespace.as_str(), ports[0].gateway.as_str()), ("shop", "edge"));
    }
}
