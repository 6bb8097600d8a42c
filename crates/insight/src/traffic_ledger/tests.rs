//! Who may report what, and what the leader answers.

use crate::ledger::{TrafficOwner, TrafficRow, ZonePairTraffic};
use bytes::Bytes;
use clock::ManualTime;
use fixtures::object;
use serde_json::{Value, json};
use std::time::SystemTime;

use super::*;

fn ledger(price: &[&str]) -> (SharedLedger, ManualTime) {
    let time = ManualTime::starting_at(SystemTime::UNIX_EPOCH);
    let prices: Vec<String> = price.iter().map(|price| (*price).to_owned()).collect();
    let ledger = SharedLedger::new(&time.clock(), &prices).unwrap();
    ledger.set_leading(true);
    (ledger, time)
}

fn user(name: &str, node: Option<&str>, pod: Option<&str>) -> ReviewedUser {
    ReviewedUser { name: name.to_owned(), node: node.map(str::to_owned), pod: pod.map(str::to_owned) }
}

fn report(reporter: &str, sequence: u64, bytes: u64) -> TrafficReport {
    let pair =
        ZonePairTraffic { from_zone: "a".to_owned(), to_zone: "b".to_owned(), connections: sequence, bytes };
    TrafficReport {
        reporter: reporter.to_owned(),
        start: "s".to_owned(),
        sequence,
        rows: vec![TrafficRow { owner: TrafficOwner::NotThroughService, zone_pairs: vec![pair] }],
        ..TrafficReport::default()
    }
}

fn post(user: Option<ReviewedUser>, report: &TrafficReport) -> AdminPost {
    AdminPost { user, peer: None, body: Bytes::from(serde_json::to_vec(report).unwrap()) }
}

#[test]
fn a_token_reports_for_its_own_node_or_pod_alone() {
    let account = "system:serviceaccount:kube-system:zoneward-node";
    let node = user(account, Some("n1"), Some("zoneward-node-x"));
    assert_eq!(check_reporter("node/n1", &node), Ok(()));
    assert!(check_reporter("node/n2", &node).unwrap_err().contains("node \"n1\""));
    assert!(check_reporter("node/n1", &user(account, None, None)).unwrap_err().contains("names no node"));
    assert_eq!(check_reporter("node/n1", &user("system:node:n1", None, None)), Ok(()));
    assert!(check_reporter("node/n2", &user("system:node:n1", None, None)).is_err());
    let proxy = user("system:serviceaccount:shop:edge", Some("n1"), Some("edge-1"));
    assert_eq!(check_reporter("proxy/shop/edge-1", &proxy), Ok(()));
    for other in ["proxy/shop/edge-2", "proxy/bank/edge-1", "proxy/edge-1", "x", ""] {
        assert!(check_reporter(other, &proxy).is_err(), "{other}");
    }
    let joined = user("system:zoneward:gateway:shop:edge", Some("box-2"), None);
    assert_eq!(check_reporter("proxy/shop/box-2.gateway-edge", &joined), Ok(()));
    for other in ["proxy/shop/box-3.gateway-edge", "proxy/shop/gateway-edge", "node/box-2"] {
        assert!(check_reporter(other, &joined).is_err(), "{other}");
    }
    assert!(check_reporter("proxy/shop/edge-1", &user("admin", None, None)).is_err());
}

