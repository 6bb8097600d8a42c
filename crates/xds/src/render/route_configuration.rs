//! Route configurations of destinations and of gateways' ports, separate from listeners, so that a changed route drains no
//! listener (semantics, xDS 8). Hosts become virtual hosts; a long list of routes becomes a matcher tree.

use std::collections::BTreeMap;

use envoy_types::pb::envoy::config::route::v3::retry_policy::{
    RetryHostPredicate, RetryPriority, retry_host_predicate, retry_priority,
};
use envoy_types::pb::envoy::config::route::v3::{RetryPolicy, Route, RouteConfiguration, VirtualHost};
use envoy_types::pb::envoy::extensions::retry::host::previous_hosts::v3::PreviousHostsPredicate;
use envoy_types::pb::envoy::extensions::retry::priority::previous_priorities::v3::PreviousPrioritiesConfig;
use envoy_types::pb::google::protobuf::Any;
use model::Notice;
use model::route::{
    DirectResponseBody, GatewayPort, Hostname, HttpRoutes, Listener, MatchedRoute, Responder, Routing,
};
use prost::Message;

use super::protobuf::{any, append, number};
use super::{RouteContext, matcher_tree, route, route_action, traffic_filters};

/// Field numbers of hand-encoded messages.
const VIRTUAL_HOSTS: u32 = 2;
const MATCHER: u32 = 21;
/// Envoy's default limit for bodies of direct responses.
const DEFAULT_BODY_LIMIT: usize = 4096;

/// A virtual host.
pub(super) struct HostSpec<'r> {
    pub(super) name: Hostname,
    pub(super) action: HostAction<'r>,
}

#[derive(Clone, Copy)]
pub(super) enum HostAction<'r> {
    Routes(&'r HttpRoutes),
    /// No routes: 404.
    Nothing,
    /// A host of another listener's certificate: 421, so that the client reconnects (RFC 9110, 15.5.20).
    Misdirected,
}

impl<'r> HostAction<'r> {
    fn routes(self) -> Option<&'r HttpRoutes> {
        match self {
            Self::Routes(routes) => Some(routes),
            Self::Nothing | Self::Misdirected => None,
        }
    }
}

