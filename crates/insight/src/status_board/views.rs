//! What pages show beyond the report: one Service in full, and what a change of it would do. Neither costs more in a
//! cluster with many Services.

use crate::ledger::TrafficOwner;
use crate::status::{self, ServiceView, WhatIfView};
use crate::what_if::{WhatIfChange, WhatIfQuery, setting_command, setting_patch};
use model::{Name, ServiceKey, Snapshot};
use plan::hints::Mechanism;
use plan::select::not_proxied;
use plan::work_queue::MonotonicTime;

use super::{Evaluations, LedgerView, WINDOW, rows_by_service};

/// A change of one Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WhatIfQuestion {
    pub namespace: String,
    pub name: String,
    /// Another mechanism than the present one.
    pub mechanism: Option<Mechanism>,
    pub failed_zone: Option<String>,
    /// Replicas to add or remove, by zone.
    pub replicas: Vec<(String, i64)>,
}

impl Evaluations {
    pub(super) fn view(
        &mut self,
        snapshot: &Snapshot,
        key: &ServiceKey,
        traffic: &LedgerView,
        now: MonotonicTime,
    ) -> Option<ServiceView> {
        let sums = traffic.sums(WINDOW);
        let rows = sums.as_ref().map(rows_by_service).unwrap_or_default();
        self.asked = Some(now);
        let service = snapshot.service(key)?;
        if self.get(key).is_none() {
            self.refresh(snapshot, &rows, Some(key), 1);
        }
        let (slices, pairs) = (snapshot.slices(key), rows.get(key).copied());
        let demand = pairs.and_then(status::demand_of);
        let endpoints = match not_proxied(service) {
            None => {
                let evaluator = self.evaluator(snapshot);
                evaluator.map(|evaluator| evaluator.endpoint_loads(service, slices, demand.as_ref()))
            }
            Some(_) => None,
        };
        let evaluation = self.get(key);
        let change = evaluation.and_then(|evaluation| evaluation.change.as_ref());
        Some(ServiceView {
            detail: status::detail(service, slices, snapshot.nodes(), evaluation, pairs, self.planning.gates),
            endpoints: endpoints.unwrap_or_default(),
            history: traffic.history(Some(&TrafficOwner::from(key))),
            fix: change.map(|change| setting_patch(service, change.mechanism)),
        })
    }

    pub(super) fn what_if(
        &mut self,
        snapshot: &Snapshot,
        question: &WhatIfQuestion,
        traffic: &LedgerView,
    ) -> Option<WhatIfView> {
        let sums = traffic.sums(WINDOW);
        let rows = sums.as_ref().map(rows_by_service).unwrap_or_default();
        let key = ServiceKey::new(&question.namespace.as_str().into(), &question.name.as_str().into());
        let service = snapshot.service(&key)?;
        if not_proxied(service).is_some() {
            return None;
        }
        let demand = rows.get(&key).copied().and_then(status::demand_of);
        let scale: Vec<(Name, i64)> =
            question.replicas.iter().map(|(zone, by)| (Name::new(zone), *by)).collect();
        let query = WhatIfQuery {
            service,
            slices: snapshot.slices(&key),
            namespace_default: snapshot.default_traffic_distribution(&key.namespace),
            scale: &scale,
            measured: demand.as_ref(),
        };
        let change = WhatIfChange {
            mechanism: question.mechanism,
            failed_zone: question.failed_zone.as_deref().map(Name::new),
        };
        let comparison = self.evaluator(snapshot)?.compare(&query, &change);
        let changed = question.mechanism.filter(|mechanism| *mechanism != comparison.before.mechanism);
        Some(WhatIfView {
            comparison,
            is_measured: demand.is_some(),
            command: changed.map(|mechanism| setting_command(service, mechanism).join(" ")),
        })
    }
}
