//! The controller's metrics: the EndpointSlice controller's names where it measures the same (dashboards keep
//! working), those of seed 003, and ours per mechanism and safeguard.

use plan::hints::Mechanism;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::service_state::ServiceCounts;
use super::slice_writes::WrittenSlices;
use cluster::admin_server::BareCounter;

/// Names of the EndpointSlice controller start with this.
const SUBSYSTEM: &str = "endpoint_slice_controller";

/// A label `operation`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Operation {
    operation: &'static str,
}

/// A label `result`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct SyncResult {
    result: &'static str,
}

/// A label `traffic_distribution`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Distribution {
    traffic_distribution: String,
}

/// The labels of `endpointslices_changed_per_sync`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Changed {
    topology: &'static str,
    traffic_distribution: String,
}

/// A label `approach` (seed 003).
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Approach {
    approach: &'static str,
}

/// A label `mechanism`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByMechanism {
    mechanism: &'static str,
}

/// A label `safeguard`: why a mechanism holds back.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct BySafeguard {
    safeguard: &'static str,
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// The upper bounds of the EndpointSlice controller for endpoints: 2, 4, ... 32768.
fn endpoints() -> Histogram {
    Histogram::new(exponential_buckets(2.0, 2.0, 15))
}

/// Its upper bounds for slices: the defaults of Prometheus' client for Go.
fn slices() -> Histogram {
    Histogram::new([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0])
}

/// Upper bounds for what only we count: 1, 2, ... 16384.
fn whole_numbers() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 15))
}

/// The metrics of the slice controller. Cloning shares them.
#[derive(Clone, Debug)]
pub struct Metrics {
    endpoints_added: Histogram,
    endpoints_removed: Histogram,
    endpoints_desired: Gauge,
    slices: Gauge,
    desired_slices: Gauge,
    changes: Family<Operation, BareCounter>,
    changed_per_sync: Histograms<Changed>,
    syncs: Family<SyncResult, BareCounter>,
    services_by_distribution: Family<Distribution, Gauge>,
    changed_by_approach: Histograms<Approach>,
    reallocated: Histogram,
    total_endpoints: Gauge,
    services_by_mechanism: Family<ByMechanism, Gauge>,
    services_held_back: Family<BySafeguard, Gauge>,
    events: Family<SyncResult, Counter>,
    queue_waiting: Gauge,
}

impl Default for Metrics {
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
            queue_waiting: Gauge::default(),
        };
        metrics.prepare();
        metrics
    }
}

/// What one sync changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncCounts {
    /// Slices made.
    pub creates: usize,
    /// Slices changed.
    pub updates: usize,
    /// Slices deleted.
    pub deletes: usize,
    /// Endpoints that came.
    pub added: usize,
    /// Endpoints that went.
    pub removed: usize,
    /// Endpoints that serve another zone than before.
    pub reallocated: usize,
}

impl SyncCounts {
    /// How many slices were touched.
    pub fn slices(&self) -> usize {
        self.creates + self.updates + self.deletes
    }
}

impl Metrics {
    /// Series that exist before the first event, so that rates and alerts see the first one.
    fn prepare(&self) {
        for operation in ["create", "update", "delete"] {
            drop(self.changes.get_or_create(&Operation { operation }));
        }
        for result in ["success", "stale", "error"] {
            drop(self.syncs.get_or_create(&SyncResult { result }));
        }
        for result in ["success", "error"] {
            drop(self.events.get_or_create(&SyncResult { result }));
        }
        for topology in ["Auto", "Disabled"] {
            let traffic_distribution = String::new();
            drop(self.changed_per_sync.get_or_create(&Changed { topology, traffic_distribution }));
        }
        for distribution in DISTRIBUTIONS {
            let traffic_distribution = distribution.to_owned();
            drop(self.services_by_distribution.get_or_create(&Distribution { traffic_distribution }));
        }
        for mechanism in Mechanism::ALL {
            let mechanism = mechanism.as_str();
            drop(self.services_by_mechanism.get_or_create(&ByMechanism { mechanism }));
        }
        for safeguard in SAFEGUARDS {
            drop(self.services_held_back.get_or_create(&BySafeguard { safeguard }));
        }
        for approach in [Mechanism::None, Mechanism::Auto, Mechanism::PreferSameZone, Mechanism::Spill] {
            drop(self.changed_by_approach.get_or_create(&Approach { approach: approach.as_str() }));
        }
    }

