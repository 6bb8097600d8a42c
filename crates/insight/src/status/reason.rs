//! Why the traffic of a Service leaves its zone, and what the figures do not cover. Sentences name what to do where there
//! is no command for it.

use model::{Service, TrafficPolicy};

use super::{InZoneShares, NEGLIGIBLE, ServiceEvaluation, ServiceStatus, denied};
use crate::ledger::{TrafficOwner, TrafficSums};
use plan::hints::Mechanism;
use plan::hints::conditions::{ACCEPTED, HONORED, PROGRAMMED};
use plan::select::not_proxied;

/// A measured share that is this much below the planned one needs a remark.
const BELOW_PLAN: f64 = 0.1;

/// The first reason that applies, most specific first.
pub(super) fn reason(
    service: &Service,
    evaluation: Option<&ServiceEvaluation>,
    shares: &InZoneShares,
) -> Option<String> {
    if let Some(why) = not_proxied(service) {
        return Some(format!("not proxied: {why}"));
    }
    let evaluation = evaluation?;
    if !evaluation.is_serving() {
        return Some("no ready endpoint".to_owned());
    }
    if let Some(message) = refused_by_condition(service) {
        return Some(message);
    }
    if evaluation.planned.refused > NEGLIGIBLE {
        let refused = percent(evaluation.planned.refused);
        return Some(format!(
            "{refused} of the traffic is refused: zones without an endpoint may use no other"
        ));
    }
    if service.internal_policy == TrafficPolicy::Local {
        return Some("internalTrafficPolicy is Local, which overrides every mechanism".to_owned());
    }
    if shares.planned.is_some_and(|planned| planned < 1.0 - NEGLIGIBLE) {
        return Some(planned_to_cross(evaluation));
    }
    let (measured, planned) = (shares.measured?, shares.planned?);
    (planned - measured > BELOW_PLAN).then(|| {
        "measured below plan: connections older than the plan, session affinity, or clients that nodes do not proxy"
            .to_owned()
    })
}

/// What the conditions of the Service say, if the distribution is not in effect.
fn refused_by_condition(service: &Service) -> Option<String> {
    let message = |kind| denied(&service.conditions, kind);
    let found = [ACCEPTED, PROGRAMMED, HONORED].into_iter().find_map(message);
    found.map(|(reason, message)| format!("{reason}: {message}"))
}

fn planned_to_cross(evaluation: &ServiceEvaluation) -> String {
    if evaluation.mechanism == Mechanism::None && evaluation.change.is_some() {
        return "no traffic distribution is set: nodes use all endpoints alike".to_owned();
    }
    if let Some(change) = &evaluation.change {
        return format!(
            "{} would keep {} in zone at overload {}",
            change.mechanism.as_str(),
            percent(change.in_zone),
            percent(change.max_overload)
        );
    }
    match &evaluation.lacking {
        Some((zone, sends, has)) => format!(
            "endpoints are elsewhere: {zone} sends {} and has {} of the endpoints",
            percent(*sends),
            percent(*has)
        ),
        None => "no setting keeps more in zone without overload".to_owned(),
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// What the report cannot show.
pub(super) fn limits(traffic: Option<&TrafficSums>, services: &[ServiceStatus]) -> Vec<String> {
    let mut limits = Vec::new();
    let mut say = |applies: bool, text: String| limits.extend(applies.then_some(text));
    let Some(sums) = traffic else {
        say(true, "no traffic is counted: no node has reported yet".to_owned());
        return limits;
    };
    let gaps = sums.gaps;
    say(sums.reporters == 0, "no traffic is counted: no node has reported yet".to_owned());
    say(
        gaps.lost_events > 0,
        format!("{} overflows of conntrack events: bytes are too low", gaps.lost_events),
    );
    say(gaps.dropped_counts > 0, format!("{} counts found no place in a bounded table", gaps.dropped_counts));
    say(
        gaps.unaccounted_flows > 0,
        format!("{} open connections are older than the counting and never count", gaps.unaccounted_flows),
    );
    say(!sums.silent.is_empty(), format!("no traffic report for 90 s: {}", sums.silent.join(", ")));
    let beyond = sums.rows.iter().any(|row| row.owner == TrafficOwner::OtherServices);
    say(beyond, "Services beyond the bound of the ledger are in the sums only".to_owned());
    let pending = services.iter().filter(|s| s.mechanism.is_empty() && s.reason.is_none()).count();
    say(pending > 0, format!("{pending} Services are not evaluated yet"));
    limits
}
