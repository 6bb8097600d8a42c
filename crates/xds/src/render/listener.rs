//! Where connections arrive: the addresses of Services for a sidecar, the ports of a gateway.

use std::net::SocketAddr;

use envoy_types::pb::envoy::config::accesslog::v3::access_log_filter::FilterSpecifier;
use envoy_types::pb::envoy::config::accesslog::v3::{AccessLogFilter, ResponseFlagFilter};
use envoy_types::pb::envoy::config::core::v3::{
    Http1ProtocolOptions, TrafficDirection, TransportSocket, data_source::Specifier, transport_socket,
};
use envoy_types::pb::envoy::config::listener::v3::{
    Filter, FilterChain, FilterChainMatch, Listener, ListenerFilter, filter, listener_filter,
};
use envoy_types::pb::envoy::extensions::filters::http::router::v3::Router;
use envoy_types::pb::envoy::extensions::filters::listener::original_dst::v3::OriginalDst;
use envoy_types::pb::envoy::extensions::filters::listener::tls_inspector::v3::TlsInspector;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::{
    RouteSpecifier, ServerHeaderTransformation, UpgradeConfig,
};
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, HttpFilter, LocalReplyConfig, Rds, ResponseMapper, http_filter,
};
use envoy_types::pb::envoy::extensions::filters::network::tcp_proxy::v3::TcpProxy;
use envoy_types::pb::envoy::extensions::filters::network::tcp_proxy::v3::tcp_proxy::{
    ClusterSpecifier, WeightedCluster, weighted_cluster::ClusterWeight,
};
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{
    CommonTlsContext, DownstreamTlsContext, SdsSecretConfig,
};
use model::route::{Hostname, WeightedBackends, error_text};
use prost::Message;

use super::action::{NOBODY, weights};
use super::cluster::PASS_THROUGH;
use super::wire::{address, any, no, number, same_stream, seconds, source, yes};

/// What is done with connections.
pub(super) enum Carry<'r> {
    /// Their requests are routed by the routes of this name.
    Http { routes: String, is_edge: bool },
    /// They are carried whole.
    Tcp(&'r WeightedBackends),
    /// They go where they were going.
    PassThrough,
}

/// One way through a listener.
pub(super) struct Chain<'r> {
    pub(super) carry: Carry<'r>,
    /// With TLS: the hosts that it is for.
    pub(super) server_name: Option<Hostname>,
    /// The name of the certificate with which TLS ends here. Without one, TLS is carried on unread.
    pub(super) certificate: Option<String>,
}

impl<'r> Chain<'r> {
    /// In the clear.
    pub(super) fn plain(carry: Carry<'r>) -> Self {
        Self { carry, server_name: None, certificate: None }
    }
}

/// How a listener gets its connections.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrives {
    /// By a port of its own.
    Bound,
    /// From the listener that captures, by their original address.
    HandedOver,
    /// By a redirect; those for a Service are handed over.
    Captured,
}

