//! The result of `zoneward migrate check` as a table and as JSON.

use std::collections::BTreeSet;

use dataplane::migration::{ChangeCause, FlowChange, FlowOrigin, MigrationReport};
use output::{count, render, table_within, wrapped};
use serde_json::{Value, json};

use super::KubeProxyMode;

pub(super) struct CheckedNode<'a> {
    pub name: &'a str,
    pub from: KubeProxyMode,
    /// The mode of Zoneward.
    pub to: String,
    pub report: &'a MigrationReport,
    /// Shows unused changes, too.
    pub all: bool,
}

impl CheckedNode<'_> {
    pub(super) fn is_unchanged(&self) -> bool {
        self.shown().next().is_none() && self.report.unevaluated.is_empty()
    }

    fn shown(&self) -> impl Iterator<Item = &FlowChange> {
        let unused = if self.all { &self.report.unused[..] } else { &[] };
        self.report.changes.iter().chain(unused)
    }

    pub(super) fn value(&self) -> Value {
        let list = |changes: &[FlowChange]| changes.iter().map(change_value).collect::<Value>();
        json!({
            "node": self.name,
            "from": self.from.as_str(),
            "to": self.to,
            "flows": self.report.flows,
            "changes": list(&self.report.changes),
            "unused": list(&self.report.unused),
            "unevaluated": self.report.unevaluated,
        })
    }

    /// A table per cause, below its remedy.
    pub(super) fn text(&self) -> String {
        let causes: BTreeSet<ChangeCause> = self.shown().map(|change| change.cause).collect();
        let mut text = String::new();
        for cause in causes {
            text += &wrapped(&format!("{}: {}", cause.as_str(), cause.remedy()), "  ");
            text += &self.rules(cause);
            let mut table = table_within(&["SERVICE", "ADDRESS", "FROM", "CHANGE"], false);
            for change in self.shown().filter(|change| change.cause == cause) {
                table.add_row([
                    change.service.as_deref().unwrap_or(change.target.as_str()),
                    &change.address,
                    &origins(change).join(", "),
                    &format!("{} -> {}{}", change.before, change.after, packets_text(change)),
                ]);
            }
            text += &(render(&table) + "\n");
        }
        if !self.report.unevaluated.is_empty() {
            text += "Not evaluated:\n";
            for message in &self.report.unevaluated {
                text += &wrapped(message, "  ");
            }
            text.push('\n');
        }
        text + &self.summary()
    }

    /// The rules of a firewall that drop what kube-proxy accepts.
    fn rules(&self, cause: ChangeCause) -> String {
        let of_cause = self.shown().filter(|change| change.cause == cause);
        let rules: BTreeSet<&str> = of_cause.filter_map(|change| change.rule.as_deref()).collect();
        rules.iter().map(|rule| format!("  {rule}\n")).collect()
    }

    fn summary(&self) -> String {
        let changes = self.shown().count();
        let services: BTreeSet<_> = self.shown().filter_map(|change| change.service.as_ref()).collect();
        let mut text = format!(
            "Node {}, kube-proxy in mode {} to Zoneward in mode {}:\n{} in {}",
            self.name,
            self.from.as_str(),
            self.to,
            count(changes, "change"),
            count(self.report.flows, "flow"),
        );
        if !services.is_empty() {
            text += &format!(", of {}", count(services.len(), "Service port"));
        }
        text += ".\n";
        if !self.all && !self.report.unused.is_empty() {
            let unused = count(self.report.unused.len(), "change");
            text += &format!("Not shown: {unused} that counters show as unused; --all shows them.\n");
        }
        text
    }
}

fn origins(change: &FlowChange) -> Vec<&'static str> {
    change.origins.iter().map(|origin: &FlowOrigin| origin.as_str()).collect()
}

fn packets_text(change: &FlowChange) -> String {
    change.packets.map(|packets| format!(" ({})", count(packets as usize, "packet"))).unwrap_or_default()
}

fn change_value(change: &FlowChange) -> Value {
    json!({
        "service": change.service,
        "flow": change.target.as_str(),
        "address": change.address,
        "from": origins(change),
        "before": change.before,
        "after": change.after,
        "cause": change.cause.as_str(),
        "rule": change.rule,
        "packets": change.packets,
        "remedy": change.cause.remedy(),
    })
}
