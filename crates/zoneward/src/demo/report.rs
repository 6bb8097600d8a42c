//! What the demo says: the story for people as it happens, and the numbers for programs.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};

use serde_json::{Value, json};

use super::acts::{Connections, Fallback, Measured, Rolling};
use super::canary::{Canary, VERSIONS};
use super::layout::ZONES;
use super::verdict;

/// Everything that was measured.
pub struct Report {
    /// Act one.
    pub mechanisms: Vec<Measured>,
    /// Act two.
    pub fallback: Fallback,
    /// Act three.
    pub rolling: Rolling,
    /// Act four.
    pub canary: Canary,
    /// How long all of it took.
    pub seconds: f64,
}

impl Report {
    /// What is out of line.
    pub fn complaints(&self) -> Vec<String> {
        let mut all: Vec<String> = self.mechanisms.iter().flat_map(verdict::complaints).collect();
        if self.fallback.failed > 0 {
            all.push(format!(
                "{} connections failed after {} lost its pods",
                self.fallback.failed, self.fallback.zone
            ));
        }
        if self.rolling.failed > 0 {
            all.push(format!("{} connections failed while pods were replaced", self.rolling.failed));
        }
        all.extend(self.canary.complaints());
        all
    }

    /// For programs; the names are fixed.
    pub fn value(&self) -> Value {
        let mechanism = |m: &Measured| {
            json!({
                "name": m.mechanism.name,
                "connections": m.connections,
                "expected": m.expected,
                "refused": m.refused,
            })
        };
        json!({
            "mechanisms": self.mechanisms.iter().map(mechanism).collect::<Vec<_>>(),
            "fallback": {
                "zone": self.fallback.zone,
                "connections": self.fallback.connections,
                "failed": self.fallback.failed,
            },
            "rolling": {"connections": self.rolling.connections, "failed": self.rolling.failed},
            "canary": self.canary.value(),
            "seconds": (self.seconds * 10.0).round() / 10.0,
            "complaints": self.complaints(),
        })
    }
}

/// Tells the story: on standard output for people, on standard error when that is for a program.
pub struct Teller {
    for_people: bool,
}

impl Teller {
    /// With the table on standard output, or without it.
    pub fn new(for_people: bool) -> Self {
        Self { for_people }
    }

    /// Says a line. Nobody to hear it is no failure.
    pub fn say(&self, line: &str) {
        match self.for_people {
            true => drop(writeln!(std::io::stdout(), "{line}")),
            false => drop(writeln!(std::io::stderr(), "{line}")),
        }
    }

    /// Where the connections of one mechanism went.
    pub fn mechanism(&self, measured: &Measured) {
        let mechanism = measured.mechanism;
        self.say(&format!("\n{} - {}", mechanism.name, mechanism.says));
        self.zones(&measured.connections, &measured.refused);
        let (inside, all) = in_zone(&measured.connections);
        if all > 0 {
            self.say(&format!("  stayed in its zone: {:.1} %", 100.0 * inside as f64 / all as f64));
        }
        for complaint in verdict::complaints(measured) {
            self.say(&format!("  OUT OF LINE: {complaint}"));
        }
    }

    /// From each zone a line, with the share that went to each zone.
    fn zones(&self, connections: &Connections, refused: &BTreeMap<String, u64>) {
        self.say(&format!("  {:<14}{}", "from \\ to", ZONES.map(|zone| format!("{zone:>9}")).concat()));
        for from in ZONES {
            let row = connections.get(from);
            let all: u64 = row.into_iter().flat_map(|row| row.values()).sum();
            let cell = |to: &str| match row.and_then(|row| row.get(to)).copied().unwrap_or_default() {
                0 => format!("{:>9}", "-"),
                count => format!("{:>7.1} %", 100.0 * count as f64 / all as f64),
            };
            let refused = refused.get(from).map(|count| format!("   {count} refused")).unwrap_or_default();
            self.say(&format!("  {from:<14}{}{refused}", ZONES.map(cell).concat()));
        }
    }

    /// What the loss of a zone's pods did.
    pub fn fallback(&self, fallback: &Fallback) {
        self.say(&format!(
            "PreferSameZone without a pod in {}: its clients are served from the other zones.",
            fallback.zone
        ));
        self.zones(&fallback.connections, &BTreeMap::new());
        self.say(&format!("  failed connections: {}", fallback.failed));
    }

    /// How far the replacement is.
    pub fn progress(&self, done: usize, all: usize) {
        if std::io::stderr().is_terminal() {
            let end = if done == all { "\n" } else { "" };
            eprint!("\r  {done} of {all} pods replaced{end}");
        }
    }

    /// What the replacement of pods did.
    pub fn rolling(&self, rolling: &Rolling) {
        self.say(&format!(
            "{} pods replaced, {} connections meanwhile, {} failed.",
            rolling.replaced, rolling.connections, rolling.failed
        ));
    }

    /// Where the requests of each zone went, by version.
    pub fn canary(&self, canary: &Canary) {
        let head: Vec<String> = VERSIONS
            .iter()
            .flat_map(|(v, _)| ZONES.map(|zone| format!("{:>12}", format!("{v} {zone}"))))
            .collect();
        self.say(&format!("  {:<14}{}", "from \\ to", head.concat()));
        for from in ZONES {
            let all = canary.total(from);
            let cell = |version: &str, to: &str| match canary.count(from, version, to) {
                0 => format!("{:>12}", "-"),
                count => format!("{:>10.1} %", 100.0 * count as f64 / all as f64),
            };
            let row: Vec<String> = VERSIONS.iter().flat_map(|(v, _)| ZONES.map(|to| cell(v, to))).collect();
            self.say(&format!("  {from:<14}{}", row.concat()));
        }
        self.say("  v2 has no pod in zone-c, so its share of that zone's requests is the only one that leaves a zone.");
        self.say(&format!("  failed requests: {}", canary.failed));
        for complaint in canary.complaints() {
            self.say(&format!("  OUT OF LINE: {complaint}"));
        }
    }

    /// The sum of it.
    pub fn end(&self, report: &Report) {
        self.say("\nWhat stayed in its zone:");
        for measured in &report.mechanisms {
            let (inside, all) = in_zone(&measured.connections);
            let refused: u64 = measured.refused.values().sum();
            let share = if all == 0 { 0.0 } else { inside as f64 / all as f64 };
            let bar = "#".repeat((share * 30.0).round() as usize);
            let refused = if refused > 0 { format!("  ({refused} refused)") } else { String::new() };
            self.say(&format!("  {:<15}{:>6.1} %  {bar}{refused}", measured.mechanism.name, share * 100.0));
        }
        match report.complaints().as_slice() {
            [] => self.say(&format!(
                "\nEverything went where the plan says, within sampling error. {:.0} seconds.",
                report.seconds
            )),
            complaints => complaints.iter().for_each(|c| self.say(&format!("\nOUT OF LINE: {c}"))),
        }
    }
}

/// How many connections stayed in their zone, and how many there were.
fn in_zone(connections: &Connections) -> (u64, u64) {
    let inside = connections.iter().filter_map(|(from, row)| row.get(from)).sum();
    (inside, connections.values().flat_map(|row| row.values()).sum())
}
