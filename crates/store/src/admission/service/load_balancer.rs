//! Addresses of load balancers, where `--load-balancer-range` gives some. Without it, and for a Service with
//! a class of its own, a Service of type LoadBalancer stays pending until somebody else serves it.

use std::net::IpAddr;

use ipnet::IpNet;
use plan::cluster_ips::{IpRange, search_order};
use serde_json::{Value, json};

use super::{Terms, holder};
use crate::meta::at;
use crate::objects::{Lock, Objects};
use crate::status::Failure;

/// Gives or takes back the addresses of a Service.
pub(super) fn settle(
    objects: &mut Objects<'_, '_>,
    terms: Terms<'_>,
    old: Option<&Value>,
    new: &mut Value,
) -> Result<(), Failure> {
    if new["spec"]["type"] != "LoadBalancer" {
        if let Some(old) = old.filter(|old| old["spec"]["type"] == "LoadBalancer") {
            release(objects, old)?;
            new["status"]["loadBalancer"] = json!({});
        }
        return Ok(());
    }
    let served = ingress(new).is_empty() && at(new, "spec.loadBalancerClass").is_null();
    if !served || terms.ranges.load_balancers.is_empty() || terms.dry_run {
        return Ok(());
    }
    let mut given = Vec::new();
    for family in new["spec"]["ipFamilies"].as_array().cloned().unwrap_or_default() {
        let v4 = family == "IPv4";
        let ranges = terms.ranges.load_balancers.iter().filter(|range| range.addr().is_ipv4() == v4);
        if let Some(ip) = take_first(objects, ranges, &holder(new))? {
            given.push(json!({"ip": ip.to_string(), "ipMode": "VIP"}));
        }
    }
    if !given.is_empty() && new.is_object() {
        new["status"] = json!({"loadBalancer": {"ingress": given}});
    }
    Ok(())
}

/// Takes the addresses of a Service back.
pub(super) fn release(objects: &mut Objects<'_, '_>, service: &Value) -> Result<(), Failure> {
    for entry in ingress(service) {
        if let Some(ip) = entry["ip"].as_str() {
            objects.release(Lock::LoadBalancerAddress, ip, &holder(service))?;
        }
    }
    Ok(())
}

fn ingress(service: &Value) -> &[Value] {
    at(service, "status.loadBalancer.ingress").as_array().map_or(&[], Vec::as_slice)
}

/// How many addresses are tried: a search through a whole IPv6 range would never end.
const TRIES: usize = 65_536;

fn take_first<'r>(
    objects: &mut Objects<'_, '_>,
    ranges: impl Iterator<Item = &'r IpNet>,
    holder: &str,
) -> Result<Option<IpAddr>, Failure> {
    for range in ranges {
        let range = IpRange::new(*range);
        let (Some(first), Some(last)) = (range.first(), range.last()) else { continue };
        for ip in search_order(first, last, 0).take(TRIES) {
            if objects.take(Lock::LoadBalancerAddress, &ip.to_string(), holder)? {
                return Ok(Some(ip));
            }
        }
    }
    Ok(None)
}
