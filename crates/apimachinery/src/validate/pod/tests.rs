//! Each rule for Pods with a valid and an invalid case.

use serde_json::{Value, json};

use crate::validate::test_cases::{creates, updates};

fn pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-0", "namespace": "shop"},
        "spec": {
            "nodeName": "node-a1", "hostname": "web-0", "subdomain": "web",
            "containers": [{"name": "web", "image": "i", "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}]}],
        },
        "status": {
            "phase": "Running", "podIP": "10.1.0.5", "podIPs": [{"ip": "10.1.0.5"}, {"ip": "fd00:1::5"}],
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-15T10:00:00Z"}],
        },
    })
}

fn ports(ports: &Value) -> Value {
    json!({"spec": {"containers": [{"name": "web", "image": "i", "ports": ports}]}})
}

#[test]
fn names_of_places_are_dns_names() {
    creates(
        &pod(),
        &[
            (json!({"spec": {"nodeName": "a1.example.com", "hostname": "", "subdomain": null}}), ""),
            (json!({"spec": {"nodeName": "Node"}}), "spec.nodeName"),
            (json!({"spec": {"hostname": "web.0"}}), "spec.hostname"),
            (json!({"spec": {"subdomain": "web.shop"}}), "spec.subdomain"),
            (json!({"spec": []}), "spec"),
        ],
    );
}

#[test]
fn container_ports_have_numbers_and_distinct_names() {
    creates(
        &pod(),
        &[
            (ports(&json!([{"containerPort": 1}, {"containerPort": 65_535, "protocol": "SCTP"}])), ""),
            (ports(&json!([{"name": "http"}])), "spec.containers[0].ports[0].containerPort"),
            (ports(&json!([{"containerPort": 0}])), "spec.containers[0].ports[0].containerPort"),
            (ports(&json!([{"containerPort": 65_536}])), "spec.containers[0].ports[0].containerPort"),
            (ports(&json!([{"containerPort": "80"}])), "spec.containers[0].ports[0].containerPort"),
            (ports(&json!([{"containerPort": 80, "hostPort": -1}])), "spec.containers[0].ports[0].hostPort"),
            (
                ports(&json!([{"containerPort": 80, "protocol": "tcp"}])),
                "spec.containers[0].ports[0].protocol",
            ),
            (ports(&json!([{"containerPort": 80, "name": "http_1"}])), "spec.containers[0].ports[0].name"),
            (
                ports(&json!([{"containerPort": 80, "name": "http"}, {"containerPort": 81, "name": "http"}])),
                "spec.containers[0].ports[1].name",
            ),
            (
                json!({"spec": {"initContainers": [{"name": "side", "image": "i", "restartPolicy": "Always"}]}}),
                "",
            ),
            (
                json!({"spec": {"initContainers": [{"name": "side", "image": "i", "restartPolicy": "Maybe"}]}}),
                "spec.initContainers[0].restartPolicy",
            ),
            (json!({"spec": {"containers": [{}]}}), "spec.containers[0].name spec.containers[0].image"),
            (json!({"spec": {"containers": []}}), "spec.containers"),
            (
                json!({"spec": {"initContainers": [{"name": "web", "image": "i"}]}}),
                "spec.initContainers[0].name",
            ),
        ],
    );
}

#[test]
fn pod_addresses_are_one_of_each_family_and_the_first_stands_twice() {
    creates(
        &pod(),
        &[
            (json!({"status": {"podIP": null, "podIPs": null}}), ""),
            (json!({"status": {"podIPs": null}}), ""),
            (json!({"status": {"podIP": "10.1.0.05", "podIPs": null}}), "status.podIP"),
            (json!({"status": {"podIP": "10.1.0.6"}}), "status.podIP"),
            (json!({"status": {"podIPs": [{"ip": "10.1.0.5"}, {"ip": "10.1.0.6"}]}}), "status.podIPs"),
            (json!({"status": {"podIPs": [{"ip": "10.1.0.5"}, {"ip": "10.1.0"}]}}), "status.podIPs[1].ip"),
            (json!({"status": {"podIP": null, "podIPs": [{}]}}), "status.podIPs[0].ip"),
            (json!({"status": {"podIP": null, "podIPs": ["10.1.0.5"]}}), "status.podIPs[0].ip"),
            (json!({"status": {"phase": "Sleeping"}}), "status.phase"),
            (
                json!({"status": {"conditions": [{"type": "Ready", "status": "yes"}]}}),
                "status.conditions[0].status",
            ),
        ],
    );
}

#[test]
fn a_pod_stays_where_it_is() {
    updates(
        &pod(),
        &[
            (json!({}), json!({"status": {"phase": "Succeeded"}}), ""),
            (json!({"spec": {"nodeName": null}}), json!({}), "spec"),
            (json!({}), json!({"spec": {"nodeName": "node-b1"}}), "spec"),
            (json!({}), json!({"spec": {"nodeName": null}}), "spec"),
            (json!({}), json!({"spec": {"hostname": null}}), "spec"),
            (json!({}), json!({"spec": {"subdomain": "api"}}), "spec"),
            (json!({}), ports(&json!([{"name": "http", "containerPort": 8080}])), ""),
            (json!({}), ports(&json!([{"name": "http", "containerPort": 8081}])), "spec"),
            (json!({}), json!({"spec": {"terminationGracePeriodSeconds": 5}}), "spec"),
            (
                json!({"spec": {"terminationGracePeriodSeconds": -1}}),
                json!({"spec": {"terminationGracePeriodSeconds": 1}}),
                "",
            ),
            (json!({}), json!({"spec": {"activeDeadlineSeconds": 5}}), ""),
            (json!({}), json!({"spec": {"activeDeadlineSeconds": 0}}), "spec.activeDeadlineSeconds"),
            (json!({}), json!({"spec": {"containers": []}}), "spec.containers spec.containers"),
            (
                json!({}),
                json!({"spec": {"initContainers": [{"name": "side", "image": "i"}]}}),
                "spec.initContainers",
            ),
        ],
    );
}

#[test]
fn tolerations_are_added_and_gates_are_taken_away() {
    let with = |tolerations: Value, gates: Value| json!({"spec": {"nodeName": null, "tolerations": tolerations, "schedulingGates": gates}});
    let (one, two) = (json!({"key": "a", "operator": "Exists"}), json!({"key": "b", "operator": "Exists"}));
    let longer = json!({"key": "a", "operator": "Exists", "tolerationSeconds": 9});
    let gate = json!([{"name": "example.com/wait"}]);
    updates(
        &pod(),
        &[
            (with(json!([one]), json!([])), with(json!([one, two]), json!([])), ""),
            (with(json!([one]), json!([])), with(json!([longer]), json!([])), ""),
            (with(json!([one]), json!([])), with(json!([two]), json!([])), "spec.tolerations"),
            (with(json!([]), gate.clone()), with(json!([]), json!([])), ""),
            (with(json!([]), json!([])), with(json!([]), gate), "spec.schedulingGates[0].name"),
        ],
    );
}

#[test]
fn ephemeral_containers_are_not_added_by_a_write_of_the_pod() {
    let list = "spec.ephemeralContainers";
    let container = json!({"spec": {"ephemeralContainers": [{"name": "debug", "image": "i"}]}});
    creates(&pod(), &[(container.clone(), list)]);
    updates(
        &pod(),
        &[
            (json!({}), container.clone(), "spec"),
            (container, json!({"status": {"phase": "Running"}}), "spec"),
        ],
    );
}
