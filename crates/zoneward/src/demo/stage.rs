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
mod traffic;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use anyhow::{Context, Result, bail};
use model::Family;
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid};

use super::layout;
use super::protocol::{Answer, Counts, Numbered, Request};
use place::{Place, ip, set};
use traffic::{Loop, Server};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// Runs until standard input ends. The process must have one thread only.
pub fn run() -> Result<()> {
    enter()?;
    be_a_router()?;
    let mut stage = Stage::default();
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
    for line in std::io::stdin().lock().lines() {
        let request: Numbered<Request> =
            serde_json::from_str(&line.context("reading what to do")?).context("reading what to do")?;
        stage.start(request, &say);
    }
    for child in stage.processes.values_mut() {
        end(child);
    }
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
    processes: BTreeMap<String, Child>,
    loops: BTreeMap<String, Loop>,
}

struct Pod {
    node: String,
    number: u8,
    place: Place,
    /// They end when they are dropped.
    _servers: [Server; 2],
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
            Request::Ask { from, to, count } => match self.pod(&from) {
                Ok(pod) => {
                    let say = say.clone();
                    pod.place.start(move || {
                        let body = Answer::Counted(traffic::ask(to, count));
                        let _ = say.send(Numbered { id, body });
                    });
                }
                Err(error) => reply(Err(error)),
            },
            other => reply(self.act(other)),
        }
    }

    fn act(&mut self, request: Request) -> Result<Answer> {
        let mut thread = None;
        match request {
            Request::AddNode { name, number } => thread = Some(self.add_node(name, number)?),
            Request::StartProcess { node, arguments, log } => {
                let log = fs::File::create(&log).with_context(|| format!("{}", log.display()))?;
                let program = std::env::current_exe().context("finding our own program")?;
                let mut command = Command::new(program);
                command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
                let child =
                    self.place(&node)?.within(move || command.spawn())?.context("starting a process")?;
                if let Some(mut before) = self.processes.insert(node, child) {
                    end(&mut before);
                }
            }
            Request::KillProcess { node } => {
                let child = self.processes.get_mut(&node).with_context(|| format!("no process on {node}"))?;
                child.kill().context("killing a process")?;
                child.wait().context("waiting for a process")?;
            }
            Request::AddPod { name, node, number } => thread = Some(self.add_pod(name, node, number)?),
            Request::RemovePod { name } => self.remove_pod(&name)?,
            Request::StartLoop { from, to } => {
                let running = Loop::start(&self.pod(&from)?.place, to);
                self.loops.insert(from, running);
            }
            Request::StopLoop { from } => {
                let running = self.loops.remove(&from).with_context(|| format!("no loop from {from}"))?;
                return Ok(Answer::Counted(running.stop()));
            }
            Request::Connect { .. } | Request::Ask { .. } => return Ok(Answer::Counted(Counts::default())),
        }
        Ok(Answer::Done { thread })
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
        place.within(move || ip(&there))??;
        self.nodes.insert(name, (number, place));
        Ok(thread)
    }

    fn add_pod(&mut self, name: String, node: String, number: u8) -> Result<i32> {
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
        let words = name.clone();
        let server = place.within(move || {
            ip(&inside)?;
            let http = Server::start_http(&words, layout::POD_HTTP_PORT)?;
            anyhow::Ok([Server::start(&words, layout::POD_PORT)?, http])
        })??;
        self.pods.insert(name, Pod { node, number, place, _servers: server });
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

/// Asks a process to end, and insists after two seconds.
fn end(child: &mut Child) {
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    match nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM) {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(_) => drop(child.kill()),
    }
    for _ in 0..40 {
        if matches!(child.try_wait(), Ok(Some(_)) | Err(_)) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let _ = child.kill();
    let _ = child.wait();
}
