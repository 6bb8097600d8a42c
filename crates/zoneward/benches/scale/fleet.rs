//! A process of simulated nodes. On its standard input: `status` prints what they have received, `stop` ends the nodes of
//! the first zone.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::task::JoinHandle;

use super::fleet_client::{Received, SliceRequest, read};
use super::objects::{SLICES, ZONES, zone};
use super::process::{Running, role};
use super::{Cluster, Options};

const ARGS: &str = "ZONEWARD_BENCH_FLEET";
/// Nodes of one process.
const PER_PROCESS: usize = 2_000;
pub(crate) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf;drop=metadata.managedFields";
pub(crate) const LEAN: &str = "application/json;drop=metadata.managedFields";
pub(crate) const WHOLE: &str = "application/json";

/// What all nodes that are left have received.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FleetStatus {
    pub(crate) nodes: u64,
    /// Of the node with the fewest, by zone.
    pub(crate) least_events: [u64; ZONES],
    pub(crate) events: u64,
    pub(crate) bytes: u64,
    pub(crate) last_at: u64,
}

impl FleetStatus {
    fn add(self, other: FleetStatus) -> FleetStatus {
        FleetStatus {
            nodes: self.nodes + other.nodes,
            least_events: std::array::from_fn(|zone| self.least_events[zone].min(other.least_events[zone])),
            events: self.events + other.events,
            bytes: self.bytes + other.bytes,
            last_at: self.last_at.max(other.last_at),
        }
    }
}

/// All fleet processes.
pub(crate) struct Fleet {
    processes: Vec<(Running, ChildStdin, BufReader<ChildStdout>)>,
}

impl Fleet {
    /// Starts nodes whose watches begin at a version, as after a restart of the API server.
    pub(crate) fn start(cluster: &Cluster, options: &Options, version: &str) -> Fleet {
        let selectors = match options.selectors.is_empty() {
            true => "!service.kubernetes.io/headless".to_owned(),
            false => options.selectors.join("\n"),
        };
        let numbers: Vec<usize> = (0..options.nodes).collect();
        let start = |nodes: &[usize]| {
            let socket = cluster.folder.join("api.sock");
            let args = [
                socket.to_str().unwrap(),
                version,
                options.accept,
                &nodes[0].to_string(),
                &nodes.len().to_string(),
            ];
            let mut child =
                role("fleet").env(ARGS, format!("{}\n{selectors}", args.join("\n"))).spawn().unwrap();
            let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
            (Running(child), stdin, BufReader::new(stdout))
        };
        Fleet { processes: numbers.chunks(PER_PROCESS).map(start).collect() }
    }

    pub(crate) fn cpu(&self) -> std::time::Duration {
        self.processes.iter().map(|(running, ..)| super::process::cpu(running.id())).sum()
    }

    pub(crate) fn status(&mut self) -> FleetStatus {
        self.ask("status")
    }

    /// Ends the nodes of the first zone; they do not count any more.
    pub(crate) fn stop_zone(&mut self) -> FleetStatus {
        self.ask("stop")
    }

    fn ask(&mut self, command: &str) -> FleetStatus {
        let none = FleetStatus { least_events: [u64::MAX; ZONES], ..FleetStatus::default() };
        self.processes.iter_mut().fold(none, |sum, (_, stdin, stdout)| {
            writeln!(stdin, "{command}").unwrap();
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            let words: Vec<u64> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
            let [nodes, events, bytes, last_at, least @ ..] = &words[..] else { panic!("{line}") };
            let (nodes, events, bytes, last_at) = (*nodes, *events, *bytes, *last_at);
            let least_events = least.try_into().unwrap();
            sum.add(FleetStatus { nodes, least_events, events, bytes, last_at })
        })
    }
}

struct SimulatedNode {
    number: usize,
    received: Arc<Received>,
    watches: Vec<JoinHandle<()>>,
}

/// The process itself.
pub(crate) async fn run() {
    let args = std::env::var(ARGS).unwrap();
    let mut args = args.lines();
    let mut next = || args.next().unwrap().to_owned();
    let (socket, version, accept) = (next(), next(), next());
    let (first, count): (usize, usize) = (next().parse().unwrap(), next().parse().unwrap());
    let accept = [PROTOBUF, LEAN, WHOLE].into_iter().find(|known| *known == accept).unwrap();
    let selectors: Vec<String> = args.map(str::to_owned).collect();
    let start = |number: usize| {
        let received = Arc::new(Received::default());
        let watches = selectors.iter().map(|selector| {
            let selector = encoded(&selector.replace("{zone}", &zone(number)));
            let uri = format!("{SLICES}?watch=true&resourceVersion={version}&labelSelector={selector}");
            let request = SliceRequest { socket: Path::new(&socket).to_owned(), uri, accept };
            let received = received.clone();
            tokio::spawn(async move { read(&request, &received).await })
        });
        SimulatedNode { number, watches: watches.collect(), received: received.clone() }
    };
    let mut nodes: Vec<SimulatedNode> = (first..first + count).map(start).collect();
    let (sender, mut commands) = tokio::sync::mpsc::channel(1);
    std::thread::spawn(move || {
        std::io::stdin().lines().map_while(Result::ok).try_for_each(|line| sender.blocking_send(line))
    });
    while let Some(command) = commands.recv().await {
        if command == "stop" {
            nodes.retain(|node| {
                let stays = node.number % ZONES != 0;
                node.watches.iter().filter(|_| !stays).for_each(JoinHandle::abort);
                stays
            });
        }
        let of = |value: fn(&Received) -> u64| nodes.iter().map(move |node| value(&node.received));
        let mut least = [u64::MAX; ZONES];
        for node in &nodes {
            let zone = &mut least[node.number % ZONES];
            *zone = (*zone).min(node.received.events.load(Ordering::Acquire));
        }
        println!(
            "{} {} {} {} {}",
            nodes.len(),
            of(|received| received.events.load(Ordering::Acquire)).sum::<u64>(),
            of(|received| received.bytes.load(Ordering::Relaxed)).sum::<u64>(),
            of(|received| received.last_at.load(Ordering::Relaxed)).max().unwrap_or(0),
            least.map(|events| events.to_string()).join(" "),
        );
    }
}

/// A selector in a query.
fn encoded(selector: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    selector.bytes().map(byte).collect()
}
