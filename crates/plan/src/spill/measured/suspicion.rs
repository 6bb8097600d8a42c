//! Nodes that report far more connections than the others of their zone: one that counts wrongly, or a gateway. Reports
//! cannot tell these apart, so the plan must hold for both.
//!
//! The connections of such a node must not let other zones keep more. While they would, the traffic of its zone is spread
//! over all endpoints, and the other zones balance theirs: then every endpoint has its fair share, however much the
//! suspected zone sends. While the proved load allows all that the node reports in its own zone, nothing has to change.

use std::collections::BTreeMap;
use std::time::Duration;

use model::Name;

use super::{DemandInput, DemandMemory, HEADROOM, PROVED_MARGIN, ZoneMeasurement};
use crate::work_queue::MonotonicTime;

/// Far above: this many times the connections of the next node; and no longer so.
const FAR_ABOVE: f64 = 3.0;
const NOT_FAR_ABOVE: f64 = 2.0;
/// Other nodes with connections to the Service, at least: fewer do not tell what is usual in a zone.
const MIN_OTHERS: usize = 3;
/// What the node has above the next one, as a share of all other connections, that is too little to move a plan.
const IMMATERIAL: f64 = 0.05;
/// Fewer connections of the node in half a minute may be chance.
const MIN_CONNECTIONS_PER_SECOND: f64 = 50.0 / 30.0;
/// A Notice is worth it after this time. A node that is not far above for so long is not suspected any more.
const LASTING: Duration = Duration::from_secs(60);
const OVER: Duration = Duration::from_secs(90);
/// A zone is spread until the proved load is so much above what is reported, so that noise does not change the plan.
const HEADROOM_TO_END: f64 = 1.3;

/// A node that reports far more than the others of its zone.
#[derive(Clone, Debug, PartialEq)]
pub struct SuspectedNode {
    pub zone: Name,
    pub node: Name,
    /// Its connections per second, and those of the node with the next most.
    pub rate: f64,
    pub next_rate: f64,
}

/// What is remembered of a suspected node.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Suspicion {
    node: SuspectedNode,
    /// The rate of its zone if it had as much as the next node.
    confirmed_rate: f64,
    since: MonotonicTime,
    /// When it was far above.
    seen: MonotonicTime,
    has_notice: bool,
}

impl ZoneMeasurement {
    /// What the node with the most connections has above the next one, if it is far above and enough others are there.
    fn suspected_rate(&self, far_above: f64) -> Option<f64> {
        let busiest = &self.busiest;
        let is_far_above = !self.is_silent()
            && busiest.others >= MIN_OTHERS
            && busiest.rate >= MIN_CONNECTIONS_PER_SECOND
            && busiest.rate > busiest.next_rate * far_above;
        is_far_above.then(|| (busiest.rate - busiest.next_rate) * self.scale())
    }
}

impl DemandMemory {
    /// Compares the nodes of each zone. A node is suspected at once, since others would keep too much meanwhile. Returns the
    /// nodes that are suspected for long enough to tell.
    pub(super) fn compare_nodes(&mut self, input: &DemandInput<'_>) -> Vec<SuspectedNode> {
        let all: f64 = input.measured.iter().filter(|z| !z.is_silent()).map(ZoneMeasurement::rate).sum();
        for zone in input.measured {
            let known = self.suspicion_by_zone.get(&zone.zone);
            let far_above = if known.is_some() { NOT_FAR_ABOVE } else { FAR_ABOVE };
            let material = |rate: &f64| *rate > IMMATERIAL * (all - *rate).max(0.0);
            let Some(rate) = zone.suspected_rate(far_above).filter(material) else { continue };
            let node = SuspectedNode {
                zone: zone.zone.clone(),
                node: Name::new(&zone.busiest.name),
                rate: zone.busiest.rate,
                next_rate: zone.busiest.next_rate,
            };
            let before = known.filter(|known| known.node.node == node.node);
            let suspicion = Suspicion {
                confirmed_rate: zone.rate() - rate,
                since: before.map_or(input.now, |before| before.since),
                seen: input.now,
                has_notice: before.is_some_and(|before| before.has_notice),
                node,
            };
            self.suspicion_by_zone.insert(zone.zone.clone(), suspicion);
        }
        let rates = &mut self.rate_by_zone;
        self.suspicion_by_zone.retain(|zone, suspicion| {
            let is_suspected = suspicion.seen.after(OVER) > input.now;
            if !is_suspected {
                // Falls are followed slowly, and what the node has reported must not count until then.
                rates.entry(zone.clone()).and_modify(|rate| *rate = rate.min(suspicion.confirmed_rate));
            }
            is_suspected
        });
        let mut found = Vec::new();
        for suspicion in self.suspicion_by_zone.values_mut() {
            if !suspicion.has_notice && suspicion.since.after(LASTING) <= suspicion.seen {
                suspicion.has_notice = true;
                found.push(suspicion.node.clone());
            }
        }
        found
    }

    pub(super) fn suspected(&self) -> Vec<SuspectedNode> {
        self.suspicion_by_zone.values().map(|suspicion| suspicion.node.clone()).collect()
    }

    /// Zones that are spread because of a suspected node, with what the other nodes confirm. A zone is not while the proved
    /// load is above the fair share of all that is reported and above the load of its own endpoints: then no zone keeps
    /// more because of the node, and its own zone spills nothing.
    pub(super) fn confirmed_by_suspected_zone(&self, input: &DemandInput<'_>) -> BTreeMap<Name, f64> {
        let fair = self.rate_by_zone.values().sum::<f64>() / input.endpoints().endpoints().max(0.001);
        let own = |zone: &Name| {
            let endpoints = input.endpoints_by_zone.get(zone).map_or(0.0, |capacity| capacity.endpoints());
            self.rate_by_zone.get(zone).copied().unwrap_or_default() / endpoints.max(0.001)
        };
        let proved = self.proved.filter(|_| input.keeps_proved).map_or(0.0, |proved| proved.now(input.time));
        let keep = self.plan.as_ref().and_then(|plan| plan.keep());
        let counts = |zone: &Name| {
            let is_spread = keep.is_some_and(|keep| keep.spreads(zone));
            let headroom = if is_spread { HEADROOM_TO_END } else { HEADROOM };
            fair.max(own(zone)) * headroom > PROVED_MARGIN * proved
        };
        let confirmed = |(zone, suspicion): (&Name, &Suspicion)| (zone.clone(), suspicion.confirmed_rate);
        self.suspicion_by_zone.iter().filter(|(zone, _)| counts(zone)).map(confirmed).collect()
    }
}