pub(super) fn render(
    name: &str,
    hosts: &[HostSpec<'_>],
    context: &RouteContext<'_>,
    notices: &mut Vec<Notice>,
) -> Vec<u8> {
    let largest = hosts.iter().filter_map(|host| host.action.routes()).map(largest_body).max().unwrap_or(0);
    let config = RouteConfiguration {
        name: name.to_owned(),
        ignore_port_in_host_matching: true,
        max_direct_response_body_size_bytes: u32::try_from(largest)
            .ok()
            .filter(|_| largest > DEFAULT_BODY_LIMIT)
            .and_then(number),
        typed_per_filter_config: limits(hosts, context).into_iter().collect(),
        ..RouteConfiguration::default()
    };
    let mut message = config.encode_to_vec();
    for host in hosts {
        append(&mut message, VIRTUAL_HOSTS, &virtual_host(host, context, notices));
    }
    message
}

/// The rate limits of the backends of a gateway's routes.
fn limits(hosts: &[HostSpec<'_>], context: &RouteContext<'_>) -> Option<(String, Any)> {
    // In the mesh, the destination is limited.
    context.arrival.as_ref()?;
    let policies = context.routes.all_load_balancing();
    if policies.values().all(|policy| policy.settings.rate_limit.is_none()) {
        return None;
    }
    let mut limits = BTreeMap::new();
    for rule in hosts.iter().filter_map(|host| host.action.routes()).flat_map(HttpRoutes::rules) {
        for id in rule.backends() {
            let policy = context.routes.load_balancing(&id.service);
            if let Some(limit) = policy.and_then(|policy| policy.settings.rate_limit) {
                limits.insert(route_action::cluster_name(id, rule.action.is_grpc), limit);
            }
        }
    }
    traffic_filters::backend_limits(&limits)
}

fn virtual_host(host: &HostSpec<'_>, context: &RouteContext<'_>, notices: &mut Vec<Notice>) -> Vec<u8> {
    let hits: Vec<MatchedRoute<'_>> =
        host.action.routes().map(|routes| routes.entries().collect()).unwrap_or_default();
    let mut routes: Vec<(MatchedRoute<'_>, Route)> = Vec::new();
    for hit in hits {
        let route = route::render(&hit, context, notices);
        routes.extend(route.map(|route| (hit, route)));
    }
    let mut virtual_host = VirtualHost {
        name: host.name.to_string(),
        domains: vec![host.name.to_string()],
        retry_policy: Some(retry_policy(context.retries.of(None))),
        ..VirtualHost::default()
    };
    let mut message = match matcher_tree::render(&routes) {
        Some(matcher) => {
            let mut message = virtual_host.encode_to_vec();
            append(&mut message, MATCHER, &matcher);
            message
        }
        None => {
            virtual_host.routes = routes.into_iter().map(|(_, route)| route).collect();
            if matches!(host.action, HostAction::Misdirected) {
                virtual_host.routes.push(route::misdirected());
            }
            virtual_host.encode_to_vec()
        }
    };
    traffic_filters::append_config(&mut message, context.destination);
    message
}

/// Requests that never reached an endpoint are retried on another one, then at another priority: a zone that fails costs
/// no request, even before Envoy gets new endpoints.
pub(super) fn retry_policy(retries: u32) -> RetryPolicy {
    let hosts = RetryHostPredicate {
        name: "envoy.retry_host_predicates.previous_hosts".to_owned(),
        config_type: Some(retry_host_predicate::ConfigType::TypedConfig(any(&PreviousHostsPredicate {}))),
    };
    let priorities = PreviousPrioritiesConfig { update_frequency: 2 };
    RetryPolicy {
        retry_on: "connect-failure,refused-stream,reset-before-request".to_owned(),
        num_retries: number(retries),
        retry_host_predicate: vec![hosts],
        host_selection_retry_max_attempts: 5,
        retry_priority: Some(RetryPriority {
            name: "envoy.retry_priorities.previous_priorities".to_owned(),
            config_type: Some(retry_priority::ConfigType::TypedConfig(any(&priorities))),
        }),
        ..RetryPolicy::default()
    }
}

fn largest_body(routes: &HttpRoutes) -> usize {
    let size = |end: &Responder| match end {
        Responder::Respond(response) => match &response.body {
            Some(DirectResponseBody::Text(text)) => text.len(),
            Some(DirectResponseBody::Bytes(bytes)) => bytes.len(),
            // Envoy does not know its size.
            Some(DirectResponseBody::File(_) | DirectResponseBody::Environment(_)) => 1 << 20,
            None => 0,
        },
        _ => 0,
    };
    routes.rules().map(|rule| size(&rule.action.responder)).max().unwrap_or(0)
}

/// The hosts of a gateway's port in the clear: those of all of its listeners. The narrowest listener has a host, even
/// where a wider one has a route for it (semantics 1.6), so each listener has a virtual host for its own name.
pub(super) fn of_port(port: &GatewayPort) -> Vec<HostSpec<'_>> {
    let mut hosts: Vec<HostSpec<'_>> = Vec::new();
    for listener in &port.listeners {
        for host in of_listener(listener) {
            let taken = hosts.iter().any(|other| other.name == host.name);
            if !taken && owns(port, listener, &host.name) {
                hosts.push(host);
            }
        }
    }
    hosts
}

/// Whether no narrower listener of the port has all of these hosts; of two with the same name the first has them.
fn owns(port: &GatewayPort, listener: &Listener, host: &Hostname) -> bool {
    let mut covering = port.listeners.iter().filter(|other| other.hostname.covers(host));
    !covering.any(|other| other.hostname.rank() < listener.hostname.rank())
}

/// The hosts of a listener with TLS: its own, and those that clients of it must look for elsewhere.
pub(super) fn of_tls<'r>(port: &'r GatewayPort, listener: &'r Listener) -> Vec<HostSpec<'r>> {
    let mut hosts = of_listener(listener);
    hosts.retain(|host| owns(port, listener, &host.name));
    for other in &port.listeners {
        if hosts.iter().all(|host| host.name != other.hostname) {
            hosts.push(HostSpec { name: other.hostname.clone(), action: HostAction::Misdirected });
        }
    }
    hosts
}

/// The hosts of one listener.
pub(super) fn of_listener(listener: &Listener) -> Vec<HostSpec<'_>> {
    let own = listener.hosts.iter().map(|(name, routing)| HostSpec { name, action: http(routing) });
    let mut hosts: Vec<HostSpec<'_>> = own.collect();
    if listener.hosts.at(&listener.hostname).is_none() {
        hosts.push(HostSpec { name: listener.hostname.clone(), action: HostAction::Nothing });
    }
    hosts
}

fn http(routing: &Routing) -> HostAction<'_> {
    match routing {
        Routing::Http(routes) => HostAction::Routes(routes),
        Routing::Tcp(_) => HostAction::Nothing,
    }
}
