//! Headers that concern one connection only (RFC 9110, 7.6.1). They are removed before a request is matched: a header
//! that no backend receives must not select one.

/// Whether a header, in lower case, is removed from every message.
pub fn is_hop_by_hop(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "expect"
            | "http2-settings"
            | "keep-alive"
            | "proxy-connection"
            | "te"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// The elements of a header's value.
pub fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

/// The headers that a `Connection` header adds. Those of routing and framing stay.
pub fn named_by_connection(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    const KEPT: [&[u8]; 9] = [
        b"",
        b"close",
        b"content-length",
        b"host",
        b"keep-alive",
        b"te",
        b"trailers",
        b"transfer-encoding",
        b"upgrade",
    ];
    elements(value).filter(|name| !KEPT.iter().any(|kept| name.eq_ignore_ascii_case(kept)))
}
