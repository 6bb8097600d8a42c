//! Durable writes per second beside etcd, alternating in one run: the same bytes, TLS with client certificates on
//! both, clients of the same make. The API parses, admits and validates on top of what etcd does.

use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::json;

use super::client::{Access, Connection};
use super::percentile;
use super::server::Running;

const SECONDS: u64 = 3;
const ROUNDS: usize = 3;
/// Objects of each writer, taken in turn.
const OBJECTS: u64 = 8;

/// Whom a writer writes to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Api,
    Etcd,
}

pub async fn run() {
    let size = slice(0, 0, 0).len();
    println!(
        "\nupdates of an EndpointSlice of {size} bytes, TLS, a connection each; {ROUNDS} rounds of {SECONDS} s in turn"
    );
    let api = Running::api();
    let Some(etcd) = Running::etcd() else {
        println!("etcd is not here: `cargo xtask bench store` brings it");
        return;
    };
    println!(
        "writers |  ours/s | p50 ms | p99 ms |  etcd/s | p50 ms | p99 ms | ratio | processors ours, etcd"
    );
    println!(
        "--------+---------+--------+--------+---------+--------+--------+-------+----------------------"
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
    elapsed: Duration,
}

impl Score {
    fn rate(&mut self) -> f64 {
        self.rates.sort_by(f64::total_cmp);
        self.rates.get(self.rates.len() / 2).copied().unwrap_or(0.0)
    }

    fn processors(&self) -> f64 {
        self.processor.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-9)
    }
}

async fn row(api: &Running, etcd: &Running, writers: u64) {
    make_objects(&api.access, writers).await;
    let (mut ours, mut theirs) = (Score::default(), Score::default());
    for round in 1..=ROUNDS as u64 {
        round_of(Side::Api, api, writers, round, &mut ours).await;
        round_of(Side::Etcd, etcd, writers, round, &mut theirs).await;
    }
    let cells = |score: &mut Score| {
        let [p50, p99] = [0.5, 0.99].map(|share| percentile(&mut score.times, share));
        format!("{:>7.0} | {p50:>6.2} | {p99:>6.2}", score.rate())
    };
    println!(
        "{writers:>7} | {} | {} | {:>5.2} | {:.2}, {:.2}",
        cells(&mut ours),
        cells(&mut theirs),
        ours.rate() / theirs.rate().max(1e-9),
        ours.processors(),
        theirs.processors()
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
    let mut connections = Vec::new();
    for _ in 0..writers {
        connections.push(server.access.connect().await);
    }
    let (processor, start) = (server.processor(), Instant::now());
    let end = start + Duration::from_secs(SECONDS);
    let tasks: Vec<_> = (0..)
        .zip(connections)
        .map(|(writer, connection)| tokio::spawn(write(side, connection, writer, round, end)))
        .collect();
    let mut count = 0;
    for task in tasks {
        let times = task.await.expect("writers do not fail");
        count += times.len();
        score.times.extend(times);
    }
    score.elapsed += start.elapsed();
    score.processor += server.processor().saturating_sub(processor);
    score.rates.push(count as f64 / start.elapsed().as_secs_f64());
}

async fn write(
    side: Side,
    mut connection: Connection,
    writer: u64,
    round: u64,
    end: Instant,
) -> Vec<Duration> {
    let mut times = Vec::new();
    for step in 1.. {
        let start = Instant::now();
        if start >= end {
            break;
        }
        let number = step % OBJECTS;
        let body = slice(writer, number, round * 1_000_000 + step);
        let name = name(writer, number);
        match side {
            Side::Api => drop(connection.done("PUT", &format!("{SLICES}/{name}"), body).await),
            Side::Etcd => connection.put(&format!("/registry/endpointslices/default/{name}"), &body).await,
        }
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
