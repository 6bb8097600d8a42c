//! [`NodeBackend`] over the programs of iptables.
//!
//! What the kernel holds is remembered as a digest per chain, so that a change sends the chains that differ and nothing
//! else. It is read again at the start, after a failure, when the canary chain is gone, and every [`FULL_CHECK`]
//! reconciliations.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use arcstr::ArcStr;
use model::forward::FirstPacket;
use model::{Family, ForwardingTable, ServiceKey};

use super::cleanup;
use super::commands::{IptablesCommandError, IptablesCommands, IptablesFlavour, IptablesPrograms};
use super::diff::{TableChange, restore_inputs};
use super::names::{
    ANTI_MARTIAN, CANARY, INVALID_COUNTER, IptablesTableName, KUBELET_FIREWALL, LOCALHOST_COUNTER, OWNER,
    SERVICES, is_service_chain,
};
use super::nfacct::NfacctSocket;
use super::render::{
    ChainDigest, ChainGroups, DispatchRules, KernelFeatures, RenderContext, RenderedChain, RenderedFamily,
    RenderedService, chain_names, node_chains, render_family, render_service,
};
use super::ruleset::{self, IptablesRuleset};
use super::saved::SavedTable;
use crate::backend::{
    BackendError, CleanupItem, CleanupScope, FrontendChange, NodeBackend, PacketCount, PacketTrace,
    Reconciled, RuleCount,
};

/// Reconciliations between two comparisons with the kernel: an hour with kube-proxy's default syncPeriod.
const FULL_CHECK: u32 = 120;

/// Our chains in the tables of iptables.
pub struct IptablesBackend {
    commands: Box<dyn IptablesCommands + Send>,
    features: KernelFeatures,
    /// Counters of rules, where the kernel has them.
    counters: Option<NfacctSocket>,
    families: BTreeMap<Family, FamilyState>,
    /// Reconciliations until the kernel is compared; 0 if what it holds is not known.
    until_check: u32,
}

/// What the kernel holds of one family.
#[derive(Clone, Debug, Default)]
struct FamilyState {
    held: BTreeMap<IptablesTableName, BTreeMap<ArcStr, ChainDigest>>,
    /// The chains of `held` that depend on all Services.
    shared: BTreeSet<(IptablesTableName, ArcStr)>,
    services: BTreeMap<ServiceKey, DispatchRules>,
    /// Rules of the last restore, by table.
    last: BTreeMap<IptablesTableName, usize>,
}

impl From<IptablesCommandError> for BackendError {
    fn from(error: IptablesCommandError) -> Self {
        match error {
            IptablesCommandError::Refused(text) => Self::refused(text),
            IptablesCommandError::Locked(text) | IptablesCommandError::Failed(text) => Self::failed(text),
        }
    }
}

impl IptablesBackend {
    /// The tables that these programs reach.
    pub fn new(commands: Box<dyn IptablesCommands + Send>, features: KernelFeatures) -> Self {
        Self { commands, features, counters: None, families: BTreeMap::new(), until_check: 0 }
    }

    /// The same, with the matches that the kernel has.
    pub fn probe(mut commands: Box<dyn IptablesCommands + Send>, mut features: KernelFeatures) -> Self {
        features.bpf = accepts(&mut *commands, "-m bpf --bytecode \"1,6 0 0 0\"");
        Self::new(commands, features)
    }

    /// The tables of this network namespace, with its counters.
    pub fn open(commands: IptablesPrograms, features: KernelFeatures) -> Self {
        let mut backend = Self::probe(Box::new(commands), features);
        backend.counters = counters();
        let matched = format!("-m nfacct --nfacct-name {INVALID_COUNTER}");
        backend.features.nfacct = backend.counters.is_some() && accepts(&mut *backend.commands, &matched);
        backend
    }

    pub fn flavour(&self) -> IptablesFlavour {
        self.commands.flavour()
    }

