//! MeshLoadBalancing: the settings of a destination.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::filters::percentage;
use super::syntax::header_name;
use super::target_ref::{self, TargetRole};
use crate::duration::GoDuration;
use crate::field::{Field, FieldErrors};
use crate::gateway_api::ObjectIdentity;
use crate::name::{Name, ObjectKey};
use crate::route::{
    CircuitBreakerFields, FaultInjection, HashOn, InjectedAbort, InjectedDelay, LbAlgorithm, LoadBalancing,
    LocalityPriority, LocalityRule, MeshLoadBalancing, OutlierLimits, Percentage, PolicyTarget, RateLimit,
    RequestTimeouts, RetryBudget, RetryDefaults, RouteRetry, SlowStart, TimeoutDefaults, ToLoadBalancing,
    WeightedZone, ZoneMatch,
};
use crate::time::Timestamp;

const FIELDS: [&str; 10] = [
    "localities",
    "algorithm",
    "slowStart",
    "outlierDetection",
    "panicThreshold",
    "circuitBreakers",
    "retries",
    "timeouts",
    "rateLimit",
    "faults",
];
/// A longer duration is a mistake.
const MAX_DURATION: Duration = Duration::from_secs(24 * 3600);
/// Envoy fills a token bucket at most this often.
const MIN_INTERVAL: Duration = Duration::from_millis(50);
const MAX_ZONE_WEIGHT: i64 = 1_000_000;
const MAX_COUNT: i64 = i32::MAX as i64;
const MAX_LOCALITIES: usize = 32;
const MAX_PRIORITIES: usize = 8;
const MAX_ZONES: usize = 32;
const MAX_CODES: usize = 32;
const MAX_DURATION_BYTES: usize = 32;

pub(super) fn policy(
    key: ObjectKey,
    metadata: &Value,
    spec: &Field,
    errors: &mut FieldErrors,
) -> MeshLoadBalancing {
    spec.only(&["targetRef", "to"], errors);
    let target_field = spec.child("targetRef");
    let target = target_ref::target(&target_field, TargetRole::Either, errors);
    let tags = target_field.child("tags");
    if matches!(target, PolicyTarget::Gateway(..)) && tags.is_set() {
        errors
            .invalid(&tags, "is not allowed: all listeners of a gateway share the connections to a Service");
    }
    let to = super::destinations(spec, errors);
    let to = to.iter().map(|entry| destination(entry, &key.namespace, errors)).collect();
    let identity = ObjectIdentity {
        key,
        generation: metadata["generation"].as_i64().unwrap_or_default(),
        created: metadata["creationTimestamp"].as_str().and_then(Timestamp::parse),
        added: 0,
    };
    MeshLoadBalancing { identity, target, to }
}

fn destination(entry: &Field, namespace: &Name, errors: &mut FieldErrors) -> ToLoadBalancing {
    entry.only(&["targetRef", "default"], errors);
    let target = entry.child("targetRef");
    let is_everything = target.child("kind").as_str() == Some("Mesh");
    let service = if is_everything {
        target_ref::everything(&target, errors);
        None
    } else {
        Some(target_ref::destination(&target, namespace, errors))
    };
    let at = entry.child("default");
    if !at.is_set() || (at.is_map() && !at.is_nonempty()) {
        errors.invalid(&at, format!("is missing: set at least one of {}", FIELDS.join(", ")));
    }
    ToLoadBalancing { service, settings: Arc::new(settings(&at, errors)) }
}

fn settings(at: &Field, errors: &mut FieldErrors) -> LoadBalancing {
    at.only(&FIELDS, errors);
    let settings = LoadBalancing {
        localities: localities(&at.child("localities"), errors),
        algorithm: algorithm(&at.child("algorithm"), errors),
        slow_start: set(at.child("slowStart"), errors).and_then(|at| slow_start(&at, errors)),
        outlier_detection: set(at.child("outlierDetection"), errors).map(|at| outliers(&at, errors)),
        panic_threshold: count(&at.child("panicThreshold"), 0, 100, errors),
        circuit_breakers: set(at.child("circuitBreakers"), errors).map(|at| breakers(&at, errors)),
        retries: set(at.child("retries"), errors).map(|at| retries(&at, errors)),
        timeouts: set(at.child("timeouts"), errors).map(|at| timeouts(&at, errors)),
        rate_limit: set(at.child("rateLimit"), errors).and_then(|at| rate_limit(&at, errors)),
        faults: set(at.child("faults"), errors).map(|at| faults(&at, errors)),
    };
    if settings.slow_start.is_some() && settings.hash_on().is_some() {
        errors.invalid(
            &at.child("slowStart"),
            "excludes the algorithms RingHash and Maglev: the hash decides on the endpoint, however new it is",
        );
    }
    settings
}

