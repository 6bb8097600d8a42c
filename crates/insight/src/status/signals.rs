//! The figures of a report that are metrics, with a bound on their number: the Services with a row in the ledger, all
//! others as one row.

use std::collections::{BTreeMap, BTreeSet};

use model::{Name, ServiceKey};

use super::{
    InZoneShares, Rate, ServiceEvaluation, ServiceStatus, StatusReport, cents, in_zone, rounded, summed,
};
use crate::ledger::{MAX_SERVICES, TrafficOwner, TrafficRow, TrafficSums};

/// What is exported of one Service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceSignal {
    /// Empty for the row of all others.
    pub namespace: String,
    pub name: String,
    pub in_zone: InZoneShares,
    /// The largest overload of an endpoint by the plan.
    pub overload: Option<f64>,
    pub cost_per_month: Option<f64>,
    pub honored: bool,
}

/// What is exported of a report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatusSignals {
    /// At most 201.
    pub services: Vec<ServiceSignal>,
    /// Of all Services.
    pub not_honored: usize,
    pub cost_per_month: Option<f64>,
    pub avoidable_per_month: Option<f64>,
    /// The largest overload of a zone's endpoints by the plan of a Service with traffic.
    pub overload_by_zone: BTreeMap<Name, f64>,
}

/// The name of the row of all other Services, which no Service can have.
const OTHERS: &str = "OtherServices";

/// The signals of a report on all Services. Services that are not honoured come first, then those with most bytes.
pub fn signals(
    report: &StatusReport,
    evaluations: &BTreeMap<ServiceKey, ServiceEvaluation>,
    traffic: Option<&TrafficSums>,
    price: &dyn Fn(&str, &str) -> Option<f64>,
) -> StatusSignals {
    let mut wanted: Vec<&ServiceStatus> =
        report.services.iter().filter(|s| !s.honored || s.bytes_per_day.is_some()).collect();
    let bytes = |s: &ServiceStatus| s.bytes_per_day.unwrap_or(0.0);
    wanted.sort_by(|a, b| {
        let by_bytes = bytes(b).total_cmp(&bytes(a));
        let by_name = || (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name));
        a.honored.cmp(&b.honored).then(by_bytes).then_with(by_name)
    });
    let (shown, others) = wanted.split_at(wanted.len().min(MAX_SERVICES));
    let mut services: Vec<ServiceSignal> = shown.iter().map(|s| signal(s)).collect();
    services.extend(other_services(shown, others, traffic, price));
    let mut overload_by_zone: BTreeMap<Name, f64> = BTreeMap::new();
    for row in traffic.into_iter().flat_map(|sums| &sums.rows) {
        let evaluation = owner_key(&row.owner).and_then(|key| evaluations.get(&key));
        for (zone, overload) in evaluation.into_iter().flat_map(|e| &e.overload_by_zone) {
            let worst = overload_by_zone.entry(zone.clone()).or_insert(f64::MIN);
            *worst = worst.max(rounded(*overload));
        }
    }
    StatusSignals {
        services,
        not_honored: report.summary.not_honored.len(),
        cost_per_month: report.summary.cost_per_month,
        avoidable_per_month: report.summary.avoidable_per_month,
        overload_by_zone,
    }
}

fn signal(service: &ServiceStatus) -> ServiceSignal {
    ServiceSignal {
        namespace: service.namespace.clone(),
        name: service.name.clone(),
        in_zone: service.in_zone,
        overload: service.worst_overload,
        cost_per_month: service.cost_per_month,
        honored: service.honored,
    }
}

/// The row of all others, if there are any. Their demand by Service is not known, so neither is their plan.
fn other_services(
    shown: &[&ServiceStatus],
    others: &[&ServiceStatus],
    traffic: Option<&TrafficSums>,
    price: &dyn Fn(&str, &str) -> Option<f64>,
) -> Option<ServiceSignal> {
    let shown: BTreeSet<(&str, &str)> =
        shown.iter().map(|s| (s.namespace.as_str(), s.name.as_str())).collect();
    let is_other = |row: &&TrafficRow| match &row.owner {
        TrafficOwner::Service { namespace, name } => !shown.contains(&(namespace.as_str(), name.as_str())),
        TrafficOwner::OtherServices => true,
        TrafficOwner::NotThroughService => false,
    };
    let pairs = summed(traffic.into_iter().flat_map(|sums| &sums.rows).filter(is_other));
    if pairs.is_empty() && others.is_empty() {
        return None;
    }
    let rate = Rate { window: traffic.map_or(0, |sums| sums.window_seconds) as f64, price };
    let overloads = others.iter().filter_map(|s| s.worst_overload);
    Some(ServiceSignal {
        namespace: String::new(),
        name: OTHERS.to_owned(),
        in_zone: InZoneShares { measured: in_zone(&pairs), ..InZoneShares::default() },
        overload: overloads.max_by(f64::total_cmp),
        cost_per_month: rate.cost_per_month(&pairs).map(cents),
        honored: others.iter().all(|s| s.honored),
    })
}

fn owner_key(owner: &TrafficOwner) -> Option<ServiceKey> {
    match owner {
        TrafficOwner::Service { namespace, name } => {
            Some(ServiceKey::new(&namespace.as_str().into(), &name.as_str().into()))
        }
        TrafficOwner::OtherServices | TrafficOwner::NotThroughService => None,
    }
}
