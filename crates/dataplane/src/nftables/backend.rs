//! [`NodeBackend`] over nf_tables. The tables are never flushed: until a transaction is committed, the old rules hold.

use std::net::IpAddr;

use model::forward::FirstPacket;
use model::{Family, ForwardingTable};

use super::apply::{
    ApplyError, DeleteAffinityError, LiveDiff, RefusedGroup, RulesetReadError, apply, apply_diff,
    apply_diff_at_once, apply_up_to_refusal, delete_affinity_entries, is_content_refused, load, read,
    read_and_compare,
};
use super::cleanup;
use super::ir::{NftName, Ruleset, TableId};
use super::kernel::Kernel;
use super::render::{RenderedChange, Renderer, SetName, SetSizes, initial_load, render_to_compare, table_id};
use super::trace;
use crate::backend::{
    BackendError, CleanupItem, CleanupScope, FrontendChange, NodeBackend, PacketTrace, Reconciled,
};
use crate::nfnetlink::{NetlinkError, NetlinkSocket};

/// Our tables in a kernel.
pub struct NftablesBackend {
    kernel: Box<dyn Kernel + Send>,
    renderer: Option<Renderer>,
    /// The generation id if only our own transactions happened since it was read. `None` after a failure.
    generation: Option<u32>,
}

impl From<ApplyError> for BackendError {
    fn from(error: ApplyError) -> Self {
        match error.cause {
            NetlinkError::Refused { .. } => Self::refused(error.to_string()),
            _ => Self::failed(error.to_string()),
        }
    }
}

impl From<RulesetReadError> for BackendError {
    fn from(error: RulesetReadError) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<DeleteAffinityError> for BackendError {
    fn from(error: DeleteAffinityError) -> Self {
        match error {
            DeleteAffinityError::Read(error) => error.into(),
            DeleteAffinityError::Apply(error) => error.into(),
        }
    }
}

impl NftablesBackend {
    /// The tables of this kernel, or of a fake one.
    pub fn new(kernel: Box<dyn Kernel + Send>) -> Self {
        Self { kernel, renderer: None, generation: None }
    }

    /// The tables of the network namespace of this thread.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self::new(Box::new(NetlinkSocket::open()?)))
    }

    /// The declared sizes of sets, once rules are loaded.
    pub fn set_sizes(&self) -> Option<&SetSizes> {
        self.renderer.as_ref().map(Renderer::sizes)
    }

    /// What the kernel holds of our tables, and why that is not all.
    pub(crate) fn read_tables(&mut self) -> Result<(Ruleset, Option<String>), BackendError> {
        let (ruleset, problems) = read(&mut *self.kernel, &our_tables())?;
        Ok((ruleset, problems.first().map(ToString::to_string)))
    }

    /// The ruleset that the kernel holds, to be traced.
    pub(crate) fn read_held(&mut self) -> Result<Ruleset, BackendError> {
        match self.read_tables()? {
            (_, Some(problem)) => {
                Err(BackendError::failed(format!("cannot interpret the kernel's rules: {problem}")))
            }
            (ruleset, None) => Ok(ruleset),
        }
    }

    /// Whether the kernel holds our rules as mode nftables has them: without the set of mode ipvs.
    pub(crate) fn holds_mode_nftables(&mut self) -> Result<bool, BackendError> {
        let (held, _) = read(&mut *self.kernel, &our_tables())?;
        let is_of_ipvs = |name: &NftName| SetName::parse(name) == Some(SetName::LocalLoadBalancers);
        let mut sets = held.tables.values().flat_map(|table| table.sets.keys());
        Ok(!held.tables.is_empty() && !sets.any(is_of_ipvs))
    }

    /// Deletes those of these tables that the kernel holds.
    pub(crate) fn delete_tables(&mut self, tables: &[TableId]) -> Result<(), BackendError> {
        cleanup::delete(&mut *self.kernel, tables)
    }

    /// Whether every transaction since the last comparison was ours.
    pub fn is_unmodified(&mut self) -> bool {
        self.generation.is_some() && self.kernel.generation().ok() == self.generation
    }

    fn advance_generation(&mut self, transactions: usize) {
        let more = u32::try_from(transactions).unwrap_or(u32::MAX);
        self.generation = self.generation.map(|generation| generation.wrapping_add(more));
    }

    /// Reads what the kernel holds and applies the difference to what it should hold.
    fn compare(&mut self, table: &ForwardingTable) -> Result<Reconciled, BackendError> {
        self.generation = self.kernel.generation().ok();
        let ours = our_tables();
        let renderer = self.renderer.get_or_insert_with(|| Renderer::new(table));
        let LiveDiff { mut held, mut wanted, problems } =
            read_and_compare(&mut *self.kernel, &ours, &mut || render_to_compare(renderer, table))?;
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        if held.tables.is_empty() {
            let transactions = load(&mut *self.kernel, initial_load(renderer, table))?;
            self.advance_generation(transactions);
            return Ok(Reconciled { is_initial: true, transactions, problems });
        }
        if !problems.is_empty() {
            force_rebuild(&mut held);
            wanted = renderer.render_all(table);
        }
        let at_once = apply_diff_at_once(&mut *self.kernel, &held, &wanted);
        drop((held, wanted));
        let transactions = match at_once {
            Ok(Some(transactions)) => transactions,
            Ok(None) => match self.apply_in_stages(table)? {
                Err(error) if is_content_refused(&error) => self.apply_up_to_refusal(table, error)?,
                applied => applied?,
            },
            Err(error) if is_content_refused(&error) => self.apply_up_to_refusal(table, error)?,
            Err(error) => return Err(error.into()),
        };
        self.advance_generation(transactions);
        Ok(Reconciled { is_initial: false, transactions, problems })
    }