    fn context<'n>(&self, family: Family, table: &'n ForwardingTable) -> RenderContext<'n> {
        RenderContext { family, node: &table.node, features: self.features }
    }

    /// Reads what the kernel holds and applies the difference to the table.
    fn compare(&mut self, table: &ForwardingTable) -> Result<Reconciled, BackendError> {
        self.until_check = 0;
        let mut reconciled = Reconciled { is_initial: true, ..Reconciled::default() };
        for family in self.commands.families().to_vec() {
            let (transactions, is_initial) = self.compare_family(table, family)?;
            reconciled.transactions += transactions;
            reconciled.is_initial &= is_initial;
        }
        self.until_check = FULL_CHECK;
        Ok(reconciled)
    }

    fn compare_family(
        &mut self,
        table: &ForwardingTable,
        family: Family,
    ) -> Result<(usize, bool), BackendError> {
        let mut saved = BTreeMap::new();
        for name in IptablesTableName::ALL {
            saved.insert(name, SavedTable::parse(&self.commands.save(family, name)?));
        }
        let is_initial = !saved.values().any(|table| table.chains.contains_key(SERVICES));
        let context = self.context(family, table);
        let RenderedFamily { tables, dispatch, shared } = render_family(table, context);
        let mut changes = Vec::new();
        let mut state = FamilyState { services: dispatch, shared, ..FamilyState::default() };
        for (name, groups) in tables {
            let held = &saved[&name];
            let wanted: BTreeMap<ArcStr, ChainDigest> =
                groups.iter().flatten().map(|chain| (chain.name.clone(), chain.digest())).collect();
            let mut change =
                TableChange { groups: differing(groups, &held.chains), ..TableChange::default() };
            let stale =
                held.chains.keys().filter(|chain| is_service_chain(chain) && !wanted.contains_key(*chain));
            change.deleted = stale.cloned().collect();
            change.lines = held.jump_repairs(name);
            if name == IptablesTableName::Filter {
                add_kubelet_firewall(held, context, &mut change);
            }
            state.last.insert(name, change.rules());
            state.held.insert(name, wanted);
            changes.push((name, change));
        }
        let transactions = self.restore(family, &changes)?;
        self.families.insert(family, state);
        Ok((transactions, is_initial))
    }

    /// Applies changes, and returns how many inputs that took.
    fn restore(
        &mut self,
        family: Family,
        changes: &[(IptablesTableName, TableChange)],
    ) -> Result<usize, BackendError> {
        let inputs = restore_inputs(changes, self.commands.flavour());
        for input in &inputs {
            self.commands.restore(family, input)?;
        }
        Ok(inputs.len())
    }

    fn change_family(
        &mut self,
        table: &ForwardingTable,
        services: &[FrontendChange<'_>],
        family: Family,
    ) -> Result<(), BackendError> {
        let context = self.context(family, table);
        let Some(state) = self.families.get_mut(&family) else { return Ok(()) };
        let mut nat = TableChange::default();
        let held = state.held.entry(IptablesTableName::Nat).or_default();
        for (old, new) in services {
            let RenderedService { chains, dispatch } = render_service(new, context);
            let names: BTreeSet<ArcStr> = chains.iter().map(|chain| chain.name.clone()).collect();
            let gone = render_service(old, context).chains.into_iter().map(|chain| chain.name);
            nat.deleted.extend(gone.filter(|name| !names.contains(name) && held.contains_key(name)));
            nat.groups.extend(differing(vec![chains], held));
            let Some(key) = new.iter().chain(old.iter()).map(|frontend| &frontend.port.service).next() else {
                continue;
            };
            match new.is_empty() {
                true => drop(state.services.remove(key)),
                false => drop(state.services.insert(key.clone(), dispatch)),
            }
        }
        let shared = node_chains(state.services.values(), context);
        let names = chain_names(&shared);
        let mut changes: BTreeMap<IptablesTableName, TableChange> = [(IptablesTableName::Nat, nat)].into();
        for (name, groups) in shared {
            let held = state.held.entry(name).or_default();
            changes.entry(name).or_default().groups.extend(differing(groups, held));
        }
        for (name, chain) in state.shared.difference(&names) {
            changes.entry(*name).or_default().deleted.push(chain.clone());
        }
        let changes: Vec<(IptablesTableName, TableChange)> = changes.into_iter().collect();
        self.restore(family, &changes)?;
        if let Some(state) = self.families.get_mut(&family) {
            state.shared = names;
            for (name, change) in changes {
                state.applied(name, &change);
            }
        }
        Ok(())
    }
}

impl FamilyState {
    fn applied(&mut self, name: IptablesTableName, change: &TableChange) {
        let held = self.held.entry(name).or_default();
        for chain in &change.deleted {
            held.remove(chain);
        }
        held.extend(change.groups.iter().flatten().map(|chain| (chain.name.clone(), chain.digest())));
        self.last.insert(name, change.rules());
    }
}

/// The groups whose rules differ from what is held; of a group only the chains that do.
fn differing(groups: ChainGroups, held: &BTreeMap<ArcStr, ChainDigest>) -> ChainGroups {
    let differs = |chain: &RenderedChain| held.get(&chain.name) != Some(&chain.digest());
    let groups = groups.into_iter().map(|group| group.into_iter().filter(|chain| differs(chain)).collect());
    groups.filter(|group: &Vec<RenderedChain>| !group.is_empty()).collect()
}

/// The kubelet's chain: created where it is missing, and never flushed.
fn add_kubelet_firewall(held: &SavedTable, context: RenderContext<'_>, change: &mut TableChange) {
    if !held.chains.contains_key(KUBELET_FIREWALL) {
        change.groups.insert(0, vec![RenderedChain::new(KUBELET_FIREWALL, Vec::new())]);
    }
    let needs_rule = context.family == Family::V4 && context.node.localhost_node_ports;
    if needs_rule && held.count(KUBELET_FIREWALL, ANTI_MARTIAN) == 0 {
        change.lines.push(format!("-A {KUBELET_FIREWALL} {ANTI_MARTIAN}"));
    }
}

