//! Metrics of the EndpointSlice controller: the upstream names where the meaning is the same, so that dashboards keep
//! working, those of seed 003, and ours per mechanism and safeguard.

use std::sync::atomic::AtomicU64;

use insight::status::{ConvergenceFigures, StatusSignals};
use model::{Name, ServiceKey};
use plan::hints::{Mechanism, SAFEGUARDS};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::last_sync::ServiceCounts;
use super::slice_writes::WrittenSlices;
use super::wanted_endpoints::WantedEndpoints;
use cluster::admin_server::UnsuffixedCounter;
use insight::signal_metrics::SignalMetrics;

/// Prefix of the upstream names.
const SUBSYSTEM: &str = "endpoint_slice_controller";

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OperationLabel {
    operation: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DistributionLabel {
    traffic_distribution: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ChangedLabels {
    topology: &'static str,
    traffic_distribution: String,
}

/// Seed 003.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ApproachLabel {
    approach: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct MechanismLabel {
    mechanism: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct SafeguardLabel {
    safeguard: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ConvergenceLabels {
    stage: &'static str,
    quantile: &'static str,
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// Upstream buckets for endpoints: 2, 4, ... 32768.
fn endpoints() -> Histogram {
    Histogram::new(exponential_buckets(2.0, 2.0, 15))
}

/// Upstream buckets for slices: the defaults of Prometheus' Go client.
fn slices() -> Histogram {
    Histogram::new([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0])
}

/// Buckets of our own histograms: 1, 2, ... 16384.
fn whole_numbers() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 15))
}

/// Clones share the metrics.
#[derive(Clone, Debug)]
pub struct ControllerMetrics {
    endpoints_added: Histogram,
    endpoints_removed: Histogram,
    endpoints_desired: Gauge,
    slices: Gauge,
    desired_slices: Gauge,
    changes: Family<OperationLabel, UnsuffixedCounter>,
    changed_per_sync: Histograms<ChangedLabels>,
    syncs: Family<ResultLabel, UnsuffixedCounter>,
    services_by_distribution: Family<DistributionLabel, Gauge>,
    changed_by_approach: Histograms<ApproachLabel>,
    reallocated: Histogram,
    total_endpoints: Gauge,
    services_by_mechanism: Family<MechanismLabel, Gauge>,
    services_held_back: Family<SafeguardLabel, Gauge>,
    events: Family<ResultLabel, Counter>,
    queue_depth: Gauge,
    convergence: Family<ConvergenceLabels, Gauge<f64, AtomicU64>>,
    signals: SignalMetrics,
    wanted: WantedEndpoints,
}

impl Default for ControllerMetrics {
    fn default() -> Self {
        let metrics = Self {
            endpoints_added: endpoints(),
            endpoints_removed: endpoints(),
            endpoints_desired: Gauge::default(),
            slices: Gauge::default(),
            desired_slices: Gauge::default(),
            changes: Family::default(),
            changed_per_sync: Family::new_with_constructor(slices as fn() -> Histogram),
            syncs: Family::default(),
            services_by_distribution: Family::default(),
            changed_by_approach: Family::new_with_constructor(whole_numbers as fn() -> Histogram),
            reallocated: whole_numbers(),
            total_endpoints: Gauge::default(),
            services_by_mechanism: Family::default(),
            services_held_back: Family::default(),
            events: Family::default(),
            queue_depth: Gauge::default(),
            convergence: Family::default(),
            signals: SignalMetrics::default(),
            wanted: WantedEndpoints::default(),
        };
        metrics.prepare();
        metrics
    }
}

/// The changes of one sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncCounts {
    pub creates: usize,
    pub updates: usize,
    pub deletes: usize,
    /// Endpoints added.
    pub added: usize,
    /// Endpoints removed.
    pub removed: usize,
    /// Endpoints with changed zone hints.
    pub reallocated: usize,
}

impl SyncCounts {
    /// Slices written or deleted.
    pub fn slices(&self) -> usize {
        self.creates + self.updates + self.deletes
    }
}

impl ControllerMetrics {
    /// Creates series before the first event, so that rates and alerts see the first one.
    fn prepare(&self) {
        for operation in ["create", "update", "delete"] {
            drop(self.changes.get_or_create(&OperationLabel { operation }));
        }
        for result in ["success", "stale", "error"] {
            drop(self.syncs.get_or_create(&ResultLabel { result }));
        }
        for result in ["success", "error"] {
            drop(self.events.get_or_create(&ResultLabel { result }));
        }
        for topology in ["Auto", "Disabled"] {
            let traffic_distribution = String::new();
            drop(self.changed_per_sync.get_or_create(&ChangedLabels { topology, traffic_distribution }));
        }
        for distribution in DISTRIBUTIONS {
            let traffic_distribution = distribution.to_owned();
            drop(self.services_by_distribution.get_or_create(&DistributionLabel { traffic_distribution }));
        }
        for mechanism in Mechanism::ALL {
            let mechanism = mechanism.as_str();
            drop(self.services_by_mechanism.get_or_create(&MechanismLabel { mechanism }));
        }
        for safeguard in SAFEGUARDS {
            drop(self.services_held_back.get_or_create(&SafeguardLabel { safeguard }));
        }
        for approach in [Mechanism::None, Mechanism::Auto, Mechanism::PreferSameZone, Mechanism::Spill] {
            drop(self.changed_by_approach.get_or_create(&ApproachLabel { approach: approach.as_str() }));
        }
    }

    pub fn register(&self, registry: &mut Registry) {
        let upstream = registry.sub_registry_with_prefix(SUBSYSTEM);
        upstream.register(
            "endpoints_added_per_sync",
            "Endpoints added on each Service sync",
            self.endpoints_added.clone(),
        );
        upstream.register(
            "endpoints_removed_per_sync",
            "Endpoints removed on each Service sync",
            self.endpoints_removed.clone(),
        );
        upstream.register("endpoints_desired", "Endpoints desired", self.endpoints_desired.clone());
        upstream.register("num_endpoint_slices", "EndpointSlices that exist", self.slices.clone());
        upstream.register(
            "desired_endpoint_slices",
            "EndpointSlices that would exist with perfect packing",
            self.desired_slices.clone(),
        );
        upstream.register("changes", "EndpointSlice changes", self.changes.clone());
        upstream.register(
            "endpointslices_changed_per_sync",
            "EndpointSlices changed on each Service sync",
            self.changed_per_sync.clone(),
        );
        upstream.register("syncs", "Service syncs by result", self.syncs.clone());
        upstream.register(
            "services_count_by_traffic_distribution",
            "Services by spec.trafficDistribution",
            self.services_by_distribution.clone(),
        );
        // Seed 003, "Monitoring Requirements".
        upstream.register(
            "changes_endpointslices_per_sync",
            "EndpointSlices changed on each Service sync, by approach",
            self.changed_by_approach.clone(),
        );
        upstream.register(
            "reallocated_endpoints_per_sync",
            "Endpoints with changed zone hints on each Service sync",
            self.reallocated.clone(),
        );
        upstream.register("total_endpoints", "Endpoints of all Services", self.total_endpoints.clone());
        let ours = registry.sub_registry_with_prefix("zoneward_controller");
        ours.register(
            "services_by_mechanism",
            "Services by active mechanism",
            self.services_by_mechanism.clone(),
        );
        ours.register(
            "services_held_back",
            "Services whose mechanism is held back by a safeguard",
            self.services_held_back.clone(),
        );
        ours.register("events", "Events written, by result", self.events.clone());
        ours.register("queue_depth", "Services in the work queue", self.queue_depth.clone());
        registry.register(
            "zoneward_convergence_seconds",
            "Time from a Pod's readiness to its EndpointSlice and to the kernels of the nodes",
            self.convergence.clone(),
        );
        registry.register_collector(Box::new(self.signals.clone()));
        registry.register_collector(Box::new(self.wanted.clone()));
    }

    /// Replaces the contribution of a Service to the gauges.
    pub fn recount(&self, before: &ServiceCounts, after: &ServiceCounts) {
        if before == after {
            return;
        }
        for (counts, sign) in [(before, -1), (after, 1)] {
            self.slices.inc_by(sign * counts.slices);
            self.desired_slices.inc_by(sign * counts.desired_slices);
            self.endpoints_desired.inc_by(sign * counts.endpoints);
            self.total_endpoints.inc_by(sign * counts.endpoints);
            if *counts == ServiceCounts::default() {
                continue;
            }
            let mechanism = MechanismLabel { mechanism: counts.mechanism.as_str() };
            self.services_by_mechanism.get_or_create(&mechanism).inc_by(sign);
            if let Some(safeguard) = counts.held_back {
                self.services_held_back.get_or_create(&SafeguardLabel { safeguard }).inc_by(sign);
            }
            if let Some(distribution) = &counts.traffic_distribution {
                let traffic_distribution = known_distribution(distribution);
                let label = DistributionLabel { traffic_distribution };
                self.services_by_distribution.get_or_create(&label).inc_by(sign);
            }
        }
    }

    /// Counts a sync.
    pub fn synced(&self, result: &'static str) {
        self.syncs.get_or_create(&ResultLabel { result }).inc_by(1);
    }

    /// Counts acknowledged writes, of successful and failed syncs.
    pub fn wrote(&self, written: &WrittenSlices) {
        let WrittenSlices { creates, updates, deletes } = *written;
        for (operation, number) in [("create", creates), ("update", updates), ("delete", deletes)] {
            self.changes.get_or_create(&OperationLabel { operation }).inc_by(number as u64);
        }
    }

    /// Observes the changes of a successful sync.
    pub fn changed(&self, changes: &SyncCounts, counts: &ServiceCounts) {
        self.endpoints_added.observe(changes.added as f64);
        self.endpoints_removed.observe(changes.removed as f64);
        self.reallocated.observe(changes.reallocated as f64);
        let topology = if counts.mechanism == Mechanism::Auto { "Auto" } else { "Disabled" };
        let traffic_distribution =
            counts.traffic_distribution.as_deref().map(known_distribution).unwrap_or_default();
        let slices = changes.slices() as f64;
        self.changed_per_sync
            .get_or_create(&ChangedLabels { topology, traffic_distribution })
            .observe(slices);
        let approach = ApproachLabel { approach: counts.mechanism.as_str() };
        self.changed_by_approach.get_or_create(&approach).observe(slices);
    }

    /// Counts an Event.
    pub fn event(&self, result: &'static str) {
        self.events.get_or_create(&ResultLabel { result }).inc();
    }

    /// Stages without a change yet have no series.
    pub fn set_convergence(&self, figures: &ConvergenceFigures) {
        for (stage, times) in [("slice", figures.slices), ("kernel", figures.kernels)] {
            for (quantile, seconds) in [("0.5", times.p50), ("0.99", times.p99)] {
                if let Some(seconds) = seconds {
                    self.convergence.get_or_create(&ConvergenceLabels { stage, quantile }).set(seconds);
                }
            }
        }
    }

    /// Replaces the figures of the status report.
    /// By Service and zone; empty while another controller leads.
    pub fn set_wanted_endpoints(&self, wanted: Vec<(ServiceKey, Name, u64)>) {
        self.wanted.set(wanted);
    }

    pub fn set_signals(&self, signals: StatusSignals) {
        self.signals.set(signals);
    }

    pub fn set_queue_depth(&self, services: usize) {
        self.queue_depth.set(services as i64);
    }
}

/// Values of `spec.trafficDistribution` with their own series.
const DISTRIBUTIONS: [&str; 4] = ["PreferClose", "PreferSameZone", "PreferSameNode", "zoneward.dev/Spill"];

/// Other values share one series, because the API accepts any text.
fn known_distribution(text: &str) -> String {
    if DISTRIBUTIONS.contains(&text) { text.to_owned() } else { "other".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_safeguard_has_a_series_before_the_first_service_is_held_back() {
        let mut registry = Registry::default();
        ControllerMetrics::default().register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for safeguard in ["OverloadUnavoidable", "TooFewEndpoints", "TooManyZones"] {
            assert!(text.contains(&format!("{{safeguard=\"{safeguard}\"}} 0")), "{text}");
        }
    }
}
