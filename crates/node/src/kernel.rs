//! What the node forwards, into the kernel: only what changed, and everything that is different after a start, a
//! failure or somebody else's hand. Never a flush: until a transaction is through, the rules from before hold.

#[cfg(test)]
mod tests;

use std::fmt;

use dataplane::nftables::apply::{
    ApplyError, Beside, ReadError, apply, apply_program, apply_short, load_portions, read, read_beside,
};
use dataplane::nftables::ir::Program;
use dataplane::nftables::netlink::{Kernel, NetlinkError};
use dataplane::nftables::render::{Edit, Renderer, portions, table_id};
use model::forward::{ForwardingTable, Frontend};
use model::{Family, ServiceKey};
use plan::forward::{Forwarder, ServiceDelta};

/// Why the kernel does not hold what it should.
#[derive(Debug)]
pub enum Trouble {
    /// It did not take changes.
    Apply(ApplyError),
    /// It did not show what it holds.
    Read(ReadError),
    /// It refused the whole, and what it held before stays.
    Kept(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Apply(error) => error.fmt(f),
            Self::Read(error) => error.fmt(f),
            Self::Kept(reason) => write!(f, "{reason}; the rules from before stay as a whole"),
        }
    }
}

impl std::error::Error for Trouble {}

impl From<ApplyError> for Trouble {
    fn from(error: ApplyError) -> Self {
        Self::Apply(error)
    }
}

impl From<ReadError> for Trouble {
    fn from(error: ReadError) -> Self {
        Self::Read(error)
    }
}

impl Trouble {
    /// Whether the kernel looked at the changes and refused one: others may be fine.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Apply(ApplyError { cause: NetlinkError::Refused { .. }, .. }))
    }
}

/// What a comparison with the kernel came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Whether the kernel had none of our tables.
    pub is_first: bool,
    /// Transactions that it took.
    pub changes: usize,
    /// What it held that nobody of ours writes.
    pub problems: Vec<String>,
}

/// A Service that the kernel did not take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Which.
    pub service: ServiceKey,
    /// What the kernel said.
    pub reason: String,
}

/// Our tables in the kernel.
pub struct Tables {
    kernel: Box<dyn Kernel + Send>,
    renderer: Option<Renderer>,
    /// What the kernel's count of changes is if nobody but us made any.
    generation: Option<u32>,
}

impl Tables {
    /// Tables that are yet to be looked at.
    pub fn new(kernel: Box<dyn Kernel + Send>) -> Self {
        Self { kernel, renderer: None, generation: None }
    }

    /// The node itself changed: how much room sets have is decided anew, too.
    pub fn forget(&mut self) {
        self.renderer = None;
    }

    /// Whether nobody else changed any table since we last did.
    pub fn is_untouched(&mut self) -> bool {
        self.generation.is_some() && self.kernel.generation().ok() == self.generation
    }

    /// Whether the kernel holds anything of a Service.
    pub fn holds_services(&mut self) -> Result<bool, Trouble> {
        let ours = [table_id(Family::V4), table_id(Family::V6)];
        let (held, _) = read(&mut *self.kernel, &ours)?;
        let mut sets = held.tables.values().flat_map(|table| &table.sets);
        Ok(sets.any(|(name, set)| name.starts_with("cluster-ips") && !set.elements.is_empty()))
    }

    fn count(&mut self, transactions: usize) {
        let more = u32::try_from(transactions).unwrap_or(u32::MAX);
        self.generation = self.generation.map(|generation| generation.wrapping_add(more));
    }

