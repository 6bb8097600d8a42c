//! The bodies of a proxy's own error responses: the same in the embedded proxy, in Envoy and in traces.

pub fn error_text(status: u16) -> &'static str {
    match status {
        400 => "malformed request",
        404 => "no route for this host and path",
        405 => "CONNECT is not supported",
        408 => "the request body did not arrive in time",
        413 => "the body is longer than allowed",
        421 => "the certificate of this connection is not for this host",
        500 => "a backend of the route cannot be resolved",
        502 => "the backend closed the connection or sent a malformed response",
        503 => "no endpoint of the backend is available",
        504 => "the backend did not respond in time",
        _ => "the request cannot be served",
    }
}

/// The body of a direct response whose file or variable the proxy may not read.
pub const BODY_NOT_READABLE: &str = "the body of the response cannot be read";
