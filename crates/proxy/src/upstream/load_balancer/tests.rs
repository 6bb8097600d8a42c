//! Shares of endpoints by weight, load, ejection and slow start.

use std::time::Duration;

use clock::Clock;
use model::random::Random;
use model::route::SlowStart;

use super::*;
use crate::settings::LoadBalancerSettings;
use crate::upstream::endpoint::EndpointProtocol;

fn weighted(port: u16, weight: f32, added_at: Option<ProxyTime>) -> WeightedEndpoint {
    let address = ([127, 0, 0, 1], port).into();
    let endpoint =
        UpstreamEndpoint::new(address, EndpointProtocol::Http1, None, None, added_at, Clock::system());
    WeightedEndpoint { endpoint: Arc::new(endpoint), weight, priority: 0, locality: Locality::SameZone }
}

fn random(seed: u64) -> SharedRandom {
    SharedRandom::new(Random::seeded(seed))
}

fn settings(load_balancing: LoadBalancerSettings) -> Arc<BackendSettings> {
    let slow_start = SlowStart::even(load_balancing.slow_start);
    Arc::new(BackendSettings { load_balancing, slow_start, ..BackendSettings::default() })
}

fn with_algorithm(algorithm: LbAlgorithm) -> Arc<BackendSettings> {
    Arc::new(BackendSettings { algorithm, ..BackendSettings::default() })
}

fn shares(balancer: &LoadBalancer, now: ProxyTime) -> Vec<f32> {
    let random = random(7);
    let mut hits = vec![0.0; balancer.endpoints().len()];
    for _ in 0..20_000 {
        let found = balancer.pick(&random, now, None, &[]).expect("there is one");
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
        settings(LoadBalancerSettings::default()),
    );
    assert_near(&shares(&balancer, ProxyTime(0)), &[0.75, 0.25]);
    let even = LoadBalancer::new(
        (0..4).map(|port| weighted(port, 2.5, None)).collect(),
        settings(LoadBalancerSettings::default()),
    );
    assert_near(&shares(&even, ProxyTime(0)), &[0.25; 4]);
}

#[test]
fn the_less_loaded_of_two_gets_the_request() {
    let balancer = LoadBalancer::new(
        vec![weighted(1, 1.0, None), weighted(2, 1.0, None)],
        settings(LoadBalancerSettings::default()),
    );
    balancer.endpoints()[0].endpoint.add_load();
    // Only when the busy one is drawn twice.
    assert_near(&shares(&balancer, ProxyTime(0)), &[0.25, 0.75]);
}

#[test]
fn an_ejected_endpoint_gets_nothing_until_its_time_is_over() {
    let limits = LoadBalancerSettings::default();
    let balancer = LoadBalancer::new(vec![weighted(1, 1.0, None), weighted(2, 1.0, None)], settings(limits));
    assert!(balancer.may_eject(ProxyTime(0)));
    balancer.endpoints()[0].endpoint.outlier.eject(ProxyTime(0), &limits);
    assert!(!balancer.may_eject(ProxyTime(0)), "half of them are out");
    assert_near(&shares(&balancer, ProxyTime(1)), &[0.0, 1.0]);
    assert_near(&shares(&balancer, ProxyTime(10_000)), &[0.5, 0.5]);
}

#[test]
fn when_all_are_ejected_one_still_gets_the_request() {
    let limits = LoadBalancerSettings { max_ejection_percent: 100, ..LoadBalancerSettings::default() };
    let balancer = LoadBalancer::new(vec![weighted(1, 1.0, None), weighted(2, 1.0, None)], settings(limits));
    balancer.endpoints().iter().for_each(|weighted| weighted.endpoint.outlier.eject(ProxyTime(0), &limits));
    assert!(balancer.pick(&random(1), ProxyTime(1), None, &[]).is_some());
}

#[test]
fn the_one_that_just_failed_is_avoided() {
    let balancer = LoadBalancer::new(
        vec![weighted(1, 100.0, None), weighted(2, 1.0, None)],
        settings(LoadBalancerSettings::default()),
    );
    let failed = &balancer.endpoints()[0].endpoint;
    let random = random(1);
    for _ in 0..100 {
        let found =
            balancer.pick(&random, ProxyTime(0), None, std::slice::from_ref(failed)).expect("the other");
        assert_eq!(found.endpoint.address.port(), 2);
    }
}

