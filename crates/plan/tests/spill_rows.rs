//! Spill's arithmetic: demand as text, and the row of each zone against what could be done at best.

use std::collections::BTreeMap;

use model::{Name, Node};
use plan::hints::ClusterTopology;
use plan::spill::{SpillDemand, row, spills};
use proptest::prelude::*;

fn endpoints(counts: &[(&str, usize)]) -> BTreeMap<Name, usize> {
    counts.iter().map(|(zone, count)| (Name::new(zone), *count)).collect()
}

fn shares(demand: &str, counts: &[(&str, usize)], from: &str) -> String {
    let row = row(&demand.parse().expect("a demand"), &endpoints(counts), from);
    let entries = row.iter().flatten().map(|(zone, share)| format!("{zone} {share:.3}"));
    entries.collect::<Vec<_>>().join(", ")
}

#[test]
fn demand_is_written_and_read_back() {
    for text in ["za=103,zb=77,zc=76", "a=256", "a=0,b=256", "east/a=128,west/b=128", "/a=128,west/b=128"] {
        assert_eq!(SpillDemand::parse(text).unwrap().to_string(), text);
    }
    for wrong in
        ["", "a", "a=", "=256", "a=255", "a=128,b=129", "a=128,a=128", "a=-1,b=257", "east/=256", "a=1000000"]
    {
        assert!(SpillDemand::parse(wrong).is_err(), "{wrong:?}");
    }
    let error = SpillDemand::parse("a=128,b=129").unwrap_err().to_string();
    assert_eq!(error, "the shares add up to 257 instead of 256");
}

#[test]
fn zones_may_be_listed_in_any_order() {
    assert_eq!(SpillDemand::parse("b=128,a=128").unwrap().to_string(), "a=128,b=128");
}

fn node(name: &str, zone: &str, region: &str, cpu: u64, ready: bool) -> (Name, Node) {
    let label = |text: &str| Some(Name::new(text)).filter(|n| !n.is_empty());
    let (zone, region, cpu_millis) = (label(zone), label(region), Some(cpu));
    let node = Node { zone, region, ready, cpu_millis, ..Node::named(name) };
    (node.name.clone(), node)
}

fn demand_of(nodes: &[(Name, Node)]) -> Option<String> {
    let topology = ClusterTopology::from_nodes(&nodes.iter().cloned().collect());
    SpillDemand::from_topology(&topology).map(|d| d.to_string())
}

#[test]
fn demand_follows_the_cpu_of_ready_nodes() {
    let nodes = [
        node("1", "za", "", 6_000, true),
        node("2", "zb", "", 3_000, true),
        node("3", "zb", "", 3_000, true),
        node("4", "zc", "", 4_000, false),
        node("5", "", "", 9_000, true),
    ];
    assert_eq!(demand_of(&nodes).as_deref(), Some("za=128,zb=128,zc=0"));
    assert_eq!(demand_of(&nodes[3..]), None);
    assert_eq!(demand_of(&[]), None);
}

#[test]
fn rounding_goes_to_those_who_lost_most_and_then_by_name() {
    let zones: Vec<(Name, Node)> = ["a", "b", "c"].map(|z| node(z, z, "", 1_000, true)).into();
    assert_eq!(demand_of(&zones).as_deref(), Some("a=86,b=85,c=85"));
}

#[test]
fn one_region_is_not_named() {
    let same = [node("1", "a", "east", 1, true), node("2", "b", "east", 1, true)];
    assert_eq!(demand_of(&same).as_deref(), Some("a=128,b=128"));
    let other = [node("1", "a", "east", 1, true), node("2", "b", "", 1, true)];
    assert_eq!(demand_of(&other).as_deref(), Some("east/a=128,/b=128"));
}

#[test]
fn a_zone_keeps_what_its_endpoints_can_take() {
    // a sends 3/4 and has 1/4 of the endpoints: it keeps a third.
    let counts = [("a", 1), ("b", 3)];
    assert_eq!(shares("a=192,b=64", &counts, "a"), "a 0.333, b 0.667");
    assert_eq!(shares("a=192,b=64", &counts, "b"), "b 1.000");
}

