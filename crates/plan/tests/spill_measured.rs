//! Spill on measured demand: what holds for every demand, and what reports can and cannot do.

use std::collections::BTreeMap;
use std::time::Duration;

use model::random::Random;
use model::{Name, Node, Timestamp};
use plan::hints::ClusterTopology;
use plan::spill::measured::BusiestNode;
use plan::spill::measured::{
    DemandDecision, DemandInput, DemandMemory, PredictedTraffic, SuspectedNode, WriteBudget, WriteReason,
    ZoneMeasurement, decide,
};
use plan::spill::{ProvedLoad, SpillDemand, SpillKeep, ZoneCapacity, kept_share, row};
use plan::work_queue::MonotonicTime;
use proptest::prelude::*;

const ZONES: [&str; 5] = ["a", "b", "c", "d", "e"];
const START: i64 = 1_800_000_000;

fn by_cpu(weights: &[u64]) -> SpillDemand {
    let node = |(zone, cpu): (&&str, &u64)| {
        let node =
            Node { zone: Some(Name::new(zone)), ready: true, cpu_millis: Some(*cpu), ..Node::named(*zone) };
        (node.name.clone(), node)
    };
    let nodes = ZONES.iter().zip(weights).map(node).collect();
    SpillDemand::from_topology(&ClusterTopology::from_nodes(&nodes)).expect("there are zones")
}

fn endpoints(counts: &[usize]) -> BTreeMap<Name, ZoneCapacity> {
    let counts = ZONES.iter().map(|zone| Name::new(zone)).zip(counts).filter(|(_, count)| **count > 0);
    counts.map(|(zone, count)| (zone, ZoneCapacity::from(*count))).collect()
}

/// One Service with four nodes in each zone; the nodes follow what is written at once.
struct Service {
    cpu: SpillDemand,
    endpoints: BTreeMap<Name, ZoneCapacity>,
    memory: DemandMemory,
    applied: SpillDemand,
    seconds: u64,
    writes: Vec<u64>,
}

impl Service {
    fn new(zones: usize, counts: &[usize]) -> Self {
        let cpu = by_cpu(&vec![4_000; zones]);
        let (endpoints, memory) = (endpoints(counts), DemandMemory::default());
        Self { applied: cpu.clone(), cpu, endpoints, memory, seconds: 0, writes: Vec::new() }
    }

    /// Reports of these rates, split as planned.
    fn measured(&self, rates: &[f64]) -> Vec<ZoneMeasurement> {
        let zone = |(zone, rate): (&&str, &f64)| {
            let row = row(&self.applied, &self.endpoints, zone).unwrap_or_default();
            ZoneMeasurement {
                zone: Name::new(zone),
                nodes: 4,
                reporting: 4,
                rate_by_target: row.into_iter().map(|(to, share)| (to, rate * share)).collect(),
                highest_rate: rate / 4.0,
                busiest: BusiestNode {
                    name: "n1".to_owned(),
                    rate: rate / 4.0,
                    next_rate: rate / 4.0,
                    others: 3,
                },
            }
        };
        ZONES.iter().zip(rates).map(zone).collect()
    }

    fn decide(&mut self, measured: &[ZoneMeasurement]) -> DemandDecision {
        self.seconds += 30;
        let decision = decide(
            &self.memory,
            &DemandInput {
                now: MonotonicTime(Duration::from_secs(self.seconds)),
                time: self.time(),
                measured,
                cpu: &self.cpu,
                applied: &self.applied,
                endpoints_by_zone: &self.endpoints,
                keeps_proved: true,
                compares_splits: true,
            },
        );
        self.memory = decision.memory.clone();
        if decision.write.is_some() {
            self.writes.push(self.seconds);
            self.applied = decision.plan.clone();
        }
        decision
    }

    fn time(&self) -> Timestamp {
        Timestamp::from_seconds(START + self.seconds as i64)
    }

    fn step(&mut self, rates: &[f64]) -> DemandDecision {
        self.decide(&self.measured(rates))
    }

    fn run(&mut self, rates: &[f64], decisions: usize) -> DemandDecision {
        for _ in 1..decisions {
            self.step(rates);
        }
        self.step(rates)
    }
}

fn clusters() -> impl Strategy<Value = (Vec<usize>, Vec<f64>, Vec<f64>)> {
    (2_usize..=5).prop_flat_map(|zones| {
        let rates = || prop::collection::vec(0.0_f64..500.0, zones);
        (prop::collection::vec(1_usize..12, zones), rates(), rates())
    })
}

