//! Endpoints of a backend: zones as localities with the plan's weights. The priorities of a policy, and failover tiers, are
//! lower priorities, which Envoy uses only when the higher ones fail.

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
    for (priority, tier) in (0u32..).zip(tiers.iter().flat_map(|tier| by_priority(tier))) {
        endpoints.extend(localities(&tier, priority));
    }
    let assignment = ClusterLoadAssignment {
        cluster_name: name.to_owned(),
        endpoints,
        ..ClusterLoadAssignment::default()
    };
    assignment.encode_to_vec()
}

/// The endpoints of each priority that has some.
fn by_priority(tier: &Backend) -> impl Iterator<Item = Vec<&BackendEndpoint>> {
    let mut by_priority: BTreeMap<u8, Vec<&BackendEndpoint>> = BTreeMap::new();
    for endpoint in &tier.endpoints {
        by_priority.entry(endpoint.priority).or_default().push(endpoint);
    }
    by_priority.into_values()
}

fn localities(tier: &[&BackendEndpoint], priority: u32) -> Vec<LocalityLbEndpoints> {
    let total: f64 = tier.iter().map(|endpoint| f64::from(endpoint.weight)).sum();
    let mut by_zone: BTreeMap<Option<&Name>, Vec<&BackendEndpoint>> = BTreeMap::new();
    for endpoint in tier.iter().copied() {
        by_zone.entry(endpoint.zone.as_ref()).or_default().push(endpoint);
    }
    let locality = |(zone, endpoints): (Option<&Name>, Vec<&BackendEndpoint>)| {
        let own: f64 = endpoints.iter().map(|endpoint| f64::from(endpoint.weight)).sum();
        let zone = zone.map(Name::to_string).unwrap_or_default();
        LocalityLbEndpoints {
            locality: Some(Locality { zone, ..Locality::default() }),
            lb_endpoints: weighted(&endpoints),
            load_balancing_weight: number(at_least_one(TOTAL_WEIGHT * own / total)),
            priority,
            ..LocalityLbEndpoints::default()
        }
    };
    by_zone.into_iter().map(locality).collect()
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
