//! Our tables as the kernel holds them. Several dumps make one program, so that a change in between is noticed by the
//! generation and everything is read again.

use std::fmt;

use nix::errno::Errno;

use crate::nftables::decode::{DecodeError, Reader};
use crate::nftables::ir::{Name, Program, Table, TableId};
use crate::nftables::netlink::{Kernel, NetlinkError, Query};

/// How often tables are read that someone else keeps changing.
const ATTEMPTS: u32 = 10;

/// Why tables could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadError {
    /// What was asked for, in words.
    pub what: &'static str,
    /// What the kernel or the socket said.
    pub cause: NetlinkError,
}

impl fmt::Display for ReadError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "cannot read {} from the kernel: {}", self.what, self.cause)?;
        match self.cause.errno() {
            Some(Errno::EPERM) => out.write_str("; NET_ADMIN is needed: run as root or grant the capability"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for ReadError {}

/// Reads these tables, whichever of them exist, and what in them could not be read.
pub fn read(kernel: &mut dyn Kernel, wanted: &[TableId]) -> Result<(Program, Vec<DecodeError>), ReadError> {
    let mut attempt = 1;
    loop {
        let again = match read_once(kernel, wanted) {
            Ok(Some(found)) => return Ok(found),
            // Changed in between.
            Ok(None) => ReadError { what: "the tables", cause: NetlinkError::Interrupted },
            Err(error) if is_passing(&error.cause) => error,
            Err(error) => return Err(error),
        };
        if attempt == ATTEMPTS {
            return Err(again);
        }
        attempt += 1;
    }
}

/// Whether the next attempt may go better: others write at the same time, or answers were lost.
fn is_passing(cause: &NetlinkError) -> bool {
    match cause {
        NetlinkError::Interrupted | NetlinkError::Lost => true,
        // A set or table went away after it was listed.
        cause => matches!(cause.errno(), Some(Errno::ENOENT | Errno::EINTR | Errno::EAGAIN | Errno::ENOBUFS)),
    }
}

fn read_once(
    kernel: &mut dyn Kernel,
    wanted: &[TableId],
) -> Result<Option<(Program, Vec<DecodeError>)>, ReadError> {
    let failed = |what| move |cause| ReadError { what, cause };
    let before = kernel.generation().map_err(failed("the generation"))?;
    let mut reader = Reader::default();
    let mut take = |kernel: &mut dyn Kernel, query: Query, what| {
        kernel.each(&query, &mut |raw| reader.take(raw, wanted)).map_err(failed(what))?;
        reader.settle();
        Ok(names(reader.so_far()))
    };
    let tables = take(kernel, Query::Tables, "tables")?;
    for (table, _) in &tables {
        take(kernel, Query::Sets(table.clone()), "sets")?;
    }
    for (table, sets) in take(kernel, Query::Chains, "chains")? {
        for set in sets {
            take(kernel, Query::Elements(table.clone(), set), "elements")?;
        }
        take(kernel, Query::Rules(table), "rules")?;
    }
    let after = kernel.generation().map_err(failed("the generation"))?;
    Ok((before == after).then(|| reader.finish()))
}

/// The tables and their sets, to ask for next.
fn names(program: &Program) -> Vec<(TableId, Vec<Name>)> {
    let sets = |table: &Table| table.sets.keys().cloned().collect();
    program.tables.iter().map(|(id, table)| (id.clone(), sets(table))).collect()
}
