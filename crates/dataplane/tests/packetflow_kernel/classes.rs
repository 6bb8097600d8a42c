//! More classes than the smallest map of verdicts takes: it has to grow before they are made ready.

use std::net::SocketAddr;
use std::sync::Arc;

use dataplane::nfnetlink::NetlinkSocket;
use dataplane::nftables::apply::{apply, initial_load_groups, load};
use dataplane::nftables::diff::diff;
use dataplane::nftables::render::{RenderedChange, Renderer, render};
use model::forward::{
    EndpointSet, ForwardedEndpoint, ForwardedPort, Frontend, FrontendAction, FrontendKind, Masquerade,
};
use model::{ForwardingTable, Protocol, ServiceKey, TrafficPolicy};

use super::{assert_same, held};

/// A Service whose clients are remembered for a time that no other has: a class of its own.
fn sticky(number: u16) -> Frontend {
    let [high, low] = number.to_be_bytes();
    let address = SocketAddr::from(([10, 1, high, low], 8080));
    let endpoint = ForwardedEndpoint::new(address, 1.0, false);
    let port = ForwardedPort {
        service: ServiceKey::new(&"ns".into(), &format!("sticky{number}").as_str().into()),
        name: "".into(),
        cluster_ip: [10, 96, high, low].into(),
        protocol: Protocol::Tcp,
        number: 80,
        affinity_seconds: Some(u32::from(number) + 1),
        health_check_port: None,
        cluster: EndpointSet { endpoints: [endpoint].into(), rounding: 0 },
        local: EndpointSet::default(),
    };
    Frontend {
        address: port.cluster_address(),
        kind: FrontendKind::ClusterIp,
        outside: FrontendAction::Send(TrafficPolicy::Cluster),
        inside: None,
        masquerade: Masquerade::NotPods,
        source_ranges: None,
        port: Arc::new(port),
    }
}

#[test]
fn classes_made_ready_fit_into_their_map() {
    toolbox::in_own_namespaces!();
    let mut kernel = NetlinkSocket::open().unwrap();
    let mut table = ForwardingTable::default();
    let (mut renderer, program) = Renderer::start(&table);
    load(&mut kernel, initial_load_groups(&program)).unwrap();
    let mut outgrown = 0;
    // Each has a neighbour of its own, too: together 1,202 in a map of 1,024.
    for number in 0..600 {
        let new = sticky(number);
        table.replace(&new.port.service.clone(), vec![new.clone()]);
        match renderer.change(&[(&[], &[new])]) {
            RenderedChange::Changes(changes) => {
                apply(&mut kernel, &changes).unwrap_or_else(|error| panic!("{error}"))
            }
            RenderedChange::Outgrown => {
                outgrown += 1;
                let difference = diff(&held(&mut kernel), &renderer.render_all(&table));
                apply(&mut kernel, &difference.now).unwrap_or_else(|error| panic!("{error}"));
                apply(&mut kernel, &difference.later).unwrap_or_else(|error| panic!("{error}"));
            }
        }
    }
    // Sweeping waits until changes are through.
    loop {
        let changes = renderer.maintenance();
        if changes.is_empty() {
            break;
        }
        apply(&mut kernel, &changes).unwrap_or_else(|error| panic!("{error}"));
    }
    assert_eq!(outgrown, 1, "once, to twice of what is needed");
    assert_same("many classes", &held(&mut kernel), &render(&table, renderer.sizes()));
}
