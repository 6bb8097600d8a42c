//! /healthz and /livez of the node proxy: whether syncs keep up, and whether the node is eligible for new traffic.
//!
//! The state is pure, time is an argument. Seed 002: healthy means that no change has waited longer than two
//! sync periods (pitfall 28); /healthz also requires that the node is not being deleted.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use model::{Family, Node};
use serde_json::{Value, json};

#[derive(Clone, Debug)]
pub struct ProxyHealth {
    timeout: Duration,
    families: BTreeMap<Family, Progress>,
    is_eligible: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// The last successful sync.
    updated: Option<Instant>,
    /// The oldest change that is not synced.
    queued: Option<Instant>,
}

/// The two endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthEndpoint {
    /// /healthz: whether load balancers should send traffic to this node.
    Healthz,
    /// /livez: whether the proxy itself is healthy.
    Livez,
}

#[derive(Clone, Debug, PartialEq)]
pub struct HealthResponse {
    /// 200 or 503.
    pub code: u16,
    /// The body.
    pub body: Value,
}

impl ProxyHealth {
    /// Healthy until a family has reported and then falls behind. `period` is syncPeriod.
    pub fn new(period: Duration) -> Self {
        // Seed 002: progress within 2 x syncPeriod.
        Self::with_timeout(period.saturating_mul(2))
    }

    fn with_timeout(timeout: Duration) -> Self {
        Self { timeout, families: BTreeMap::new(), is_eligible: true }
    }

    /// A change of this family waits.
    pub fn queued(&mut self, family: Family, now: Instant) {
        self.families.entry(family).or_default().queued.get_or_insert(now);
    }

    /// Everything of this family is in the kernel.
    pub fn updated(&mut self, family: Family, now: Instant) {
        *self.families.entry(family).or_default() = Progress { updated: Some(now), queued: None };
    }

    /// The Node, or that there is none.
    // Semantics D8: missing, being deleted, or tainted by the cluster autoscaler.
    pub fn node(&mut self, node: Option<&Node>) {
        self.is_eligible = node.is_some_and(|node| !node.deleting && !node.to_be_deleted);
    }

    /// Whether nothing waits too long. A family that never reported is not asked.
    pub fn is_healthy(&self, now: Instant) -> bool {
        self.families.values().all(|progress| self.keeps_up(progress, now))
    }

    fn keeps_up(&self, progress: &Progress, now: Instant) -> bool {
        let waits = progress.queued.map(|since| now.saturating_duration_since(since));
        progress.updated.is_none() || waits.is_none_or(|waits| waits < self.timeout)
    }

    /// `wall` is the time of day at `now`.
    pub fn response(&self, endpoint: HealthEndpoint, now: Instant, wall: Timestamp) -> HealthResponse {
        let healthy = self.is_healthy(now);
        let is_good = healthy && (endpoint == HealthEndpoint::Livez || self.is_eligible);
        let time = |at: Option<Instant>| at.map_or_else(|| wall.to_string(), |at| ago(wall, now, at));
        let mut status = serde_json::Map::new();
        for (family, progress) in self.families.iter().filter(|(_, p)| p.updated.is_some()) {
            let one = json!({"lastUpdated": time(progress.updated), "healthy": self.keeps_up(progress, now)});
            status.insert(family.to_string(), one);
        }
        let oldest = self.families.values().filter_map(|progress| progress.updated).min();
        let last = if is_good { wall.to_string() } else { time(oldest) };
        let mut body = json!({"lastUpdated": last, "currentTime": wall.to_string()});
        if endpoint == HealthEndpoint::Healthz {
            body["nodeEligible"] = self.is_eligible.into();
        }
        body["healthy"] = healthy.into();
        body["status"] = Value::Object(status);
        HealthResponse { code: if is_good { 200 } else { 503 }, body }
    }
}

fn ago(wall: Timestamp, now: Instant, at: Instant) -> String {
    let passed = jiff::SignedDuration::try_from(now.saturating_duration_since(at)).unwrap_or_default();
    wall.checked_sub(passed).unwrap_or(wall).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family(value: &Value) -> Family {
        if value == "IPv4" { Family::V4 } else { Family::V6 }
    }

    /// The vectors about the state; those about ports are in the tests of a running node.
    #[test]
    fn every_health_case_holds() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/healthcheck.json");
        let file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let mut queries = 0;
        for case in file["vectors"].as_array().unwrap() {
            let steps = case["steps"].as_array().unwrap();
            let Some(timeout) = steps[0]["healthTimeoutSeconds"].as_u64() else { continue };
            let mut health = ProxyHealth::with_timeout(Duration::from_secs(timeout));
            let endpoint = if steps[0]["endpoint"] == "/livez" {
                HealthEndpoint::Livez
            } else {
                HealthEndpoint::Healthz
            };
            let mut now = Instant::now();
            for (i, step) in steps.iter().enumerate().skip(1) {
                match step["op"].as_str().unwrap() {
                    "updated" => health.updated(family(&step["family"]), now),
                    "queuedUpdate" => health.queued(family(&step["family"]), now),
                    "advance" => now += Duration::from_secs(step["seconds"].as_u64().unwrap()),
                    "node" => {
                        let mut value = step["node"].clone();
                        value["apiVersion"] = "v1".into();
                        value["kind"] = "Node".into();
                        value["metadata"] = json!({"name": "n"});
                        let parsed = model::parse::object(&value, &mut model::Interner::default()).0;
                        let Some(model::Object::Node(node)) = parsed else { panic!("{value}") };
                        health.node(Some(&node));
                    }
                    "query" => {
                        queries += 1;
                        check(
                            &health.response(endpoint, now, Timestamp::now()),
                            &step["expect"],
                            &case["id"],
                            i,
                        );
                    }
                    other => panic!("unknown step {other}"),
                }
            }
        }
        assert_eq!(queries, 13);
    }

    fn check(answer: &HealthResponse, expect: &Value, id: &Value, step: usize) {
        let HealthResponse { code, body } = answer;
        let about = format!("{id} step {step}: {body}");
        assert_eq!(expect["code"].as_u64(), Some(u64::from(*code)), "{about}");
        for field in ["healthy", "nodeEligible"].iter().filter(|field| !expect[**field].is_null()) {
            assert_eq!(body[*field], expect[*field], "{about}");
        }
        for family in ["IPv4", "IPv6"].iter().filter(|family| !expect[**family].is_null()) {
            assert_eq!(body["status"][*family]["healthy"], expect[*family], "{about}");
        }
    }

    #[test]
    fn missing_node_is_not_eligible_but_alive() {
        let mut health = ProxyHealth::new(Duration::from_secs(30));
        health.node(None);
        let (now, wall) = (Instant::now(), Timestamp::now());
        assert_eq!(health.response(HealthEndpoint::Healthz, now, wall).code, 503);
        assert_eq!(health.response(HealthEndpoint::Livez, now, wall).code, 200);
    }
}