#[test]
fn a_new_endpoint_begins_with_a_part_of_its_share() {
    let limits =
        LoadBalancerSettings { slow_start: Duration::from_secs(10), ..LoadBalancerSettings::default() };
    let balancer = LoadBalancer::new(
        vec![weighted(1, 1.0, None), weighted(2, 1.0, Some(ProxyTime(0)))],
        settings(limits),
    );
    let early = shares(&balancer, ProxyTime(1_000))[1];
    let later = shares(&balancer, ProxyTime(5_000))[1];
    assert!(early < 0.15 && early > 0.01, "{early}");
    assert!(later > early && later < 0.45, "{later}");
    assert_near(&shares(&balancer, ProxyTime(10_000)), &[0.5, 0.5]);
}

#[test]
fn no_endpoint_is_none() {
    let balancer = LoadBalancer::default();
    assert!(balancer.pick(&random(1), ProxyTime(0), None, &[]).is_none());
}

#[test]
fn turns_are_even_and_follow_the_weights() {
    let ports = |balancer: &LoadBalancer, count: usize| -> Vec<u16> {
        let random = random(1);
        let next = || balancer.pick(&random, ProxyTime(0), None, &[]).expect("one").endpoint.address.port();
        (0..count).map(|_| next()).collect()
    };
    let even = (1..=3).map(|port| weighted(port, 1.0, None)).collect();
    let even = LoadBalancer::new(even, with_algorithm(LbAlgorithm::RoundRobin));
    assert_eq!(ports(&even, 6), [1, 2, 3, 1, 2, 3]);
    even.endpoints()[1].endpoint.outlier.eject(ProxyTime(0), &LoadBalancerSettings::default());
    assert!(!ports(&even, 6).contains(&2));
    let uneven = vec![weighted(1, 3.0, None), weighted(2, 1.0, None)];
    let uneven = LoadBalancer::new(uneven, with_algorithm(LbAlgorithm::RoundRobin));
    let hits = ports(&uneven, 400).into_iter().filter(|port| *port == 2).count();
    assert!((95..=105).contains(&hits), "{hits}");
}

#[test]
fn a_key_keeps_its_endpoint_and_leaves_it_while_that_is_ejected() {
    for algorithm in [LbAlgorithm::RingHash(HashOn::SourceIp), LbAlgorithm::Maglev(HashOn::SourceIp)] {
        let all = (1..=5).map(|port| weighted(port, 1.0, None)).collect();
        let balancer = LoadBalancer::new(all, with_algorithm(algorithm));
        let key = balancer.key_of_connection([10, 0, 0, 9].into());
        assert!(key.is_some());
        let random = random(3);
        let pick = |now| balancer.pick(&random, ProxyTime(now), key, &[]).expect("one").endpoint.clone();
        let own = pick(0);
        assert!((0..50).all(|_| Arc::ptr_eq(&own, &pick(0))));
        own.outlier.eject(ProxyTime(0), &LoadBalancerSettings::default());
        assert!(!Arc::ptr_eq(&own, &pick(1)));
        assert!(Arc::ptr_eq(&own, &pick(10_000)), "back after its ejection");
    }
}

#[test]
fn requests_are_hashed_by_header_and_cookie() {
    let of = |on: HashOn| LoadBalancer::new(Vec::new(), with_algorithm(LbAlgorithm::Maglev(on)));
    let mut headers = HeaderMap::new();
    headers.insert("x-user", "anna".parse().expect("a value"));
    headers.append("cookie", "a=1; session=s1".parse().expect("a value"));
    let key = |balancer: &LoadBalancer| balancer.key_of_request(&headers, [10, 0, 0, 9].into());
    assert_eq!(key(&of(HashOn::Header("x-user".into()))), Some(hash_of(b"anna")));
    assert_eq!(key(&of(HashOn::Cookie("session".into()))), Some(hash_of(b"s1")));
    assert_eq!(key(&of(HashOn::Cookie("sess".into()))), None);
    assert_eq!(key(&of(HashOn::Header("x-other".into()))), None);
    assert_eq!(of(HashOn::Header("x-user".into())).key_of_connection([10, 0, 0, 9].into()), None);
}

