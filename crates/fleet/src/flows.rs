//! Flows of clients in the conntrack tables of nodes: invariants 10 (established TCP flows stay) and 14 (UDP flows to
//! endpoints that are gone end, others stay).
//!
//! Every so often a client of a node opens a connection: the node's kernel is evaluated, and the flow is entered into its
//! conntrack table, as the kernel would. Nothing but the node proxy and a reboot deletes entries.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::PoisonError;

use dataplane::backend::TracedVerdict;
use dataplane::conntrack::{ConntrackEntry, UDP};
use dataplane::nftables::trace::TracePath;
use model::random::Random;

use crate::counters::{CounterChecker, Traffic};
use crate::kernels::{TCP, open};
use crate::parties::Machine;
use crate::sabotage::Sabotage;
use crate::truth::Truth;
use crate::violation::BrokenInvariant;
use crate::workload::UDP_PORT;

type Checked = Result<(), BrokenInvariant>;

/// Mean time between two new flows in the whole cluster.
const OPEN_MS: usize = 150;
/// Flows of a node that are watched; no more are opened.
const MOST_FLOWS: usize = 200;

pub(crate) struct FlowChecker {
    random: Random,
    next_at: u64,
    next_port: u16,
    /// Flows of each machine that should be in its table.
    flows: BTreeMap<usize, BTreeMap<ConntrackEntry, OpenFlow>>,
    /// Starts of node proxies, and whether the last one programmed its rules.
    starts: BTreeMap<usize, (u64, bool)>,
    pub counters: CounterChecker,
    /// Clients wait.
    pub is_paused: bool,
    sabotage: Option<Sabotage>,
    pub opened: u64,
    pub ended: u64,
}

#[derive(Clone, Copy)]
struct OpenFlow {
    opened_at: u64,
    /// The start of the node proxy that had programmed its rules, if it had.
    start: Option<u64>,
}

impl FlowChecker {
    pub(crate) fn new(random: Random, sabotage: Option<Sabotage>) -> Self {
        let (flows, starts) = (BTreeMap::new(), BTreeMap::new());
        let counters = CounterChecker::default();
        Self {
            random,
            next_at: 0,
            next_port: 1_024,
            flows,
            starts,
            counters,
            is_paused: false,
            sabotage,
            opened: 0,
            ended: 0,
        }
    }

    /// The table of a machine is empty after a reboot.
    pub(crate) fn rebooted(&mut self, machine: usize) {
        self.flows.remove(&machine);
    }

    pub(crate) fn started(&mut self, machine: usize) {
        let (starts, has_programmed) = self.starts.entry(machine).or_default();
        *starts += 1;
        *has_programmed = false;
    }

    /// A node proxy programmed its rules.
    pub(crate) fn reported(&mut self, machine: usize) {
        self.starts.entry(machine).or_default().1 = true;
    }

    /// The start of a node proxy that has programmed its rules.
    fn programmed_start(&self, machine: usize) -> Option<u64> {
        self.starts.get(&machine).filter(|(_, has_programmed)| *has_programmed).map(|(start, _)| *start)
    }

    /// A client opens a connection, another sends on one or ends it, if it is time.
    pub(crate) fn open(&mut self, now: u64, machines: &[Machine], truth: &Truth) {
        if now < self.next_at || self.is_paused {
            return;
        }
        self.next_at = now + 1 + self.random.below(2 * OPEN_MS) as u64;
        let number = self.random.below(machines.len());
        let frontends: Vec<&(IpAddr, u16)> = truth.frontends.keys().collect();
        let Some((ip, port)) = self.random.pick(&frontends).copied() else { return };
        let protocol = if *port == UDP_PORT { UDP } else { TCP };
        self.open_flow(now, number, &machines[number], protocol, SocketAddr::new(*ip, *port), truth);
        let number = self.random.below(machines.len());
        self.use_flow(number, &machines[number], truth);
    }

    /// A client sends something, and ends every fourth connection.
    fn use_flow(&mut self, number: usize, machine: &Machine, truth: &Truth) {
        let Some(flows) = self.flows.get_mut(&number) else { return };
        let tcp: Vec<&ConntrackEntry> = flows.keys().filter(|entry| entry.protocol == TCP).collect();
        let Some(entry) = self.random.pick(&tcp).copied().cloned() else { return };
        let bytes = 40 + self.random.below(100_000) as u64;
        let mut accounts = machine.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        *accounts.bytes.entry(entry.clone()).or_default() += bytes;
        for service in truth.frontends.get(&(entry.dst.ip(), entry.dst.port())).into_iter().flatten() {
            self.counters.made(number, service, Traffic { connections: 0, bytes });
        }
        if self.random.below(4) == 0 {
            flows.remove(&entry);
            machine.conntrack.lock().unwrap_or_else(PoisonError::into_inner).entries.remove(&entry);
            accounts.end(&entry);
        }
    }

