//! Allocation of load balancer addresses from `--load-balancer-range`. Without it, and for a Service with a
//! loadBalancerClass, a Service of type LoadBalancer stays pending until another controller serves it.

use std::net::IpAddr;

use apimachinery::cluster_ips::{IpRange, search_order};
use ipnet::IpNet;
use serde_json::{Value, json};

use super::{AllocationContext, holder};
use crate::meta::at;
use crate::object_txn::{AllocationLock, ObjectTxn};
use crate::status::StatusError;

pub(super) fn allocate(
    objects: &mut ObjectTxn<'_, '_>,
    context: AllocationContext<'_>,
    old: Option<&Value>,
    new: &mut Value,
) -> Result<(), StatusError> {
    if new["spec"]["type"] != "LoadBalancer" {
        if let Some(old) = old.filter(|old| old["spec"]["type"] == "LoadBalancer") {
            release(objects, old)?;
            new["status"]["loadBalancer"] = json!({});
        }
        return Ok(());
    }
    let served = ingress(new).is_empty() && at(new, "spec.loadBalancerClass").is_null();
    if !served || context.ranges.load_balancers.is_empty() || context.dry_run {
        return Ok(());
    }
    let mut given = Vec::new();
    for family in new["spec"]["ipFamilies"].as_array().cloned().unwrap_or_default() {
        let v4 = family == "IPv4";
        let ranges = context.ranges.load_balancers.iter().filter(|range| range.addr().is_ipv4() == v4);
        if let Some(ip) = take_first(objects, ranges, &holder(new))? {
            given.push(json!({"ip": ip.to_string(), "ipMode": "VIP"}));
        }
    }
    if !given.is_empty() && new.is_object() {
        new["status"] = json!({"loadBalancer": {"ingress": given}});
    }
    Ok(())
}

/// Releases the addresses of a Service.
pub(super) fn release(objects: &mut ObjectTxn<'_, '_>, service: &Value) -> Result<(), StatusError> {
    for entry in ingress(service) {
        if let Some(ip) = entry["ip"].as_str() {
            objects.release(AllocationLock::LoadBalancerAddress, ip, &holder(service))?;
        }
    }
    Ok(())
}

fn ingress(service: &Value) -> &[Value] {
    at(service, "status.loadBalancer.ingress").as_array().map_or(&[], Vec::as_slice)
}

/// Addresses that are tried: a search of a whole IPv6 range would not end.
const TRIES: usize = 65_536;

fn take_first<'r>(
    objects: &mut ObjectTxn<'_, '_>,
    ranges: impl Iterator<Item = &'r IpNet>,
    holder: &str,
) -> Result<Option<IpAddr>, StatusError> {
    for range in ranges {
        let range = IpRange::new(*range);
        let (Some(first), Some(last)) = (range.first(), range.last()) else { continue };
        for ip in search_order(first, last, 0).take(TRIES) {
            if objects.take(AllocationLock::LoadBalancerAddress, &ip.to_string(), holder)? {
                return Ok(Some(ip));
            }
        }
    }
    Ok(None)
}
