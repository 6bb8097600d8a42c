//! MeshLoadBalancing: how the proxies of some clients send requests to a Service.
//!
//! A field of a policy is absent or a whole: of two policies, each field comes from the one of higher precedence that has
//! it. The flags of the proxy decide what no policy sets.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::backend::CircuitBreakerLimits;
use crate::duration::GoDuration;
use crate::gateway_api::ObjectIdentity;
use crate::name::{Name, ServiceKey};
use crate::notice::ObjectRef;
use crate::route::policy::PolicyTarget;
use crate::route::retry::RouteRetry;
use crate::route::rule::{Percentage, RequestTimeouts};
use crate::route::rule_json::{percentage_value, retry_value};

/// A MeshLoadBalancing: the settings of some clients for some Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshLoadBalancing {
    pub identity: ObjectIdentity,
    /// The clients, or a gateway (`spec.targetRef`).
    pub target: PolicyTarget,
    pub to: Box<[ToLoadBalancing]>,
}

/// The settings for one destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToLoadBalancing {
    /// `None`: every Service that the policy may apply to.
    pub service: Option<ServiceKey>,
    pub settings: Arc<LoadBalancing>,
}

impl MeshLoadBalancing {
    /// The policy's name in answers and Notices.
    pub fn object(&self) -> ObjectRef {
        let key = &self.identity.key;
        ObjectRef::new("MeshLoadBalancing", &key.namespace, &key.name)
    }

    /// Whether it says the same and has the same precedence.
    pub fn is_same(&self, other: &Self) -> bool {
        self.target == other.target && self.to == other.to && self.identity.created == other.identity.created
    }
}

/// `default` of a destination.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadBalancing {
    /// Which zones get requests, by the proxy's own zone; the first that is for it counts.
    pub localities: Option<Box<[LocalityRule]>>,
    pub algorithm: Option<LbAlgorithm>,
    pub slow_start: Option<SlowStart>,
    pub outlier_detection: Option<OutlierLimits>,
    /// Below this percentage of endpoints that are not ejected, ejection is disregarded.
    pub panic_threshold: Option<u8>,
    pub circuit_breakers: Option<CircuitBreakerFields>,
    pub retries: Option<RetryDefaults>,
    pub timeouts: Option<TimeoutDefaults>,
    /// Of requests to the Service: in the mesh as their destination, at a gateway as the backend of their rule.
    pub rate_limit: Option<RateLimit>,
    /// Of the same requests.
    pub faults: Option<FaultInjection>,
}

/// The zones that get the requests of some proxies, in place of the Service's traffic distribution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalityRule {
    /// The zones of the proxies; empty: every proxy.
    pub from: Box<[Name]>,
    /// Each takes over what those before it cannot serve.
    pub priorities: Box<[LocalityPriority]>,
}

/// The zones that share requests by weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalityPriority {
    pub zones: Box<[WeightedZone]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedZone {
    pub zone: ZoneMatch,
    /// Relative to the other zones of its priority, however many endpoints they have.
    pub weight: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ZoneMatch {
    Named(Name),
    /// The proxy's own zone.
    Same,
    /// All zones that the rule does not name, together; endpoints without a zone, too.
    Other,
}

impl LocalityRule {
    pub fn is_for(&self, proxy_zone: Option<&str>) -> bool {
        self.from.is_empty() || self.from.iter().any(|zone| Some(zone.as_str()) == proxy_zone)
    }

    /// The priority of a zone's endpoints, and the place of the zone in it; `None`: they get no requests. A name counts
    /// before Same, and Same before Other.
    pub fn place(&self, zone: Option<&str>, proxy_zone: Option<&str>) -> Option<(usize, usize)> {
        let order = |on: &ZoneMatch| match on {
            ZoneMatch::Named(name) => (Some(name.as_str()) == zone).then_some(0),
            ZoneMatch::Same => (zone.is_some() && zone == proxy_zone).then_some(1),
            ZoneMatch::Other => Some(2),
        };
        let all = self.priorities.iter().enumerate().flat_map(|(priority, group)| {
            group.zones.iter().enumerate().map(move |(i, weighted)| ((priority, i), &weighted.zone))
        });
        let matching = all.filter_map(|(place, on)| Some((order(on)?, place)));
        matching.min().map(|(_, place)| place)
    }
}

/// How one of several endpoints is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LbAlgorithm {
    RoundRobin,
    /// The less loaded of two that are drawn by weight.
    LeastRequest,
    RingHash(HashOn),
    Maglev(HashOn),
}

