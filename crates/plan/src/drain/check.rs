//! Whether the other zones can take the traffic of a zone, Service by Service.

use std::collections::BTreeMap;

use model::{Name, Service, ServiceKey, TrafficPolicy};

use crate::hints::{Mechanism, TopologyScope};
use crate::spill::ZoneCapacity;

/// What is known of a Service.
#[derive(Clone, Debug)]
pub struct ServiceLoad<'a> {
    pub service: &'a Service,
    pub mechanism: Mechanism,
    /// Ready endpoints.
    pub capacity_by_zone: BTreeMap<Name, ZoneCapacity>,
    /// New connections per second from all zones, by zone of the endpoint; empty if nothing was reported.
    pub rate_by_target: BTreeMap<Name, f64>,
    /// Connections per second that one endpoint has carried.
    pub proved: Option<f64>,
}

/// What a drain does to a Service.
#[derive(Clone, Debug, PartialEq)]
pub enum DrainVerdict {
    /// The others have carried as much.
    Moves,
    /// It is moved, and whether the others can take it is not known.
    Unproved,
    /// Its traffic must stay: why.
    Stays(String),
    /// The others cannot take it: why.
    Refused(String),
}

/// A Service with endpoints in the zone.
#[derive(Clone, Debug, PartialEq)]
pub struct DrainedService {
    pub service: ServiceKey,
    pub verdict: DrainVerdict,
    /// New connections per second to all zones, and the share of them that goes to the drained one.
    pub rate: f64,
    pub share_in_zone: Option<f64>,
}

/// The verdict on a Service; `None` if it has no endpoint in the zone. `percent` is what is moved.
pub fn check(load: &ServiceLoad<'_>, zone: &Name, percent: u32) -> Option<DrainedService> {
    let own = load.capacity_by_zone.get(zone).filter(|own| own.thousandths() > 0)?;
    let all: ZoneCapacity = load.capacity_by_zone.values().copied().sum();
    let others = all.endpoints() - own.endpoints();
    let rate: f64 = load.rate_by_target.values().sum();
    let to_zone = load.rate_by_target.get(zone).copied().unwrap_or_default();
    let verdict = verdict(load, others, rate, f64::from(percent) / 100.0 * own.endpoints());
    Some(DrainedService {
        service: load.service.key.clone(),
        verdict,
        rate,
        share_in_zone: (rate > 0.0).then(|| to_zone / rate),
    })
}

fn verdict(load: &ServiceLoad<'_>, others: f64, rate: f64, moved: f64) -> DrainVerdict {
    if load.service.internal_policy == TrafficPolicy::Local {
        return DrainVerdict::Stays("internalTrafficPolicy is Local".to_owned());
    }
    if matches!(load.mechanism.required(), Some(TopologyScope::Node | TopologyScope::Zone)) {
        return DrainVerdict::Stays(format!("{} keeps traffic where it is", load.mechanism.as_str()));
    }
    if others <= 0.0 {
        return DrainVerdict::Refused("no endpoint is ready in another zone".to_owned());
    }
    let Some(proved) = load.proved.filter(|proved| *proved > 0.0 && rate > 0.0) else {
        return DrainVerdict::Unproved;
    };
    // Their own traffic is spread evenly, and the moved part comes on top.
    let all: ZoneCapacity = load.capacity_by_zone.values().copied().sum();
    let fair = rate / all.endpoints();
    let then = fair * (others + moved) / others;
    if then > proved {
        return DrainVerdict::Refused(format!(
            "each endpoint elsewhere would get {then:.1} connections/s, and has carried {proved:.1}"
        ));
    }
    DrainVerdict::Moves
}

/// Services that refuse a drain.
pub fn is_refused(services: &[DrainedService]) -> bool {
    services.iter().any(|service| matches!(service.verdict, DrainVerdict::Refused(_)))
}
