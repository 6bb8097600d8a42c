//! The stage: a process in user and network namespaces of its own, in which nodes and pods are namespaces.
//!
//! ```text
//!   pod ---- node ----+
//!   pod ---/          |        each line is a pair of veth interfaces, each box a network namespace;
//!                  fabric      the fabric is the namespace of this process and only passes packets on
//!   pod ---- node ----+
//! ```
//! It does what the director says on standard input, and ends when that does; then the kernel takes away all of it.

mod place;
mod process;
mod relay;
mod traffic;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use model::Family;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid};

use super::layout;
use super::protocol::{Answer, Numbered, Request, Restarted};
use place::{Place, ip, set};
use process::Process;
use traffic::{Loop, Server};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
/// How often processes are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Runs until standard input ends. The process must have one thread only.
pub fn run(api: &Path) -> Result<()> {
    enter()?;
    be_a_router()?;
    let mut stage = Stage { api: api.to_owned(), ..Stage::default() };
    let (say, hear) = mpsc::channel::<Numbered<Answer>>();
    let writer = std::thread::spawn(move || {
        let mut out = std::io::stdout().lock();
        for answer in hear {
            let Ok(line) = serde_json::to_string(&answer) else { return };
            if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
                return;
            }
        }
    });
    let (send, requests) = mpsc::channel::<Result<Numbered<Request>>>();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let request = line.map_err(anyhow::Error::from).and_then(|line| Ok(serde_json::from_str(&line)?));
            if send.send(request.context("reading a request")).is_err() {
                return;
            }
        }
    });
    loop {
        match requests.recv_timeout(CHECK_INTERVAL) {
            Ok(request) => stage.start(request?, &say),
            Err(RecvTimeoutError::Timeout) => stage.restart_processes(&say),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    stage.processes.values_mut().for_each(Process::end);
    drop((stage, say));
    let _ = writer.join();
    Ok(())
}

/// Into namespaces of our own: as ourselves in a user namespace, or as root without one.
fn enter() -> Result<()> {
    let (user, group) = (Uid::current(), Gid::current());
    let net = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS;
    match unshare(net | CloneFlags::CLONE_NEWUSER) {
        Ok(()) => {}
        Err(_) if user.is_root() => return unshare(net).context("making a network namespace as root"),
        Err(error) => bail!("{error}: this system does not let users make namespaces.\n{FORBIDDEN}"),
    }
    // The kernel wants the groups settled before it lets a user map one.
    let maps = [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("0 {user} 1")),
        ("gid_map", format!("0 {group} 1")),
    ];
    for (file, content) in maps {
        fs::write(format!("/proc/self/{file}"), content).with_context(|| format!("/proc/self/{file}"))?;
    }
    if let Err(error) = ip("link set lo up\n") {
        bail!("{error:#}\n{FORBIDDEN}");
    }
    Ok(())
}

const FORBIDDEN: &str = "\
Where namespaces of users are forbidden, the demo needs root: sudo zoneward demo
On Ubuntu this allows them until the next start: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0
On Debian: sudo sysctl kernel.unprivileged_userns_clone=1";

/// Lets this namespace pass packets on.
fn be_a_router() -> Result<()> {
    set("net/ipv4/ip_forward", "1")?;
    set("net/ipv6/conf/all/forwarding", "1")?;
    // Refusals are counted, so each has to be told.
    let _ = set("net/ipv4/icmp_ratelimit", "0");
    let _ = set("net/ipv6/icmp/ratelimit", "0");
    set("net/ipv4/conf/all/rp_filter", "0")?;
    set("net/ipv4/conf/default/rp_filter", "0")?;
    use_addresses_at_once()
}

/// An IPv6 address could not be used for a second while the kernel asks whether another has it.
fn use_addresses_at_once() -> Result<()> {
    set("net/ipv6/conf/all/accept_dad", "0")?;
    set("net/ipv6/conf/default/accept_dad", "0")
}

/// What is there.
#[derive(Default)]
struct Stage {
    nodes: BTreeMap<String, (u8, Place)>,
    pods: BTreeMap<String, Pod>,
    processes: BTreeMap<String, Process>,
    loops: BTreeMap<String, Loop>,
    /// The unix socket of the API.
    api: PathBuf,
    /// The API in the namespaces of nodes; the relays end when they are dropped.
    relays: Vec<Server>,
}

struct Pod {
    node: String,
    number: u8,
    place: Place,
    /// They end when they are dropped.
    _servers: [Server; 3],
}

impl Stage {
    /// Does what is asked. Connections take their time, so others are served meanwhile.
    fn start(&mut self, request: Numbered<Request>, say: &mpsc::Sender<Numbered<Answer>>) {
        let id = request.id;
        let reply = |answer: Result<Answer>| {
            let body = answer.unwrap_or_else(|error| Answer::Failed(format!("{error:#}")));
            // Nobody to hear it means that everything ends.
            let _ = say.send(Numbered { id, body });
        };
        match request.body {
            Request::Connect { from, to, count } => match self.pod(&from) {
                Ok(pod) => {
                    let say = say.clone();
                    pod.place.start(move || {
                        let body = Answer::Counted(traffic::connect(to, count));
                        let _ = say.send(Numbered { id, body });
                    });
                }
                Err(error) => reply(Err(error)),
            },
            other => reply(self.act(other)),
        }
    }

