//! Counts of connections and bytes on their way from the kernels of nodes to the ledger: invariant 17.
//!
//! ```text
//! clients -> counters of rules, conntrack of a machine -> node proxy -> reports, some lost -> ledger of the leader
//!    \---------------- made, by node proxy and Service ----- compared with ----/----------------/
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, anyhow};
use bytes::Bytes;
use cluster::admin_server::{AdminPage, AdminPost};
use dataplane::conntrack::{AccountedEntry, ConntrackEntry, DumpStatus};
use dataplane::nfnetlink::NetlinkError;
use dataplane::nftables::apply::{ConnectionCount, RulesetReadError};
use http::StatusCode;
use insight::ledger::{TrafficOwner, TrafficReply, TrafficReport, TrafficRow, ZonePairTraffic};
use insight::traffic_ledger::SharedLedger;
use insight::traffic_reporter::ReportChannel;
use model::Family;
use node::traffic::{NodeTraffic, TrafficKernel};
use tokio::sync::{oneshot, watch};

use crate::parties::Machine;
use crate::truth::Truth;
use crate::violation::BrokenInvariant;

type Checked = Result<(), BrokenInvariant>;

/// What the kernel of a machine counts of its flows.
#[derive(Default)]
pub struct FlowAccounts {
    /// Bytes of open flows.
    pub bytes: BTreeMap<ConntrackEntry, u64>,
    ended: Vec<AccountedEntry>,
    /// Events of ended flows were lost since they were read.
    has_lost: bool,
}

impl FlowAccounts {
    /// A flow ended, and its event is sent.
    pub fn end(&mut self, entry: &ConntrackEntry) {
        let bytes = self.bytes.remove(entry);
        self.ended.push(AccountedEntry { entry: entry.clone(), bytes });
    }

    /// The receive buffer of events overflows.
    pub fn lose_events(&mut self) {
        self.ended.clear();
        self.has_lost = true;
    }

    /// No node proxy listens.
    pub fn forget_events(&mut self) {
        self.ended.clear();
        self.has_lost = false;
    }
}

/// The counters of a machine, as its node proxy reads them.
pub(crate) struct MachineCounters(pub Machine);

impl TrafficKernel for MachineCounters {
    fn ended(&mut self, take: &mut dyn FnMut(AccountedEntry)) -> Result<(), NetlinkError> {
        let mut accounts = self.0.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        let has_lost = std::mem::take(&mut accounts.has_lost);
        accounts.ended.drain(..).for_each(take);
        if has_lost { Err(NetlinkError::Lost) } else { Ok(()) }
    }

    fn open(
        &mut self,
        family: Family,
        take: &mut dyn FnMut(AccountedEntry),
    ) -> Result<DumpStatus, NetlinkError> {
        if family == Family::V4 {
            let accounts = self.0.accounts.lock().unwrap_or_else(PoisonError::into_inner);
            let open = accounts.bytes.iter();
            open.map(|(entry, bytes)| AccountedEntry { entry: entry.clone(), bytes: Some(*bytes) })
                .for_each(take);
        }
        Ok(DumpStatus::Complete)
    }

    fn connections(&mut self, family: Family) -> Result<Vec<ConnectionCount>, RulesetReadError> {
        let mut faulty = self.0.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(faulty.kernel.connection_counts(family))
    }
}

/// A report on its way to the leader.
pub(crate) struct SentReport {
    report: TrafficReport,
    reply: oneshot::Sender<TrafficReply>,
}

impl SentReport {
    /// The leader gets it.
    pub(crate) fn deliver(&self, ledger: &SharedLedger) -> AdminPage {
        let body = Bytes::from(serde_json::to_vec(&self.report).unwrap_or_default());
        ledger.receive(&AdminPost { user: None, peer: None, body })
    }

    /// The leader gets it as if another node had made it.
    pub(crate) fn deliver_as_another(&self, ledger: &SharedLedger) {
        let report = TrafficReport { reporter: format!("{}0", self.report.reporter), ..self.report.clone() };
        Self { report, reply: oneshot::channel().0 }.deliver(ledger);
    }

