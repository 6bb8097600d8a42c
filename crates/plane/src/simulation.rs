//! One run: parties stepped in seeded order on one thread, in three phases: faults, healing, liveness.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use dataplane::nftables::fake::KernelFault;
use model::random::Random;
use nix::errno::Errno;
use serde_json::Value;
use tokio::sync::watch;

use crate::convergence;
use crate::disk::SimulatedDisk;
use crate::kernels::KernelChecker;
use crate::link::{Link, Outbox};
use crate::network::{ResponsePart, SimulatedNetwork};
use crate::options::Options;
use crate::parties::{ApiProcess, Machine, start_controller, start_node};
use crate::story::Story;
use crate::time::PausedRuntime;
use crate::truth::Truth;
use crate::violation::BrokenInvariant;
use crate::watches::WatchChecker;
use crate::workload::Workload;

/// Simulated time for everything to be as planned after the faults end.
const HEAL_LIMIT: u64 = 400_000;
/// Simulated time in which nothing may be written after that.
const QUIET: u64 = 100_000;
const CONTROLLERS: usize = 2;
/// Watches of a controller manager (slice controller and Lease), and of a node.
const CONTROLLER_WATCHES: usize = 8;
const NODE_WATCHES: usize = 4;

type Checked = Result<(), BrokenInvariant>;

enum Role {
    Api,
    Controller(Option<watch::Receiver<bool>>),
    Node(usize),
}

struct Party {
    role: Role,
    runtime: Option<PausedRuntime>,
    rate: u64,
    restart_at: u64,
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
    random: Random,
    story: Story,
    names: Vec<String>,
    parties: Vec<Party>,
    api: Option<ApiProcess>,
    disk: SimulatedDisk,
    machines: Vec<Machine>,
    outbox: Outbox,
    network: SimulatedNetwork,
    workload: Workload,
    truth: Truth,
    watches: WatchChecker,
    kernels: KernelChecker,
    /// Bodies of writes, until they are acknowledged.
    sent: BTreeMap<u64, Value>,
    counts: BTreeMap<&'static str, u64>,
}

impl Simulation {
    /// Runs all phases.
    pub fn run(options: Options, is_traced: bool) -> RunReport {
        let mut simulation = Self::new(options, is_traced);
        let broken = simulation.phases().err();
        simulation.report(broken)
    }

