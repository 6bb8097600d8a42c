//! The endpoints of a backend: zones as localities with the weights that the plan gave them, and what it would choose
//! without them as lower priorities. Envoy turns to a lower priority only where a higher one fails.

use std::collections::BTreeMap;

use envoy_types::pb::envoy::config::core::v3::Locality;
use envoy_types::pb::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints, lb_endpoint::HostIdentifier,
};
use model::Name;
use model::backend::{Backend, BackendEndpoint};
use prost::Message;

use super::wire::{address, number};

/// The whole of a backend's weight, over all zones of one priority.
const WHOLE: f64 = 1_000_000.0;
/// The weight of the heaviest endpoint of a zone in which they differ.
const HEAVIEST: f64 = 10_000.0;

/// The message for a backend; the tiers are in order of preference.
pub(super) fn render(name: &str, tiers: &[&Backend]) -> Vec<u8> {
    let mut endpoints = Vec::new();
    // Priorities have no gaps: a tier without endpoints is none.
    let tiers = tiers.iter().filter(|tier| !tier.endpoints.is_empty());
    for (priority, tier) in (0u32..).zip(tiers) {
        endpoints.extend(localities(tier, priority));
    }
    let assignment = ClusterLoadAssignment {
        cluster_name: name.to_owned(),
        endpoints,
        ..ClusterLoadAssignment::default()
    };
    assignment.encode_to_vec()
}

fn localities(tier: &Backend, priority: u32) -> impl Iterator<Item = LocalityLbEndpoints> {
    let total: f64 = tier.endpoints.iter().map(|endpoint| f64::from(endpoint.weight)).sum();
    let mut by_zone: BTreeMap<Option<&Name>, Vec<&BackendEndpoint>> = BTreeMap::new();
    for endpoint in &tier.endpoints {
        by_zone.entry(endpoint.zone.as_ref()).or_default().push(endpoint);
    }
    by_zone.into_iter().map(move |(zone, endpoints)| {
        let own: f64 = endpoints.iter().map(|endpoint| f64::from(endpoint.weight)).sum();
        let zone = zone.map(Name::to_string).unwrap_or_default();
        LocalityLbEndpoints {
            locality: Some(Locality { zone, ..Locality::default() }),
            lb_endpoints: weighted(&endpoints),
            load_balancing_weight: number(at_least_one(WHOLE * own / total)),
            priority,
            ..LocalityLbEndpoints::default()
        }
    })
}

/// Weights are said only where they differ: without them Envoy takes the less loaded of two.
fn weighted(endpoints: &[&BackendEndpoint]) -> Vec<LbEndpoint> {
    let heaviest = endpoints.iter().map(|endpoint| endpoint.weight).fold(0.0, f32::max);
    let differ = endpoints.iter().any(|endpoint| endpoint.weight != heaviest);
    let one = |endpoint: &&BackendEndpoint| {
        let share = f64::from(endpoint.weight) / f64::from(heaviest);
        let host = Endpoint { address: address(endpoint.address), ..Endpoint::default() };
        LbEndpoint {
            host_identifier: Some(HostIdentifier::Endpoint(host)),
            load_balancing_weight: number(at_least_one(HEAVIEST * share)).filter(|_| differ),
            ..LbEndpoint::default()
        }
    };
    endpoints.iter().map(one).collect()
}

/// What has a share keeps one, however small: a weight of zero would be none.
fn at_least_one(weight: f64) -> u32 {
    weight.round().clamp(1.0, WHOLE) as u32
}
