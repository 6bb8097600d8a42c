//! Anonymizes captured objects without changing planning decisions.
//!
//! Equal texts become equal hashes, so that selectors and references still match. Zones, regions and addresses are
//! renumbered in their original order, because it breaks ties.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use model::{Family, address::parse_ip, annotation};
use ring::hmac;
use serde_json::{Map, Value};

/// Label keys that planning reads; all others are hashed.
const KNOWN_KEYS: &[&str] = &[
    annotation::SERVICE_NAME,
    annotation::MANAGED_BY,
    annotation::HEADLESS,
    annotation::SERVICE_PROXY_NAME,
    annotation::ZONE,
    annotation::REGION,
    annotation::CONTROL_PLANE,
    annotation::MASTER,
    TEMPLATE_HASH,
];
/// Of these, keys whose values planning reads.
const KNOWN_VALUES: &[&str] =
    &[annotation::MANAGED_BY, annotation::HEADLESS, annotation::CONTROL_PLANE, annotation::MASTER];
const TEMPLATE_HASH: &str = "pod-template-hash";

pub(super) struct Anonymizer {
    key: hmac::Key,
    zones: BTreeMap<String, String>,
    regions: BTreeMap<String, String>,
    addresses: BTreeMap<IpAddr, IpAddr>,
}

impl Anonymizer {
    pub(super) fn new(salt: &[u8], objects: &[Value]) -> Self {
        let (mut zones, mut regions, mut addresses) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for object in objects {
            let labels = &object["metadata"]["labels"];
            zones.extend(labels[annotation::ZONE].as_str().map(str::to_owned));
            regions.extend(labels[annotation::REGION].as_str().map(str::to_owned));
            for endpoint in object["endpoints"].as_array().into_iter().flatten() {
                zones.extend(endpoint["zone"].as_str().map(str::to_owned));
                let hints = endpoint["hints"]["forZones"].as_array().into_iter().flatten();
                zones.extend(hints.filter_map(|hint| hint["name"].as_str()).map(str::to_owned));
            }
            collect_addresses(object, &mut addresses);
        }
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, salt),
            zones: numbered(zones, "zone"),
            regions: numbered(regions, "region"),
            addresses: renumbered(addresses),
        }
    }

    pub(super) fn apply(&self, objects: &mut [Value]) {
        for object in objects {
            let kind = object["kind"].as_str().unwrap_or_default().to_owned();
            self.metadata(&mut object["metadata"]);
            match kind.as_str() {
                "Service" => self.service(object),
                "EndpointSlice" => self.slice(object),
                "Pod" => self.pod(object),
                "Node" => {
                    if let Some(spec) = object["spec"].as_object_mut() {
                        spec.retain(|field, _| field == "taints");
                    }
                }
                _ => {}
            }
            self.replace_addresses(object);
        }
    }

    /// A letter and twelve digits of the hash; empty stays empty.
    fn name(&self, text: &str) -> String {
        if text.is_empty() {
            return String::new();
        }
        let tag = hmac::sign(&self.key, text.as_bytes());
        let digits = tag.as_ref().iter().take(6).map(|byte| format!("{byte:02x}"));
        "h".to_owned() + &digits.collect::<String>()
    }

    /// A UUID derived from the hash.
    fn uid(&self, text: &str) -> String {
        let tag = hmac::sign(&self.key, text.as_bytes());
        let hex: String = tag.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        format!("{}-{}-4{}-8{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..32])
    }

    fn rename(&self, value: &mut Value) {
        if let Some(text) = value.as_str() {
            *value = self.name(text).into();
        }
    }

    /// Renames existing fields of an object.
    fn rename_fields(&self, object: &mut Value, fields: &[&str]) {
        for field in fields {
            if let Some(value) = object.get_mut(field) {
                self.rename(value);
            }
        }
    }

    fn metadata(&self, metadata: &mut Value) {
        let hash = metadata["labels"][TEMPLATE_HASH].as_str().map(str::to_owned);
        self.rename_fields(metadata, &["name", "namespace"]);
        self.identity(metadata);
        if let Some(labels) = metadata.get_mut("labels") {
            self.labels(labels);
        }
        if let Some(demand) = metadata.get_mut("annotations").and_then(|a| a.get_mut(annotation::DEMAND)) {
            self.demand(demand);
        }
        if let Some(keep) = metadata.get_mut("annotations").and_then(|a| a.get_mut(annotation::KEEP)) {
            self.keep(keep);
        }
        for owner in metadata.get_mut("ownerReferences").and_then(Value::as_array_mut).into_iter().flatten() {
            self.identity(owner);
            // The name of a ReplicaSet still contains that of its Deployment.
            let name = owner["name"].as_str().unwrap_or_default();
            let parts = hash.as_ref().and_then(|hash| Some((name.strip_suffix(hash.as_str())?, hash)));
            let parts = parts.and_then(|(front, hash)| Some((front.strip_suffix('-')?, hash)));
            owner["name"] = match parts {
                Some((front, hash)) => format!("{}-{}", self.name(front), self.name(hash)).into(),
                None => self.name(name).into(),
            };
        }
    }

    fn identity(&self, object: &mut Value) {
        if let Some(uid) = object.get_mut("uid")
            && let Some(text) = uid.as_str()
        {
            *uid = self.uid(text).into();
        }
    }

    fn labels(&self, labels: &mut Value) {
        let Some(pairs) = labels.as_object() else { return };
        let anonymized: Map<String, Value> =
            pairs.iter().map(|(key, value)| self.label(key, value)).collect();
        *labels = anonymized.into();
    }

    fn label(&self, key: &str, value: &Value) -> (String, Value) {
        let text = value.as_str().unwrap_or_default();
        let value = match key {
            annotation::ZONE => self.zone(text),
            annotation::REGION => self.regions.get(text).cloned().unwrap_or_default(),
            key if KNOWN_VALUES.contains(&key) => text.to_owned(),
            _ => self.name(text),
        };
        let key = if KNOWN_KEYS.contains(&key) { key.to_owned() } else { self.name(key) };
        (key, value.into())
    }

    fn zone(&self, text: &str) -> String {
        self.zones.get(text).cloned().unwrap_or_else(|| self.name(text))
    }

    /// `za=103,zb=77`.
    fn demand(&self, demand: &mut Value) {
        let text = demand.as_str().unwrap_or_default();
        let part = |entry: &str| match entry.rsplit_once('=') {
            Some((zone, share)) => format!("{}={share}", self.zone(zone)),
            None => self.name(entry),
        };
        let parts: Vec<String> = text.split(',').map(part).collect();
        *demand = parts.join(",").into();
    }

    /// `1.42/24 spread=zone,zone`
    fn keep(&self, keep: &mut Value) {
        let text = keep.as_str().unwrap_or_default();
        if let Some((factor, zones)) = text.split_once(" spread=") {
            let zones: Vec<String> = zones.split(',').map(|zone| self.zone(zone)).collect();
            *keep = format!("{factor} spread={}", zones.join(",")).into();
        }
    }

    fn service(&self, object: &mut Value) {
        let spec = &mut object["spec"];
        if let Some(selector) = spec.get_mut("selector") {
            self.labels(selector);
        }
        self.rename_fields(spec, &["externalName"]);
        if let Some(spec) = spec.as_object_mut() {
            spec.remove("loadBalancerSourceRanges");
        }
        let ingress = object.pointer_mut("/status/loadBalancer/ingress").and_then(Value::as_array_mut);
        ingress.into_iter().flatten().for_each(|entry| self.rename_fields(entry, &["hostname"]));
    }

    fn slice(&self, object: &mut Value) {
        let is_fqdn = object["addressType"] == "FQDN";
        for endpoint in object.get_mut("endpoints").and_then(Value::as_array_mut).into_iter().flatten() {
            self.rename_fields(endpoint, &["hostname", "nodeName"]);
            if let Some(zone) = endpoint.get_mut("zone") {
                *zone = self.zone(zone.as_str().unwrap_or_default()).into();
            }
            if let Some(target) = endpoint.get_mut("targetRef") {
                self.rename_fields(target, &["namespace", "name"]);
                self.identity(target);
            }
            let hints = |field: &str, endpoint: &mut Value, renamed: &dyn Fn(&str) -> String| {
                let hints = endpoint.pointer_mut(field).and_then(Value::as_array_mut);
                for hint in hints.into_iter().flatten() {
                    hint["name"] = renamed(hint["name"].as_str().unwrap_or_default()).into();
                }
            };
            hints("/hints/forZones", endpoint, &|zone| self.zone(zone));
            hints("/hints/forNodes", endpoint, &|node| self.name(node));
            let addresses = endpoint.get_mut("addresses").and_then(Value::as_array_mut).filter(|_| is_fqdn);
            addresses.into_iter().flatten().for_each(|address| self.rename(address));
        }
    }

    fn pod(&self, object: &mut Value) {
        self.rename_fields(&mut object["spec"], &["nodeName", "hostname", "subdomain"]);
        for list in ["/spec/containers", "/spec/initContainers"] {
            let containers = object.pointer_mut(list).and_then(Value::as_array_mut);
            containers.into_iter().flatten().for_each(|container| self.rename_fields(container, &["name"]));
        }
    }

    fn replace_addresses(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                if let Some(other) = parse_ip(text).and_then(|ip| self.addresses.get(&ip)) {
                    *text = other.to_string();
                }
            }
            Value::Array(list) => list.iter_mut().for_each(|value| self.replace_addresses(value)),
            Value::Object(fields) => fields.values_mut().for_each(|value| self.replace_addresses(value)),
            _ => {}
        }
    }
}

