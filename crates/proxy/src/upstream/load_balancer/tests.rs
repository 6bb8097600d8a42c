//! Shares of endpoints by weight, load, ejection and slow start.

use std::time::Duration;

use clock::Clock;
use model::random::Random;

use super::*;
use crate::upstream::endpoint::EndpointProtocol;

fn weighted(port: u16, weight: f32, added_at: Option<ProxyTime>) -> WeightedEndpoint {
    let address = ([127, 0, 0, 1], port).into();
    let endpoint =
        UpstreamEndpoint::new(address, EndpointProtocol::Http1, None, None, added_at, Clock::system());
    WeightedEndpoint { endpoint: Arc::new(endpoint), weight, locality: Locality::SameZone }
}

fn random(seed: u64) -> SharedRandom {
    SharedRandom::new(Random::seeded(seed))
}

fn shares(balancer: &LoadBalancer, now: ProxyTime) -> Vec<f32> {
    let (random, settings) = (random(7), LoadBalancerSettings::default());
    let mut hits = vec![0.0; balancer.endpoints().len()];
    for _ in 0..20_000 {
        let found = balancer.pick(&random, now, &settings, &[]).expect("there is one");
        let at =
            balancer.endpoints().iter().position(|c| std::ptr::eq(c, found)).expect("one of its endpoints");
        hits[at] += 1.0 / 20_000.0;
    }
    hits
}

fn assert_near(found: &[f32], wanted: &[f32]) {
    for (found, wanted) in found.iter().zip(wanted) {
        assert!((found - wanted).abs() < 0.02, "{found} is not {wanted}");
    }
}

#[test]
fn without_load_shares_follow_the_weights() {
    let balancer = LoadBalancer::new(
        vec![weighted(1, 3.0, None), weighted(2, 1.0, None)],
        &LoadBalancerSettings::default(),
    );
    assert_near(&shares(&balancer, ProxyTime(0)), &[0.75, 0.25]);
    let even = LoadBalancer::new(
        (0..4).map(|port| weighted(port, 2.5, None)).collect(),
        &LoadBalancerSettings::default(),
    );
    assert_near(&shares(&even, ProxyTime(0)), &[0.25; 4]);
}

#[test]
fn the_less_loaded_of_two_gets_the_request() {
    let balancer = LoadBalancer::new(
        vec![weighted(1, 1.0, None), weighted(2, 1.0, None)],
        &LoadBalancerSettings::default(),
    );
    balancer.endpoints()[0].endpoint.add_load();
    // Only when the busy one is drawn twice.
    assert_near(&shares(&balancer, ProxyTime(0)), &[0.25, 0.75]);
}

#[test]
fn an_ejected_endpoint_gets_nothing_until_its_time_is_over() {
    let settings = LoadBalancerSettings::default();
    let balancer = LoadBalancer::new(vec![weighted(1, 1.0, None), weighted(2, 1.0, None)], &settings);
    assert!(balancer.may_eject(ProxyTime(0), &settings));
    balancer.endpoints()[0].endpoint.outlier.eject(ProxyTime(0), &settings);
    assert!(!balancer.may_eject(ProxyTime(0), &settings), "half of them are out");
    assert_near(&shares(&balancer, ProxyTime(1)), &[0.0, 1.0]);
    assert_near(&shares(&balancer, ProxyTime(10_000)), &[0.5, 0.5]);
}

#[test]
fn when_all_are_ejected_one_still_gets_the_request() {
    let settings = LoadBalancerSettings { max_ejection_percent: 100, ..LoadBalancerSettings::default() };
    let balancer = LoadBalancer::new(vec![weighted(1, 1.0, None), weighted(2, 1.0, None)], &settings);
    balancer.endpoints().iter().for_each(|weighted| weighted.endpoint.outlier.eject(ProxyTime(0), &settings));
    assert!(balancer.pick(&random(1), ProxyTime(1), &settings, &[]).is_some());
}

#[test]
fn the_one_that_just_failed_is_avoided() {
    let balancer = LoadBalancer::new(
        vec![weighted(1, 100.0, None), weighted(2, 1.0, None)],
        &LoadBalancerSettings::default(),
    );
    let failed = &balancer.endpoints()[0].endpoint;
    let random = random(1);
    for _ in 0..100 {
        let found = balancer
            .pick(&random, ProxyTime(0), &LoadBalancerSettings::default(), std::slice::from_ref(failed))
            .expect("the other");
        assert_eq!(found.endpoint.address.port(), 2);
    }
}

#[test]
fn a_new_endpoint_begins_with_a_part_of_its_share() {
    let settings =
        LoadBalancerSettings { slow_start: Duration::from_secs(10), ..LoadBalancerSettings::default() };
    let balancer =
        LoadBalancer::new(vec![weighted(1, 1.0, None), weighted(2, 1.0, Some(ProxyTime(0)))], &settings);
    let early = shares(&balancer, ProxyTime(1_000))[1];
    let later = shares(&balancer, ProxyTime(5_000))[1];
    assert!(early < 0.15 && early > 0.01, "{early}");
    assert!(later > early && later < 0.45, "{later}");
    assert_near(&shares(&balancer, ProxyTime(10_000)), &[0.5, 0.5]);
}

#[test]
fn no_endpoint_is_none() {
    let balancer = LoadBalancer::default();
    assert!(balancer.pick(&random(1), ProxyTime(0), &LoadBalancerSettings::default(), &[]).is_none());
}
