//! `docs/reference/metrics.md` as data: the tables that say which metrics there are.

use std::collections::{BTreeMap, BTreeSet};

/// A row of a table.
#[derive(Debug)]
pub struct Row {
    pub kind: String,
    pub labels: BTreeSet<String>,
    /// Whether it has series before the first event.
    pub at_start: bool,
}

/// Rows by the heading that they are under, and by metric.
pub fn read() -> BTreeMap<String, BTreeMap<String, Row>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/metrics.md");
    let text = std::fs::read_to_string(path).unwrap();
    let mut sections: BTreeMap<String, BTreeMap<String, Row>> = BTreeMap::new();
    let mut heading = String::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            title.clone_into(&mut heading);
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, labels, series, what] = cells[..] else { continue };
        let Some(name) = name.strip_prefix('`').and_then(|name| name.strip_suffix('`')) else { continue };
        assert!(matches!(kind, "counter" | "gauge" | "histogram"), "{line}");
        assert!(matches!(series, "at start" | "later") && !what.is_empty(), "{line}");
        let labels = labels.split(',').map(|label| label.trim().trim_matches('`').to_owned());
        let labels = labels.filter(|label| !label.is_empty()).collect();
        let row = Row { kind: kind.to_owned(), labels, at_start: series == "at start" };
        let before = sections.entry(heading.clone()).or_default().insert(name.to_owned(), row);
        assert!(before.is_none(), "{name} twice");
    }
    sections
}
