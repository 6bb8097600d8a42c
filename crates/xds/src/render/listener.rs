//! Listeners: the addresses of Services for a sidecar, the ports of a gateway.

use std::net::SocketAddr;

use envoy_types::pb::envoy::config::accesslog::v3::access_log_filter::FilterSpecifier;
use envoy_types::pb::envoy::config::accesslog::v3::{AccessLogFilter, ResponseFlagFilter};
use envoy_types::pb::envoy::config::core::v3::{
    Http1ProtocolOptions, TrafficDirection, TransportSocket, data_source::Specifier, transport_socket,
};
use envoy_types::pb::envoy::config::listener::v3::{
    Filter, FilterChain, FilterChainMatch, Listener, ListenerFilter, filter, listener_filter,
};
use envoy_types::pb::envoy::extensions::filters::http::cors::v3::Cors;
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
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::common_tls_context::ValidationContextType;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{
    CommonTlsContext, DownstreamTlsContext, SdsSecretConfig,
};
use envoy_types::pb::envoy::r#type::v3::{HashPolicy, hash_policy};
use model::route::{
    EdgeSettings, HashOn, Hostname, LoadBalancing, RetryLimits, RouteTable, Scheme,
    WeightedBackends, error_text,
};
use prost::Message;

use super::cluster::PASS_THROUGH;
use super::edge::{self, ClientTrust};
use super::protobuf::{address, any, no, number, same_stream, seconds, source, yes};
use super::route_action::{CORS, UNRESOLVED, weights};
use super::tls::DownstreamValidation;
use super::traffic_filters;

/// What a filter chain does with connections.
pub(super) enum ChainAction<'r> {
    /// Requests are routed by the route configuration of this name.
    Http(String),
    Tcp(&'r WeightedBackends),
    /// Forwarded to the original destination.
    PassThrough,
}

pub(super) struct FilterChainSpec<'r> {
    pub(super) action: ChainAction<'r>,
    /// `None` without TLS.
    pub(super) server_name: Option<Hostname>,
    /// The certificates that terminate TLS; none for TLS passthrough.
    pub(super) certificates: Vec<String>,
    /// `None`: clients have no certificates.
    pub(super) clients: Option<DownstreamValidation>,
}

impl<'r> FilterChainSpec<'r> {
    /// Without TLS.
    pub(super) fn plain(action: ChainAction<'r>) -> Self {
        Self { action, server_name: None, certificates: Vec::new(), clients: None }
    }
}

/// How a listener gets its connections.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Binding {
    /// By a port of its own.
    Bound,
    /// From the capturing listener, by original destination.
    HandedOff,
    /// By redirection; connections to a Service are handed off.
    Captured,
}

/// The settings of a listener before its routes.
#[derive(Clone, Copy)]
pub(super) struct ListenerEdge<'s> {
    pub(super) settings: &'s EdgeSettings,
    /// Clients of sidecars are trusted.
    pub(super) is_gateway: bool,
    /// The table of its routes.
    pub(super) routes: &'s RouteTable,
    pub(super) retries: RetryLimits,
    /// The policy for the destination; `None` at a gateway, too.
    pub(super) destination: Option<&'s LoadBalancing>,
}

