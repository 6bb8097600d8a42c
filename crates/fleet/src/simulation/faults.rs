//! The faults of parties, kernels and clocks. Those of messages are the network's.

use std::sync::PoisonError;

use dataplane::conntrack::DumpFault;
use dataplane::nftables::fake::KernelFault;
use nix::errno::Errno;

use super::{Role, Simulation};
use crate::time::PausedRuntime;

impl Simulation {
    pub(super) fn inject_faults(&mut self) {
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
            self.flows.counters.flushed(number);
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

    pub(super) fn crash(&mut self, number: usize) {
        let Some(runtime) = self.parties[number].runtime.take() else { return };
        drop(runtime);
        self.count("crash of a party");
        let away = self.random.below(15_000) as u64;
        self.parties[number].restart_at = self.now + away;
        let reboots = self.random.below(3) == 0;
        if let Role::Controller(process) = &mut self.parties[number].role {
            *process = None;
        }
        if let Role::Control(process) = &mut self.parties[number].role {
            *process = None;
        }
        if let Role::Node(machine) = &self.parties[number].role {
            self.flows.counters.stopped(*machine);
            if reboots {
                self.machines[*machine].reboot();
                self.flows.rebooted(*machine);
            }
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
    pub(super) fn crash_api(&mut self, runtime: PausedRuntime, loses_power: bool) {
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

    fn fault_conntrack(&mut self) {
        let number = self.random.below(self.machines.len());
        if self.random.below(4) == 0 {
            self.count("events of conntrack lost");
            self.story.note(self.now, &self.machines[number].name, format_args!("loses events of conntrack"));
            let mut accounts = self.machines[number].accounts.lock().unwrap_or_else(PoisonError::into_inner);
            return accounts.lose_events();
        }
        let fault = [DumpFault::Half, DumpFault::Interrupted, DumpFault::Lost][self.random.below(3)];
        self.count("fault of conntrack");
        self.story.note(
            self.now,
            &self.machines[number].name,
            format_args!("conntrack will fail: {fault:?}"),
        );
        let mut conntrack = self.machines[number].conntrack.lock().unwrap_or_else(PoisonError::into_inner);
        conntrack.faults.push_back(fault);
    }

    fn fault_kernel(&mut self) {
        if self.random.below(4) == 0 {
            return self.fault_conntrack();
        }
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
}