    fn new(options: Options, is_traced: bool) -> Self {
        let mut random = Random::seeded(options.seed);
        let machines: Vec<Machine> = (0..options.nodes).map(Machine::new).collect();
        let mut names = vec!["api".to_owned()];
        names.extend((0..CONTROLLERS).map(|number| format!("controller-{number}")));
        names.extend(machines.iter().map(|machine| machine.name.clone()));
        names.push("user".to_owned());
        let outbox = Outbox::default();
        let link = Link::new(names.len() - 1, &outbox);
        let nodes =
            machines.iter().map(|machine| (machine.name.clone(), machine.address.to_string())).collect();
        let roles = std::iter::once(Role::Api)
            .chain((0..CONTROLLERS).map(|_| Role::Controller(None)))
            .chain((0..machines.len()).map(Role::Node));
        let drift = options.faults.drift;
        let mut rate = || 1_000 + random.below(2 * drift + 1) as u64 - drift as u64;
        let parties = roles.map(|role| Party { role, runtime: None, rate: rate(), restart_at: 0 });
        let parties = parties.collect();
        let mut story = Story::default();
        story.is_traced = is_traced;
        Self {
            now: 0,
            story,
            names,
            parties,
            api: None,
            disk: SimulatedDisk::new(random.split()),
            machines,
            outbox,
            network: SimulatedNetwork::new(random.split(), options.faults),
            workload: Workload::new(&options, link, nodes, random.split()),
            truth: Truth::default(),
            watches: WatchChecker::default(),
            kernels: KernelChecker::default(),
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
        self.converge()?;
        self.stay_quiet()
    }

    fn count(&mut self, name: &'static str) {
        *self.counts.entry(name).or_default() += 1;
    }

    fn note(&mut self, party: usize, text: std::fmt::Arguments<'_>) {
        self.story.note(self.now, &self.names[party], text);
    }

    /// One step: at most `step_ms`, at least a millisecond, or until the next message arrives.
    fn step(&mut self) -> Checked {
        let longest = self.now + self.options.step_ms;
        let next = self.network.next_at().unwrap_or(u64::MAX).min(self.workload.next_at()).min(longest);
        self.now = next.clamp(self.now + 1, longest);
        self.workload.step(self.now);
        self.start_parties()?;
        self.deliver();
        let mut order: Vec<usize> = (0..self.parties.len()).collect();
        while !order.is_empty() {
            let party = order.swap_remove(self.random.below(order.len()));
            if let Some(runtime) = &mut self.parties[party].runtime {
                runtime.run_until(self.now);
                if runtime.has_spun() {
                    let text = format!("{} runs without end at one time", self.names[party]);
                    return Err(BrokenInvariant::new(15, text));
                }
            }
            if party == 0 {
                self.after_api()?;
            }
        }
        self.take_requests()?;
        self.network.sweep();
        self.check_leaders()?;
        for (number, machine) in self.machines.iter().enumerate() {
            self.kernels.check(number, machine, &self.truth)?;
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
        let link = Link::new(number, &self.outbox);
        match &mut party.role {
            Role::Api => return self.start_api(runtime, random),
            Role::Controller(leading) => {
                *leading = Some(start_controller(&runtime, &link, &self.names[number], random));
            }
            Role::Node(machine) => start_node(&runtime, &link, &self.machines[*machine], random),
        }
        party.runtime = Some(runtime);
        self.note(number, format_args!("starts"));
        Ok(())
    }

    fn start_api(&mut self, runtime: PausedRuntime, random: Random) -> Checked {
        match ApiProcess::start(&runtime, &self.disk, random) {
            Ok(process) => {
                self.truth.reopen(process.api.engine())?;
                self.truth.read()?;
                self.api = Some(process);
                self.parties[0].runtime = Some(runtime);
                self.note(0, format_args!("starts at revision {}", self.truth.revision()));
                Ok(())
            }
            Err(why) if self.disk.has_stopped() => {
                self.note(0, format_args!("stops while it starts: {why}"));
                self.crash_api(runtime, true);
                Ok(())
            }
            Err(why) => Err(BrokenInvariant::new(1, format!("the store does not open: {why}"))),
        }
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
        self.truth.read()?;
        while let Some((id, part)) = api.take_response() {
            let line = self.network.call(id).map(|call| call.line.clone()).unwrap_or_default();
            match &part {
                ResponsePart::Stream(_) => self.watches.start(id, &line),
                ResponsePart::Frame(bytes) => self.watches.frame(id, bytes, &self.truth)?,
                ResponsePart::End => self.watches.end(id),
                ResponsePart::Whole(head, body) => {
                    let sent = self.sent.remove(&id);
                    if let Some(sent) = sent.filter(|_| head.status.is_success()) {
                        let response = serde_json::from_slice(body).unwrap_or_default();
                        self.truth.acknowledged(&line, &sent, &response)?;
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
        while let Some(sent) = self.outbox.take() {
            let path = sent.request.uri().path();
            let is_write = *sent.request.method() != http::Method::GET;
            if sent.is_leading == Some(false) && is_write && path.contains("/endpointslices") {
                let text = format!("{} writes slices and does not lead", self.names[sent.party]);
                return Err(BrokenInvariant::new(4, text));
            }
            let body = is_write.then(|| serde_json::from_slice(sent.request.body()).unwrap_or_default());
            let id = self.network.send(self.now, sent, &self.names, &mut self.story);
            self.sent.extend(body.map(|body| (id, body)));
        }
        Ok(())
    }

    fn leaders(&self) -> Vec<&str> {
        let leads = |party: &Party| match &party.role {
            Role::Controller(Some(leading)) => party.runtime.is_some() && *leading.borrow(),
            _ => false,
        };
        let leading = self.parties.iter().enumerate().filter(|(_, party)| leads(party));
        leading.map(|(number, _)| self.names[number].as_str()).collect()
    }

    fn check_leaders(&self) -> Checked {
        let leaders = self.leaders();
        match leaders.len() > 1 {
            true => Err(BrokenInvariant::new(4, format!("{} lead at the same time", leaders.join(" and ")))),
            false => Ok(()),
        }
    }

    /// Whether something that happens every so many milliseconds happens in this step.
    fn happens(&mut self, every_ms: usize) -> bool {
        let step = self.options.step_ms.min(60) as usize;
        every_ms > 0 && self.random.below(every_ms.max(step)) < step
    }

    fn inject_faults(&mut self) {
        let faults = self.options.faults;
        if self.happens(faults.cut_watch_ms) {
            self.network.cut_watch(self.now, &self.names, &mut self.story);
        }
        if self.happens(faults.partition_ms) {
            let party = 1 + self.random.below(self.names.len() - 1);
            let until = self.now + 200 + self.random.below(40_000) as u64;
            let (to, from) = [(until, 0), (0, until), (until, until)][self.random.below(3)];
            self.note(party, format_args!("is cut off: to the API until {to}, from it until {from}"));
            self.network.partition(party, to, from);
        }
        if self.happens(faults.crash_ms) {
            let party = 1 + self.random.below(self.parties.len() - 1);
            self.crash(party);
        }
        if self.happens(faults.api_crash_ms) {
            self.stop_api();
        }
        if self.happens(faults.kernel_ms) {
            self.fault_kernel();
        }
        if self.happens(faults.flush_ms) {
            let number = self.random.below(self.machines.len());
            self.count("kernel flushed");
            self.story.note(
                self.now,
                &self.machines[number].name,
                format_args!("another program flushes all rules"),
            );
            let mut kernel = self.machines[number].kernel.lock().unwrap_or_else(PoisonError::into_inner);
            kernel.kernel.flush();
        }
        if self.happens(faults.wall_jump_ms) {
            let party = self.random.below(self.parties.len());
            let seconds = self.random.below(7_200) as i64 - 3_600;
            if let Some(runtime) = &self.parties[party].runtime {
                runtime.jump_wall(seconds);
                *self.counts.entry("wall clock set").or_default() += 1;
                self.story.note(
                    self.now,
                    &self.names[party],
                    format_args!("wall clock moves by {seconds} s"),
                );
            }
        }
    }

    fn crash(&mut self, number: usize) {
        let Some(runtime) = self.parties[number].runtime.take() else { return };
        drop(runtime);
        self.count("crash of a party");
        let away = self.random.below(15_000) as u64;
        self.parties[number].restart_at = self.now + away;
        let reboots = self.random.below(3) == 0;
        if let Role::Controller(leading) = &mut self.parties[number].role {
            *leading = None;
        }
        if let Role::Node(machine) = &self.parties[number].role
            && reboots
        {
            self.machines[*machine].reboot();
        }
        self.note(number, format_args!("crashes for {away} ms"));
    }

    /// The API ends: now, or within one of its next writes.
    fn stop_api(&mut self) {
        if self.random.below(2) == 0 {
            let operations = 1 + self.random.below(12) as u64;
            self.note(0, format_args!("machine stops after {operations} operations of its disk"));
            return self.disk.stop_after(operations);
        }
        let Some(runtime) = self.parties[0].runtime.take() else { return };
        let loses_power = self.random.below(2) == 0;
        self.count("crash of the API");
        self.note(0, format_args!("crashes, power lost: {loses_power}"));
        self.crash_api(runtime, loses_power);
    }

    /// No destructor may write: the process is gone.
    fn crash_api(&mut self, runtime: PausedRuntime, loses_power: bool) {
        self.disk.stop_after(1);
        self.truth.close();
        drop(runtime);
        self.api = None;
        self.disk.restart(loses_power);
        self.watches.clear();
        self.sent.clear();
        self.network.api_crashed(self.now);
        self.parties[0].restart_at = self.now + self.random.below(8_000) as u64;
    }

    fn fault_kernel(&mut self) {
        let faults = [
            KernelFault::Refuse { errno: Errno::ENOBUFS, message: 1 },
            KernelFault::Refuse { errno: Errno::EINVAL, message: 2 },
            KernelFault::Send(Errno::ENOBUFS),
            KernelFault::Send(Errno::EINTR),
            KernelFault::LoseReply,
            KernelFault::LoseBatch,
            KernelFault::InterruptDump,
            KernelFault::CutDump,
            KernelFault::RefuseDump(Errno::ENOMEM),
        ];
        let number = self.random.below(self.machines.len());
        let fault = faults[self.random.below(faults.len())];
        self.count("kernel fault");
        self.story.note(self.now, &self.machines[number].name, format_args!("kernel will fail: {fault:?}"));
        self.machines[number].kernel.lock().unwrap_or_else(PoisonError::into_inner).inject(fault);
    }

    fn heal(&mut self) {
        self.network.heal();
        self.workload.is_active = false;
        self.disk.stop_after(u64::MAX);
        for machine in &self.machines {
            machine.kernel.lock().unwrap_or_else(PoisonError::into_inner).heal();
        }
        for party in &mut self.parties {
            party.restart_at = party.restart_at.min(self.now);
        }
        self.story.note(self.now, "simulation", format_args!("heals"));
    }

    /// Waits until everything is as planned.
    fn converge(&mut self) -> Checked {
        let end = self.now + HEAL_LIMIT;
        loop {
            let pause = self.now + 2_000;
            while self.now < pause {
                self.step()?;
            }
            match self.converged() {
                Ok(()) => return Ok(()),
                Err(broken) if self.now >= end => return Err(broken),
                Err(_) => {}
            }
        }
    }

    fn converged(&self) -> Checked {
        if !self.workload.is_done() {
            return Err(BrokenInvariant::new(19, "users and kubelets wait for the API"));
        }
        let Some(api) = &self.api else { return Err(BrokenInvariant::new(19, "the API is down")) };
        if self.leaders().len() != 1 {
            return Err(BrokenInvariant::new(19, format!("{} leaders", self.leaders().len())));
        }
        for (number, party) in self.parties.iter().enumerate() {
            let wanted = match party.role {
                Role::Api => continue,
                Role::Controller(_) => CONTROLLER_WATCHES,
                Role::Node(_) => NODE_WATCHES,
            };
            let open = self.network.open_watches().filter(|(_, call)| call.party == number).count();
            if open < wanted {
                let text = format!("{} has {open} watches of {wanted}", self.names[number]);
                return Err(BrokenInvariant::new(19, text));
            }
        }
        convergence::check(api.api.engine(), &self.machines, &self.truth)
    }

    /// Nothing but Leases is written, and everything stays as planned.
    fn stay_quiet(&mut self) -> Checked {
        // Conditions follow the nodes' acknowledgements.
        let settle = self.now + QUIET;
        while self.now < settle {
            self.step()?;
        }
        let (last, end) = (self.truth.last_change, self.now + QUIET);
        while self.now < end {
            self.step()?;
            if self.truth.last_change != last && !self.truth.last_change_line.contains("\"kind\":\"Event\"") {
                let text =
                    format!("something is written although nothing changes: {}", self.truth.last_change_line);
                return Err(BrokenInvariant::new(19, text));
            }
        }
        self.converged()
    }
}
