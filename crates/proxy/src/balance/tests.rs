//! Tests of the choice among endpoints.

use std::time::Duration;

use super::*;
use crate::peer::Wire;

fn choice(port: u16, weight: f32, born: Option<Moment>) -> Choice {
    let address = ([127, 0, 0, 1], port).into();
    Choice { peer: Arc::new(Peer::new(address, Wire::Http1, born)), weight, locality: Locality::SameZone }
}

fn shares(cluster: &Cluster, now: Moment) -> Vec<f32> {
    let (random, health) = (Random::new(7), Health::default());
    let mut hits = vec![0.0; cluster.choices().len()];
    for _ in 0..20_000 {
        let found = cluster.pick(&random, now, &health, &[]).expect("there is one");
        let at = cluster.choices().iter().position(|c| std::ptr::eq(c, found)).expect("it is of the cluster");
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
    let cluster = Cluster::new(vec![choice(1, 3.0, None), choice(2, 1.0, None)], &Health::default());
    assert_near(&shares(&cluster, Moment(0)), &[0.75, 0.25]);
    let even = Cluster::new((0..4).map(|port| choice(port, 2.5, None)).collect(), &Health::default());
    assert_near(&shares(&even, Moment(0)), &[0.25; 4]);
}

#[test]
fn the_less_loaded_of_two_gets_the_request() {
    let cluster = Cluster::new(vec![choice(1, 1.0, None), choice(2, 1.0, None)], &Health::default());
    cluster.choices()[0].peer.take_up();
    // Only when the busy one is drawn twice.
    assert_near(&shares(&cluster, Moment(0)), &[0.25, 0.75]);
}

#[test]
fn an_ejected_endpoint_gets_nothing_until_its_time_is_over() {
    let health = Health::default();
    let cluster = Cluster::new(vec![choice(1, 1.0, None), choice(2, 1.0, None)], &health);
    assert!(cluster.may_eject(Moment(0), &health));
    cluster.choices()[0].peer.eject(Moment(0), &health);
    assert!(!cluster.may_eject(Moment(0), &health), "half of them are out");
    assert_near(&shares(&cluster, Moment(1)), &[0.0, 1.0]);
    assert_near(&shares(&cluster, Moment(10_000)), &[0.5, 0.5]);
}

#[test]
fn when_all_are_ejected_somebody_still_gets_the_request() {
    let health = Health { ejected_percent: 100, ..Health::default() };
    let cluster = Cluster::new(vec![choice(1, 1.0, None), choice(2, 1.0, None)], &health);
    cluster.choices().iter().for_each(|choice| choice.peer.eject(Moment(0), &health));
    assert!(cluster.pick(&Random::new(1), Moment(1), &health, &[]).is_some());
}

#[test]
fn the_one_that_just_failed_is_avoided() {
    let cluster = Cluster::new(vec![choice(1, 100.0, None), choice(2, 1.0, None)], &Health::default());
    let failed = &cluster.choices()[0].peer;
    let random = Random::new(1);
    for _ in 0..100 {
        let found = cluster
            .pick(&random, Moment(0), &Health::default(), std::slice::from_ref(failed))
            .expect("the other");
        assert_eq!(found.peer.address.port(), 2);
    }
}

#[test]
fn a_new_endpoint_begins_with_a_part_of_its_share() {
    let health = Health { slow_start: Duration::from_secs(10), ..Health::default() };
    let cluster = Cluster::new(vec![choice(1, 1.0, None), choice(2, 1.0, Some(Moment(0)))], &health);
    let early = shares(&cluster, Moment(1_000))[1];
    let later = shares(&cluster, Moment(5_000))[1];
    assert!(early < 0.15 && early > 0.01, "{early}");
    assert!(later > early && later < 0.45, "{later}");
    assert_near(&shares(&cluster, Moment(10_000)), &[0.5, 0.5]);
}

#[test]
fn no_endpoint_is_none() {
    let cluster = Cluster::default();
    assert!(cluster.pick(&Random::new(1), Moment(0), &Health::default(), &[]).is_none());
}
