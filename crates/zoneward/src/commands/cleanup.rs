//! `zoneward cleanup`: removes the rules of node proxies, ours and kube-proxy's, and lists them.
//!
//! nftables is accessed directly. iptables, ipset and IPVS have no stable interface, so their programs are used if
//! installed; remaining rules are reported.

mod iptables;
pub(super) mod ipvs;
mod nftables;
pub(super) mod program;
pub(super) mod running;

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use dataplane::backend::CleanupScope;
use dataplane::iptables::names::OWNER;

use crate::cli::{Cleanup, Format};
use node::dns::resolver_config;
use output::{print_text, print_value};
use running::RunningProxy;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Leftover {
    /// `nftables table`, `iptables chain`, ...
    what: &'static str,
    name: String,
}

#[derive(Debug, Default)]
struct CleanupReport {
    running: Vec<RunningProxy>,
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
            "warnings": self.running.iter().map(ToString::to_string).collect::<Value>(),
        })
    }

    fn text(&self, args: &Cleanup) -> String {
        if self.removed.is_empty() && self.failed.is_empty() {
            let whose = if args.only_zoneward { "Zoneward" } else { "a node proxy" };
            return format!("No rules of {whose} found.\n");
        }
        let verb = if args.dry_run { "would remove" } else { "removed" };
        let removed = self.removed.iter().map(|l| format!("{verb} {} {}\n", l.what, l.name));
        let failed =
            self.failed.iter().map(|(l, error)| format!("cannot remove {} {}: {error}\n", l.what, l.name));
        removed.chain(failed).collect()
    }
}

/// What kube-proxy left in the kernel, and why parts could not be read.
pub(super) fn kube_proxy_leftovers() -> (Vec<String>, Vec<String>) {
    let mut report = CleanupReport::default();
    nftables::remove(CleanupScope::AllProxies, true, &mut report);
    iptables::remove(CleanupScope::AllProxies, true, &mut report);
    ipvs::remove(true, &mut report);
    nftables::report_rest(&mut report);
    let marker = format!(" nat {OWNER}");
    let ours: Vec<String> =
        report.removed.iter().filter_map(|l| l.name.strip_suffix(&marker)).map(|v| format!("{v} ")).collect();
    let is_zonewards = |l: &Leftover| {
        let is_chain = ours.iter().any(|variant| l.name.starts_with(variant));
        let is_ipvs = ["virtual server", "local route"].contains(&l.what)
            || (l.what == "interface" && ipvs::is_zonewards());
        is_chain
            || is_ipvs
            || ["zoneward", "zoneward-mesh", "zoneward-ipvs"].iter().any(|ours| l.name.ends_with(ours))
    };
    let mut found: Vec<String> = Vec::new();
    let chains =
        report.failed.iter().filter(|(l, _)| l.what == "iptables chain" && !l.name.ends_with(": any"));
    for leftover in report.removed.iter().filter(|l| !is_zonewards(l)).chain(chains.map(|(l, _)| l)) {
        let text = format!("{} {}", leftover.what, leftover.name);
        // iptables-nft lists what nf_tables holds, under another name.
        let chain = leftover.name.rsplit(' ').next().unwrap_or_default();
        if !found.iter().any(|known| known.ends_with(chain) && leftover.what == "iptables chain") {
            found.push(text);
        }
    }
    let unread =
        report.failed.iter().filter(|(l, _)| l.what != "iptables chain" || l.name.ends_with(": any"));
    let unread = unread.map(|(l, error)| format!("{} {}: {error}", l.what, l.name)).collect();
    (found, unread)
}

/// The file that `--configure-resolver` writes.
fn remove_resolver_config(dry_run: bool, report: &mut CleanupReport) {
    if resolver_config::is_installed() {
        let leftover = Leftover { what: "resolver configuration", name: resolver_config::PATH.to_owned() };
        let removed = if dry_run { Ok(()) } else { resolver_config::remove_blocking() };
        report.add(vec![leftover], removed);
    }
}

pub(super) fn run(args: &Cleanup) -> Result<bool> {
    let running = running::find(Path::new("/proc"), args.only_zoneward);
    let mut report = CleanupReport { running, ..CleanupReport::default() };
    if args.only_zoneward {
        nftables::remove(CleanupScope::Zoneward, args.dry_run, &mut report);
        iptables::remove(CleanupScope::Zoneward, args.dry_run, &mut report);
    } else {
        nftables::remove(CleanupScope::AllProxies, args.dry_run, &mut report);
        iptables::remove(CleanupScope::AllProxies, args.dry_run, &mut report);
        // Sets and the interface go after the rules that use them.
        ipvs::remove(args.dry_run, &mut report);
        if !args.dry_run {
            nftables::report_rest(&mut report);
        }
    }
    remove_resolver_config(args.dry_run, &mut report);
    report.running.iter().for_each(|proxy| eprintln!("warning: {proxy}"));
    match args.output.format {
        Format::Table => print_text(&report.text(args))?,
        format => print_value(&report.value(), format)?,
    }
    Ok(report.failed.is_empty())
}
