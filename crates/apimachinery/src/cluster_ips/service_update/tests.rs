//! Tests of updates: types, upgrades, downgrades, immutable fields (semantics E3).

use serde_json::{Value, json};

use super::*;
use crate::cluster_ips::tests::{ip, stored};

const DUAL: ClusterFamilies = ClusterFamilies { default: Some(Family::V4), v4: true, v6: true };
const ONLY_V4: ClusterFamilies = ClusterFamilies { default: Some(Family::V4), v4: true, v6: false };

fn single() -> Value {
    json!({"clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"})
}

fn dual() -> Value {
    json!({"clusterIPs": ["10.0.0.1", "fd00::1"], "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack"})
}

fn external() -> Value {
    json!({"type": "ExternalName", "externalName": "example.com"})
}

/// `base` with some fields changed; null takes one away.
fn with(mut base: Value, changes: Value) -> Value {
    for (field, value) in changes.as_object().unwrap() {
        base[field] = value.clone();
    }
    base
}

fn change(old: Value, new: Value, cluster: &ClusterFamilies) -> Result<AddressChange, String> {
    update(&stored("web", old), &stored("web", new), cluster).map_err(|error| error.field)
}

#[test]
fn a_service_that_stops_being_an_alias_gets_addresses_and_gives_them_back() {
    let change_to = change(external(), json!({"ipFamilyPolicy": "PreferDualStack"}), &DUAL).unwrap();
    assert_eq!(change_to.allocate, [(Family::V4, None), (Family::V6, None)]);
    assert_eq!((change_to.kept, change_to.release), (vec![], vec![]));
    let change_back = change(dual(), external(), &DUAL).unwrap();
    assert_eq!(change_back.release, [ip("10.0.0.1"), ip("fd00::1")]);
    assert_eq!((change_back.kept, change_back.allocate), (vec![], vec![]));
}

#[test]
fn upgrades_and_downgrades_touch_only_the_second_address() {
    for new in [
        with(single(), json!({"ipFamilyPolicy": "RequireDualStack"})),
        with(single(), json!({"ipFamilyPolicy": "PreferDualStack", "clusterIPs": null})),
        with(single(), json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": null})),
    ] {
        let up = change(single(), new.clone(), &DUAL).unwrap();
        assert_eq!((up.kept, up.release), (vec![ip("10.0.0.1")], vec![]), "{new}");
        assert_eq!(up.allocate, [(Family::V6, None)], "{new}");
        assert_eq!(up.families, [Family::V4, Family::V6], "{new}");
    }
    let named = with(dual(), json!({"clusterIPs": ["10.0.0.1", "fd00::9"]}));
    assert_eq!(change(single(), named, &DUAL).unwrap().allocate, [(Family::V6, Some(ip("fd00::9")))]);

    for new in [with(dual(), json!({"ipFamilyPolicy": "SingleStack"})), single()] {
        let down = change(dual(), new.clone(), &DUAL).unwrap();
        assert_eq!((down.kept, down.allocate), (vec![ip("10.0.0.1")], vec![]), "{new}");
        assert_eq!((down.release, down.families), (vec![ip("fd00::1")], vec![Family::V4]), "{new}");
    }
}

#[test]
fn what_is_left_out_stays_as_it_was() {
    for old in [single(), dual()] {
        let same = change(old.clone(), json!({}), &DUAL).unwrap();
        assert_eq!((same.allocate, same.release), (vec![], vec![]), "{old}");
        assert_eq!(same.kept.len(), old["clusterIPs"].as_array().unwrap().len(), "{old}");
    }
    let headless = json!({"clusterIP": "None", "ipFamilies": ["IPv6"], "ipFamilyPolicy": "SingleStack"});
    let same = change(headless, json!({}), &DUAL).unwrap();
    assert_eq!((same.policy, same.families), (Some(FamilyPolicy::SingleStack), vec![Family::V6]));
    assert_eq!((same.allocate, same.release), (vec![], vec![]));
}

#[test]
fn a_cluster_that_becomes_dual_stack_changes_no_service_that_prefers_it() {
    let old = with(single(), json!({"ipFamilyPolicy": "PreferDualStack"}));
    let same = change(old.clone(), old, &DUAL).unwrap();
    assert_eq!((same.allocate, same.kept), (vec![], vec![ip("10.0.0.1")]));
    let old = with(dual(), json!({"ipFamilyPolicy": "PreferDualStack"}));
    let same = change(old.clone(), old, &ONLY_V4).unwrap();
    assert_eq!((same.release, same.kept.len()), (vec![], 2));
}

#[test]
fn what_is_for_life_cannot_be_changed() {
    for (old, new, field) in [
        (single(), with(single(), json!({"clusterIPs": ["10.0.0.2"]})), "spec.clusterIPs[0]"),
        (single(), json!({"clusterIP": "None"}), "spec.clusterIPs[0]"),
        (json!({"clusterIP": "None"}), json!({"clusterIP": "10.0.0.1"}), "spec.clusterIPs[0]"),
        (dual(), with(dual(), json!({"clusterIPs": ["10.0.0.1", "fd00::2"]})), "spec.clusterIPs[1]"),
        (dual(), with(dual(), json!({"clusterIPs": ["10.0.0.1"]})), "spec.ipFamilyPolicy"),
        (dual(), with(dual(), json!({"ipFamilies": ["IPv4"]})), "spec.ipFamilyPolicy"),
        (dual(), with(dual(), json!({"ipFamilies": ["IPv6", "IPv4"]})), "spec.ipFamilies[0]"),
    ] {
        assert_eq!(change(old, new.clone(), &DUAL), Err(field.to_owned()), "{new}");
    }
}
