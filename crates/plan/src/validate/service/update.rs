//! What of a Service may not change: its addresses above all, since clients remember them.
//!
//! A field that the new version leaves out is taken from the stored one, as API servers do for clients that
//! do not know it.

use model::Family;
use model::address::parse_ip;

use super::Spec;
use super::addresses::{families, listed};
use crate::validate::field::{Field, Findings, quoted};

pub(super) fn check(old: &Spec, new: &Spec, findings: &mut Findings) {
    // A Service that becomes an ExternalName gives its addresses back; one that was gets new ones.
    if !old.is("ExternalName") && !new.is("ExternalName") {
        cluster_ips(old, new, findings);
        if !old.headless && !new.headless {
            ip_families(old, new, findings);
        }
    }
    if old.is("LoadBalancer") && new.is("LoadBalancer") {
        let (before, after) = (old.child("loadBalancerClass"), new.child("loadBalancerClass"));
        if before.value() != after.value() {
            let was = before.peek_text().map_or("it out".to_owned(), quoted);
            findings.refuse(&after, format!("cannot change while the type is LoadBalancer: keep {was}"));
        }
    }
    if old.needs_health_check() && new.needs_health_check() {
        let (before, after) = (old.child("healthCheckNodePort"), new.child("healthCheckNodePort"));
        let number = |field: &Field| field.value().as_i64().filter(|number| *number != 0);
        if number(&after).is_some() && number(&before).is_some() && number(&before) != number(&after) {
            findings.forbid(&after, format!("cannot change: keep {}", before.value()));
        }
    }
}

fn cluster_ips(old: &Spec, new: &Spec, findings: &mut Findings) {
    let before = listed(&old.field);
    let plural = new.child("clusterIPs").is_given();
    let after = listed(&new.field);
    // Only the first is repeated by clients that know no second: the stored list stays.
    if after.is_empty() || (!plural && after.first() == before.first()) {
        return;
    }
    // That the two fields do not agree was said already.
    if new.child("clusterIP").peek_nonempty().is_some_and(|single| after.first() != Some(&single)) {
        return;
    }
    pinned(&before, &after, &new.child("clusterIPs"), "cluster IP", findings);
    released(&before, &after, new, "cluster IP", findings);
}

fn ip_families(old: &Spec, new: &Spec, findings: &mut Findings) {
    let (before, after) = (families(old), families(new));
    // That an address is of another family was said already.
    let strange =
        |(ip, family): (&str, &&str)| parse_ip(ip).is_some_and(|ip| Family::of(ip).as_str() != *family);
    if after.is_empty() || listed(&new.field).into_iter().zip(&after).any(strange) {
        return;
    }
    pinned(&before, &after, &new.child("ipFamilies"), "family", findings);
    released(&before, &after, new, "family", findings);
}

/// The first entry stays for life; the second may come and go, but not be exchanged.
fn pinned(before: &[&str], after: &[&str], field: &Field, what: &str, findings: &mut Findings) {
    let changed = before.iter().zip(after).enumerate().find(|(_, (before, after))| before != after);
    if let Some((place, (was, _))) = changed {
        findings.refuse(&field.entry(place), format!("a {what} cannot change once it is set: keep {was}"));
    }
}

fn released(before: &[&str], after: &[&str], new: &Spec, what: &str, findings: &mut Findings) {
    let policy = new.child("ipFamilyPolicy");
    if after.len() < before.len() && policy.peek_text() != Some("SingleStack") {
        findings.refuse(&policy, format!("write SingleStack to give the second {what} back"));
    }
}
