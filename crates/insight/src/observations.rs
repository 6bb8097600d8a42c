//! Condition TrafficDistributionObserved: compares each window of measured connections with the plan of the Services that
//! request a mechanism. Windows count only while the slices have been the same, and every node had time to program them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::status::{Observation, agreement, not_compared_condition, observed_condition};
use model::{Service, ServiceKey, Snapshot};
use plan::hints::Condition;
use plan::work_queue::MonotonicTime;
use tracing::info;

use crate::status_board::{Evaluations, LedgerView, rows_by_service};

/// One window. The ledger counts by the minute.
const WINDOW: Duration = Duration::from_secs(60);
/// How long the slices have to be unchanged: a window, and the time until nodes have programmed and reported.
const STABLE: Duration = Duration::from_secs(150);

/// What was observed of each Service.
#[derive(Debug, Default)]
pub struct Observations {
    by_service: BTreeMap<ServiceKey, Observation>,
    due: MonotonicTime,
}

impl Observations {
    /// The condition of a Service, once known. A Service that gained session affinity has an unknown one.
    pub fn condition(&self, service: &Service) -> Option<Condition> {
        if !Observation::applies(service) {
            return not_compared_condition(service);
        }
        observed_condition(self.by_service.get(&service.key)?)
    }

    pub fn forget(&mut self, key: &ServiceKey) {
        self.by_service.remove(key);
    }

    pub fn clear(&mut self) {
        self.by_service.clear();
    }

    /// Compares the last window with the plan, once per window, and returns the Services whose condition turned.
    /// `is_steady` tells whether a Service requests a mechanism, its slices have been the same for that long, and all nodes
    /// have acknowledged them.
    pub fn compare(
        &mut self,
        evaluations: &mut Evaluations,
        snapshot: &Snapshot,
        traffic: &LedgerView,
        now: MonotonicTime,
        is_steady: impl Fn(&ServiceKey, Duration) -> bool,
    ) -> Vec<ServiceKey> {
        if now < self.due {
            return Vec::new();
        }
        self.due = now.after(WINDOW);
        let Some(sums) = traffic.sums(WINDOW) else { return Vec::new() };
        let mut turned = Vec::new();
        for (key, window) in rows_by_service(&sums) {
            let Some(service) = snapshot.service(&key) else { continue };
            if !Observation::applies(service) {
                self.forget(&key);
                continue;
            }
            if !is_steady(&key, STABLE) {
                continue;
            }
            let Some(evaluator) = evaluations.evaluator(snapshot) else { return Vec::new() };
            let planned = evaluator.planned(service, snapshot.slices(&key), None);
            let before = self.by_service.get(&key);
            let before = before.cloned().unwrap_or_else(|| Observation::from_condition(service));
            let found = agreement(&planned, window);
            let (after, has_turned) = before.after(&found);
            if has_turned {
                info!(service = %key, as_planned = after.as_planned, ?found, "measured split compared with the plan");
                turned.push(key.clone());
            }
            self.by_service.insert(key, after);
        }
        turned
    }
}
