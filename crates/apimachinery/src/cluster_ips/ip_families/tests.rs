//! Tests of IP families: requested, inferred and conflicting ones (semantics E3).

use serde_json::{Value, json};

use super::*;
use crate::cluster_ips::tests::{service, stored};

const DUAL: ClusterFamilies = ClusterFamilies { default: Some(Family::V4), v4: true, v6: true };
const V6_FIRST: ClusterFamilies = ClusterFamilies { default: Some(Family::V6), v4: true, v6: true };
const ONLY_V4: ClusterFamilies = ClusterFamilies { default: Some(Family::V4), v4: true, v6: false };

fn check(spec: Value, cluster: &ClusterFamilies, expected: Result<&[Family], &str>) {
    let wanted = wanted(&service("web", spec.clone()), cluster);
    let wanted = wanted.map_err(|error| error.field);
    assert_eq!(wanted.as_deref().map_err(String::as_str), expected, "{spec}");
}

#[test]
fn families_come_from_the_fields_then_from_the_addresses_then_from_the_cluster() {
    use Family::{V4, V6};
    check(json!({}), &DUAL, Ok(&[V4]));
    check(json!({}), &V6_FIRST, Ok(&[V6]));
    check(json!({"ipFamilies": ["IPv6"]}), &DUAL, Ok(&[V6]));
    check(json!({"clusterIP": "fd00::1"}), &DUAL, Ok(&[V6]));
    check(json!({"ipFamilyPolicy": "PreferDualStack"}), &DUAL, Ok(&[V4, V6]));
    check(json!({"ipFamilyPolicy": "PreferDualStack"}), &V6_FIRST, Ok(&[V6, V4]));
    check(json!({"ipFamilyPolicy": "PreferDualStack"}), &ONLY_V4, Ok(&[V4]));
    check(json!({"ipFamilyPolicy": "RequireDualStack", "clusterIP": "fd00::1"}), &DUAL, Ok(&[V6, V4]));
    check(
        json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"]}),
        &DUAL,
        Ok(&[V6, V4]),
    );
}

#[test]
fn services_without_addresses_of_the_cluster_want_no_family() {
    check(json!({"clusterIP": "None"}), &DUAL, Ok(&[]));
    check(json!({"type": "ExternalName", "externalName": "example.com"}), &DUAL, Ok(&[]));
}

#[test]
fn what_does_not_go_together_is_named_by_its_field() {
    check(json!({"ipFamilyPolicy": "RequireDualStack"}), &ONLY_V4, Err("spec.ipFamilyPolicy"));
    check(json!({"ipFamilies": ["IPv6"]}), &ONLY_V4, Err("spec.ipFamilies[0]"));
    check(json!({"clusterIP": "fd00::1"}), &ONLY_V4, Err("spec.clusterIPs[0]"));
    check(json!({"ipFamilies": ["IPv4", "IPv6"]}), &DUAL, Err("spec.ipFamilyPolicy"));
    check(json!({"clusterIPs": ["10.0.0.1", "fd00::1"]}), &DUAL, Err("spec.ipFamilyPolicy"));
    let prefer = "PreferDualStack";
    let same = json!({"ipFamilyPolicy": prefer, "clusterIPs": ["10.0.0.1", "10.0.0.2"]});
    check(same, &DUAL, Err("spec.clusterIPs"));
    check(json!({"ipFamilyPolicy": prefer, "ipFamilies": ["IPv4", "IPv4"]}), &DUAL, Err("spec.ipFamilies"));
    let other = json!({"ipFamilyPolicy": prefer, "ipFamilies": ["IPv6"], "clusterIP": "10.0.0.1"});
    check(other, &DUAL, Err("spec.clusterIPs[0]"));
    check(json!({}), &ClusterFamilies::default(), Err("spec.clusterIPs"));
}

#[test]
fn a_stored_service_lacks_only_what_its_owner_asked_for() {
    let lack = |spec: Value, cluster| lacking(&stored("web", spec), cluster).map_err(|error| error.field);
    let one = json!({"clusterIPs": ["10.0.0.1"]});
    assert_eq!(lack(one, &DUAL), Ok(None));
    let require = json!({"clusterIPs": ["10.0.0.1"], "ipFamilyPolicy": "RequireDualStack"});
    assert_eq!(lack(require.clone(), &DUAL), Ok(Some(Family::V6)));
    assert_eq!(lack(require, &ONLY_V4), Err("spec.ipFamilyPolicy".to_owned()));
    let as_it_was =
        json!({"clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "PreferDualStack"});
    assert_eq!(lack(as_it_was, &DUAL), Ok(None));
    let asked = json!({"clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "PreferDualStack"});
    assert_eq!(lack(asked.clone(), &DUAL), Ok(Some(Family::V6)));
    assert_eq!(lack(asked, &ONLY_V4), Err("spec.ipFamilies[1]".to_owned()));
}

#[test]
fn a_headless_service_without_selector_may_have_any_family() {
    let default = |spec: Value, cluster| {
        defaulted(&service("web", spec), cluster).map(Option::unwrap).map_err(|error| error.field)
    };
    let (single, require) = (FamilyPolicy::SingleStack, FamilyPolicy::RequireDualStack);
    assert_eq!(default(json!({"clusterIP": "None"}), &ONLY_V4), Ok((require, vec![Family::V4, Family::V6])));
    let given = json!({"clusterIP": "None", "ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"]});
    assert_eq!(default(given, &ONLY_V4), Ok((single, vec![Family::V6])));
    let selecting = json!({"clusterIP": "None", "selector": {"app": "web"}});
    assert_eq!(default(selecting, &ONLY_V4), Ok((single, vec![Family::V4])));
    let too_much =
        json!({"clusterIP": "None", "selector": {"app": "web"}, "ipFamilyPolicy": "RequireDualStack"});
    assert_eq!(default(too_much, &ONLY_V4), Err("spec.ipFamilyPolicy".to_owned()));
    assert_eq!(default(json!({}), &DUAL), Ok((single, vec![Family::V4])));
    let alias = service("web", json!({"type": "ExternalName", "externalName": "example.com"}));
    assert_eq!(defaulted(&alias, &DUAL), Ok(None));
}
