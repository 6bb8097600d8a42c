//! The traffic of an embedded proxy in the ledger of the leading controller.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use insight::ledger::{PodZones, TrafficGaps, TrafficOwner, TrafficRow, ZonePairTraffic};
use insight::traffic_reporter::ReportedTraffic;
use model::ServiceKey;
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

    fn addresses(&self) -> Vec<IpAddr> {
        own_addresses()
    }

    fn reported(&mut self, is_accepted: bool) {
        let result = if is_accepted { "success" } else { "failed" };
        self.reports.get_or_create(&[("result", result)]).inc();
    }
}

/// The addresses of this network namespace that reach pods: neither of loopback nor of a link.
fn own_addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let address = |interface: nix::ifaddrs::InterfaceAddress| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    };
    let is_local = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local(),
    };
    let found: BTreeSet<IpAddr> = interfaces.filter_map(address).filter(|ip| !is_local(ip)).collect();
    found.into_iter().collect()
}
