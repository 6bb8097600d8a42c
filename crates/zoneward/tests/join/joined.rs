//! Machines that have joined: connections through the cluster IP, what a machine may write, revocation, and the API away.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;

use fixtures::eventually;
use serde_json::{Value, json};

use super::boxes::{Machine, is_in_snapshot, machines};

pub const SERVICES: &str = "/api/v1/namespaces/default/services";
pub const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";

/// Creates Service `web` without a selector; its address.
pub fn create_web(api: &Machine) -> SocketAddr {
    let web = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}], "ipFamilies": ["IPv4"]}});
    let (code, web) = api.admin("POST", SERVICES, &web.to_string());
    assert_eq!(code, 201, "{web}");
    format!("{}:80", web["spec"]["clusterIP"].as_str().unwrap()).parse().unwrap()
}

pub fn expose(machine: &Machine) {
    machine.serve(8080);
    let (to, kubeconfig) =
        (format!("{}:8080", machine.address()), machine.kubeconfig().display().to_string());
    let words = ["expose", "web", "--port", "80", "--to", &to, "--kubeconfig", &kubeconfig];
    assert_eq!(machine.run_json(&words)["changed"], true);
    assert_eq!(machine.run_json(&words)["changed"], false, "again is nothing");
}

/// Waits until connections from a machine reach these, and no others.
pub fn until_reached(from: &Machine, to: SocketAddr, names: &[&str]) {
    let wanted: BTreeSet<String> = names.iter().map(|name| (*name).to_owned()).collect();
    eventually(&format!("{names:?} from {}", from.name()), || {
        let seen: BTreeSet<String> = (0..24).map_while(|_| from.connect(to)).collect();
        seen == wanted
    });
}

fn addresses(api: &Machine) -> Vec<String> {
    let (_, list) = api.admin("GET", &format!("{SLICES}?labelSelector=kubernetes.io/service-name%3Dweb"), "");
    let slices = list["items"].as_array().cloned().unwrap_or_default();
    let endpoints =
        slices.iter().flat_map(|slice| slice["endpoints"].as_array().cloned().unwrap_or_default());
    let mut all: Vec<String> = endpoints.map(|e| e["addresses"][0].as_str().unwrap().to_owned()).collect();
    all.sort();
    all
}

