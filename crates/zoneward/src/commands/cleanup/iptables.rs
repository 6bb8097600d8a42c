//! Chains of node proxies in modes iptables and ipvs, and rules in other chains that jump to them.

use anyhow::Result;
use dataplane::backend::CleanupScope;
use dataplane::iptables::cleanup::ChainRemoval;

use super::program::run;
use super::{CleanupReport, Leftover};

/// Both variants of iptables, for both families.
const VARIANTS: [&str; 4] = ["iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"];

/// Removes the chains and the jumps to them.
pub(super) fn remove(scope: CleanupScope, dry_run: bool, report: &mut CleanupReport) {
    for variant in VARIANTS {
        let saved = match run(&format!("{variant}-save"), &[], "") {
            Ok(Some(saved)) => saved,
            Ok(None) => continue,
            Err(error) => {
                let leftover = Leftover { what: "iptables chain", name: format!("{variant}: any") };
                report.add(vec![leftover], Err(error));
                continue;
            }
        };
        let ChainRemoval { input, chains } = ChainRemoval::of(&saved, scope);
        let leftovers = chains
            .into_iter()
            .map(|chain| Leftover { what: "iptables chain", name: format!("{variant} {chain}") })
            .collect();
        let done = if dry_run || input.is_empty() { Ok(()) } else { restore(variant, &input) };
        report.add(leftovers, done);
    }
}

fn restore(variant: &str, input: &str) -> Result<()> {
    run(&format!("{variant}-restore"), &["--noflush", "-w", "5"], input).map(drop)
}
