//! Each role runs with the arguments that the chart gives it, on an API that records its requests: the rendered Roles
//! allow every one of them.

use std::fs;
use std::process::{Child, Command, Stdio};

use fixtures::{TestCertificate, eventually};
use serde_json::{Value, json};

use crate::chart::api::{Recorded, TestApi};
use crate::chart::helm::ValueSet;

/// What a request asks for, in the words of RBAC.
#[derive(Debug, PartialEq, Eq)]
struct Access {
    verb: &'static str,
    group: String,
    /// With the subresource, as `services/status`.
    resource: String,
    namespace: Option<String>,
    name: Option<String>,
}

impl Access {
    /// `None` for paths outside of resources, such as `/version`, which every account may read.
    fn of(method: &str, target: &str) -> Option<Self> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        let (group, rest) = match segments.as_slice() {
            ["api", _, rest @ ..] => ("", rest),
            ["apis", group, _, rest @ ..] => (*group, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some(*namespace), rest),
            rest => (None, rest),
        };
        let resource = match (rest.first()?, rest.get(2)) {
            (resource, Some(below)) => format!("{resource}/{below}"),
            (resource, None) => (*resource).to_owned(),
        };
        // The name in a field selector counts, as in kube-apiserver.
        let selected = query.split('&').find_map(|pair| pair.strip_prefix("fieldSelector="));
        let selected = selected.map(|value| value.replace("%3D", "=").replace("%3d", "="));
        let selected = selected.as_deref().and_then(|value| value.strip_prefix("metadata.name="));
        let name = rest.get(1).copied().or(selected);
        let watches = query.split('&').any(|pair| pair == "watch=true" || pair == "watch=1");
        let verb = match (method, rest.get(1)) {
            ("GET", Some(_)) => "get",
            ("GET", None) if watches => "watch",
            ("GET", None) => "list",
            ("POST", _) => "create",
            ("PUT", _) => "update",
            ("PATCH", _) => "patch",
            ("DELETE", Some(_)) => "delete",
            _ => "deletecollection",
        };
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Some(Self { verb, group: group.to_owned(), resource, namespace: owned(namespace), name: owned(name) })
    }
}

fn has(list: &Value, word: &str) -> bool {
    list.as_array().is_some_and(|list| list.iter().any(|item| item == word))
}

/// Whether the Roles that are bound to an account allow an access.
fn allows(objects: &[Value], account: (&str, &str), access: &Access) -> bool {
    let is_bound = |binding: &&Value| {
        binding["subjects"].as_array().is_some_and(|subjects| {
            subjects.iter().any(|s| s["namespace"] == account.0 && s["name"] == account.1)
        })
    };
    let reaches = |binding: &&Value| {
        binding["kind"] == "ClusterRoleBinding"
            || access.namespace.as_deref() == binding["metadata"]["namespace"].as_str()
    };
    let mut rules = objects.iter().filter(is_bound).filter(reaches).flat_map(|binding| {
        let role = objects.iter().find(|role| {
            let same_namespace = role["metadata"]["namespace"] == binding["metadata"]["namespace"];
            role["kind"] == binding["roleRef"]["kind"]
                && role["metadata"]["name"] == binding["roleRef"]["name"]
                && (role["kind"] == "ClusterRole" || same_namespace)
        });
        role.and_then(|role| role["rules"].as_array().cloned()).unwrap_or_default()
    });
    let holds = |rule: Value| {
        let names = &rule["resourceNames"];
        has(&rule["verbs"], access.verb)
            && has(&rule["apiGroups"], &access.group)
            && has(&rule["resources"], &access.resource)
            && (names.is_null() || access.name.as_deref().is_some_and(|name| has(names, name)))
    };
    rules.any(holds)
}

/// A role that runs as its pod would, in a network namespace of its own.
struct Role {
    name: &'static str,
    account: (&'static str, &'static str),
    child: Child,
}

