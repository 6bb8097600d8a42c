//! Immutable fields of a Service: cluster IPs, IP families, loadBalancerClass, healthCheckNodePort.
//!
//! An absent field keeps its stored value, as API servers do for older clients.

use model::Family;
use model::address::parse_ip;

use super::Spec;
use super::addresses::{families, listed};
use model::field::{Field, FieldErrors, quoted};

pub(super) fn check(old: &Spec, new: &Spec, errors: &mut FieldErrors) {
    // A change to or from ExternalName releases or allocates the addresses.
    if !old.is("ExternalName") && !new.is("ExternalName") {
        cluster_ips(old, new, errors);
        if !old.headless && !new.headless {
            ip_families(old, new, errors);
        }
    }
    if old.is("LoadBalancer") && new.is("LoadBalancer") {
        let (before, after) = (old.child("loadBalancerClass"), new.child("loadBalancerClass"));
        if before.value() != after.value() {
            let was = before.as_str().map_or("it unset".to_owned(), quoted);
            errors.invalid(&after, format!("is immutable while the type is LoadBalancer: keep {was}"));
        }
    }
    if old.needs_health_check() && new.needs_health_check() {
        let (before, after) = (old.child("healthCheckNodePort"), new.child("healthCheckNodePort"));
        let number = |field: &Field| field.value().as_i64().filter(|number| *number != 0);
        if number(&after).is_some() && number(&before).is_some() && number(&before) != number(&after) {
            errors.forbidden(&after, format!("is immutable: keep {}", before.value()));
        }
    }
}

fn cluster_ips(old: &Spec, new: &Spec, errors: &mut FieldErrors) {
    let before = listed(&old.field);
    let plural = new.child("clusterIPs").is_nonempty();
    let after = listed(&new.field);
    // Older clients send only the first: the stored list stays.
    if after.is_empty() || (!plural && after.first() == before.first()) {
        return;
    }
    // Reported as a mismatch of the two fields.
    if new.child("clusterIP").as_nonempty_str().is_some_and(|single| after.first() != Some(&single)) {
        return;
    }
    check_immutable(&before, &after, &new.child("clusterIPs"), "cluster IP", errors);
    check_release(&before, &after, new, "cluster IP", errors);
}

fn ip_families(old: &Spec, new: &Spec, errors: &mut FieldErrors) {
    let (before, after) = (families(old), families(new));
    // Reported as an address of another family.
    let strange =
        |(ip, family): (&str, &&str)| parse_ip(ip).is_some_and(|ip| Family::of(ip).as_str() != *family);
    if after.is_empty() || listed(&new.field).into_iter().zip(&after).any(strange) {
        return;
    }
    check_immutable(&before, &after, &new.child("ipFamilies"), "family", errors);
    check_release(&before, &after, new, "family", errors);
}

/// The first entry is immutable; the second can be added and removed, but not replaced.
fn check_immutable(before: &[&str], after: &[&str], field: &Field, what: &str, errors: &mut FieldErrors) {
    let changed = before.iter().zip(after).enumerate().find(|(_, (before, after))| before != after);
    if let Some((index, (was, _))) = changed {
        errors.invalid(&field.index(index), format!("a {what} may not change once set: keep {was}"));
    }
}

fn check_release(before: &[&str], after: &[&str], new: &Spec, what: &str, errors: &mut FieldErrors) {
    let policy = new.child("ipFamilyPolicy");
    if after.len() < before.len() && policy.as_str() != Some("SingleStack") {
        errors.invalid(&policy, format!("set SingleStack to release the second {what}"));
    }
}
