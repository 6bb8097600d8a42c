//! Traffic to one Service, measured against the plan: distribution over zones, and load of the busiest pod.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use futures_util::future::try_join_all;
use model::{Family, ServiceKey};
use serde_json::{Value, json};

use super::demo_cluster::DemoCluster;
use super::protocol::NamespaceRequest;

/// Connections from a zone to a zone.
pub type Connections = BTreeMap<String, BTreeMap<String, u64>>;
/// Shares of traffic: from a zone, to a zone.
pub type Shares = BTreeMap<String, BTreeMap<String, f64>>;

/// A pod that opens connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrafficClient {
    pub pod: String,
    pub node: String,
    pub zone: &'static str,
}

/// Planned distribution of the traffic of some clients, which send equally much.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlannedTraffic {
    /// Shares by zone; empty for a zone whose clients have no endpoint.
    pub zones: Shares,
    /// Zones with a client without endpoints.
    pub refusing: BTreeSet<String>,
    /// Share of all traffic by pod.
    pub pods: BTreeMap<String, f64>,
    /// Ready endpoints of the Service.
    pub endpoints: usize,
}

/// Measured distribution of connections to a Service.
#[derive(Clone, Debug, Default)]
pub struct MeasuredTraffic {
    /// Name of the Service or mechanism in messages.
    pub name: String,
    pub connections: Connections,
    /// Responses by pod.
    pub pods: BTreeMap<String, u64>,
    /// Refused connections by zone of the client.
    pub refused: BTreeMap<String, u64>,
    /// Connections without a response.
    pub failed: u64,
    pub planned: PlannedTraffic,
    /// Whether session affinity is enabled, which makes shares meaningless.
    pub affinity: bool,
}

/// Load of the busiest pod, as a multiple of an equal share.
#[derive(Clone, Debug, PartialEq)]
pub struct Busiest {
    pub pod: String,
    pub measured: f64,
    pub planned: f64,
}

/// Connects from each client to the first TCP port of a Service.
pub async fn measure(
    cluster: &DemoCluster,
    service: &ServiceKey,
    family: Family,
    clients: &[TrafficClient],
    count: u32,
) -> Result<MeasuredTraffic> {
    let to = cluster.address(service, family)?;
    let planned = cluster.planned(service, family, clients);
    let object = cluster.snapshot().service(service).context("the Service was deleted meanwhile")?;
    let counted = clients.iter().map(|client| {
        let request = NamespaceRequest::Connect { from: client.pod.clone(), to, count };
        async move { anyhow::Ok((client.zone, cluster.namespaces.count(request).await?)) }
    });
    let name = service.name.to_string();
    let affinity = object.affinity_seconds.is_some();
    let mut measured = MeasuredTraffic { name, planned, affinity, ..MeasuredTraffic::default() };
    for (zone, counts) in try_join_all(counted).await? {
        let row = measured.connections.entry(zone.to_owned()).or_default();
        for (pod, count) in counts.answers {
            *row.entry(cluster.zone(&pod).unwrap_or("elsewhere").to_owned()).or_default() += count;
            *measured.pods.entry(pod).or_default() += count;
        }
        // Where the plan is to drop, no response is expected.
        let dropped = if measured.planned.refusing.contains(zone) { counts.failed } else { 0 };
        measured.failed += counts.failed - dropped;
        *measured.refused.entry(zone.to_owned()).or_default() += counts.refused + dropped;
    }
    measured.refused.retain(|_, count| *count > 0);
    Ok(measured)
}

impl MeasuredTraffic {
    /// Share of connections that stayed in their zone; `None` without connections.
    pub fn in_zone(&self) -> Option<f64> {
        let inside: u64 = self.connections.iter().filter_map(|(from, row)| row.get(from)).sum();
        let all: u64 = self.connections.values().flat_map(|row| row.values()).sum();
        (all > 0).then(|| inside as f64 / all as f64)
    }

    /// `None` without connections.
    pub fn busiest(&self) -> Option<Busiest> {
        let all: u64 = self.pods.values().sum();
        let fair = all as f64 / self.planned.endpoints.max(1) as f64;
        let (pod, most) = self.pods.iter().max_by_key(|(_, count)| **count)?;
        let planned = self.planned.busiest().unwrap_or_default();
        Some(Busiest { pod: pod.clone(), measured: *most as f64 / fair, planned })
    }

    /// JSON with stable fields.
    pub fn value(&self) -> Value {
        let busiest = self.busiest().map(|busiest| {
            json!({"pod": busiest.pod, "measured": rounded(busiest.measured), "planned": rounded(busiest.planned)})
        });
        json!({
            "connections": self.connections,
            "expected": self.planned.zones,
            "refused": self.refused,
            "inZone": {"measured": self.in_zone().map(rounded), "planned": self.planned.in_zone().map(rounded)},
            "busiest": busiest,
        })
    }
}

impl PlannedTraffic {
    /// Share of traffic that stays in its zone; `None` without endpoints.
    pub fn in_zone(&self) -> Option<f64> {
        let rows: Vec<f64> = (self.zones.iter().filter(|(_, row)| !row.is_empty()))
            .map(|(from, row)| row.get(from).copied().unwrap_or_default())
            .collect();
        (!rows.is_empty()).then(|| rows.iter().sum::<f64>() / rows.len() as f64)
    }

    fn busiest(&self) -> Option<f64> {
        let most = self.pods.values().copied().max_by(f64::total_cmp)?;
        Some(most * self.endpoints as f64)
    }
}

fn rounded(number: f64) -> f64 {
    (number * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three zones with as many clients, and pods as the demo has them: 8, 6 and 4.
    fn measured() -> MeasuredTraffic {
        let zones = ["zone-a", "zone-b", "zone-c"];
        let mut measured = MeasuredTraffic::default();
        for (zone, pods) in zones.into_iter().zip([8, 6, 4]) {
            measured.connections.insert(zone.into(), [(zone.to_owned(), 240)].into());
            measured.planned.zones.insert(zone.into(), [(zone.to_owned(), 1.0)].into());
            for i in 0..pods {
                measured.pods.insert(format!("{zone}-{i}"), 240 / pods);
                measured.planned.pods.insert(format!("{zone}-{i}"), 1.0 / 3.0 / pods as f64);
            }
        }
        measured.planned.endpoints = 18;
        measured
    }

    #[test]
    fn a_zone_with_few_pods_has_the_busiest_one() {
        let measured = measured();
        assert_eq!(measured.in_zone(), Some(1.0));
        assert_eq!(measured.planned.in_zone(), Some(1.0));
        let busiest = measured.busiest().expect("there were connections");
        assert!(busiest.pod.starts_with("zone-c"), "{busiest:?}");
        assert!((busiest.measured - 1.5).abs() < 1e-9 && (busiest.planned - 1.5).abs() < 1e-9, "{busiest:?}");
    }

    #[test]
    fn without_a_connection_there_is_no_share() {
        let nothing = MeasuredTraffic::default();
        assert_eq!((nothing.in_zone(), nothing.busiest()), (None, None));
        assert_eq!(nothing.value()["inZone"], json!({"measured": null, "planned": null}));
    }
}
