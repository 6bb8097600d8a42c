//! Cluster IPs and IP families, and their consistency.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::Family;

use super::Spec;
use crate::validate::ip::{canonical, one_per_family};
use crate::validate::syntax::one_of;
use model::field::{Field, FieldErrors, quoted};

const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
const POLICIES: [&str; 3] = ["SingleStack", "PreferDualStack", "RequireDualStack"];

/// The cluster IPs: `clusterIPs`, or `clusterIP` if that is absent.
pub(super) fn listed<'a>(spec: &Field<'a>) -> Vec<&'a str> {
    let plural: Vec<&str> = spec.child("clusterIPs").as_items().iter().filter_map(Field::as_str).collect();
    if plural.is_empty() { spec.child("clusterIP").as_nonempty_str().into_iter().collect() } else { plural }
}

pub(super) fn families<'a>(spec: &Spec<'a>) -> Vec<&'a str> {
    spec.child("ipFamilies").as_items().iter().filter_map(Field::as_str).collect()
}

pub(super) fn check(spec: &Spec, old: Option<&Spec>, errors: &mut FieldErrors) {
    if spec.is("ExternalName") {
        let single = spec.child("clusterIP").with_path_of(&spec.child("clusterIPs"));
        let plural = ["clusterIPs", "ipFamilies", "ipFamilyPolicy"].map(|name| spec.child(name));
        for field in [single].iter().chain(&plural).filter(|field| field.is_nonempty()) {
            errors.forbidden(field, "not allowed for type ExternalName");
        }
        return;
    }
    check_families(spec, errors);
    same_first(spec, old, errors);
    let addresses = cluster_ips(spec, errors);
    fit_families(spec, &addresses, errors);
    check_policy(spec, old, errors);
}

fn check_families(spec: &Spec, errors: &mut FieldErrors) {
    let list = spec.child("ipFamilies");
    let items = list.items(errors);
    let mut seen = BTreeSet::new();
    for item in &items {
        if item.as_str() == Some("") {
            errors.not_supported(item, "use IPv4 or IPv6");
        }
        if one_of(item, &FAMILIES, errors).is_some_and(|family| !seen.insert(family)) {
            errors.duplicate(item, "each IP family may occur once");
        }
    }
}

/// `clusterIP` equals the first of `clusterIPs`. An update without it keeps the stored one.
fn same_first(spec: &Spec, old: Option<&Spec>, errors: &mut FieldErrors) {
    let (single, list) = (spec.child("clusterIP"), spec.child("clusterIPs"));
    single.with_path_of(&list.index(0)).string(errors);
    let items = list.items(errors);
    let Some(first) = items.first().and_then(Field::as_str) else { return };
    let kept = old.and_then(|old| listed(&old.field).first().copied());
    if single.as_nonempty_str().or(kept).is_some_and(|text| text == first) {
        return;
    }
    // Older clients change clusterIP and leave the stored list unchanged.
    if old.is_some_and(|old| listed(&old.field) == listed(&spec.field)) {
        let reason = format!("a cluster IP may not change once set: keep {}", quoted(first));
        errors.invalid(&list.index(0), reason);
    } else {
        errors.invalid(&list, format!("the first entry must equal clusterIP: set that to {}", quoted(first)));
    }
}

/// The valid addresses, each with its field.
fn cluster_ips<'a>(spec: &Spec<'a>, errors: &mut FieldErrors) -> Vec<(Field<'a>, IpAddr)> {
    let list = spec.child("clusterIPs");
    let single = spec.child("clusterIP").with_path_of(&list.index(0));
    let items = if list.item_count() == 0 { vec![single] } else { list.items(errors) };
    let mut read = Vec::new();
    for item in &items {
        // An empty string counts as absent, but not in a list.
        let Some(text) = item.string(errors).filter(|text| !text.is_empty() || list.is_nonempty()) else {
            continue;
        };
        match canonical(text) {
            Ok(address) => read.push((item.clone(), address)),
            Err(_) if text == "None" && items.len() == 1 => {}
            Err(_) if text == "None" => {
                errors.invalid(&list, "None must be the only entry: a headless Service has no address")
            }
            Err(reason) => errors.invalid(item, reason),
        }
    }
    let families: Vec<Family> = read.iter().map(|(_, address)| Family::of(*address)).collect();
    if list.is_nonempty() {
        one_per_family(&list, &families, "address", errors);
    }
    read
}

fn fit_families(spec: &Spec, addresses: &[(Field, IpAddr)], errors: &mut FieldErrors) {
    for ((field, address), family) in addresses.iter().zip(families(spec)) {
        let own = Family::of(*address);
        if FAMILIES.contains(&family) && own.as_str() != family {
            errors.invalid(field, format!("{address} is {own}, but the entry of ipFamilies is {family}"));
        }
    }
}

/// Semantics E3: two addresses or families require a dual-stack policy. On an update to SingleStack with unchanged
/// lists, the lists are trimmed.
fn check_policy(spec: &Spec, old: Option<&Spec>, errors: &mut FieldErrors) {
    let field = spec.child("ipFamilyPolicy");
    let given = one_of(&field, &POLICIES, errors);
    let kept = old.and_then(|old| old.child("ipFamilyPolicy").as_nonempty_str());
    let selects = spec.child("selector").is_nonempty();
    // The default of a headless Service without selector is dual-stack.
    let default = if spec.headless && !selects { "RequireDualStack" } else { "SingleStack" };
    if given.or(kept).unwrap_or(default) != "SingleStack" || field.as_str() != given {
        return;
    }
    let two_addresses = spec.child("clusterIPs").item_count() == 2;
    let two_families = spec.child("ipFamilies").item_count() == 2;
    let trimmed = |old: &Spec| {
        (!two_addresses || listed(&old.field) == listed(&spec.field))
            && (!two_families || families(old) == families(spec))
    };
    if (two_addresses || two_families) && !old.is_some_and(trimmed) {
        errors.invalid(&field, "two families or addresses require PreferDualStack or RequireDualStack");
    }
}
