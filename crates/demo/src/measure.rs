//! Traffic to one Service, measured against the plan: distribution over zones, and load of the busiest pod.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use futures_util::future::try_join_all;
use model::{Family, ServiceKey};
use serde_json::{Value, json};

use super::demo_cluster::DemoCluster;
use super::protocol::NamespaceRequest;

/// Connections from a zone to a zone.
pub(crate) type Connections = BTreeMap<String, BTreeMap<String, u64>>;
/// Shares of traffic: from a zone, to a zone.
pub(crate) type Shares = BTreeMap<String, BTreeMap<String, f64>>;

/// A pod that opens connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TrafficClient {
    pub pod: String,
    pub node: String,
    pub zone: &'static str,
}

/// Planned distribution of the traffic of some clients, which send equally much unless `demand` says otherwise.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PlannedTraffic {
    /// Shares by zone; empty for a zone whose clients have no endpoint.
    pub zones: Shares,
    /// Zones with a client without endpoints.
    pub refusing: BTreeSet<String>,
    /// Share of all traffic by pod.
    pub pods: BTreeMap<String, f64>,
    /// Ready endpoints of the Service.
    pub endpoints: usize,
    /// Share of all traffic by zone of the client; empty for equal shares.
    pub demand: BTreeMap<String, f64>,
}

/// Measured distribution of connections to a Service.
#[derive(Clone, Debug, Default)]
pub(crate) struct MeasuredTraffic {
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
pub(crate) struct Busiest {
    pub pod: String,
    pub measured: f64,
    pub planned: f64,
}

/// Connects from each client to the first TCP port of a Service.
pub(crate) async fn measure(
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

/// Connects from the clients of each zone as often as it has demand, which is the number of connections of the zone.
pub(crate) async fn measure_demand(
    cluster: &DemoCluster,
    service: &ServiceKey,
    family: Family,
    demand: &BTreeMap<String, u32>,
) -> Result<MeasuredTraffic> {
    let zones = demand.iter().map(|(zone, connections)| async move {
        let clients = zone_clients(cluster, zone);
        let each = connections / (clients.len() as u32).max(1);
        measure(cluster, service, family, &clients, each).await
    });
    let mut all: Option<MeasuredTraffic> = None;
    for zone in try_join_all(zones).await? {
        all.get_or_insert_with(|| MeasuredTraffic { name: zone.name.clone(), ..Default::default() })
            .add(zone);
    }
    let mut all = all.context("no zone has demand")?;
    all.planned = planned_demand(cluster, service, family, demand);
    Ok(all)
}

/// The planned traffic of a Service if each zone has this demand.
pub(crate) fn planned_demand(
    cluster: &DemoCluster,
    service: &ServiceKey,
    family: Family,
    demand: &BTreeMap<String, u32>,
) -> PlannedTraffic {
    let sum: f64 = demand.values().map(|count| f64::from(*count)).sum();
    let mut all = PlannedTraffic::default();
    for (zone, count) in demand {
        let share = f64::from(*count) / sum;
        let planned = cluster.planned(service, family, &zone_clients(cluster, zone));
        all.demand.insert(zone.clone(), share);
        all.zones.extend(planned.zones);
        all.refusing.extend(planned.refusing);
        all.endpoints = planned.endpoints;
        for (pod, of_zone) in planned.pods {
            *all.pods.entry(pod).or_default() += share * of_zone;
        }
    }
    all
}

fn zone_clients(cluster: &DemoCluster, zone: &str) -> Vec<TrafficClient> {
    cluster.clients().into_iter().filter(|client| client.zone == zone).collect()
}

impl MeasuredTraffic {
    /// Adds the connections of other clients, or of a later time; the plan stays.
    pub(crate) fn add(&mut self, other: Self) {
        for (from, row) in other.connections {
            let sums = self.connections.entry(from).or_default();
            row.into_iter().for_each(|(to, count)| *sums.entry(to).or_default() += count);
        }
        other.pods.into_iter().for_each(|(pod, count)| *self.pods.entry(pod).or_default() += count);
        other.refused.into_iter().for_each(|(zone, count)| *self.refused.entry(zone).or_default() += count);
        self.failed += other.failed;
        self.affinity |= other.affinity;
    }

    /// Share of connections that stayed in their zone; `None` without connections.
    pub(crate) fn in_zone(&self) -> Option<f64> {
        let inside: u64 = self.connections.iter().filter_map(|(from, row)| row.get(from)).sum();
        let all: u64 = self.connections.values().flat_map(|row| row.values()).sum();
        (all > 0).then(|| inside as f64 / all as f64)
    }

    /// `None` without connections.
    pub(crate) fn busiest(&self) -> Option<Busiest> {
        let all: u64 = self.pods.values().sum();
        let fair = all as f64 / self.planned.endpoints.max(1) as f64;
        let (pod, most) = self.pods.iter().max_by_key(|(_, count)| **count)?;
        let planned = self.planned.busiest().unwrap_or_default();
        Some(Busiest { pod: pod.clone(), measured: *most as f64 / fair, planned })
    }

    /// JSON with stable fields.
    pub(crate) fn value(&self) -> Value {
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
    pub(crate) fn in_zone(&self) -> Option<f64> {
        let demand = |from: &String| self.demand.get(from).copied().unwrap_or(1.0);
        let sending = || self.zones.iter().filter(|(_, row)| !row.is_empty());
        let all: f64 = sending().map(|(from, _)| demand(from)).sum();
        let inside = |(from, row): (&String, &BTreeMap<String, f64>)| {
            demand(from) * row.get(from).copied().unwrap_or_default()
        };
        (all > 0.0).then(|| sending().map(inside).sum::<f64>() / all)
    }

    /// Load of the busiest pod, as a multiple of an equal share.
    pub(crate) fn busiest(&self) -> Option<f64> {
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
    fn a_zone_with_more_demand_counts_for_more() {
        let mut planned = measured().planned;
        planned
            .zones
            .insert("zone-c".into(), [("zone-a".to_owned(), 0.5), ("zone-c".to_owned(), 0.5)].into());
        planned.demand =
            [("zone-a".to_owned(), 0.2), ("zone-b".to_owned(), 0.2), ("zone-c".to_owned(), 0.6)].into();
        assert!(planned.in_zone().is_some_and(|share| (share - 0.7).abs() < 1e-9), "{planned:?}");
    }

    #[test]
    fn without_a_connection_there_is_no_share() {
        let nothing = MeasuredTraffic::default();
        assert_eq!((nothing.in_zone(), nothing.busiest()), (None, None));
        assert_eq!(nothing.value()["inZone"], json!({"measured": null, "planned": null}));
    }
}
