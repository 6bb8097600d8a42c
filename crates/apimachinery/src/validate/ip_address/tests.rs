//! Each rule for IPAddresses with a valid and an invalid case.

use serde_json::{Value, json};

use crate::validate::test_cases::{creates, updates};

fn address() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "metadata": {"name": "10.96.0.10"},
        "spec": {"parentRef": {"group": "", "resource": "services", "namespace": "kube-system", "name": "kube-dns"}},
    })
}

#[test]
fn the_name_is_the_address_in_its_one_spelling() {
    creates(
        &address(),
        &[
            (json!({"metadata": {"name": "2001:db8:1:2::a"}}), ""),
            (json!({"metadata": {"name": "2001:DB8:1:2::a"}}), "metadata.name"),
            (json!({"metadata": {"name": "10.96.0.010"}}), "metadata.name"),
            (json!({"metadata": {"name": "kube-dns"}}), "metadata.name"),
            (json!({"metadata": {"name": null, "generateName": "10.96."}}), "metadata.name"),
        ],
    );
}

#[test]
fn an_address_is_for_some_object() {
    creates(
        &address(),
        &[
            (
                json!({"spec": {"parentRef": {"group": "gateway.networking.k8s.io", "resource": "gateways"}}}),
                "",
            ),
            (json!({"spec": {"parentRef": {"namespace": null}}}), ""),
            (json!({"spec": {"parentRef": null}}), "spec.parentRef"),
            (json!({"spec": null}), "spec.parentRef"),
            (
                json!({"spec": {"parentRef": "kube-dns"}}),
                "spec.parentRef spec.parentRef.resource spec.parentRef.name",
            ),
            (json!({"spec": {"parentRef": {"resource": ""}}}), "spec.parentRef.resource"),
            (json!({"spec": {"parentRef": {"name": "a/b"}}}), "spec.parentRef.name"),
            (json!({"spec": {"parentRef": {"namespace": ".."}}}), "spec.parentRef.namespace"),
            (json!({"spec": {"parentRef": {"group": "Core"}}}), "spec.parentRef.group"),
        ],
    );
}

#[test]
fn an_address_does_not_change_hands() {
    updates(
        &address(),
        &[
            (json!({}), json!({"metadata": {"labels": {"ipaddress.kubernetes.io/ip-family": "IPv4"}}}), ""),
            (json!({}), json!({"spec": {"parentRef": {"group": null}}}), ""),
            (json!({}), json!({"spec": {"parentRef": {"name": "web"}}}), "spec.parentRef.name"),
        ],
    );
}
