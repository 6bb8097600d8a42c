//! The traffic ledger: connections and bytes per Service and pair of zones, summed over all nodes and proxies.
//!
//! ```text
//! node, proxy: sums since their start -> TrafficReport -> TrafficLedger (24 h by the minute) -> TrafficSums, prices
//!                      ^                                        |
//!                      +------- TrafficReply: PodZones ---------+
//! ```

mod history;
mod pod_zones;
mod prices;
mod report_schedule;

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::ServiceKey;
use serde::{Deserialize, Serialize};

use plan::spill::measured::BusiestNode;

pub use history::{MAX_REPORT_PAIRS, MAX_SERVICES, ReportRefused, TrafficLedger, TrafficMinute};
pub use pod_zones::{PodZones, ReportedProxy, ZoneLookup, proxy_addresses};
pub use prices::{PriceTable, TrafficCost};
pub use report_schedule::{ReportSchedule, ReportedSums};

/// Whose traffic a row counts. Sorted: Services by name, then the rows that are no Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "kind")]
pub enum TrafficOwner {
    Service {
        namespace: String,
        name: String,
    },
    /// All Services beyond the bound of the ledger.
    OtherServices,
    /// Connections from pod to pod, headless Services included.
    NotThroughService,
}

impl From<&ServiceKey> for TrafficOwner {
    fn from(key: &ServiceKey) -> Self {
        Self::Service { namespace: key.namespace.to_string(), name: key.name.to_string() }
    }
}

/// Traffic between two zones. The zone of an address that no Node or endpoint has is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ZonePairTraffic {
    /// Zone of the client.
    pub from_zone: String,
    /// Zone of the endpoint.
    pub to_zone: String,
    /// New connections.
    pub connections: u64,
    /// Bytes of both directions, IP headers included.
    pub bytes: u64,
}

/// The traffic of one owner, sorted by zones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrafficRow {
    #[serde(flatten)]
    pub owner: TrafficOwner,
    pub zone_pairs: Vec<ZonePairTraffic>,
}

/// Traffic that could not be counted, or not by zone or Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TrafficGaps {
    /// Receive buffers of conntrack events that overflowed; the bytes of ended connections are then too low.
    pub lost_events: u64,
    /// Counts that found no place in a bounded table.
    pub dropped_counts: u64,
    /// Open connections that started before `nf_conntrack_acct` was on: their bytes are never counted.
    pub unaccounted_flows: u64,
}

/// Sums over a window of time, for all reporters together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrafficSums {
    /// When the ledger started, as RFC 3339: a new leader starts a new one.
    pub since: String,
    /// Seconds that the sums cover; less than requested if the ledger is younger.
    pub window_seconds: u64,
    /// Sorted by owner.
    pub rows: Vec<TrafficRow>,
    /// Since the ledger started.
    pub gaps: TrafficGaps,
    /// Nodes and proxies that report.
    pub reporters: usize,
    /// Those of them without a report for 90 seconds, by name.
    pub silent: Vec<String>,
}

/// Connections per second of all reporters that are not silent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LedgerDemand {
    pub services: Vec<ServiceDemandRow>,
    /// The reporters with two reports, the last one not older than 90 seconds.
    pub reporting: BTreeSet<String>,
}

/// The rates of one Service.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceDemandRow {
    pub owner: TrafficOwner,
    pub zones: Vec<ZoneDemandRow>,
}

/// New connections per second of one Service from one zone.
#[derive(Clone, Debug, PartialEq)]
pub struct ZoneDemandRow {
    pub from_zone: String,
    /// By zone of the endpoint.
    pub rate_by_target: Vec<(String, f64)>,
    /// Those of the reporter with the most.
    pub highest_rate: f64,
    pub busiest: BusiestNode,
}

/// Sums of one node or proxy since it started to count. A report repeats all that was counted, so that a lost one loses
/// nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrafficReport {
    /// `node/NAME`, or `proxy/NAME`.
    pub reporter: String,
    /// Random; another one means that the sums started from zero.
    pub start: String,
    /// Grows with each report of a start; an older report that arrives late is ignored.
    pub sequence: u64,
    /// Seconds since the sums started from zero.
    pub counted_seconds: u64,
    pub rows: Vec<TrafficRow>,
    pub gaps: TrafficGaps,
    /// Version of the reporter's [`PodZones`]; 0 if it has none.
    #[serde(default)]
    pub pod_zones_version: u64,
    /// Addresses that a proxy dials from: nodes leave these connections to its own report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
}

/// Response to a report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrafficReply {
    /// If the reporter has another version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_zones: Option<PodZones>,
}