/// The nfacct objects of kube-proxy. A kernel without them has no such counters.
fn counters() -> Option<NfacctSocket> {
    let mut socket = NfacctSocket::open().ok()?;
    [INVALID_COUNTER, LOCALHOST_COUNTER].iter().try_for_each(|name| socket.ensure(name)).ok()?;
    Some(socket)
}

/// Whether the kernel takes a rule with this match.
fn accepts(commands: &mut dyn IptablesCommands, rule: &str) -> bool {
    let chain = format!(":{OWNER}-PROBE - [0:0]");
    let add = format!("*nat\n{chain}\n-A {OWNER}-PROBE {rule}\nCOMMIT\n");
    let delete = format!("*nat\n{chain}\n-X {OWNER}-PROBE\nCOMMIT\n");
    let families = commands.families().to_vec();
    families.into_iter().all(|family| {
        let accepted = commands.restore(family, &add).is_ok();
        accepted && commands.restore(family, &delete).is_ok()
    })
}

impl NodeBackend for IptablesBackend {
    fn load(&mut self, table: &ForwardingTable) -> Result<Reconciled, BackendError> {
        self.families.clear();
        self.compare(table)
    }

    fn change(
        &mut self,
        table: &ForwardingTable,
        services: &[FrontendChange<'_>],
    ) -> Result<(), BackendError> {
        if self.until_check == 0 {
            return self.compare(table).map(drop);
        }
        for family in self.commands.families().to_vec() {
            if let Err(error) = self.change_family(table, services, family) {
                // Inputs before the failed one may have been applied.
                self.until_check = 0;
                return Err(error);
            }
        }
        Ok(())
    }

    fn reconcile(&mut self, table: &ForwardingTable) -> Result<Reconciled, BackendError> {
        self.until_check = self.until_check.saturating_sub(1);
        if self.until_check == 0 {
            return self.compare(table);
        }
        for family in self.commands.families().to_vec() {
            if !self.commands.has_chain(family, IptablesTableName::Mangle, CANARY)? {
                let reconciled = self.compare(table)?;
                // The program that flushed the tables may not have finished.
                self.until_check = 1;
                return Ok(reconciled);
            }
        }
        Ok(Reconciled::default())
    }

    /// Unused chains are deleted with the change that makes them unused.
    fn maintain(&mut self) -> Result<bool, BackendError> {
        Ok(false)
    }

    fn has_services(&mut self) -> Result<bool, BackendError> {
        for family in self.commands.families().to_vec() {
            let saved = SavedTable::parse(&self.commands.save(family, IptablesTableName::Nat)?);
            let is_of_service =
                |(name, digest): (&ArcStr, &ChainDigest)| is_service_chain(name) && digest.rules > 0;
            if saved.chains.iter().any(is_of_service) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn trace(
        &mut self,
        packets: &[FirstPacket],
        addresses: &[IpAddr],
    ) -> Result<Vec<PacketTrace>, BackendError> {
        let mut rulesets = BTreeMap::new();
        for family in self.commands.families().to_vec() {
            let mut text = String::new();
            for name in IptablesTableName::ALL {
                text += &self.commands.save(family, name)?;
            }
            let parsed = IptablesRuleset::parse(family, &text);
            rulesets.insert(family, parsed.map_err(|error| BackendError::failed(error.to_string()))?);
        }
        if !rulesets.values().any(|ruleset| ruleset.chain("nat", SERVICES).is_some()) {
            return Err(BackendError::failed(format!(
                "no chain {SERVICES} in this network namespace: no node proxy has run here in mode iptables"
            )));
        }
        let traced = packets.iter().map(|packet| {
            let family = Family::of(packet.dst.ip());
            let ruleset = rulesets.get(&family);
            let ruleset = ruleset.ok_or_else(|| BackendError::failed(format!("no {family} tables")))?;
            ruleset::trace(ruleset, packet, addresses)
                .map_err(|error| BackendError::failed(error.to_string()))
        });
        traced.collect()
    }

    fn cleanup(&mut self, scope: CleanupScope, dry_run: bool) -> Result<Vec<CleanupItem>, BackendError> {
        self.families.clear();
        self.until_check = 0;
        cleanup::cleanup(&mut *self.commands, scope, dry_run)
    }

    fn packet_counts(&mut self) -> Vec<PacketCount> {
        let Some(counters) = self.counters.as_mut().filter(|_| self.features.nfacct) else {
            return Vec::new();
        };
        let names = [INVALID_COUNTER, LOCALHOST_COUNTER];
        let count = |name| Some(PacketCount { counter: name, packets: counters.packets(name).ok()? });
        names.into_iter().filter_map(count).collect()
    }

    fn rule_counts(&self) -> Vec<RuleCount> {
        let of_family = |(family, state): (&Family, &FamilyState)| {
            let count = |(name, held): (&IptablesTableName, &BTreeMap<ArcStr, ChainDigest>)| RuleCount {
                family: *family,
                table: name.as_str(),
                total: held.values().map(|digest| digest.rules).sum(),
                last: state.last.get(name).copied().unwrap_or_default(),
            };
            state.held.iter().map(count).collect::<Vec<_>>()
        };
        self.families.iter().flat_map(of_family).collect()
    }
}
