//! Rate limits and injected faults of a destination: HTTP filters of its listeners, configured by its virtual host, so that
//! all of its routes share a token bucket.

use envoy_types::pb::envoy::config::core::v3::RuntimeFractionalPercent;
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

use super::protobuf::{any, append, duration, number};

const RATE_LIMIT: &str = "envoy.filters.http.local_ratelimit";
/// A name of its own: the listener has another fault filter, which rejects ambiguous paths.
const FAULT: &str = "zoneward.dev/injected-faults";
/// The statistics of both filters.
const STATISTICS: &str = "destination";

/// The filters of a listener; without the configuration of a virtual host they do nothing.
pub(super) fn filters(policy: Option<&LoadBalancing>) -> Vec<HttpFilter> {
    let Some(policy) = policy else { return Vec::new() };
    let filter = |name: &str, config: Any| HttpFilter {
        name: name.to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(config)),
        ..HttpFilter::default()
    };
    let rate_limit = policy.rate_limit.map(|_| {
        let limit = LocalRateLimit { stat_prefix: STATISTICS.to_owned(), ..LocalRateLimit::default() };
        filter(RATE_LIMIT, any(&limit))
    });
    let fault = policy.faults.map(|_| filter(FAULT, any(&HttpFault::default())));
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

fn rate_limit(limit: &RateLimit) -> LocalRateLimit {
    let all = || {
        let default_value = Some(share(Percentage::ALL));
        Some(RuntimeFractionalPercent { default_value, ..RuntimeFractionalPercent::default() })
    };
    LocalRateLimit {
        stat_prefix: STATISTICS.to_owned(),
        token_bucket: Some(TokenBucket {
            max_tokens: limit.requests,
            tokens_per_fill: number(limit.requests),
            fill_interval: duration(limit.interval),
        }),
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
