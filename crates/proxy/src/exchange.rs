//! One request and its answer: which rule it hits, and who answers.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode};
use hyper::body::{Body, Incoming};
use hyper::ext::Protocol;
use model::route::{self, Responder, Routing, path};

use crate::balance::Cluster;
use crate::body::AnswerBody;
use crate::connection::{Connection, Place};
use crate::forward::{self, Outgoing};
use crate::peer::Peer;
use crate::proxy::Inner;
use crate::reply;
use crate::request::{Headers, host, is_grpc};
use crate::rules::{Ending, Legs, Rule};
use crate::slot::Slot;
use crate::state::{Found, State};
use crate::ticket::Ticket;

/// Who answers a request.
enum Decision<'s> {
    Refuse(StatusCode),
    Redirect(&'s Rule, StatusCode, String),
    Respond(&'s Rule, StatusCode, Bytes),
    Forward(Option<&'s Rule>, &'s Legs, Option<PathAndQuery>),
}

/// Answers a request, whatever it is.
pub(crate) async fn answer(
    connection: Arc<Connection>,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Infallible> {
    let proxy = &connection.proxy;
    let (parts, body) = request.into_parts();
    let mut ticket = Ticket::open(proxy, &connection.activity, connection.client, &parts);
    let is_grpc = is_grpc(&parts.headers);
    if let Some((status, reason)) = over_limits(proxy, &body) {
        return Ok(reply::refusal(status, reason, is_grpc, ticket));
    }
    let state = proxy.state();
    let decision = decide(&state, &connection, &parts);
    ticket.account = match &decision {
        Decision::Redirect(rule, ..) | Decision::Respond(rule, ..) | Decision::Forward(Some(rule), ..) => {
            Some(rule.account.clone())
        }
        Decision::Refuse(_) | Decision::Forward(None, ..) => None,
    };
    Ok(match decision {
        Decision::Refuse(status) => reply::error(status, is_grpc, ticket),
        Decision::Redirect(rule, status, location) => reply::redirect(rule, status, &location, ticket),
        Decision::Respond(rule, status, bytes) => reply::direct(rule, status, bytes, ticket),
        Decision::Forward(rule, legs, target) => {
            let outgoing = Outgoing { rule, legs, target };
            forward::forward(&connection, outgoing, parts, body, is_grpc, ticket).await
        }
    })
}

fn over_limits(proxy: &Inner, body: &Incoming) -> Option<(StatusCode, &'static str)> {
    let limits = &proxy.settings.limits;
    if proxy.requests() > limits.requests {
        proxy.counts.requests_refused.add();
        return Some((StatusCode::SERVICE_UNAVAILABLE, "too many requests are in flight"));
    }
    if proxy.budget.is_spent() {
        proxy.counts.bodies_refused.add();
        return Some((StatusCode::SERVICE_UNAVAILABLE, "too many bytes of bodies are held for others"));
    }
    (body.size_hint().lower() > limits.body_bytes)
        .then_some((StatusCode::PAYLOAD_TOO_LARGE, "the body is longer than allowed"))
}

fn decide<'s>(state: &'s State, connection: &Connection, parts: &Parts) -> Decision<'s> {
    // A tunnel to anywhere is not for routes to give; WebSocket by HTTP/2 is (RFC 8441).
    if parts.method == Method::CONNECT && parts.extensions.get::<Protocol>().is_none() {
        return Decision::Refuse(StatusCode::METHOD_NOT_ALLOWED);
    }
    let host = match host(parts) {
        Ok(host) => host,
        Err(status) => return Decision::Refuse(status),
    };
    let routing = match routing(state, &connection.place, host) {
        Ok(routing) => routing,
        Err(status) => return Decision::Refuse(status),
    };
    let given = parts.uri.path();
    let normal = path::normalize(given);
    let headers = Headers(&parts.headers);
    let method = if parts.method == Method::CONNECT { "GET" } else { parts.method.as_str() };
    let asked =
        route::RequestView { method, host, path: &normal, query: parts.uri.query(), headers: &headers };
    let routes = match routing {
        Routing::Http(routes) => routes,
        // The route became one for whole connections while this one was open.
        Routing::Tcp(split) => {
            return match state.legs(split) {
                Some(legs) => Decision::Forward(None, legs, None),
                None => Decision::Refuse(StatusCode::SERVICE_UNAVAILABLE),
            };
        }
    };
    match state.find(routes, &asked) {
        Some(found) => follow(found, &asked, connection, normal != given),
        // Semantics 1.5: in the mesh the last rule takes everything, so this is a gateway.
        None => Decision::Refuse(StatusCode::NOT_FOUND),
    }
}

fn routing<'s>(state: &'s State, place: &Place, host: &str) -> Result<&'s Routing, StatusCode> {
    let routes = &state.tables.routes;
    match place {
        Place::Outbound(service, port) => {
            let outbound = routes.outbound(service, *port).ok_or(StatusCode::SERVICE_UNAVAILABLE)?;
            Ok(&outbound.routing)
        }
        Place::Gateway(port, by_name) => {
            let port = routes.port(*port).ok_or(StatusCode::NOT_FOUND)?;
            let listener = port.listener(host).ok_or(StatusCode::NOT_FOUND)?;
            // The certificate that the client saw was not for this host (RFC 9110, 15.5.20).
            if by_name.as_ref().is_some_and(|name| *name != listener.name) {
                return Err(StatusCode::MISDIRECTED_REQUEST);
            }
            listener.routing(host).ok_or(StatusCode::NOT_FOUND)
        }
    }
}

fn follow<'s>(
    found: Found<'s>,
    asked: &route::RequestView<'_>,
    connection: &Connection,
    is_changed: bool,
) -> Decision<'s> {
    let rule = found.rule;
    match (&rule.end, &found.model.action.responder) {
        (Ending::Forward(legs), _) => {
            let change = found.model.action.rewrite.path.as_ref();
            if change.is_none() && !is_changed {
                return Decision::Forward(Some(rule), legs, None);
            }
            let rewritten = change.map(|change| change.apply(asked.path, found.path));
            let target = path::join(rewritten.as_deref().unwrap_or(asked.path), asked.query);
            match PathAndQuery::try_from(target) {
                Ok(target) => Decision::Forward(Some(rule), legs, Some(target)),
                Err(_) => Decision::Refuse(StatusCode::BAD_REQUEST),
            }
        }
        (Ending::Respond(status, bytes), _) => Decision::Respond(rule, *status, bytes.clone()),
        (Ending::Redirect, Responder::Redirect(redirect)) => {
            let status = StatusCode::from_u16(redirect.status).unwrap_or(StatusCode::FOUND);
            Decision::Redirect(rule, status, redirect.location(asked, found.path, &connection.arrival))
        }
        (Ending::Redirect, _) => Decision::Refuse(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

/// Counts an endpoint's failure, and leaves it out if there were too many.
pub(crate) fn note_failure(proxy: &Inner, slot: &Slot, cluster: &Cluster, peer: &Peer) {
    let (health, now) = (&proxy.settings.health, proxy.now());
    if peer.failed(health) && !peer.is_ejected(now) && cluster.may_eject(now, health) {
        peer.eject(now, health);
        slot.counts.ejections.add();
        tracing::info!(endpoint = %peer.address, backend = %slot.label, "left out for a while: it failed too often");
    }
}