    pub(crate) fn reply(self, page: &AdminPage) {
        let reply = (page.status == StatusCode::OK).then(|| serde_json::from_str(&page.body).ok()).flatten();
        if let Some(reply) = reply {
            let _ = self.reply.send(reply);
        }
    }
}

/// Reports that no leader has got yet. One that is dropped is lost, which its sender sees.
#[derive(Clone, Default)]
pub(crate) struct Reports(Arc<Mutex<VecDeque<SentReport>>>);

impl Reports {
    pub(crate) fn take(&self) -> Option<SentReport> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

impl ReportChannel for Reports {
    fn send<'a>(
        &'a mut self,
        report: &'a TrafficReport,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<TrafficReply>> + Send + 'a>> {
        let (reply, received) = oneshot::channel();
        let sent = SentReport { report: report.clone(), reply };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(sent);
        Box::pin(async move { received.await.map_err(|_| anyhow!("the connection was closed")) })
    }
}

/// Connections and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub connections: u64,
    pub bytes: u64,
}

impl Traffic {
    fn add(&mut self, more: Traffic) {
        self.connections += more.connections;
        self.bytes += more.bytes;
    }

    fn since(self, before: Traffic) -> Traffic {
        Traffic {
            connections: self.connections.saturating_sub(before.connections),
            bytes: self.bytes.saturating_sub(before.bytes),
        }
    }

    fn is_above(self, most: Traffic) -> bool {
        self.connections > most.connections || self.bytes > most.bytes
    }
}

/// By the name of a Service.
type TrafficByService = BTreeMap<String, Traffic>;

fn by_service(rows: &[TrafficRow]) -> TrafficByService {
    let mut sums = TrafficByService::new();
    for row in rows {
        let TrafficOwner::Service { namespace, name } = &row.owner else { continue };
        let sum = sums.entry(format!("{namespace}/{name}")).or_default();
        for ZonePairTraffic { connections, bytes, .. } in &row.zone_pairs {
            sum.add(Traffic { connections: *connections, bytes: *bytes });
        }
    }
    sums
}

/// One life of a node proxy.
struct NodeProcess {
    sums: watch::Receiver<NodeTraffic>,
    last: NodeTraffic,
    made: TrafficByService,
    /// Counters of rules were deleted by others.
    is_flushed: bool,
}

/// Compares what was counted with what clients did.
#[derive(Default)]
pub(crate) struct CounterChecker {
    processes: BTreeMap<usize, NodeProcess>,
    /// By all processes that ever were, and while none ran.
    made: TrafficByService,
    /// The leader, its ledger and what was made, at the start of a time without faults.
    noted: Option<(usize, TrafficByService, TrafficByService)>,
    /// Services whose sums were compared exactly.
    pub compared: u64,
}

impl CounterChecker {
    pub(crate) fn started(&mut self, machine: usize, sums: watch::Receiver<NodeTraffic>) {
        let (last, made) = (NodeTraffic::default(), TrafficByService::new());
        let process = NodeProcess { sums, last, made, is_flushed: false };
        self.processes.insert(machine, process);
    }

    pub(crate) fn stopped(&mut self, machine: usize) {
        self.processes.remove(&machine);
    }

    pub(crate) fn flushed(&mut self, machine: usize) {
        if let Some(process) = self.processes.get_mut(&machine) {
            process.is_flushed = true;
        }
    }

    /// A client did something.
    pub(crate) fn made(&mut self, machine: usize, service: &str, more: Traffic) {
        let of_process = self.processes.get_mut(&machine).map(|process| &mut process.made);
        for made in of_process.into_iter().chain([&mut self.made]) {
            made.entry(service.to_owned()).or_default().add(more);
        }
    }