#[test]
fn in_panic_ejected_endpoints_get_requests() {
    let limits = LoadBalancerSettings { max_ejection_percent: 100, ..LoadBalancerSettings::default() };
    let of = |panic_threshold| {
        let settings =
            BackendSettings { load_balancing: limits, panic_threshold, ..BackendSettings::default() };
        let balancer =
            LoadBalancer::new((0..4).map(|port| weighted(port, 1.0, None)).collect(), Arc::new(settings));
        for weighted in &balancer.endpoints()[..3] {
            weighted.endpoint.outlier.eject(ProxyTime(0), &limits);
        }
        balancer.update_ejections();
        balancer
    };
    assert_near(&shares(&of(0), ProxyTime(1)), &[0.0, 0.0, 0.0, 1.0]);
    assert_near(&shares(&of(25), ProxyTime(1)), &[0.0, 0.0, 0.0, 1.0]);
    assert_near(&shares(&of(50), ProxyTime(1)), &[0.25; 4]);
}

/// Two endpoints of priority 0, with weights 3 and 1, and two of priority 1.
fn two_tiers(algorithm: LbAlgorithm) -> LoadBalancer {
    let of = |port, weight, priority| WeightedEndpoint { priority, ..weighted(port, weight, None) };
    let all = vec![of(3, 1.0, 1), of(1, 3.0, 0), of(2, 1.0, 0), of(4, 1.0, 1)];
    LoadBalancer::new(all, with_algorithm(algorithm))
}

fn eject(balancer: &LoadBalancer, indexes: &[usize]) {
    for index in indexes {
        balancer.endpoints()[*index].endpoint.outlier.eject(ProxyTime(0), &LoadBalancerSettings::default());
    }
    balancer.update_ejections();
}

#[test]
fn a_priority_gets_what_the_one_before_it_cannot_serve() {
    for algorithm in [LbAlgorithm::LeastRequest, LbAlgorithm::RoundRobin] {
        let balancer = two_tiers(algorithm);
        assert_near(&shares(&balancer, ProxyTime(1)), &[0.75, 0.25, 0.0, 0.0]);
        eject(&balancer, &[1]);
        // As Envoy: 140 % of one half.
        assert_near(&shares(&balancer, ProxyTime(1)), &[0.7, 0.0, 0.15, 0.15]);
        eject(&balancer, &[0]);
        assert_near(&shares(&balancer, ProxyTime(1)), &[0.0, 0.0, 0.5, 0.5]);
        eject(&balancer, &[2]);
        assert_near(&shares(&balancer, ProxyTime(1)), &[0.0, 0.0, 0.0, 1.0]);
        assert_near(&shares(&balancer, ProxyTime(60_000)), &[0.75, 0.25, 0.0, 0.0]);
    }
}

#[test]
fn a_request_that_failed_at_all_endpoints_of_a_priority_goes_to_the_next() {
    let balancer = two_tiers(LbAlgorithm::Maglev(HashOn::SourceIp));
    let failed: Vec<_> = balancer.endpoints()[..2].iter().map(|weighted| weighted.endpoint.clone()).collect();
    let found = balancer.pick(&random(1), ProxyTime(0), Some(7), &failed).expect("another");
    assert_eq!(found.priority, 1);
    let found = balancer.pick(&random(1), ProxyTime(0), Some(7), &failed[..1]).expect("another");
    assert_eq!(found.priority, 0);
}

#[test]
fn slow_start_rises_by_its_aggression_from_its_least_part() {
    let factor = |slow_start: SlowStart, seconds| slow_start.factor(Duration::from_secs(seconds));
    let even = SlowStart::even(Duration::from_secs(100));
    assert_eq!([0, 5, 50, 100].map(|age| factor(even, age)), [0.1, 0.1, 0.5, 1.0]);
    let steep = SlowStart { aggression: 2_000, min_weight_percent: 30, ..even };
    assert_eq!([0, 25, 100].map(|age| factor(steep, age)), [0.3, 0.5, 1.0]);
    assert_eq!(factor(SlowStart::even(Duration::ZERO), 0), 1.0, "disabled");
}
