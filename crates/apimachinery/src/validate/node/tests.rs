//! Each rule for Nodes with a valid and an invalid case.

use serde_json::{Value, json};

use crate::validate::test_cases::{creates, updates};

fn node() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "node-a1", "labels": {"topology.kubernetes.io/zone": "zone-a"}},
        "spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd00:1::/80"]},
        "status": {
            "allocatable": {"cpu": "4", "memory": "16Gi"},
            "addresses": [{"type": "InternalIP", "address": "192.168.1.1"}, {"type": "Hostname", "address": "a1"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

#[test]
fn cpu_is_an_amount() {
    creates(
        &node(),
        &[
            (json!({"status": {"allocatable": {"cpu": "3920m"}}}), ""),
            (json!({"status": {"allocatable": {"cpu": 4}}}), ""),
            (json!({"status": {"allocatable": {"cpu": null}}}), ""),
            (json!({"status": {"allocatable": {"cpu": "four"}}}), "status.allocatable.cpu"),
            (json!({"status": {"allocatable": {"cpu": "-1"}}}), "status.allocatable.cpu"),
            (json!({"status": {"allocatable": {"cpu": true}}}), "status.allocatable.cpu"),
            (json!({"status": {"capacity": {"cpu": "4 cores"}}}), "status.capacity.cpu"),
            (json!({"status": {"allocatable": ["cpu"]}}), "status.allocatable"),
        ],
    );
}

#[test]
fn pod_ranges_are_one_of_each_family() {
    creates(
        &node(),
        &[
            (json!({"spec": {"podCIDRs": null}}), ""),
            (json!({"spec": {"podCIDRs": null, "podCIDR": "10.1.0.0"}}), "spec.podCIDR"),
            (json!({"spec": {"podCIDRs": ["10.2.0.0/24"]}}), "spec.podCIDR"),
            (json!({"spec": {"podCIDRs": ["10.1.0.0/24", "10.2.0.0/24"]}}), "spec.podCIDRs"),
            (json!({"spec": {"podCIDRs": ["10.1.0.0/24", "fd00:1::"]}}), "spec.podCIDRs[1]"),
        ],
    );
}

#[test]
fn addresses_conditions_and_taints_have_their_form() {
    creates(
        &node(),
        &[
            (json!({"status": {"addresses": [{"type": "ExternalIP", "address": "2001:db8::1"}]}}), ""),
            (
                json!({"status": {"addresses": [{"type": "InternalIP", "address": "a1"}]}}),
                "status.addresses[0].address",
            ),
            (json!({"status": {"addresses": [{"type": "InternalIP"}]}}), "status.addresses[0].address"),
            (
                json!({"status": {"addresses": [{"type": "Street", "address": "a1"}]}}),
                "status.addresses[0].type",
            ),
            (json!({"status": {"addresses": [{"address": "a1"}]}}), "status.addresses[0].type"),
            (json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}), ""),
            (
                json!({"status": {"conditions": [{"type": "Ready", "status": "true"}]}}),
                "status.conditions[0].status",
            ),
            (
                json!({"status": {"conditions": [{"type": "Ready", "status": true}]}}),
                "status.conditions[0].status",
            ),
            (json!({"status": {"conditions": [{"status": "True"}]}}), "status.conditions[0].type"),
            (
                json!({"spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}}),
                "",
            ),
            (json!({"spec": {"taints": [{"key": "a b", "effect": "NoSchedule"}]}}), "spec.taints[0].key"),
            (json!({"spec": {"taints": [{"effect": "NoSchedule"}]}}), "spec.taints[0].key"),
            (
                json!({"spec": {"taints": [{"key": "a", "value": "b c", "effect": "Leave"}]}}),
                "spec.taints[0].value spec.taints[0].effect",
            ),
            (json!({"spec": {"taints": [{"key": "a"}]}}), "spec.taints[0].effect"),
        ],
    );
}

#[test]
fn pod_ranges_and_provider_are_given_once() {
    updates(
        &node(),
        &[
            (json!({}), json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "zone-b"}}}), ""),
            (json!({"spec": {"podCIDR": "", "podCIDRs": []}}), json!({}), ""),
            (json!({}), json!({"spec": {"podCIDR": null, "podCIDRs": null}}), "spec.podCIDRs spec.podCIDR"),
            (json!({}), json!({"spec": {"podCIDRs": ["10.1.0.0/24"]}}), "spec.podCIDRs"),
            (json!({}), json!({"spec": {"providerID": "cloud://1"}}), ""),
            (
                json!({"spec": {"providerID": "cloud://1"}}),
                json!({"spec": {"providerID": "cloud://2"}}),
                "spec.providerID",
            ),
        ],
    );
}
