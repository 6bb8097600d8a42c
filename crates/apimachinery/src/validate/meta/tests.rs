//! Each rule for metadata with a valid and an invalid case.

use serde_json::json;

use crate::validate::test_cases::{creates, updates};

fn node() -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a1"}})
}

fn pod() -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-0", "namespace": "shop"},
        "spec": {"containers": [{"name": "web", "image": "shop/web:1"}]}})
}

#[test]
fn an_object_has_a_name_or_the_start_of_one() {
    creates(
        &pod(),
        &[
            (json!({"metadata": {"name": "web.0"}}), ""),
            (json!({"metadata": {"name": null, "generateName": "web-"}}), ""),
            (json!({"metadata": {"name": null, "generateName": "web"}}), ""),
            (json!({"metadata": {"name": null, "generateName": "-"}}), "metadata.generateName"),
            (json!({"metadata": {"name": null, "generateName": "web."}}), "metadata.generateName"),
            (json!({"metadata": {"name": null}}), "metadata.name"),
            (json!({"metadata": {"name": ""}}), "metadata.name"),
            (json!({"metadata": {"name": "Web"}}), "metadata.name"),
            (json!({"metadata": {"name": 7}}), "metadata.name"),
            (json!({"metadata": "web"}), "metadata metadata.name"),
        ],
    );
}

#[test]
fn only_namespaced_kinds_have_a_namespace() {
    creates(
        &pod(),
        &[
            (json!({"metadata": {"namespace": null}}), ""),
            (json!({"metadata": {"namespace": "shop.eu"}}), "metadata.namespace"),
        ],
    );
    creates(
        &node(),
        &[
            (json!({"metadata": {"namespace": ""}}), ""),
            (json!({"metadata": {"namespace": "shop"}}), "metadata.namespace"),
        ],
    );
}

#[test]
fn labels_and_annotations_are_pairs_of_texts() {
    let long = "x".repeat(256 * 1024);
    creates(
        &pod(),
        &[
            (json!({"metadata": {"labels": {"app": "web", "example.com/tier": ""}}}), ""),
            (json!({"metadata": {"labels": {"app": "web front"}}}), "metadata.labels"),
            (json!({"metadata": {"labels": {"app": 5}}}), "metadata.labels[app]"),
            (json!({"metadata": {"labels": {"app": {"name": "web"}}}}), "metadata.labels[app]"),
            (json!({"metadata": {"labels": {"Example.com/tier": "a"}}}), "metadata.labels"),
            (json!({"metadata": {"labels": ["app"]}}), "metadata.labels"),
            (json!({"metadata": {"annotations": {"Example.com/note": "any text, of any length"}}}), ""),
            (json!({"metadata": {"annotations": {"a note": "x"}}}), "metadata.annotations"),
            (json!({"metadata": {"annotations": {"note": true}}}), "metadata.annotations[note]"),
            (json!({"metadata": {"annotations": {"note": long}}}), "metadata.annotations"),
        ],
    );
}

#[test]
fn owners_finalizers_and_times_have_their_form() {
    let owner = json!({"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "1", "controller": true});
    creates(
        &pod(),
        &[
            (json!({"metadata": {"ownerReferences": [owner]}}), ""),
            (json!({"metadata": {"ownerReferences": [owner, owner]}}), "metadata.ownerReferences"),
            (
                json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "web"}]}}),
                "metadata.ownerReferences[0].uid",
            ),
            (json!({"metadata": {"finalizers": ["networking.k8s.io/service-cidr-finalizer"]}}), ""),
            (json!({"metadata": {"finalizers": ["not a name"]}}), "metadata.finalizers[0]"),
            (json!({"metadata": {"deletionTimestamp": "2026-11-15T10:00:00Z"}}), ""),
            (json!({"metadata": {"deletionTimestamp": "yesterday"}}), "metadata.deletionTimestamp"),
        ],
    );
}

#[test]
fn the_version_is_one_that_is_served() {
    creates(&node(), &[(json!({"apiVersion": "v2"}), "apiVersion")]);
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "web-1"}, "addressType": "IPv4"});
    creates(&slice, &[(json!({"apiVersion": "discovery.k8s.io/v1beta1"}), "apiVersion")]);
    let range = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/28"]}});
    creates(&range, &[(json!({"apiVersion": "networking.k8s.io/v1beta1"}), "")]);
}

#[test]
fn an_object_keeps_its_identity() {
    let stored = json!({"metadata": {"uid": "1", "creationTimestamp": "2026-11-15T10:00:00Z"}});
    updates(
        &pod(),
        &[
            (stored.clone(), json!({"metadata": {"labels": {"app": "web"}}}), ""),
            (stored.clone(), stored.clone(), ""),
            (stored.clone(), json!({"metadata": {"uid": "2"}}), "metadata.uid"),
            (
                stored,
                json!({"metadata": {"creationTimestamp": "2026-11-16T10:00:00Z"}}),
                "metadata.creationTimestamp",
            ),
            (json!({}), json!({"metadata": {"name": "web-1"}}), "metadata.name"),
            (json!({}), json!({"metadata": {"namespace": "store"}}), "metadata.namespace"),
            (json!({"kind": "Node", "metadata": {"namespace": null}}), json!({}), "kind"),
        ],
    );
}
