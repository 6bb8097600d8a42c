//! What the demo says: the story for people as it happens, and the numbers for programs.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};

use serde_json::{Value, json};

use super::acts::{Fallback, Rolling};
use super::canary::{Canary, VERSIONS};
use super::layout::ZONES;
use super::measure::{Connections, Measured, Shares};
use super::objects::Mechanism;
use super::verdict;

/// Everything that was measured.
pub struct Report {
    /// Act one.
    pub mechanisms: Vec<(Mechanism, Measured)>,
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
        let mut all: Vec<String> =
            self.mechanisms.iter().flat_map(|(_, measured)| verdict::complaints(measured)).collect();
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
        let mechanism = |(mechanism, measured): &(Mechanism, Measured)| {
            let mut value = measured.value();
            value["name"] = mechanism.name.into();
            value
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

    /// The head of the table of mechanisms.
    pub fn head(&self) {
        self.say("                 stayed in its zone  busiest pod's load");
        self.say("                 measured  planned   measured  planned");
    }

    /// One row of it.
    pub fn mechanism(&self, mechanism: Mechanism, measured: &Measured) {
        let percent =
            |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{:.1} %", 100.0 * share));
        let (seen, planned) = match measured.busiest() {
            Some(busiest) => (format!("{:.1}x", busiest.measured), format!("{:.1}x", busiest.planned)),
            None => ("-".to_owned(), "-".to_owned()),
        };
        self.say(&format!(
            "  {:<15}{:>8}{:>9}{:>10}{:>9}  {}",
            mechanism.name,
            percent(measured.in_zone()),
            percent(measured.planned.in_zone()),
            seen,
            planned,
            mechanism.says
        ));
        for complaint in verdict::complaints(measured) {
            self.say(&format!("  OUT OF LINE: {complaint}"));
        }
    }

    /// What the table shows.
    pub fn compared(&self, mechanisms: &[(Mechanism, Measured)]) {
        let found = |name: &str| mechanisms.iter().find(|(mechanism, _)| mechanism.name == name);
        let (Some((_, zone)), Some((_, spill))) = (found("PreferSameZone"), found("Spill")) else { return };
        let load = |measured: &Measured| measured.busiest().map_or(0.0, |busiest| busiest.planned);
        let kept = |measured: &Measured| 100.0 * measured.planned.in_zone().unwrap_or_default();
        self.say(&format!(
            "\nLoad is a multiple of the fair share: what a pod gets if all pods get the same.\n\
             PreferSameZone keeps {:.0} %, but zone-c has 4 of the 18 pods for a third of the\n\
             clients: each of them gets {:.1} times its fair share. Spill keeps {:.0} %: zone-c\n\
             sends away only what its pods cannot take, and the busiest pod gets {:.1} times.",
            kept(zone),
            load(zone),
            kept(spill),
            load(spill)
        ));
        self.say("\nSpill from zone to zone, measured (planned):");
        self.say(&zones(&spill.connections, Some(&spill.planned.zones), &spill.refused));
    }

    /// What the loss of a zone's pods did.
    pub fn fallback(&self, fallback: &Fallback) {
        self.say(&format!(
            "Without a pod in {}, PreferSameZone serves its clients from the other zones.",
            fallback.zone
        ));
        self.say(&zones(&fallback.connections, None, &BTreeMap::new()));
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
            .flat_map(|(v, _)| ZONES.map(|zone| format!("{:>11}", format!("{v} {zone}"))))
            .collect();
        self.say(&format!("  {:<10}{}", "from \\ to", head.concat()));
        for from in ZONES {
            let all = canary.total(from);
            let cell = |version: &str, to: &str| match canary.count(from, version, to) {
                0 => format!("{:>11}", "-"),
                count => format!("{:>9.1} %", 100.0 * count as f64 / all as f64),
            };
            let row: Vec<String> = VERSIONS.iter().flat_map(|(v, _)| ZONES.map(|to| cell(v, to))).collect();
            self.say(&format!("  {from:<10}{}", row.concat()));
        }
        self.say("  v2 has no pod in zone-c: its tenth of that zone's requests is all that leaves.");
        self.say(&format!("  failed requests: {}", canary.failed));
        for complaint in canary.complaints() {
            self.say(&format!("  OUT OF LINE: {complaint}"));
        }
    }

    /// The last words.
    pub fn end(&self, report: &Report) {
        match report.complaints().as_slice() {
            [] => self.say(&format!(
                "\nEverything went where the plan says, within sampling error. {:.0} seconds.",
                report.seconds
            )),
            complaints => complaints.iter().for_each(|c| self.say(&format!("\nOUT OF LINE: {c}"))),
        }
    }
}

/// From each zone a line with the share that went to each zone, and the planned one in parentheses.
pub fn zones(connections: &Connections, planned: Option<&Shares>, refused: &BTreeMap<String, u64>) -> String {
    let width = if planned.is_some() { 18 } else { 10 };
    let mut lines =
        vec![format!("  {:<10}{}", "from \\ to", ZONES.map(|zone| format!("{zone:>width$}")).concat())];
    for from in ZONES.into_iter().filter(|from| connections.contains_key(*from)) {
        let row = connections.get(from);
        let all: u64 = row.into_iter().flat_map(|row| row.values()).sum();
        let cell = |to: &str| {
            let count = row.and_then(|row| row.get(to)).copied().unwrap_or_default();
            let seen = if all == 0 { 0.0 } else { 100.0 * count as f64 / all as f64 };
            let share = planned.map(|rows| rows.get(from).and_then(|row| row.get(to)).copied());
            let text = match share {
                None | Some(None) if count == 0 => "-".to_owned(),
                None => format!("{seen:.1} %"),
                Some(share) => format!("{seen:.1} % ({:.1})", 100.0 * share.unwrap_or_default()),
            };
            format!("{text:>width$}")
        };
        let refused = refused.get(from).map(|count| format!("   {count} refused")).unwrap_or_default();
        lines.push(format!("  {from:<10}{}{refused}", ZONES.map(cell).concat()));
    }
    lines.join("\n")
}