/// A map that is set; an empty one has no effect and is refused.
fn set<'a>(at: Field<'a>, errors: &mut FieldErrors) -> Option<Field<'a>> {
    if at.is_map() && !at.is_nonempty() {
        errors.invalid(&at, "is empty: set one of its fields, or remove it");
    }
    let at = at.map(errors);
    at.is_map().then_some(at)
}

fn localities(at: &Field, errors: &mut FieldErrors) -> Option<Box<[LocalityRule]>> {
    if !at.is_set() {
        return None;
    }
    let rules = at.required_items("rules", errors);
    at.limit(MAX_LOCALITIES, "rules", errors);
    let rules: Box<[LocalityRule]> = rules.iter().map(|rule| locality_rule(rule, errors)).collect();
    // The first rule for a proxy counts.
    if let Some(i) = rules.iter().position(|rule| rule.from.is_empty())
        && i + 1 < rules.len()
    {
        errors.invalid(
            at,
            format!("[{i}] has no from, so no proxy uses the entries after it: make it the last"),
        );
    }
    Some(rules)
}

fn locality_rule(at: &Field, errors: &mut FieldErrors) -> LocalityRule {
    at.only(&["from", "priorities"], errors);
    let from = at.child("from");
    from.limit(MAX_ZONES, "zones", errors);
    let names = if from.is_set() { from.required_items("zones", errors) } else { Vec::new() };
    let from = names.iter().filter_map(|name| zone_name(name, errors)).collect();
    let list = at.child("priorities");
    list.limit(MAX_PRIORITIES, "priorities", errors);
    let priorities = list.required_items("priorities", errors);
    let mut seen: Vec<ZoneMatch> = Vec::new();
    let priorities = priorities.iter().map(|priority| {
        priority.only(&["zones"], errors);
        let list = priority.child("zones");
        list.limit(MAX_ZONES, "zones", errors);
        let zones = list.required_items("zones", errors);
        let zones = zones.iter().filter_map(|zone| weighted_zone(zone, &mut seen, errors)).collect();
        LocalityPriority { zones }
    });
    LocalityRule { from, priorities: priorities.collect() }
}

fn weighted_zone(at: &Field, seen: &mut Vec<ZoneMatch>, errors: &mut FieldErrors) -> Option<WeightedZone> {
    at.only(&["type", "name", "weight"], errors);
    let (field, name) = (at.child("type"), at.child("name"));
    let kind = if field.is_set() { field.keyword(&["Zone", "Same", "Other"], errors)? } else { "Zone" };
    let zone = match kind {
        "Zone" => ZoneMatch::Named(required(zone_name(&name, errors), &name, errors)?),
        _ if name.is_set() => {
            errors.invalid(&name, format!("is not allowed for {kind}"));
            return None;
        }
        "Same" => ZoneMatch::Same,
        _ => ZoneMatch::Other,
    };
    if seen.contains(&zone) {
        errors.invalid(at, "is a zone that the rule has already: a zone has one priority");
    }
    seen.push(zone.clone());
    let weight = count(&at.child("weight"), 1, MAX_ZONE_WEIGHT, errors);
    Some(WeightedZone { zone, weight: weight.unwrap_or(1) })
}

fn zone_name(at: &Field, errors: &mut FieldErrors) -> Option<Name> {
    let text = at.string(errors)?;
    // The value of a label.
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if text.is_empty() || text.len() > 63 || !text.bytes().all(is_allowed) {
        errors.invalid(
            at,
            format!("{text:?} is not the name of a zone: use a value of topology.kubernetes.io/zone"),
        );
        return None;
    }
    Some(Name::new(text))
}

