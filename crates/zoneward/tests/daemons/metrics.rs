//! Metrics of running daemons: valid for Prometheus, complete from the first scrape on, and as the reference lists them.

use std::collections::BTreeSet;
use std::path::Path;

use fixtures::eventually;
use serde_json::json;

use crate::daemons::exposition::{self, Families, check, check_with_promtool};
use crate::daemons::reference;
use crate::daemons::world::{Daemon, Folder, get};
use crate::started::ask;

/// A daemon of the test: where its metrics are, and the headings of the reference that list them.
const DAEMONS: [(&str, &str, &[&str]); 6] = [
    ("up", "127.0.0.1:10270", &["Every daemon", "EndpointSlice controller", "Embedded API"]),
    ("node", "127.0.0.1:10249", &["Every daemon", "Node proxy"]),
    ("sidecar", "127.0.0.1:10280", &["Every daemon", "L7 proxy"]),
    ("gateway", "127.0.0.1:10281", &["Every daemon", "L7 proxy"]),
    ("controller", "127.0.0.1:10400", &["Every daemon", "EndpointSlice controller"]),
    ("control", "127.0.0.1:10272", &["Every daemon", "xDS server"]),
];

/// Starts one of everything, each at its usual port.
fn start(folder: &Folder) -> Vec<Daemon> {
    let data = folder.path("data");
    let socket = folder.path("data/api.sock");
    let up = ["up", "--data-dir", &data, "--zone", "zone-a", "--sidecar", "frontend:18081=backend"];
    let up = Daemon::start(folder, "up", &up);
    eventually("the API", || get("127.0.0.1:10270", "/readyz"));
    let gateway = json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshGateway", "metadata": {"name": "edge"},
        "spec": {"listeners": [{"name": "http", "port": 18080, "protocol": "HTTP"}]}});
    let path = "/apis/zoneward.dev/v1alpha1/namespaces/default/meshgateways";
    let made = ask(Path::new(&data), "POST", path, &gateway.to_string());
    assert_eq!(made.code, 201, "{}", made.body);
    let controller = ["controller", "--api-socket", &socket, "--bind-address", "127.0.0.1:10400"];
    let controller = Daemon::start(folder, "controller", &controller);
    let control = Daemon::start(folder, "control", &["mesh", "control", "--api-socket", &socket]);
    vec![controller, control, up]
}

#[test]
fn every_daemon_exposes_the_metrics_of_the_reference_from_the_first_scrape_on() {
    toolbox::in_own_namespaces!();
    let folder = Folder::new("metrics");
    let daemons = start(&folder);
    let reference = reference::read();
    for (name, address, headings) in DAEMONS {
        let text = eventually(name, || get(address, "/metrics"));
        println!("{name}: {} lines", text.lines().count());
        check_with_promtool(&text);
        let families = exposition::parse(&text);
        check(&families);
        check_reference(name, &families, &reference, headings);
        check_buckets(&families);
        if name == "node" {
            check_kube_proxy(&families);
        }
    }
    daemons.into_iter().for_each(Daemon::stop);
}

fn check_reference(
    daemon: &str,
    families: &Families,
    reference: &std::collections::BTreeMap<String, std::collections::BTreeMap<String, reference::Row>>,
    headings: &[&str],
) {
    let rows: std::collections::BTreeMap<&String, &reference::Row> =
        headings.iter().flat_map(|heading| &reference[*heading]).collect();
    let listed: BTreeSet<&String> = rows.keys().copied().collect();
    let unlisted: Vec<&String> = families.keys().filter(|name| !listed.contains(name)).collect();
    assert_eq!(unlisted, Vec::<&String>::new(), "{daemon}: not in docs/reference/metrics.md");
    for (name, row) in rows {
        let Some(family) = families.get(name).filter(|family| !family.samples.is_empty()) else {
            assert!(!row.at_start, "{daemon}: {name} has no series before the first event");
            continue;
        };
        assert_eq!(family.kind, row.kind, "{daemon}: {name}");
        assert_eq!(family.labels(), row.labels.iter().map(String::as_str).collect(), "{daemon}: {name}");
    }
}

/// The upper bounds of Kubernetes' own programs, so that quantiles of dashboards and alerts mean the same.
fn check_buckets(families: &Families) {
    let doubled = |first: f64| (0..15).map(|i| first * f64::from(1u32 << i)).collect::<Vec<f64>>();
    let programming: Vec<f64> = [0.25, 0.5]
        .into_iter()
        .chain((1..60).map(f64::from))
        .chain((60..=115).step_by(5).map(f64::from))
        .chain((120..=300).step_by(30).map(f64::from))
        .collect();
    let client = vec![0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
    for (name, wanted) in [
        ("kubeproxy_sync_proxy_rules_duration_seconds", doubled(0.001)),
        ("kubeproxy_sync_full_proxy_rules_duration_seconds", doubled(0.001)),
        ("kubeproxy_sync_partial_proxy_rules_duration_seconds", doubled(0.001)),
        ("kubeproxy_conntrack_reconciler_sync_duration_seconds", doubled(0.001)),
        ("kubeproxy_network_programming_duration_seconds", programming),
        ("endpoint_slice_controller_endpoints_added_per_sync", doubled(2.0)),
        ("endpoint_slice_controller_endpoints_removed_per_sync", doubled(2.0)),
        ("rest_client_request_duration_seconds", client),
    ] {
        let Some(family) = families.get(name) else { continue };
        let mut bounds: Vec<f64> = family.bounds().iter().map(|bound| bound.parse().unwrap()).collect();
        bounds.sort_by(f64::total_cmp);
        assert_eq!(bounds.pop(), Some(f64::INFINITY), "{name}");
        let is_same = |pair: (&f64, &f64)| (pair.0 - pair.1).abs() < 1e-9;
        assert!(
            bounds.len() == wanted.len() && bounds.iter().zip(&wanted).all(is_same),
            "{name}: {bounds:?}"
        );
    }
}

/// kube-proxy has one series for each family of addresses.
fn check_kube_proxy(families: &Families) {
    let by_family = families.iter().filter(|(_, family)| family.labels().contains("ip_family"));
    let mut count = 0;
    for (name, family) in by_family {
        count += 1;
        for ip_family in ["IPv4", "IPv6"] {
            assert!(family.value(&[("ip_family", ip_family)]).is_some(), "{name} {ip_family}");
        }
    }
    assert_eq!(count, 14, "metrics by ip_family");
}

#[test]
fn the_ports_of_children_can_be_chosen() {
    toolbox::in_own_namespaces!();
    let folder = Folder::new("ports");
    let (data, config) = (folder.path("data"), folder.path("node.yaml"));
    let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n\
                metricsBindAddress: 127.0.0.1:11249\n";
    std::fs::write(&config, text).unwrap();
    let up = Daemon::start(
        &folder,
        "up",
        &[
            "up",
            "--data-dir",
            &data,
            "--node-config",
            &config,
            "--metrics-bind-address",
            "127.0.0.1:11270",
            "--mesh-metrics-bind-address",
            "127.0.0.1:11280",
            "--sidecar",
            "frontend:18081=backend",
            "--sidecar",
            "frontend:18082=backend",
        ],
    );
    for address in ["127.0.0.1:11270", "127.0.0.1:11249", "127.0.0.1:11280", "127.0.0.1:11281"] {
        let text = eventually(address, || get(address, "/metrics"));
        assert!(text.contains("zoneward_build_info{"), "{address}");
    }
    up.stop();
}