impl Role {
    fn start(
        api: &TestApi,
        objects: &[Value],
        name: &'static str,
        workload: &str,
        account: (&'static str, &'static str),
    ) -> Self {
        let of = |object: &&Value| {
            object["metadata"]["name"] == workload && object["spec"]["template"]["spec"].is_object()
        };
        let pod = &objects.iter().find(of).unwrap()["spec"]["template"]["spec"];
        let folder = api.folder.display().to_string();
        let arguments = pod["containers"][0]["args"].as_array().unwrap().iter().map(|word| {
            let word =
                word.as_str().unwrap().replace("$(NODE_NAME)", "node-a").replace("$(POD_IP)", "10.0.0.1");
            word.replace("/etc/zoneward", &folder).replace("/certs", &folder)
        });
        let log = fs::File::create(api.folder.join(format!("{name}.log"))).unwrap();
        let child = Command::new("unshare")
            .args(["--user", "--map-root-user", "--net", "--", env!("CARGO_BIN_EXE_zoneward")])
            .args(arguments)
            .arg("--api-socket")
            .arg(api.socket(name))
            .env("NODE_NAME", "node-a")
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { name, account, child }
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn accesses(requests: &[Recorded]) -> Vec<Access> {
    requests.iter().filter_map(|request| Access::of(&request.method, &request.target)).collect()
}

/// Waits until a role has asked for all of these: a verb and a resource.
fn until_asked(api: &TestApi, role: &str, wanted: &[(&str, &str)]) {
    eventually(&format!("{role} asks"), || {
        let made = accesses(&api.recorded(role));
        let is_there = |(verb, resource): &&(&str, &str)| {
            made.iter().any(|access| access.verb == *verb && access.resource == *resource)
        };
        let missing: Vec<_> = wanted.iter().filter(|wanted| !is_there(wanted)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let log = fs::read_to_string(api.folder.join(format!("{role}.log"))).unwrap_or_default();
        Err(format!("not yet for {missing:?}: {log}"))
    });
}

/// A certificate for `shop.example.com`, as a Secret, and as the files of the xDS server.
fn certificates(api: &TestApi) {
    let made = TestCertificate::of("shop.example.com");
    for (file, text) in [("tls.crt", &made.chain), ("tls.key", &made.key), ("ca.crt", &made.chain)] {
        fs::write(api.folder.join(file), text).unwrap();
    }
    for name in ["shop-example-com", "api-example-com"] {
        api.create("/api/v1/namespaces/default/secrets", made.secret(name));
    }
}

/// Something for every role to do.
fn workload(api: &TestApi) {
    for (node, zone) in [("node-a", "zone-a"), ("node-b", "zone-b")] {
        let labels = json!({"topology.kubernetes.io/zone": zone, "kubernetes.io/os": "linux"});
        let node = json!({"metadata": {"name": node, "labels": labels},
            "status": {"conditions": [{"type": "Ready", "status": "True"}],
                "addresses": [{"type": "InternalIP", "address": if zone == "zone-a" { "192.0.2.1" } else { "192.0.2.2" }}]}});
        create_with_status(api, "/api/v1/nodes", &node);
    }
    // The annotation is wrong, which is worth an Event.
    let service = json!({"metadata": {"name": "cart", "annotations": {"zoneward.dev/traffic-distribution": "Nearby"}},
        "spec": {"selector": {"app": "cart"}, "trafficDistribution": "PreferSameZone",
            "ports": [{"name": "http", "port": 80}]}});
    api.create("/api/v1/namespaces/shop/services", service);
    pod(api, "cart-1", "10.244.0.1");
    let gateway = json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshGateway", "metadata": {"name": "edge"},
        "spec": {"listeners": [{"name": "https", "port": 8443, "protocol": "HTTPS", "hostname": "shop.example.com",
            "tls": {"certificateRef": {"name": "shop-example-com"}}}]}});
    api.create("/apis/zoneward.dev/v1alpha1/namespaces/default/meshgateways", gateway);
}

/// The API takes a status only by its subresource.
fn create_with_status(api: &TestApi, path: &str, object: &Value) {
    api.create(path, object.clone());
    let path = format!("{path}/{}/status", object["metadata"]["name"].as_str().unwrap());
    let answer = api.up.ask("PUT", &path, &object.to_string());
    assert_eq!(answer.code, 200, "{}", answer.body);
}

fn pod(api: &TestApi, name: &str, address: &str) {
    let pod = json!({"metadata": {"name": name, "labels": {"app": "cart"}},
        "spec": {"nodeName": "node-a", "containers": [{"name": "cart", "image": "cart"}]},
        "status": fixtures::pod_status(&[address], true)});
    create_with_status(api, "/api/v1/namespaces/shop/pods", &pod);
}

#[test]
fn the_rendered_roles_allow_every_request_that_a_role_makes() {
    let api = TestApi::start("chart-rights");
    let objects = ValueSet::named("everything").objects();
    certificates(&api);
    api.create("/api/v1/namespaces", json!({"metadata": {"name": "zoneward-node-lease"}}));
    workload(&api);
    let config = objects.iter().find(|object| object["kind"] == "ConfigMap").unwrap();
    fs::write(api.folder.join("config.yaml"), config["data"]["config.yaml"].as_str().unwrap()).unwrap();
    let controller = Role::start(
        &api,
        &objects,
        "controller",
        "zoneward-controller",
        ("kube-system", "zoneward-controller"),
    );
    let node = Role::start(&api, &objects, "node", "zoneward-node", ("kube-system", "zoneward-node"));
    let gateway =
        Role::start(&api, &objects, "gateway", "zoneward-gateway-edge", ("default", "zoneward-gateway-edge"));
    let control = Role::start(
        &api,
        &objects,
        "control",
        "zoneward-mesh-control",
        ("kube-system", "zoneward-mesh-control"),
    );

    let conditions = [("patch", "services/status"), ("patch", "meshgateways/status"), ("create", "events")];
    until_asked(&api, "controller", &conditions);
    until_asked(
        &api,
        "controller",
        &[("create", "endpointslices"), ("create", "leases"), ("update", "leases")],
    );
    until_asked(
        &api,
        "node",
        &[("create", "leases"), ("watch", "endpointslices"), ("watch", "servicecidrs")],
    );
    let routes = [("watch", "meshhttproutes"), ("watch", "pods")];
    until_asked(&api, "gateway", &[&routes[..], &[("watch", "secrets")]].concat());
    // It reads Secrets when an Envoy asks for them, by the same code as the gateway.
    until_asked(&api, "control", &routes);
    pod(&api, "cart-2", "10.244.0.2");
    until_asked(&api, "controller", &[("patch", "endpointslices")]);
    let deleted = api.up.ask("DELETE", "/api/v1/namespaces/shop/services/cart", "");
    assert_eq!(deleted.code, 200, "{}", deleted.body);
    until_asked(&api, "node", &[("patch", "leases")]);

    let mut refused = Vec::new();
    for role in [&controller, &node, &gateway, &control] {
        for request in api.recorded(role.name) {
            if let Some(access) = Access::of(&request.method, &request.target)
                && !allows(&objects, role.account, &access)
            {
                refused.push(format!("{}: {access:?}", role.name));
            }
        }
    }
    refused.sort_unstable();
    refused.dedup();
    assert!(refused.is_empty(), "{refused:#?}");
}

#[test]
fn the_evaluation_of_rules_is_strict() {
    let objects = ValueSet::named("everything").objects();
    let node = ("kube-system", "zoneward-node");
    let may = |account, method, target| allows(&objects, account, &Access::of(method, target).unwrap());
    assert!(may(node, "GET", "/api/v1/services?watch=true"));
    assert!(!may(node, "GET", "/api/v1/secrets"), "not its resource");
    assert!(!may(node, "GET", "/api/v1/services/x"), "not its verb");
    let leases = "/apis/coordination.k8s.io/v1/namespaces/zoneward-node-lease/leases/zoneward-node-a";
    assert!(may(node, "PATCH", leases));
    assert!(
        !may(node, "PATCH", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/zoneward-controller"),
        "the leader's Lease"
    );
    assert!(
        !may(node, "PATCH", "/apis/coordination.k8s.io/v1/namespaces/default/leases/x"),
        "not its namespace"
    );
    let gateway = ("default", "zoneward-gateway-edge");
    let named =
        "/api/v1/namespaces/default/secrets?fieldSelector=metadata.name%3Dshop-example-com&watch=true";
    assert!(may(gateway, "GET", named) && may(("kube-system", "zoneward-mesh-control"), "GET", named));
    assert!(!may(gateway, "GET", "/api/v1/namespaces/default/secrets?watch=true"), "all Secrets");
    assert!(!may(("default", "zoneward-node"), "GET", "/api/v1/services"), "another account of that name");
    assert_eq!(Access::of("GET", "/version"), None);
}

#[test]
fn the_controller_may_list_events_for_the_dashboard_and_the_node_proxy_may_not() {
    let objects = ValueSet::named("everything").objects();
    let events = "/api/v1/namespaces/shop/events?fieldSelector=involvedObject.name%3Dcart";
    let list = Access::of("GET", events).unwrap();
    assert!(allows(&objects, ("kube-system", "zoneward-controller"), &list));
    assert!(!allows(&objects, ("kube-system", "zoneward-node"), &list));
}

#[test]
fn every_role_with_metrics_may_review_tokens_unless_they_are_plain() {
    let accounts = [
        ("kube-system", "zoneward-controller"),
        ("kube-system", "zoneward-node"),
        ("kube-system", "zoneward-mesh-control"),
        ("default", "zoneward-gateway-edge"),
    ];
    let reviews =
        ["/apis/authentication.k8s.io/v1/tokenreviews", "/apis/authorization.k8s.io/v1/subjectaccessreviews"];
    let objects = ValueSet::named("everything").objects();
    for (account, review) in accounts.iter().flat_map(|account| reviews.map(|review| (*account, review))) {
        assert!(allows(&objects, account, &Access::of("POST", review).unwrap()), "{account:?} {review}");
    }
    let plain = ValueSet::named("single-node").objects();
    let controller = ("kube-system", "zoneward-controller");
    assert!(!allows(&plain, controller, &Access::of("POST", reviews[0]).unwrap()), "metrics.plainHTTP");
    let scheme = |objects: &[Value]| {
        let deployment = objects.iter().find(|object| object["kind"] == "Deployment").unwrap();
        let pod = &deployment["spec"]["template"];
        let flags = pod["spec"]["containers"][0]["args"].as_array().unwrap().clone();
        let scheme = pod["metadata"]["annotations"]["prometheus.io/scheme"].clone();
        (scheme, flags.contains(&json!("--metrics-plain-http")))
    };
    assert_eq!(scheme(&objects), (json!("https"), false));
    assert_eq!(scheme(&plain), (Value::Null, true));
}

#[test]
fn leases_of_nodes_can_have_a_namespace_of_their_own() {
    let objects = ValueSet::named("managed").objects();
    let may = |account: &str, method: &str, target: &str| {
        allows(&objects, ("kube-system", account), &Access::of(method, target).unwrap())
    };
    let leases = |namespace: &str| format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
    let (own, leader) = (leases("zoneward-leases"), leases("kube-system"));
    assert!(may("zoneward-node", "PATCH", &format!("{own}/zoneward-node-a")));
    assert!(!may("zoneward-node", "PATCH", &format!("{leader}/zoneward-controller")), "the leader's Lease");
    assert!(may("zoneward-controller", "GET", &format!("{own}?watch=true")));
    assert!(may("zoneward-controller", "PUT", &format!("{leader}/zoneward-controller")));
}

#[test]
fn mesh_control_alone_may_report_about_envoys() {
    let objects = ValueSet::named("everything").objects();
    let of = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
    let grants = |role: &&Value| role["rules"].to_string().contains("/ledger/envoys");
    let roles: Vec<&Value> = of("ClusterRole").filter(grants).map(|role| &role["metadata"]["name"]).collect();
    assert_eq!(roles, [&json!("zoneward-mesh-control-reports")]);
    let bound = of("ClusterRoleBinding").filter(|binding| binding["roleRef"]["name"] == *roles[0]);
    let subjects: Vec<&Value> = bound.flat_map(|binding| binding["subjects"].as_array().unwrap()).collect();
    let wanted =
        json!({"kind": "ServiceAccount", "name": "zoneward-mesh-control", "namespace": "kube-system"});
    assert_eq!(subjects, [&wanted]);
}