#[test]
fn reports_are_summed_and_priced_and_others_are_refused_with_the_reason() {
    let (ledger, time) = ledger(&["0.02"]);
    let node = || Some(user("system:node:n1", None, None));
    for (sequence, bytes) in [(1, 1_000_000_000), (2, 3_000_000_000)] {
        time.advance(Duration::from_secs(30));
        assert_eq!(ledger.receive(&post(node(), &report("node/n1", sequence, bytes))).status, StatusCode::OK);
    }
    let forged = ledger.receive(&post(node(), &report("node/n2", 1, 1)));
    assert_eq!(forged.status, StatusCode::FORBIDDEN);
    let malformed = AdminPost { user: node(), peer: None, body: Bytes::from_static(b"{}") };
    assert_eq!(ledger.receive(&malformed).status, StatusCode::BAD_REQUEST);
    let page: Value = serde_json::from_str(&ledger.page("window=3600").body).unwrap();
    assert_eq!(page["rows"][0]["zonePairs"][0]["bytes"], json!(3_000_000_000_u64));
    assert_eq!(page["since"], "1970-01-01T00:00:00Z");
    assert!((page["cost"]["usd"].as_f64().unwrap() - 0.06).abs() < 1e-9, "{page}");
    assert_eq!(ledger.page("window=x").status, StatusCode::BAD_REQUEST);
    let mut registry = Registry::default();
    ledger.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let sum = "zoneward_ledger_bytes_total{from_zone=\"a\",to_zone=\"b\",through=\"none\"} 3000000000";
    assert!(
        text.contains(sum) && text.contains("zoneward_ledger_reports_total{result=\"refused\"} 2"),
        "{text}"
    );
}

#[test]
fn a_standby_sends_reporters_to_the_leader_and_a_new_lead_starts_anew() {
    let (ledger, _) = ledger(&[]);
    ledger.receive(&post(None, &report("node/n1", 1, 10)));
    ledger.set_leading(false);
    let refused = ledger.receive(&post(None, &report("node/n1", 2, 20)));
    assert_eq!(refused.status, StatusCode::MISDIRECTED_REQUEST);
    assert_eq!(ledger.page("").status, StatusCode::MISDIRECTED_REQUEST);
    ledger.set_leading(true);
    assert!(ledger.read(DEFAULT_WINDOW).unwrap().sums.rows.is_empty());
}

#[test]
fn zones_of_pods_are_sent_until_the_reporter_has_them() {
    let (ledger, time) = ledger(&[]);
    let mut snapshot = Snapshot::default();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
        "spec": {"podCIDRs": ["10.1.0.0/24"], "podCIDR": "10.1.0.0/24", "providerID": "aws:///a/i-1"}});
    snapshot.apply(object(&node));
    ledger.read_nodes(&snapshot);
    let reply = |ledger: &SharedLedger, sequence, version| {
        let report = TrafficReport { pod_zones_version: version, ..report("node/n1", sequence, 1) };
        let post = AdminPost { peer: Some([10, 1, 0, 8].into()), ..post(None, &report) };
        serde_json::from_str::<TrafficReply>(&ledger.receive(&post).body).unwrap().pod_zones
    };
    let zones = reply(&ledger, 1, 0).unwrap();
    assert_eq!(reply(&ledger, 2, zones.version), None);
    assert_eq!(ledger.read(DEFAULT_WINDOW).unwrap().prices.source.as_deref(), Some("aws"));
    // The proxy counts its own traffic: nodes learn its address.
    let proxy = report("proxy/shop/edge", 1, 1);
    let posted = AdminPost { peer: Some([10, 1, 0, 9].into()), ..post(None, &proxy) };
    assert_eq!(ledger.receive(&posted).body, "{}");
    time.advance(Duration::from_secs(11));
    ledger.read_nodes(&snapshot);
    let newer = reply(&ledger, 3, zones.version).unwrap();
    assert_eq!(newer.proxies, BTreeSet::from([[10, 1, 0, 9].into()]));
    assert!(SharedLedger::new(&time.clock(), &["much".to_owned()]).is_err());
}

#[test]
fn a_reporter_whose_node_has_gone_is_not_silent_and_one_that_stays_is() {
    let (ledger, time) = ledger(&[]);
    let mut snapshot = Snapshot::default();
    for name in ["n1", "n2"] {
        snapshot.apply(model::Object::Node(model::Node::named(name).into()));
        ledger.receive(&post(None, &report(&format!("node/{name}"), 1, 1)));
    }
    ledger.receive(&post(None, &report("proxy/shop/edge-1", 1, 1)));
    let silent = |snapshot: &Snapshot| {
        time.advance(Duration::from_secs(11));
        ledger.read_nodes(snapshot);
        let sums = ledger.read(DEFAULT_WINDOW).unwrap().sums;
        (sums.reporters, sums.silent)
    };
    assert_eq!(silent(&snapshot), (3, Vec::new()));
    time.advance(Duration::from_secs(90));
    let both = ["node/n1", "node/n2"].map(str::to_owned).to_vec();
    assert_eq!(silent(&snapshot), (2, both), "the pod of the proxy is not there");
    snapshot.remove_node("n2");
    assert_eq!(silent(&snapshot), (1, vec!["node/n1".to_owned()]));
    // Its sums are remembered: when it returns, nothing is counted twice.
    ledger.receive(&post(None, &report("node/n2", 2, 1)));
    let rows = ledger.read(DEFAULT_WINDOW).unwrap().sums.rows;
    assert_eq!(rows[0].zone_pairs[0].bytes, 3);
}

