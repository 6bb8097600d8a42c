//! `zoneward cleanup`: removes the rules of node proxies, ours and kube-proxy's, and lists them.
//!
//! nftables is accessed directly. iptables, ipset and IPVS have no stable interface, so their programs are used if
//! installed; remaining rules are reported.

mod iptables;
mod ipvs;
mod nftables;
mod program;

use anyhow::Result;
use serde_json::{Value, json};

use crate::cli::{Cleanup, Format};
use output::{print_text, print_value};

#[derive(Clone, Debug, PartialEq, Eq)]
struct Leftover {
    /// `nftables table`, `iptables chain`, ...
    what: &'static str,
    name: String,
}

#[derive(Debug, Default)]
struct CleanupReport {
    removed: Vec<Leftover>,
    failed: Vec<(Leftover, String)>,
}

impl CleanupReport {
    /// Records all of these as removed, or as failed.
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
            return "No rules of a node proxy found.\n".to_owned();
        }
        let verb = if dry_run { "would remove" } else { "removed" };
        let removed = self.removed.iter().map(|l| format!("{verb} {} {}\n", l.what, l.name));
        let failed =
            self.failed.iter().map(|(l, error)| format!("cannot remove {} {}: {error}\n", l.what, l.name));
        removed.chain(failed).collect()
    }
}

pub fn run(args: &Cleanup) -> Result<bool> {
    let mut report = CleanupReport::default();
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