pub(super) fn render(
    name: &str,
    at: SocketAddr,
    binding: Binding,
    edge: ListenerEdge<'_>,
    chains: &[FilterChainSpec<'_>],
) -> Vec<u8> {
    let has_tls = chains.iter().any(|chain| chain.server_name.is_some());
    let mut listener_filters = Vec::new();
    if binding == Binding::Captured {
        listener_filters.push(listener_filter("envoy.filters.listener.original_dst", any(&OriginalDst {})));
    }
    if edge.is_gateway && edge.settings.proxy_protocol {
        listener_filters.push(edge::proxy_protocol_filter());
    }
    if has_tls {
        let inspector = any(&TlsInspector::default());
        listener_filters.push(listener_filter("envoy.filters.listener.tls_inspector", inspector));
    }
    let listener = Listener {
        name: name.to_owned(),
        stat_prefix: name.to_owned(),
        address: address(at),
        filter_chains: chains.iter().flat_map(|chain| filter_chains(name, edge, chain)).collect(),
        listener_filters,
        use_original_dst: (binding == Binding::Captured).then(yes).flatten(),
        bind_to_port: (binding == Binding::HandedOff).then(no).flatten(),
        traffic_direction: if edge.is_gateway {
            TrafficDirection::Inbound
        } else {
            TrafficDirection::Outbound
        }
        .into(),
        // The limit for a client that reads slowly.
        per_connection_buffer_limit_bytes: number(1 << 20),
        ..Listener::default()
    };
    listener.encode_to_vec()
}

pub(super) fn listener_filter(name: &str, config: envoy_types::pb::google::protobuf::Any) -> ListenerFilter {
    let config_type = Some(listener_filter::ConfigType::TypedConfig(config));
    ListenerFilter { name: name.to_owned(), config_type, ..ListenerFilter::default() }
}

/// At a gateway with trusted proxies, HTTP has two chains: one for them, one for all others.
fn filter_chains(listener: &str, edge: ListenerEdge<'_>, chain: &FilterChainSpec<'_>) -> Vec<FilterChain> {
    let is_http = matches!(chain.action, ChainAction::Http(_));
    let scheme = if chain.certificates.is_empty() { Scheme::Http } else { Scheme::Https };
    let mut chains = Vec::new();
    if !edge.is_gateway {
        chains.push(filter_chain(listener, edge, ClientTrust::Sidecar, chain));
    } else {
        if is_http && !edge.settings.trusted_proxies.networks().is_empty() {
            let mut trusted = filter_chain(listener, edge, ClientTrust::TrustedProxy(scheme), chain);
            trusted.filter_chain_match.get_or_insert_default().source_prefix_ranges =
                edge::trusted_ranges(edge.settings);
            chains.push(trusted);
        }
        chains.push(filter_chain(listener, edge, ClientTrust::Untrusted(scheme), chain));
    }
    if edge.is_gateway && edge.settings.proxy_protocol {
        for chain in &mut chains {
            chain.filter_chain_match.get_or_insert_default().direct_source_prefix_ranges =
                edge::trusted_ranges(edge.settings);
        }
    }
    chains
}

fn filter_chain(
    listener: &str,
    edge: ListenerEdge<'_>,
    trust: ClientTrust,
    chain: &FilterChainSpec<'_>,
) -> FilterChain {
    let (name, config) = match &chain.action {
        ChainAction::Http(routes) => (
            "envoy.filters.network.http_connection_manager",
            any(&http_connection_manager(listener, routes, edge, trust)),
        ),
        ChainAction::Tcp(split) => {
            ("envoy.filters.network.tcp_proxy", any(&weighted_tcp_proxy(listener, split, edge)))
        }
        ChainAction::PassThrough => {
            ("envoy.filters.network.tcp_proxy", any(&tcp_proxy(listener, PASS_THROUGH, edge.retries)))
        }
    };
    let filter = Filter { name: name.to_owned(), config_type: Some(filter::ConfigType::TypedConfig(config)) };
    let http = matches!(chain.action, ChainAction::Http(_));
    FilterChain {
        filter_chain_match: chain.server_name.as_ref().map(server_name_match),
        filters: vec![filter],
        transport_socket: (!chain.certificates.is_empty())
            .then(|| terminate_tls(&chain.certificates, chain.clients.as_ref(), http)),
        ..FilterChain::default()
    }
}

fn server_name_match(host: &Hostname) -> FilterChainMatch {
    let server_names = match host {
        Hostname::Any => Vec::new(),
        host => vec![host.to_string()],
    };
    FilterChainMatch { server_names, transport_protocol: "tls".to_owned(), ..FilterChainMatch::default() }
}

fn terminate_tls(
    certificates: &[String],
    clients: Option<&DownstreamValidation>,
    http: bool,
) -> TransportSocket {
    let secret = |name: &String| SdsSecretConfig { name: name.clone(), sds_config: same_stream() };
    let protocols: &[&str] = if http { &["h2", "http/1.1"] } else { &[] };
    let context = DownstreamTlsContext {
        common_tls_context: Some(CommonTlsContext {
            tls_certificate_sds_secret_configs: certificates.iter().map(secret).collect(),
            alpn_protocols: protocols.iter().map(|protocol| (*protocol).to_owned()).collect(),
            validation_context_type: clients
                .map(|clients| ValidationContextType::ValidationContext(clients.context.clone())),
            ..CommonTlsContext::default()
        }),
        require_client_certificate: clients
            .and_then(|clients| if clients.is_required { yes() } else { no() }),
        ..DownstreamTlsContext::default()
    };
    TransportSocket {
        name: "envoy.transport_sockets.tls".to_owned(),
        config_type: Some(transport_socket::ConfigType::TypedConfig(any(&context))),
    }
}

fn http_connection_manager(
    listener: &str,
    routes: &str,
    edge: ListenerEdge<'_>,
    trust: ClientTrust,
) -> HttpConnectionManager {
    let settings = edge.settings;
    // Only routes add headers to a request.
    let router = Router { suppress_envoy_headers: true, ..Router::default() };
    let router = HttpFilter {
        name: "envoy.filters.http.router".to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(any(&router))),
        ..HttpFilter::default()
    };
    let mut http_filters = vec![edge::ambiguous_path_filter(&settings.path)];
    let at_gateway = edge.routes.all_load_balancing().values().filter(|_| edge.is_gateway);
    let policies = at_gateway.map(|policy| &policy.settings).chain(edge.destination);
    http_filters.extend(traffic_filters::filters(policies));
    http_filters.extend([cors_filter(), router]);
    let mut manager = HttpConnectionManager {
        stat_prefix: listener.to_owned(),
        route_specifier: Some(RouteSpecifier::Rds(Rds {
            config_source: same_stream(),
            route_config_name: routes.to_owned(),
        })),
        http_filters,
        strip_trailing_host_dot: true,
        server_header_transformation: ServerHeaderTransformation::PassThrough.into(),
        generate_request_id: no(),
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
    };
    edge::normalize_paths(&mut manager, &settings.path);
    edge::set_forwarded(&mut manager, settings, trust);
    manager
}