#[test]
fn a_socket_for_reports_has_one_reporter_without_addresses() {
    let (ledger, time) = ledger(&[]);
    let amend = |report: &mut TrafficReport| {
        report.reporter = "proxy/default/edge".to_owned();
        report.addresses.clear();
    };
    let forged = TrafficReport { addresses: vec![[10, 1, 0, 1].into()], ..report("node/n1", 1, 5) };
    assert_eq!(ledger.receive_as(&post(None, &forged), amend).status, StatusCode::OK);
    ledger.with(|state, _| {
        assert_eq!(state.proxies.keys().collect::<Vec<_>>(), ["proxy/default/edge"]);
        assert!(state.proxies.values().all(|(proxy, _)| proxy.named.is_empty()));
    });
    let silent = || {
        time.advance(Duration::from_secs(101));
        ledger.read_nodes(&Snapshot::default());
        ledger.read(DEFAULT_WINDOW).unwrap().sums.silent
    };
    drop(ledger.report_routes("proxy/default/edge"));
    assert_eq!(silent(), ["proxy/default/edge"], "its process runs");
    ledger.close_reporter("proxy/default/edge");
    assert_eq!(silent(), Vec::<String>::new());
}

#[test]
fn ports_that_a_proxy_could_not_bind_are_published_until_it_is_bound_or_silent() {
    let (ledger, time) = ledger(&[]);
    let ports = ledger.unbound_ports();
    let port = |namespace: &str, number: u16| UnboundPort {
        namespace: namespace.to_owned(),
        gateway: "edge".to_owned(),
        is_udp: false,
        address: ([10, 0, 0, 1], number).into(),
        listener_port: None,
        envoy: String::new(),
        node: "n1".to_owned(),
        error: "x".repeat(1_000),
    };
    let send = |reporter: &str, unbound_ports: Vec<UnboundPort>| {
        let report = PortReport { reporter: reporter.to_owned(), unbound_ports };
        let body = Bytes::from(serde_json::to_vec(&report).unwrap());
        let post = AdminPost { user: None, peer: None, body };
        assert_eq!(ledger.receive_ports(&post, |_| {}).status, StatusCode::OK);
    };
    let known = || -> Vec<String> {
        let all = ports.borrow().clone().into_values().flatten().collect::<Vec<_>>();
        assert!(all.iter().all(|own| own.error.len() == 200));
        all.iter().map(|own| format!("{}:{}", own.key(), own.address.port())).collect()
    };
    send("proxy/shop/p1", vec![port("shop", 80), port("bank", 80)]);
    assert_eq!(known(), ["shop/edge:80"], "of its own namespace alone");
    send("node/n1", vec![port("shop", 81)]);
    assert_eq!(known(), ["shop/edge:80"], "nodes have no gateways");
    send("proxy/shop/p2", vec![port("shop", 80), port("shop", 443)]);
    assert_eq!(known(), ["shop/edge:80", "shop/edge:443"]);
    send("proxy/shop/p2", vec![]);
    assert_eq!(known(), ["shop/edge:80"], "another one still says so");
    time.advance(Duration::from_secs(80));
    ledger.read_nodes(&Snapshot::default());
    assert_eq!(known(), ["shop/edge:80"]);
    time.advance(Duration::from_secs(20));
    ledger.read_nodes(&Snapshot::default());
    assert_eq!(known(), Vec::<String>::new(), "silent");
    send("proxy/shop/p2", vec![port("shop", 80)]);
    ledger.close_reporter("proxy/shop/p2");
    assert_eq!(known(), Vec::<String>::new(), "its proxy has ended");
    send("proxy/shop/p2", vec![port("shop", 80)]);
    ledger.set_leading(false);
    assert_eq!(known(), Vec::<String>::new(), "another controller leads");
}

