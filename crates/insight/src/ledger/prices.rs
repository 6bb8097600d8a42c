//! What traffic between zones costs. Both directions of a connection are summed, so one price per byte is enough: AWS
//! bills half of it to each side, GCP all of it to the sender.

use std::collections::BTreeMap;

use model::Snapshot;
use serde::{Deserialize, Serialize};

use super::TrafficSums;

const GB: f64 = 1e9;
const GIB: f64 = 1_073_741_824.0;
const SECONDS_PER_MONTH: f64 = 30.0 * 86_400.0;

/// Provider by the prefix of `spec.providerID`, USD, and the bytes that they buy.
const PROVIDERS: [(&str, f64, f64); 3] = [("aws", 0.02, GB), ("gce", 0.01, GIB), ("azure", 0.0, GB)];

/// Prices of bytes that cross a border between zones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PriceTable {
    /// Where the default comes from: a provider, or `--price`; `None` if neither is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// USD per 10^9 bytes between zones; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usd_per_gb: Option<f64>,
    /// `ZONE:ZONE`, in sorted order, to USD per 10^9 bytes in either direction.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub zone_pairs: BTreeMap<String, f64>,
}

/// What the traffic of a window costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrafficCost {
    /// Of the window.
    pub usd: f64,
    /// If the rest of 30 days is like the window.
    pub usd_per_month: f64,
    /// Bytes between different zones.
    pub cross_zone_bytes: u64,
    /// Bytes of which a zone is unknown: without a price.
    pub unknown_zone_bytes: u64,
}

impl PriceTable {
    /// The prices of the provider that most Nodes have, and what `--price` says instead.
    pub fn new(snapshot: &Snapshot, flags: &[String]) -> Result<Self, String> {
        let mut table = Self::of_nodes(snapshot);
        for flag in flags {
            table.set(flag)?;
        }
        Ok(table)
    }

    fn of_nodes(snapshot: &Snapshot) -> Self {
        let mut nodes = [0_usize; PROVIDERS.len()];
        for provider in snapshot.nodes().values().filter_map(|node| node.provider.as_deref()) {
            let known = PROVIDERS.iter().position(|(name, ..)| *name == provider);
            known.into_iter().for_each(|i| nodes[i] += 1);
        }
        // Of equals the first.
        let most = (0..PROVIDERS.len()).rev().max_by_key(|i| nodes[*i]).filter(|i| nodes[*i] > 0);
        let Some((name, usd, bytes)) = most.map(|i| PROVIDERS[i]) else { return Self::default() };
        Self { source: Some(name.to_owned()), usd_per_gb: Some(usd * GB / bytes), ..Self::default() }
    }

    /// `USD`, or `ZONE:ZONE=USD`, per 10^9 bytes.
    pub fn set(&mut self, flag: &str) -> Result<(), String> {
        let wrong = || format!("{flag:?}: expected USD per GB, such as 0.02, or ZONE:ZONE=0.01");
        let usd = |text: &str| {
            text.trim().parse::<f64>().ok().filter(|usd| usd.is_finite() && *usd >= 0.0).ok_or_else(wrong)
        };
        match flag.split_once('=') {
            None => {
                self.usd_per_gb = Some(usd(flag)?);
                self.source = Some("--price".to_owned());
            }
            Some((zones, price)) => {
                let (from, to) = zones.trim().split_once(':').ok_or_else(wrong)?;
                if from.is_empty() || to.is_empty() || to.contains(':') {
                    return Err(wrong());
                }
                self.zone_pairs.insert(pair(from, to), usd(price)?);
            }
        }
        Ok(())
    }

    /// USD for bytes from one zone to another; `None` if the price or a zone is unknown.
    pub fn usd(&self, from_zone: &str, to_zone: &str, bytes: u64) -> Option<f64> {
        if from_zone.is_empty() || to_zone.is_empty() {
            return None;
        }
        let per_gb = match self.zone_pairs.get(&pair(from_zone, to_zone)) {
            Some(usd) => *usd,
            None if from_zone == to_zone => 0.0,
            None => self.usd_per_gb?,
        };
        Some(per_gb * bytes as f64 / GB)
    }

