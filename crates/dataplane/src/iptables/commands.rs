//! The programs of iptables: the way to the kernel, and to the fake one.

mod programs;

use std::fmt;

use model::Family;

use super::names::IptablesTableName;

pub use programs::IptablesPrograms;

/// The two implementations of iptables, whose rules are not visible to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IptablesFlavour {
    /// Over nf_tables.
    Nft,
    /// Over the kernel's own iptables interface.
    Legacy,
}

impl IptablesFlavour {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nft => "nft",
            Self::Legacy => "legacy",
        }
    }
}

/// Runs the programs of one flavour.
pub trait IptablesCommands {
    fn flavour(&self) -> IptablesFlavour;

    /// The families that the machine has programs for.
    fn families(&self) -> &[Family];

    /// The rules of a table, as iptables-save prints them.
    fn save(&mut self, family: Family, table: IptablesTableName) -> Result<String, IptablesCommandError>;

    /// Runs `iptables-restore --noflush` with this input.
    fn restore(&mut self, family: Family, input: &str) -> Result<(), IptablesCommandError>;

    fn has_chain(
        &mut self,
        family: Family,
        table: IptablesTableName,
        chain: &str,
    ) -> Result<bool, IptablesCommandError>;
}

/// Why a program failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IptablesCommandError {
    /// The input was refused; nothing of the table was applied.
    Refused(String),
    /// Another program held the lock of iptables.
    Locked(String),
    /// The program is not installed or could not run.
    Failed(String),
}

impl fmt::Display for IptablesCommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Refused(text) | Self::Locked(text) | Self::Failed(text)) = self;
        f.write_str(text)
    }
}

impl std::error::Error for IptablesCommandError {}