/// What requests of one endpoint have in common. A request without it goes to any endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashOn {
    /// In lower case.
    Header(Name),
    Cookie(Name),
    /// The address of the client.
    SourceIp,
}

impl LbAlgorithm {
    pub fn hash_on(&self) -> Option<&HashOn> {
        match self {
            Self::RingHash(on) | Self::Maglev(on) => Some(on),
            Self::RoundRobin | Self::LeastRequest => None,
        }
    }
}

/// The part of its share that a new endpoint gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowStart {
    /// Until it has all of its share.
    pub window: Duration,
    /// The least part, at the beginning.
    pub min_weight_percent: u8,
    /// In thousandths: 1000 rises evenly, more rises faster at the beginning.
    pub aggression: u32,
}

impl SlowStart {
    pub const MIN_WEIGHT_PERCENT: u8 = 10;
    pub const EVEN: u32 = 1_000;

    /// With a part of a tenth at the beginning, which rises evenly.
    pub fn even(window: Duration) -> Self {
        Self { window, min_weight_percent: Self::MIN_WEIGHT_PERCENT, aggression: Self::EVEN }
    }

    /// The part of its share that an endpoint of this age gets.
    pub fn factor(&self, age: Duration) -> f32 {
        if age >= self.window {
            return 1.0;
        }
        let elapsed = age.as_secs_f32() / self.window.as_secs_f32();
        let risen = match self.aggression {
            Self::EVEN => elapsed,
            aggression => elapsed.powf(Self::EVEN as f32 / aggression as f32),
        };
        risen.clamp(f32::from(self.min_weight_percent) / 100.0, 1.0)
    }
}

/// Outlier detection by consecutive failures: no connection, no response, or one of the statuses 502 to 504.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutlierLimits {
    /// Failures that eject an endpoint; 0 disables ejection.
    pub consecutive_failures: u32,
    /// The duration of the first ejection; the n-th in a row takes n times as long, up to ten times.
    pub base_ejection_time: Duration,
    pub max_ejection_percent: u32,
}

impl Default for OutlierLimits {
    fn default() -> Self {
        Self {
            consecutive_failures: 5,
            base_ejection_time: Duration::from_secs(10),
            max_ejection_percent: 50,
        }
    }
}

/// The circuit breakers that a policy has; absent ones are the proxy's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CircuitBreakerFields {
    pub max_connections: Option<u32>,
    pub max_pending_requests: Option<u32>,
    pub max_requests: Option<u32>,
    pub max_retries: Option<u32>,
}

impl CircuitBreakerFields {
    pub fn or(&self, otherwise: &CircuitBreakerLimits) -> CircuitBreakerLimits {
        CircuitBreakerLimits {
            max_connections: self.max_connections.unwrap_or(otherwise.max_connections),
            max_pending_requests: self.max_pending_requests.unwrap_or(otherwise.max_pending_requests),
            max_requests: self.max_requests.unwrap_or(otherwise.max_requests),
            max_retries: self.max_retries.unwrap_or(otherwise.max_retries),
        }
    }
}

/// The retries of rules that have none themselves, and the budget of all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetryDefaults {
    /// `None`: only what no endpoint has seen is sent again.
    pub retry: Option<RouteRetry>,
    pub budget: Option<RetryBudget>,
}

/// A bound on retries in flight, in place of the circuit breaker `maxRetries`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryBudget {
    /// Of the requests in flight.
    pub percent: u8,
    /// Retries that are always allowed.
    pub min_concurrent: u32,
}

impl RetryBudget {
    pub const MIN_CONCURRENT: u32 = 3;

    /// Retries in flight, for so many requests in flight.
    pub fn limit(&self, requests: usize) -> u32 {
        let share = requests.saturating_mul(self.percent.into()) / 100;
        u32::try_from(share).unwrap_or(u32::MAX).max(self.min_concurrent)
    }
}

/// The timeouts of a destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeoutDefaults {
    /// Until a connection to an endpoint is established.
    pub connect: Option<Duration>,
    /// Of rules that have none themselves, field by field.
    pub requests: RequestTimeouts,
}

impl RequestTimeouts {
    /// Each absent timeout is that of `otherwise`.
    #[must_use]
    pub fn or(self, otherwise: Self) -> Self {
        Self {
            request: self.request.or(otherwise.request),
            backend_request: self.backend_request.or(otherwise.backend_request),
        }
    }
}

/// Requests of one proxy to a destination; more get 429.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// The size of the token bucket, which is filled evenly within the interval.
    pub requests: u32,
    pub interval: Duration,
}

