//! Whether the reports of a zone agree with its plan. A node that counts wrongly reports a split that its weights do not
//! give: after three comparisons in a row its zone counts as silent, and after three that agree it counts again.

use std::time::Duration;

use model::Name;

use super::{DemandInput, DemandMemory, WRITE_INTERVAL, ZoneMeasurement};
use crate::spill::row;

/// Reports are new at each comparison.
const INTERVAL: Duration = Duration::from_secs(30);
/// Comparisons in a row.
const TIMES: u8 = 3;
/// How far the share of a target zone may be off.
const SLACK: f64 = 0.1;
/// Connections between two comparisons below which a split says nothing.
const MIN_CONNECTIONS: f64 = 50.0;

/// Agreement of one zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ZoneTrust {
    is_distrusted: bool,
    /// Comparisons in a row that say otherwise.
    against: u8,
}

impl ZoneTrust {
    pub(super) fn is_distrusted(&self) -> bool {
        self.is_distrusted
    }

    /// Nothing speaks against it.
    pub(super) fn is_clean(&self) -> bool {
        !self.is_distrusted && self.against == 0
    }

    fn after(self, agrees: bool) -> Self {
        if agrees != self.is_distrusted {
            return Self { against: 0, ..self };
        }
        match self.against + 1 >= TIMES {
            true => Self { is_distrusted: !self.is_distrusted, against: 0 },
            false => Self { against: self.against + 1, ..self },
        }
    }
}

impl DemandMemory {
    /// Compares the measured split of each zone with its row. Returns the zones that are now distrusted.
    pub(super) fn compare_splits(&mut self, input: &DemandInput<'_>) -> Vec<Name> {
        if !input.compares_splits || self.compared.is_some_and(|at| at.after(INTERVAL) > input.now) {
            return Vec::new();
        }
        self.compared = Some(input.now);
        // Nodes need time to follow, and reports to tell.
        let is_fresh =
            self.written.back().is_some_and(|at| at.after(WRITE_INTERVAL + 2 * INTERVAL) > input.now);
        let mut found = Vec::new();
        for zone in input.measured.iter().filter(|z| !z.is_silent()) {
            let rate = zone.rate();
            if is_fresh || rate * INTERVAL.as_secs_f64() < MIN_CONNECTIONS {
                continue;
            }
            let trust = self.trust_by_zone.entry(zone.zone.clone()).or_default();
            let before = trust.is_distrusted;
            *trust = trust.after(agrees(zone, input));
            if trust.is_distrusted && !before {
                found.push(zone.zone.clone());
            }
        }
        self.trust_by_zone.retain(|zone, _| input.measured.iter().any(|z| z.zone == *zone));
        found
    }
}

fn agrees(zone: &ZoneMeasurement, input: &DemandInput<'_>) -> bool {
    let Some(row) = row(input.applied, input.endpoints_by_zone, &zone.zone) else { return true };
    let total: f64 = zone.rate_by_target.values().sum();
    let planned = |to: &Name| row.iter().find(|(name, _)| name == to).map_or(0.0, |(_, share)| *share);
    let measured = |to: &Name| zone.rate_by_target.get(to).map_or(0.0, |rate| rate / total);
    let targets = row.iter().map(|(to, _)| to).chain(zone.rate_by_target.keys());
    targets.into_iter().all(|to| (measured(to) - planned(to)).abs() <= SLACK)
}