/// Does nothing for routes without a policy.
fn cors_filter() -> HttpFilter {
    HttpFilter {
        name: CORS.to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(any(&Cors {}))),
        ..HttpFilter::default()
    }
}

/// Texts of local replies: no route (404), and an unresolved backend (500).
fn local_replies() -> LocalReplyConfig {
    let mapper = |flag: &str, status: u16| {
        let flags = ResponseFlagFilter { flags: vec![flag.to_owned()] };
        let filter = AccessLogFilter { filter_specifier: Some(FilterSpecifier::ResponseFlagFilter(flags)) };
        let body = source(Specifier::InlineString(error_text(status).to_owned()));
        ResponseMapper { filter: Some(filter), body, ..ResponseMapper::default() }
    };
    LocalReplyConfig { mappers: vec![mapper("NR", 404), mapper("NC", 500)], ..LocalReplyConfig::default() }
}

/// Connections to an unresolved backend are closed, and so are those of a route without backends.
fn weighted_tcp_proxy(listener: &str, split: &WeightedBackends, edge: ListenerEdge<'_>) -> TcpProxy {
    let mut proxy = tcp_proxy(listener, UNRESOLVED, edge.retries);
    if !split.entries().is_empty() {
        let cluster = |(name, weight)| ClusterWeight { name, weight, ..ClusterWeight::default() };
        let clusters = WeightedCluster { clusters: weights(split).map(cluster).collect() };
        proxy.cluster_specifier = Some(ClusterSpecifier::WeightedClusters(clusters));
    }
    let mut policies = split.backends().filter_map(|id| edge.routes.load_balancing(&id.service));
    if policies.any(|policy| policy.settings.hash_on() == Some(&HashOn::SourceIp)) {
        let source = hash_policy::PolicySpecifier::SourceIp(hash_policy::SourceIp {});
        proxy.hash_policy = vec![HashPolicy { policy_specifier: Some(source) }];
    }
    proxy
}

fn tcp_proxy(listener: &str, cluster: &str, retries: RetryLimits) -> TcpProxy {
    TcpProxy {
        stat_prefix: listener.to_owned(),
        cluster_specifier: Some(ClusterSpecifier::Cluster(cluster.to_owned())),
        max_connect_attempts: number(retries.of(None).saturating_add(1)),
        ..TcpProxy::default()
    }
}
