//! Condition TrafficDistributionObserved: compares each window of measured connections with the plan of the Services that
//! request a mechanism. Windows count only while the slices have been the same, and every node had time to program them.

use std::collections::BTreeMap;
use std::time::Duration;

use model::{Service, ServiceKey};
use plan::hints::Condition;
use plan::status::{Observation, agreement, observed_condition};
use plan::work_queue::MonotonicTime;
use tracing::info;

use super::slice_reconciler::SliceReconciler;
use super::status_board::{TrafficSource, rows_by_service};

/// One window. The ledger counts by the minute.
const WINDOW: Duration = Duration::from_secs(60);
/// How long the slices have to be unchanged: a window, and the time until nodes have programmed and reported.
const STABLE: Duration = Duration::from_secs(150);

/// What was observed of each Service.
#[derive(Debug, Default)]
pub(crate) struct Observations {
    by_service: BTreeMap<ServiceKey, Observation>,
    due: MonotonicTime,
}

impl Observations {
    /// The condition of a Service, once known.
    pub fn condition(&self, service: &Service) -> Option<Condition> {
        observed_condition(self.by_service.get(&service.key)?)
    }

    pub fn forget(&mut self, key: &ServiceKey) {
        self.by_service.remove(key);
    }

    pub fn clear(&mut self) {
        self.by_service.clear();
    }
}

impl SliceReconciler {
    /// Compares the last window with the plan, once per window.
    pub(crate) fn compare_with_plan(&mut self, traffic: &TrafficSource, now: MonotonicTime) {
        if !self.plans() || now < self.observations.due {
            return;
        }
        self.observations.due = now.after(WINDOW);
        let Some(sums) = traffic.sums(WINDOW) else { return };
        let mut turned = Vec::new();
        for (key, window) in rows_by_service(&sums) {
            let snapshot = self.cache.snapshot();
            let Some(service) = snapshot.service(&key) else { continue };
            let last = self.last_syncs.get(&key).filter(|last| last.requested);
            let is_stable = last.is_some_and(|last| last.revision.1.after(STABLE) <= now);
            if !is_stable || self.is_unacknowledged(&key) || !Observation::applies(service) {
                continue;
            }
            let Some(evaluator) = self.evaluations.evaluator(snapshot) else { return };
            let planned = evaluator.planned(service, snapshot.slices(&key), None);
            let before = self.observations.by_service.get(&key);
            let before = before.cloned().unwrap_or_else(|| Observation::from_condition(service));
            let found = agreement(&planned, window);
            let (after, has_turned) = before.after(&found);
            if has_turned {
                info!(service = %key, as_planned = after.as_planned, ?found, "measured split compared with the plan");
                turned.push(key.clone());
            }
            self.observations.by_service.insert(key, after);
        }
        for key in turned {
            self.enqueue(&key, now);
        }
    }
}