    /// Reads what the kernel holds and makes it what it should be.
    pub fn compare(&mut self, table: &ForwardingTable) -> Result<Compared, Trouble> {
        self.generation = self.kernel.generation().ok();
        let ours = [table_id(Family::V4), table_id(Family::V6)];
        let renderer = self.renderer.get_or_insert_with(|| Renderer::new(table));
        let Beside { mut held, mut wanted, problems } =
            read_beside(&mut *self.kernel, &ours, &mut || renderer.whole(table))?;
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        if held.tables.is_empty() {
            let transactions = load_portions(&mut *self.kernel, portions(renderer, table))?;
            self.count(transactions);
            return Ok(Compared { is_first: true, changes: transactions, problems });
        }
        if !problems.is_empty() {
            spoil(&mut held);
            wanted = renderer.whole(table);
        }
        let transactions = match apply_short(&mut *self.kernel, &held, &wanted)? {
            Some(transactions) => transactions,
            // In parts, and these have to know what stays.
            None => {
                drop((held, wanted));
                let (mut held, unread) = read(&mut *self.kernel, &ours)?;
                if !unread.is_empty() {
                    spoil(&mut held);
                }
                apply_program(&mut *self.kernel, &held, &renderer.whole(table))?
            }
        };
        self.count(transactions);
        Ok(Compared { is_first: false, changes: transactions, problems })
    }

    /// Makes the changes of some Services, as one transaction.
    pub fn change(&mut self, table: &ForwardingTable, deltas: &[&ServiceDelta]) -> Result<(), Trouble> {
        let Some(renderer) = &mut self.renderer else {
            return self.compare(table).map(|_| ());
        };
        let pairs: Vec<(&[Frontend], &[Frontend])> =
            deltas.iter().map(|delta| (&*delta.old, &*delta.new)).collect();
        match renderer.change(&pairs) {
            Edit::Changes(changes) => {
                apply(&mut *self.kernel, &changes)?;
                self.count(usize::from(!changes.is_empty()));
                Ok(())
            }
            Edit::Outgrown => self.compare(table).map(|_| ()),
        }
    }

    /// Counts changes back that the kernel did not take.
    fn count_back(&mut self, deltas: &[&ServiceDelta]) {
        if let Some(renderer) = &mut self.renderer {
            let pairs: Vec<(&[Frontend], &[Frontend])> =
                deltas.iter().map(|delta| (&*delta.new, &*delta.old)).collect();
            renderer.change(&pairs);
        }
    }

    /// Makes ready what the next change may need, and clears away what none can. Answers whether there is more to do.
    pub fn tidy(&mut self) -> Result<bool, Trouble> {
        let Some(renderer) = &mut self.renderer else { return Ok(false) };
        let changes = renderer.sweep();
        if changes.is_empty() {
            return Ok(false);
        }
        apply(&mut *self.kernel, &changes)?;
        self.count(1);
        Ok(true)
    }
}

/// What could not be read cannot be repaired piece by piece: such tables are made anew, in the same transaction.
fn spoil(held: &mut Program) {
    held.tables.values_mut().for_each(|table| table.comment = None);
}

/// Makes changes; where the kernel refuses, looks for the Services that it refuses and makes the others.
pub fn make(
    tables: &mut Tables,
    forwarder: &mut Forwarder,
    deltas: &[&ServiceDelta],
) -> Result<Vec<Failed>, Trouble> {
    let trouble = match tables.change(forwarder.table(), deltas) {
        Ok(()) => return Ok(Vec::new()),
        Err(trouble) if trouble.is_refusal() && !deltas.is_empty() => trouble,
        Err(trouble) => return Err(trouble),
    };
    tables.count_back(deltas);
    deltas.iter().for_each(|delta| forwarder.undo(delta));
    // What the renderer believes to be ready may not be there.
    tables.compare(forwarder.table())?;
    if let [delta] = deltas {
        return Ok(vec![Failed { service: delta.service.clone(), reason: trouble.to_string() }]);
    }
    let mut failed = Vec::new();
    for half in deltas.chunks(deltas.len().div_ceil(2)) {
        half.iter().for_each(|delta| forwarder.redo(delta));
        failed.extend(make(tables, forwarder, half)?);
    }
    Ok(failed)
}