/// Delays and errors of a part of the requests, for tests of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultInjection {
    pub delay: Option<InjectedDelay>,
    pub abort: Option<InjectedAbort>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InjectedDelay {
    pub duration: Duration,
    pub share: Percentage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InjectedAbort {
    pub status: u16,
    pub share: Percentage,
}

impl Percentage {
    /// Whether a request is one of this share, for a random number.
    pub fn includes(self, random: u64) -> bool {
        random % u64::from(Self::ALL.0) < u64::from(self.0)
    }
}

/// The settings of one consumer for one destination, after merging.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EffectiveLoadBalancing {
    pub settings: LoadBalancing,
    /// Where each field that is set comes from, in the order of fields.
    pub origins: Box<[FieldOrigin]>,
}

/// The policy that a field comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldOrigin {
    pub field: &'static str,
    pub policy: ObjectRef,
    /// As `spec.to[0].default`.
    pub place: String,
}

impl LoadBalancing {
    /// Fills in absent fields from settings of lower precedence, and returns their names.
    pub fn fill(&mut self, lower: &Self) -> Vec<&'static str> {
        fn take<T: Clone>(own: &mut Option<T>, lower: &Option<T>) -> bool {
            let is_taken = own.is_none() && lower.is_some();
            if is_taken {
                own.clone_from(lower);
            }
            is_taken
        }
        let taken = [
            ("localities", take(&mut self.localities, &lower.localities)),
            ("algorithm", take(&mut self.algorithm, &lower.algorithm)),
            ("slowStart", take(&mut self.slow_start, &lower.slow_start)),
            ("outlierDetection", take(&mut self.outlier_detection, &lower.outlier_detection)),
            ("panicThreshold", take(&mut self.panic_threshold, &lower.panic_threshold)),
            ("circuitBreakers", take(&mut self.circuit_breakers, &lower.circuit_breakers)),
            ("retries", take(&mut self.retries, &lower.retries)),
            ("timeouts", take(&mut self.timeouts, &lower.timeouts)),
            ("rateLimit", take(&mut self.rate_limit, &lower.rate_limit)),
            ("faults", take(&mut self.faults, &lower.faults)),
        ];
        taken.into_iter().filter(|(_, is_taken)| *is_taken).map(|(name, _)| name).collect()
    }

    /// The zones for a proxy; `None`: as the Service's traffic distribution says.
    pub fn locality_rule(&self, proxy_zone: Option<&str>) -> Option<&LocalityRule> {
        self.localities.as_ref()?.iter().find(|rule| rule.is_for(proxy_zone))
    }

    /// Whether requests are limited, or get faults.
    pub fn has_request_filters(&self) -> bool {
        self.rate_limit.is_some() || self.faults.is_some()
    }

    pub fn hash_on(&self) -> Option<&HashOn> {
        self.algorithm.as_ref()?.hash_on()
    }

    /// A field that has no effect on connections without HTTP.
    pub fn needs_http(&self) -> Option<&'static str> {
        let has_request_timeouts = self.request_timeouts() != RequestTimeouts::default();
        [
            ("algorithm.hashOn", matches!(self.hash_on(), Some(HashOn::Header(_) | HashOn::Cookie(_)))),
            ("retries", self.retry().is_some()),
            ("timeouts", has_request_timeouts),
            ("rateLimit", self.rate_limit.is_some()),
            ("faults", self.faults.is_some()),
        ]
        .into_iter()
        .find_map(|(field, is_set)| is_set.then_some(field))
    }

    /// The retries of rules without their own.
    pub fn retry(&self) -> Option<&RouteRetry> {
        self.retries.as_ref()?.retry.as_ref()
    }

    /// The timeouts of rules without their own.
    pub fn request_timeouts(&self) -> RequestTimeouts {
        self.timeouts.map(|timeouts| timeouts.requests).unwrap_or_default()
    }

    /// As in the policy: the output of `plan routes`.
    pub fn value(&self) -> Value {
        let mut value = Map::new();
        let mut put = |name: &str, field: Option<Value>| {
            if let Some(field) = field {
                value.insert(name.to_owned(), field);
            }
        };
        put("localities", self.localities.as_ref().map(|rules| rules.iter().map(locality_value).collect()));
        put("algorithm", self.algorithm.as_ref().map(algorithm_value));
        put("slowStart", self.slow_start.as_ref().map(slow_start_value));
        put("outlierDetection", self.outlier_detection.as_ref().map(outlier_value));
        put("panicThreshold", self.panic_threshold.map(Value::from));
        put("circuitBreakers", self.circuit_breakers.as_ref().map(breakers_value));
        put("retries", self.retries.as_ref().map(retries_value));
        put("timeouts", self.timeouts.as_ref().map(timeout_defaults_value));
        put(
            "rateLimit",
            self.rate_limit
                .map(|limit| json!({"requests": limit.requests, "interval": duration_value(limit.interval)})),
        );
        put("faults", self.faults.as_ref().map(faults_value));
        value.into()
    }
}

