//! The namespace host: a process in its own user and network namespaces, which creates a network namespace per node
//! and pod.
//!
//! ```text
//!   pod ---- node ----+
//!   pod ---/          |        each line is a pair of veth interfaces, each box a network namespace;
//!                  fabric      the fabric is the namespace of this process and only forwards packets
//!   pod ---- node ----+
//! ```
//! It serves requests on standard input and exits at end of file; the kernel then removes all namespaces.

mod echo_server;
mod network_namespace;
mod supervised_process;

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
use super::protocol::{HostMessage, NamespaceRequest, NamespaceResponse, ProcessRestart};
use echo_server::{ConnectionLoop, TcpServer};
use network_namespace::{NetworkNamespace, ip, set_sysctl};
use supervised_process::SupervisedProcess;

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
/// How often processes are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Runs until standard input ends. The process must have one thread only.
pub(crate) fn run(api: &Path) -> Result<()> {
    enter()?;
    enable_forwarding()?;
    let mut host = NamespaceHost { api: api.to_owned(), ..NamespaceHost::default() };
    let (responses, outbox) = mpsc::channel::<HostMessage<NamespaceResponse>>();
    #[allow(clippy::disallowed_methods, reason = "blocking standard output of this process")]
    let writer = std::thread::spawn(move || {
        let mut out = std::io::stdout().lock();
        for response in outbox {
            let Ok(line) = serde_json::to_string(&response) else { return };
            if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
                return;
            }
        }
    });
    let (send, requests) = mpsc::channel::<Result<HostMessage<NamespaceRequest>>>();
    #[allow(clippy::disallowed_methods, reason = "blocking standard input of this process")]
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
            Ok(request) => host.start(request?, &responses),
            Err(RecvTimeoutError::Timeout) => host.restart_processes(&responses),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    host.processes.values_mut().for_each(SupervisedProcess::stop);
    drop((host, responses));
    let _ = writer.join();
    Ok(())
}