    fn open_flow(
        &mut self,
        opened_at: u64,
        number: usize,
        machine: &Machine,
        protocol: u8,
        to: SocketAddr,
        truth: &Truth,
    ) {
        let start = self.programmed_start(number);
        let flows = self.flows.entry(number).or_default();
        if flows.len() >= MOST_FLOWS {
            return;
        }
        self.next_port = self.next_port.checked_add(1).unwrap_or(1_024);
        let client = SocketAddr::new(IpAddr::from([10, 244, 255, 250]), self.next_port);
        let mut faulty = machine.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(evaluation) = open(&faulty.kernel, machine, protocol, client, to) else { return };
        let paths: Vec<&TracePath> =
            evaluation.paths.iter().filter(|path| path.verdict == TracedVerdict::Dnat).collect();
        let Some(path) = self.random.pick(&paths).copied() else { return };
        if self.sabotage != Some(Sabotage::MissedConnections) {
            faulty.kernel.count(path);
        }
        let (src, dst, reply_src, reply_dst) = (client, to, path.destination, client);
        let entry = ConntrackEntry { protocol, src, dst, reply_src, reply_dst, id: None };
        self.opened += 1;
        flows.insert(entry.clone(), OpenFlow { opened_at, start });
        let bytes = 40 + self.random.below(2_000) as u64;
        for service in truth.frontends.get(&(to.ip(), to.port())).into_iter().flatten() {
            self.counters.made(number, service, Traffic { connections: 1, bytes });
        }
        let mut accounts = machine.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        accounts.bytes.insert(entry.clone(), bytes);
        machine.conntrack.lock().unwrap_or_else(PoisonError::into_inner).entries.insert(entry);
    }

    /// After a node proxy ran: what it deleted had to go.
    pub(crate) fn check(&mut self, number: usize, machine: &Machine, truth: &Truth) -> Checked {
        self.counters.check(number, machine)?;
        let Some(flows) = self.flows.get_mut(&number) else { return Ok(()) };
        let mut conntrack = machine.conntrack.lock().unwrap_or_else(PoisonError::into_inner);
        let gone: Vec<ConntrackEntry> =
            flows.keys().filter(|entry| !conntrack.entries.contains(entry)).cloned().collect();
        for entry in gone {
            if self.sabotage == Some(Sabotage::RevivedFlows) {
                conntrack.entries.insert(entry);
                continue;
            }
            flows.remove(&entry);
            machine.accounts.lock().unwrap_or_else(PoisonError::into_inner).end(&entry);
            self.ended += 1;
            let name = &machine.name;
            if entry.protocol == TCP {
                return Err(BrokenInvariant::new(10, format!("{name} ends a TCP connection: {entry:?}")));
            }
            if truth.udp.always_served(entry.dst, entry.reply_src) {
                let text = format!("{name} ends a UDP flow whose endpoint has always served: {entry:?}");
                return Err(BrokenInvariant::new(14, text));
            }
        }
        Ok(())
    }

    /// When everything is as planned: no flow goes to an endpoint that is gone.
    ///
    /// A node proxy that starts, and has not synced, before a Service is deleted does not know its address: as with
    /// kube-proxy, flows to it stay until they time out. So flows to addresses that no Service has are checked only if the
    /// process that programmed their rules still runs.
    pub(crate) fn check_settled(&self, machines: &[Machine], truth: &Truth) -> Checked {
        for (number, flows) in &self.flows {
            let start = self.programmed_start(*number);
            for (entry, flow) in flows.iter().filter(|(entry, _)| entry.protocol == UDP) {
                let is_stale = match truth.udp.serving(entry.dst) {
                    Some(serving) => !serving.contains(&entry.reply_src),
                    None => flow.start.is_some() && start == flow.start,
                };
                if is_stale {
                    let name = &machines[*number].name;
                    let text = format!(
                        "{name} keeps a UDP flow of {} ms to an endpoint that is gone: {entry:?}",
                        flow.opened_at
                    );
                    return Err(BrokenInvariant::new(14, text));
                }
            }
        }
        Ok(())
    }
}
