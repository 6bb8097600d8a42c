//! ServiceCIDR: ranges of cluster IPs (semantics E2).

use ipnet::IpNet;
use model::Family;

use super::Admission;
use super::ip::{canonical_cidr, one_per_family};
use super::meta::{self, Naming};
use super::syntax::dns_subdomain;
use model::field::{Field, FieldErrors};

/// Seed 002: offsets into a range have 64 bits.
const MIN_IPV6_PREFIX: u8 = 64;

pub(super) fn check(admission: &Admission, errors: &mut FieldErrors) {
    meta::check(admission, &Naming { rule: dns_subdomain, namespaced: false, generated: true }, errors);
    let cidrs = admission.new.child("spec").map(errors).child("cidrs");
    ranges(&cidrs, errors);
    if let Some(old) = &admission.old {
        unchanged(&old.child("spec").child("cidrs"), &cidrs, errors);
    }
}

fn ranges(list: &Field, errors: &mut FieldErrors) {
    let items = list.items(errors);
    let expected = "expected one range, or one of each IP family, e.g. 10.96.0.0/16 and fd00:10:96::/112";
    if !list.is_nonempty() {
        errors.required(list, expected);
        return;
    }
    if items.len() > 2 {
        errors.invalid(list, expected);
        return;
    }
    let read: Vec<IpNet> = items.iter().filter_map(|item| range(item, errors)).collect();
    let families: Vec<Family> = read.iter().map(|range| Family::of(range.addr())).collect();
    one_per_family(list, &families, "range", errors);
}

fn range(field: &Field, errors: &mut FieldErrors) -> Option<IpNet> {
    match canonical_cidr(field.string(errors)?) {
        Ok(range) => {
            if matches!(range, IpNet::V6(v6) if v6.prefix_len() < MIN_IPV6_PREFIX) {
                errors.invalid(
                    field,
                    format!("{range} is too large: the prefix of an IPv6 range is at least 64"),
                );
            }
            Some(range)
        }
        Err(reason) => {
            errors.invalid(field, reason);
            None
        }
    }
}

/// Ranges are immutable; a second one of the other family can be added.
fn unchanged(old: &Field, new: &Field, errors: &mut FieldErrors) {
    let (before, after) = (old.as_items(), new.as_items());
    let grows = before.len() == 1 && after.len() == 2;
    if before.len() != after.len() && !grows {
        errors.invalid(new, "ranges are immutable; only a second one of the other family can be added");
    }
    for (before, after) in before.iter().zip(&after) {
        if before.value() != after.value() {
            let was = before.as_str().unwrap_or_default();
            errors.invalid(after, format!("a range is immutable: keep {was}, or create another ServiceCIDR"));
        }
    }
}

#[cfg(test)]
mod tests;
