//! The eBPF accelerator beside the rules of nftables: rules first, then the maps of the accelerator. Whatever fails here
//! leaves connections to the rules.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use dataplane::accelerator::{
    AccelerateScope, Accelerator, AcceleratorKernel, MapCapacity, PinnedAccelerator, cgroup_root, remove_pins,
};
use dataplane::backend::{
    BackendError, CleanupItem, CleanupScope, FrontendChange, NodeBackend, PacketCount, PacketTrace,
    Reconciled, RuleCount,
};
use model::ForwardingTable;
use model::forward::FirstPacket;

/// Flags of the accelerator.
#[derive(Clone, Debug, Args)]
pub struct AcceleratorFlags {
    /// Connect TCP sockets of this machine to endpoints of Services by eBPF, before there is a packet; with mode nftables,
    /// whose rules serve everything else
    #[arg(long, value_name = "WHEN", default_value = "off")]
    pub accelerate: Accelerate,
    /// With --accelerate=on: only sockets of the host's network namespace; sidecars in pods keep seeing cluster IPs
    #[arg(long)]
    pub accelerate_host_namespace_only: bool,
    /// With --accelerate=on: only sockets of processes in this cgroup (v2) and below [default: all]
    #[arg(long, value_name = "DIR")]
    pub accelerate_cgroup: Option<PathBuf>,
}

/// Whether sockets are accelerated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Accelerate {
    /// No eBPF program is loaded
    Off,
    /// Where the kernel and cgroup v2 permit
    On,
}

/// Settings of the accelerator that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceleratorConfig {
    pub scope: AccelerateScope,
    /// `None` for the root.
    pub cgroup: Option<PathBuf>,
}

impl AcceleratorFlags {
    /// `None` if it is off.
    pub fn settings(&self) -> Option<AcceleratorConfig> {
        let scope = match self.accelerate_host_namespace_only {
            true => AccelerateScope::NodeNamespace,
            false => AccelerateScope::AllNamespaces,
        };
        let settings = AcceleratorConfig { scope, cgroup: self.accelerate_cgroup.clone() };
        (self.accelerate == Accelerate::On).then_some(settings)
    }
}

/// The rules, accelerated if that is wanted and possible; else why it is not possible. What an earlier process left is
/// detached then: nothing would refresh it.
pub fn accelerate(
    rules: Box<dyn NodeBackend + Send>,
    settings: Option<&AcceleratorConfig>,
    folder: &Path,
    sync_period: Duration,
) -> (Box<dyn NodeBackend + Send>, Result<bool, BackendError>) {
    let Some(settings) = settings else {
        return (rules, remove_pins(folder, false).map(|_| false));
    };
    match open(settings, folder) {
        Ok(kernel) => {
            let accelerator = Accelerator::new(Box::new(kernel), settings.scope, sync_period);
            (Box::new(AcceleratedBackend { rules, accelerator, has_failed: false }), Ok(true))
        }
        Err(error) => {
            let removed = remove_pins(folder, false);
            (rules, Err(removed.err().unwrap_or(error)))
        }
    }
}

/// Loads the program, which is the only way to know whether the kernel takes it.
fn open(settings: &AcceleratorConfig, folder: &Path) -> Result<PinnedAccelerator, BackendError> {
    let cgroup = match &settings.cgroup {
        Some(cgroup) => cgroup.clone(),
        None => cgroup_root()?,
    };
    let mut kernel = PinnedAccelerator::new(folder, cgroup);
    kernel.node_netns()?;
    kernel.open(MapCapacity::of(0, 0))?;
    Ok(kernel)
}

/// Rules with an accelerator in front.
struct AcceleratedBackend {
    rules: Box<dyn NodeBackend + Send>,
    accelerator: Accelerator,
    /// It is detached, and the next reconcile tries again.
    has_failed: bool,
}

impl AcceleratedBackend {
    /// After a failure the program is detached: it must not keep entries that nothing updates.
    fn accelerate(&mut self, work: impl FnOnce(&mut Accelerator) -> Result<(), BackendError>) {
        match work(&mut self.accelerator) {
            Ok(()) if self.has_failed => {
                self.has_failed = false;
                tracing::info!("the eBPF accelerator is attached again");
            }
            Ok(()) => {}
            Err(error) => {
                if !self.has_failed {
                    tracing::warn!(%error, "the eBPF accelerator failed and is detached; nftables serves every connection");
                }
                self.has_failed = true;
                if let Err(error) = self.accelerator.remove() {
                    tracing::warn!(%error, "failed to detach the eBPF accelerator; its entries expire");
                }
            }
        }
    }
}

impl NodeBackend for AcceleratedBackend {
    fn load(&mut self, table: &ForwardingTable) -> Result<Reconciled, BackendError> {
        let reconciled = self.rules.load(table)?;
        self.accelerate(|accelerator| accelerator.load(table));
        Ok(reconciled)
    }

    fn change(
        &mut self,
        table: &ForwardingTable,
        services: &[FrontendChange<'_>],
    ) -> Result<(), BackendError> {
        self.rules.change(table, services)?;
        if !self.has_failed {
            self.accelerate(|accelerator| accelerator.change(table, services));
        }
        Ok(())
    }

    fn reconcile(&mut self, table: &ForwardingTable) -> Result<Reconciled, BackendError> {
        let reconciled = self.rules.reconcile(table)?;
        self.accelerate(|accelerator| accelerator.refresh(table));
        Ok(reconciled)
    }

    fn maintain(&mut self) -> Result<bool, BackendError> {
        self.rules.maintain()
    }

    fn has_services(&mut self) -> Result<bool, BackendError> {
        self.rules.has_services()
    }

    fn trace(
        &mut self,
        packets: &[FirstPacket],
        addresses: &[IpAddr],
    ) -> Result<Vec<PacketTrace>, BackendError> {
        self.rules.trace(packets, addresses)
    }

    fn cleanup(&mut self, scope: CleanupScope, dry_run: bool) -> Result<Vec<CleanupItem>, BackendError> {
        self.rules.cleanup(scope, dry_run)
    }

    fn packet_counts(&mut self) -> Vec<PacketCount> {
        self.rules.packet_counts()
    }

    fn rule_counts(&self) -> Vec<RuleCount> {
        self.rules.rule_counts()
    }
}
