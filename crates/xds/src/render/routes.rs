//! The routes of a destination or of a gateway's port: one RouteConfiguration, so that a changed route drains no
//! listener (semantics, xDS 8). Hosts become virtual hosts; a long list of routes becomes a tree.

use envoy_types::pb::envoy::config::route::v3::retry_policy::{
    RetryHostPredicate, RetryPriority, retry_host_predicate, retry_priority,
};
use envoy_types::pb::envoy::config::route::v3::{RetryPolicy, Route, RouteConfiguration, VirtualHost};
use envoy_types::pb::envoy::extensions::retry::host::previous_hosts::v3::PreviousHostsPredicate;
use envoy_types::pb::envoy::extensions::retry::priority::previous_priorities::v3::PreviousPrioritiesConfig;
use model::Notice;
use model::route::{
    DirectResponseBody, GatewayPort, Hostname, HttpRoutes, Listener, MatchedRoute, Responder, Routing,
};
use prost::Message;

use super::wire::{any, append, number};
use super::{Setting, route, tree};

/// Fields of the messages that are put together by hand.
const VIRTUAL_HOSTS: u32 = 2;
const MATCHER: u32 = 21;
/// What Envoy takes as a direct response's body unless it is told a larger number.
const SMALL_BODY: usize = 4096;

/// Some hosts, and what is done for them.
pub(super) struct Host<'r> {
    pub(super) name: Hostname,
    pub(super) serves: Serves<'r>,
}

/// What is done for a host.
#[derive(Clone, Copy)]
pub(super) enum Serves<'r> {
    /// What its routes say.
    Routes(&'r HttpRoutes),
    /// There are none: 404.
    Nothing,
    /// Another listener's certificate is for it: 421, so that the client connects again (RFC 9110, 15.5.20).
    Elsewhere,
}

impl<'r> Serves<'r> {
    fn routes(self) -> Option<&'r HttpRoutes> {
        match self {
            Self::Routes(routes) => Some(routes),
            Self::Nothing | Self::Elsewhere => None,
        }
    }
}

/// The message.
pub(super) fn render(
    name: &str,
    hosts: &[Host<'_>],
    setting: &Setting<'_>,
    notices: &mut Vec<Notice>,
) -> Vec<u8> {
    let largest = hosts.iter().filter_map(|host| host.serves.routes()).map(largest_body).max().unwrap_or(0);
    let config = RouteConfiguration {
        name: name.to_owned(),
        ignore_port_in_host_matching: true,
        max_direct_response_body_size_bytes: u32::try_from(largest)
            .ok()
            .filter(|_| largest > SMALL_BODY)
            .and_then(number),
        ..RouteConfiguration::default()
    };
    let mut message = config.encode_to_vec();
    for host in hosts {
        append(&mut message, VIRTUAL_HOSTS, &virtual_host(host, setting, notices));
    }
    message
}

fn virtual_host(host: &Host<'_>, setting: &Setting<'_>, notices: &mut Vec<Notice>) -> Vec<u8> {
    let hits: Vec<MatchedRoute<'_>> =
        host.serves.routes().map(|routes| routes.entries().collect()).unwrap_or_default();
    let mut routes: Vec<(MatchedRoute<'_>, Route)> = Vec::new();
    for hit in hits {
        let route = route::render(&hit, setting, notices);
        routes.extend(route.map(|route| (hit, route)));
    }
    let mut virtual_host = VirtualHost {
        name: host.name.to_string(),
        domains: vec![host.name.to_string()],
        retry_policy: Some(retries()),
        ..VirtualHost::default()
    };
    match tree::render(&routes) {
        Some(matcher) => {
            let mut message = virtual_host.encode_to_vec();
            append(&mut message, MATCHER, &matcher);
            message
        }
        None => {
            virtual_host.routes = routes.into_iter().map(|(_, route)| route).collect();
            if matches!(host.serves, Serves::Elsewhere) {
                virtual_host.routes.push(route::misdirected());
            }
            virtual_host.encode_to_vec()
        }
    }
}

/// What never reached a backend is tried elsewhere: at another endpoint, then at another priority. So a zone whose
/// endpoints vanish costs no request, even before anybody has told Envoy.
fn retries() -> RetryPolicy {
    let hosts = RetryHostPredicate {
        name: "envoy.retry_host_predicates.previous_hosts".to_owned(),
        config_type: Some(retry_host_predicate::ConfigType::TypedConfig(any(&PreviousHostsPredicate {}))),
    };
    let priorities = PreviousPrioritiesConfig { update_frequency: 2 };
    RetryPolicy {
        retry_on: "connect-failure,refused-stream,reset-before-request".to_owned(),
        num_retries: number(4),
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
            // Nobody knows how large it is there.
            Some(DirectResponseBody::File(_) | DirectResponseBody::Environment(_)) => 1 << 20,
            None => 0,
        },
        _ => 0,
    };
    routes.rules().map(|rule| size(&rule.action.responder)).max().unwrap_or(0)
}

/// The hosts of a gateway's port in the clear: those of all of its listeners. The narrowest listener has a host, even
/// where a wider one has a route for it (semantics 1.6), so each listener has a virtual host for its own name.
pub(super) fn of_port(port: &GatewayPort) -> Vec<Host<'_>> {
    let mut hosts: Vec<Host<'_>> = Vec::new();
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
pub(super) fn of_tls<'r>(port: &'r GatewayPort, listener: &'r Listener) -> Vec<Host<'r>> {
    let mut hosts = of_listener(listener);
    hosts.retain(|host| owns(port, listener, &host.name));
    for other in &port.listeners {
        if hosts.iter().all(|host| host.name != other.hostname) {
            hosts.push(Host { name: other.hostname.clone(), serves: Serves::Elsewhere });
        }
    }
    hosts
}

/// The hosts of one listener.
pub(super) fn of_listener(listener: &Listener) -> Vec<Host<'_>> {
    let own = listener.hosts.iter().map(|(name, routing)| Host { name, serves: http(routing) });
    let mut hosts: Vec<Host<'_>> = own.collect();
    if listener.hosts.at(&listener.hostname).is_none() {
        hosts.push(Host { name: listener.hostname.clone(), serves: Serves::Nothing });
    }
    hosts
}

fn http(routing: &Routing) -> Serves<'_> {
    match routing {
        Routing::Http(routes) => Serves::Routes(routes),
        Routing::Tcp(_) => Serves::Nothing,
    }
}
