//! ServiceCIDRs: the ranges that cluster IPs are taken from (semantics E2).

use ipnet::IpNet;
use model::Family;

use super::Change;
use super::field::{Field, Findings};
use super::ip::{canonical_cidr, one_per_family};
use super::meta::{self, Naming};
use super::syntax::dns_subdomain;

/// Seed 002: IPv6 ranges are /64 or smaller, so that the place of an address fits 64 bits.
const SHORTEST_IPV6_PREFIX: u8 = 64;

pub(super) fn check(change: &Change, findings: &mut Findings) {
    meta::check(change, &Naming { rule: dns_subdomain, namespaced: false, generated: true }, findings);
    let cidrs = change.new.child("spec").map(findings).child("cidrs");
    ranges(&cidrs, findings);
    if let Some(old) = &change.old {
        unchanged(&old.child("spec").child("cidrs"), &cidrs, findings);
    }
}

fn ranges(list: &Field, findings: &mut Findings) {
    let items = list.items(findings);
    let wanted = "one range, or two of different families, as 10.96.0.0/16 and fd00:10:96::/112";
    if !list.is_given() {
        findings.require(list, wanted);
        return;
    }
    if items.len() > 2 {
        findings.refuse(list, wanted);
        return;
    }
    let read: Vec<IpNet> = items.iter().filter_map(|item| range(item, findings)).collect();
    let families: Vec<Family> = read.iter().map(|range| Family::of(range.addr())).collect();
    one_per_family(list, &families, "range", findings);
}

fn range(field: &Field, findings: &mut Findings) -> Option<IpNet> {
    match canonical_cidr(field.text(findings)?) {
        Ok(range) => {
            if matches!(range, IpNet::V6(v6) if v6.prefix_len() < SHORTEST_IPV6_PREFIX) {
                findings.refuse(field, format!("{range} is too large: an IPv6 range is /64 or smaller"));
            }
            Some(range)
        }
        Err(reason) => {
            findings.refuse(field, reason);
            None
        }
    }
}

/// Only the second family may be added, behind the first.
fn unchanged(old: &Field, new: &Field, findings: &mut Findings) {
    let (before, after) = (old.peek_items(), new.peek_items());
    let grows = before.len() == 1 && after.len() == 2;
    if before.len() != after.len() && !grows {
        findings.refuse(new, "ranges cannot change; only a second one of the other family may be added");
    }
    for (before, after) in before.iter().zip(&after) {
        if before.value() != after.value() {
            let was = before.peek_text().unwrap_or_default();
            findings.refuse(after, format!("a range cannot change: keep {was}, or make another ServiceCIDR"));
        }
    }
}

#[cfg(test)]
mod tests;
