//! Clusters: protocol, load balancing and outlier detection of a backend. Endpoints are separate resources, so that they
//! change without disturbing connections.

use envoy_types::pb::envoy::config::cluster::v3::circuit_breakers::Thresholds;
use envoy_types::pb::envoy::config::cluster::v3::cluster::common_lb_config::{
    LocalityConfigSpecifier, LocalityWeightedLbConfig,
};
use envoy_types::pb::envoy::config::cluster::v3::cluster::{
    ClusterDiscoveryType, CommonLbConfig, DiscoveryType, EdsClusterConfig, LbPolicy,
};
use envoy_types::pb::envoy::config::cluster::v3::{CircuitBreakers, Cluster, OutlierDetection};
use envoy_types::pb::envoy::config::core::v3::{
    Http1ProtocolOptions, Http2ProtocolOptions, ProxyProtocolConfig, TransportSocket, proxy_protocol_config,
    transport_socket,
};
use envoy_types::pb::envoy::extensions::transport_sockets::proxy_protocol::v3::ProxyProtocolUpstreamTransport;
use envoy_types::pb::envoy::extensions::transport_sockets::raw_buffer::v3::RawBuffer;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::HttpProtocolOptions;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::http_protocol_options::explicit_http_config::ProtocolConfig;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::http_protocol_options::{
    ExplicitHttpConfig, UpstreamProtocolOptions,
};
use model::backend::{Backend, CircuitBreakerLimits, ProxyProtocol};
use model::route::AppProtocol;
use prost::Message;

use super::protobuf::{any, number, same_stream, seconds};

const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
/// The cluster of destinations that are not Services.
pub(super) const PASS_THROUGH: &str = "pass-through";
const CONNECT_SECONDS: i64 = 5;

pub(super) fn render(name: &str, backend: &Backend) -> Vec<u8> {
    let protocol = backend.protocol;
    let mut cluster = Cluster {
        name: name.to_owned(),
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Eds.into())),
        eds_cluster_config: Some(EdsClusterConfig { eds_config: same_stream(), service_name: String::new() }),
        // Within a zone the less loaded of two; among zones by weight.
        lb_policy: LbPolicy::LeastRequest.into(),
        common_lb_config: Some(CommonLbConfig {
            // Semantics, xDS 6: without this Envoy ignores the weights of localities.
            locality_config_specifier: Some(LocalityConfigSpecifier::LocalityWeightedLbConfig(
                LocalityWeightedLbConfig {},
            )),
            ..CommonLbConfig::default()
        }),
        outlier_detection: Some(outlier_detection()),
        ignore_health_on_host_removal: true,
        transport_socket: backend.proxy_protocol.map(proxy_protocol_socket),
        ..base()
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
        ..base()
    };
    cluster.encode_to_vec()
}

/// Writes a PROXY protocol header at the start of each connection. Envoy does not share these among clients.
fn proxy_protocol_socket(version: ProxyProtocol) -> TransportSocket {
    let version = match version {
        ProxyProtocol::V1 => proxy_protocol_config::Version::V1,
        ProxyProtocol::V2 => proxy_protocol_config::Version::V2,
    };
    let socket = |name: &str, config| TransportSocket {
        name: name.to_owned(),
        config_type: Some(transport_socket::ConfigType::TypedConfig(config)),
    };
    let transport = ProxyProtocolUpstreamTransport {
        config: Some(ProxyProtocolConfig { version: version.into(), ..ProxyProtocolConfig::default() }),
        transport_socket: Some(socket("envoy.transport_sockets.raw_buffer", any(&RawBuffer {}))),
        ..ProxyProtocolUpstreamTransport::default()
    };
    socket("envoy.transport_sockets.upstream_proxy_protocol", any(&transport))
}

fn base() -> Cluster {
    // The defaults of the embedded proxy.
    let limits = CircuitBreakerLimits::default();
    let thresholds = Thresholds {
        max_connections: number(limits.max_connections),
        max_pending_requests: number(limits.max_pending_requests),
        max_requests: number(limits.max_requests),
        max_retries: number(limits.max_retries),
        ..Thresholds::default()
    };
    Cluster {
        connect_timeout: seconds(CONNECT_SECONDS),
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
