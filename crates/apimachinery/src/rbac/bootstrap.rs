//! The roles and bindings that exist from the start, and how a stored one is brought up to date.
//!
//! Only what is missing is added: rules and subjects that were added by hand stay. An object with the annotation
//! `rbac.authorization.kubernetes.io/autoupdate: "false"` is left as it is.

use serde_json::{Map, Value, json};

use super::{GROUP, PolicyRule, uncovered};
use crate::join;

/// Whether an object is brought up to date at start.
const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "delete", "deletecollection", "patch", "update"];
const CREATE: &[&str] = &["create"];

/// Kinds of a namespace that its users write, without those that grant rights.
const EDITED: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "configmaps",
            "events",
            "persistentvolumeclaims",
            "pods",
            "replicationcontrollers",
            "replicationcontrollers/scale",
            "serviceaccounts",
            "services",
        ],
    ),
    (
        "apps",
        &[
            "daemonsets",
            "deployments",
            "deployments/rollback",
            "deployments/scale",
            "replicasets",
            "replicasets/scale",
            "statefulsets",
            "statefulsets/scale",
        ],
    ),
    ("autoscaling", &["horizontalpodautoscalers"]),
    ("batch", &["cronjobs", "jobs"]),
    (
        "gateway.networking.k8s.io",
        &["gateways", "grpcroutes", "httproutes", "listenersets", "tcproutes", "tlsroutes", "udproutes"],
    ),
    ("networking.k8s.io", &["ingresses", "networkpolicies"]),
    ("policy", &["poddisruptionbudgets"]),
    ("zoneward.dev", MESH_KINDS),
];

/// Kinds of a namespace that its users only read.
const VIEWED: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "bindings",
            // As slices: a writer could lead the traffic of a Service to another namespace.
            "endpoints",
            "limitranges",
            "namespaces",
            "namespaces/status",
            "persistentvolumeclaims/status",
            "pods/log",
            "pods/status",
            "replicationcontrollers/status",
            "resourcequotas",
            "resourcequotas/status",
            "services/status",
        ],
    ),
    (
        "apps",
        &[
            "controllerrevisions",
            "daemonsets/status",
            "deployments/status",
            "replicasets/status",
            "statefulsets/status",
        ],
    ),
    ("discovery.k8s.io", &["endpointslices"]),
    ("events.k8s.io", &["events"]),
    (
        "zoneward.dev",
        &[
            "meshgatewayhttproutes/status",
            "meshgateways/status",
            "meshhttproutes/status",
            "meshloadbalancings/status",
            "meshroutefilters/status",
            "meshtcproutes/status",
        ],
    ),
];

/// Everything in the core group but Secrets.
const READER_CORE: &[&str] = &[
    "bindings",
    "componentstatuses",
    "configmaps",
    "endpoints",
    "events",
    "limitranges",
    "namespaces",
    "namespaces/status",
    "nodes",
    "nodes/status",
    "persistentvolumeclaims",
    "persistentvolumes",
    "pods",
    "pods/log",
    "pods/status",
    "podtemplates",
    "replicationcontrollers",
    "resourcequotas",
    "serviceaccounts",
    "services",
    "services/status",
];

const READER_GROUPS: &[&str] = &[
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "apps",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "gateway.networking.k8s.io",
    "metrics.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "policy",
    "policy.networking.k8s.io",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
    "zoneward.dev",
];

const MESH_KINDS: &[&str] = &[
    "meshgatewayhttproutes",
    "meshgateways",
    "meshhttproutes",
    "meshloadbalancings",
    "meshroutefilters",
    "meshtcproutes",
];
const GATEWAY_API_KINDS: &[&str] = &[
    "backendtlspolicies",
    "gatewayclasses",
    "gateways",
    "grpcroutes",
    "httproutes",
    "listenersets",
    "referencegrants",
    "tcproutes",
    "tlsroutes",
    "udproutes",
];
const MESH_STATUS: &[&str] = &[
    "meshgatewayhttproutes/status",
    "meshgateways/status",
    "meshhttproutes/status",
    "meshloadbalancings/status",
    "meshroutefilters/status",
    "meshtcproutes/status",
];

fn rule(verbs: &[&str], groups: &[&str], resources: &[&str]) -> Value {
    json!({"verbs": verbs, "apiGroups": groups, "resources": resources})
}

fn urls(verbs: &[&str], urls: &[&str]) -> Value {
    json!({"verbs": verbs, "nonResourceURLs": urls})
}

