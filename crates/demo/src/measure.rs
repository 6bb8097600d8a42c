//! Traffic to one Service, measured beside the plan: where connections went, and how loaded the busiest pod is.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use futures_util::future::try_join_all;
use model::{Family, ServiceKey};
use serde_json::{Value, json};

use super::protocol::Request;
use super::world::World;

/// How often connections went from a zone to a zone.
pub type Connections = BTreeMap<String, BTreeMap<String, u64>>;
/// Shares of traffic: from a zone, to a zone.
pub type Shares = BTreeMap<String, BTreeMap<String, f64>>;

/// A pod that sends requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its name.
    pub pod: String,
    /// The node that it is on.
    pub node: String,
    /// The zone of that node.
    pub zone: &'static str,
}

/// Where traffic of some clients should go, each of them sending as much as the others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Planned {
    /// By zone. A zone whose clients may go nowhere has no shares.
    pub zones: Shares,
    /// The zones with a client that may go nowhere.
    pub refusing: BTreeSet<String>,
    /// The share of all traffic that each endpoint gets, by pod.
    pub pods: BTreeMap<String, f64>,
    /// How many ready endpoints the Service has.
    pub endpoints: usize,
}

/// What became of connections to a Service.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// What the Service is called in sentences.
    pub name: String,
    /// Where connections went.
    pub connections: Connections,
    /// How often each pod answered.
    pub pods: BTreeMap<String, u64>,
    /// Refused connections, by the zone that they came from.
    pub refused: BTreeMap<String, u64>,
    /// Connections that got no answer.
    pub failed: u64,
    /// Where they should have gone.
    pub planned: Planned,
    /// Whether clients keep their endpoint, so that shares say little.
    pub affinity: bool,
}

/// The busiest pod's load, as a multiple of its fair share: what each pod would get if all got the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Busiest {
    /// The pod that got most.
    pub pod: String,
    /// How much it got.
    pub measured: f64,
    /// How much the busiest pod gets by the plan.
    pub planned: f64,
}

/// Connects from each client to the first TCP port of a Service.
pub async fn measure(
    world: &World,
    service: &ServiceKey,
    family: Family,
    clients: &[Client],
    count: u32,
) -> Result<Measured> {
    let to = world.address(service, family)?;
    let planned = world.planned(service, family, clients);
    let object = world.snapshot().service(service).context("the Service was there a moment ago")?;
    let counted = clients.iter().map(|client| {
        let request = Request::Connect { from: client.pod.clone(), to, count };
        async move { anyhow::Ok((client.zone, world.stage.count(request).await?)) }
    });
    let name = service.name.to_string();
    let affinity = object.affinity_seconds.is_some();
    let mut measured = Measured { name, planned, affinity, ..Measured::default() };
    for (zone, counts) in try_join_all(counted).await? {
        let row = measured.connections.entry(zone.to_owned()).or_default();
        for (pod, count) in counts.answers {
            *row.entry(world.zone(&pod).unwrap_or("elsewhere").to_owned()).or_default() += count;
            *measured.pods.entry(pod).or_default() += count;
        }
        // Where the plan is to drop, no answer is what was planned.
        let dropped = if measured.planned.refusing.contains(zone) { counts.failed } else { 0 };
        measured.failed += counts.failed - dropped;
        *measured.refused.entry(zone.to_owned()).or_default() += counts.refused + dropped;
    }
    measured.refused.retain(|_, count| *count > 0);
    Ok(measured)
}

impl Measured {
    /// The share of connections that stayed in their zone; none if there was no connection.
    pub fn in_zone(&self) -> Option<f64> {
        let inside: u64 = self.connections.iter().filter_map(|(from, row)| row.get(from)).sum();
        let all: u64 = self.connections.values().flat_map(|row| row.values()).sum();
        (all > 0).then(|| inside as f64 / all as f64)
    }

    /// The pod that got most; none if there was no connection.
    pub fn busiest(&self) -> Option<Busiest> {
        let all: u64 = self.pods.values().sum();
        let fair = all as f64 / self.planned.endpoints.max(1) as f64;
        let (pod, most) = self.pods.iter().max_by_key(|(_, count)| **count)?;
        let planned = self.planned.busiest().unwrap_or_default();
        Some(Busiest { pod: pod.clone(), measured: *most as f64 / fair, planned })
    }

    /// For programs; the names are fixed.
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

impl Planned {
    /// The share of traffic that stays in its zone, if any goes anywhere.
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
    fn measured() -> Measured {
        let zones = ["zone-a", "zone-b", "zone-c"];
        let mut measured = Measured::default();
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
        let nothing = Measured::default();
        assert_eq!((nothing.in_zone(), nothing.busiest()), (None, None));
        assert_eq!(nothing.value()["inZone"], json!({"measured": null, "planned": null}));
    }
}
