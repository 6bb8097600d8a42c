//! Clusters: protocol, load balancing and outlier detection of a backend. Endpoints are separate resources, so that they
//! change without disturbing connections.

use envoy_types::pb::envoy::config::cluster::v3::circuit_breakers::Thresholds;
use envoy_types::pb::envoy::config::cluster::v3::circuit_breakers::thresholds::RetryBudget;
use envoy_types::pb::envoy::config::cluster::v3::cluster::common_lb_config::{
    LocalityConfigSpecifier, LocalityWeightedLbConfig,
};
use envoy_types::pb::envoy::config::cluster::v3::cluster::{
    ClusterDiscoveryType, CommonLbConfig, DiscoveryType, EdsClusterConfig, LbConfig, LbPolicy,
    LeastRequestLbConfig, RoundRobinLbConfig, SlowStartConfig,
};
use envoy_types::pb::envoy::config::cluster::v3::{CircuitBreakers, Cluster, OutlierDetection};
use envoy_types::pb::envoy::config::core::v3::{
    Http1ProtocolOptions, Http2ProtocolOptions, ProxyProtocolConfig, RuntimeDouble, TransportSocket,
    proxy_protocol_config, transport_socket,
};
use envoy_types::pb::envoy::extensions::transport_sockets::proxy_protocol::v3::ProxyProtocolUpstreamTransport;
use envoy_types::pb::envoy::extensions::transport_sockets::raw_buffer::v3::RawBuffer;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::UpstreamTlsContext;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::HttpProtocolOptions;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::http_protocol_options::explicit_http_config::ProtocolConfig;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::http_protocol_options::{
    ExplicitHttpConfig, UpstreamProtocolOptions,
};
use envoy_types::pb::envoy::r#type::v3::Percent;
use envoy_types::pb::google::protobuf::Any;
use model::backend::{Backend, CircuitBreakerLimits, ProxyProtocol};
use model::route::{AppProtocol, LbAlgorithm, LoadBalancing, OutlierLimits, SlowStart};
use prost::Message;

use super::protobuf::{any, duration, number, same_stream, seconds};

const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
/// The cluster of destinations that are not Services.
pub(super) const PASS_THROUGH: &str = "pass-through";
const CONNECT_SECONDS: i64 = 5;

pub(super) fn render(
    name: &str,
    protocol: AppProtocol,
    backend: &Backend,
    tls: Option<&UpstreamTlsContext>,
    policy: Option<&LoadBalancing>,
) -> Vec<u8> {
    let none = LoadBalancing::default();
    let policy = policy.unwrap_or(&none);
    let inner = match tls {
        None => None,
        Some(tls) => {
            let mut tls = tls.clone();
            // ALPN offers what is spoken.
            let spoken: &[&str] = match protocol {
                AppProtocol::Http => &["http/1.1"],
                AppProtocol::Http2 | AppProtocol::Grpc => &["h2"],
                AppProtocol::Tcp => &[],
            };
            tls.common_tls_context.get_or_insert_default().alpn_protocols =
                spoken.iter().map(|name| (*name).to_owned()).collect();
            Some(socket("envoy.transport_sockets.tls", any(&tls)))
        }
    };
    let mut cluster = Cluster {
        name: name.to_owned(),
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Eds.into())),
        eds_cluster_config: Some(EdsClusterConfig { eds_config: same_stream(), service_name: String::new() }),
        // Within a zone by the policy, else the less loaded of two; among zones by weight.
        lb_policy: lb_policy(policy).into(),
        lb_config: lb_config(policy).filter(|_| !backend.is_warmed),
        common_lb_config: Some(CommonLbConfig {
            // Semantics, xDS 6: without this Envoy ignores the weights of localities.
            locality_config_specifier: Some(LocalityConfigSpecifier::LocalityWeightedLbConfig(
                LocalityWeightedLbConfig {},
            )),
            healthy_panic_threshold: policy.panic_threshold.and_then(percent),
            ..CommonLbConfig::default()
        }),
        outlier_detection: match policy.outlier_detection {
            Some(limits) => outlier_limits(&limits),
            None => Some(outlier_detection()),
        },
        ignore_health_on_host_removal: true,
        transport_socket: match backend.proxy_protocol {
            Some(version) => Some(proxy_protocol_socket(version, inner)),
            None => inner,
        },
        ..base(policy)
    };
    if protocol.is_http() {
        cluster.typed_extension_protocol_options =
            [(HTTP_OPTIONS.to_owned(), any(&http_protocol_options(protocol)))].into_iter().collect();
    }
    cluster.encode_to_vec()
}

pub(super) fn pass_through() -> Vec<u8> {
    let cluster = Cluster {
        name: PASS_THROUGH.to_owned(),
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::OriginalDst.into())),
        lb_policy: LbPolicy::ClusterProvided.into(),
        ..base(&LoadBalancing::default())
    };
    cluster.encode_to_vec()
}

/// Writes a PROXY protocol header at the start of each connection. Envoy does not share these among clients.
fn proxy_protocol_socket(version: ProxyProtocol, inner: Option<TransportSocket>) -> TransportSocket {
    let version = match version {
        ProxyProtocol::V1 => proxy_protocol_config::Version::V1,
        ProxyProtocol::V2 => proxy_protocol_config::Version::V2,
    };
    let plain = || socket("envoy.transport_sockets.raw_buffer", any(&RawBuffer {}));
    let transport = ProxyProtocolUpstreamTransport {
        config: Some(ProxyProtocolConfig { version: version.into(), ..ProxyProtocolConfig::default() }),
        transport_socket: Some(inner.unwrap_or_else(plain)),
        ..ProxyProtocolUpstreamTransport::default()
    };
    socket("envoy.transport_sockets.upstream_proxy_protocol", any(&transport))
}