    /// After a node proxy ran: sums never fall.
    pub(crate) fn check(&mut self, number: usize, machine: &Machine) -> Checked {
        let Some(process) = self.processes.get_mut(&number) else { return Ok(()) };
        if !process.sums.has_changed().unwrap_or(false) {
            return Ok(());
        }
        let now = process.sums.borrow_and_update().clone();
        let pairs = |traffic: &NodeTraffic| {
            let of_row = |row: &TrafficRow| {
                let owner = row.owner.clone();
                row.zone_pairs.clone().into_iter().map(move |at| {
                    let traffic = Traffic { connections: at.connections, bytes: at.bytes };
                    ((owner.clone(), at.from_zone, at.to_zone), traffic)
                })
            };
            traffic.rows.iter().flat_map(of_row).collect::<BTreeMap<_, _>>()
        };
        let (before, after) = (pairs(&process.last), pairs(&now));
        // The row of a Service that was deleted goes.
        let owners = |row: &TrafficRow| row.owner.clone();
        let kept: Vec<TrafficOwner> = now.rows.iter().map(owners).collect();
        for (pair, was) in before.iter().filter(|((owner, ..), _)| kept.contains(owner)) {
            let is = after.get(pair).copied().unwrap_or_default();
            if was.is_above(is) {
                let text = format!("{} counted {was:?} of {pair:?}, and {is:?} after that", machine.name);
                return Err(BrokenInvariant::new(17, text));
            }
        }
        process.last = now;
        Ok(())
    }

    /// Nothing happens for a while: from now on the leader's ledger is to grow by exactly what is made.
    pub(crate) fn note(&mut self, leader: usize, ledger: &SharedLedger) {
        self.noted = Some((leader, ledger_sums(ledger), self.made.clone()));
    }

    /// Nothing has happened for a while: all that was made is counted. An address that goes from one Service to another while
    /// a node has not programmed it may take counts along (run 407625).
    pub(crate) fn check_settled(
        &mut self,
        machines: &[Machine],
        leader: usize,
        ledger: &SharedLedger,
        truth: &Truth,
    ) -> Checked {
        for (number, process) in &self.processes {
            let counted = by_service(&process.last.rows);
            let name = &machines[*number].name;
            for (service, sum) in counted.iter().filter(|(service, _)| truth.has_own_addresses(service)) {
                let made = process.made.get(service).copied().unwrap_or_default();
                if sum.is_above(made) {
                    let text = format!("{name} counted {sum:?} of {service}, and clients made {made:?}");
                    return Err(BrokenInvariant::new(17, text));
                }
            }
            for (service, made) in &process.made {
                let sum = counted.get(service).copied().unwrap_or_default();
                let missing = made.since(sum);
                let is_reported = process.last.gaps.lost_events > 0;
                if !truth.is_constant(service) {
                    continue;
                }
                self.compared += 1;
                if (missing.connections > 0 && !process.is_flushed) || (missing.bytes > 0 && !is_reported) {
                    let text = format!("{name} counted {sum:?} of {service}, and clients made {made:?}");
                    return Err(BrokenInvariant::new(17, text));
                }
            }
        }
        let sums = ledger_sums(ledger);
        for (service, sum) in sums.iter().filter(|(service, _)| truth.has_own_addresses(service)) {
            if sum.is_above(self.made.get(service).copied().unwrap_or_default()) {
                let text = format!("the ledger has {sum:?} of {service}, more than clients ever made");
                return Err(BrokenInvariant::new(17, text));
            }
        }
        let Some((_, before, made_before)) = self.noted.take().filter(|(noted, ..)| *noted == leader) else {
            return Ok(());
        };
        for (service, made) in &self.made {
            let of = |sums: &TrafficByService| sums.get(service).copied().unwrap_or_default();
            let (made, grown) = (made.since(of(&made_before)), of(&sums).since(of(&before)));
            if truth.is_constant(service) && made != grown {
                let text = format!("the ledger of {service} grew by {grown:?}, and clients made {made:?}");
                return Err(BrokenInvariant::new(17, text));
            }
        }
        Ok(())
    }
}

fn ledger_sums(ledger: &SharedLedger) -> TrafficByService {
    let day = std::time::Duration::from_secs(24 * 3_600);
    ledger.read(day).map(|page| by_service(&page.sums.rows)).unwrap_or_default()
}