proptest! {
    // Hours of decisions each.
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn constant_demand_ends_in_no_writes((counts, _, rates) in clusters(), seed in any::<u64>()) {
        let mut service = Service::new(counts.len(), &counts);
        let mut random = Random::seeded(seed);
        for _ in 0..480 {
            // 1 % of noise.
            let noisy: Vec<f64> = rates.iter().map(|rate| rate * (0.99 + 0.02 * random.fraction())).collect();
            service.step(&noisy);
        }
        // The load is proved after 15 minutes, and written once.
        prop_assert!(service.writes.iter().all(|second| *second <= 1_800), "{:?}", service.writes);
    }

    #[test]
    fn once_the_load_is_proved_nothing_is_written_after_five_minutes((counts, before, after) in clusters()) {
        let mut service = Service::new(counts.len(), &counts);
        // The demand rises: falls are followed slowly on purpose.
        let before: Vec<f64> = before.iter().zip(&after).map(|(a, b)| a.min(*b)).collect();
        service.run(&after, 120);
        service.run(&before, 120);
        let start = service.seconds;
        service.run(&after, 120);
        prop_assert!(service.writes.iter().all(|second| *second <= start + 300), "{start} {:?}", service.writes);
    }

    #[test]
    fn a_leader_change_loses_nothing_that_decides((counts, before, after) in clusters()) {
        let mut service = Service::new(counts.len(), &counts);
        service.run(&before, 60);
        // Settled: what was held back after many writes is written.
        service.run(&after, 240);
        // Through the text of the annotations.
        let keep = SpillKeep::parse(&service.applied.keep().expect("it is measured").to_string()).expect("valid");
        let demand = SpillDemand::parse(&service.applied.to_string()).expect("valid").with_keep(Some(keep));
        prop_assert_eq!(&demand, &service.applied);
        let proved = service.step(&after).proved.map(|proved| ProvedLoad::parse(&proved.to_string()).expect("valid"));
        let kept = service.memory.clone();
        service.memory = DemandMemory::from_annotations(Some(demand.clone()), proved);
        let silent: Vec<ZoneMeasurement> = service.measured(&after).into_iter().map(|zone| ZoneMeasurement {
            reporting: 0, rate_by_target: BTreeMap::new(), ..zone
        }).collect();
        let first = service.decide(&silent);
        prop_assert_eq!((first.write, &first.plan), (None, &demand));
        let then = service.step(&after);
        prop_assert_eq!((then.write, &then.plan), (None, &demand));
        prop_assert_eq!(Some(&then.plan), kept.plan());
        prop_assert_eq!(then.proved, proved);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// The promise: at most the fair share, or 80 % of what the endpoints have carried. The demand is rounded to 1/256.
    #[test]
    fn no_endpoint_is_planned_above_its_fair_share_or_what_is_proved((counts, before, after) in clusters()) {
        let mut service = Service::new(counts.len(), &counts);
        let all: usize = counts.iter().sum();
        service.run(&before, 40);
        let carried = before.iter().sum::<f64>() / all as f64;
        for _ in 0..20 {
            let decision = service.step(&after);
            // The sixth write of an hour is the last: the plan stays until the next hour.
            if service.writes.len() >= 6 {
                break;
            }
            let proved = decision.proved.map_or(0.0, |proved| proved.connections_per_second);
            prop_assert!(proved <= carried.max(after.iter().sum::<f64>() / all as f64) * 1.001);
            let figures = &decision.figures;
            let fair = figures.rate_by_zone.values().sum::<f64>() / all as f64;
            let allowed = fair.max(0.8 * proved) / fair.max(1e-9);
            let fewest = counts.iter().min().copied().unwrap_or(1) as f64;
            let rounding = all as f64 / (256.0 * fewest);
            let new = PredictedTraffic::new(&decision.plan, &figures.share_by_zone, &service.endpoints);
            // A plan that is not worth a write may be 5 % worse, or 15 % after many writes.
            prop_assert!(new.highest_load <= (allowed + rounding) * 1.15, "{} > {allowed}", new.highest_load);
        }
    }

    /// With one lying node no endpoint gets more than the busiest one has under PreferSameZone, and the other zones keep no
    /// more than with honest reports.
    #[test]
    fn a_lying_node_is_never_worse_than_prefer_same_zone(
        (counts, before, rates) in clusters(),
        lie in prop_oneof![1.0_f64..4.0, 1.0_f64..50.0, 50.0_f64..100_000.0],
        at in any::<prop::sample::Index>(),
    ) {
        let liar = at.index(counts.len());
        let (_, honest) = lied(&counts, &before, &rates, liar, 1.0);
        let (service, decision) = lied(&counts, &before, &rates, liar, lie);
        let proved = |decision: &DemandDecision| decision.proved.map_or(0.0, |proved| proved.connections_per_second);
        prop_assert!(proved(&decision) <= proved(&honest) * 1.001 + 0.001, "a lie proves nothing");
        // With all writes of the hour used up, the plan is for the demand of before, lie or not.
        prop_assume!(service.writes.len() < 6);
        let made_up = rates[liar] / 4.0 * (lie - 1.0);
        // What counts nevertheless: a lie within what nodes of a zone may differ by, or one that is too small.
        let counted = if decision.figures.suspected.is_empty() { made_up } else { 0.0 };
        let honest_rate: f64 = rates.iter().sum();
        let at_most = (2.0 * rates[liar] / 4.0).max(0.05 * honest_rate).max(5.0 / 3.0);
        prop_assert!(counted <= at_most * 1.001, "{made_up} is suspected: {decision:?}");
        let all = counts.iter().sum::<usize>() as f64;
        let rounding = all / (256.0 * counts.iter().min().copied().unwrap_or(1) as f64);
        // A plan that is not worth a write may be 5 % worse, or 15 % after many writes.
        let slack = if service.writes.len() >= 4 { 0.15 } else { 0.05 };
        let most = highest_by_zone(&counts, &rates);
        // A lie that counts is like demand, for which the promise is another: what is proved.
        let most = if counted > 0.0 { most.max(0.8 * proved(&decision)) + counted / all } else { most };
        // Shares are in 1/256, and CPU shares decide a little.
        let allowed = most + honest_rate / all * (rounding + slack + rounding * slack) + 200.0 / 120.0 / all;
        let highest = highest_load(&service, &rates);
        prop_assert!(highest <= allowed, "{highest} > {allowed}: {decision:?}");
        if counted > 0.0 {
            return Ok(());
        }
        // With honest reports a zone keeps this much.
        let honest_load = (honest_rate / all).max(0.8 * proved(&decision));
        for (number, zone) in ZONES.iter().enumerate().take(counts.len()).filter(|(number, _)| *number != liar) {
            let honest = (honest_load * counts[number] as f64 / rates[number].max(1e-9)).min(1.0);
            let kept = kept_share(&service.applied, &service.endpoints, zone);
            prop_assert!(kept <= honest * (1.0 + slack + rounding), "{zone}: {kept} > {honest}: {decision:?}");
        }
    }

    /// How much a suspected node makes up changes no row: neither that of its own zone nor others. So a gateway that has
    /// what it reports gets the same plan, and that plan holds its endpoints at the fair share.
    #[test]
    fn rows_do_not_depend_on_how_much_a_node_makes_up(
        (counts, _, rates) in clusters(), lie in 20.0_f64..1_000.0, at in any::<prop::sample::Index>(),
    ) {
        let liar = at.index(counts.len());
        let (service, decision) = lied(&counts, &rates, &rates, liar, lie);
        if decision.figures.suspected.is_empty() {
            return Ok(());
        }
        let (more, again) = lied(&counts, &rates, &rates, liar, lie * 50.0);
        prop_assert_eq!(&service.applied, &more.applied);
        prop_assert_eq!(&again.figures.spread, &vec![Name::new(ZONES[liar])]);
        let mut as_gateway = rates.clone();
        as_gateway[liar] += rates[liar] / 4.0 * (lie - 1.0);
        let all = counts.iter().sum::<usize>() as f64;
        let rounding = all / (256.0 * counts.iter().min().copied().unwrap_or(1) as f64);
        for truth in [&rates, &as_gateway] {
            let rate: f64 = truth.iter().sum();
            let fair = (rate + 200.0 / 120.0) / all;
            let highest = highest_load(&service, truth);
            prop_assert!(highest <= fair * (1.05 + rounding), "{highest} > {fair}: {decision:?}");
        }
    }
}

/// After 20 minutes of `before` and 20 of `rates`, in which one of the four nodes of zone `liar` reports `lie` times its
/// connections.
fn lied(counts: &[usize], before: &[f64], rates: &[f64], liar: usize, lie: f64) -> (Service, DemandDecision) {
    let mut service = Service::new(counts.len(), counts);
    service.run(before, 40);
    let mut decision = None;
    for _ in 0..40 {
        let mut measured = service.measured(rates);
        let own = rates[liar] / 4.0;
        let zone = &mut measured[liar];
        zone.rate_by_target.values_mut().for_each(|rate| *rate *= (3.0 + lie) / 4.0);
        zone.highest_rate = own * lie;
        zone.busiest.rate = own * lie;
        decision = Some(service.decide(&measured));
    }
    (service, decision.expect("it decided"))
}

/// Connections per second of the busiest endpoint, if these are the true ones.
fn highest_load(service: &Service, rates: &[f64]) -> f64 {
    let mut load_by_zone: BTreeMap<Name, f64> = BTreeMap::new();
    for (zone, rate) in ZONES.iter().zip(rates) {
        for (to, share) in row(&service.applied, &service.endpoints, zone).unwrap_or_default() {
            *load_by_zone.entry(to).or_default() += rate * share;
        }
    }
    let each = |(zone, load): (&Name, &f64)| load / service.endpoints[zone].endpoints();
    load_by_zone.iter().map(each).fold(0.0, f64::max)
}

/// The same under PreferSameZone. All zones have endpoints.
fn highest_by_zone(counts: &[usize], rates: &[f64]) -> f64 {
    rates.iter().zip(counts).map(|(rate, count)| rate / *count as f64).fold(0.0, f64::max)
}

#[test]
fn a_suspected_node_gets_one_notice_until_it_is_not_far_above_any_more() {
    let mut service = Service::new(3, &[8, 8, 8]);
    let rates = [60.0, 30.0, 10.0];
    service.run(&rates, 20);
    let step = |service: &mut Service, rate: f64| {
        let mut measured = service.measured(&rates);
        measured[2].rate_by_target.values_mut().for_each(|target| *target *= (7.5 + rate) / 10.0);
        measured[2].highest_rate = rate;
        measured[2].busiest.rate = rate;
        service.decide(&measured)
    };
    let first = step(&mut service, 50.0);
    assert_eq!(first.figures.spread, [Name::new("c")], "others must not keep more meanwhile");
    let decisions: Vec<DemandDecision> = (0..20).map(|_| step(&mut service, 50.0)).collect();
    let notices: Vec<SuspectedNode> = decisions.into_iter().flat_map(|d| d.newly_suspected).collect();
    let node = SuspectedNode { zone: Name::new("c"), node: Name::new("n1"), rate: 50.0, next_rate: 2.5 };
    assert_eq!(notices, [node]);
    // No figure for autoscalers is better than one that a single node makes up.
    assert!(!step(&mut service, 50.0).figures.wanted_by_zone().contains_key("c"));
    for _ in 0..3 {
        step(&mut service, 2.5);
    }
    let after = step(&mut service, 2.5);
    assert_eq!((after.figures.spread.len(), after.figures.suspected.len()), (0, 0));
    assert!((after.figures.rate_by_zone["c"] - 10.0).abs() < 0.1, "what was made up is forgotten: {after:?}");
}

#[test]
fn a_suspected_node_changes_nothing_while_the_proved_load_allows_what_it_reports() {
    let mut service = Service::new(3, &[8, 8, 8]);
    service.run(&[60.0, 30.0, 10.0], 60);
    let night = [12.0, 6.0, 2.0];
    // Zone c reports 10 connections per second for its eight endpoints, which have proved 4.2 each.
    service.run(&night, 120);
    let honest = service.applied.clone();
    for _ in 0..60 {
        let mut measured = service.measured(&night);
        measured[2].rate_by_target.values_mut().for_each(|rate| *rate *= 5.0);
        measured[2].highest_rate = 8.5;
        measured[2].busiest.rate = 8.5;
        let decision = service.decide(&measured);
        assert_eq!((decision.figures.suspected.len(), decision.figures.spread.len()), (1, 0), "{decision:?}");
    }
    for zone in ["a", "b"] {
        let kept = |plan| kept_share(plan, &service.endpoints, zone);
        assert_eq!((kept(&service.applied), kept(&honest)), (1.0, 1.0));
    }
}

#[test]
fn nodes_that_differ_by_chance_or_are_few_are_not_suspected() {
    let suspected = |others: usize, rate: f64, next_rate: f64| {
        let mut service = Service::new(3, &[8, 8, 8]);
        let mut measured = service.measured(&[60.0, 30.0, 10.0]);
        let zone = &mut measured[0];
        zone.busiest = BusiestNode { name: "n1".to_owned(), rate, next_rate, others };
        !service.decide(&measured).figures.suspected.is_empty()
    };
    assert!(suspected(3, 45.0, 10.0));
    assert!(!suspected(3, 29.0, 10.0), "within three times the next node");
    assert!(!suspected(2, 45.0, 10.0), "two other nodes do not tell");
    assert!(!suspected(3, 3.0, 0.5), "it is a small part of all");
}

#[test]
fn a_zone_keeps_what_its_endpoints_have_proved() {
    let mut service = Service::new(3, &[8, 8, 8]);
    service.run(&[60.0, 30.0, 10.0], 60);
    assert!((kept_share(&service.applied, &service.endpoints, "a") - 0.55).abs() < 0.02);
    // At night an endpoint of zone a has 2.25 of the 4.17 connections per second that it is known to carry.
    service.run(&[18.0, 9.0, 3.0], 60);
    assert_eq!(kept_share(&service.applied, &service.endpoints, "a"), 1.0);
    assert_eq!(
        service.memory.plan().and_then(SpillDemand::keep).map(SpillKeep::endpoints),
        Some(ZoneCapacity::from(24))
    );
    // A day later it is 3 % less than the peak, and 80 % of that is below the fair share.
    service.run(&[60.0, 30.0, 10.0], 60);
    assert!((kept_share(&service.applied, &service.endpoints, "a") - 0.55).abs() < 0.02);
}

#[test]
fn a_burst_proves_nothing() {
    let mut service = Service::new(3, &[8, 8, 8]);
    service.run(&[24.0, 24.0, 24.0], 60);
    // Ten minutes of five times the traffic.
    service.run(&[120.0, 120.0, 120.0], 20);
    let proved = service.run(&[24.0, 24.0, 24.0], 60).proved.expect("it is proved");
    assert!(proved.connections_per_second <= 3.0, "{proved}");
}

#[test]
fn the_load_while_endpoints_are_missing_proves_nothing() {
    let mut service = Service::new(3, &[8, 8, 8]);
    service.run(&[24.0, 24.0, 24.0], 60);
    service.endpoints = endpoints(&[8, 0, 0]);
    let proved = service.run(&[24.0, 24.0, 24.0], 100).proved.expect("it is proved");
    assert!(proved.connections_per_second <= 3.0, "{proved}");
}

#[test]
fn a_factor_holds_per_endpoint() {
    let demand = SpillDemand::parse("a=154,b=77,c=25").expect("valid");
    let keep = |text| Some(SpillKeep::parse(text).expect("valid"));
    let plan = demand.clone().with_keep(keep("1.80/24"));
    assert_eq!(kept_share(&plan, &endpoints(&[8, 8, 8]), "a"), 1.0);
    // Without zone c, the fair share is 1.5 times as high and the allowed load is the same: 1.2 fair shares.
    let without = endpoints(&[8, 8, 0]);
    let same = demand.clone().with_keep(keep("1.20/16"));
    assert_eq!(row(&plan, &without, "a"), row(&same, &without, "a"));
    // An equal load at least.
    let few = endpoints(&[2, 2, 0]);
    assert_eq!(row(&plan, &few, "a"), row(&demand, &few, "a"));
}

#[test]
fn a_keep_factor_is_written_and_read_back() {
    for text in ["1.00/24", "1.42/24", "2.675/7", "100.00/1", "1.42/24 spread=zb,zc"] {
        assert_eq!(SpillKeep::parse(text).expect("valid").to_string(), text);
    }
    for wrong in [
        "",
        "1.42",
        "1.42/0",
        "/24",
        "1.4e3/24",
        "-1/24",
        "inf/24",
        "1.2345/24",
        "1/24 spread=",
        "1/24 zb",
        "1./2",
    ] {
        assert!(SpillKeep::parse(wrong).is_err(), "{wrong:?}");
    }
    assert_eq!(SpillKeep::new(f64::NAN, 0).to_string(), "1.00/1");
    assert_eq!(SpillKeep::new(f64::INFINITY, 3).to_string(), "100.00/3");
    let proved = ProvedLoad::parse("12.500@2026-11-17T10:00:00Z").expect("valid");
    assert_eq!(proved.to_string(), "12.500@2026-11-17T10:00:00Z");
    for wrong in
        ["", "12", "12@", "@2026-11-17T10:00:00Z", "nan@2026-11-17T10:00:00Z", "-1@2026-11-17T10:00:00Z"]
    {
        assert!(ProvedLoad::parse(wrong).is_err(), "{wrong:?}");
    }
    let week = Timestamp::parse("2026-11-24T10:00:00Z").expect("valid");
    assert!((proved.now(week) - 6.25).abs() < 1e-9);
}

#[test]
fn rows_of_zones_whose_demand_is_unknown_follow_capacity() {
    let demand = SpillDemand::parse("a=128,b=64,c=64").expect("valid");
    let plan = demand.with_keep(Some(SpillKeep::parse("1.00/8 spread=a").expect("valid")));
    let counts = endpoints(&[2, 4, 2]);
    let row_of = |zone| row(&plan, &counts, zone).expect("there are endpoints");
    let shares: Vec<f64> = row_of("a").into_iter().map(|(_, share)| share).collect();
    assert_eq!(shares, [0.25, 0.5, 0.25]);
    // Half of all traffic is spread, so c has an eighth of all left for its quarter.
    assert!((kept_share(&plan, &counts, "c") - 0.5).abs() < 1e-9, "{:?}", row_of("c"));
    assert_eq!(kept_share(&plan, &counts, "b"), 1.0);
    let all = SpillKeep::parse("1.00/8 spread=a,b,c").expect("valid");
    let all = SpillDemand::parse("a=128,b=64,c=64").expect("valid").with_keep(Some(all));
    assert_eq!(row(&all, &counts, "b"), row(&plan, &counts, "a"));
}

#[test]
fn a_silent_zone_follows_capacity_and_others_do_not() {
    let mut service = Service::new(3, &[8, 8, 8]);
    service.run(&[60.0, 30.0, 10.0], 20);
    let mut measured = service.measured(&[60.0, 30.0, 10.0]);
    measured[0].reporting = 1;
    measured[0].rate_by_target.clear();
    let decision = service.decide(&measured);
    assert_eq!(decision.figures.spread, [Name::new("a")]);
    assert!((kept_share(&decision.plan, &service.endpoints, "a") - 1.0 / 3.0).abs() < 1e-9);
    assert_eq!(kept_share(&decision.plan, &service.endpoints, "c"), 1.0);
    // Two of four nodes are enough, and count for all.
    let mut measured = service.measured(&[60.0, 30.0, 10.0]);
    measured[0].reporting = 2;
    measured[0].rate_by_target.values_mut().for_each(|rate| *rate /= 2.0);
    service.seconds += 30;
    let decision = service.decide(&measured);
    assert_eq!(decision.figures.spread, Vec::<Name>::new());
    assert!((decision.figures.rate_by_zone["a"] - 60.0).abs() < 1.0, "{:?}", decision.figures);
}

#[test]
fn after_ten_minutes_without_reports_the_cpu_of_nodes_decides() {
    let mut service = Service::new(3, &[8, 8, 8]);
    let before = service.run(&[60.0, 30.0, 10.0], 60).plan;
    let silent: Vec<ZoneMeasurement> = service
        .measured(&[0.0; 3])
        .into_iter()
        .map(|zone| ZoneMeasurement { reporting: 0, rate_by_target: BTreeMap::new(), ..zone })
        .collect();
    for _ in 0..19 {
        assert_eq!(service.decide(&silent).plan, before);
    }
    let decision = (0..3).map(|_| service.decide(&silent)).next_back().expect("it decided");
    assert!(decision.figures.is_by_cpu);
    assert_eq!(decision.plan.zones(), service.cpu.zones());
    let counts = endpoints(&[8, 8, 8]);
    assert_eq!(row(&decision.plan, &counts, "a"), row(&service.cpu, &counts, "a"));
}

#[test]
fn a_quiet_service_keeps_the_shares_of_the_cpu() {
    let mut service = Service::new(3, &[8, 8, 8]);
    let decision = service.run(&[0.02, 0.0, 0.0], 60);
    let share = decision.figures.share_by_zone["a"];
    assert!((0.33..0.36).contains(&share), "{share}");
    // No report takes a zone below an eighth of its CPU share.
    let decision = service.run(&[1_000.0, 0.0, 0.0], 60);
    assert!(decision.figures.share_by_zone["c"] > 0.038, "{:?}", decision.figures);
}

#[test]
fn a_zone_that_reports_another_split_counts_as_silent_until_it_agrees() {
    let mut service = Service::new(3, &[8, 8, 8]);
    service.run(&[60.0, 30.0, 10.0], 20);
    let wrong = |service: &Service| {
        let mut measured = service.measured(&[60.0, 30.0, 10.0]);
        measured[0].rate_by_target = [(Name::new("c"), 60.0)].into();
        measured
    };
    let mut found = Vec::new();
    for _ in 0..3 {
        found.push(service.decide(&wrong(&service)).newly_distrusted);
    }
    assert_eq!(found, [vec![], vec![], vec![Name::new("a")]]);
    assert_eq!(service.applied.keep().map(|keep| keep.spread().to_vec()), Some(vec![Name::new("a")]));
    let decision = service.run(&[60.0, 30.0, 10.0], 12);
    assert_eq!(decision.figures.spread, Vec::<Name>::new());
}

#[test]
fn all_services_together_write_ten_times_a_second() {
    let mut budget = WriteBudget::default();
    let at = |millis| MonotonicTime(Duration::from_millis(millis));
    assert_eq!((0..100).filter(|_| budget.take(at(5_000))).count(), 10);
    assert_eq!((0..100).filter(|_| budget.take(at(5_250))).count(), 2);
    assert_eq!((0..100).filter(|_| budget.take(at(60_000))).count(), 10);
}

#[test]
fn many_zones_have_finer_shares() {
    let zones: Vec<String> = (0..20).map(|zone| format!("z{zone:02}")).collect();
    let node = |zone: &String| {
        (Name::new(zone), Node { zone: Some(Name::new(zone)), ready: true, ..Node::named(zone.as_str()) })
    };
    let cpu = SpillDemand::from_topology(&ClusterTopology::from_nodes(&zones.iter().map(node).collect()));
    let cpu = cpu.expect("there are zones");
    let weights = zones.iter().enumerate().map(|(at, zone)| (Name::new(zone), at as f64)).collect();
    let measured = cpu.with_weights(&weights).expect("there is demand");
    assert_eq!((cpu.parts(), measured.parts()), (256, 65_536));
    assert_eq!(SpillDemand::parse(&measured.to_string()).expect("valid"), measured);
    assert!((measured.fraction("z01") - 1.0 / 190.0).abs() < 1e-4);
}

#[test]
fn at_most_six_writes_in_an_hour_whatever_happens() {
    let mut service = Service::new(3, &[8, 8, 8]);
    for at in 0..1_440 {
        // Demand moves to another zone every ten minutes.
        let mut rates = [10.0; 3];
        rates[at / 20 % 3] = 200.0;
        service.step(&rates);
    }
    let in_hour =
        |first: &u64| service.writes.iter().filter(|at| (*first..first + 3_600).contains(*at)).count();
    let most = service.writes.iter().map(in_hour).max();
    assert_eq!(most, Some(6), "{:?}", service.writes);
}

#[test]
fn a_new_service_follows_the_cpu_until_all_zones_have_reported() {
    let mut service = Service::new(3, &[8, 8, 8]);
    let heard = |service: &Service, zones: usize| {
        let mut measured = service.measured(&[60.0, 30.0, 10.0]);
        for zone in &mut measured[zones..] {
            zone.reporting = 0;
            zone.rate_by_target.clear();
        }
        measured
    };
    for zones in 0..3 {
        let decision = service.decide(&heard(&service, zones));
        assert_eq!((decision.write, &decision.plan), (None, &service.cpu));
        assert_eq!(service.memory.plan(), None);
    }
    assert_eq!(service.decide(&heard(&service, 3)).write, Some(WriteReason::Zones));
    // One that is never heard does not hold up the others for longer than 90 seconds.
    let mut service = Service::new(3, &[8, 8, 8]);
    let writes: Vec<bool> = (0..4).map(|_| service.decide(&heard(&service, 2)).write.is_some()).collect();
    assert_eq!(writes, [false, false, false, true]);
    assert_eq!(service.applied.keep().map(|keep| keep.spread().to_vec()), Some(vec![Name::new("c")]));
}