fn socket(name: &str, config: Any) -> TransportSocket {
    TransportSocket {
        name: name.to_owned(),
        config_type: Some(transport_socket::ConfigType::TypedConfig(config)),
    }
}

fn lb_policy(policy: &LoadBalancing) -> LbPolicy {
    match &policy.algorithm {
        None | Some(LbAlgorithm::LeastRequest) => LbPolicy::LeastRequest,
        Some(LbAlgorithm::RoundRobin) => LbPolicy::RoundRobin,
        Some(LbAlgorithm::RingHash(_)) => LbPolicy::RingHash,
        Some(LbAlgorithm::Maglev(_)) => LbPolicy::Maglev,
    }
}

/// Slow start, unless the plan's weights contain it.
fn lb_config(policy: &LoadBalancing) -> Option<LbConfig> {
    let slow_start = policy.slow_start?;
    let even = SlowStart::EVEN;
    let slow_start_config = Some(SlowStartConfig {
        slow_start_window: duration(slow_start.window),
        aggression: (slow_start.aggression != even).then(|| RuntimeDouble {
            default_value: f64::from(slow_start.aggression) / f64::from(even),
            // Envoy requires a key.
            runtime_key: "zoneward.slow_start.aggression".to_owned(),
        }),
        min_weight_percent: percent(slow_start.min_weight_percent),
    });
    match lb_policy(policy) {
        LbPolicy::LeastRequest => Some(LbConfig::LeastRequestLbConfig(LeastRequestLbConfig {
            slow_start_config,
            ..LeastRequestLbConfig::default()
        })),
        LbPolicy::RoundRobin => Some(LbConfig::RoundRobinLbConfig(RoundRobinLbConfig { slow_start_config })),
        _ => None,
    }
}

fn percent(value: u8) -> Option<Percent> {
    Some(Percent { value: value.into() })
}

/// As the embedded proxy: one count of connection errors, timeouts and the statuses 502 to 504.
fn outlier_limits(limits: &OutlierLimits) -> Option<OutlierDetection> {
    (limits.consecutive_failures > 0).then(|| OutlierDetection {
        consecutive_gateway_failure: number(limits.consecutive_failures),
        enforcing_consecutive_gateway_failure: number(100),
        enforcing_consecutive_5xx: number(0),
        enforcing_success_rate: number(0),
        enforcing_failure_percentage: number(0),
        interval: seconds(1),
        base_ejection_time: duration(limits.base_ejection_time),
        max_ejection_time: duration(limits.base_ejection_time * 10),
        max_ejection_percent: number(limits.max_ejection_percent),
        ..OutlierDetection::default()
    })
}

fn base(policy: &LoadBalancing) -> Cluster {
    // The defaults of the embedded proxy.
    let limits = policy.circuit_breakers.unwrap_or_default().or(&CircuitBreakerLimits::default());
    let budget = policy.retries.as_ref().and_then(|retries| retries.budget);
    let connect = policy.timeouts.and_then(|timeouts| timeouts.connect);
    let thresholds = Thresholds {
        max_connections: number(limits.max_connections),
        max_pending_requests: number(limits.max_pending_requests),
        max_requests: number(limits.max_requests),
        max_retries: number(limits.max_retries),
        retry_budget: budget.map(|budget| RetryBudget {
            budget_percent: percent(budget.percent),
            min_retry_concurrency: number(budget.min_concurrent),
            ..RetryBudget::default()
        }),
        ..Thresholds::default()
    };
    Cluster {
        connect_timeout: connect.map_or_else(|| seconds(CONNECT_SECONDS), duration),
        circuit_breakers: Some(CircuitBreakers {
            thresholds: vec![thresholds],
            ..CircuitBreakers::default()
        }),
        ..Cluster::default()
    }
}

/// Ejects endpoints that cannot be reached. Responses do not count: a backend that returns 500 to every request must
/// still be reachable.
fn outlier_detection() -> OutlierDetection {
    OutlierDetection {
        split_external_local_origin_errors: true,
        consecutive_local_origin_failure: number(3),
        enforcing_consecutive_local_origin_failure: number(100),
        enforcing_local_origin_success_rate: number(0),
        enforcing_consecutive_5xx: number(0),
        enforcing_consecutive_gateway_failure: number(0),
        enforcing_success_rate: number(0),
        enforcing_failure_percentage: number(0),
        interval: seconds(1),
        base_ejection_time: seconds(5),
        max_ejection_percent: number(100),
        ..OutlierDetection::default()
    }
}

fn http_protocol_options(protocol: AppProtocol) -> HttpProtocolOptions {
    let config = match protocol {
        AppProtocol::Http2 | AppProtocol::Grpc => {
            ProtocolConfig::Http2ProtocolOptions(Http2ProtocolOptions::default())
        }
        AppProtocol::Http | AppProtocol::Tcp => {
            ProtocolConfig::HttpProtocolOptions(Http1ProtocolOptions::default())
        }
    };
    HttpProtocolOptions {
        upstream_protocol_options: Some(UpstreamProtocolOptions::ExplicitHttpConfig(ExplicitHttpConfig {
            protocol_config: Some(config),
        })),
        ..HttpProtocolOptions::default()
    }
}
