//! The traffic of an embedded proxy in the ledger of the leading controller.

use std::collections::BTreeMap;

use cluster::traffic_reporter::ReportedTraffic;
use model::ServiceKey;
use plan::ledger::{PodZones, TrafficGaps, TrafficOwner, TrafficRow, ZonePairTraffic};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use proxy::Proxy;

type ReportCounters = Family<[(&'static str, &'static str); 1], Counter>;

/// Reads the proxy's counters.
pub struct ProxyTraffic {
    proxy: Proxy,
    reports: ReportCounters,
}

impl ProxyTraffic {
    pub fn new(proxy: Proxy) -> Self {
        let reports = ReportCounters::default();
        for result in ["success", "failed"] {
            drop(reports.get_or_create(&[("result", result)]));
        }
        Self { proxy, reports }
    }

    /// Adds the metrics to a registry.
    pub fn register_metrics(&self, registry: &mut Registry) {
        let help = "Reports of traffic to the leading controller, by result";
        registry.register("zoneward_traffic_reports", help, self.reports.clone());
    }
}

impl ReportedTraffic for ProxyTraffic {
    fn read(&mut self) -> (Vec<TrafficRow>, TrafficGaps) {
        let mut rows: BTreeMap<TrafficOwner, Vec<ZonePairTraffic>> = BTreeMap::new();
        for traffic in self.proxy.traffic() {
            let owner = match traffic.service == ServiceKey::default() {
                true => TrafficOwner::OtherServices,
                false => TrafficOwner::from(&traffic.service),
            };
            rows.entry(owner).or_default().push(ZonePairTraffic {
                from_zone: traffic.from_zone,
                to_zone: traffic.to_zone,
                connections: traffic.connections,
                bytes: traffic.bytes,
            });
        }
        let rows = rows.into_iter().map(|(owner, zone_pairs)| TrafficRow { owner, zone_pairs }).collect();
        (rows, TrafficGaps::default())
    }

    fn pod_zones_version(&self) -> u64 {
        0
    }

    fn set_pod_zones(&mut self, _: PodZones) {}

    fn reported(&mut self, is_accepted: bool) {
        let result = if is_accepted { "success" } else { "failed" };
        self.reports.get_or_create(&[("result", result)]).inc();
    }
}
