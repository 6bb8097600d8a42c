//! Rate limits and injected faults: HTTP filters of listeners, which do nothing without the configuration of routes.
//!
//! ```text
//! in the mesh     the virtual host of the destination has both, so that all of its routes share a token bucket
//! at a gateway    the route configuration has a token bucket for each backend; routes, or the backends of a split, have
//!                 the faults
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::RuntimeFractionalPercent;
use envoy_types::pb::envoy::config::route::v3::RateLimit as EnvoyRateLimit;
use envoy_types::pb::envoy::config::route::v3::rate_limit::Action;
use envoy_types::pb::envoy::config::route::v3::rate_limit::action::{ActionSpecifier, DestinationCluster};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::{
    LocalRateLimitDescriptor, rate_limit_descriptor,
};
use envoy_types::pb::envoy::extensions::filters::common::fault::v3::FaultDelay;
use envoy_types::pb::envoy::extensions::filters::common::fault::v3::fault_delay::FaultDelaySecifier;
use envoy_types::pb::envoy::extensions::filters::http::fault::v3::fault_abort::ErrorType;
use envoy_types::pb::envoy::extensions::filters::http::fault::v3::{FaultAbort, HttpFault};
use envoy_types::pb::envoy::extensions::filters::http::local_ratelimit::v3::LocalRateLimit;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpFilter, http_filter,
};
use envoy_types::pb::envoy::r#type::v3::{
    FractionalPercent, TokenBucket, fractional_percent::DenominatorType,
};
use envoy_types::pb::google::protobuf::Any;
use model::route::{FaultInjection, INJECTED_FAULT, LoadBalancing, Percentage, RateLimit};
use prost::Message;

use super::protobuf::{any, append, duration, no, number};

const RATE_LIMIT: &str = "envoy.filters.http.local_ratelimit";
/// A name of its own: the listener has another fault filter, which rejects ambiguous paths.
const FAULT: &str = "zoneward.dev/injected-faults";
/// The statistics of both filters.
const STATISTICS: &str = "destination";

/// The filters of a listener; without the configuration of a virtual host they do nothing.
pub(super) fn filters<'p>(policies: impl Iterator<Item = &'p LoadBalancing>) -> Vec<HttpFilter> {
    let (mut has_limit, mut has_faults) = (false, false);
    for policy in policies {
        has_limit |= policy.rate_limit.is_some();
        has_faults |= policy.faults.is_some();
    }
    let filter = |name: &str, config: Any| HttpFilter {
        name: name.to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(config)),
        ..HttpFilter::default()
    };
    let rate_limit = has_limit.then(|| {
        let limit = LocalRateLimit { stat_prefix: STATISTICS.to_owned(), ..LocalRateLimit::default() };
        filter(RATE_LIMIT, any(&limit))
    });
    let fault = has_faults.then(|| filter(FAULT, any(&HttpFault::default())));
    rate_limit.into_iter().chain(fault).collect()
}

/// Appends the configuration to a virtual host.
pub(super) fn append_config(virtual_host: &mut Vec<u8>, policy: Option<&LoadBalancing>) {
    /// Field numbers: `typed_per_filter_config`, and the key and value of a map's entry.
    const CONFIGS: u32 = 15;
    const KEY: u32 = 1;
    const VALUE: u32 = 2;
    let Some(policy) = policy else { return };
    let fault = policy.faults.as_ref().map(|faults| (FAULT, any(&fault(faults))));
    let limit = policy.rate_limit.as_ref().map(|limit| (RATE_LIMIT, any(&rate_limit(limit))));
    for (name, config) in fault.into_iter().chain(limit) {
        let mut entry = Vec::new();
        append(&mut entry, KEY, name.as_bytes());
        append(&mut entry, VALUE, &config.encode_to_vec());
        append(virtual_host, CONFIGS, &entry);
    }
}

/// The faults of a gateway's route to a backend, by filter.
pub(super) fn backend_faults(policy: &LoadBalancing) -> Option<(String, Any)> {
    policy.faults.as_ref().map(|faults| (FAULT.to_owned(), any(&fault(faults))))
}

