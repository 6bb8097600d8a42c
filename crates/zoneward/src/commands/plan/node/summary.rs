//! Summary of rule changes by Service and kind of element.

use std::collections::{BTreeMap, BTreeSet};

use dataplane::nftables::diff::{DiffLine, diff, lines};
use dataplane::nftables::ir::Ruleset;
use serde_json::{Value, json};

use output::{count, render, table};

/// Rules that Services share: chains, sets, ranges of the node.
const SHARED: &str = "(shared)";
/// Maximum number of Services in the text.
const LISTED: usize = 30;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServiceChanges {
    /// `namespace/name:port`, or [`SHARED`].
    service: String,
    added: usize,
    deleted: usize,
    /// Flushed or replaced.
    changed: usize,
    /// Kinds of changed elements, named like the maps.
    kinds: BTreeSet<String>,
}

impl ServiceChanges {
    pub(super) fn value(&self) -> Value {
        json!({
            "service": if self.service == SHARED { Value::Null } else { self.service.as_str().into() },
            "added": self.added,
            "deleted": self.deleted,
            "changed": self.changed,
            "kinds": self.kinds,
        })
    }
}

/// One row per Service port, by name, and shared rules last.
pub(super) fn rows<'l>(
    lines: impl Iterator<Item = &'l DiffLine>,
    programs: [&Ruleset; 2],
) -> Vec<ServiceChanges> {
    let owners = owners(programs);
    let mut rows: BTreeMap<(bool, String), ServiceChanges> = BTreeMap::new();
    for line in lines {
        let service = owner(line, &owners).unwrap_or(SHARED).to_owned();
        let row = rows
            .entry((service == SHARED, service.clone()))
            .or_insert_with(|| ServiceChanges { service, ..ServiceChanges::default() });
        match line.does {
            "add" => row.added += 1,
            "delete" => row.deleted += 1,
            _ => row.changed += 1,
        }
        row.kinds.insert(kind(&line.what));
    }
    rows.into_values().collect()
}

/// Service ports by frontend key, from the comments in the frontend maps.
fn owners(programs: [&Ruleset; 2]) -> BTreeMap<String, String> {
    let mut owners = BTreeMap::new();
    for program in programs {
        for line in lines(&diff(&Ruleset::default(), program).now, &[program]) {
            let names_frontends = ["services", "node-ports"].contains(&kind(&line.what).as_str());
            if let (true, Some((key, rest))) = (names_frontends, line.detail.split_once(" : "))
                && let Some(name) = comment(rest)
            {
                owners.insert(key.to_owned(), name.to_owned());
            }
        }
    }
    owners
}

fn comment(text: &str) -> Option<&str> {
    text.strip_suffix(')')?.rsplit_once('(').map(|(_, comment)| comment)
}

/// The Service of an element: by its comment, or by the frontend that its key starts with.
fn owner<'o>(line: &'o DiffLine, owners: &'o BTreeMap<String, String>) -> Option<&'o str> {
    let has_owner = line.what.starts_with("element ") || line.table == "ipvs";
    if !has_owner || kind(&line.what).starts_with("verdicts") {
        return None;
    }
    if let Some(name) = comment(&line.detail) {
        return Some(name);
    }
    let key = line.detail.split(" : ").next().unwrap_or_default();
    let ends = key.match_indices(" . ").map(|(at, _)| at).chain([key.len()]);
    ends.filter_map(|end| owners.get(&key[..end])).next().map(String::as_str)
}

/// `endpoints` for `element endpoints-1k`.
fn kind(what: &str) -> String {
    let of_ipvs = ["virtual server", "local route"].into_iter().find(|kind| what.starts_with(kind));
    if let Some(kind) = of_ipvs {
        return kind.to_owned();
    }
    let name = what.strip_prefix("element ").unwrap_or(what);
    let is_size = |size: &str| size.strip_suffix('k').is_some_and(|n| n.parse::<u32>().is_ok());
    match name.rsplit_once('-') {
        Some((stem, size)) if is_size(size) => stem.to_owned(),
        _ if what.starts_with("element ") => name.to_owned(),
        _ => name.split(' ').next().unwrap_or_default().to_owned(),
    }
}

pub(super) fn text(rows: &[ServiceChanges]) -> String {
    if rows.is_empty() {
        return "No changes: the kernel is in sync with these objects.\n".to_owned();
    }
    let services = rows.iter().filter(|row| row.service != SHARED).count();
    let changes: usize = rows.iter().map(|row| row.added + row.deleted + row.changed).sum();
    let mut text = format!("{} of {}:\n", count(changes, "change"), count(services, "Service port"));
    let mut shown = table(&["SERVICE", "ADD", "DELETE", "CHANGE", "KINDS"]);
    for row in rows.iter().filter(|row| row.service != SHARED).take(LISTED) {
        shown.add_row(cells(row));
    }
    for row in rows.iter().filter(|row| row.service == SHARED) {
        shown.add_row(cells(row));
    }
    text += &render(&shown);
    if services > LISTED {
        text += &format!("and {} more\n", count(services - LISTED, "Service port"));
    }
    text + "Add --full to list every element.\n"
}

fn cells(row: &ServiceChanges) -> Vec<String> {
    let kinds: Vec<&str> = row.kinds.iter().map(String::as_str).collect();
    let ServiceChanges { service, added, deleted, changed, .. } = row;
    vec![service.clone(), added.to_string(), deleted.to_string(), changed.to_string(), kinds.join(", ")]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(does: &'static str, what: &str, detail: &str) -> DiffLine {
        DiffLine { does, table: "ip zoneward".to_owned(), what: what.to_owned(), detail: detail.to_owned() }
    }

    #[test]
    fn elements_count_for_the_service_whose_frontend_they_start_with() {
        let owners: BTreeMap<String, String> =
            [("10.96.0.7 . tcp . 80", "ns/web:http"), ("tcp . 30080", "ns/web:http")]
                .map(|(key, name)| (key.to_owned(), name.to_owned()))
                .into();
        let of = |what: &str, detail: &str| {
            let line = line("add", what, detail);
            owner(&line, &owners).map(str::to_owned)
        };
        let web = Some("ns/web:http".to_owned());
        assert_eq!(of("element endpoints-1k", "10.96.0.7 . tcp . 80 . 3 : 10.1.0.1 . 8080"), web);
        assert_eq!(of("element node-port-endpoints-1k", "tcp . 30080 . 0 : 10.1.0.1 . 8080"), web);
        assert_eq!(
            of("element services-1k", "10.96.0.8 . tcp . 80 : 0x3 (ns/other)"),
            Some("ns/other".to_owned())
        );
        assert_eq!(of("element endpoints-1k", "10.96.0.9 . tcp . 80 . 3 : 10.1.0.1 . 8080"), None);
        assert_eq!(of("chain cluster-ip-3", "3 slots behind a cluster IP"), None);
        assert_eq!(kind("element node-port-endpoints-16k"), "node-port-endpoints");
        assert_eq!(kind("rule in services"), "rule");
    }
}