#[test]
fn the_own_region_takes_first_and_in_proportion_to_what_is_spare() {
    let demand = "east/a=128,east/b=32,east/c=32,west/d=64";
    // Of 16: a has 2 for 8, b 5 for 2, c 3 for 2, d 6 for 4. Spare in east 3 + 1, in west 2.
    let counts = [("a", 2), ("b", 5), ("c", 3), ("d", 6)];
    assert_eq!(shares(demand, &counts, "a"), "a 0.250, b 0.375, c 0.125, d 0.250");
    // With enough in the region nothing leaves it.
    assert_eq!(
        shares("east/a=128,east/b=64,west/c=64", &[("a", 1), ("b", 2), ("c", 1)], "a"),
        "a 0.500, b 0.500"
    );
}

#[test]
fn zones_that_nobody_expects_traffic_from() {
    let (demand, counts) = ("a=256,b=0", [("a", 3), ("b", 1)]);
    assert_eq!(shares(demand, &counts, "b"), "b 1.000", "its own endpoints");
    assert_eq!(shares(demand, &[("a", 3), ("c", 1)], "b"), "a 0.750, c 0.250", "none: as the endpoints are");
    assert_eq!(shares(demand, &counts, "nowhere"), "a 0.750, b 0.250");
    assert_eq!(shares(demand, &counts, ""), "a 0.750, b 0.250");
    assert_eq!(row(&demand.parse().unwrap(), &endpoints(&[("a", 0)]), "a"), None);
}

#[test]
fn endpoints_without_a_zone_are_spare() {
    assert_eq!(shares("a=128,b=128", &[("a", 1), ("b", 1), ("", 2)], "a"), " 0.500, a 0.500");
}

#[test]
fn rounding_is_no_spill() {
    let thirds = SpillDemand::parse("a=86,b=85,c=85").unwrap();
    assert!(!spills(&thirds, &endpoints(&[("a", 3), ("b", 3), ("c", 3)])));
    assert_eq!(shares("a=86,b=85,c=85", &[("a", 3), ("b", 3), ("c", 3)], "a"), "a 1.000");
    assert!(spills(&thirds, &endpoints(&[("a", 3), ("b", 3), ("c", 2)])));
    // Less than 1/256 of the traffic, but twice what the zone has.
    assert!(spills(&"a=254,b=2".parse().unwrap(), &endpoints(&[("a", 996), ("b", 4)])));
    assert!(!spills(&thirds, &BTreeMap::<Name, usize>::new()));
}

/// Traffic from zone to zone in 1/256 of all.
fn flows(demand: &SpillDemand, counts: &BTreeMap<Name, usize>) -> BTreeMap<(Name, Name), f64> {
    let mut flows = BTreeMap::new();
    for from in demand.zones() {
        for (to, share) in row(demand, counts, &from.zone).expect("endpoints") {
            flows.insert((from.zone.clone(), to), share * f64::from(from.share));
        }
    }
    flows
}

fn in_zone(flows: &BTreeMap<(Name, Name), f64>) -> f64 {
    flows.iter().filter(|((from, to), _)| from == to).map(|(_, flow)| flow).sum()
}

/// The most traffic that can stay in its zone if every zone gets exactly its capacity, found by trying everything:
/// `demand` and `capacity` are whole units.
fn best_in_zone(demand: &mut [u32], capacity: &mut [u32], from: usize) -> Option<u32> {
    if from == demand.len() {
        return Some(0);
    }
    if demand[from] == 0 {
        return best_in_zone(demand, capacity, from + 1);
    }
    let mut best = None;
    for to in 0..capacity.len() {
        if capacity[to] == 0 {
            continue;
        }
        demand[from] -= 1;
        capacity[to] -= 1;
        let rest = best_in_zone(demand, capacity, from).map(|rest| rest + u32::from(from == to));
        best = best.max(rest);
        demand[from] += 1;
        capacity[to] += 1;
    }
    best
}

