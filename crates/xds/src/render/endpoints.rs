//! Endpoints of a backend: zones as localities with the plan's weights, and failover tiers as lower priorities, which
//! Envoy uses only when the higher ones fail.

use std::collections::BTreeMap;

use envoy_types::pb::envoy::config::core::v3::Locality;
use envoy_types::pb::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints, lb_endpoint::HostIdentifier,
};
use model::Name;
use model::backend::{Backend, BackendEndpoint};
use prost::Message;

use super::protobuf::{address, number};

/// The sum of the weights of all localities of one priority.
const TOTAL_WEIGHT: f64 = 1_000_000.0;
/// The weight of the heaviest endpoint of a locality.
const HEAVIEST: f64 = 10_000.0;

pub(super) fn render(name: &str, tiers: &[&Backend]) -> Vec<u8> {
    let mut endpoints = Vec::new();
    // Envoy requires priorities without gaps.
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
            load_balancing_weight: number(at_least_one(TOTAL_WEIGHT * own / total)),
            priority,
            ..LocalityLbEndpoints::default()
        }
    })
}

/// Equal weights are omitted: without weights Envoy picks the less loaded of two.
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

/// A weight of zero would remove a small share.
fn at_least_one(weight: f64) -> u32 {
    weight.round().clamp(1.0, TOTAL_WEIGHT) as u32
}
