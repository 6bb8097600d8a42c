//! Local replies, which the proxy sends itself: errors, redirects, direct responses.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use model::route::{error_text, grpc_status};

use super::body::ResponseBody;
use super::response_changes::ResponseChanges;
use crate::request_log::RequestLog;

fn reply(status: StatusCode, mut bytes: Bytes, mut request_log: RequestLog) -> Response<ResponseBody> {
    request_log.status = status.as_u16();
    // It holds nothing but its text, however slowly the client takes it.
    request_log.release_slots();
    // RFC 9110, 9.3.2: the response to HEAD has the length of the body, without the body.
    let length = (request_log.is_head && !bytes.is_empty()).then_some(bytes.len());
    if length.is_some() {
        bytes.clear();
    }
    let mut response = Response::new(ResponseBody::local(bytes, request_log));
    *response.status_mut() = status;
    if let Some(length) = length {
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    response
}

fn text(status: StatusCode, text: &'static str, request_log: RequestLog) -> Response<ResponseBody> {
    let mut response = reply(status, Bytes::from_static(text.as_bytes()), request_log);
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

/// An error with a short text. gRPC clients get a gRPC status, by gRPC's mapping of HTTP statuses.
pub(crate) fn error(status: StatusCode, is_grpc: bool, request_log: RequestLog) -> Response<ResponseBody> {
    if !is_grpc {
        return text(status, error_text(status.as_u16()), request_log);
    }
    let mut response = reply(status, Bytes::new(), request_log);
    *response.status_mut() = StatusCode::OK;
    let code = grpc_status(status.as_u16());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from(u16::from(code)));
    let reason = status.canonical_reason().unwrap_or("error");
    headers.insert("grpc-message", HeaderValue::from_static(reason));
    response
}

/// An error with a reason that the status does not say; it is in the body and in the access log.
pub(crate) fn error_with_reason(
    status: StatusCode,
    reason: &'static str,
    is_grpc: bool,
    mut request_log: RequestLog,
) -> Response<ResponseBody> {
    request_log.reason = Some(reason);
    if is_grpc {
        let mut response = error(status, true, request_log);
        response.headers_mut().insert("grpc-message", HeaderValue::from_static(reason));
        return response;
    }
    text(status, reason, request_log)
}

pub(crate) fn redirect(
    changes: &ResponseChanges<'_>,
    status: StatusCode,
    location: &str,
    request_log: RequestLog,
) -> Response<ResponseBody> {
    let Ok(location) = HeaderValue::from_str(location) else {
        return error(StatusCode::BAD_REQUEST, false, request_log);
    };
    let mut response = reply(status, Bytes::new(), request_log);
    response.headers_mut().insert(header::LOCATION, location);
    changes.apply(response.headers_mut());
    response
}

/// Redirects to the normalised path, on the same host.
pub(crate) fn redirect_to_path(location: &str, request_log: RequestLog) -> Response<ResponseBody> {
    let Ok(location) = HeaderValue::from_str(location) else {
        return error(StatusCode::BAD_REQUEST, false, request_log);
    };
    let mut response = reply(StatusCode::TEMPORARY_REDIRECT, Bytes::new(), request_log);
    response.headers_mut().insert(header::LOCATION, location);
    response
}

pub(crate) fn direct(
    changes: &ResponseChanges<'_>,
    status: StatusCode,
    bytes: Bytes,
    request_log: RequestLog,
) -> Response<ResponseBody> {
    let mut response = reply(status, bytes, request_log);
    changes.apply(response.headers_mut());
    response
}

/// The reply to a CORS preflight request.
pub(crate) fn preflight(changes: &ResponseChanges<'_>, request_log: RequestLog) -> Response<ResponseBody> {
    let mut response = reply(StatusCode::NO_CONTENT, Bytes::new(), request_log);
    changes.apply(response.headers_mut());
    response
}
