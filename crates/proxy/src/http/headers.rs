//! Header mutations of rules, parsed when a table is activated, and hop-by-hop headers.

use http::Uri;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use model::route::HeaderChanges;

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

const KEEP_ALIVE: &str = "keep-alive";
const PROXY_CONNECTION: &str = "proxy-connection";
const HTTP2_SETTINGS: &str = "http2-settings";

/// RFC 9110, 7.6.1.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    match *name {
        header::CONNECTION | header::TE | header::TRANSFER_ENCODING | header::UPGRADE => true,
        _ => matches!(name.as_str(), KEEP_ALIVE | PROXY_CONNECTION | HTTP2_SETTINGS),
    }
}

/// Removes hop-by-hop headers and those that `Connection` names. `TE: trailers` stays, because gRPC needs it. Nearly
/// every message has at most one such header, so only those that exist are looked up.
pub(crate) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let mut found: [Option<HeaderName>; 9] = Default::default();
    let hop_by_hop = headers.keys().filter(|name| is_hop_by_hop(name) || **name == header::EXPECT);
    for (place, name) in found.iter_mut().zip(hop_by_hop) {
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
    words(value).any(|part| part.eq_ignore_ascii_case(word))
}

fn words(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

/// Header names in `Connection` that are not removed anyway.
fn named_besides(headers: &HeaderMap) -> Vec<HeaderName> {
    const ANYWAY: [&[u8]; 5] = [b"keep-alive", b"close", b"upgrade", b"te", b"transfer-encoding"];
    let all = headers.get_all(header::CONNECTION).iter().flat_map(words);
    let besides = all.filter(|word| !ANYWAY.iter().any(|known| word.eq_ignore_ascii_case(known)));
    let names = besides.filter_map(|word| HeaderName::from_bytes(word).ok());
    // Headers of routing and framing must survive.
    names.filter(|name| !matches!(*name, header::HOST | header::CONTENT_LENGTH)).collect()
}

/// The protocol of a valid upgrade request. `h2c` is ignored: forwarded as a tunnel, it would bypass the routes.
pub(crate) fn upgrade_protocol(headers: &HeaderMap) -> Option<HeaderValue> {
    let wanted = headers.get(header::UPGRADE)?;
    let connection = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let asked =
        connection.flat_map(|value| value.split(',')).any(|name| name.trim().eq_ignore_ascii_case("upgrade"));
    let is_h2c = wanted.as_bytes().split(|b| *b == b',').any(|p| p.trim_ascii().eq_ignore_ascii_case(b"h2c"));
    (asked && !is_h2c).then(|| wanted.clone())
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
