//! `best` against an exhaustive search that shares nothing with it, and the figures of the small set.

use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use sim::scoring::{InputSource, ScoringJob, run};
use sim::{Algorithm, AlgorithmSettings, Dataset, SimulationInput, Zone};

/// All ways to put `n` zones into groups.
fn partitions(n: usize) -> Vec<Vec<Vec<usize>>> {
    let mut all: Vec<Vec<Vec<usize>>> = vec![vec![]];
    for zone in 0..n {
        let mut longer = Vec::new();
        for partition in &all {
            for at in 0..partition.len() {
                let mut copy = partition.clone();
                copy[at].push(zone);
                longer.push(copy);
            }
            let mut copy = partition.clone();
            copy.push(vec![zone]);
            longer.push(copy);
        }
        all = longer;
    }
    all
}

/// The largest in-zone share without overload, by the maximum flow of largest gain: traffic goes in small equal
/// parcels, each to the place where it gains most among what is open, with exchanges until nothing gains.
fn in_zone(zones: &[Zone], partition: &[Vec<usize>]) -> f64 {
    let total: u64 = zones.iter().map(|z| z.endpoints).sum();
    let nodes: u64 = zones.iter().map(|z| z.nodes).sum();
    let size = |g: &Vec<usize>| g.iter().map(|z| zones[*z].endpoints).sum::<u64>();
    // One parcel is 1 / (nodes x endpoints) of all traffic, so that everything is whole.
    let supply: Vec<i64> = zones.iter().map(|z| (z.nodes * total) as i64).collect();
    let room: Vec<i64> = partition.iter().map(|g| (size(g) * nodes) as i64).collect();
    let gain = |zone: usize, group: usize| -> f64 {
        let own = partition[group].contains(&zone);
        if own { zones[zone].endpoints as f64 / size(&partition[group]) as f64 } else { 0.0 }
    };
    transport(&supply, &room, gain) / (nodes * total) as f64
}

/// The most valuable transport by successive longest paths (Bellman-Ford over the residual graph).
fn transport(supply: &[i64], room: &[i64], gain: impl Fn(usize, usize) -> f64) -> f64 {
    let (m, n) = (supply.len(), room.len());
    let (mut left, mut free) = (supply.to_vec(), room.to_vec());
    let mut flow = vec![vec![0i64; n]; m];
    loop {
        // Distance to each group from any zone with supply left.
        let mut zone_at: Vec<f64> =
            left.iter().map(|l| if *l > 0 { 0.0 } else { f64::NEG_INFINITY }).collect();
        let mut group_at = vec![f64::NEG_INFINITY; n];
        let mut via_zone = vec![usize::MAX; n];
        let mut via_group = vec![usize::MAX; m];
        for _ in 0..m + n {
            for z in 0..m {
                for g in 0..n {
                    if zone_at[z] + gain(z, g) > group_at[g] + 1e-12 {
                        group_at[g] = zone_at[z] + gain(z, g);
                        via_zone[g] = z;
                    }
                    if flow[z][g] > 0 && group_at[g] - gain(z, g) > zone_at[z] + 1e-12 {
                        zone_at[z] = group_at[g] - gain(z, g);
                        via_group[z] = g;
                    }
                }
            }
        }
        let open = (0..n).filter(|g| free[*g] > 0 && group_at[*g] > f64::NEG_INFINITY);
        let Some(end) = open.max_by(|a, b| group_at[*a].total_cmp(&group_at[*b])) else { break };
        let mut path = Vec::new();
        let mut group = end;
        let start = loop {
            let zone = via_zone[group];
            path.push((zone, group, 1));
            if via_group[zone] == usize::MAX {
                break zone;
            }
            path.push((zone, via_group[zone], -1));
            group = via_group[zone];
        };
        let back = path.iter().filter(|(_, _, sign)| *sign < 0).map(|(z, g, _)| flow[*z][*g]);
        let amount = back.chain([left[start], free[end]]).min().expect("two at least");
        path.iter().for_each(|(z, g, sign)| flow[*z][*g] += sign * amount);
        left[start] -= amount;
        free[end] -= amount;
    }
    let cells = (0..m).flat_map(|z| (0..n).map(move |g| (z, g)));
    cells.map(|(z, g)| flow[z][g] as f64 * gain(z, g)).sum()
}

