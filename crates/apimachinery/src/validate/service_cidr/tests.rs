//! Each rule for ServiceCIDRs with a valid and an invalid case.

use serde_json::{Value, json};

use crate::validate::test_cases::{creates, updates};

fn range() -> Value {
    // Seed 002: the range that the API server makes from its own flag.
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": ["10.96.0.0/28"]}})
}

fn cidrs(list: &[&str]) -> Value {
    json!({"spec": {"cidrs": list}})
}

#[test]
fn one_range_of_each_family_at_most() {
    creates(
        &range(),
        &[
            (cidrs(&["10.96.0.0/24"]), ""),
            (cidrs(&["fd00:10:96::/112", "10.96.0.0/24"]), ""),
            (cidrs(&[]), "spec.cidrs"),
            (json!({"spec": null}), "spec.cidrs"),
            (json!({"spec": {"cidrs": "10.96.0.0/24"}}), "spec.cidrs"),
            (cidrs(&["10.96.0.0/24", "10.97.0.0/24"]), "spec.cidrs"),
            (cidrs(&["10.0.0.0/24", "fd00::/112", "10.1.0.0/24"]), "spec.cidrs"),
        ],
    );
}

#[test]
fn a_range_is_canonical_and_not_too_large() {
    creates(
        &range(),
        &[
            (cidrs(&["0.0.0.0/0"]), ""),
            (cidrs(&["fd00::/64"]), ""),
            (cidrs(&["fd00::/63"]), "spec.cidrs[0]"),
            (cidrs(&["10.96.0.1/24"]), "spec.cidrs[0]"),
            (cidrs(&["010.96.0.0/24"]), "spec.cidrs[0]"),
            (cidrs(&["::ffff:10.96.0.0/120"]), "spec.cidrs[0]"),
            (cidrs(&["10.96.0.0/24", "FD00::/64"]), "spec.cidrs[1]"),
            (cidrs(&["10.96.0.0"]), "spec.cidrs[0]"),
            (cidrs(&[""]), "spec.cidrs[0]"),
            (cidrs(&["10.96.0.0/012"]), "spec.cidrs[0]"),
            (cidrs(&["10.96.0.0/33"]), "spec.cidrs[0]"),
            (cidrs(&[" 10.96.0.0/12"]), "spec.cidrs[0]"),
            (cidrs(&["fd00:0::/64"]), "spec.cidrs[0]"),
            (cidrs(&["fd00::1/64"]), "spec.cidrs[0]"),
            (cidrs(&["x", "y"]), "spec.cidrs[0] spec.cidrs[1]"),
            (json!({"spec": {"cidrs": [10]}}), "spec.cidrs[0]"),
        ],
    );
}

#[test]
fn ranges_stay_but_the_second_family_may_join() {
    let two: &[&str] = &["10.96.0.0/28", "fd00::/112"];
    updates(
        &range(),
        &[
            (json!({}), json!({"metadata": {"labels": {"a": "b"}}}), ""),
            (json!({}), cidrs(two), ""),
            (json!({}), cidrs(&["10.96.0.0/28", "10.97.0.0/28"]), "spec.cidrs"),
            (json!({}), cidrs(&["fd00::/112", "10.96.0.0/28"]), "spec.cidrs[0]"),
            (json!({}), cidrs(&["10.96.0.0/27"]), "spec.cidrs[0]"),
            (cidrs(two), cidrs(&["10.96.0.0/28"]), "spec.cidrs"),
            (cidrs(two), cidrs(&["10.96.0.0/28", "fd01::/112"]), "spec.cidrs[1]"),
        ],
    );
}