    /// The cost of a window; `None` if no price is known.
    pub fn cost(&self, sums: &TrafficSums) -> Option<TrafficCost> {
        if self.usd_per_gb.is_none() && self.zone_pairs.is_empty() {
            return None;
        }
        let mut cost = TrafficCost::default();
        for at in sums.rows.iter().flat_map(|row| &row.zone_pairs) {
            cost.usd += self.usd(&at.from_zone, &at.to_zone, at.bytes).unwrap_or(0.0);
            if at.from_zone.is_empty() || at.to_zone.is_empty() {
                cost.unknown_zone_bytes = cost.unknown_zone_bytes.saturating_add(at.bytes);
            } else if at.from_zone != at.to_zone {
                cost.cross_zone_bytes = cost.cross_zone_bytes.saturating_add(at.bytes);
            }
        }
        cost.usd_per_month = cost.usd * SECONDS_PER_MONTH / sums.window_seconds.max(1) as f64;
        Some(cost)
    }
}

fn pair(from: &str, to: &str) -> String {
    if from <= to { format!("{from}:{to}") } else { format!("{to}:{from}") }
}

#[cfg(test)]
mod tests {
    use model::{Interner, parse};
    use serde_json::json;

    use super::super::{TrafficOwner, TrafficRow, ZonePairTraffic};
    use super::*;

    fn nodes(providers: &[&str]) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for (i, id) in providers.iter().enumerate() {
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("n{i}")},
                "spec": {"providerID": id}});
            snapshot.apply(parse::object(&node, &mut Interner::default()).0.unwrap());
        }
        snapshot
    }

    #[test]
    fn the_provider_of_most_nodes_decides() {
        let price = |ids: &[&str]| PriceTable::new(&nodes(ids), &[]).unwrap().usd_per_gb;
        assert_eq!(price(&["aws:///us-east-1a/i-1", "aws:///us-east-1b/i-2", "gce://p/z/n"]), Some(0.02));
        assert_eq!(price(&["azure:///subscriptions/x"]), Some(0.0));
        let gcp = price(&["gce://project/zone/name"]).unwrap();
        assert!((gcp - 0.009_313).abs() < 1e-6, "0.01 per GiB: {gcp}");
        assert_eq!(price(&["kind://docker/kind/node"]), None);
        assert_eq!(price(&["aws:///a/i", "gce://p/z/n"]), Some(0.02));
    }

    #[test]
    fn flags_override_the_table_and_single_pairs() {
        let flags = ["0.05", "a:b=0", "c:a=0.5"].map(str::to_owned);
        let table = PriceTable::new(&nodes(&["aws:///x/i"]), &flags).unwrap();
        let gb = 1_000_000_000;
        assert_eq!(table.usd("a", "a", gb), Some(0.0));
        assert_eq!(table.usd("b", "a", gb), Some(0.0));
        assert_eq!(table.usd("a", "c", gb), Some(0.5));
        assert_eq!(table.usd("b", "c", gb), Some(0.05));
        assert_eq!(table.usd("", "c", gb), None);
        for wrong in ["", "much", "-1", "a=1", "a:=1", "a:b:c=1", "a:b=inf"] {
            let error = PriceTable::default().set(wrong).unwrap_err();
            assert!(error.contains("expected USD per GB"), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_window_is_extrapolated_to_a_month() {
        let at = |from: &str, to: &str, bytes| ZonePairTraffic {
            from_zone: from.to_owned(),
            to_zone: to.to_owned(),
            connections: 1,
            bytes,
        };
        let zone_pairs = vec![at("a", "a", 7), at("a", "b", 5_000_000_000), at("", "b", 3)];
        let rows = vec![TrafficRow { owner: TrafficOwner::NotThroughService, zone_pairs }];
        let sums = TrafficSums { window_seconds: 3600, rows, ..TrafficSums::default() };
        assert_eq!(PriceTable::default().cost(&sums), None);
        let cost = PriceTable { usd_per_gb: Some(0.02), ..PriceTable::default() }.cost(&sums).unwrap();
        assert!((cost.usd - 0.1).abs() < 1e-9 && (cost.usd_per_month - 72.0).abs() < 1e-6, "{cost:?}");
        assert_eq!((cost.cross_zone_bytes, cost.unknown_zone_bytes), (5_000_000_000, 3));
    }
}
