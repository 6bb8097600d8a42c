//! What is done to the cluster: single changes, a rolling update with a failover in its middle, the outage of a zone.

use std::time::Duration;

use tokio::task::JoinSet;

use super::fleet::{Fleet, FleetStatus, LEAN, WHOLE};
use super::fleet_client::{Received, SliceRequest, now, read};
use super::objects::{self, PODS, SLICES};
use super::process::{self, cpu};
use super::{Cluster, Options};

const CHANGES: usize = 100;
const LISTS: u32 = 4;
/// Requests under way in bursts.
const WRITERS: usize = 32;
/// A burst is over when nodes have received nothing for so long. A leader that was killed is replaced after 15 s.
const QUIET: Duration = Duration::from_secs(20);

/// What a scenario used.
struct Usage {
    api: Duration,
    controllers: Duration,
    fleet: Duration,
    status: FleetStatus,
}

impl Usage {
    fn read(cluster: &Cluster, fleet: &mut Fleet) -> Usage {
        let controllers = cpu(cluster.leader.id()) + cpu(cluster.standby.id());
        let (status, used) = (fleet.status(), fleet.cpu());
        Usage { api: cpu(cluster.api.id()), controllers, fleet: used, status }
    }
}

/// A full list of slices, as a node reads it at its start.
pub(crate) async fn lists(cluster: &Cluster) {
    println!("| list of all slices | MB | API, CPU-ms |");
    println!("|---|---|---|");
    for (what, accept) in [("whole objects", WHOLE), ("without managedFields", LEAN)] {
        let request =
            SliceRequest { socket: cluster.folder.join("api.sock"), uri: SLICES.to_owned(), accept };
        let (received, before) = (Received::default(), cpu(cluster.api.id()));
        for _ in 0..LISTS {
            read(&request, &received).await;
        }
        let bytes = received.bytes.into_inner() as f64 / f64::from(LISTS);
        let used = (cpu(cluster.api.id()) - before) / LISTS;
        println!("| {what} | {:.1} | {:.0} |", bytes / 1e6, used.as_secs_f64() * 1e3);
    }
}