/// The message.
pub(super) fn render(name: &str, at: SocketAddr, arrives: Arrives, chains: &[Chain<'_>]) -> Vec<u8> {
    let has_tls = chains.iter().any(|chain| chain.server_name.is_some());
    let mut listener_filters = Vec::new();
    if arrives == Arrives::Captured {
        listener_filters.push(listener_filter("envoy.filters.listener.original_dst", any(&OriginalDst {})));
    }
    if has_tls {
        let inspector = any(&TlsInspector::default());
        listener_filters.push(listener_filter("envoy.filters.listener.tls_inspector", inspector));
    }
    let edge = chains.iter().any(|chain| matches!(chain.carry, Carry::Http { is_edge: true, .. }));
    let listener = Listener {
        name: name.to_owned(),
        stat_prefix: name.to_owned(),
        address: address(at),
        filter_chains: chains.iter().map(|chain| filter_chain(name, chain)).collect(),
        listener_filters,
        use_original_dst: (arrives == Arrives::Captured).then(yes).flatten(),
        bind_to_port: (arrives == Arrives::HandedOver).then(no).flatten(),
        traffic_direction: if edge { TrafficDirection::Inbound } else { TrafficDirection::Outbound }.into(),
        // A client decides how fast it reads: more than this is not kept for it.
        per_connection_buffer_limit_bytes: number(1 << 20),
        ..Listener::default()
    };
    listener.encode_to_vec()
}

fn listener_filter(name: &str, config: envoy_types::pb::google::protobuf::Any) -> ListenerFilter {
    let config_type = Some(listener_filter::ConfigType::TypedConfig(config));
    ListenerFilter { name: name.to_owned(), config_type, ..ListenerFilter::default() }
}

fn filter_chain(listener: &str, chain: &Chain<'_>) -> FilterChain {
    let (name, config) = match &chain.carry {
        Carry::Http { routes, is_edge } => {
            ("envoy.filters.network.http_connection_manager", any(&requests(listener, routes, *is_edge)))
        }
        Carry::Tcp(split) => ("envoy.filters.network.tcp_proxy", any(&connections(listener, split))),
        Carry::PassThrough => ("envoy.filters.network.tcp_proxy", any(&whole(listener, PASS_THROUGH))),
    };
    let filter = Filter { name: name.to_owned(), config_type: Some(filter::ConfigType::TypedConfig(config)) };
    let http = matches!(chain.carry, Carry::Http { .. });
    FilterChain {
        filter_chain_match: chain.server_name.as_ref().map(for_host),
        filters: vec![filter],
        transport_socket: chain.certificate.as_ref().map(|certificate| ends_tls(certificate, http)),
        ..FilterChain::default()
    }
}

fn for_host(host: &Hostname) -> FilterChainMatch {
    let server_names = match host {
        Hostname::Any => Vec::new(),
        host => vec![host.to_string()],
    };
    FilterChainMatch { server_names, transport_protocol: "tls".to_owned(), ..FilterChainMatch::default() }
}

fn ends_tls(certificate: &str, http: bool) -> TransportSocket {
    let secret = SdsSecretConfig { name: certificate.to_owned(), sds_config: same_stream() };
    let protocols: &[&str] = if http { &["h2", "http/1.1"] } else { &[] };
    let context = DownstreamTlsContext {
        common_tls_context: Some(CommonTlsContext {
            tls_certificate_sds_secret_configs: vec![secret],
            alpn_protocols: protocols.iter().map(|protocol| (*protocol).to_owned()).collect(),
            ..CommonTlsContext::default()
        }),
        ..DownstreamTlsContext::default()
    };
    TransportSocket {
        name: "envoy.transport_sockets.tls".to_owned(),
        config_type: Some(transport_socket::ConfigType::TypedConfig(any(&context))),
    }
}

fn requests(listener: &str, routes: &str, is_edge: bool) -> HttpConnectionManager {
    // Routes say what is added to a request; Envoy's own headers are not among it.
    let router = Router { suppress_envoy_headers: true, ..Router::default() };
    let router = HttpFilter {
        name: "envoy.filters.http.router".to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(any(&router))),
        ..HttpFilter::default()
    };
    HttpConnectionManager {
        stat_prefix: listener.to_owned(),
        route_specifier: Some(RouteSpecifier::Rds(Rds {
            config_source: same_stream(),
            route_config_name: routes.to_owned(),
        })),
        http_filters: vec![router],
        // Semantics 1.6: `/a/../admin` must not pass a rule for `/a`.
        normalize_path: yes(),
        strip_trailing_host_dot: true,
        server_header_transformation: ServerHeaderTransformation::PassThrough.into(),
        generate_request_id: no(),
        // At the edge nobody has vouched for what a client says of its own address.
        use_remote_address: if is_edge { yes() } else { no() },
        skip_xff_append: !is_edge,
        upgrade_configs: vec![UpgradeConfig {
            upgrade_type: "websocket".to_owned(),
            ..UpgradeConfig::default()
        }],
        http_protocol_options: Some(Http1ProtocolOptions {
            accept_http_10: true,
            ..Http1ProtocolOptions::default()
        }),
        request_headers_timeout: seconds(30),
        local_reply_config: Some(local_replies()),
        ..HttpConnectionManager::default()
    }
}

/// Errors of Envoy itself that have no text there: no route (404), and a share of a backend that cannot be resolved (500).
fn local_replies() -> LocalReplyConfig {
    let mapper = |flag: &str, status: u16| {
        let flags = ResponseFlagFilter { flags: vec![flag.to_owned()] };
        let filter = AccessLogFilter { filter_specifier: Some(FilterSpecifier::ResponseFlagFilter(flags)) };
        let body = source(Specifier::InlineString(error_text(status).to_owned()));
        ResponseMapper { filter: Some(filter), body, ..ResponseMapper::default() }
    };
    LocalReplyConfig { mappers: vec![mapper("NR", 404), mapper("NC", 500)], ..LocalReplyConfig::default() }
}

/// An entry without a backend closes its connections, and so does a split without entries.
fn connections(listener: &str, split: &WeightedBackends) -> TcpProxy {
    let mut proxy = whole(listener, NOBODY);
    if !split.entries().is_empty() {
        let cluster = |(name, weight)| ClusterWeight { name, weight, ..ClusterWeight::default() };
        let clusters = WeightedCluster { clusters: weights(split).map(cluster).collect() };
        proxy.cluster_specifier = Some(ClusterSpecifier::WeightedClusters(clusters));
    }
    proxy
}

fn whole(listener: &str, cluster: &str) -> TcpProxy {
    TcpProxy {
        stat_prefix: listener.to_owned(),
        cluster_specifier: Some(ClusterSpecifier::Cluster(cluster.to_owned())),
        // Another endpoint is tried where one cannot be connected to.
        max_connect_attempts: number(3),
        ..TcpProxy::default()
    }
}