fn duration_value(duration: Duration) -> Value {
    GoDuration(duration).to_string().into()
}

fn locality_value(rule: &LocalityRule) -> Value {
    let zone = |weighted: &WeightedZone| match &weighted.zone {
        ZoneMatch::Named(name) => json!({"name": name.as_str(), "weight": weighted.weight}),
        ZoneMatch::Same => json!({"type": "Same", "weight": weighted.weight}),
        ZoneMatch::Other => json!({"type": "Other", "weight": weighted.weight}),
    };
    let priority =
        |priority: &LocalityPriority| json!({"zones": priority.zones.iter().map(zone).collect::<Value>()});
    let mut value = json!({"priorities": rule.priorities.iter().map(priority).collect::<Value>()});
    if !rule.from.is_empty() {
        value["from"] = rule.from.iter().map(Name::as_str).collect();
    }
    value
}

fn algorithm_value(algorithm: &LbAlgorithm) -> Value {
    let kind = match algorithm {
        LbAlgorithm::RoundRobin => "RoundRobin",
        LbAlgorithm::LeastRequest => "LeastRequest",
        LbAlgorithm::RingHash(_) => "RingHash",
        LbAlgorithm::Maglev(_) => "Maglev",
    };
    let mut value = json!({"type": kind});
    if let Some(on) = algorithm.hash_on() {
        value["hashOn"] = match on {
            HashOn::Header(name) => json!({"type": "Header", "name": name.as_str()}),
            HashOn::Cookie(name) => json!({"type": "Cookie", "name": name.as_str()}),
            HashOn::SourceIp => json!({"type": "SourceIP"}),
        };
    }
    value
}

fn slow_start_value(slow_start: &SlowStart) -> Value {
    let mut value = json!({"window": duration_value(slow_start.window)});
    if slow_start.min_weight_percent != SlowStart::MIN_WEIGHT_PERCENT {
        value["minWeightPercent"] = slow_start.min_weight_percent.into();
    }
    if slow_start.aggression != SlowStart::EVEN {
        value["aggression"] =
            (f64::from(slow_start.aggression) / f64::from(SlowStart::EVEN)).to_string().into();
    }
    value
}

fn outlier_value(limits: &OutlierLimits) -> Value {
    json!({"consecutiveFailures": limits.consecutive_failures,
        "baseEjectionTime": duration_value(limits.base_ejection_time),
        "maxEjectionPercent": limits.max_ejection_percent})
}

fn breakers_value(fields: &CircuitBreakerFields) -> Value {
    let all = [
        ("maxConnections", fields.max_connections),
        ("maxPendingRequests", fields.max_pending_requests),
        ("maxRequests", fields.max_requests),
        ("maxRetries", fields.max_retries),
    ];
    let set = all.into_iter().filter_map(|(name, limit)| Some((name.to_owned(), limit?.into())));
    Value::Object(set.collect())
}

fn retries_value(retries: &RetryDefaults) -> Value {
    let mut value = retries.retry.as_ref().map_or_else(|| json!({}), retry_value);
    if let Some(budget) = &retries.budget {
        value["budget"] = json!({"percent": budget.percent, "minConcurrent": budget.min_concurrent});
    }
    value
}

fn timeout_defaults_value(timeouts: &TimeoutDefaults) -> Value {
    let all = [
        ("connect", timeouts.connect),
        ("request", timeouts.requests.request),
        ("backendRequest", timeouts.requests.backend_request),
    ];
    let set = all.into_iter().filter_map(|(name, limit)| Some((name.to_owned(), duration_value(limit?))));
    Value::Object(set.collect())
}

fn faults_value(faults: &FaultInjection) -> Value {
    let mut value = json!({});
    if let Some(delay) = &faults.delay {
        value["delay"] = json!({"duration": duration_value(delay.duration),
            "percentage": percentage_value(delay.share)});
    }
    if let Some(abort) = &faults.abort {
        value["abort"] = json!({"status": abort.status, "percentage": percentage_value(abort.share)});
    }
    value
}