#[test]
fn three_machines_join_and_connect_until_a_node_is_deleted() {
    toolbox::in_own_namespaces!();
    let [first, second, third] = machines("three");
    let up = first.up();
    let server = ["--server", "https://10.0.0.1:6443"];
    let (for_second, for_third) = (first.token("box-2", &server), first.token("box-3", &server));
    let mut joined = second.join(&for_second);
    let still_joined = third.join(&for_third);
    let mode = std::fs::metadata(second.kubeconfig()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let zone = || {
        first.admin("GET", "/api/v1/nodes/box-2", "").1["metadata"]["labels"]["topology.kubernetes.io/zone"]
            .clone()
    };
    eventually("the zone", || zone() == "zone-2");

    let web = create_web(&first);
    expose(&second);
    expose(&third);
    assert_eq!(addresses(&first), ["10.0.0.2", "10.0.0.3"]);
    for machine in [&first, &second, &third] {
        until_reached(machine, web, &["box-2:8080", "box-3:8080"]);
    }
    eventually("the Lease", || first.admin("GET", &format!("{LEASES}/zoneward-node-box-2"), "").0 == 200);

    // A restart needs no token, and renews the credential.
    let before = std::fs::read(second.kubeconfig()).unwrap();
    assert_eq!(joined.stop(), Some(0));
    std::thread::sleep(std::time::Duration::from_millis(1_100));
    let joined = second.start(&["join"]);
    assert_ne!(std::fs::read(second.kubeconfig()).unwrap(), before, "renewed");
    until_reached(&second, web, &["box-2:8080", "box-3:8080"]);

    let watch = second.watch();
    assert_eq!(first.admin("DELETE", "/api/v1/nodes/box-2", "").0, 200);
    watch.join().unwrap();
    let (code, message) = second.ask(&second.kubeconfig(), "GET", "/api/v1/services", &Value::Null);
    assert_eq!(code, 401);
    assert!(
        message.as_str().unwrap().contains("node box-2 is revoked, because its Node was deleted"),
        "{message}"
    );
    eventually("its endpoints are gone", || addresses(&first) == ["10.0.0.3"]);
    for machine in [&first, &third] {
        until_reached(machine, web, &["box-3:8080"]);
    }
    drop(joined);
    let data = second.data.display().to_string();
    let said = second.refused(&["join", "--data-dir", &data]);
    assert!(said.contains("refuses the credential") && said.contains("its Node was deleted"), "{said}");

    // With another token it joins again, although the old credential is still stored.
    let again = second.join(&first.token("box-2", &server));
    assert_eq!(second.ask(&second.kubeconfig(), "GET", "/api/v1/services", &Value::Null).0, 200);
    until_reached(&second, web, &["box-3:8080"]);
    drop((again, still_joined, up));
    [first, second, third].iter().for_each(Machine::remove);
}

/// What machine box-2 may not do: method, path and body.
fn attempts(uid: &str) -> Vec<(&'static str, String, Value)> {
    let slice = |node: &str, service: &str, namespace: &str| {
        json!({"metadata": {"name": "x", "namespace": namespace,
            "labels": {"kubernetes.io/service-name": service, "zoneward.dev/expose-node": node,
                "endpointslice.kubernetes.io/managed-by": "expose.zoneward.dev"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "box-2", "uid": uid}]},
            "addressType": "IPv4", "ports": [{"port": 80}],
            "endpoints": [{"addresses": ["10.0.0.2"], "nodeName": node}]})
    };
    let plain = |name: &str| json!({"metadata": {"name": name}});
    let admin = json!({"metadata": {"name": "mine"}, "subjects": [{"kind": "User", "name": "system:node:box-2",
        "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}});
    let event = json!({"metadata": {"name": "e", "namespace": "default"}, "reason": "x", "source": {"host": "box-3"},
        "involvedObject": {"kind": "Node", "name": "box-3"}});
    let secrets = "/api/v1/namespaces/kube-system/secrets";
    let nothing = Value::Null;
    let with = |path: &str, rest: &str| format!("{path}{rest}");
    vec![
        ("GET", "/api/v1/secrets".to_owned(), nothing.clone()),
        ("GET", secrets.to_owned(), nothing.clone()),
        ("POST", secrets.to_owned(), plain("zoneward-join-abcdef")),
        ("GET", "/api/v1/configmaps".to_owned(), nothing.clone()),
        ("POST", "/api/v1/nodes".to_owned(), plain("box-4")),
        ("PATCH", "/api/v1/nodes/box-3".to_owned(), json!({"metadata": {"labels": {"a": "b"}}})),
        ("PATCH", "/api/v1/nodes/box-3/status".to_owned(), json!({"status": {"conditions": []}})),
        ("DELETE", "/api/v1/nodes/box-3".to_owned(), nothing.clone()),
        ("DELETE", "/api/v1/nodes/box-2".to_owned(), nothing.clone()),
        ("PATCH", "/api/v1/nodes/box-2".to_owned(), json!({"metadata": {"finalizers": ["a.b/c"]}})),
        (
            "PATCH",
            "/api/v1/nodes/box-2".to_owned(),
            json!({"spec": {"podCIDR": "10.0.0.0/8", "podCIDRs": ["10.0.0.0/8"]}}),
        ),
        ("POST", SERVICES.to_owned(), json!({"metadata": {"name": "y"}, "spec": {"ports": [{"port": 80}]}})),
        ("PATCH", with(SERVICES, "/web"), json!({"spec": {"externalIPs": ["10.0.0.3"]}})),
        ("DELETE", with(SERVICES, "/web"), nothing.clone()),
        ("PATCH", with(LEASES, "/zoneward-controller"), json!({"spec": {"holderIdentity": "box-2"}})),
        ("POST", LEASES.to_owned(), json!({"metadata": {"name": "zoneward-node-box-9"}, "spec": {}})),
        ("POST", "/api/v1/namespaces/default/events".to_owned(), event),
        ("POST", SLICES.to_owned(), slice("box-3", "web", "default")),
        ("POST", SLICES.to_owned(), slice("box-2", "kubernetes", "default")),
        ("POST", SLICES.to_owned(), slice("box-2", "selecting", "default")),
        ("PATCH", with(SLICES, "/kubernetes"), json!({"endpoints": []})),
        ("PATCH", with(SLICES, "/web-80-tcp-ipv4-8080-box-3"), json!({"endpoints": []})),
        ("DELETE", with(SLICES, "/web-80-tcp-ipv4-8080-box-3"), nothing.clone()),
        ("DELETE", SLICES.to_owned(), nothing.clone()),
        ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings".to_owned(), admin),
        ("POST", "/api/v1/namespaces/default/serviceaccounts/default/token".to_owned(), json!({"spec": {}})),
        ("GET", "/backup".to_owned(), nothing),
    ]
}

#[test]
fn joined_machine_writes_its_own_objects_alone() {
    toolbox::in_own_namespaces!();
    let [first, second, third] = machines("own");
    let up = first.up();
    let server = ["--server", "https://10.0.0.1:6443"];
    let joined = [second.join(&first.token("box-2", &server)), third.join(&first.token("box-3", &server))];
    create_web(&first);
    let selecting =
        json!({"metadata": {"name": "selecting"}, "spec": {"selector": {"a": "b"}, "ports": [{"port": 80}]}});
    assert_eq!(first.admin("POST", SERVICES, &selecting.to_string()).0, 201);
    expose(&second);
    expose(&third);
    eventually("the Lease of the controller", || {
        first.admin("GET", &format!("{LEASES}/zoneward-controller"), "").0 == 200
    });

    let kubeconfig = second.kubeconfig();
    let node = second.ask(&kubeconfig, "GET", "/api/v1/nodes/box-2", &Value::Null).1;
    let attempts = attempts(node["metadata"]["uid"].as_str().unwrap());
    for (method, path, body) in &attempts {
        let (code, message) = second.ask(&kubeconfig, method, path, body);
        assert_eq!(code, 403, "{method} {path}: {message}");
    }
    let recorded = || {
        let refused = |event: &Value| {
            event["user"]["username"] == "system:node:box-2" && event["responseStatus"]["code"] == 403
        };
        first.audit().iter().filter(|event| refused(event)).count()
    };
    eventually("the audit log", || recorded() >= attempts.len());
    // Its own objects it may write.
    let own = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(second.ask(&kubeconfig, "PATCH", "/api/v1/nodes/box-2", &own).0, 200);
    let slice = format!("{SLICES}/web-80-tcp-ipv4-8080-box-2");
    let kubeconfig_text = kubeconfig.display().to_string();
    assert_eq!(second.ask(&kubeconfig, "GET", &slice, &Value::Null).0, 200);
    let removed =
        second.run_json(&["expose", "web", "--port", "80", "--remove", "--kubeconfig", &kubeconfig_text]);
    assert_eq!(removed["changed"], true);
    assert_eq!(addresses(&first), ["10.0.0.3"], "those of the other machine stay");
    let missing = second.run(&[
        "expose",
        "shop",
        "--port",
        "80",
        "--to",
        "10.0.0.2:80",
        "--kubeconfig",
        &kubeconfig_text,
    ]);
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(said.contains("Service default/shop without a selector and with port 80 has to exist"), "{said}");
    drop((joined, up));
    [first, second, third].iter().for_each(Machine::remove);
}

#[test]
fn joined_machine_serves_while_the_api_is_away_and_after_its_restart() {
    toolbox::in_own_namespaces!();
    let [first, second] = machines("away");
    let mut up = first.up();
    let mut joined = second.join(&first.token("box-2", &["--server", "https://10.0.0.1:6443"]));
    let web = create_web(&first);
    expose(&second);
    until_reached(&second, web, &["box-2:8080"]);
    let snapshot = second.data.join("snapshot.json");
    eventually("the snapshot", || is_in_snapshot(&snapshot, "web-80-tcp"));
    up.kill();
    until_reached(&second, web, &["box-2:8080"]);
    joined.kill();
    let joined = second.start(&["join"]);
    for _ in 0..20 {
        assert_eq!(second.connect(web).as_deref(), Some("box-2:8080"), "not one connection fails");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    // A reboot empties the kernel: the snapshot is served, and its age is logged.
    drop(joined);
    let cleanup = second.run(&["cleanup", "--only-zoneward"]);
    assert!(cleanup.status.success(), "{}", String::from_utf8_lossy(&cleanup.stderr));
    let none = second.connect_within(web, std::time::Duration::from_millis(300));
    assert_eq!(none, None, "no rules");
    let joined = second.start(&["join"]);
    until_reached(&second, web, &["box-2:8080"]);
    let log = std::fs::read_to_string(second.log()).unwrap();
    assert!(log.contains("serving the snapshot of its objects") && log.contains("age_seconds"), "{log}");

    // When the API is back, changes arrive again.
    let up = first.up();
    second.serve(8081);
    let kubeconfig = second.kubeconfig().display().to_string();
    second.run_json(&["expose", "web", "--port", "80", "--to", "10.0.0.2:8081", "--kubeconfig", &kubeconfig]);
    until_reached(&second, web, &["box-2:8081"]);
    drop((joined, up));
    [first, second].iter().for_each(Machine::remove);
}

/// The machine that hosts the processes checks them, and its node proxy serves DNS.
#[test]
fn joined_machine_checks_its_processes_and_serves_names() {
    toolbox::in_own_namespaces!();
    let [first, second] = machines("checks");
    let up = first.up();
    let token = first.token("box-2", &["--server", "https://10.0.0.1:6443"]);
    let words = Machine::join_words(&token);
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    words.push("--dns=10.0.0.2:53");
    let said = second.run(&words).stderr;
    assert!(String::from_utf8_lossy(&said).contains("expected a loopback address"), "{said:?}");
    words.pop();
    words.extend(["--zone", "zone-2", "--dns"]);
    let joined = second.start(&words);
    let web = create_web(&first);
    second.serve(8080);
    let kubeconfig = second.kubeconfig().display().to_string();
    let expose = |to: &str| {
        let check = ["--check", "tcp", "--check-interval", "1s", "--check-failures", "1"];
        let words = ["expose", "web", "--port", "80", "--to", to, "--kubeconfig", &kubeconfig];
        assert_eq!(second.run_json(&[&words[..], &check].concat())["changed"], true);
    };
    expose("10.0.0.2:8080");
    until_reached(&second, web, &["box-2:8080"]);
    // DNS messages over TCP: a length, then the query of `web.default.svc.cluster.local`, type A.
    let mut query = vec![0, 47, 0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in ["web", "default", "svc", "cluster", "local"] {
        query.push(label.len() as u8);
        query.extend(label.as_bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    query[1] = (query.len() - 2) as u8;
    let std::net::IpAddr::V4(ip) = web.ip() else { panic!("another family") };
    let name = "127.0.0.10:53".parse().unwrap();
    eventually("the name", || {
        second.exchange(name, &query).is_some_and(|answer| answer.ends_with(&ip.octets()))
    });
    // Nothing listens there: the endpoint does not become ready.
    expose("10.0.0.2:8099");
    let ready = || {
        let (_, list) =
            first.admin("GET", &format!("{SLICES}?labelSelector=kubernetes.io/service-name%3Dweb"), "");
        let slice = &list["items"][0];
        let reason = slice["metadata"]["annotations"]["zoneward.dev/not-ready"].as_str().unwrap_or_default();
        (slice["endpoints"][0]["conditions"]["ready"] == true, reason.to_owned())
    };
    eventually("the reason", || {
        let (is_ready, reason) = ready();
        !is_ready && reason.contains("refused")
    });
    eventually("rules without the endpoint", || second.connect(web).is_none());
    second.serve(8099);
    until_reached(&second, web, &["box-2:8099"]);
    drop((joined, up));
    [first, second].iter().for_each(Machine::remove);
}
