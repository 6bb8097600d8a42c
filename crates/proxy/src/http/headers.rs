//! Header mutations of rules, parsed when a table is activated, and hop-by-hop headers.

use http::Uri;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use model::route::{HeaderChanges, hop_by_hop};

/// Removals are applied before additions.
#[derive(Debug, Default)]
pub(crate) struct HeaderMutations {
    remove: Box<[HeaderName]>,
    put: Box<[HeaderAddition]>,
}

#[derive(Debug)]
struct HeaderAddition {
    name: HeaderName,
    value: HeaderValue,
    append: bool,
}

impl HeaderMutations {
    /// The mutations, and the problems of those that cannot be applied.
    pub(crate) fn new(changes: &HeaderChanges) -> (Self, Vec<String>) {
        let mut refused = Vec::new();
        let mut name = |text: &str| match HeaderName::from_bytes(text.as_bytes()) {
            Ok(name) if is_protected(&name) => {
                refused
                    .push(format!("header {name} cannot be changed by a policy; remove it from the filter"));
                None
            }
            Ok(name) => Some(name),
            Err(_) => {
                refused.push(format!("{text:?} is not a valid header name; use letters, digits and dashes"));
                None
            }
        };
        let remove = changes.remove.iter().filter_map(|text| name(text)).collect();
        let named: Vec<_> =
            changes.put.iter().filter_map(|change| Some((name(&change.name)?, change))).collect();
        let mut put = Vec::new();
        for (name, change) in named {
            match HeaderValue::from_str(&change.value) {
                Ok(value) => put.push(HeaderAddition { name, value, append: change.append }),
                Err(_) => refused
                    .push(format!("the value of header {name} contains characters that HTTP does not allow")),
            }
        }
        (Self { remove, put: put.into() }, refused)
    }

    pub(crate) fn apply(&self, headers: &mut HeaderMap) {
        for name in &self.remove {
            headers.remove(name);
        }
        for put in &self.put {
            if put.append {
                headers.append(&put.name, put.value.clone());
            } else {
                headers.insert(&put.name, put.value.clone());
            }
        }
    }
}

/// Headers that frame a message or name its host: changing them would allow request smuggling. The host has a filter of
/// its own.
fn is_protected(name: &HeaderName) -> bool {
    is_hop_by_hop(name) || matches!(*name, header::CONTENT_LENGTH | header::HOST | header::TRAILER)
}

fn is_hop_by_hop(name: &HeaderName) -> bool {
    hop_by_hop::is_hop_by_hop(name.as_str())
}

/// Removes hop-by-hop headers and those that `Connection` names. `TE: trailers` stays, because gRPC needs it. Nearly
/// every message has at most one such header, so only those that exist are looked up.
pub(crate) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let mut found: [Option<HeaderName>; 9] = Default::default();
    for (place, name) in found.iter_mut().zip(headers.keys().filter(|name| is_hop_by_hop(name))) {
        *place = Some(name.clone());
    }
    let found = found.into_iter().flatten();
    let mut wants_trailers = false;
    for name in found {
        if name == header::CONNECTION {
            named_besides(headers).into_iter().for_each(|name| drop(headers.remove(name)));
        } else if name == header::TE {
            wants_trailers = headers.get_all(header::TE).iter().any(|value| has_word(value, b"trailers"));
        }
        headers.remove(name);
    }
    if wants_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
}

fn has_word(value: &HeaderValue, word: &[u8]) -> bool {
    hop_by_hop::elements(value.as_bytes()).any(|part| part.eq_ignore_ascii_case(word))
}

fn named_besides(headers: &HeaderMap) -> Vec<HeaderName> {
    let lines = headers.get_all(header::CONNECTION).iter();
    let names = lines.flat_map(|line| hop_by_hop::named_by_connection(line.as_bytes()));
    names.filter_map(|name| HeaderName::from_bytes(name).ok()).collect()
}

/// The protocol of a valid upgrade request. HTTP itself is ignored.
pub(crate) fn upgrade_protocol(headers: &HeaderMap) -> Option<HeaderValue> {
    let wanted = headers.get(header::UPGRADE)?;
    let mut connection = headers.get_all(header::CONNECTION).iter();
    (connection.any(|value| has_word(value, b"upgrade")) && !is_http(wanted.as_bytes()))
        .then(|| wanted.clone())
}

/// Whether one of these protocols is HTTP: its requests, forwarded as a tunnel, would bypass the routes.
pub(crate) fn is_http(protocols: &[u8]) -> bool {
    let is_http = |protocol: &[u8]| {
        let protocol = protocol.to_ascii_lowercase();
        matches!(protocol.as_slice(), b"h2" | b"h2c" | b"h3") || protocol.starts_with(b"http/")
    };
    hop_by_hop::elements(protocols).any(is_http)
}

pub(crate) fn path_and_query(uri: &Uri) -> PathAndQuery {
    uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"))
}

/// RFC 9113, 8.2.3: HTTP/2 may split cookies over several fields, HTTP/1.1 may not.
pub(crate) fn join_cookies(headers: &mut HeaderMap) {
    let mut lines = headers.get_all(header::COOKIE).iter();
    let (Some(_), Some(_)) = (lines.next(), lines.next()) else { return };
    let lines: Vec<&[u8]> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&lines.join(&b"; "[..])) {
        headers.insert(header::COOKIE, joined);
    }
}