fn events() -> Value {
    rule(&["create", "patch", "update"], &["", "events.k8s.io"], &["events"])
}

fn rules(verbs: &[&str], table: &[(&str, &[&str])]) -> impl Iterator<Item = Value> {
    let rules: Vec<Value> = table.iter().map(|(group, resources)| rule(verbs, &[group], resources)).collect();
    rules.into_iter()
}

fn view() -> Vec<Value> {
    rules(READ, EDITED).chain(rules(READ, VIEWED)).collect()
}

fn edit() -> Vec<Value> {
    let mut all = vec![
        rule(
            READ,
            &[""],
            &["pods/attach", "pods/exec", "pods/portforward", "pods/proxy", "secrets", "services/proxy"],
        ),
        rule(&["impersonate"], &[""], &["serviceaccounts"]),
        rule(WRITE, &[""], &["pods/attach", "pods/exec", "pods/portforward", "pods/proxy"]),
        rule(CREATE, &[""], &["pods/eviction", "serviceaccounts/token"]),
        rule(WRITE, &[""], &["secrets", "services/proxy"]),
        rule(&[READ, WRITE].concat(), &["coordination.k8s.io"], &["leases"]),
    ];
    all.extend(rules(WRITE, EDITED));
    all
}

fn admin() -> Vec<Value> {
    vec![
        rule(CREATE, &["authorization.k8s.io"], &["localsubjectaccessreviews"]),
        rule(&[READ, WRITE].concat(), &[GROUP], &["rolebindings", "roles"]),
    ]
}