    /// What the kernel holds and should hold, in full.
    fn read_and_render(&mut self, table: &ForwardingTable) -> Result<(Ruleset, Ruleset), BackendError> {
        let (mut held, unread) = read(&mut *self.kernel, &our_tables())?;
        if !unread.is_empty() {
            force_rebuild(&mut held);
        }
        let renderer = self.renderer.get_or_insert_with(|| Renderer::new(table));
        Ok((held, renderer.render_all(table)))
    }

    fn apply_in_stages(
        &mut self,
        table: &ForwardingTable,
    ) -> Result<Result<usize, ApplyError>, BackendError> {
        let (held, wanted) = self.read_and_render(table)?;
        Ok(apply_diff(&mut *self.kernel, &held, &wanted))
    }

    /// After the kernel refused a difference: applies the Services before the first one that it refuses, and names it.
    fn apply_up_to_refusal(
        &mut self,
        table: &ForwardingTable,
        error: ApplyError,
    ) -> Result<usize, BackendError> {
        let (held, wanted) = self.read_and_render(table)?;
        match apply_up_to_refusal(&mut *self.kernel, &held, &wanted) {
            Some(Ok(transactions)) => Ok(transactions),
            Some(Err(RefusedGroup { error, services })) if is_content_refused(&error) => {
                Err(BackendError::refused_services(error.to_string(), services))
            }
            Some(Err(RefusedGroup { error, .. })) => Err(error.into()),
            None => Err(error.into()),
        }
    }

    fn apply_change(
        &mut self,
        table: &ForwardingTable,
        services: &[FrontendChange<'_>],
    ) -> Result<(), BackendError> {
        let Some(renderer) = &mut self.renderer else {
            return self.compare(table).map(drop);
        };
        match renderer.change(services) {
            RenderedChange::Changes(changes) => {
                apply(&mut *self.kernel, &changes)?;
                self.advance_generation(usize::from(!changes.is_empty()));
                Ok(())
            }
            RenderedChange::Outgrown => self.compare(table).map(drop),
        }
    }

    /// Reverts the counts of a change that was not applied. The chains that the change prepared may be missing in the
    /// kernel, so the next reconcile has to compare.
    fn revert_counts(&mut self, services: &[FrontendChange<'_>]) {
        self.generation = None;
        if let Some(renderer) = &mut self.renderer {
            let reversed: Vec<FrontendChange<'_>> = services.iter().map(|(old, new)| (*new, *old)).collect();
            renderer.change(&reversed);
        }
    }
}

impl NodeBackend for NftablesBackend {
    fn load(&mut self, table: &ForwardingTable) -> Result<Reconciled, BackendError> {
        self.renderer = None;
        self.compare(table)
    }

    fn change(
        &mut self,
        table: &ForwardingTable,
        services: &[FrontendChange<'_>],
    ) -> Result<(), BackendError> {
        let result = self.apply_change(table, services);
        if result.is_err() {
            self.revert_counts(services);
        }
        result
    }

    fn reconcile(&mut self, table: &ForwardingTable) -> Result<Reconciled, BackendError> {
        if self.renderer.is_some() && self.is_unmodified() {
            return Ok(Reconciled::default());
        }
        self.compare(table)
    }

    fn maintain(&mut self) -> Result<bool, BackendError> {
        let Some(renderer) = &mut self.renderer else { return Ok(false) };
        let ended = renderer.take_ended_affinity();
        let changes = renderer.maintenance();
        let deleted = delete_affinity_entries(&mut *self.kernel, &ended)?;
        self.advance_generation(deleted);
        if changes.is_empty() {
            return Ok(false);
        }
        apply(&mut *self.kernel, &changes)?;
        self.advance_generation(1);
        Ok(true)
    }

    fn has_services(&mut self) -> Result<bool, BackendError> {
        let (held, _) = read(&mut *self.kernel, &our_tables())?;
        let mut sets = held.tables.values().flat_map(|table| &table.sets);
        Ok(sets
            .any(|(name, set)| SetName::parse(name) == Some(SetName::ClusterIps) && !set.elements.is_empty()))
    }

    fn trace(
        &mut self,
        packets: &[FirstPacket],
        addresses: &[IpAddr],
    ) -> Result<Vec<PacketTrace>, BackendError> {
        let ruleset = self.read_held()?;
        if ruleset.tables.is_empty() {
            return Err(BackendError::failed(
                "no nftables table `zoneward` in this network namespace: the node proxy has not run here",
            ));
        }
        let traced = packets.iter().map(|packet| trace::trace(&ruleset, packet, addresses));
        traced.collect::<Result<_, _>>().map_err(|error| BackendError::failed(error.to_string()))
    }

    fn cleanup(&mut self, scope: CleanupScope, dry_run: bool) -> Result<Vec<CleanupItem>, BackendError> {
        cleanup::cleanup(&mut *self.kernel, scope, dry_run)
    }
}

fn our_tables() -> [TableId; 2] {
    [table_id(Family::V4), table_id(Family::V6)]
}

/// Tables with objects that could not be decoded cannot be changed in place: they are deleted and created again, in the
/// same transaction.
fn force_rebuild(held: &mut Ruleset) {
    held.tables.values_mut().for_each(|table| table.comment = None);
}
