//! Output of the demo: progress and tables on the console, and the JSON report.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};

use serde_json::{Value, json};

use super::canary::{CanaryTraffic, VERSIONS};
use super::deviation;
use super::layout::ZONES;
use super::measure::{Connections, MeasuredTraffic, Shares};
use super::objects::ComparedMechanism;
use super::steps::{RollingUpdate, ZoneFailover};

pub(crate) struct DemoReport {
    pub mechanisms: Vec<(ComparedMechanism, MeasuredTraffic)>,
    pub fallback: ZoneFailover,
    pub rolling: RollingUpdate,
    pub canary: CanaryTraffic,
    pub seconds: f64,
}

impl DemoReport {
    /// Differences from the plan, as messages.
    pub(crate) fn deviations(&self) -> Vec<String> {
        let mut all: Vec<String> =
            self.mechanisms.iter().flat_map(|(_, measured)| deviation::deviations(measured)).collect();
        if self.fallback.failed > 0 {
            all.push(format!(
                "{} connections failed after the pods of {} were removed",
                self.fallback.failed, self.fallback.zone
            ));
        }
        if self.rolling.failed > 0 {
            all.push(format!("{} connections failed while pods were replaced", self.rolling.failed));
        }
        all.extend(self.canary.deviations());
        all
    }

    /// JSON with stable fields.
    pub(crate) fn value(&self) -> Value {
        let mechanism = |(mechanism, measured): &(ComparedMechanism, MeasuredTraffic)| {
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
            "complaints": self.deviations(),
        })
    }
}

/// Progress on standard output, or on standard error if standard output is JSON or YAML.
pub(crate) struct Console {
    stdout: bool,
}

impl Console {
    pub(crate) fn new(stdout: bool) -> Self {
        Self { stdout }
    }

    /// Prints a line; a closed pipe is ignored.
    pub(crate) fn print(&self, line: &str) {
        match self.stdout {
            true => drop(writeln!(std::io::stdout(), "{line}")),
            false => drop(writeln!(std::io::stderr(), "{line}")),
        }
    }

    pub(crate) fn mechanism_header(&self) {
        self.print("                 in-zone traffic     load of busiest pod");
        self.print("                 measured  planned   measured  planned");
    }

    pub(crate) fn mechanism(&self, mechanism: ComparedMechanism, measured: &MeasuredTraffic) {
        self.print(&format!(
            "  {:<15}{}  {}",
            mechanism.name,
            traffic_cells(measured),
            mechanism.description
        ));
        for deviation in deviation::deviations(measured) {
            self.print(&format!("  DEVIATION: {deviation}"));
        }
    }

    pub(crate) fn mechanism_summary(&self, mechanisms: &[(ComparedMechanism, MeasuredTraffic)]) {
        let found = |name: &str| mechanisms.iter().find(|(mechanism, _)| mechanism.name == name);
        let (Some((_, zone)), Some((_, spill))) = (found("PreferSameZone"), found("Spill")) else { return };
        let load = |measured: &MeasuredTraffic| measured.busiest().map_or(0.0, |busiest| busiest.planned);
        let kept = |measured: &MeasuredTraffic| 100.0 * measured.planned.in_zone().unwrap_or_default();
        self.print(&format!(
            "\nLoad is a multiple of the fair share, an equal share for each pod.\n\
             PreferSameZone keeps {:.0} % in zone, but zone-c has 4 of the 18 pods for a third of\n\
             the clients: each gets {:.1} times its fair share. Spill keeps {:.0} % in zone: zone-c\n\
             spills only what its pods cannot take, and the busiest pod gets {:.1} times.",
            kept(zone),
            load(zone),
            kept(spill),
            load(spill)
        ));
        self.print("\nSpill from zone to zone, measured (planned):");
        self.print(&zone_table(&spill.connections, Some(&spill.planned.zones), &spill.refused));
    }

    pub(crate) fn fallback(&self, fallback: &ZoneFailover) {
        self.print(&format!(
            "Without pods in {}, PreferSameZone fails over to the other zones.",
            fallback.zone
        ));
        self.print(&zone_table(&fallback.connections, None, &BTreeMap::new()));
        self.print(&format!("  failed connections: {}", fallback.failed));
    }

    pub(crate) fn progress(&self, done: usize, all: usize) {
        if std::io::stderr().is_terminal() {
            let end = if done == all { "\n" } else { "" };
            eprint!("\r  {done} of {all} pods replaced{end}");
        }
    }

    pub(crate) fn rolling(&self, rolling: &RollingUpdate) {
        self.print(&format!(
            "{} pods replaced, {} connections, {} failed.",
            rolling.replaced, rolling.connections, rolling.failed
        ));
    }

    pub(crate) fn canary(&self, canary: &CanaryTraffic) {
        let head: Vec<String> = VERSIONS
            .iter()
            .flat_map(|(v, _)| ZONES.map(|zone| format!("{:>11}", format!("{v} {zone}"))))
            .collect();
        self.print(&format!("  {:<10}{}", "from \\ to", head.concat()));
        for from in ZONES {
            let all = canary.total(from);
            let cell = |version: &str, to: &str| match canary.count(from, version, to) {
                0 => format!("{:>11}", "-"),
                count => format!("{:>9.1} %", 100.0 * count as f64 / all as f64),
            };
            let row: Vec<String> = VERSIONS.iter().flat_map(|(v, _)| ZONES.map(|to| cell(v, to))).collect();
            self.print(&format!("  {from:<10}{}", row.concat()));
        }
        self.print("  v2 has no pod in zone-c: only its 10 % leave that zone.");
        self.print(&format!("  failed requests: {}", canary.failed));
        for deviation in canary.deviations() {
            self.print(&format!("  DEVIATION: {deviation}"));
        }
    }

    pub(crate) fn summary(&self, report: &DemoReport) {
        match report.deviations().as_slice() {
            [] => self.print(&format!(
                "\nAll traffic matches the plan, within sampling error. {:.0} seconds.",
                report.seconds
            )),
            deviations => deviations.iter().for_each(|c| self.print(&format!("\nDEVIATION: {c}"))),
        }
    }
}

/// In-zone traffic and load of the busiest pod, both measured and planned.
pub(crate) fn traffic_cells(measured: &MeasuredTraffic) -> String {
    let percent =
        |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{:.1} %", 100.0 * share));
    let (seen, planned) = match measured.busiest() {
        Some(busiest) => (format!("{:.1}x", busiest.measured), format!("{:.1}x", busiest.planned)),
        None => ("-".to_owned(), "-".to_owned()),
    };
    format!(
        "{:>8}{:>9}{seen:>10}{planned:>9}",
        percent(measured.in_zone()),
        percent(measured.planned.in_zone())
    )
}

/// A table of shares from zone to zone, with the planned ones in parentheses.
pub(crate) fn zone_table(
    connections: &Connections,
    planned: Option<&Shares>,
    refused: &BTreeMap<String, u64>,
) -> String {
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
