//! A backend as Envoy keeps it: how endpoints are spoken to, chosen and left out for a while. It says nothing of the
//! endpoints themselves, so it changes hardly ever, and endpoints change without disturbing a connection.

use envoy_types::pb::envoy::config::cluster::v3::circuit_breakers::Thresholds;
use envoy_types::pb::envoy::config::cluster::v3::cluster::common_lb_config::{
    LocalityConfigSpecifier, LocalityWeightedLbConfig,
};
use envoy_types::pb::envoy::config::cluster::v3::cluster::{
    ClusterDiscoveryType, CommonLbConfig, DiscoveryType, EdsClusterConfig, LbPolicy,
};
use envoy_types::pb::envoy::config::cluster::v3::{CircuitBreakers, Cluster, OutlierDetection};
use envoy_types::pb::envoy::config::core::v3::{Http1ProtocolOptions, Http2ProtocolOptions};
use envoy_types::pb::envoy::extensions::upstreams::http::v3::HttpProtocolOptions;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::http_protocol_options::explicit_http_config::ProtocolConfig;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::http_protocol_options::{
    ExplicitHttpConfig, UpstreamProtocolOptions,
};
use model::route::AppProtocol;
use prost::Message;

use super::wire::{any, number, same_stream, seconds};

/// The key of the protocol's options.
const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
/// Where connections go whose destination is no Service of ours.
pub(super) const PASS_THROUGH: &str = "pass-through";
const CONNECT_SECONDS: i64 = 5;
/// Envoy's own bound is 1,024 of each: too few for a busy gateway, and met without a word.
const MANY: u32 = 100_000;
const RETRIES: u32 = 1_000;

/// The message for a backend.
pub(super) fn render(name: &str, protocol: AppProtocol) -> Vec<u8> {
    let mut cluster = Cluster {
        name: name.to_owned(),
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Eds.into())),
        eds_cluster_config: Some(EdsClusterConfig { eds_config: same_stream(), service_name: String::new() }),
        // Among the endpoints of a zone the less loaded of two; among zones by their weights.
        lb_policy: LbPolicy::LeastRequest.into(),
        common_lb_config: Some(CommonLbConfig {
            // Semantics, xDS 6: without this the weights of localities count for nothing.
            locality_config_specifier: Some(LocalityConfigSpecifier::LocalityWeightedLbConfig(
                LocalityWeightedLbConfig {},
            )),
            ..CommonLbConfig::default()
        }),
        outlier_detection: Some(outliers()),
        ignore_health_on_host_removal: true,
        ..base()
    };
    if protocol.is_http() {
        cluster.typed_extension_protocol_options =
            [(HTTP_OPTIONS.to_owned(), any(&spoken(protocol)))].into_iter().collect();
    }
    cluster.encode_to_vec()
}

/// The message of the cluster that sends connections where they were going.
pub(super) fn pass_through() -> Vec<u8> {
    let cluster = Cluster {
        name: PASS_THROUGH.to_owned(),
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::OriginalDst.into())),
        lb_policy: LbPolicy::ClusterProvided.into(),
        ..base()
    };
    cluster.encode_to_vec()
}

fn base() -> Cluster {
    let thresholds = Thresholds {
        max_connections: number(MANY),
        max_pending_requests: number(MANY),
        max_requests: number(MANY),
        max_retries: number(RETRIES),
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

/// An endpoint that cannot be connected to is left out for a while. What it answers is its own affair: a backend that
/// says 500 to everybody would otherwise be taken away from those who want to read that.
fn outliers() -> OutlierDetection {
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

fn spoken(protocol: AppProtocol) -> HttpProtocolOptions {
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
