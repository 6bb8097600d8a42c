//! ZoneDrains at the end of a run: the zones that the planner of the slices must know, as the controller decided.

use plan::drain::{ZoneDrain, ZoneDrains};
use serde_json::Value;
use store::engine::{Engine, ListQuery, ResourceId};
use store::kinds;

use crate::time::wall_time;
use crate::violation::BrokenInvariant;

/// The drains in force by their statuses. Each must have a decision on its generation.
pub(crate) fn in_force(engine: &Engine, now: u64) -> Result<ZoneDrains, BrokenInvariant> {
    let Some(kind) = kinds::named("ZoneDrain") else { return Ok(ZoneDrains::default()) };
    let page = engine.list(&ListQuery::all(ResourceId(kind.id)));
    let page = page.map_err(|error| BrokenInvariant::new(20, format!("ZoneDrain: {error}")))?;
    let (mut zones, time) = (Vec::new(), wall_time(now));
    for stored in page.items {
        let object: Value = serde_json::from_slice(&stored.json).unwrap_or_default();
        let name = &object["metadata"]["name"];
        let drain = ZoneDrain::parse(&object);
        let drain = drain.map_err(|error| BrokenInvariant::new(20, format!("ZoneDrain {name}: {error}")))?;
        let Some(is_accepted) = drain.accepted else {
            let text = format!("ZoneDrain {name} has no decision on its generation: {object}");
            return Err(BrokenInvariant::new(20, text));
        };
        let is_over = drain.is_over(time);
        if is_over && is_accepted {
            let text = format!("ZoneDrain {name} is over, and its status says that it is accepted");
            return Err(BrokenInvariant::new(20, text));
        }
        if is_accepted && !drain.dry_run {
            let moved = u64::from(drain.window.share_at(time).0 / 10);
            if object["status"]["movedPercent"].as_u64() != Some(moved) {
                let text = format!("ZoneDrain {name} moves {moved} %: {}", object["status"]);
                return Err(BrokenInvariant::new(20, text));
            }
            zones.push((drain.zone, drain.window));
        }
    }
    Ok(ZoneDrains::new(zones))
}