fn algorithm(at: &Field, errors: &mut FieldErrors) -> Option<LbAlgorithm> {
    let at = set(at.clone(), errors)?;
    at.only(&["type", "hashOn"], errors);
    let field = at.child("type");
    let kinds = ["RoundRobin", "LeastRequest", "RingHash", "Maglev"];
    if !field.is_set() {
        errors.invalid(&field, "is missing: use RoundRobin, LeastRequest, RingHash or Maglev");
    }
    let on = at.child("hashOn");
    let kind = field.keyword(&kinds, errors)?;
    if matches!(kind, "RoundRobin" | "LeastRequest") {
        if on.is_set() {
            errors.invalid(&on, format!("is not allowed for {kind}"));
        }
        return Some(if kind == "RoundRobin" { LbAlgorithm::RoundRobin } else { LbAlgorithm::LeastRequest });
    }
    if !on.is_set() {
        errors.invalid(&on, format!("is missing: {kind} needs it, e.g. {{type: Header, name: x-user}}"));
        return None;
    }
    let on = hash_on(&on, errors)?;
    Some(if kind == "Maglev" { LbAlgorithm::Maglev(on) } else { LbAlgorithm::RingHash(on) })
}

fn hash_on(at: &Field, errors: &mut FieldErrors) -> Option<HashOn> {
    at.only(&["type", "name"], errors);
    let (field, name) = (at.child("type"), at.child("name"));
    if !field.is_set() {
        errors.invalid(&field, "is missing: use Header, Cookie or SourceIP");
    }
    match field.keyword(&["Header", "Cookie", "SourceIP"], errors)? {
        "Header" => {
            let name = header_name(&name, errors)?;
            Some(HashOn::Header(Name::new(&name.to_ascii_lowercase())))
        }
        // RFC 6265: the name of a cookie is a token, as that of a header.
        "Cookie" => header_name(&name, errors).map(HashOn::Cookie),
        _ => {
            if name.is_set() {
                errors.invalid(&name, "is not allowed for SourceIP");
            }
            Some(HashOn::SourceIp)
        }
    }
}

fn slow_start(at: &Field, errors: &mut FieldErrors) -> Option<SlowStart> {
    at.only(&["window", "minWeightPercent", "aggression"], errors);
    let least = count(&at.child("minWeightPercent"), 1, 100, errors);
    let aggression = aggression(&at.child("aggression"), errors);
    let window = required(duration(&at.child("window"), errors), &at.child("window"), errors)?;
    Some(SlowStart {
        min_weight_percent: least.unwrap_or(SlowStart::MIN_WEIGHT_PERCENT),
        aggression: aggression.unwrap_or(SlowStart::EVEN),
        ..SlowStart::even(window)
    })
}

/// An integer, or decimals as a string, in thousandths.
fn aggression(at: &Field, errors: &mut FieldErrors) -> Option<u32> {
    if !at.is_set() {
        return None;
    }
    let number = match at.as_str() {
        Some(text) => text.parse::<f64>().ok(),
        None => at.as_whole(),
    };
    let Some(number) = number.filter(|number| (0.1..=10.0).contains(number)) else {
        errors.invalid(at, "is not a number from 0.1 to 10; write decimals in quotes");
        return None;
    };
    Some((number * f64::from(SlowStart::EVEN)).round() as u32)
}

fn outliers(at: &Field, errors: &mut FieldErrors) -> OutlierLimits {
    at.only(&["consecutiveFailures", "baseEjectionTime", "maxEjectionPercent"], errors);
    let otherwise = OutlierLimits::default();
    let failures = count(&at.child("consecutiveFailures"), 0, 1_000_000, errors);
    let percent = count(&at.child("maxEjectionPercent"), 1, 100, errors);
    OutlierLimits {
        consecutive_failures: failures.unwrap_or(otherwise.consecutive_failures),
        base_ejection_time: duration(&at.child("baseEjectionTime"), errors)
            .unwrap_or(otherwise.base_ejection_time),
        max_ejection_percent: percent.unwrap_or(otherwise.max_ejection_percent),
    }
}

fn breakers(at: &Field, errors: &mut FieldErrors) -> CircuitBreakerFields {
    at.only(&["maxConnections", "maxPendingRequests", "maxRequests", "maxRetries"], errors);
    CircuitBreakerFields {
        max_connections: count(&at.child("maxConnections"), 1, MAX_COUNT, errors),
        max_pending_requests: count(&at.child("maxPendingRequests"), 1, MAX_COUNT, errors),
        max_requests: count(&at.child("maxRequests"), 1, MAX_COUNT, errors),
        max_retries: count(&at.child("maxRetries"), 0, MAX_COUNT, errors),
    }
}

