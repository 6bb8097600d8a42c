//! Cluster IPs and families: two spellings of the same list, and whether they fit each other.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::Family;

use super::Spec;
use crate::validate::field::{Field, Findings, one_of, quoted};
use crate::validate::ip::{canonical, one_per_family};

const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
const POLICIES: [&str; 3] = ["SingleStack", "PreferDualStack", "RequireDualStack"];

/// The cluster IPs as texts: `clusterIPs`, or where that is missing `clusterIP`.
pub(super) fn listed<'a>(spec: &Field<'a>) -> Vec<&'a str> {
    let plural: Vec<&str> =
        spec.child("clusterIPs").peek_items().iter().filter_map(Field::peek_text).collect();
    if plural.is_empty() { spec.child("clusterIP").peek_nonempty().into_iter().collect() } else { plural }
}

/// The families as texts.
pub(super) fn families<'a>(spec: &Spec<'a>) -> Vec<&'a str> {
    spec.child("ipFamilies").peek_items().iter().filter_map(Field::peek_text).collect()
}

pub(super) fn check(spec: &Spec, old: Option<&Spec>, findings: &mut Findings) {
    if spec.is("ExternalName") {
        let single = spec.child("clusterIP").called(&spec.child("clusterIPs"));
        let plural = ["clusterIPs", "ipFamilies", "ipFamilyPolicy"].map(|name| spec.child(name));
        for field in [single].iter().chain(&plural).filter(|field| field.is_given()) {
            findings.forbid(field, "a Service of type ExternalName has no address: leave this out");
        }
        return;
    }
    check_families(spec, findings);
    same_first(spec, old, findings);
    let addresses = cluster_ips(spec, findings);
    fit_families(spec, &addresses, findings);
    check_policy(spec, old, findings);
}

fn check_families(spec: &Spec, findings: &mut Findings) {
    let list = spec.child("ipFamilies");
    let items = list.items(findings);
    let mut seen = BTreeSet::new();
    for item in &items {
        if item.peek_text() == Some("") {
            findings.unknown(item, "write IPv4 or IPv6");
        }
        if one_of(item, &FAMILIES, findings).is_some_and(|family| !seen.insert(family)) {
            findings.repeated(item, "each family stands once: IPv4, IPv6 or both in the order wanted");
        }
    }
}

/// `clusterIP` is the first of `clusterIPs`. An update that leaves it out keeps the stored one.
fn same_first(spec: &Spec, old: Option<&Spec>, findings: &mut Findings) {
    let (single, list) = (spec.child("clusterIP"), spec.child("clusterIPs"));
    single.called(&list.entry(0)).text(findings);
    let items = list.items(findings);
    let Some(first) = items.first().and_then(Field::peek_text) else { return };
    let kept = old.and_then(|old| listed(&old.field).first().copied());
    if single.peek_nonempty().or(kept).is_some_and(|text| text == first) {
        return;
    }
    // Clients that know only clusterIP change that one and leave the list as it was stored.
    if old.is_some_and(|old| listed(&old.field) == listed(&spec.field)) {
        let reason = format!("a cluster IP cannot change once it is set: keep {}", quoted(first));
        findings.refuse(&list.entry(0), reason);
    } else {
        findings.refuse(&list, format!("the first stands in clusterIP too: write {} there", quoted(first)));
    }
}

/// The addresses that could be read, each with its place in the list.
fn cluster_ips<'a>(spec: &Spec<'a>, findings: &mut Findings) -> Vec<(Field<'a>, IpAddr)> {
    let list = spec.child("clusterIPs");
    let single = spec.child("clusterIP").called(&list.entry(0));
    let items = if list.count() == 0 { vec![single] } else { list.items(findings) };
    let mut read = Vec::new();
    for item in &items {
        // An empty text is taken for a missing one, but not between others.
        let Some(text) = item.text(findings).filter(|text| !text.is_empty() || list.is_given()) else {
            continue;
        };
        match canonical(text) {
            Ok(address) => read.push((item.clone(), address)),
            Err(_) if text == "None" && items.len() == 1 => {}
            Err(_) if text == "None" => {
                findings.refuse(&list, "None stands alone: a headless Service has no address")
            }
            Err(reason) => findings.refuse(item, reason),
        }
    }
    let families: Vec<Family> = read.iter().map(|(_, address)| Family::of(*address)).collect();
    if list.is_given() {
        one_per_family(&list, &families, "address", findings);
    }
    read
}

fn fit_families(spec: &Spec, addresses: &[(Field, IpAddr)], findings: &mut Findings) {
    for ((field, address), family) in addresses.iter().zip(families(spec)) {
        let own = Family::of(*address);
        if FAMILIES.contains(&family) && own.as_str() != family {
            findings.refuse(field, format!("{address} is {own}, and ipFamilies has {family} in its place"));
        }
    }
}

/// Semantics E3: two of anything need a policy that allows two. An update that turns a Service single-stack
/// and leaves the lists as they were is understood: they are trimmed.
fn check_policy(spec: &Spec, old: Option<&Spec>, findings: &mut Findings) {
    let field = spec.child("ipFamilyPolicy");
    let given = one_of(&field, &POLICIES, findings);
    let kept = old.and_then(|old| old.child("ipFamilyPolicy").peek_nonempty());
    let selects = spec.child("selector").is_given();
    // A headless Service that lists its endpoints by hand is dual-stack unless it says otherwise.
    let default = if spec.headless && !selects { "RequireDualStack" } else { "SingleStack" };
    if given.or(kept).unwrap_or(default) != "SingleStack" || field.peek_text() != given {
        return;
    }
    let two_addresses = spec.child("clusterIPs").count() == 2;
    let two_families = spec.child("ipFamilies").count() == 2;
    let trimmed = |old: &Spec| {
        (!two_addresses || listed(&old.field) == listed(&spec.field))
            && (!two_families || families(old) == families(spec))
    };
    if (two_addresses || two_families) && !old.is_some_and(trimmed) {
        findings.refuse(&field, "with two families or addresses write PreferDualStack or RequireDualStack");
    }
}