    fn act(&mut self, request: Request) -> Result<Answer> {
        let mut task = None;
        match request {
            Request::AddNode { name, number } => task = Some(self.add_node(name, number)?),
            Request::StartProcess { node, arguments, log } => {
                let process = Process::start(self.place(&node)?, arguments, log)?;
                task = Some(process.pid());
                if let Some(mut before) = self.processes.insert(node, process) {
                    before.end();
                }
            }
            Request::AddPod { name, node, zone, number } => {
                task = Some(self.add_pod(name, node, &zone, number)?)
            }
            Request::RemovePod { name } => self.remove_pod(&name)?,
            Request::StartLoop { from, to } => {
                let running = Loop::start(&self.pod(&from)?.place, to);
                self.loops.insert(from, running);
            }
            Request::StopLoop { from } => {
                let running = self.loops.remove(&from).with_context(|| format!("no loop from {from}"))?;
                return Ok(Answer::Counted(running.stop()));
            }
            // Answered by its pod's thread: see `start`.
            Request::Connect { .. } => {}
        }
        Ok(Answer::Done { task })
    }

    /// Starts again what has ended.
    fn restart_processes(&mut self, say: &mpsc::Sender<Numbered<Answer>>) {
        let Self { processes, nodes, pods, .. } = self;
        for (name, process) in processes {
            let place = nodes.get(name).map(|(_, place)| place).or(pods.get(name).map(|pod| &pod.place));
            let Some(place) = place.filter(|_| process.is_due()) else { continue };
            match process.restart(place) {
                Ok(how) => {
                    let restarted = Restarted { place: name.clone(), how, pid: process.pid() };
                    let _ = say.send(Numbered { id: 0, body: Answer::Restarted(restarted) });
                }
                Err(error) => eprintln!("{name}: {error:#}"),
            }
        }
    }

    fn pod(&self, name: &str) -> Result<&Pod> {
        self.pods.get(name).with_context(|| format!("no pod {name}"))
    }

    /// The namespace of a node or pod.
    fn place(&self, name: &str) -> Result<&Place> {
        match self.nodes.get(name) {
            Some((_, place)) => Ok(place),
            None => self.pod(name).map(|pod| &pod.place),
        }
    }

    fn add_node(&mut self, name: String, number: u8) -> Result<i32> {
        let place = Place::new()?;
        let thread = place.thread();
        let mut here =
            format!("link add n{number} type veth peer name eth0 netns {thread}\nlink set n{number} up\n");
        let mut there = "link set lo up\nlink set eth0 up\n".to_owned();
        for family in FAMILIES {
            let (fabric, node) = (layout::link(number, 1, family), layout::link(number, 2, family));
            let (bits, nodad) = match family {
                Family::V4 => (24, ""),
                Family::V6 => (64, " nodad"),
            };
            here += &format!("address add {fabric}/{bits} dev n{number}{nodad}\n");
            there += &format!("address add {node}/{bits} dev eth0{nodad}\nroute add default via {fabric}\n");
            let range = layout::nodes().into_iter().find(|n| n.number == number).map(|n| n.pod_range(family));
            let range = range.with_context(|| format!("no node {number} in the layout"))?;
            here += &format!("route add {range} via {node}\n");
        }
        // Before it has interfaces: they take over what holds for new ones.
        place.within(be_a_router)??;
        ip(&here)?;
        let api = self.api.clone();
        self.relays.push(place.within(move || {
            ip(&there)?;
            relay::start(api)
        })??);
        self.nodes.insert(name, (number, place));
        Ok(thread)
    }

    fn add_pod(&mut self, name: String, node: String, zone: &str, number: u8) -> Result<i32> {
        let (node_number, node_place) = self.nodes.get(&node).with_context(|| format!("no node {node}"))?;
        let place = Place::new()?;
        let thread = place.thread();
        let mut outside =
            format!("link add p{number} type veth peer name eth0 netns {thread}\nlink set p{number} up\n");
        let mut inside = "link set lo up\nlink set eth0 up\n".to_owned();
        for family in FAMILIES {
            let (gateway, pod) =
                (layout::pod(*node_number, 1, family), layout::pod(*node_number, number, family));
            let (bits, nodad) = match family {
                Family::V4 => (32, ""),
                Family::V6 => (128, " nodad"),
            };
            outside += &format!(
                "address add {gateway}/{bits} dev p{number}{nodad}\nroute add {pod}/{bits} dev p{number}\n"
            );
            inside += &format!(
                "address add {pod}/{bits} dev eth0{nodad}\nroute add {gateway}/{bits} dev eth0\nroute add default via {gateway} dev eth0\n"
            );
        }
        place.within(use_addresses_at_once)??;
        node_place.within(move || ip(&outside))??;
        let line = format!("{name} on {node} in {zone}\n");
        let api = self.api.clone();
        let servers = place.within(move || {
            ip(&inside)?;
            let [pod, http] =
                [layout::POD_PORT, layout::POD_HTTP_PORT].map(|port| Server::start(&line, port));
            anyhow::Ok([pod?, http?, relay::start(api)?])
        })??;
        self.pods.insert(name, Pod { node, number, place, _servers: servers });
        Ok(thread)
    }

    fn remove_pod(&mut self, name: &str) -> Result<()> {
        let pod = self.pods.remove(name).with_context(|| format!("no pod {name}"))?;
        let link = format!("link delete p{}\n", pod.number);
        match self.nodes.get(&pod.node) {
            Some((_, place)) => place.within(move || ip(&link))?,
            None => Ok(()),
        }
    }
}
