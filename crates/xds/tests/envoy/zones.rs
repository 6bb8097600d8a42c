//! Zones through a real Envoy: the shares that the plan says, and other zones where the own one vanishes.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::Labels;
use model::backend::{BackendTable, ConsumerLocation};
use serde_json::json;
use xds::render::{RenderInput, render};

use crate::harness::{Control, bootstrap, envoy};
use crate::http::{Connection, Echo, Log};
use crate::world::{Places, backend, sidecar_input, snapshot};
use toolbox::ports::free_port;

const REQUESTS: usize = 3000;

/// How often each backend answered.
fn counts(at: std::net::SocketAddr, requests: usize) -> (BTreeMap<String, usize>, usize) {
    let (mut seen, mut failed) = (BTreeMap::new(), 0);
    let mut connection = Connection::open(at).unwrap();
    for _ in 0..requests {
        match connection.send("GET", "web", "/", &[]) {
            Ok(answer) if answer.status() == 200 => *seen.entry(answer.backend().unwrap()).or_default() += 1,
            _ => {
                failed += 1;
                connection = Connection::open(at).unwrap();
            }
        }
    }
    (seen, failed)
}

/// A client's way to `web`, with endpoints as (name, zone, weight) in tiers.
fn input(at: std::net::SocketAddr, echoes: &[Echo], tiers: &[&[(usize, &'static str, f32)]]) -> RenderInput {
    let world = snapshot("ns", &[], &["web", "client"], &json!(null));
    let mut input = sidecar_input(&world, "ns", ("client", &Labels::EMPTY), "web", at, &Places::new());
    let id = input.routes.backends().into_iter().next().unwrap();
    let table = |tier: &&[(usize, &'static str, f32)]| {
        let endpoints: Vec<_> =
            tier.iter().map(|(i, zone, weight)| (echoes[*i].address, *zone, *weight)).collect();
        let mut table = BackendTable::new(ConsumerLocation::default());
        table.put(Arc::new(backend(&id, &endpoints)));
        Arc::new(table)
    };
    input.tiers = tiers.iter().map(table).collect();
    input
}

fn within_sampling_error(seen: &BTreeMap<String, usize>, name: &str, share: f64) {
    let got = seen.get(name).copied().unwrap_or(0) as f64;
    let n = seen.values().sum::<usize>() as f64;
    let error = 4.0 * (n * share * (1.0 - share)).sqrt() + 1.0;
    assert!((got - n * share).abs() <= error, "{name}: {got} of {n}, not {share}; all: {seen:?}");
}

#[test]
fn envoy_gives_the_shares_that_the_plan_says_and_turns_to_other_zones_only_without_its_own() {
    let log = Log::default();
    let echoes: Vec<Echo> = ["e0", "e1", "e2", "e3"].map(|name| Echo::start(name, &log)).into();
    let at = free_port();
    // Spill: two thirds stay in zone a, on one endpoint; the rest is shared by two of zone b.
    let spill: &[(usize, &'static str, f32)] = &[(0, "a", 2.0), (1, "b", 0.5), (2, "b", 0.5)];
    let first = render(input(at, &echoes, &[spill]), None);
    let control = Control::start(&first.resources);
    let proxy = envoy(&bootstrap(control.address));
    proxy.wait_for(at);
    let (seen, failed) = counts(at, REQUESTS);
    assert_eq!(failed, 0);
    [("e0", 2.0 / 3.0), ("e1", 1.0 / 6.0), ("e2", 1.0 / 6.0)]
        .iter()
        .for_each(|(n, s)| within_sampling_error(&seen, n, *s));

    // PreferSameZone: zone a alone while it is there.
    let near: &[(usize, &'static str, f32)] = &[(0, "a", 1.0), (1, "a", 1.0)];
    let far: &[(usize, &'static str, f32)] = &[(2, "b", 1.0), (3, "c", 1.0)];
    let second = render(input(at, &echoes, &[near, far]), Some(&first));
    control.publish(&second.resources);
    proxy.wait("the own zone alone", || {
        let (seen, failed) = counts(at, 20);
        failed == 0 && !seen.contains_key("e2") && !seen.contains_key("e3")
    });
    let (seen, failed) = counts(at, REQUESTS);
    assert_eq!((failed, seen.contains_key("e2"), seen.contains_key("e3")), (0, false, false), "{seen:?}");
    within_sampling_error(&seen, "e0", 0.5);

    // The zone's endpoints vanish, and nobody has told Envoy: priority 1 takes over without a failed request.
    echoes[0].stop();
    echoes[1].stop();
    // Envoy learns meanwhile that what was open there has ended: a request that is on its way when its backend dies is lost to everybody.
    std::thread::sleep(std::time::Duration::from_millis(300));
    let (seen, failed) = counts(at, 1000);
    assert_eq!(failed, 0, "{seen:?}");
    assert!(
        seen.get("e2").copied().unwrap_or(0) > 100 && seen.get("e3").copied().unwrap_or(0) > 100,
        "{seen:?}"
    );
    let sent = control.streams.counters();

    // Require: nothing but the zone, so nothing at all, and soon.
    let third = render(input(at, &echoes, &[&[]]), Some(&second));
    control.publish(&third.resources);
    proxy.wait("503 without endpoints", || {
        Connection::open(at).unwrap().send("GET", "web", "/", &[]).unwrap().status() == 503
    });
    assert_eq!(sent[&xds::resource::ResourceType::Cluster].resources, 1, "endpoints alone changed");
}