    /// Registers everything.
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
        upstream.register("syncs", "Service syncs by their result", self.syncs.clone());
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
            "Endpoints that serve another zone than before, on each Service sync",
            self.reallocated.clone(),
        );
        upstream.register("total_endpoints", "Endpoints of all Services", self.total_endpoints.clone());
        let ours = registry.sub_registry_with_prefix("zoneward_controller");
        ours.register(
            "services_by_mechanism",
            "Services by the mechanism at work",
            self.services_by_mechanism.clone(),
        );
        ours.register(
            "services_held_back",
            "Services whose mechanism a safeguard holds back",
            self.services_held_back.clone(),
        );
        ours.register("events", "Events written, by result", self.events.clone());
        ours.register("queue_depth", "Services that wait to be synced", self.queue_waiting.clone());
    }

    /// A Service counts otherwise than before.
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
            let mechanism = ByMechanism { mechanism: counts.mechanism.as_str() };
            self.services_by_mechanism.get_or_create(&mechanism).inc_by(sign);
            if let Some(safeguard) = counts.held_back {
                self.services_held_back.get_or_create(&BySafeguard { safeguard }).inc_by(sign);
            }
            if let Some(distribution) = &counts.traffic_distribution {
                let traffic_distribution = known_distribution(distribution);
                let label = Distribution { traffic_distribution };
                self.services_by_distribution.get_or_create(&label).inc_by(sign);
            }
        }
    }

    /// A sync ended.
    pub fn synced(&self, result: &'static str) {
        self.syncs.get_or_create(&SyncResult { result }).inc_by(1);
    }

    /// The API acknowledged these writes, whether or not the sync came to its end.
    pub fn wrote(&self, written: &WrittenSlices) {
        let WrittenSlices { creates, updates, deletes } = *written;
        for (operation, number) in [("create", creates), ("update", updates), ("delete", deletes)] {
            self.changes.get_or_create(&Operation { operation }).inc_by(number as u64);
        }
    }

    /// A sync that came to its end changed this, for a Service that counts like this.
    pub fn changed(&self, changes: &SyncCounts, counts: &ServiceCounts) {
        self.endpoints_added.observe(changes.added as f64);
        self.endpoints_removed.observe(changes.removed as f64);
        self.reallocated.observe(changes.reallocated as f64);
        let topology = if counts.mechanism == Mechanism::Auto { "Auto" } else { "Disabled" };
        let traffic_distribution =
            counts.traffic_distribution.as_deref().map(known_distribution).unwrap_or_default();
        let slices = changes.slices() as f64;
        self.changed_per_sync.get_or_create(&Changed { topology, traffic_distribution }).observe(slices);
        let approach = Approach { approach: counts.mechanism.as_str() };
        self.changed_by_approach.get_or_create(&approach).observe(slices);
    }

    /// An Event was written or not.
    pub fn event(&self, result: &'static str) {
        self.events.get_or_create(&SyncResult { result }).inc();
    }

    /// How many Services wait.
    pub fn waiting(&self, services: usize) {
        self.queue_waiting.set(services as i64);
    }
}

/// Why a mechanism may hold back.
const SAFEGUARDS: [&str; 8] = [
    "EndpointWithoutZone",
    "FewerEndpointsThanZones",
    "InsufficientNodeInformation",
    "NoZones",
    "OneZoneOnly",
    "OverloadUnavoidable",
    "TooFewEndpoints",
    "TooManyZones",
];

/// The values of `spec.trafficDistribution` that have a series of their own.
const DISTRIBUTIONS: [&str; 4] = ["PreferClose", "PreferSameZone", "PreferSameNode", "zoneward.dev/Spill"];

/// Any text may stand there, and labels need a bound.
fn known_distribution(text: &str) -> String {
    if DISTRIBUTIONS.contains(&text) { text.to_owned() } else { "other".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_safeguard_has_a_series_before_the_first_service_is_held_back() {
        let mut registry = Registry::default();
        Metrics::default().register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for safeguard in ["OverloadUnavoidable", "TooFewEndpoints", "TooManyZones"] {
            assert!(text.contains(&format!("{{safeguard=\"{safeguard}\"}} 0")), "{text}");
        }
    }
}
