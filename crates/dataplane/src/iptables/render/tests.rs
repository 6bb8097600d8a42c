//! Rendered chains as text.

use std::net::SocketAddr;
use std::sync::Arc;

use expect_test::{Expect, expect};
use model::forward::{
    EndpointSet, ForwardedEndpoint, ForwardedPort, ForwardingMode, Frontend, FrontendAction, FrontendAddress,
    FrontendKind, LocalTrafficDetector, Masquerade,
};
use model::{Protocol, TrafficPolicy};

use super::*;
use crate::iptables::names::IptablesTableName::{Filter, Nat};

fn table(frontends: impl FnOnce(Arc<ForwardedPort>) -> Vec<Frontend>) -> ForwardingTable {
    let endpoint = |last: u8, is_local| ForwardedEndpoint {
        address: SocketAddr::from(([10, 244, 1, last], 8080)),
        weight: 1.0,
        is_local,
    };
    let (near, far) = (endpoint(5, true), endpoint(6, false));
    let port = Arc::new(ForwardedPort {
        service: ServiceKey::new(&"shop".into(), &"web".into()),
        name: "http".into(),
        cluster_ip: [10, 96, 0, 10].into(),
        protocol: Protocol::Tcp,
        number: 80,
        affinity_seconds: Some(600),
        health_check_port: Some(30_100),
        cluster: EndpointSet { endpoints: [near, far].into(), rounding: 0 },
        local: EndpointSet { endpoints: [near].into(), rounding: 0 },
    });
    let range = "10.244.0.0/16".parse().ok();
    let mut table = ForwardingTable::new(NodeRules {
        mode: ForwardingMode::Iptables,
        detect_local: LocalTrafficDetector::Ranges { v4: range, v6: None },
        localhost_node_ports: true,
        ..NodeRules::default()
    });
    table.replace(&port.service.clone(), frontends(port));
    table
}

fn external(port: &Arc<ForwardedPort>) -> Vec<Frontend> {
    let (send_all, send_local) =
        (FrontendAction::Send(TrafficPolicy::Cluster), FrontendAction::Send(TrafficPolicy::Local));
    let local = |address, kind| Frontend {
        address,
        kind,
        port: port.clone(),
        outside: send_local,
        inside: Some(send_all),
        masquerade: Masquerade::NodeItself,
        source_ranges: None,
    };
    let vip = FrontendAddress::new([203, 0, 113, 7].into(), Protocol::Tcp, 80);
    let node_port = FrontendAddress::node_port(Family::V4, Protocol::Tcp, 30_080);
    let cluster_ip = Frontend {
        address: port.cluster_address(),
        kind: FrontendKind::ClusterIp,
        outside: send_all,
        inside: None,
        masquerade: Masquerade::NotPods,
        source_ranges: None,
        port: port.clone(),
    };
    let ranges = ["198.51.100.0/24".parse().unwrap()];
    let vip = Frontend { source_ranges: Some(ranges.into()), ..local(vip, FrontendKind::LoadBalancer) };
    vec![cluster_ip, vip, local(node_port, FrontendKind::NodePort)]
}

fn check(table: &ForwardingTable, name: IptablesTableName, expected: &Expect) {
    let features = KernelFeatures { nfacct: true, ..KernelFeatures::default() };
    let context = RenderContext { family: Family::V4, node: &table.node, features };
    let rendered = render_family(table, context);
    let line = |chain: &RenderedChain| -> String {
        chain.rules.iter().map(|rule| format!("{} {rule}\n", chain.name)).collect()
    };
    expected.assert_eq(&rendered.tables[&name].iter().flatten().map(line).collect::<String>());
}

#[test]
fn service_with_policy_local_source_ranges_and_affinity() {
    let table = table(|port| external(&port));
    check(&table, Nat, &expect![[r#""#]]);
    check(&table, Filter, &expect![[r#""#]]);
}

#[test]
fn service_without_endpoints_is_refused_in_filter() {
    let table = table(|port| {
        let refused = |frontend| Frontend {
            outside: FrontendAction::Reject,
            inside: None,
            source_ranges: None,
            ..frontend
        };
        external(&port).into_iter().map(refused).collect()
    });
    check(&table, Filter, &expect![[r#""#]]);
}