fn collect_addresses(value: &Value, found: &mut BTreeSet<IpAddr>) {
    match value {
        Value::String(text) => found.extend(parse_ip(text)),
        Value::Array(list) => list.iter().for_each(|value| collect_addresses(value, found)),
        Value::Object(fields) => fields.values().for_each(|value| collect_addresses(value, found)),
        _ => {}
    }
}

/// `zone-001`, `zone-002`: with enough digits to keep their order.
fn numbered(names: BTreeSet<String>, prefix: &str) -> BTreeMap<String, String> {
    let width = names.len().to_string().len();
    let number = |(at, name): (usize, String)| (name, format!("{prefix}-{:0width$}", at + 1));
    names.into_iter().enumerate().map(number).collect()
}

/// Addresses in the same order, from private ranges.
fn renumbered(addresses: BTreeSet<IpAddr>) -> BTreeMap<IpAddr, IpAddr> {
    let (mut v4, mut v6) = (0x0a00_0000u32, 0xfd00_u128 << 112);
    let next = |ip: IpAddr| {
        let other = match Family::of(ip) {
            Family::V4 => {
                v4 = v4.saturating_add(1);
                IpAddr::V4(Ipv4Addr::from_bits(v4))
            }
            Family::V6 => {
                v6 = v6.saturating_add(1);
                IpAddr::V6(Ipv6Addr::from_bits(v6))
            }
        };
        (ip, other)
    };
    addresses.into_iter().map(next).collect()
}
