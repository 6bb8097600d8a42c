//! One run: parties stepped in seeded order on one thread, in three phases: faults, healing, liveness.

mod faults;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use dataplane::nftables::Kernel;
use fixtures::FaultyDisk;
use insight::traffic_ledger::SharedLedger;
use model::annotation::{FAILED_SERVICES, PROGRAMMED_REVISION};
use model::random::Random;
use serde_json::Value;

use crate::confluence::{RunOutcome, UserObject, user_objects};
use crate::convergence;
use crate::counters::Reports;
use crate::drains;
use crate::duplicates::DuplicateChecker;
use crate::envoys::{CONTROL_WATCHES, ControlProcess, start_control};
use crate::flows::FlowChecker;
use crate::kernels::KernelChecker;
use crate::link::{Link, Outbox};
use crate::network::{ResponsePart, SimulatedNetwork};
use crate::options::{Faults, Options};
use crate::parties::{ApiProcess, ControllerProcess, Machine, start_controller, start_node};
use crate::sabotage::Sabotage;
use crate::service_conditions;
use crate::story::Story;
use crate::time::{PausedRuntime, wall_time};
use crate::truth::Truth;
use crate::upgrade::ControllerVersion;
use crate::violation::BrokenInvariant;
use crate::watches::WatchChecker;
use crate::workload::Workload;

/// Simulated time for everything to be as planned after the faults end.
const HEAL_LIMIT: u64 = 400_000;
/// Simulated time in which nothing may be written after that.
const QUIET: u64 = 100_000;
/// Simulated time for everything to be as planned again after that.
const SETTLE_LIMIT: u64 = 20_000;
/// Time in which all traffic is counted and reported: a dump of bytes every 30 s, a report every 30 s, slow clocks.
const COUNTED: u64 = 90_000;
/// Time with traffic that is compared with the ledger after that.
const TRAFFIC: u64 = 30_000;
/// Time in which what follows the traffic is written: a ZoneDrain shows the connections per second between two reports, with a
/// delay of a minute (run 405295).
const SETTLED: u64 = 140_000;
/// The longest step of parties meanwhile.
const QUIET_STEP: u64 = 250;
/// How often connections of clients that are gone are closed.
const SWEEP: u64 = 200;
/// Busy pauses of 2 s, one after the other, that count as a loop.
const BUSY_PAUSES: usize = 10;
const CONTROLLERS: usize = 2;
/// Watches of a controller manager (slice controller and Lease), and of a node.
const CONTROLLER_WATCHES: usize = 8;
const NODE_WATCHES: usize = 4;

type Checked = Result<(), BrokenInvariant>;

enum Role {
    Api,
    Controller(Option<ControllerProcess>),
    Node(usize),
    /// The L7 control plane.
    Control(Option<ControlProcess>),
}

struct Party {
    role: Role,
    runtime: Option<PausedRuntime>,
    rate: u64,
    restart_at: u64,
    /// Without messages, its timers run again at this time.
    next_turn: u64,
    version: ControllerVersion,
}

