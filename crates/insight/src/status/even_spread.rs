//! Measured traffic beside an even spread over all ready endpoints, which is what nodes do without a mechanism.

use std::collections::BTreeMap;

use model::{Name, ServiceKey};

use super::{Rate, ServiceEvaluation, cents, crosses, has_zones};
use crate::ledger::{TrafficOwner, TrafficRow, ZonePairTraffic};

/// What does not cross zones because traffic is not spread evenly; negative if more crosses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SavedTraffic {
    pub bytes_per_day: f64,
    /// `None` if a price is unknown.
    pub cost_per_month: Option<f64>,
}

/// Of all Services with measured bytes and an evaluation; `None` if there is none.
pub(super) fn saved(
    rows: &BTreeMap<&TrafficOwner, &TrafficRow>,
    evaluations: &BTreeMap<ServiceKey, ServiceEvaluation>,
    rate: &Rate<'_>,
) -> Option<SavedTraffic> {
    let (mut measured, mut even) = (Vec::new(), Vec::new());
    for (owner, row) in rows {
        let TrafficOwner::Service { namespace, name } = owner else { continue };
        let key = ServiceKey::new(&namespace.as_str().into(), &name.as_str().into());
        let Some(evaluation) = evaluations.get(&key) else { continue };
        let spread = evenly(&row.zone_pairs, &evaluation.endpoints_by_zone);
        if !spread.is_empty() {
            even.extend(spread);
            measured.extend(row.zone_pairs.iter().filter(|pair| has_zones(pair)).cloned());
        }
    }
    if even.is_empty() {
        return None;
    }
    let crossing = |pairs: &[ZonePairTraffic]| {
        pairs.iter().filter(|pair| crosses(pair)).map(|pair| rate.per_day(pair.bytes)).sum::<f64>()
    };
    let costs = rate.cost_per_month(&even).zip(rate.cost_per_month(&measured));
    Some(SavedTraffic {
        bytes_per_day: (crossing(&even) - crossing(&measured)).round(),
        cost_per_month: costs.map(|(even, measured)| cents(even - measured)),
    })
}

/// The bytes of each zone spread over the zones by their endpoints. Traffic and endpoints of unknown zones are left out.
fn evenly(pairs: &[ZonePairTraffic], endpoints_by_zone: &BTreeMap<Name, usize>) -> Vec<ZonePairTraffic> {
    let zones = || endpoints_by_zone.iter().filter(|(zone, _)| !zone.is_empty());
    let endpoints: usize = zones().map(|(_, count)| count).sum();
    let mut sent: BTreeMap<&str, u64> = BTreeMap::new();
    for pair in pairs.iter().filter(|pair| has_zones(pair) && pair.bytes > 0) {
        let bytes = sent.entry(&pair.from_zone).or_default();
        *bytes = bytes.saturating_add(pair.bytes);
    }
    let spread = |(from, bytes): (&str, u64)| {
        zones()
            .map(|(to, count)| ZonePairTraffic {
                from_zone: from.to_owned(),
                to_zone: to.to_string(),
                bytes: (bytes as f64 * *count as f64 / endpoints as f64) as u64,
                ..ZonePairTraffic::default()
            })
            .collect::<Vec<_>>()
    };
    sent.into_iter().flat_map(spread).collect()
}
