//! Traces a request or connection through the table of a Gateway, or through the mesh.

use model::Name;
use model::route::{
    Arrival, DirectResponseBody, EdgeSettings, GatewayPort, HttpRoutes, ListenerChoice, MeshGatewayProtocol,
    RouteTable, Routing, Scheme, WeightedBackends, error_text, grpc_status,
};

use crate::routes::{RequestOutcome, RequestTrace, TraceStep, TracedRequest, trace};

/// How a request arrives at a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArrivingRequest {
    pub port: u16,
    pub is_udp: bool,
    /// Of a TLS handshake; without one, the Host stands in for it.
    pub sni: Option<String>,
    /// Errors are gRPC statuses.
    pub is_grpc: bool,
}

/// Traces a request or connection that arrives at a Gateway.
pub fn trace_at_gateway<'t>(
    table: &'t RouteTable,
    at: &ArrivingRequest,
    incoming: &TracedRequest,
    edge: &EdgeSettings,
) -> RequestTrace<'t> {
    if at.is_udp {
        return match table.udp_port(at.port) {
            Some(split) => connection(split, incoming),
            None => closed(incoming, "port", format!("no listener on UDP port {}", at.port)),
        };
    }
    let Some(port) = table.port(at.port) else {
        return closed(incoming, "port", format!("no listener on port {}", at.port));
    };
    let sni = port.protocol.is_tls().then(|| at.sni.as_deref().unwrap_or(&incoming.host));
    let (choice, host) = match port.protocol {
        MeshGatewayProtocol::Tcp => {
            (port.listeners.first().map_or(ListenerChoice::None, ListenerChoice::Found), "")
        }
        // Connections are routed by the SNI alone.
        MeshGatewayProtocol::Tls if is_passed(port, sni) => {
            (port.choose(None, sni.unwrap_or_default()), sni.unwrap_or_default())
        }
        _ => (port.choose(sni, &incoming.host), incoming.host.as_str()),
    };
    let (routing, is_http) = match choice {
        ListenerChoice::Found(listener) => (listener.routing(host), listener.protocol.is_http()),
        ListenerChoice::Misdirected => return own_status(421, incoming, at.is_grpc),
        ListenerChoice::NoCertificate => {
            return closed(incoming, "sni", "no listener has the server name of the TLS handshake");
        }
        ListenerChoice::None => (None, port.protocol.is_http()),
    };
    let http = match routing {
        Some(Routing::Http(routes)) => Some(&**routes),
        Some(Routing::Tcp(split)) => return connection(split, incoming),
        None if is_http => None,
        None => return closed(incoming, "route", "no route takes the connection"),
    };
    let scheme = if sni.is_some() { Scheme::Https } else { Scheme::Http };
    trace_http(http, incoming, &Arrival { scheme, port: Some(port.number) }, edge, at.is_grpc)
}

/// Whether the listener of an SNI routes connections, not requests.
fn is_passed(port: &GatewayPort, sni: Option<&str>) -> bool {
    port.listener(sni.unwrap_or_default()).is_none_or(|listener| !listener.protocol.is_http())
}

/// Traces a request through the routing of an outbound.
pub fn trace_in_mesh<'t>(
    routing: &'t Routing,
    incoming: &TracedRequest,
    edge: &EdgeSettings,
    is_grpc: bool,
) -> RequestTrace<'t> {
    match routing {
        Routing::Http(routes) => {
            trace_http(Some(routes), incoming, &Arrival { scheme: Scheme::Http, port: None }, edge, is_grpc)
        }
        Routing::Tcp(split) => connection(split, incoming),
    }
}

fn trace_http<'t>(
    routes: Option<&'t HttpRoutes>,
    incoming: &TracedRequest,
    at: &Arrival,
    edge: &EdgeSettings,
    is_grpc: bool,
) -> RequestTrace<'t> {
    let mut traced = trace(routes, incoming, at, edge);
    if is_grpc {
        add_grpc_status(&mut traced.outcome);
    }
    traced
}

/// The proxy's own errors as gRPC clients read them.
fn add_grpc_status(outcome: &mut RequestOutcome) {
    let Some(status @ 400..) = outcome.status else { return };
    let code = grpc_status(status).to_string();
    outcome.response_headers.push(("grpc-status".into(), Name::new(&code)));
}

fn connection<'t>(split: &WeightedBackends, incoming: &TracedRequest) -> RequestTrace<'t> {
    if split.failure().is_some() {
        return closed(incoming, "backend", "no backend of the route can be resolved");
    }
    let mut outcome = RequestOutcome::unchanged(incoming);
    outcome.backends = split.entries().to_vec();
    let why = split
        .shares()
        .map(|(backend, share)| TraceStep {
            rule: "backend".to_owned(),
            detail: match &backend.to {
                model::route::BackendTarget::Backend(id) => {
                    format!("{:.1} % of connections go to {id}", share * 100.0)
                }
                model::route::BackendTarget::Error(_) => {
                    format!("{:.1} % of connections are closed", share * 100.0)
                }
            },
        })
        .collect();
    RequestTrace { hit: None, outcome, why }
}

fn own_status<'t>(status: u16, incoming: &TracedRequest, is_grpc: bool) -> RequestTrace<'t> {
    let mut outcome = RequestOutcome::unchanged(incoming);
    outcome.status = Some(status);
    outcome.body = Some(DirectResponseBody::Text(Name::new(error_text(status))));
    if is_grpc {
        add_grpc_status(&mut outcome);
    }
    let detail = format!("the Host belongs to another listener than the SNI: {status}");
    RequestTrace { hit: None, outcome, why: vec![TraceStep { rule: "listener".to_owned(), detail }] }
}

fn closed<'t>(incoming: &TracedRequest, rule: &str, detail: impl Into<String>) -> RequestTrace<'t> {
    let mut outcome = RequestOutcome::unchanged(incoming);
    outcome.is_closed = true;
    let detail = format!("{}: the connection is closed", detail.into());
    RequestTrace { hit: None, outcome, why: vec![TraceStep { rule: rule.to_owned(), detail }] }
}
