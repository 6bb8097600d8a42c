//! Node ports: one number for one Service on all nodes, taken in the same transaction as the Service.
//!
//! ```text
//! 30000 ... static band ... 30085 | 30086 ......... dynamic band ......... 32767
//!       people choose from here     chosen first, from a random place on
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use serde_json::Value;

use super::service::{Terms, holder};
use crate::kinds;
use crate::meta::{self, at};
use crate::objects::{Lock, Objects};
use crate::status::{Cause, Failure};

/// Takes the ports that a Service needs and gives back those that it no longer does.
pub(super) fn settle(
    objects: &mut Objects<'_, '_>,
    terms: Terms<'_>,
    old: Option<&Value>,
    new: &mut Value,
) -> Result<(), Failure> {
    let holder = holder(new);
    let before = old.map(held).unwrap_or_default();
    let after = held(new);
    for port in before.difference(&after) {
        objects.release(Lock::NodePort, &port.to_string(), &holder)?;
    }
    take_asked(objects, new, &holder)?;
    if wants_node_ports(new) {
        give_node_ports(objects, terms, new, &holder)?;
    }
    let checked = new["spec"]["type"] == "LoadBalancer" && new["spec"]["externalTrafficPolicy"] == "Local";
    if checked && number(at(new, "spec.healthCheckNodePort")).is_none() {
        let port = take_next(objects, terms, &holder)?;
        new["spec"]["healthCheckNodePort"] = port.into();
    }
    Ok(())
}

/// Gives all ports of a Service back.
pub(super) fn release(objects: &mut Objects<'_, '_>, service: &Value) -> Result<(), Failure> {
    let holder = holder(service);
    for port in held(service) {
        objects.release(Lock::NodePort, &port.to_string(), &holder)?;
    }
    Ok(())
}

fn number(value: &Value) -> Option<u16> {
    value.as_u64().and_then(|number| u16::try_from(number).ok()).filter(|number| *number != 0)
}

fn ports(service: &Value) -> &[Value] {
    at(service, "spec.ports").as_array().map_or(&[], Vec::as_slice)
}

fn held(service: &Value) -> BTreeSet<u16> {
    let mut numbers: BTreeSet<u16> =
        ports(service).iter().filter_map(|port| number(&port["nodePort"])).collect();
    numbers.extend(number(at(service, "spec.healthCheckNodePort")));
    numbers
}

fn wants_node_ports(service: &Value) -> bool {
    match service["spec"]["type"].as_str() {
        Some("NodePort") => true,
        Some("LoadBalancer") => service["spec"]["allocateLoadBalancerNodePorts"] != false,
        _ => false,
    }
}

/// Takes the ports that the Service names itself.
fn take_asked(objects: &mut Objects<'_, '_>, service: &Value, holder: &str) -> Result<(), Failure> {
    let named = ports(service).iter().enumerate();
    let named =
        named.filter_map(|(i, port)| Some((number(&port["nodePort"])?, format!("spec.ports[{i}].nodePort"))));
    let check =
        number(at(service, "spec.healthCheckNodePort")).map(|n| (n, "spec.healthCheckNodePort".to_owned()));
    for (port, field) in named.chain(check) {
        if !objects.take(Lock::NodePort, &port.to_string(), holder)? {
            let cause = Cause::invalid(field, format!("{port}: provided port is already allocated"));
            let services = kinds::find("", "v1", "services").expect("the table has Services");
            return Err(Failure::invalid(services, meta::text(service, "name"), &[cause]));
        }
    }
    Ok(())
}

/// Semantics E3: ports with equal numbers, of different protocols, share one node port.
fn give_node_ports(
    objects: &mut Objects<'_, '_>,
    terms: Terms<'_>,
    service: &mut Value,
    holder: &str,
) -> Result<(), Failure> {
    let mut by_port: BTreeMap<u64, (Vec<Value>, u16)> = BTreeMap::new();
    for port in ports(service) {
        if let (Some(given), Some(number)) = (number(&port["nodePort"]), port["port"].as_u64()) {
            by_port.insert(number, (vec![port["protocol"].clone()], given));
        }
    }
    let count = ports(service).len();
    for i in 0..count {
        let port = &service["spec"]["ports"][i];
        if number(&port["nodePort"]).is_some() || !port.is_object() {
            continue;
        }
        let (wanted, protocol) = (port["port"].as_u64().unwrap_or(0), port["protocol"].clone());
        let shared = by_port.get_mut(&wanted).filter(|(protocols, _)| !protocols.contains(&protocol));
        let given = match shared {
            Some((protocols, given)) => {
                protocols.push(protocol);
                *given
            }
            None => {
                let given = take_next(objects, terms, holder)?;
                by_port.insert(wanted, (vec![protocol], given));
                given
            }
        };
        service["spec"]["ports"][i]["nodePort"] = given.into();
    }
    Ok(())
}

/// The two bands: dynamic first, static behind it.
fn bands(range: &RangeInclusive<u16>) -> [RangeInclusive<u16>; 2] {
    let (first, last) = (*range.start(), *range.end());
    let size = u32::from(last.saturating_sub(first)) + 1;
    // As Kubernetes cuts it: a 32nd, at least 16 and at most 128, and nothing of a small range.
    let offset = if size <= 16 { 0 } else { (size / 32).clamp(16, 128) };
    let middle = first.saturating_add(u16::try_from(offset).unwrap_or(0));
    let fixed = if offset == 0 { RangeInclusive::new(1, 0) } else { first..=middle - 1 };
    [middle..=last, fixed]
}

fn take_next(objects: &mut Objects<'_, '_>, terms: Terms<'_>, holder: &str) -> Result<u16, Failure> {
    for band in bands(&terms.ranges.node_ports.node_ports) {
        let size = band.len() as u64;
        for step in 0..size {
            let offset = terms.seed.wrapping_add(step) % size;
            let port = band.start().saturating_add(u16::try_from(offset).unwrap_or(0));
            if objects.holder(Lock::NodePort, &port.to_string())?.is_none() {
                objects.take(Lock::NodePort, &port.to_string(), holder)?;
                return Ok(port);
            }
        }
    }
    Err(Failure::internal(
        "failed to allocate a nodePort: range is full; delete Services that are not needed",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lower_ports_are_kept_for_those_who_choose() {
        assert_eq!(bands(&(30_000..=32_767)), [30_086..=32_767, 30_000..=30_085]);
        let [dynamic, fixed] = bands(&(1..=10));
        assert_eq!((dynamic, fixed.len()), (1..=10, 0));
    }
}