fn exhaustive(zones: &[Zone]) -> f64 {
    let served: Vec<usize> = (0..zones.len()).filter(|z| zones[*z].endpoints > 0).collect();
    let total: u64 = zones.iter().map(|z| z.endpoints).sum();
    let score = |partition: &Vec<Vec<usize>>| {
        let named: Vec<Vec<usize>> =
            partition.iter().map(|g| g.iter().map(|at| served[*at]).collect()).collect();
        let slices: u64 =
            named.iter().map(|g| g.iter().map(|z| zones[*z].endpoints).sum::<u64>().div_ceil(100)).sum();
        45.0 * in_zone(zones, &named) + 40.0 + 15.0 * total.div_ceil(100) as f64 / slices as f64
    };
    partitions(served.len()).iter().map(score).fold(f64::NEG_INFINITY, f64::max)
}

fn zones(counts: &[(u64, u64)]) -> SimulationInput {
    let zone = |(at, (nodes, endpoints)): (usize, &(u64, u64))| Zone {
        name: format!("zone{at}").as_str().into(),
        nodes: *nodes,
        endpoints: *endpoints,
    };
    SimulationInput::new("case", counts.iter().enumerate().map(zone).collect()).expect("a good input")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn best_is_the_highest_of_all_partitions_and_never_overloads(
        counts in prop::collection::vec((0..9u64, prop_oneof![0..12u64, 0..160u64]), 1..=5)
    ) {
        let input = zones(&counts);
        let any = |f: fn(&(u64, u64)) -> u64| counts.iter().map(f).sum::<u64>() > 0;
        prop_assume!(any(|c| c.0) && any(|c| c.1));
        let settings = AlgorithmSettings::default();
        let best = Algorithm::Best.measure(input.zones(), &settings).expect("every zone reaches something");
        let wanted = exhaustive(input.zones());
        prop_assert!((best.total - wanted).abs() < 1e-9, "{} instead of {wanted}: {counts:?}", best.total);
        prop_assert!(best.max_overload < 1e-9);
        let balanced = Algorithm::Balanced.measure(input.zones(), &settings).expect("valid");
        prop_assert!(best.total >= balanced.total);
    }
}

fn means(set: Dataset, names: &str) -> Vec<f64> {
    let algorithms: Vec<Algorithm> = names.split(',').map(|name| name.parse().expect("a name")).collect();
    let job = ScoringJob {
        source: InputSource::Set(set),
        algorithms: &algorithms,
        settings: AlgorithmSettings::default(),
        threads: 2,
    };
    let summary = run(&job, &AtomicBool::new(false), &|_| {});
    summary.rows.iter().map(|row| row.totals.means().expect("valid inputs").total).collect()
}

#[test]
fn small_set_gives_the_published_figures() {
    let names = "balanced,local-1x,local-2x,local-3x,local-4x,local-5x,local-shared,local-weighted,local-opt,spill,best";
    let wanted =
        [72.5518, 80.0734, 80.0915, 80.0988, 80.0772, 80.0072, 80.8239, 80.8261, 79.8105, 82.7711, 82.8874];
    for ((name, found), wanted) in names.split(',').zip(means(Dataset::Small, names)).zip(wanted) {
        assert!((found - wanted).abs() < 0.00005001, "{name}: {found} instead of {wanted}");
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let algorithms = [Algorithm::Local(None), Algorithm::LocalShared, Algorithm::Spill, Algorithm::Best];
    let total = |threads: usize| {
        let source = InputSource::Set(Dataset::Small);
        let job =
            ScoringJob { source, algorithms: &algorithms, settings: AlgorithmSettings::default(), threads };
        let summary = run(&job, &AtomicBool::new(false), &|_| {});
        let bits = |row: &sim::scoring::AlgorithmScores| row.totals.means().expect("valid").total.to_bits();
        (summary.rows.iter().map(bits).collect::<Vec<_>>(), summary.done)
    };
    let one = total(1);
    assert_eq!(one, total(2));
    assert_eq!(one, total(7));
}

#[test]
fn a_stopped_run_tells_what_is_done() {
    let algorithms = [Algorithm::Balanced];
    let source = InputSource::Set(Dataset::Large);
    let job =
        ScoringJob { source, algorithms: &algorithms, settings: AlgorithmSettings::default(), threads: 2 };
    let stop = AtomicBool::new(false);
    let summary = run(&job, &stop, &|_| stop.store(true, std::sync::atomic::Ordering::Relaxed));
    assert!(summary.done > 0 && summary.done < summary.inputs, "{}", summary.done);
    assert_eq!(summary.rows[0].totals.valid, summary.done);
}