/// The rate limits of a gateway's route configuration: a token bucket for each cluster with a limit, by filter.
pub(super) fn backend_limits(limits: &BTreeMap<String, RateLimit>) -> Option<(String, Any)> {
    if limits.is_empty() {
        return None;
    }
    let descriptor = |(cluster, limit): (&String, &RateLimit)| LocalRateLimitDescriptor {
        entries: vec![rate_limit_descriptor::Entry {
            key: DESTINATION_CLUSTER.to_owned(),
            value: cluster.clone(),
        }],
        token_bucket: Some(stepwise_bucket(limit)),
        ..LocalRateLimitDescriptor::default()
    };
    let action =
        Action { action_specifier: Some(ActionSpecifier::DestinationCluster(DestinationCluster {})) };
    // Requests to other clusters are not limited.
    let unlimited = TokenBucket {
        max_tokens: u32::MAX,
        tokens_per_fill: number(u32::MAX),
        fill_interval: duration(FILL_STEP),
    };
    let config = LocalRateLimit {
        token_bucket: Some(unlimited),
        descriptors: limits.iter().map(descriptor).collect(),
        rate_limits: vec![EnvoyRateLimit { actions: vec![action], ..EnvoyRateLimit::default() }],
        always_consume_default_token_bucket: no(),
        ..enforced()
    };
    Some((RATE_LIMIT.to_owned(), any(&config)))
}

/// The key of Envoy's descriptor for the cluster of a request.
const DESTINATION_CLUSTER: &str = "destination_cluster";
/// Envoy fills the token buckets of descriptors at multiples of this.
const FILL_STEP: Duration = Duration::from_millis(50);

/// A token bucket whose interval is a multiple of [`FILL_STEP`], with the same rate.
fn stepwise_bucket(limit: &RateLimit) -> TokenBucket {
    let steps = limit.interval.as_nanos().div_ceil(FILL_STEP.as_nanos()).max(1);
    let interval = FILL_STEP * u32::try_from(steps).unwrap_or(u32::MAX);
    let ratio = interval.as_secs_f64() / limit.interval.as_secs_f64();
    let tokens = (f64::from(limit.requests) * ratio).round().clamp(1.0, f64::from(u32::MAX)) as u32;
    TokenBucket {
        max_tokens: limit.requests,
        tokens_per_fill: number(tokens),
        fill_interval: duration(interval),
    }
}

fn rate_limit(limit: &RateLimit) -> LocalRateLimit {
    LocalRateLimit {
        token_bucket: Some(TokenBucket {
            max_tokens: limit.requests,
            tokens_per_fill: number(limit.requests),
            fill_interval: duration(limit.interval),
        }),
        ..enforced()
    }
}

/// For all requests.
fn enforced() -> LocalRateLimit {
    let all = || {
        let default_value = Some(share(Percentage::ALL));
        Some(RuntimeFractionalPercent { default_value, ..RuntimeFractionalPercent::default() })
    };
    LocalRateLimit {
        stat_prefix: STATISTICS.to_owned(),
        filter_enabled: all(),
        filter_enforced: all(),
        ..LocalRateLimit::default()
    }
}

fn fault(faults: &FaultInjection) -> HttpFault {
    let delay = faults.delay.map(|delay| FaultDelay {
        percentage: Some(share(delay.share)),
        fault_delay_secifier: duration(delay.duration).map(FaultDelaySecifier::FixedDelay),
    });
    let abort = faults.abort.map(|abort| FaultAbort {
        percentage: Some(share(abort.share)),
        response_body: INJECTED_FAULT.to_owned(),
        error_type: Some(ErrorType::HttpStatus(abort.status.into())),
    });
    HttpFault { delay, abort, ..HttpFault::default() }
}

fn share(of: Percentage) -> FractionalPercent {
    FractionalPercent { numerator: of.0, denominator: DenominatorType::Million.into() }
}
