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
    let endpoint = |last: u8, is_local| {
        ForwardedEndpoint::new(SocketAddr::from(([10, 244, 1, last], 8080)), 1.0, is_local)
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
    check(
        &table,
        Nat,
        &expect![[r#"
        KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
        KUBE-SVC-67NZLRHBNDSAWJRO ! -s 10.244.0.0/16 -d 10.96.0.10/32 -p tcp -m comment --comment "shop/web:http cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
        KUBE-SVC-67NZLRHBNDSAWJRO -p tcp -m recent --rcheck --seconds 600 --reap --name KUBE-SEP-34ZZ2QFGO32YYXXO --mask 255.255.255.255 --rsource -m recent --set --name KUBE-SEP-34ZZ2QFGO32YYXXO --mask 255.255.255.255 --rsource -j DNAT --to-destination 10.244.1.5:8080
        KUBE-SVC-67NZLRHBNDSAWJRO -p tcp -m recent --rcheck --seconds 600 --reap --name KUBE-SEP-MCTKD62NLNFFFI4W --mask 255.255.255.255 --rsource -m recent --set --name KUBE-SEP-MCTKD62NLNFFFI4W --mask 255.255.255.255 --rsource -j DNAT --to-destination 10.244.1.6:8080
        KUBE-SVC-67NZLRHBNDSAWJRO -p tcp -m statistic --mode random --probability 0.50000000000 -m recent --set --name KUBE-SEP-34ZZ2QFGO32YYXXO --mask 255.255.255.255 --rsource -j DNAT --to-destination 10.244.1.5:8080
        KUBE-SVC-67NZLRHBNDSAWJRO -p tcp -m recent --set --name KUBE-SEP-MCTKD62NLNFFFI4W --mask 255.255.255.255 --rsource -j DNAT --to-destination 10.244.1.6:8080
        KUBE-SVL-67NZLRHBNDSAWJRO -p tcp -m recent --rcheck --seconds 600 --reap --name KUBE-SEP-34ZZ2QFGO32YYXXO --mask 255.255.255.255 --rsource -m recent --set --name KUBE-SEP-34ZZ2QFGO32YYXXO --mask 255.255.255.255 --rsource -j DNAT --to-destination 10.244.1.5:8080
        KUBE-SVL-67NZLRHBNDSAWJRO -p tcp -m recent --set --name KUBE-SEP-34ZZ2QFGO32YYXXO --mask 255.255.255.255 --rsource -j DNAT --to-destination 10.244.1.5:8080
        KUBE-EXT-67NZLRHBNDSAWJRO -s 10.244.0.0/16 -m comment --comment "pod traffic for shop/web:http external destinations" -j KUBE-SVC-67NZLRHBNDSAWJRO
        KUBE-EXT-67NZLRHBNDSAWJRO -m comment --comment "masquerade LOCAL traffic for shop/web:http external destinations" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ
        KUBE-EXT-67NZLRHBNDSAWJRO -m comment --comment "route LOCAL traffic for shop/web:http external destinations" -m addrtype --src-type LOCAL -j KUBE-SVC-67NZLRHBNDSAWJRO
        KUBE-EXT-67NZLRHBNDSAWJRO -j KUBE-SVL-67NZLRHBNDSAWJRO
        KUBE-FW-67NZLRHBNDSAWJRO -s 198.51.100.0/24 -m comment --comment "shop/web:http loadbalancer IP" -j KUBE-EXT-67NZLRHBNDSAWJRO
        KUBE-FW-67NZLRHBNDSAWJRO -m comment --comment "other traffic to shop/web:http will be dropped by KUBE-PROXY-FIREWALL"
        KUBE-POSTROUTING -m conntrack --ctstate DNAT -m bpf --bytecode "6,32 0 0 12,7 0 0 0,32 0 0 16,29 0 1 0,6 0 0 65535,6 0 0 0" -j KUBE-MARK-MASQ
        KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
        KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
        KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
        KUBE-NODEPORTS -d 127.0.0.0/8 -p tcp -m comment --comment "shop/web:http" -m tcp --dport 30080 -m nfacct --nfacct-name localhost_nps_accepted_pkts -j KUBE-EXT-67NZLRHBNDSAWJRO
        KUBE-NODEPORTS -p tcp -m comment --comment "shop/web:http" -m tcp --dport 30080 -j KUBE-EXT-67NZLRHBNDSAWJRO
        KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m comment --comment "shop/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-67NZLRHBNDSAWJRO
        KUBE-SERVICES -d 203.0.113.7/32 -p tcp -m comment --comment "shop/web:http loadbalancer IP" -m tcp --dport 80 -j KUBE-FW-67NZLRHBNDSAWJRO
        KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
    "#]],
    );
    check(
        &table,
        Filter,
        &expect![[r#"
        KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name ct_state_invalid_dropped_pkts -j DROP
        KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
        KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
        KUBE-PROXY-FIREWALL -d 203.0.113.7/32 -p tcp -m comment --comment "shop/web:http traffic not accepted by KUBE-FW-67NZLRHBNDSAWJRO" -m tcp --dport 80 -j DROP
        KUBE-NODEPORTS -p tcp -m comment --comment "shop/web:http health check node port" -m tcp --dport 30100 -j ACCEPT
    "#]],
    );
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
    check(
        &table,
        Filter,
        &expect![[r#"
        KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name ct_state_invalid_dropped_pkts -j DROP
        KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
        KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
        KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m comment --comment "shop/web:http has no endpoints" -m tcp --dport 80 -j REJECT --reject-with tcp-reset
        KUBE-EXTERNAL-SERVICES -d 203.0.113.7/32 -p tcp -m comment --comment "shop/web:http has no endpoints" -m tcp --dport 80 -j REJECT --reject-with tcp-reset
        KUBE-EXTERNAL-SERVICES -p tcp -m comment --comment "shop/web:http has no endpoints" -m addrtype --dst-type LOCAL -m tcp --dport 30080 -j REJECT --reject-with tcp-reset
        KUBE-NODEPORTS -p tcp -m comment --comment "shop/web:http health check node port" -m tcp --dport 30100 -j ACCEPT
    "#]],
    );
}
