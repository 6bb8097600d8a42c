//! `zoneward cleanup`: removes every rule that a node proxy left, ours or kube-proxy's, and says what it removed.
//!
//! nf_tables is asked directly. iptables, ipset and IPVS have no stable way for others, so their own programs
//! are used where they are installed; what is left in the kernel without them is reported.

mod iptables;
mod ipvs;
mod nftables;
mod program;

use anyhow::Result;
use serde_json::{Value, json};

use crate::cli::{Cleanup, Format};
use output::{print_text, print_value};

/// Something that a node proxy left.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Leftover {
    /// `nftables table`, `iptables chain`, ...
    what: &'static str,
    /// Its name.
    name: String,
}

/// What was done, or would be.
#[derive(Debug, Default)]
struct Report {
    removed: Vec<Leftover>,
    failed: Vec<(Leftover, String)>,
}

impl Report {
    /// Takes all of these as removed, or all as not.
    fn add(&mut self, leftovers: Vec<Leftover>, result: Result<()>) {
        match result {
            Ok(()) => self.removed.extend(leftovers),
            Err(error) => self.failed.extend(leftovers.into_iter().map(|l| (l, format!("{error:#}")))),
        }
    }

    fn value(&self) -> Value {
        let one = |l: &Leftover| json!({"what": l.what, "name": l.name});
        let failed =
            |(l, error): &(Leftover, String)| json!({"what": l.what, "name": l.name, "error": error});
        json!({
            "removed": self.removed.iter().map(one).collect::<Value>(),
            "failed": self.failed.iter().map(failed).collect::<Value>(),
        })
    }

    fn text(&self, dry_run: bool) -> String {
        if self.removed.is_empty() && self.failed.is_empty() {
            return "Nothing was left by a node proxy.\n".to_owned();
        }
        let verb = if dry_run { "would remove" } else { "removed" };
        let removed = self.removed.iter().map(|l| format!("{verb} {} {}\n", l.what, l.name));
        let failed =
            self.failed.iter().map(|(l, error)| format!("cannot remove {} {}: {error}\n", l.what, l.name));
        removed.chain(failed).collect()
    }
}

/// Runs the command.
pub fn run(args: &Cleanup) -> Result<bool> {
    let mut report = Report::default();
    nftables::remove(args.dry_run, &mut report);
    iptables::remove(args.dry_run, &mut report);
    // Sets and the interface go after the rules that use them.
    ipvs::remove(args.dry_run, &mut report);
    if !args.dry_run {
        nftables::report_rest(&mut report);
    }
    match args.output.format {
        Format::Table => print_text(&report.text(args.dry_run))?,
        format => print_value(&report.value(), format)?,
    }
    Ok(report.failed.is_empty())
}