impl Party {
    /// When it has something to do without a message.
    fn next_at(&self) -> u64 {
        if self.runtime.is_some() { self.next_turn } else { self.restart_at }
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct RunReport {
    pub options: Options,
    /// Equal in two runs of the same options.
    pub hash: u64,
    pub events: u64,
    pub simulated_ms: u64,
    pub broken: Option<BrokenInvariant>,
    /// The last events.
    pub story: Vec<String>,
    /// How often faults and other things happened.
    pub counts: BTreeMap<&'static str, u64>,
}

pub struct Simulation {
    options: Options,
    now: u64,
    /// Start of the last step.
    stepped_from: u64,
    random: Random,
    story: Story,
    names: Vec<String>,
    parties: Vec<Party>,
    api: Option<ApiProcess>,
    disk: FaultyDisk,
    machines: Vec<Machine>,
    outbox: Outbox,
    reports: Reports,
    network: SimulatedNetwork,
    workload: Workload,
    truth: Truth,
    watches: WatchChecker,
    kernels: KernelChecker,
    flows: FlowChecker,
    duplicates: DuplicateChecker,
    has_leader: bool,
    swept: u64,
    step_ms: u64,
    /// Bodies of writes, until they are acknowledged.
    sent: BTreeMap<u64, Value>,
    counts: BTreeMap<&'static str, u64>,
}

impl Simulation {
    /// Runs all phases.
    pub fn run(options: Options, is_traced: bool) -> RunReport {
        let mut simulation = Self::new(options, is_traced);
        let broken = simulation.phases().and_then(|()| simulation.compare_undisturbed()).err();
        simulation.report(broken)
    }

    /// In some seeds: the same objects without faults give the same result.
    fn compare_undisturbed(&mut self) -> Checked {
        let Some(api) = self.api.as_ref().filter(|_| self.options.compares_undisturbed()) else {
            return Ok(());
        };
        let found = RunOutcome::of(api.api.engine(), &self.machines)?;
        let mut objects = user_objects(api.api.engine())?;
        if self.options.sabotage == Some(Sabotage::MissingObject) {
            objects.pop();
        }
        if objects.is_empty() {
            return Ok(());
        }
        let options = Options { fault_ms: 0, ..self.options.clone() }.without_faults();
        let mut undisturbed = Self::new(options, false);
        undisturbed.create_only(objects);
        undisturbed.phases()?;
        let Some(api) = &undisturbed.api else { return Err(BrokenInvariant::new(19, "the API is down")) };
        self.count("runs compared with an undisturbed one");
        found.compare(&RunOutcome::of(api.api.engine(), &undisturbed.machines)?)
    }

    fn create_only(&mut self, objects: Vec<UserObject>) {
        let link = Link::new(self.names.len() - 1, &self.outbox);
        self.workload = Workload::of_objects(&self.options, link, objects);
    }

    fn new(options: Options, is_traced: bool) -> Self {
        let mut random = Random::seeded(options.seed);
        let machines: Vec<Machine> = (0..options.nodes).map(Machine::new).collect();
        let mut names = vec!["api".to_owned()];
        names.extend((0..CONTROLLERS).map(|number| format!("controller-{number}")));
        names.extend(machines.iter().map(|machine| machine.name.clone()));
        names.extend(options.has_routes.then(|| "mesh-control".to_owned()));
        names.push("user".to_owned());
        let outbox = Outbox::default();
        let link = Link::new(names.len() - 1, &outbox);
        let nodes =
            machines.iter().map(|machine| (machine.name.clone(), machine.address.to_string())).collect();
        let roles = std::iter::once(Role::Api)
            .chain((0..CONTROLLERS).map(|_| Role::Controller(None)))
            .chain((0..machines.len()).map(Role::Node))
            .chain(options.has_routes.then_some(Role::Control(None)));
        let drift = options.faults.drift;
        let mut rate = || 1_000 + random.below(2 * drift + 1) as u64 - drift as u64;
        let parties = roles.map(|role| Party {
            role,
            runtime: None,
            rate: rate(),
            restart_at: 0,
            next_turn: 0,
            version: ControllerVersion::This,
        });
        let parties = parties.collect();
        let mut story = Story::default();
        story.is_traced = is_traced;
        Self {
            now: 0,
            stepped_from: 0,
            story,
            names,
            parties,
            api: None,
            disk: FaultyDisk::new(random.split()),
            machines,
            outbox,
            reports: Reports::default(),
            network: SimulatedNetwork::new(random.split(), options.faults),
            workload: Workload::new(&options, link, nodes, random.split()),
            truth: Truth::default(),
            watches: WatchChecker::default(),
            kernels: KernelChecker::default(),
            flows: FlowChecker::new(random.split(), options.sabotage),
            duplicates: DuplicateChecker::new(&options.faults),
            has_leader: false,
            swept: 0,
            step_ms: options.step_ms,
            sent: BTreeMap::new(),
            counts: BTreeMap::new(),
            options,
            random,
        }
    }

    fn report(self, broken: Option<BrokenInvariant>) -> RunReport {
        let mut counts = self.counts;
        counts.extend(self.network.counts);
        counts.insert("connections evaluated", self.kernels.connections);
        counts.insert("flows opened", self.flows.opened);
        counts.insert("flows ended by nodes", self.flows.ended);
        counts.insert("sums of Services compared", self.flows.counters.compared);
        counts.insert("Services compared with reports of nodes", self.kernels.reports);
        counts.insert("Services that became Honored", self.truth.acknowledgements.honored);
        counts.insert("writes of conditions compared", self.truth.foreign.compared);
        counts.insert("watch events checked", self.watches.events);
        counts.insert("revisions", self.truth.revision());
        counts.insert("actions of users", self.workload.actions);
        counts.insert("requests of users refused", self.workload.refused.len() as u64);
        RunReport {
            options: self.options,
            hash: self.story.hash(),
            events: self.story.events(),
            simulated_ms: self.now,
            broken,
            story: self.story.last(60),
            counts,
        }
    }

    fn phases(&mut self) -> Checked {
        self.network.is_faulty = true;
        while self.now < self.options.fault_ms {
            self.inject_faults();
            self.step()?;
        }
        self.heal();
        self.converge(HEAL_LIMIT)?;
        self.stay_quiet()
    }

    fn count(&mut self, name: &'static str) {
        *self.counts.entry(name).or_default() += 1;
    }

    fn note(&mut self, party: usize, text: std::fmt::Arguments<'_>) {
        self.story.note(self.now, &self.names[party], text);
    }

    /// One step: at most `step_ms`, at least a millisecond, or until the next message arrives. Only parties that get a
    /// message, or whose turn it is, run in it.
    fn step(&mut self) -> Checked {
        self.stepped_from = self.now;
        let longest = self.now + self.step_ms;
        let turns = self.parties.iter().map(Party::next_at).min().unwrap_or(u64::MAX);
        let messages = self.network.next_at().unwrap_or(u64::MAX);
        self.now = messages.min(turns).min(self.workload.next_at()).clamp(self.now + 1, longest);
        self.workload.step(self.now);
        self.start_parties()?;
        // Users are no party.
        let is_party = |number: &usize| *number < self.parties.len();
        let mut due: BTreeSet<usize> = self.network.receivers(self.now).filter(is_party).collect();
        // Messages arrive at the time that the clock of their party shows.
        for party in &due {
            if let Some(runtime) = &mut self.parties[*party].runtime {
                runtime.run_until(self.now);
            }
        }
        self.deliver();
        due.extend((0..self.parties.len()).filter(|party| self.parties[*party].next_turn <= self.now));
        let mut order: Vec<usize> = due.iter().copied().collect();
        while !order.is_empty() {
            let party = order.swap_remove(self.random.below(order.len()));
            self.run_party(party)?;
        }
        self.take_requests()?;
        self.take_reports();
        if self.now >= self.swept + SWEEP {
            self.swept = self.now;
            self.network.sweep();
        }
        self.check_leaders()?;
        self.flows.open(self.now, &self.machines, &self.truth);
        self.check_control(&due)?;
        self.check_kernels(&due)
    }

    fn run_party(&mut self, number: usize) -> Checked {
        let party = &mut self.parties[number];
        party.next_turn = (self.now / self.step_ms + 1) * self.step_ms;
        if let Some(runtime) = &mut party.runtime {
            runtime.run_until(self.now);
            if runtime.has_spun() {
                let text = format!("{} runs without end at one time", self.names[number]);
                return Err(BrokenInvariant::new(15, text));
            }
        }
        if number == 0 { self.after_api() } else { Ok(()) }
    }

    /// What the L7 control plane published.
    fn check_control(&mut self, ran: &BTreeSet<usize>) -> Checked {
        for party in ran {
            if let Role::Control(Some(process)) = &mut self.parties[*party].role {
                let is_stale = self.options.sabotage == Some(Sabotage::StaleEnvoy);
                for line in process.take_published(&self.truth, is_stale)? {
                    self.count("publications to Envoys");
                    self.note(*party, format_args!("{line}"));
                }
            }
        }
        Ok(())
    }

    /// Kernels of the nodes that ran.
    fn check_kernels(&mut self, ran: &BTreeSet<usize>) -> Checked {
        for party in ran {
            if let Role::Node(number) = self.parties[*party].role {
                self.options
                    .sabotage
                    .iter()
                    .for_each(|sabotage| sabotage.end_connection(&self.machines[number]));
                self.kernels.check(number, &self.machines[number], &self.truth)?;
                self.flows.check(number, &self.machines[number], &self.truth)?;
            }
        }
        Ok(())
    }

    fn start_parties(&mut self) -> Checked {
        for number in 0..self.parties.len() {
            if self.parties[number].runtime.is_none() && self.now >= self.parties[number].restart_at {
                self.start(number)?;
            }
        }
        Ok(())
    }

    fn start(&mut self, number: usize) -> Checked {
        let random = self.random.split();
        let party = &mut self.parties[number];
        let runtime = PausedRuntime::start(self.now, party.rate, 0);
        let mut link = Link::new(number, &self.outbox);
        match &mut party.role {
            Role::Api => return self.start_api(runtime, random),
            Role::Controller(process) => {
                if self.options.has_upgrades && self.network.is_faulty {
                    link.version = ControllerVersion::drawn(&mut self.random);
                }
                party.version = link.version;
                *process = Some(start_controller(&runtime, &link, &self.names[number], random));
            }
            Role::Node(machine) => {
                self.flows.started(*machine);
                let sums = start_node(&runtime, &link, &self.machines[*machine], &self.reports, random);
                self.flows.counters.started(*machine, sums);
            }
            Role::Control(process) => *process = Some(start_control(&runtime, &link, random)),
        }
        party.runtime = Some(runtime);
        party.next_turn = self.now;
        let version = self.parties[number].version;
        self.note(number, format_args!("starts as {version:?} version"));
        Ok(())
    }

    fn start_api(&mut self, runtime: PausedRuntime, random: Random) -> Checked {
        let started = ApiProcess::start(&runtime, &self.disk, random);
        let started =
            started.map_err(|why| BrokenInvariant::new(1, format!("the store does not open: {why}")));
        let opened = started.and_then(|process| {
            self.truth.reopen(process.api.engine())?;
            self.truth.read()?;
            Ok(process)
        });
        if self.disk.has_stopped() {
            // The process goes before its disk works again.
            drop(opened);
            self.note(0, format_args!("stops while it starts"));
            self.crash_api(runtime, true);
            return Ok(());
        }
        self.api = Some(opened?);
        self.parties[0].runtime = Some(runtime);
        self.note(0, format_args!("starts at revision {}", self.truth.revision()));
        Ok(())
    }

    fn deliver(&mut self) {
        let Self { network, api, parties, story, names, now, .. } = self;
        network.deliver(*now, names, story, |id, request| {
            let (api, runtime) = (api.as_ref()?, parties[0].runtime.as_ref()?);
            Some(api.serve(runtime, id, request))
        });
    }

    /// What the API committed and sent in this step.
    fn after_api(&mut self) -> Checked {
        let Some(api) = &self.api else { return Ok(()) };
        if self.disk.has_stopped() || api.has_aborted.load(Ordering::SeqCst) {
            self.count("machine of the API stopped within a write");
            if let Some(runtime) = self.parties[0].runtime.take() {
                self.note(0, format_args!("stops within a write"));
                self.crash_api(runtime, true);
            }
            return Ok(());
        }
        self.truth.now = self.now;
        if api.api.engine().revision().0 > self.truth.revision() {
            self.truth.read()?;
            self.duplicates.check(&self.truth)?;
        }
        while let Some((id, part)) = api.take_response() {
            let line = || self.network.call(id).map_or("", |call| call.line.as_str());
            match &part {
                ResponsePart::Stream(_) => self.watches.start(id, line()),
                ResponsePart::Frame(bytes) => self.watches.frame(id, bytes, &self.truth)?,
                ResponsePart::End => self.watches.end(id),
                ResponsePart::Whole(head, body) => {
                    let sent = self.sent.remove(&id);
                    if let Some(sent) = sent.filter(|_| head.status.is_success()) {
                        let response = serde_json::from_slice(body).unwrap_or_default();
                        self.truth.acknowledged(line(), &sent, &response)?;
                    }
                    if head.status.is_server_error() {
                        self.story.note(
                            self.now,
                            "api",
                            format_args!("#{id} -> {}", String::from_utf8_lossy(body)),
                        );
                    }
                }
            }
            self.network.respond(self.now, id, part);
        }
        Ok(())
    }

    fn take_requests(&mut self) -> Checked {
        while let Some(mut sent) = self.outbox.take() {
            self.options.sabotage.iter().for_each(|sabotage| sabotage.change(&mut sent));
            let path = sent.request.uri().path();
            let is_write = *sent.request.method() != http::Method::GET;
            if sent.is_leading == Some(false) && is_write && path.contains("/endpointslices") {
                let text = format!("{} writes slices and does not lead", self.names[sent.party]);
                return Err(BrokenInvariant::new(4, text));
            }
            let body = is_write.then(|| serde_json::from_slice(sent.request.body()).unwrap_or_default());
            if let Some(Role::Node(machine)) = self.parties.get(sent.party).map(|party| &party.role)
                && path.contains("/leases")
                && let Some((revision, failed)) = body.as_ref().and_then(reported)
            {
                self.kernels.check_report(&self.machines[*machine], revision, failed, &self.truth)?;
                self.flows.reported(*machine);
            }
            let id = self.network.send(self.now, sent, &self.names, &mut self.story);
            self.sent.extend(body.map(|body| (id, body)));
        }
        Ok(())
    }

    /// The leader, and its ledger.
    fn ledger(&self) -> Option<(usize, &SharedLedger)> {
        let of_leader = |(number, party): (usize, &'_ Party)| match &party.role {
            Role::Controller(Some(_)) if leads(party) => Some(number),
            _ => None,
        };
        let number = self.parties.iter().enumerate().find_map(of_leader)?;
        match &self.parties[number].role {
            Role::Controller(Some(process)) => Some((number, &process.ledger)),
            _ => None,
        }
    }

    /// Reports of nodes reach the leader without the API, or get lost.
    fn take_reports(&mut self) {
        while let Some(sent) = self.reports.take() {
            let faults = if self.network.is_faulty { self.options.faults } else { Faults::default() };
            let mut happens = |thousandths: usize| self.random.below(1_000) < thousandths;
            let (is_lost, loses_reply) = (happens(faults.lost_requests), happens(faults.lost_responses));
            let is_repeated = happens(faults.duplicates);
            let sabotage = self.options.sabotage;
            let Some((_, ledger)) = self.ledger().filter(|_| !is_lost) else { continue };
            if sabotage == Some(Sabotage::CountedTwice) {
                sent.deliver_as_another(ledger);
            }
            let first = sent.deliver(ledger);
            let page = if is_repeated { sent.deliver(ledger) } else { first };
            if !loses_reply {
                sent.reply(&page);
            }
            self.count("reports of traffic");
        }
    }

    fn leaders(&self) -> Vec<&str> {
        let leading = self.parties.iter().enumerate().filter(|(_, party)| leads(party));
        leading.map(|(number, _)| self.names[number].as_str()).collect()
    }

    fn check_leaders(&mut self) -> Checked {
        let leaders = self.parties.iter().filter(|party| leads(party)).count();
        if std::mem::replace(&mut self.has_leader, leaders > 0) && leaders == 0 {
            self.duplicates.leader_stopped();
        }
        if leaders <= 1 {
            return Ok(());
        }
        Err(BrokenInvariant::new(4, format!("{} lead at the same time", self.leaders().join(" and "))))
    }

    /// Whether something that happens every so many milliseconds happened in the last step.
    fn happens(&mut self, every_ms: usize) -> bool {
        let step = self.now - self.stepped_from;
        every_ms > 0 && (self.random.below(every_ms) as u64) < step
    }

    fn heal(&mut self) {
        self.network.heal();
        self.workload.end();
        self.disk.stop_after(u64::MAX);
        for machine in &self.machines {
            machine.kernel.lock().unwrap_or_else(PoisonError::into_inner).heal();
            machine.conntrack.lock().unwrap_or_else(PoisonError::into_inner).faults.clear();
        }
        // The upgrade is complete.
        for number in 0..self.parties.len() {
            if self.parties[number].version != ControllerVersion::This {
                self.crash(number);
            }
        }
        for party in &mut self.parties {
            party.restart_at = party.restart_at.min(self.now);
        }
        self.story.note(self.now, "simulation", format_args!("heals"));
    }

    /// Waits until everything is as planned.
    fn converge(&mut self, limit: u64) -> Checked {
        let end = self.now + limit;
        // The last comparison that failed, and of what.
        let mut last: Option<((u64, u64), BrokenInvariant)> = None;
        let mut busy = 0;
        loop {
            let (pause, before) = (self.now + 2_000, self.truth.revision());
            while self.now < pause {
                self.step()?;
            }
            let grown = (self.truth.revision() - before) as usize;
            let is_busy = self.workload.is_done() && grown > self.busy_changes();
            busy = if is_busy { busy + 1 } else { 0 };
            if busy == BUSY_PAUSES {
                let text = format!("{grown} changes in 2 s, again and again, although users are done");
                return Err(BrokenInvariant::new(15, text));
            }
            let state = (self.truth.last_change, self.kernel_changes() + self.publications());
            let known = last.take_if(|(compared, _)| *compared == state).map(|(_, broken)| broken);
            let result = self.settled().and_then(|()| {
                let compared = known.map_or_else(|| self.as_planned(), Err);
                last = compared.clone().err().map(|broken| (state, broken));
                compared
            });
            match result {
                Ok(()) => return Ok(()),
                Err(broken) if self.now >= end => return Err(broken),
                Err(_) => {}
            }
        }
    }

    /// More changes than that in 2 s are a sign of controllers that work against each other.
    fn busy_changes(&self) -> usize {
        5 * (self.options.nodes + self.options.services.max(8))
    }

    /// Publications of the L7 control plane.
    fn publications(&self) -> u64 {
        let published = |party: &Party| match &party.role {
            Role::Control(Some(process)) => process.publications(),
            _ => 0,
        };
        self.parties.iter().map(published).sum()
    }

    /// The sum of the generations of all kernels.
    fn kernel_changes(&self) -> u64 {
        let generation = |machine: &Machine| {
            let mut faulty = machine.kernel.lock().unwrap_or_else(PoisonError::into_inner);
            u64::from(Kernel::generation(&mut faulty.kernel).unwrap_or_default())
        };
        self.machines.iter().map(generation).sum()
    }

    fn as_planned(&self) -> Checked {
        let Some(api) = &self.api else { return Err(BrokenInvariant::new(19, "the API is down")) };
        convergence::check(api.api.engine(), &self.machines, &self.truth, self.now)?;
        self.parties.iter().try_for_each(|party| match &party.role {
            Role::Control(Some(process)) => process.check(api.api.engine(), wall_time(self.now)),
            _ => Ok(()),
        })
    }

    /// Users have what they wanted, one leads, and all watches are open.
    fn settled(&self) -> Checked {
        if !self.workload.is_done() {
            return Err(BrokenInvariant::new(19, "users and kubelets wait for the API"));
        }
        if self.api.is_none() {
            return Err(BrokenInvariant::new(19, "the API is down"));
        }
        if self.leaders().len() != 1 {
            return Err(BrokenInvariant::new(19, format!("{} leaders", self.leaders().len())));
        }
        for (number, party) in self.parties.iter().enumerate() {
            let wanted = match party.role {
                Role::Api => continue,
                Role::Controller(_) => CONTROLLER_WATCHES,
                Role::Node(_) => NODE_WATCHES,
                Role::Control(_) => CONTROL_WATCHES,
            };
            let open = self.network.open_watches().filter(|(_, call)| call.party == number).count();
            if open < wanted {
                let text = format!("{} has {open} watches of {wanted}", self.names[number]);
                return Err(BrokenInvariant::new(19, text));
            }
        }
        Ok(())
    }

    fn run_until(&mut self, end: u64) -> Checked {
        while self.now < end {
            self.step()?;
        }
        Ok(())
    }

    fn check_counters(&mut self) -> Checked {
        let Some((leader, ledger)) = self.ledger().map(|(leader, ledger)| (leader, ledger.clone())) else {
            return Err(BrokenInvariant::new(19, "no controller leads"));
        };
        let Self { flows, machines, truth, .. } = self;
        flows.counters.check_settled(machines, leader, &ledger, truth)
    }

    /// Nothing but Leases is written, and everything stays as planned.
    fn stay_quiet(&mut self) -> Checked {
        self.step_ms = self.step_ms.max(QUIET_STEP);
        // Conditions follow the nodes' acknowledgements meanwhile.
        self.flows.is_paused = true;
        self.run_until(self.now + COUNTED)?;
        if let Some((leader, ledger)) = self.ledger().map(|(leader, ledger)| (leader, ledger.clone())) {
            self.flows.counters.note(leader, &ledger);
        }
        self.flows.is_paused = false;
        self.run_until(self.now + TRAFFIC)?;
        self.flows.is_paused = true;
        self.run_until(self.now + SETTLED)?;
        let (last, end) = (self.truth.last_change, self.now + QUIET);
        let weights = (self.kernel_changes(), self.publications());
        if self.options.sabotage == Some(Sabotage::Unrest) {
            self.machines[0].kernel.lock().unwrap_or_else(PoisonError::into_inner).kernel.flush();
        }
        while self.now < end {
            self.step()?;
            if self.truth.last_change != last && !is_upkeep(&self.truth.last_change_line) {
                let text =
                    format!("something is written although nothing changes: {}", self.truth.last_change_line);
                return Err(BrokenInvariant::new(19, text));
            }
        }
        if weights != (self.kernel_changes(), self.publications()) {
            let text = format!("kernels or Envoys change although nothing does: {weights:?} changes before");
            return Err(BrokenInvariant::new(22, text));
        }
        // A watch that reached its timeout may just be opened again.
        self.converge(SETTLE_LIMIT)?;
        self.flows.check_settled(&self.machines, &self.truth)?;
        self.check_counters()?;
        let Some(api) = &self.api else { return Err(BrokenInvariant::new(19, "the API is down")) };
        let (snapshot, _) = convergence::snapshot(api.api.engine())?;
        let drains = drains::in_force(api.api.engine(), self.now)?;
        service_conditions::check(&snapshot, &service_conditions::planner(&snapshot, drains))
    }
}

/// What is written although nothing changes: Events expire, and an IPAddress without a Service is deleted by a repair that
/// runs every three minutes.
fn is_upkeep(change: &str) -> bool {
    let is_of = |kind: &str| change.contains(&format!("\"kind\":\"{kind}\""));
    is_of("Event") || (is_of("IPAddress") && change.starts_with("Deleted"))
}

/// The revision that a node reports in its Lease, and the Services that failed.
fn reported(lease: &Value) -> Option<(u64, &str)> {
    let annotations = &lease["metadata"]["annotations"];
    let revision = annotations[PROGRAMMED_REVISION].as_str()?.parse().ok()?;
    Some((revision, annotations[FAILED_SERVICES].as_str().unwrap_or_default()))
}

fn leads(party: &Party) -> bool {
    match &party.role {
        Role::Controller(Some(process)) => party.runtime.is_some() && *process.leading.borrow(),
        _ => false,
    }
}
