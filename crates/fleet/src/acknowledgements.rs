//! Invariant 12: Honored turns True only when every ready node has programmed the Service's slices, as its Lease says, and
//! a Lease says so only when the kernel holds them.

use std::collections::BTreeMap;

use model::annotation::{NODE_LEASE_PREFIX, PROGRAMMED_REVISION};
use plan::hints::conditions::HONORED;
use serde_json::Value;

use crate::violation::BrokenInvariant;

type Checked = Result<(), BrokenInvariant>;

/// A controller that leads has seen what was committed this long ago: its lease ends after 15 s, and its watches reconnect
/// in less than the rest.
const STALE_MS: u64 = 60_000;
/// Leases that are older may have expired for the controller, whose clock may be set.
const RENEWED_MS: u64 = 45_000;

#[derive(Default)]
struct NodeReport {
    /// The highest revision that the node ever reported.
    programmed: u64,
    renewed_at: u64,
}

#[derive(Default)]
struct ServiceHistory {
    is_honored: bool,
    /// The highest revision among the slices, and when it was committed, after each change.
    slices: Vec<(u64, u64)>,
}

/// What nodes reported, and the slices that they had to program.
#[derive(Default)]
pub(crate) struct Acknowledgements {
    reports: BTreeMap<String, NodeReport>,
    /// Since when a Node exists.
    nodes: BTreeMap<String, u64>,
    services: BTreeMap<String, ServiceHistory>,
    pub honored: u64,
}

impl Acknowledgements {
    pub(crate) fn lease(&mut self, name: &str, lease: &Value, now: u64) {
        let Some(node) = name.strip_prefix(NODE_LEASE_PREFIX) else { return };
        let text = lease["metadata"]["annotations"][PROGRAMMED_REVISION].as_str();
        let report = self.reports.entry(node.to_owned()).or_default();
        let programmed = text.and_then(|text| text.parse().ok()).unwrap_or_default();
        report.programmed = report.programmed.max(programmed);
        report.renewed_at = now;
    }

    pub(crate) fn node(&mut self, name: &str, is_deletion: bool, now: u64) {
        match is_deletion {
            true => drop(self.nodes.remove(name)),
            false => drop(self.nodes.entry(name.to_owned()).or_insert(now)),
        }
    }

    /// The highest revision among the slices of a Service after a change of one.
    pub(crate) fn slices(&mut self, service: &str, newest: u64, now: u64) {
        self.services.entry(service.to_owned()).or_default().slices.push((newest, now));
    }

    pub(crate) fn service(&mut self, name: &str, service: &Value, is_deletion: bool, now: u64) -> Checked {
        if is_deletion {
            self.services.remove(name);
            return Ok(());
        }
        let conditions = service["status"]["conditions"].as_array().into_iter().flatten();
        let is_honored = conditions
            .into_iter()
            .any(|condition| condition["type"] == HONORED && condition["status"] == "True");
        let history = self.services.entry(name.to_owned()).or_default();
        let turned = is_honored && !history.is_honored;
        history.is_honored = is_honored;
        match turned {
            true => self.check(name, now),
            false => Ok(()),
        }
    }

    /// Every node that the controller must know has programmed one of the versions that it may have seen.
    fn check(&mut self, service: &str, now: u64) -> Checked {
        self.honored += 1;
        let all = self.services.get(service).map(|history| history.slices.as_slice()).unwrap_or_default();
        let first = all.iter().rposition(|(_, at)| at + STALE_MS <= now).unwrap_or(0);
        let oldest = all[first..].iter().map(|(newest, _)| *newest).min();
        let Some(oldest) = oldest else {
            let text = format!("Service {service} is Honored and has no EndpointSlice");
            return Err(BrokenInvariant::new(12, text));
        };
        for (node, since) in &self.nodes {
            let Some(report) = self.reports.get(node) else { continue };
            let is_known = since + STALE_MS <= now && report.renewed_at + RENEWED_MS >= now;
            if is_known && report.programmed < oldest {
                let text = format!(
                    "Service {service} is Honored, its EndpointSlices have revision {oldest} at least, and {node} reported {}",
                    report.programmed
                );
                return Err(BrokenInvariant::new(12, text));
            }
        }
        Ok(())
    }
}