/// Enters new namespaces: as this user in a user namespace, or as root without one.
fn enter() -> Result<()> {
    let (user, group) = (Uid::current(), Gid::current());
    let net = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS;
    match unshare(net | CloneFlags::CLONE_NEWUSER) {
        Ok(()) => {}
        Err(_) if user.is_root() => return unshare(net).context("making a network namespace as root"),
        Err(error) => bail!("{error}: unprivileged user namespaces are disabled.\n{FORBIDDEN}"),
    }
    // The kernel requires setgroups to be denied before an unprivileged gid_map.
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
Without unprivileged user namespaces, the demo requires root: sudo zoneward demo
To enable them on Ubuntu until the next boot: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0
On Debian: sudo sysctl kernel.unprivileged_userns_clone=1";

/// Enables forwarding in this namespace.
fn enable_forwarding() -> Result<()> {
    set_sysctl("net/ipv4/ip_forward", "1")?;
    set_sysctl("net/ipv6/conf/all/forwarding", "1")?;
    // Refused connections are counted, so no ICMP error may be suppressed.
    let _ = set_sysctl("net/ipv4/icmp_ratelimit", "0");
    let _ = set_sysctl("net/ipv6/icmp/ratelimit", "0");
    set_sysctl("net/ipv4/conf/all/rp_filter", "0")?;
    set_sysctl("net/ipv4/conf/default/rp_filter", "0")?;
    use_addresses_at_once()
}

/// An IPv6 address could not be used for a second while the kernel asks whether another has it.
fn use_addresses_at_once() -> Result<()> {
    set_sysctl("net/ipv6/conf/all/accept_dad", "0")?;
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")
}

/// What is there.
#[derive(Default)]
struct NamespaceHost {
    nodes: BTreeMap<String, (u8, NetworkNamespace)>,
    pods: BTreeMap<String, PodNamespace>,
    processes: BTreeMap<String, SupervisedProcess>,
    loops: BTreeMap<String, ConnectionLoop>,
    /// The unix socket of the API.
    api: PathBuf,
    /// Relays to the API in the namespaces of nodes, stopped on drop.
    relays: Vec<TcpServer>,
}

struct PodNamespace {
    node: String,
    number: u8,
    namespace: NetworkNamespace,
    /// Stopped on drop.
    _servers: [TcpServer; 3],
}

impl NamespaceHost {
    /// Connections run on the thread of their pod, so that other requests are served meanwhile.
    fn start(
        &mut self,
        request: HostMessage<NamespaceRequest>,
        responses: &mpsc::Sender<HostMessage<NamespaceResponse>>,
    ) {
        let id = request.id;
        let reply = |result: Result<NamespaceResponse>| {
            let body = result.unwrap_or_else(|error| NamespaceResponse::Failed(format!("{error:#}")));
            // Fails only during shutdown.
            let _ = responses.send(HostMessage { id, body });
        };
        match request.body {
            NamespaceRequest::Connect { from, to, count } => match self.pod(&from) {
                Ok(pod) => {
                    let responses = responses.clone();
                    pod.namespace.start(move || {
                        let body = NamespaceResponse::Counted(echo_server::connect(to, count));
                        let _ = responses.send(HostMessage { id, body });
                    });
                }
                Err(error) => reply(Err(error)),
            },
            other => reply(self.handle(other)),
        }
    }

    fn handle(&mut self, request: NamespaceRequest) -> Result<NamespaceResponse> {
        let mut task = None;
        match request {
            NamespaceRequest::AddNode { name, number } => task = Some(self.add_node(name, number)?),
            NamespaceRequest::StartProcess { namespace, program, arguments, log } => {
                let process = SupervisedProcess::start(self.namespace(&namespace)?, program, arguments, log)?;
                task = Some(process.pid());
                if let Some(mut previous) = self.processes.insert(namespace, process) {
                    previous.stop();
                }
            }
            NamespaceRequest::StopProcess { namespace } => {
                if let Some(mut process) = self.processes.remove(&namespace) {
                    process.stop();
                }
            }
            NamespaceRequest::AddPod { name, node, zone, number } => {
                task = Some(self.add_pod(name, node, &zone, number)?)
            }
            NamespaceRequest::RemovePod { name } => self.remove_pod(&name)?,
            NamespaceRequest::StartLoop { from, to } => {
                let running = ConnectionLoop::start(&self.pod(&from)?.namespace, to);
                self.loops.insert(from, running);
            }
            NamespaceRequest::StopLoop { from } => {
                let running =
                    self.loops.remove(&from).with_context(|| format!("no connection loop from {from}"))?;
                return Ok(NamespaceResponse::Counted(running.stop()));
            }
            // Served by the thread of its pod: see `start`.
            NamespaceRequest::Connect { .. } => {}
        }
        Ok(NamespaceResponse::Done { task })
    }

    fn restart_processes(&mut self, responses: &mpsc::Sender<HostMessage<NamespaceResponse>>) {
        let Self { processes, nodes, pods, .. } = self;
        for (name, process) in processes {
            let namespace =
                nodes.get(name).map(|(_, namespace)| namespace).or(pods.get(name).map(|pod| &pod.namespace));
            let Some(namespace) = namespace.filter(|_| process.is_restart_due()) else { continue };
            match process.restart(namespace) {
                Ok(status) => {
                    let restarted = ProcessRestart { namespace: name.clone(), status, pid: process.pid() };
                    let _ =
                        responses.send(HostMessage { id: 0, body: NamespaceResponse::Restarted(restarted) });
                }
                Err(error) => eprintln!("{name}: {error:#}"),
            }
        }
    }

    fn pod(&self, name: &str) -> Result<&PodNamespace> {
        self.pods.get(name).with_context(|| format!("no pod {name}"))
    }

    fn namespace(&self, name: &str) -> Result<&NetworkNamespace> {
        match self.nodes.get(name) {
            Some((_, namespace)) => Ok(namespace),
            None => self.pod(name).map(|pod| &pod.namespace),
        }
    }

    fn add_node(&mut self, name: String, number: u8) -> Result<i32> {
        let namespace = NetworkNamespace::new()?;
        let thread = namespace.thread();
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
            let range = layout::nodes().into_iter().find(|n| n.number == number).map(|n| n.pod_cidr(family));
            let range = range.with_context(|| format!("no node {number} in the layout"))?;
            here += &format!("route add {range} via {node}\n");
        }
        // Before interfaces exist: they inherit these settings.
        namespace.within(enable_forwarding)??;
        ip(&here)?;
        let api = self.api.clone();
        self.relays.push(namespace.within(move || {
            ip(&there)?;
            echo_server::start_relay(api)
        })??);
        self.nodes.insert(name, (number, namespace));
        Ok(thread)
    }

    fn add_pod(&mut self, name: String, node: String, zone: &str, number: u8) -> Result<i32> {
        let (node_number, node_namespace) =
            self.nodes.get(&node).with_context(|| format!("no node {node}"))?;
        let namespace = NetworkNamespace::new()?;
        let thread = namespace.thread();
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
        namespace.within(use_addresses_at_once)??;
        node_namespace.within(move || ip(&outside))??;
        let line = format!("{name} on {node} in {zone}\n");
        let api = self.api.clone();
        let servers = namespace.within(move || {
            ip(&inside)?;
            let [pod, http] =
                [layout::POD_PORT, layout::POD_HTTP_PORT].map(|port| TcpServer::start(&line, port));
            anyhow::Ok([pod?, http?, echo_server::start_relay(api)?])
        })??;
        self.pods.insert(name, PodNamespace { node, number, namespace, _servers: servers });
        Ok(thread)
    }

    fn remove_pod(&mut self, name: &str) -> Result<()> {
        let pod = self.pods.remove(name).with_context(|| format!("no pod {name}"))?;
        let link = format!("link delete p{}\n", pod.number);
        match self.nodes.get(&pod.node) {
            Some((_, namespace)) => namespace.within(move || ip(&link))?,
            None => Ok(()),
        }
    }
}
