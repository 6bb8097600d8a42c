//! Answers of the proxy itself: errors, redirects, direct responses.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use model::route::error_text;

use crate::body::AnswerBody;
use crate::rules::Rule;
use crate::ticket::Ticket;

fn answer(status: StatusCode, mut bytes: Bytes, mut ticket: Ticket) -> Response<AnswerBody> {
    ticket.status = status.as_u16();
    // RFC 9110, 9.3.2: the answer to HEAD has the length of the body and not the body.
    let length = (ticket.is_head && !bytes.is_empty()).then_some(bytes.len());
    if length.is_some() {
        bytes.clear();
    }
    let mut response = Response::new(AnswerBody::own(bytes, ticket));
    *response.status_mut() = status;
    if let Some(length) = length {
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    response
}

fn text(status: StatusCode, text: &'static str, ticket: Ticket) -> Response<AnswerBody> {
    let mut response = answer(status, Bytes::from_static(text.as_bytes()), ticket);
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

/// An error, with a short text. gRPC clients get it in their own terms, by the mapping that gRPC has for HTTP's.
pub(crate) fn error(status: StatusCode, is_grpc: bool, ticket: Ticket) -> Response<AnswerBody> {
    if !is_grpc {
        return text(status, error_text(status.as_u16()), ticket);
    }
    let mut response = answer(status, Bytes::new(), ticket);
    *response.status_mut() = StatusCode::OK;
    let code = match status.as_u16() {
        400 => "13",
        404 => "12",
        502..=504 => "14",
        _ => "2",
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from_static(code));
    let reason = status.canonical_reason().unwrap_or("error");
    headers.insert("grpc-message", HeaderValue::from_static(reason));
    response
}

/// An error whose status does not say enough: the log has the reason, and the client reads it.
pub(crate) fn refusal(
    status: StatusCode,
    reason: &'static str,
    is_grpc: bool,
    mut ticket: Ticket,
) -> Response<AnswerBody> {
    ticket.reason = Some(reason);
    if is_grpc {
        let mut response = error(status, true, ticket);
        response.headers_mut().insert("grpc-message", HeaderValue::from_static(reason));
        return response;
    }
    text(status, reason, ticket)
}

pub(crate) fn redirect(
    rule: &Rule,
    status: StatusCode,
    location: &str,
    ticket: Ticket,
) -> Response<AnswerBody> {
    let Ok(location) = HeaderValue::from_str(location) else {
        return error(StatusCode::BAD_REQUEST, false, ticket);
    };
    let mut response = answer(status, Bytes::new(), ticket);
    response.headers_mut().insert(header::LOCATION, location);
    rule.response.apply(response.headers_mut());
    response
}

pub(crate) fn direct(rule: &Rule, status: StatusCode, bytes: Bytes, ticket: Ticket) -> Response<AnswerBody> {
    let mut response = answer(status, bytes, ticket);
    rule.response.apply(response.headers_mut());
    response
}
