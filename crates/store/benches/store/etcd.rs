//! Durable writes per second beside etcd, alternating in one run: the same bytes, TLS with client certificates on
//! both, clients of the same make. The API parses, admits and validates on top of what etcd does.

use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::json;

use super::client::{Access, Connection, Ready};
use super::percentile;
use super::server::{Running, own_processor};

const SECONDS: u64 = 3;
/// Odd, so that one is the median. `ZONEWARD_BENCH_ROUNDS` is another number, for a quick look.
const ROUNDS: u64 = 7;
/// ObjectTxn of each writer, taken in turn.
const OBJECTS: u64 = 8;
/// Versions of each object, taken in turn: each is different from the one that it replaces.
const VERSIONS: u64 = 4;

/// Whom a writer writes to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Api,
    Etcd,
}

fn rounds() -> u64 {
    let asked = std::env::var("ZONEWARD_BENCH_ROUNDS").ok();
    asked.and_then(|asked| asked.parse().ok()).unwrap_or(ROUNDS)
}

pub async fn run() {
    let rounds = rounds();
    let size = slice(0, 0, 0).len();
    println!(
        "\nupdates of an EndpointSlice of {size} bytes, TLS, a connection each; {rounds} rounds of {SECONDS} s in turn"
    );
    let api = Running::api();
    let Some(etcd) = Running::etcd() else {
        println!("etcd is not here: `cargo xtask bench store` brings it");
        return;
    };
    println!("a ratio is the median of the rounds' ratios; beside it the least and the greatest of them");
    println!(
        "writers |  ours/s | p50 ms | p99 ms |  etcd/s | p50 ms | p99 ms | ratio | least - most | processor ms per write: ours, etcd, clients"
    );
    println!(
        "--------+---------+--------+--------+---------+--------+--------+-------+--------------+-------------------------------------------"
    );
    for writers in [1, 16, 256] {
        row(&api, &etcd, writers).await;
    }
}

/// What one side did in its rounds.
#[derive(Default)]
struct Score {
    rates: Vec<f64>,
    times: Vec<Duration>,
    processor: Duration,
    clients: Duration,
}

impl Score {
    fn cells(&mut self) -> String {
        let [p50, p99] = [0.5, 0.99].map(|share| percentile(&mut self.times, share));
        format!("{:>7.0} | {p50:>6.2} | {p99:>6.2}", median(&mut self.rates.clone()))
    }

    fn each(&self, time: Duration) -> f64 {
        time.as_secs_f64() * 1e3 / (self.times.len() as f64).max(1.0)
    }
}

fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(0.0)
}

async fn row(api: &Running, etcd: &Running, writers: u64) {
    make_objects(&api.access, writers).await;
    let (mut ours, mut theirs) = (Score::default(), Score::default());
    for round in 1..=rounds() {
        // Who comes first has it neither better nor worse in the end.
        if round % 2 == 1 {
            round_of(Side::Api, api, writers, round, &mut ours).await;
            round_of(Side::Etcd, etcd, writers, round, &mut theirs).await;
        } else {
            round_of(Side::Etcd, etcd, writers, round, &mut theirs).await;
            round_of(Side::Api, api, writers, round, &mut ours).await;
        }
    }
    let pairs = ours.rates.iter().zip(&theirs.rates);
    let mut ratios: Vec<f64> = pairs.map(|(ours, theirs)| ours / theirs.max(1e-9)).collect();
    let ratio = median(&mut ratios);
    let [least, most] = [ratios.first(), ratios.last()].map(|end| end.copied().unwrap_or(0.0));
    println!(
        "{writers:>7} | {} | {} | {ratio:>5.2} | {least:>4.2} - {most:<4.2}  | {:.2}, {:.2}, {:.2}",
        ours.cells(),
        theirs.cells(),
        ours.each(ours.processor),
        theirs.each(theirs.processor),
        ours.each(ours.clients),
    );
}

async fn make_objects(access: &Access, writers: u64) {
    let mut connection = access.connect().await;
    for writer in 0..writers {
        for number in 0..OBJECTS {
            // Those of an earlier row are there already.
            let _ = connection.send("POST", SLICES, slice(writer, number, 0)).await;
        }
    }
}

async fn round_of(side: Side, server: &Running, writers: u64, round: u64, score: &mut Score) {
    let mut ready = Vec::new();
    for writer in 0..writers {
        let connection = server.access.connect().await;
        let requests = requests(side, &connection, writer, round);
        ready.push((connection, requests));
    }
    let (processor, clients, start) = (server.processor(), own_processor(), Instant::now());
    let end = start + Duration::from_secs(SECONDS);
    let tasks: Vec<_> = ready
        .into_iter()
        .map(|(connection, requests)| tokio::spawn(write(connection, requests, end)))
        .collect();
    let mut count = 0;
    for task in tasks {
        let times = task.await.expect("writers do not fail");
        count += times.len();
        score.times.extend(times);
    }
    score.processor += server.processor().saturating_sub(processor);
    score.clients += own_processor().saturating_sub(clients);
    score.rates.push(count as f64 / start.elapsed().as_secs_f64());
}

/// All that a writer writes in a round, over and over.
fn requests(side: Side, connection: &Connection, writer: u64, round: u64) -> Vec<Ready> {
    let numbers = (0..VERSIONS).flat_map(|version| (0..OBJECTS).map(move |number| (version, number)));
    let request = |(version, number)| {
        let body = slice(writer, number, round * 1_000_000 + version);
        let name = name(writer, number);
        match side {
            Side::Api => connection.update(&format!("{SLICES}/{name}"), body),
            Side::Etcd => connection.put(&format!("/registry/endpointslices/default/{name}"), &body),
        }
    };
    numbers.map(request).collect()
}

async fn write(mut connection: Connection, requests: Vec<Ready>, end: Instant) -> Vec<Duration> {
    let mut times = Vec::new();
    for request in requests.iter().cycle() {
        let start = Instant::now();
        if start >= end {
            break;
        }
        connection.repeat(request).await;
        times.push(start.elapsed());
    }
    times
}

const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

fn name(writer: u64, number: u64) -> String {
    format!("bench-{writer}-{number}")
}

/// A slice of six endpoints that is different in each version.
fn slice(writer: u64, number: u64, version: u64) -> Bytes {
    let endpoint = |i: u64| {
        json!({
            "addresses": [format!("10.{i}.{}.{}", writer % 256, version % 256)],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": format!("node-{i}"),
            "zone": format!("zone-{}", i % 3),
        })
    };
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name(writer, number),
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": format!("bench-{writer}")},
            "annotations": {"zoneward.dev/bench-version": version.to_string()},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": (0..6).map(endpoint).collect::<Vec<_>>(),
    });
    Bytes::from(slice.to_string())
}
