//! Invariant 20, the conditions: once nothing changes any more, every Service has the conditions that follow from the
//! objects, with all nodes having acknowledged its slices.

use model::service::condition_text;
use model::{Service, Slice, Snapshot};
use plan::PlanningConfig;
use plan::drain::ZoneDrains;
use plan::hints::{self, Hysteresis, NodeAcks};
use plan::planner::Planner;
use plan::slices::TriggerTimes;

use crate::violation::BrokenInvariant;

pub(crate) fn check(snapshot: &Snapshot, planner: &Planner) -> Result<(), BrokenInvariant> {
    let acks = NodeAcks { reached: snapshot.nodes().len(), ..NodeAcks::default() };
    for (service, stored) in snapshot.services() {
        let wanted = expected(snapshot, planner, service, stored, &acks);
        let ours = service.conditions.iter().filter(|(kind, _)| kind.starts_with("zoneward.dev/"));
        let found: Vec<(String, String)> =
            ours.map(|(kind, text)| (kind.to_string(), text.to_string())).collect();
        if found != wanted {
            let text = format!("Service {} has conditions {found:?}, planned {wanted:?}", service.key);
            return Err(BrokenInvariant::new(20, text));
        }
    }
    Ok(())
}

fn expected(
    snapshot: &Snapshot,
    planner: &Planner,
    service: &Service,
    stored: &[Slice],
    acks: &NodeAcks,
) -> Vec<(String, String)> {
    let memory = |family| Hysteresis::from_slices(family, stored);
    let (_, outcomes) = planner.plan(snapshot, service, stored, &TriggerTimes::default(), memory);
    if !outcomes.iter().any(|outcome| outcome.requested) {
        return Vec::new();
    }
    let all = hints::conditions(&outcomes, acks).into_iter();
    let text = |c: &hints::Condition| condition_text(c.status.as_str(), c.reason, &c.message);
    let mut all: Vec<(String, String)> = all.map(|c| (c.kind.to_owned(), text(&c))).collect();
    all.sort();
    all
}

/// The planner of the simulated controllers.
pub(crate) fn planner(snapshot: &Snapshot, drains: ZoneDrains) -> Planner {
    let mut planner = Planner::new(snapshot, PlanningConfig::without_flags());
    planner.drains = Some(drains);
    planner
}