pub(crate) async fn run(cluster: &mut Cluster, options: &Options) {
    let version = objects::slice_version(&cluster.client).await;
    let mut fleet = Fleet::start(cluster, options, &version);
    let nodes = options.nodes as u64;
    while fleet.status().nodes < nodes {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Until all watches are open: each then gets one event.
    tokio::time::sleep(Duration::from_secs(3)).await;
    single_changes(cluster, &mut fleet, options.services).await;
    rolling_update(cluster, &mut fleet, options).await;
    zone_outage(cluster, &mut fleet, options).await;
}

/// One pod's readiness at a time: from the API's answer until the last node has the slice.
async fn single_changes(cluster: &Cluster, fleet: &mut Fleet, services: usize) {
    let before = Usage::read(cluster, fleet);
    let mut times = Vec::with_capacity(CHANGES);
    for number in 0..CHANGES {
        let (service, seen) = (number / 2 * 7919 % services, fleet.status());
        objects::set_ready(&cluster.client, service, 3, number % 2 == 1).await;
        let answered = now();
        let status = until_events(fleet, seen.least_events + 1).await;
        times.push(Duration::from_nanos(status.last_at.saturating_sub(answered)));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let after = Usage::read(cluster, fleet);
    times.sort_unstable();
    let (p50, p99) = (times[CHANGES / 2], times[CHANGES * 99 / 100]);
    println!("\n{CHANGES} changes of one pod, one by one, {} nodes:", after.status.nodes);
    println!("  until the last node has it: p50 {:.1} ms, p99 {:.1} ms", ms(p50), ms(p99));
    per_change(&before, &after, CHANGES as f64, "change");
}

async fn until_events(fleet: &mut Fleet, events: u64) -> FleetStatus {
    let begin = now();
    loop {
        let status = fleet.status();
        if status.least_events >= events {
            return status;
        }
        assert!(now() - begin < 120_000_000_000, "a change did not reach all nodes in two minutes");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Replaces pods, and kills the leader in the middle.
async fn rolling_update(cluster: &mut Cluster, fleet: &mut Fleet, options: &Options) {
    let before = Usage::read(cluster, fleet);
    let begin = now();
    let pods = options.rolling.min(options.services * PODS);
    let half = pods / 2;
    // Pod by pod of a Service, as a Deployment does.
    let all: Vec<(usize, usize)> = (0..pods).map(|number| (number / PODS, number % PODS)).collect();
    replace_all(cluster, &all[..half]).await;
    let used = cpu(cluster.leader.id());
    cluster.leader.kill();
    std::mem::swap(&mut cluster.leader, &mut cluster.standby);
    cluster.standby = process::controller(&cluster.folder.join("api.sock"), &options.controller_flags);
    let killed = now();
    replace_all(cluster, &all[half..]).await;
    let written = now();
    let last = until_quiet(fleet).await;
    let mut after = Usage::read(cluster, fleet);
    after.controllers += used;
    println!("\nrolling update of {pods} pods, the leader killed after half of them:");
    println!(
        "  written in {:.1} s; the last node was up to date {:.1} s after the leader was killed, {:.1} s after the first write",
        seconds(written - begin),
        seconds(last.last_at.saturating_sub(killed)),
        seconds(last.last_at.saturating_sub(begin)),
    );
    per_change(&before, &after, pods as f64, "pod");
}

async fn replace_all(cluster: &Cluster, pods: &[(usize, usize)]) {
    let mut writers = JoinSet::new();
    for (service, pod) in pods.iter().copied() {
        if writers.len() >= WRITERS {
            writers.join_next().await.unwrap().unwrap();
        }
        let client = cluster.client.clone();
        writers.spawn(async move { objects::replace(&client, service, pod).await });
    }
    while let Some(written) = writers.join_next().await {
        written.unwrap();
    }
}

/// A third of the nodes end, and a third of the pods are not ready any more. Pods of the rolling update are left out.
async fn zone_outage(cluster: &Cluster, fleet: &mut Fleet, options: &Options) {
    let Options { services, rolling, .. } = *options;
    fleet.stop_zone();
    let before = Usage::read(cluster, fleet);
    let begin = now();
    let mut writers = JoinSet::new();
    let mut pods = 0;
    let replaced = rolling.div_ceil(PODS);
    for service in replaced..services {
        for pod in (0..PODS).filter(|pod| objects::is_in_first_zone(*pod)) {
            if writers.len() >= WRITERS {
                writers.join_next().await.unwrap().unwrap();
            }
            let client = cluster.client.clone();
            writers.spawn(async move { objects::set_ready(&client, service, pod, false).await });
            pods += 1;
        }
    }
    while let Some(written) = writers.join_next().await {
        written.unwrap();
    }
    let written = now();
    let last = until_quiet(fleet).await;
    let after = Usage::read(cluster, fleet);
    println!(
        "\noutage of a zone: {pods} pods of {} Services, {} nodes are left:",
        services - replaced,
        after.status.nodes
    );
    println!(
        "  written in {:.1} s; the last node was up to date {:.1} s after the first write",
        seconds(written - begin),
        seconds(last.last_at.saturating_sub(begin)),
    );
    per_change(&before, &after, f64::from(pods), "pod");
}

/// Waits until nodes receive nothing more.
async fn until_quiet(fleet: &mut Fleet) -> FleetStatus {
    loop {
        let status = fleet.status();
        if now().saturating_sub(status.last_at) > QUIET.as_nanos() as u64 {
            return status;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

fn per_change(before: &Usage, after: &Usage, changes: f64, unit: &str) {
    let nodes = after.status.nodes as f64;
    let events = (after.status.events.saturating_sub(before.status.events)) as f64 / nodes;
    let bytes = (after.status.bytes.saturating_sub(before.status.bytes)) as f64 / nodes;
    println!(
        "  per {unit} and node: {:.2} events, {:.0} bytes; per event {:.0} bytes",
        events / changes,
        bytes / changes,
        bytes / events
    );
    let of = |after: Duration, before: Duration| ms(after.saturating_sub(before)) / changes;
    let (api, fleet) = (of(after.api, before.api), of(after.fleet, before.fleet));
    println!(
        "  CPU per {unit}: API {api:.2} ms ({:.1} us per node), controllers {:.2} ms, nodes {fleet:.2} ms ({:.1} us per node)",
        api * 1e3 / nodes,
        of(after.controllers, before.controllers),
        fleet * 1e3 / nodes,
    );
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}