fn retries(at: &Field, errors: &mut FieldErrors) -> RetryDefaults {
    at.only(&["attempts", "codes", "backoff", "budget"], errors);
    let attempts: Option<u32> = count(&at.child("attempts"), 1, 10, errors);
    let backoff = duration(&at.child("backoff"), errors);
    let code = |field: &Field, errors: &mut FieldErrors| count(field, 400, 599, errors);
    let listed = at.child("codes");
    listed.limit(MAX_CODES, "codes", errors);
    let codes: Box<[u16]> = listed.items(errors).iter().filter_map(|field| code(field, errors)).collect();
    let is_set = attempts.is_some() || backoff.is_some() || !codes.is_empty();
    RetryDefaults {
        retry: is_set.then_some(RouteRetry { codes, attempts, backoff }),
        budget: set(at.child("budget"), errors).and_then(|at| budget(&at, errors)),
    }
}

fn budget(at: &Field, errors: &mut FieldErrors) -> Option<RetryBudget> {
    at.only(&["percent", "minConcurrent"], errors);
    let min = count(&at.child("minConcurrent"), 0, MAX_COUNT, errors);
    let percent = at.child("percent");
    let percent = required(count(&percent, 0, 100, errors), &percent, errors)?;
    Some(RetryBudget { percent, min_concurrent: min.unwrap_or(RetryBudget::MIN_CONCURRENT) })
}

fn timeouts(at: &Field, errors: &mut FieldErrors) -> TimeoutDefaults {
    at.only(&["connect", "request", "backendRequest"], errors);
    let requests = RequestTimeouts {
        request: duration(&at.child("request"), errors),
        backend_request: duration(&at.child("backendRequest"), errors),
    };
    if let (Some(whole), Some(part)) = (requests.request, requests.backend_request)
        && part > whole
    {
        errors.invalid(&at.child("backendRequest"), "is longer than request, which includes it");
    }
    TimeoutDefaults { connect: duration(&at.child("connect"), errors), requests }
}

fn rate_limit(at: &Field, errors: &mut FieldErrors) -> Option<RateLimit> {
    at.only(&["requests", "interval"], errors);
    let field = at.child("interval");
    let interval = duration(&field, errors).unwrap_or(Duration::from_secs(1));
    if interval < MIN_INTERVAL {
        errors.invalid(&field, "is shorter than 50ms");
    }
    let requests = at.child("requests");
    let requests = required(count(&requests, 1, MAX_COUNT, errors), &requests, errors)?;
    Some(RateLimit { requests, interval })
}

fn faults(at: &Field, errors: &mut FieldErrors) -> FaultInjection {
    at.only(&["delay", "abort"], errors);
    let share = |at: &Field, errors: &mut FieldErrors| {
        percentage(&at.child("percentage"), errors).unwrap_or(Percentage::ALL)
    };
    let delay = set(at.child("delay"), errors).and_then(|at| {
        at.only(&["duration", "percentage"], errors);
        let field = at.child("duration");
        let duration = required(duration(&field, errors), &field, errors)?;
        Some(InjectedDelay { duration, share: share(&at, errors) })
    });
    let abort = set(at.child("abort"), errors).and_then(|at| {
        at.only(&["status", "percentage"], errors);
        let field = at.child("status");
        let status = required(count(&field, 400, 599, errors), &field, errors)?;
        Some(InjectedAbort { status, share: share(&at, errors) })
    });
    FaultInjection { delay, abort }
}

fn required<T>(value: Option<T>, at: &Field, errors: &mut FieldErrors) -> Option<T> {
    if !at.is_set() {
        errors.invalid(at, "is missing");
    }
    value
}

fn count<N: TryFrom<i64>>(at: &Field, low: i64, high: i64, errors: &mut FieldErrors) -> Option<N> {
    at.integer_within(low, high, errors).and_then(|number| N::try_from(number).ok())
}

/// A duration above zero.
fn duration(at: &Field, errors: &mut FieldErrors) -> Option<Duration> {
    at.limit_bytes(MAX_DURATION_BYTES, errors);
    let text = at.string(errors)?;
    match text.parse::<GoDuration>() {
        Ok(GoDuration(duration)) if duration >= Duration::from_millis(1) && duration <= MAX_DURATION => {
            Some(duration)
        }
        Ok(_) => {
            errors.invalid(at, format!("{text:?} is not between 1ms and 24h"));
            None
        }
        Err(problem) => {
            errors.invalid(at, problem);
            None
        }
    }
}
