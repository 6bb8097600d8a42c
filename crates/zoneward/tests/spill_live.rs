//! The parts of `cargo xtask bench spill-live`: its figures, its configuration of Envoy, and a short run of it.
//!
//! As a program of its own it is what runs in the namespaces of the bench.

#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

#[path = "../benches/spill-live/agent.rs"]
mod agent;
#[path = "../benches/spill-live/api.rs"]
mod api;
#[path = "../benches/spill-live/client.rs"]
mod client;
#[path = "../benches/spill-live/envoy.rs"]
mod envoy;
#[path = "../../dataplane/tests/namespace.rs"]
#[allow(dead_code, reason = "each test file uses a part of it")]
mod namespace;
#[path = "../benches/spill-live/place.rs"]
mod place;
#[path = "../../xds/tests/envoy/process.rs"]
#[allow(dead_code, reason = "others use the rest of it")]
mod process;
#[path = "../benches/spill-live/run.rs"]
mod run;
#[path = "spill_live/runner.rs"]
mod runner;
#[path = "../benches/spill-live/score.rs"]
mod score;
#[path = "../benches/spill-live/server.rs"]
mod server;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use client::SentCounts;
use fixtures::eventually_async;
use place::{Competitor, Place};
use process::Envoy;
use run::{Measurement, SCENARIOS, World};
use score::{Recorded, ScoredServer};
use server::Server;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::sleep;

const TESTS: &[runner::Test] = &[
    ("figures_are_those_of_what_was_counted", figures_are_those_of_what_was_counted),
    ("a_lost_server_has_no_load_while_it_is_lost", a_lost_server_has_no_load_while_it_is_lost),
    ("envoy_accepts_both_policies", envoy_accepts_both_policies),
    ("load_aware_locality_follows_reports_of_servers", load_aware_locality_follows_reports_of_servers),
    ("a_short_run_counts_every_connection", a_short_run_counts_every_connection),
];

fn main() -> ExitCode {
    if agent::is_agent() {
        return ExitCode::SUCCESS;
    }
    runner::run(TESTS)
}

/// Two servers in two zones for 12 seconds, in which this many requests come each second from zone 0 and 1 to each.
fn recorded(by_second: impl Fn(u64) -> [[u64; 2]; 2]) -> Recorded {
    let servers = [0, 1].map(|zone| ScoredServer { zone, lost: None }).to_vec();
    let mut recorded =
        Recorded { start: 100, minute: 4, window: 2, capacity: 10.0, servers, ..Recorded::default() };
    for second in 100..112 {
        for (server, zones) in by_second(second).into_iter().enumerate() {
            for (zone, count) in zones.into_iter().enumerate() {
                recorded.served.insert((server, second, zone), count);
            }
        }
    }
    recorded
}

fn figures_are_those_of_what_was_counted() {
    // In the second minute all requests go to the first server.
    let mut recorded = recorded(|second| match second {
        104..108 => [[9, 3], [0, 0]],
        _ => [[6, 0], [3, 3]],
    });
    recorded.writes = 1;
    let score = recorded.score();
    assert_eq!(score.in_zone_by_minute, [75.0; 3]);
    // Means of two seconds: 6 and 12 are 9, 12 and 12 are 12.
    assert_eq!(score.overloaded, [0, 3, 0]);
    assert_eq!(score.p99, 2.0);
    assert_eq!(score.writes_per_hour, 300.0);
    let table = score::table("some", &[(Competitor::LoadAware, recorded)]);
    assert!(table.contains("| 75.0 | 75, 75, 75 | 3 | 0, 3, 0 | 2.00 | 1 (300) | 0 of 0 |"), "{table}");
}

fn a_lost_server_has_no_load_while_it_is_lost() {
    let mut recorded = recorded(|second| match second {
        104..108 => [[8, 0], [0, 0]],
        _ => [[4, 0], [0, 4]],
    });
    recorded.servers[1].lost = Some(104..108);
    let score = recorded.score();
    assert_eq!((score.overloaded, score.in_zone), ([0; 3], 100.0));
    // While one is left, its fair share is everything.
    assert_eq!(score.p99, 1.0);
}

/// Two servers in each of three zones, on loopback.
fn places() -> Vec<Place> {
    let place = |(zone, i)| Place {
        pod: format!("web-{zone}-{i}"),
        zone,
        address: format!("127.0.{}.{i}", zone + 1),
    };
    (0..3).flat_map(|zone| [1, 2].map(|i| (zone, i))).map(place).collect()
}

fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn envoy_accepts_both_policies() {
    let folder = folder("spill-live-validate");
    let file = folder.join("bootstrap.json");
    envoy::write_endpoints(&place::servers(), &folder);
    let clients = place::clients();
    std::fs::write(&file, envoy::bootstrap(&clients[0], &clients, &folder).to_string()).unwrap();
    let validated =
        Command::new(Envoy::program()).args(["--mode", "validate", "-c"]).arg(&file).output().unwrap();
    assert!(validated.status.success(), "{}", String::from_utf8_lossy(&validated.stderr));
    std::fs::remove_dir_all(folder).unwrap();
}

fn load_aware_locality_follows_reports_of_servers() {
    let folder = folder("spill-live-reports");
    let (places, own) = (places(), place::clients()[0].clone());
    envoy::write_endpoints(&places, &folder);
    let bootstrap = envoy::bootstrap(&own, std::slice::from_ref(&own), &folder).to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (idle, busy) = runtime.block_on(shares_in_zone(&places, &bootstrap));
    println!("in zone: {idle:.2} with idle servers, {busy:.2} with busy ones");
    assert!(idle > 0.9, "servers with nothing to do: {idle}");
    assert!(busy < 0.5, "servers above their capacity: {busy}");
    std::fs::remove_dir_all(folder).unwrap();
}

/// The share of requests that stay in zone while the servers of the zone report little load, and while they report much.
async fn shares_in_zone(places: &[Place], bootstrap: &str) -> (f64, f64) {
    let (_turn, is_on) = watch::channel(true);
    let mut servers = Vec::new();
    for place in places {
        let at = format!("{}:{}", place.address, Competitor::LoadAware.server_port());
        let server = Server::new(1_000.0);
        tokio::spawn(server.clone().serve(TcpListener::bind(at).await.unwrap(), is_on.clone()));
        servers.push((place.zone, server));
    }
    let _envoy = Envoy::start(bootstrap, "json");
    let target = format!("127.0.0.1:{}", Competitor::LoadAware.envoy_port());
    eventually_async("an answer", async || client::ask(&target, "").await).await;
    let (_rate, per_second) = watch::channel(100.0);
    let counts = SentCounts::default();
    tokio::spawn(client::connect(vec![target], "zone-a".to_owned(), per_second, counts));
    let share = async || {
        // Weights are smoothed over five seconds.
        sleep(Duration::from_secs(4)).await;
        servers.iter().for_each(|(_, server)| drop(server.take_counts(u64::MAX)));
        sleep(Duration::from_secs(2)).await;
        let requests = |server: &Server| server.take_counts(u64::MAX).values().sum::<u64>() as f64;
        let counts: Vec<(usize, f64)> =
            servers.iter().map(|(zone, server)| (*zone, requests(server))).collect();
        let all: f64 = counts.iter().map(|(_, count)| count).sum();
        counts.iter().filter(|(zone, _)| *zone == 0).map(|(_, count)| count).sum::<f64>() / all
    };
    let idle = share().await;
    let own = servers.iter().filter(|(zone, _)| *zone == 0);
    own.for_each(|(_, server)| server.set_capacity(5.0));
    (idle, share().await)
}

fn a_short_run_counts_every_connection() {
    let measurement = Measurement { minute: 5, window: 2, connections: 80.0 };
    let mut world = World::start(&measurement);
    let all = world.record(&SCENARIOS[2]);
    println!("{}\n{}", measurement.description(), score::table(SCENARIOS[2].name, &all));
    for (competitor, recorded) in all {
        let name = competitor.as_str();
        let served: u64 = recorded.served.values().sum();
        // A server that goes can have counted requests whose answers are lost.
        assert!(served >= recorded.answered, "{name}: {served} of {}", recorded.answered);
        assert!(served <= recorded.answered + recorded.failed, "{name}: {served} of {}", recorded.answered);
        assert!(recorded.answered > 600, "{name}: {} answered", recorded.answered);
        assert!(recorded.failed < recorded.answered / 10, "{name}: {} failed", recorded.failed);
        let to_lost = recorded.served.iter().filter(|((server, ..), _)| recorded.servers[*server].zone == 2);
        let in_minute = |minute: u64| {
            let minute = recorded.start + minute * 5..recorded.start + (minute + 1) * 5;
            to_lost.clone().filter(|((_, second, _), _)| minute.contains(second)).count()
        };
        let counts = [0, 1, 2].map(in_minute);
        assert!(counts[0] > 0 && counts[2] > 0, "{name}: {counts:?} counts of lost servers");
        // The second in which they go may have some: of three servers, from three zones.
        assert!(counts[1] <= 9, "{name}: {counts:?} counts of lost servers");
    }
    drop(world);
    let left = std::fs::read_dir(env!("CARGO_TARGET_TMPDIR")).unwrap().map_while(Result::ok);
    let own = format!("spill-live-{}", std::process::id());
    assert!(left.into_iter().all(|entry| entry.file_name() != own.as_str()), "its folder is removed");
}