/// (name, rules)
fn plain_roles() -> Vec<(&'static str, Vec<Value>)> {
    vec![
        ("cluster-admin", vec![rule(&["*"], &["*"], &["*"]), urls(&["*"], &["*"])]),
        (
            "system:discovery",
            vec![urls(
                &["get"],
                &[
                    "/api",
                    "/api/*",
                    "/apis",
                    "/apis/*",
                    "/healthz",
                    "/livez",
                    "/openapi",
                    "/openapi/*",
                    "/readyz",
                    "/version",
                    "/version/",
                ],
            )],
        ),
        (
            "system:basic-user",
            vec![
                rule(
                    CREATE,
                    &["authorization.k8s.io"],
                    &["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
                ),
                rule(CREATE, &["authentication.k8s.io"], &["selfsubjectreviews"]),
            ],
        ),
        (
            "system:public-info-viewer",
            vec![urls(&["get"], &["/healthz", "/livez", "/readyz", "/version", "/version/"])],
        ),
        (
            "system:monitoring",
            vec![urls(
                &["get"],
                &[
                    "/healthz",
                    "/healthz/*",
                    "/livez",
                    "/livez/*",
                    "/metrics",
                    "/metrics/slis",
                    "/readyz",
                    "/readyz/*",
                ],
            )],
        ),
        (
            "system:service-account-issuer-discovery",
            vec![urls(&["get"], &["/.well-known/openid-configuration", "/openid/v1/jwks"])],
        ),
        (
            "system:auth-delegator",
            vec![
                rule(CREATE, &["authentication.k8s.io"], &["tokenreviews"]),
                rule(CREATE, &["authorization.k8s.io"], &["subjectaccessreviews"]),
            ],
        ),
        (
            "system:node-proxier",
            vec![
                rule(&["list", "watch"], &[""], &["services", "endpoints"]),
                rule(READ, &[""], &["nodes"]),
                events(),
                rule(&["list", "watch"], &["discovery.k8s.io"], &["endpointslices"]),
                rule(&["list", "watch"], &["networking.k8s.io"], &["servicecidrs"]),
            ],
        ),
        (
            "system:kube-scheduler",
            vec![
                events(),
                rule(CREATE, &["coordination.k8s.io"], &["leases"]),
                json!({"verbs": ["get", "update"], "apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
                    "resourceNames": ["kube-scheduler"]}),
                rule(READ, &[""], &["namespaces", "nodes", "services", "replicationcontrollers"]),
                rule(&["delete", "get", "list", "watch"], &[""], &["pods"]),
                rule(CREATE, &[""], &["bindings", "pods/binding"]),
                rule(&["patch", "update"], &[""], &["pods/status"]),
                rule(CREATE, &["authentication.k8s.io"], &["tokenreviews"]),
                rule(CREATE, &["authorization.k8s.io"], &["subjectaccessreviews"]),
            ],
        ),
        (
            "system:kube-controller-manager",
            vec![
                events(),
                rule(CREATE, &["coordination.k8s.io"], &["leases"]),
                json!({"verbs": ["get", "update"], "apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
                    "resourceNames": ["kube-controller-manager"]}),
                rule(CREATE, &[""], &["secrets", "serviceaccounts", "serviceaccounts/token"]),
                rule(&["delete"], &[""], &["secrets"]),
                rule(&["get"], &[""], &["namespaces", "secrets", "serviceaccounts", "configmaps"]),
                rule(&["update"], &[""], &["secrets", "serviceaccounts"]),
                rule(CREATE, &["authentication.k8s.io"], &["tokenreviews"]),
                rule(CREATE, &["authorization.k8s.io"], &["subjectaccessreviews"]),
                rule(&["list", "watch"], &["*"], &["*"]),
            ],
        ),
        ("system:node", node()),
        (
            "zoneward:reader",
            vec![rule(READ, &[""], READER_CORE), rule(READ, READER_GROUPS, &["*"]), reader_urls()],
        ),
        ("zoneward:join", vec![urls(&["post"], &[join::PATH])]),
        ("zoneward:joined-node", joined_node()),
        (join::GATEWAYS_ROLE, joined_gateways()),
        (join::SIDECARS_ROLE, vec![urls(&["post"], &[join::SIDECARS_PATH])]),
        ("zoneward:joined-proxy", joined_proxy()),
        ("system:zoneward:proxy", proxy()),
        ("zoneward:node", zoneward_node()),
        ("zoneward:controller", zoneward_controller()),
        ("zoneward:mesh", zoneward_mesh()),
    ]
}

fn reader_urls() -> Value {
    urls(
        &["get"],
        &[
            "/",
            "/.well-known/openid-configuration",
            "/healthz/*",
            "/livez/*",
            "/metrics",
            "/openid/v1/jwks",
            "/readyz/*",
        ],
    )
}

/// What a kubelet needs; bound to no user, as in Kubernetes.
fn node() -> Vec<Value> {
    vec![
        rule(CREATE, &["authentication.k8s.io"], &["tokenreviews"]),
        rule(CREATE, &["authorization.k8s.io"], &["localsubjectaccessreviews", "subjectaccessreviews"]),
        rule(READ, &[""], &["services"]),
        rule(&["create", "get", "list", "watch"], &[""], &["nodes"]),
        rule(&["patch", "update"], &[""], &["nodes", "nodes/status"]),
        events(),
        rule(&["create", "delete", "get", "list", "watch"], &[""], &["pods"]),
        rule(&["patch", "update"], &[""], &["pods/status"]),
        rule(CREATE, &[""], &["pods/eviction", "serviceaccounts/token"]),
        rule(READ, &[""], &["configmaps", "secrets"]),
        rule(&["create", "delete", "get", "patch", "update"], &["coordination.k8s.io"], &["leases"]),
    ]
}

/// What `zoneward node` needs.
fn zoneward_node() -> Vec<Value> {
    vec![
        rule(&["get", "list", "watch"], &[""], &["namespaces", "nodes", "pods", "services"]),
        rule(&["list", "watch"], &["discovery.k8s.io"], &["endpointslices"]),
        rule(&["list", "watch"], &["networking.k8s.io"], &["servicecidrs"]),
        rule(&["create", "get", "patch", "update"], &["coordination.k8s.io"], &["leases"]),
        events(),
    ]
}

/// What `zoneward join` and `zoneward expose` need on a joined machine. Which objects it may write is decided by
/// [`join::check_node_write`].
fn joined_node() -> Vec<Value> {
    vec![
        rule(READ, &[""], &["namespaces", "nodes", "services"]),
        rule(&["patch", "update"], &[""], &["nodes", "nodes/status"]),
        rule(
            &[READ, &["create", "delete", "patch", "update"]].concat(),
            &["discovery.k8s.io"],
            &["endpointslices"],
        ),
        rule(&["list", "watch"], &["networking.k8s.io"], &["servicecidrs"]),
        rule(&["create", "get", "patch", "update"], &["coordination.k8s.io"], &["leases"]),
        events(),
        urls(&["post"], &["/ledger"]),
        // Who reads its metrics off loopback.
        rule(CREATE, &["authentication.k8s.io"], &["tokenreviews"]),
        rule(CREATE, &["authorization.k8s.io"], &["subjectaccessreviews"]),
    ]
}

/// What a joined machine needs to run gateways: to know them, and to get a credential for each.
fn joined_gateways() -> Vec<Value> {
    vec![
        rule(&["list", "watch"], &["zoneward.dev"], &["meshgateways"]),
        rule(&["list", "watch"], &["gateway.networking.k8s.io"], GATEWAY_API_KINDS),
        urls(&["post"], &[join::GATEWAYS_PATH]),
    ]
}

/// What an L7 proxy of a joined machine needs beside [`proxy`]: to report its traffic, and its ports that could not be bound.
fn joined_proxy() -> Vec<Value> {
    vec![
        json!({"verbs": ["get"], "apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
            "resourceNames": ["zoneward-controller"]}),
        urls(&["post"], &["/ledger", "/ledger/ports"]),
    ]
}

/// What an L7 proxy of `zoneward up` or of a joined machine needs. Certificates are granted by gateway.
fn proxy() -> Vec<Value> {
    let reads = &["list", "watch"];
    vec![
        rule(reads, &[""], &["namespaces", "nodes", "pods", "services"]),
        rule(reads, &["discovery.k8s.io"], &["endpointslices"]),
        rule(reads, &["zoneward.dev"], MESH_KINDS),
        rule(reads, &["gateway.networking.k8s.io"], GATEWAY_API_KINDS),
        rule(CREATE, &["authentication.k8s.io"], &["tokenreviews"]),
        rule(CREATE, &["authorization.k8s.io"], &["subjectaccessreviews"]),
    ]
}

/// What `zoneward controller` needs.
fn zoneward_controller() -> Vec<Value> {
    vec![
        rule(READ, &[""], &["namespaces", "nodes", "pods", "services"]),
        rule(&["patch"], &[""], &["services/status"]),
        rule(&["update"], &[""], &["services/finalizers"]),
        rule(
            &["create", "delete", "get", "list", "patch", "update", "watch"],
            &["discovery.k8s.io"],
            &["endpointslices"],
        ),
        rule(
            &["create", "delete", "get", "list", "patch", "update", "watch"],
            &["networking.k8s.io"],
            &["ipaddresses", "servicecidrs", "servicecidrs/status"],
        ),
        rule(&["create", "get", "list", "patch", "update", "watch"], &["coordination.k8s.io"], &["leases"]),
        rule(&["list", "watch"], &["zoneward.dev"], MESH_KINDS),
        rule(&["patch"], &["zoneward.dev"], MESH_STATUS),
        rule(&["list", "watch"], &["zoneward.dev"], &["zonedrains"]),
        rule(&["patch"], &["zoneward.dev"], &["zonedrains/status"]),
        events(),
    ]
}

/// What `zoneward mesh` needs, without the Secrets of gateways: those are granted by namespace.
fn zoneward_mesh() -> Vec<Value> {
    vec![
        rule(READ, &[""], &["namespaces", "nodes", "pods", "services"]),
        rule(&["list", "watch"], &["discovery.k8s.io"], &["endpointslices"]),
        rule(&["list", "watch"], &["zoneward.dev"], MESH_KINDS),
        events(),
    ]
}

/// (role, subjects by kind and name); the binding has the name of the role.
const BINDINGS: &[(&str, &[(&str, &str)])] = &[
    ("cluster-admin", &[("Group", "system:masters")]),
    ("system:discovery", &[("Group", "system:authenticated")]),
    ("system:basic-user", &[("Group", "system:authenticated")]),
    ("system:public-info-viewer", &[("Group", "system:authenticated"), ("Group", "system:unauthenticated")]),
    ("system:monitoring", &[("Group", "system:monitoring")]),
    ("system:service-account-issuer-discovery", &[("Group", "system:serviceaccounts")]),
    ("system:node-proxier", &[("User", "system:kube-proxy")]),
    ("system:kube-scheduler", &[("User", "system:kube-scheduler")]),
    ("system:kube-controller-manager", &[("User", "system:kube-controller-manager")]),
    ("system:node", &[]),
    ("zoneward:reader", &[("Group", "zoneward:readers")]),
    ("zoneward:join", &[("Group", join::BOOTSTRAPPERS), ("Group", join::NODES)]),
    ("zoneward:joined-node", &[("Group", join::NODES)]),
    ("zoneward:joined-proxy", &[("Group", join::JOINED_PROXIES)]),
    ("system:zoneward:proxy", &[("Group", join::PROXIES)]),
    ("zoneward:node", &[("Group", "zoneward:nodes")]),
    ("zoneward:controller", &[("Group", "zoneward:controllers")]),
    ("zoneward:mesh", &[("Group", "zoneward:proxies")]),
];

fn object(kind: &str, name: &str, labels: &[(&str, &str)]) -> Value {
    let mut all = Map::new();
    all.insert("kubernetes.io/bootstrapping".to_owned(), "rbac-defaults".into());
    all.extend(labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())));
    json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": kind,
        "metadata": {"name": name, "labels": all, "annotations": {AUTO_UPDATE: "true"}},
    })
}

