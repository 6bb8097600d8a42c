//! The controller's metrics: the EndpointSlice controller's names where it measures the same (dashboards keep
//! working), those of seed 003, and ours per mechanism and safeguard.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::memory::Counts;

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

fn histogram() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 15))
}

/// The metrics of the slice controller. Cloning shares them.
///
/// Counters that upstream names without the ending `_total` are kept as gauges that only rise, because the text
/// format would add that ending to a counter.
#[derive(Clone, Debug)]
pub struct Metrics {
    endpoints_added: Histogram,
    endpoints_removed: Histogram,
    endpoints_desired: Gauge,
    slices: Gauge,
    desired_slices: Gauge,
    changes: Family<Operation, Gauge>,
    changed_per_sync: Histograms<Changed>,
    syncs: Family<SyncResult, Gauge>,
    services_by_distribution: Family<Distribution, Gauge>,
    changed_by_approach: Histograms<Approach>,
    reallocated: Histogram,
    total_endpoints: Gauge,
    services_by_mechanism: Family<ByMechanism, Gauge>,
    services_held_back: Family<BySafeguard, Gauge>,
    events: Family<SyncResult, Gauge>,
    queue_waiting: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            endpoints_added: histogram(),
            endpoints_removed: histogram(),
            endpoints_desired: Gauge::default(),
            slices: Gauge::default(),
            desired_slices: Gauge::default(),
            changes: Family::default(),
            changed_per_sync: Family::new_with_constructor(histogram as fn() -> Histogram),
            syncs: Family::default(),
            services_by_distribution: Family::default(),
            changed_by_approach: Family::new_with_constructor(histogram as fn() -> Histogram),
            reallocated: histogram(),
            total_endpoints: Gauge::default(),
            services_by_mechanism: Family::default(),
            services_held_back: Family::default(),
            events: Family::default(),
            queue_waiting: Gauge::default(),
        }
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
    pub fn recount(&self, before: &Counts, after: &Counts) {
        if before == after {
            return;
        }
        for (counts, sign) in [(before, -1), (after, 1)] {
            self.slices.inc_by(sign * counts.slices);
            self.desired_slices.inc_by(sign * counts.desired_slices);
            self.endpoints_desired.inc_by(sign * counts.endpoints);
            self.total_endpoints.inc_by(sign * counts.endpoints);
            if *counts == Counts::default() {
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
        self.syncs.get_or_create(&SyncResult { result }).inc();
    }

    /// A sync wrote this for a Service that counts like this.
    pub fn wrote(&self, changes: &SyncCounts, counts: &Counts) {
        for (operation, number) in
            [("create", changes.creates), ("update", changes.updates), ("delete", changes.deletes)]
        {
            self.changes.get_or_create(&Operation { operation }).inc_by(number as i64);
        }
        self.endpoints_added.observe(changes.added as f64);
        self.endpoints_removed.observe(changes.removed as f64);
        self.reallocated.observe(changes.reallocated as f64);
        let topology = if counts.mechanism == plan::hints::Mechanism::Auto { "Auto" } else { "Disabled" };
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

/// Values that anybody can make up would make labels without end.
fn known_distribution(text: &str) -> String {
    match text {
        "PreferClose" | "PreferSameZone" | "PreferSameNode" | "zoneward.dev/Spill" => text.to_owned(),
        _ => "other".to_owned(),
    }
}
