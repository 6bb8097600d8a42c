//! Whether the measured split of a Service agrees with the plan: condition TrafficDistributionObserved.
//!
//! Each window compares the connections of every source zone with its planned row. A share may differ by four standard
//! deviations of its sampling error and two points: connections are not independent of each other. The condition turns
//! after three windows in a row that say so; a window with too few connections says nothing.

use std::collections::BTreeMap;

use model::{Service, ServiceType, TrafficPolicy};

use crate::ledger::ZonePairTraffic;
use crate::what_if::TrafficFigures;
use plan::ConditionStatus;
use plan::hints::Condition;
use plan::hints::conditions::OBSERVED;
use plan::select::not_proxied;

/// Windows in a row before the condition turns.
pub const WINDOWS_TO_TURN: u32 = 3;
/// Connections of a zone below which its row says nothing.
const MIN_CONNECTIONS: u64 = 50;
const DEVIATIONS: f64 = 4.0;
const SLACK: f64 = 0.02;

/// What one window says.
#[derive(Clone, Debug, PartialEq)]
pub enum Agreement {
    /// No zone has enough connections.
    TooFew,
    AsPlanned,
    /// The pair of zones that deviates most.
    Deviates {
        from: String,
        to: String,
        planned: f64,
        measured: f64,
    },
}

/// Compares one window with the plan.
pub fn agreement(planned: &TrafficFigures, window: &[ZonePairTraffic]) -> Agreement {
    let rows = planned.rows();
    let mut sent: BTreeMap<&str, u64> = BTreeMap::new();
    let known = || window.iter().filter(|pair| super::has_zones(pair));
    known().for_each(|pair| *sent.entry(&pair.from_zone).or_default() += pair.connections);
    sent.retain(|_, count| *count >= MIN_CONNECTIONS);
    if sent.is_empty() {
        return Agreement::TooFew;
    }
    let mut worst: Option<(f64, Agreement)> = None;
    for (from, count) in &sent {
        let row = rows.iter().find(|(zone, _)| zone.as_str() == *from).map(|(_, row)| row);
        let mut shares: BTreeMap<&str, (f64, u64)> = BTreeMap::new();
        for (to, share) in row.into_iter().flatten() {
            shares.entry(to.as_str()).or_default().0 = *share;
        }
        for pair in known().filter(|pair| pair.from_zone == *from) {
            shares.entry(&pair.to_zone).or_default().1 += pair.connections;
        }
        for (to, (planned, connections)) in shares {
            let measured = connections as f64 / *count as f64;
            let error = (planned * (1.0 - planned) / *count as f64).sqrt();
            let excess = (measured - planned).abs() - (DEVIATIONS * error + SLACK);
            if excess > 0.0 && worst.as_ref().is_none_or(|(known, _)| excess > *known) {
                let (from, to) = ((*from).to_owned(), to.to_owned());
                worst = Some((excess, Agreement::Deviates { from, to, planned, measured }));
            }
        }
    }
    worst.map_or(Agreement::AsPlanned, |(_, deviates)| deviates)
}

/// The memory of a Service's windows, an argument and a result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// The condition's present value, once known.
    pub as_planned: Option<bool>,
    /// Windows in a row that say otherwise.
    against: u32,
    /// What those windows say.
    says: bool,
}

impl Observation {
    /// As the condition says, so that a new leader does not start from nothing.
    pub fn from_condition(service: &Service) -> Self {
        let text = service.conditions.value(OBSERVED);
        let as_planned = text.and_then(|text| match text.split(' ').next() {
            Some("True") => Some(true),
            Some("False") => Some(false),
            _ => None,
        });
        Self { as_planned, ..Self::default() }
    }

    /// The memory after a window, and whether the condition turned.
    pub fn after(&self, window: &Agreement) -> (Self, bool) {
        let says = match window {
            Agreement::TooFew => return (self.clone(), false),
            Agreement::AsPlanned => true,
            Agreement::Deviates { .. } => false,
        };
        if self.as_planned == Some(says) {
            return (Self { as_planned: self.as_planned, ..Self::default() }, false);
        }
        let against = if self.says == says { self.against + 1 } else { 1 };
        match against >= WINDOWS_TO_TURN {
            true => (Self { as_planned: Some(says), ..Self::default() }, true),
            false => (Self { as_planned: self.as_planned, against, says }, false),
        }
    }

    /// Whether the split of a Service can be compared: nodes proxy it, one policy decides, and connections choose anew.
    pub fn applies(service: &Service) -> bool {
        let external = service.kind != ServiceType::ClusterIp || !service.external_ips.is_empty();
        not_proxied(service).is_none()
            && service.internal_policy == TrafficPolicy::Cluster
            && !(external && service.external_policy == TrafficPolicy::Local)
            && service.affinity_seconds.is_none()
    }
}

/// The condition of a Service whose split can no longer be compared; `None` if it never had one.
pub fn not_compared_condition(service: &Service) -> Option<Condition> {
    service.conditions.value(OBSERVED)?;
    let message = "Session affinity or a traffic policy decides where connections go: they are not compared.";
    let (status, reason) = (ConditionStatus::Unknown, "NotCompared");
    Some(Condition { kind: OBSERVED, status, reason, message: message.to_owned() })
}

/// The condition, once it is known. Without numbers: those are in `zoneward status`.
pub fn observed_condition(observation: &Observation) -> Option<Condition> {
    let (status, reason, message) = match observation.as_planned? {
        true => (
            ConditionStatus::True,
            "AsPlanned",
            "Measured connections are spread over zones as planned, within sampling error.",
        ),
        false => (
            ConditionStatus::False,
            "DeviatesFromPlan",
            "Measured connections are not spread over zones as planned, see zoneward status.",
        ),
    };
    Some(Condition { kind: OBSERVED, status, reason, message: message.to_owned() })
}
