//! `--check` of `zoneward expose`: written to the slices, for the machine that runs the checks. Endpoints that are known
//! keep their readiness; new ones are not ready until a check succeeds, as with a readiness probe.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::health_checks::readiness::{
    CheckedEndpoint, CheckedSlice, EndpointCheck, EndpointHealth, Probe, with_health,
};
use anyhow::{Result, bail};
use clap::Args;
use model::Protocol;
use model::annotation::{HEALTH_CHECK, NOT_READY};
use serde_json::{Value, json};

/// Flags of a readiness probe. The names of the fields in Kubernetes are in the help.
#[derive(Clone, Debug, Args)]
pub struct CheckArgs {
    /// Health check of the processes: tcp, or http:/PATH; with a port of its own tcp:PORT or http:PORT/PATH. Endpoints
    /// are ready while it succeeds [default: none, always ready]
    #[arg(long, value_name = "tcp|http:/PATH", conflicts_with = "remove")]
    pub check: Option<Probe>,
    /// Interval of checks (periodSeconds), whole seconds
    #[arg(long, value_name = "DURATION", default_value = "10s", requires = "check", value_parser = whole_seconds)]
    pub check_interval: u32,
    /// Time for a check (timeoutSeconds), whole seconds
    #[arg(long, value_name = "DURATION", default_value = "1s", requires = "check", value_parser = whole_seconds)]
    pub check_timeout: u32,
    /// Failures in a row until an endpoint is not ready (failureThreshold)
    #[arg(long, value_name = "N", default_value_t = 3, requires = "check", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub check_failures: u32,
    /// Successes in a row until an endpoint is ready (successThreshold)
    #[arg(long, value_name = "N", default_value_t = 1, requires = "check", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub check_successes: u32,
}

/// Kubernetes counts in seconds.
fn whole_seconds(text: &str) -> Result<u32, String> {
    let duration: Duration = model::duration::parse(text)?;
    let seconds = u32::try_from(duration.as_secs()).unwrap_or(u32::MAX);
    match duration.subsec_nanos() == 0 && (1..=86_400).contains(&seconds) {
        true => Ok(seconds),
        false => Err(format!("{text} is not a number of whole seconds from 1s to 24h")),
    }
}

impl CheckArgs {
    pub fn health_check(&self, protocol: Protocol) -> Result<Option<EndpointCheck>> {
        let Some(probe) = self.check.clone() else { return Ok(None) };
        if protocol != Protocol::Tcp && probe.port().is_none() {
            bail!(
                "--check {probe}: the endpoints take {}, and checks use TCP: name a port that takes TCP, such as \
                 tcp:8081 or http:8081/healthz",
                protocol.as_str()
            );
        }
        Ok(Some(EndpointCheck {
            probe,
            period_seconds: self.check_interval,
            timeout_seconds: self.check_timeout,
            failure_threshold: self.check_failures,
            success_threshold: self.check_successes,
        }))
    }
}

/// The slice with the check and the readiness of its endpoints.
pub(super) fn with_check(mut slice: Value, stored: Option<&Value>, check: Option<&EndpointCheck>) -> Value {
    set_annotation(&mut slice, HEALTH_CHECK, check.map(EndpointCheck::to_json));
    let Ok(Some(wanted)) = CheckedSlice::parse(&slice) else {
        set_annotation(&mut slice, NOT_READY, None);
        return slice;
    };
    let known = stored.map(readiness).unwrap_or_default();
    let health = |endpoint: &CheckedEndpoint| match known.get(&endpoint.address) {
        Some(health) => health.clone(),
        None => EndpointHealth::stored(false, Some(not_checked(endpoint.node.as_deref()))),
    };
    let health = wanted.endpoints.iter().map(|endpoint| (endpoint.address, health(endpoint))).collect();
    with_health(&slice, &health).unwrap_or(slice)
}

fn not_checked(node: Option<&str>) -> String {
    node.map_or("not checked yet".to_owned(), |node| format!("not checked yet by node {node}"))
}

/// What a stored slice says of its endpoints. Those without a check are ready.
fn readiness(stored: &Value) -> BTreeMap<std::net::IpAddr, EndpointHealth> {
    if let Ok(Some(checked)) = CheckedSlice::parse(stored) {
        let health = |e: CheckedEndpoint| (e.address, EndpointHealth::stored(e.ready, e.reason));
        return checked.endpoints.into_iter().map(health).collect();
    }
    let endpoints = stored["endpoints"].as_array().into_iter().flatten();
    let addresses = endpoints.filter_map(|e| e["addresses"][0].as_str()?.parse().ok());
    addresses.map(|address| (address, EndpointHealth::stored(true, None))).collect()
}

fn set_annotation(slice: &mut Value, key: &str, value: Option<String>) {
    let Some(metadata) = slice["metadata"].as_object_mut() else { return };
    match value {
        Some(value) => metadata.entry("annotations").or_insert_with(|| json!({}))[key] = json!(value),
        None => {
            let annotations = metadata.get_mut("annotations").and_then(Value::as_object_mut);
            let is_empty = annotations.is_some_and(|all| all.remove(key).is_some() && all.is_empty());
            // An empty object would differ from what the API stores.
            if is_empty {
                metadata.remove("annotations");
            }
        }
    }
}