#[test]
fn no_other_way_without_overload_keeps_more_in_zone() {
    // All ways to split 8 units of traffic and 8 endpoints over three zones.
    let splits: Vec<[u32; 3]> = (0..=8).flat_map(|a| (0..=8 - a).map(move |b| [a, b, 8 - a - b])).collect();
    let mut compared = 0;
    for demand in &splits {
        for capacity in &splits {
            let text: Vec<String> =
                demand.iter().zip("abc".chars()).map(|(d, z)| format!("{z}={}", d * 32)).collect();
            let counts: Vec<(String, usize)> =
                capacity.iter().zip("abc".chars()).map(|(c, z)| (z.to_string(), *c as usize)).collect();
            let counts: BTreeMap<Name, usize> = counts.iter().map(|(z, c)| (Name::new(z), *c)).collect();
            let ours = in_zone(&flows(&text.join(",").parse().unwrap(), &counts)) / 32.0;
            let best = best_in_zone(&mut demand.clone(), &mut capacity.clone(), 0).unwrap();
            assert!((ours - f64::from(best)).abs() < 1e-9, "{demand:?} {capacity:?}: {ours} of {best}");
            compared += 1;
        }
    }
    assert_eq!(compared, 45 * 45);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn overload_is_zero_and_shares_add_up(
        weights in prop::collection::vec((0u64..50, 0usize..3), 1..7),
        counts in prop::collection::vec(0usize..40, 1..8),
    ) {
        let nodes: BTreeMap<Name, Node> = weights.iter().enumerate().map(|(i, (cpu, region))| {
            node(&format!("n{i}"), &format!("z{i}"), &format!("r{region}"), *cpu * 1000 + 1, true)
        }).collect();
        let demand = SpillDemand::from_topology(&ClusterTopology::from_nodes(&nodes)).unwrap();
        prop_assert_eq!(SpillDemand::parse(&demand.to_string()).unwrap(), demand.clone());
        let counts: BTreeMap<Name, usize> =
            counts.iter().enumerate().map(|(i, n)| (Name::new(&format!("z{i}")), *n)).collect();
        let all: usize = counts.values().sum();
        prop_assume!(all > 0);
        let flows = flows(&demand, &counts);
        for from in demand.zones() {
            let row = row(&demand, &counts, &from.zone).unwrap();
            let sum: f64 = row.iter().map(|(_, share)| share).sum();
            prop_assert!((sum - 1.0).abs() < 1e-9, "{:?}", row);
            prop_assert!(row.iter().all(|(zone, share)| *share > 0.0 && counts[zone] > 0), "{:?}", row);
        }
        // Where a zone spills, every endpoint gets exactly its fair share; where none does, rounding is all.
        let allowed = if spills(&demand, &counts) { 1e-9 } else { 0.05 + 1e-9 };
        for (zone, count) in counts.iter().filter(|(_, n)| **n > 0) {
            let load: f64 = flows.iter().filter(|((_, to), _)| to == zone).map(|(_, flow)| flow).sum();
            let overload = load / 256.0 * all as f64 / *count as f64 - 1.0;
            prop_assert!(overload <= allowed, "{}: {}", zone, overload);
        }
        // Nothing leaves a region that has room for it.
        for from in demand.zones() {
            let region = |zone: &Name| demand.zones().iter().find(|z| z.zone == *zone).and_then(|z| z.region.clone());
            let within = demand.zones().iter().filter(|z| z.region == from.region);
            let wants: u64 = within.clone().map(|z| u64::from(z.share) * all as u64).sum();
            let has: u64 = within.map(|z| counts.get(&z.zone).map_or(0, |n| 256 * *n as u64)).sum();
            if has >= wants && from.share > 0 {
                let row = row(&demand, &counts, &from.zone).unwrap();
                let away = row.iter().find(|(zone, _)| demand.zones().iter().any(|z| z.zone == *zone) && region(zone) != from.region);
                prop_assert!(away.is_none(), "{:?}", row);
            }
        }
    }

    #[test]
    fn no_text_makes_demand_panic(text in "[a-c/=,0-9]{0,40}", counts in prop::collection::vec(0usize..5, 3)) {
        if let Ok(demand) = SpillDemand::parse(&text) {
            let counts: BTreeMap<Name, usize> =
                ["a", "b", "c"].iter().zip(counts).map(|(z, n)| (Name::new(z), n)).collect();
            for zone in ["a", "b", "c", "d"] {
                let _ = row(&demand, &counts, zone);
            }
        }
    }
}