#[test]
fn a_report_of_traffic_says_nothing_about_ports_and_one_of_ports_nothing_about_traffic() {
    let (ledger, _) = ledger(&[]);
    let port = json!({"namespace": "shop", "gateway": "edge", "isUdp": false, "address": "10.0.0.1:80",
        "node": "n1", "error": "Address already in use"});
    // As an earlier version sends them.
    let mut traffic = serde_json::to_value(report("proxy/shop/p1", 1, 1)).unwrap();
    traffic["unboundPorts"] = json!([port]);
    let send = |body: &Value| AdminPost { user: None, peer: None, body: body.to_string().into() };
    assert_eq!(ledger.receive(&send(&traffic)).status, StatusCode::OK);
    assert!(ledger.unbound_ports().borrow().is_empty());
    let before = ledger.read(DEFAULT_WINDOW).unwrap().sums.reporters;
    let ports = json!({"reporter": "proxy/shop/p2", "unboundPorts": [port]});
    assert_eq!(ledger.receive_ports(&send(&ports), |_| {}).status, StatusCode::OK);
    assert_eq!(ledger.unbound_ports().borrow().len(), 1);
    assert_eq!(ledger.read(DEFAULT_WINDOW).unwrap().sums.reporters, before);
    let stranger =
        AdminPost { user: Some(user("system:serviceaccount:bank:edge", None, Some("p2"))), ..send(&ports) };
    assert_eq!(ledger.receive_ports(&stranger, |_| {}).status, StatusCode::FORBIDDEN);
}

#[test]
fn mesh_control_reports_ports_of_its_envoys_for_its_own_pod() {
    let (ledger, time) = ledger(&[]);
    let ports = ledger.unbound_ports();
    let port = |namespace: &str, gateway: &str| UnboundPort {
        namespace: namespace.to_owned(),
        gateway: gateway.to_owned(),
        is_udp: false,
        address: ([10, 0, 0, 1], 80).into(),
        listener_port: None,
        envoy: "x".repeat(1_000),
        node: String::new(),
        error: "Address already in use".to_owned(),
    };
    let send = |user: Option<ReviewedUser>, reporter: &str, ports: Vec<UnboundPort>| {
        let report = PortReport { reporter: reporter.to_owned(), unbound_ports: ports };
        let body = Bytes::from(serde_json::to_vec(&report).unwrap());
        ledger.receive_envoys(&AdminPost { user, peer: None, body }).status
    };
    let own =
        || Some(user("system:serviceaccount:kube-system:zoneward-mesh-control", None, Some("control-1")));
    let both = || vec![port("shop", "edge"), port("bank", "edge")];
    assert_eq!(send(own(), "control/kube-system/control-1", both()), StatusCode::OK);
    let known = || ports.borrow().keys().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(known(), ["bank/edge", "shop/edge"], "gateways of all namespaces");
    assert!(ports.borrow().values().flatten().all(|own| own.envoy.len() == 200));
    for wrong in [
        "control/kube-system/control-2",
        "control/shop/control-1",
        "proxy/kube-system/control-1",
        "control/x",
    ] {
        assert_eq!(send(own(), wrong, vec![]), StatusCode::FORBIDDEN, "{wrong}");
    }
    assert_eq!(send(None, "control/default/host-7", vec![port("shop", "edge")]), StatusCode::OK);
    assert_eq!(send(own(), "control/kube-system/control-1", vec![]), StatusCode::OK);
    assert_eq!(known(), ["shop/edge"], "another one still says so");
    time.advance(Duration::from_secs(91));
    ledger.read_nodes(&Snapshot::default());
    assert_eq!(known(), Vec::<String>::new(), "silent");
    ledger.set_leading(false);
    assert_eq!(send(own(), "control/kube-system/control-1", vec![]), StatusCode::MISDIRECTED_REQUEST);
}
