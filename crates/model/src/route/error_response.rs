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

/// The gRPC status of a proxy's own response, by gRPC's mapping of HTTP statuses; 500 is a backend that cannot be resolved,
/// which is UNAVAILABLE.
pub fn grpc_status(status: u16) -> u8 {
    const UNKNOWN: u8 = 2;
    const INTERNAL: u8 = 13;
    const UNIMPLEMENTED: u8 = 12;
    const UNAVAILABLE: u8 = 14;
    match status {
        400 => INTERNAL,
        404 => UNIMPLEMENTED,
        429 | 500 | 502..=504 => UNAVAILABLE,
        _ => UNKNOWN,
    }
}

/// The body of a response by fault injection.
pub const INJECTED_FAULT: &str = "injected fault";

/// The body of a direct response whose file or variable the proxy may not read.
pub const BODY_NOT_READABLE: &str = "the body of the response cannot be read";