fn with(mut object: Value, name: &str, value: Value) -> Value {
    object[name] = value;
    object
}

/// The ClusterRoles and ClusterRoleBindings that exist from the start, roles first.
pub fn bootstrap_objects() -> Vec<Value> {
    let aggregate = |to: &str| format!("{GROUP}/aggregate-to-{to}");
    let mut all: Vec<Value> = plain_roles()
        .into_iter()
        .map(|(name, rules)| with(object("ClusterRole", name, &[]), "rules", rules.into()))
        .collect();
    for (name, to) in [("admin", None), ("edit", Some("admin")), ("view", Some("edit"))] {
        let label = to.map(aggregate);
        let labels: Vec<(&str, &str)> = label.iter().map(|label| (label.as_str(), "true")).collect();
        let selectors = json!({"clusterRoleSelectors": [{"matchLabels": {aggregate(name): "true"}}]});
        all.push(with(object("ClusterRole", name, &labels), "aggregationRule", selectors));
    }
    for (to, rules) in [("admin", admin()), ("edit", edit()), ("view", view())] {
        let (name, label) = (format!("system:aggregate-to-{to}"), aggregate(to));
        all.push(with(object("ClusterRole", &name, &[(&label, "true")]), "rules", rules.into()));
    }
    for (role, subjects) in BINDINGS {
        let mut binding = object("ClusterRoleBinding", role, &[]);
        binding["roleRef"] = json!({"apiGroup": GROUP, "kind": "ClusterRole", "name": role});
        if !subjects.is_empty() {
            let subject =
                |(kind, name): &(&str, &str)| json!({"kind": kind, "apiGroup": GROUP, "name": name});
            binding["subjects"] = subjects.iter().map(subject).collect();
        }
        all.push(binding);
    }
    all
}

