//! Checks and readiness in EndpointSlices: read from the stored JSON, and written back with all other fields kept.

use std::collections::BTreeMap;
use std::net::IpAddr;

use insight::status::{HealthCheckStatus, NotReadyEndpoint};
use model::annotation::{self, HEALTH_CHECK, NOT_READY};
use serde_json::{Map, Value, json};

use super::{EndpointCheck, EndpointHealth};

/// A slice whose endpoints are checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedSlice {
    pub check: EndpointCheck,
    /// The port of its endpoints.
    pub port: Option<u16>,
    pub endpoints: Vec<CheckedEndpoint>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedEndpoint {
    pub address: IpAddr,
    pub node: Option<String>,
    pub ready: bool,
    pub reason: Option<String>,
}

impl CheckedSlice {
    /// `None` for a slice without a check; an error names the annotation.
    pub fn parse(slice: &Value) -> Result<Option<Self>, String> {
        let annotations = &slice["metadata"]["annotations"];
        let Some(text) = annotations[HEALTH_CHECK].as_str() else { return Ok(None) };
        if !slice["metadata"]["deletionTimestamp"].is_null() {
            return Ok(None);
        }
        let check = EndpointCheck::from_json(text).map_err(|why| {
            let metadata = &slice["metadata"];
            let name = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
            format!("EndpointSlice {}/{}: {HEALTH_CHECK}: {why}", name("namespace"), name("name"))
        })?;
        let reasons = reasons(slice);
        let endpoint = |endpoint: &Value| {
            let text = endpoint["addresses"][0].as_str()?;
            Some(CheckedEndpoint {
                address: text.parse().ok()?,
                node: endpoint["nodeName"].as_str().map(str::to_owned),
                // As in Kubernetes, an absent condition means ready.
                ready: endpoint["conditions"]["ready"].as_bool().unwrap_or(true),
                reason: reasons.get(text).cloned(),
            })
        };
        let endpoints = slice["endpoints"].as_array().into_iter().flatten().filter_map(endpoint).collect();
        let port = slice["ports"][0]["port"].as_u64().and_then(|port| port.try_into().ok());
        Ok(Some(Self { check, port, endpoints }))
    }
}

/// Reasons by address, as written.
fn reasons(slice: &Value) -> BTreeMap<String, String> {
    let text = slice["metadata"]["annotations"][NOT_READY].as_str().unwrap_or("{}");
    serde_json::from_str(text).unwrap_or_default()
}

/// The slice with the readiness of these endpoints; `None` if it has that already.
pub fn with_health(slice: &Value, health: &BTreeMap<IpAddr, EndpointHealth>) -> Option<Value> {
    let mut reasons = reasons(slice);
    let mut changed = slice.clone();
    let mut present: Vec<String> = Vec::new();
    for endpoint in changed["endpoints"].as_array_mut().into_iter().flatten() {
        let Some(text) = endpoint["addresses"][0].as_str().map(str::to_owned) else { continue };
        present.push(text.clone());
        let Some(health) = text.parse().ok().and_then(|address: IpAddr| health.get(&address)) else {
            continue;
        };
        if !endpoint["conditions"].is_object() {
            endpoint["conditions"] = Value::Object(Map::new());
        }
        // Serving is readiness without regard to termination, and these endpoints do not terminate.
        for condition in ["ready", "serving"] {
            endpoint["conditions"][condition] = json!(health.ready);
        }
        match &health.reason {
            Some(reason) if !health.ready => drop(reasons.insert(text, reason.clone())),
            _ => drop(reasons.remove(&text)),
        }
    }
    reasons.retain(|address, _| present.contains(address));
    set_reasons(&mut changed, &reasons);
    (changed != *slice).then_some(changed)
}

/// Writes the reasons of endpoints that are not ready.
fn set_reasons(slice: &mut Value, reasons: &BTreeMap<String, String>) {
    let Some(metadata) = slice["metadata"].as_object_mut() else { return };
    if reasons.is_empty() {
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove(NOT_READY);
        }
        return;
    }
    let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
    annotations[NOT_READY] = json!(json!(reasons).to_string());
}

/// The checks in these slices, by Service and check. Malformed ones are left out: the machine that would run them logs it.
pub fn statuses(slices: &[Value]) -> Vec<HealthCheckStatus> {
    let mut all: BTreeMap<(String, String, String), HealthCheckStatus> = BTreeMap::new();
    for slice in slices {
        let Ok(Some(checked)) = CheckedSlice::parse(slice) else { continue };
        let metadata = &slice["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (namespace, name) =
            (text(&metadata["namespace"]), text(&metadata["labels"][annotation::SERVICE_NAME]));
        let check = checked.check.probe.to_string();
        let status = all
            .entry((namespace.clone(), name.clone(), check.clone()))
            .or_insert_with(|| HealthCheckStatus { namespace, name, check, ..HealthCheckStatus::default() });
        for endpoint in checked.endpoints {
            status.endpoints += 1;
            if endpoint.ready {
                status.ready += 1;
                continue;
            }
            let address = match checked.port {
                Some(port) => std::net::SocketAddr::new(endpoint.address, port).to_string(),
                None => endpoint.address.to_string(),
            };
            let reason = endpoint.reason.unwrap_or_else(|| "unknown".to_owned());
            status.not_ready.push(NotReadyEndpoint { address, node: endpoint.node, reason });
        }
        status.not_ready.sort();
    }
    all.into_values().collect()
}
