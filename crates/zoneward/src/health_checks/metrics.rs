//! Metrics of health checks.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    check: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

/// Counts of checks and endpoints.
#[derive(Clone, Debug, Default)]
pub struct HealthCheckMetrics {
    checks: Family<OutcomeLabels, Counter>,
    endpoints: Family<StateLabels, Gauge>,
    running: Gauge,
    overdue: Gauge,
    writes: Counter,
}

impl HealthCheckMetrics {
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "zoneward_health_checks",
            "Health checks of exposed processes",
            self.checks.clone(),
        );
        registry.register(
            "zoneward_health_check_endpoints",
            "Endpoints that this machine checks",
            self.endpoints.clone(),
        );
        registry.register("zoneward_health_checks_running", "Health checks under way", self.running.clone());
        registry.register(
            "zoneward_health_checks_overdue",
            "Health checks that wait because too many are under way",
            self.overdue.clone(),
        );
        registry.register(
            "zoneward_health_check_writes",
            "EndpointSlices written because readiness or a reason changed",
            self.writes.clone(),
        );
    }

    pub fn count(&self, check: &'static str, is_success: bool) {
        let result = if is_success { "success" } else { "failure" };
        self.checks.get_or_create(&OutcomeLabels { check, result }).inc();
    }

    pub fn count_write(&self) {
        self.writes.inc();
    }

    pub fn set_state(&self, (ready, not_ready): (usize, usize), running: usize, overdue: usize) {
        let gauge = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        for (state, number) in [("ready", ready), ("not-ready", not_ready)] {
            self.endpoints.get_or_create(&StateLabels { state }).set(gauge(number));
        }
        self.running.set(gauge(running));
        self.overdue.set(gauge(overdue));
    }
}