/// The stored version of a bootstrap object brought up to date; `None` if it is. A binding to another role is replaced.
pub fn reconciled(stored: &Value, wanted: &Value) -> Option<Value> {
    if stored["metadata"]["annotations"][AUTO_UPDATE] == "false" {
        return None;
    }
    let mut new = stored.clone();
    for name in ["labels", "annotations"] {
        for (key, value) in wanted["metadata"][name].as_object().into_iter().flatten() {
            if new["metadata"][name][key.as_str()].is_null() {
                new["metadata"][name][key.as_str()] = value.clone();
            }
        }
    }
    if wanted["kind"] == "ClusterRole" {
        if wanted["aggregationRule"].is_null() {
            add_rules(&mut new, wanted);
        } else {
            add_missing(&mut new["aggregationRule"], &wanted["aggregationRule"], "clusterRoleSelectors");
        }
    } else if !model::json::same(&stored["roleRef"], &wanted["roleRef"]) {
        new["roleRef"] = wanted["roleRef"].clone();
        new["subjects"] = wanted["subjects"].clone();
    } else {
        add_missing(&mut new, wanted, "subjects");
    }
    (new != *stored).then_some(new)
}

/// Adds the rules that no stored rule covers.
fn add_rules(new: &mut Value, wanted: &Value) {
    let stored = PolicyRule::parse_all(new);
    let own: Vec<&PolicyRule> = stored.iter().collect();
    let is_missing =
        |rule: &&Value| uncovered(&own, &[PolicyRule::parse(rule)]).is_ok_and(|rest| !rest.is_empty());
    let missing: Vec<Value> =
        wanted["rules"].as_array().into_iter().flatten().filter(is_missing).cloned().collect();
    if !missing.is_empty() {
        let mut rules = new["rules"].as_array().cloned().unwrap_or_default();
        rules.extend(missing);
        new["rules"] = rules.into();
    }
}

/// Adds the items of a list that are missing.
fn add_missing(new: &mut Value, wanted: &Value, list: &str) {
    let stored = new[list].as_array().cloned().unwrap_or_default();
    let wanted = wanted[list].as_array().into_iter().flatten();
    let missing: Vec<Value> =
        wanted.filter(|item| !stored.iter().any(|own| model::json::same(own, item))).cloned().collect();
    if !missing.is_empty() {
        new[list] = stored.into_iter().chain(missing).collect();
    }
}
