//! What is done to the cluster: single changes, a rolling update with a failover in its middle, the outage of a zone.

use std::time::Duration;

use tokio::task::JoinSet;

use super::fleet::{Fleet, FleetStatus, LEAN, WHOLE};
use super::fleet_client::{Received, SliceRequest, now, read};
use super::objects::{self, PodOf, SLICES};
use super::process::{self, cpu};
use super::{Cluster, Options};

const CHANGES: usize = 100;
const LISTS: u32 = 4;
/// Requests under way in bursts.
const WRITERS: usize = 32;
/// A burst is over when nodes have received nothing for so long. A leader that was killed is replaced after 15 s.
const QUIET: Duration = Duration::from_secs(30);
/// A single change is over when nodes have received nothing more for so long.
const SETTLED: Duration = Duration::from_millis(100);

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

/// What a scenario cost per change.
pub(crate) struct Figures {
    what: String,
    view: &'static str,
    nodes: f64,
    /// Per node.
    events: f64,
    bytes: f64,
    /// In milliseconds of CPU.
    api: f64,
    controllers: f64,
    fleet: f64,
    last_node: String,
}

pub(crate) async fn run(cluster: &mut Cluster, options: &Options, view: &'static str) -> Vec<Figures> {
    let version = objects::slice_version(&cluster.client).await;
    let mut fleet = Fleet::start(cluster, options, &version);
    let nodes = options.nodes as u64;
    while fleet.status().nodes < nodes {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Until all watches are open: each then gets one event.
    tokio::time::sleep(Duration::from_secs(3 + nodes / 500)).await;
    let mut figures = vec![single_changes(cluster, &mut fleet, options).await];
    if options.rolling > 0 {
        figures.push(rolling_update(cluster, &mut fleet, options).await);
        figures.push(zone_outage(cluster, &mut fleet, options).await);
    }
    figures.iter_mut().for_each(|figures| figures.view = view);
    figures
}

/// One pod's readiness at a time: from the API's answer until the last node has the slices.
async fn single_changes(cluster: &Cluster, fleet: &mut Fleet, options: &Options) -> Figures {
    let before = Usage::read(cluster, fleet);
    let mut times = Vec::with_capacity(CHANGES);
    for number in 0..CHANGES {
        let (pair, of, seen) = (number / 2, options.pods, fleet.status());
        let pod = PodOf { service: pair * 7919 % options.services, at: (pair * 37 + 3) % of, of };
        objects::set_ready(&cluster.client, pod, number % 2 == 1).await;
        let answered = now();
        let status = until_received(fleet, pod.zone(), &seen).await;
        times.push(Duration::from_nanos(status.last_at.saturating_sub(answered)));
    }
    let after = Usage::read(cluster, fleet);
    times.sort_unstable();
    let (p50, p99) = (times[CHANGES / 2], times[CHANGES * 99 / 100]);
    let last_node = format!("p50 {:.1} ms, p99 {:.1} ms", ms(p50), ms(p99));
    per_change(&before, &after, CHANGES as f64, "one pod's readiness".to_owned(), last_node)
}

/// Waits until all nodes of a zone have an event more, and no node receives another.
async fn until_received(fleet: &mut Fleet, zone: usize, seen: &FleetStatus) -> FleetStatus {
    let begin = now();
    loop {
        let status = fleet.status();
        let quiet = now().saturating_sub(status.last_at) > SETTLED.as_nanos() as u64;
        if status.least_events[zone] > seen.least_events[zone] && quiet {
            return status;
        }
        assert!(now() - begin < 120_000_000_000, "a change did not reach all nodes in two minutes");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Replaces pods, and kills the leader in the middle.
async fn rolling_update(cluster: &mut Cluster, fleet: &mut Fleet, options: &Options) -> Figures {
    let before = Usage::read(cluster, fleet);
    let of = options.pods;
    let pods = options.rolling.min(options.services * of);
    let half = pods / 2;
    // Pod by pod of a Service, as a Deployment does.
    let all: Vec<PodOf> =
        (0..pods).map(|number| PodOf { service: number / of, at: number % of, of }).collect();
    replace_all(cluster, &all[..half]).await;
    let used = cpu(cluster.leader.id());
    cluster.leader.kill();
    std::mem::swap(&mut cluster.leader, &mut cluster.standby);
    cluster.standby = process::controller(&cluster.folder.join("api.sock"), &options.controller_flags);
    let killed = now();
    replace_all(cluster, &all[half..]).await;
    let last = until_quiet(fleet).await;
    let mut after = Usage::read(cluster, fleet);
    after.controllers += used;
    let what = format!("rolling update of {pods} pods, per pod; the leader killed after half");
    let last_node =
        format!("{:.1} s after the leader was killed", seconds(last.last_at.saturating_sub(killed)));
    per_change(&before, &after, pods as f64, what, last_node)
}

async fn replace_all(cluster: &Cluster, pods: &[PodOf]) {
    let mut writers = JoinSet::new();
    for pod in pods.iter().copied() {
        if writers.len() >= WRITERS {
            writers.join_next().await.unwrap().unwrap();
        }
        let client = cluster.client.clone();
        writers.spawn(async move { objects::replace(&client, pod).await });
    }
    while let Some(written) = writers.join_next().await {
        written.unwrap();
    }
}

/// A third of the nodes end, and a third of the pods are not ready any more. Pods of the rolling update are left out.
async fn zone_outage(cluster: &Cluster, fleet: &mut Fleet, options: &Options) -> Figures {
    let Options { services, rolling, pods: of, .. } = *options;
    fleet.stop_zone();
    let before = Usage::read(cluster, fleet);
    let begin = now();
    let mut writers = JoinSet::new();
    let mut pods = 0;
    let replaced = rolling.div_ceil(of);
    for service in replaced..services {
        for pod in (0..of).map(|at| PodOf { service, at, of }).filter(|pod| pod.zone() == 0) {
            if writers.len() >= WRITERS {
                writers.join_next().await.unwrap().unwrap();
            }
            let client = cluster.client.clone();
            writers.spawn(async move { objects::set_ready(&client, pod, false).await });
            pods += 1;
        }
    }
    while let Some(written) = writers.join_next().await {
        written.unwrap();
    }
    let written = now();
    let last = until_quiet(fleet).await;
    let after = Usage::read(cluster, fleet);
    let nodes = after.status.nodes;
    let what = format!("outage of a zone, {pods} pods, per pod; {nodes} nodes are left");
    let last_node = format!(
        "{:.1} s after the first write, {:.1} s after the last",
        seconds(last.last_at.saturating_sub(begin)),
        seconds(last.last_at.saturating_sub(written)),
    );
    per_change(&before, &after, f64::from(pods), what, last_node)
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

fn per_change(before: &Usage, after: &Usage, changes: f64, what: String, last_node: String) -> Figures {
    let nodes = after.status.nodes as f64;
    let cpu = |after: Duration, before: Duration| ms(after.saturating_sub(before)) / changes;
    let received = |after: u64, before: u64| after.saturating_sub(before) as f64 / nodes / changes;
    Figures {
        what,
        view: "",
        nodes,
        events: received(after.status.events, before.status.events),
        bytes: received(after.status.bytes, before.status.bytes),
        api: cpu(after.api, before.api),
        controllers: cpu(after.controllers, before.controllers),
        fleet: cpu(after.fleet, before.fleet),
        last_node,
    }
}

pub(crate) fn print(all: &[Figures]) {
    println!(
        "\n| | slices | bytes per node | MB to all nodes | events per node | API, CPU | controllers, CPU | nodes, CPU | last node up to date |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for figures in all {
        let Figures { what, view, nodes, events, bytes, api, controllers, fleet, last_node } = figures;
        println!(
            "| {what} | {view} | {bytes:.0} | {:.2} | {events:.2} | {api:.2} ms ({:.1} us per node) | {controllers:.2} ms | {fleet:.2} ms | {last_node} |",
            bytes * nodes / 1e6,
            api * 1e3 / nodes,
        );
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}
