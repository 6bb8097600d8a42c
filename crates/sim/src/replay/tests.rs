//! Replays whose outcome can be said in advance.

use model::random::Random;

use super::*;
use insight::what_if::MECHANISMS;

fn size(endpoints: usize) -> ClusterSize {
    ClusterSize { zones: 3, nodes: 6, services: 2, endpoints }
}

fn run(start: &InitialCluster, events: &[ReplayEvent]) -> Vec<Churn> {
    replay(start, events, MECHANISMS, 2, &AtomicBool::new(false), &|_| {})
}

fn event(seconds: u64, change: ClusterChange) -> ReplayEvent {
    ReplayEvent { at: Millis::default().after(seconds), change }
}

fn first(start: &InitialCluster) -> ServiceKey {
    start.services[0].key.clone()
}

fn of(churns: &[Churn], mechanism: Mechanism) -> &Churn {
    churns.iter().find(|churn| churn.mechanism == mechanism).expect("all are replayed")
}

#[test]
fn nothing_happens_without_events() {
    let churns = run(&generated_cluster(size(6), PodTimings::default()), &[]);
    assert_eq!(churns.len(), MECHANISMS.len());
    for churn in churns {
        assert_eq!((churn.total, churn.settled.slices_written), (ChurnSample::default(), 2), "{churn:?}");
    }
}

#[test]
fn one_more_replica_is_two_writes_of_one_slice() {
    let start = generated_cluster(size(6), PodTimings::default());
    let churns = run(&start, &[event(60, ClusterChange::ScaleBy(first(&start), 1))]);
    let balanced = of(&churns, Mechanism::None);
    // Not ready at 60 s, ready at 70 s.
    let times: Vec<f64> = balanced.samples.iter().map(|m| m.at.seconds()).collect();
    assert_eq!((balanced.total.slices_written, times), (2, vec![60.0, 70.0]));
    assert_eq!((balanced.total.hints_changed, balanced.largest_sync), (0, 1));
    assert!(balanced.total.watch_bytes > 6 * 2 * 1_000, "six nodes get two slices: {balanced:?}");
}

#[test]
fn a_rolling_update_replaces_every_pod_and_ends() {
    let start = generated_cluster(size(8), PodTimings::default());
    let mut state =
        simulated_cluster::SimulatedCluster::new(&start, &[event(0, ClusterChange::Roll(first(&start)))]);
    let mut fewest = usize::MAX;
    let mut most = 0;
    while let Some(tick) = state.advance() {
        assert!(tick.at.seconds() < 100.0, "it ends");
        let pods = state.pods(&first(&start));
        fewest = fewest.min(pods.iter().filter(|p| p.ready && !p.deleting).count());
        most = most.max(pods.iter().filter(|p| !p.deleting).count());
    }
    assert_eq!((fewest, most), (6, 10), "a quarter fewer and a quarter more at most");
    let pods = state.pods(&first(&start));
    assert!(pods.len() == 8 && pods.iter().all(|p| p.ready && p.key.name.contains("-r")), "{pods:?}");
}

#[test]
fn a_node_that_is_back_before_the_eviction_keeps_its_pods() {
    let start = generated_cluster(size(6), PodTimings::default());
    let node = Name::new("node-0000");
    let lost = event(0, ClusterChange::NodeLoss(node.clone()));
    let mut state = simulated_cluster::SimulatedCluster::new(
        &start,
        &[lost.clone(), event(100, ClusterChange::NodeBack(node.clone()))],
    );
    while state.advance().is_some() {}
    assert!(state.pods(&first(&start)).iter().all(|p| p.ready && !p.key.name.contains("-r")));
    let mut state = simulated_cluster::SimulatedCluster::new(&start, &[lost]);
    while state.advance().is_some() {}
    let pods = state.pods(&first(&start));
    assert!(pods.len() == 6 && pods.iter().all(|p| p.ready && p.node.as_ref() != Some(&node)), "{pods:?}");
}

#[test]
fn without_any_zone_left_pods_wait_for_nodes() {
    let start = generated_cluster(size(3), PodTimings::default());
    let zones = ["zone-a", "zone-b", "zone-c"].map(Name::new);
    let mut events: Vec<ReplayEvent> =
        zones.iter().map(|z| event(0, ClusterChange::ZoneLoss(z.clone()))).collect();
    events.push(event(1_000, ClusterChange::ZoneBack(zones[1].clone())));
    let mut state = simulated_cluster::SimulatedCluster::new(&start, &events);
    while state.advance().is_some() {}
    let pods = state.pods(&first(&start));
    assert_eq!(pods.iter().filter(|p| p.ready).count(), 3, "{pods:?}");
}

#[test]
fn hints_cost_writes_that_balanced_does_not_need() {
    // Seed 003: churn is to be minimal, so what a mechanism adds to Balanced is counted apart.
    let start = generated_cluster(
        ClusterSize { zones: 3, nodes: 9, services: 4, endpoints: 12 },
        PodTimings::default(),
    );
    let churns = run(&start, &random_events(&start, &mut Random::seeded(7), 30));
    let balanced = of(&churns, Mechanism::None).total;
    assert_eq!((balanced.hint_only_writes, balanced.hints_changed), (0, 0));
    for churn in &churns {
        assert!(churn.total.slices_written >= balanced.slices_written, "{churn:?}");
        let extra = churn.total.slices_written - balanced.slices_written;
        assert!(extra <= churn.total.hint_only_writes, "{churn:?}");
        assert!(churn.total.endpoints_reallocated <= churn.total.hints_changed, "{churn:?}");
    }
    let same_zone = of(&churns, Mechanism::PreferSameZone).total;
    assert_eq!(same_zone.slices_written, balanced.slices_written, "an endpoint's own zone never changes");
}

#[test]
fn the_same_seed_gives_the_same_churn_with_any_number_of_threads() {
    let start = generated_cluster(size(5), PodTimings::default());
    let events = random_events(&start, &mut Random::seeded(3), 20);
    assert_eq!(events, random_events(&start, &mut Random::seeded(3), 20));
    assert_eq!(events.len(), 20);
    let text = |threads| {
        format!("{:?}", replay(&start, &events, MECHANISMS, threads, &AtomicBool::new(false), &|_| {}))
    };
    assert_eq!(text(1), text(3));
}

#[test]
fn events_about_what_is_not_there_are_told() {
    let start = generated_cluster(size(3), PodTimings::default());
    let known = ClusterChange::Roll(first(&start));
    assert_eq!(start.check(&event(0, known)), Ok(()));
    assert!(start.check(&event(0, ClusterChange::NodeLoss(Name::new("nowhere")))).is_err());
    assert!(start.check(&event(0, ClusterChange::ZoneBack(Name::new("nowhere")))).is_err());
    assert_eq!(Millis::from_seconds(-1.0), None);
    assert_eq!(Millis::from_seconds(1.5), Some(Millis(1_500)));
}
