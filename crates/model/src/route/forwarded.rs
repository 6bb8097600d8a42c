//! Headers that say where a request came from. A gateway sets them; those of clients that it does not trust are removed
//! before matching.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::route::redirect::Scheme;
use crate::route::request::HeaderLines;

/// Headers with this prefix are removed, too: `X-Forwarded-Port`, `X-Forwarded-Prefix` and others that frameworks read.
pub const X_FORWARDED_PREFIX: &str = "x-forwarded-";

/// What is removed from clients that are not trusted, besides [`X_FORWARDED_PREFIX`]. The last two replace the path in
/// some frameworks, after it was matched here.
pub const FORWARDED_HEADERS: [&str; 4] = ["forwarded", "x-real-ip", "x-original-url", "x-rewrite-url"];

/// Whether a header, in lower case, is removed from clients that are not trusted.
pub fn is_forwarded_header(name: &str) -> bool {
    name.starts_with(X_FORWARDED_PREFIX) || FORWARDED_HEADERS.contains(&name)
}

/// The networks of proxies before a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedProxies(Box<[IpNet]>);

impl TrustedProxies {
    pub fn new(networks: impl IntoIterator<Item = IpNet>) -> Self {
        Self(networks.into_iter().collect())
    }

    pub fn networks(&self) -> &[IpNet] {
        &self.0
    }

    pub fn contains(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.0.iter().any(|network| network.contains(&ip))
    }
}

/// What a gateway itself knows of where a request came from.
#[derive(Clone, Copy, Debug)]
pub struct RequestOrigin<'a> {
    /// The peer of the connection, or the source that its PROXY protocol header names.
    pub peer: SocketAddr,
    pub scheme: Scheme,
    /// As sent; empty in HTTP/1.0 without one.
    pub host: &'a str,
}

/// The headers that replace those of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardedHeaders {
    /// The address of the client: the peer, or what trusted proxies say.
    pub client: IpAddr,
    /// Whether the peer is trusted: if not, all other forwarded headers are removed.
    pub is_trusted: bool,
    pub set: Vec<(&'static str, String)>,
}

impl ForwardedHeaders {
    pub fn of(origin: &RequestOrigin<'_>, trusted: &TrustedProxies, received: &dyn HeaderLines) -> Self {
        let peer = origin.peer.ip().to_canonical();
        let is_trusted = trusted.contains(peer);
        let line = |name: &str| if is_trusted { joined(received, name) } else { None };
        let chain = line("x-forwarded-for");
        let client = chain.as_deref().map_or(peer, |chain| client_of(chain, peer, trusted));
        let proto = line("x-forwarded-proto").filter(|scheme| matches!(scheme.as_str(), "http" | "https"));
        let proto = proto.unwrap_or_else(|| origin.scheme.to_string());
        let host = line("x-forwarded-host").unwrap_or_else(|| origin.host.to_owned());
        // Quoted, because an IPv6 address has to be (RFC 7239, 6).
        let mut element = format!("for=\"{}\"", SocketAddr::new(peer, origin.peer.port()));
        if !origin.host.is_empty() {
            element += &format!(";host=\"{}\"", origin.host);
        }
        element += &format!(";proto={}", origin.scheme);
        let mut set = vec![
            ("x-forwarded-for", appended(chain, &peer.to_string())),
            ("x-forwarded-proto", proto),
            ("x-real-ip", client.to_string()),
            ("forwarded", appended(line("forwarded"), &element)),
        ];
        if !host.is_empty() {
            set.push(("x-forwarded-host", host));
        }
        Self { client, is_trusted, set }
    }
}

/// All lines of a header as one; `None` without any.
fn joined(received: &dyn HeaderLines, name: &str) -> Option<String> {
    let mut lines = Vec::new();
    received.any(name, &mut |value| {
        lines.push(String::from_utf8_lossy(value).trim().to_owned());
        false
    });
    lines.retain(|line| !line.is_empty());
    (!lines.is_empty()).then(|| lines.join(","))
}

fn appended(before: Option<String>, element: &str) -> String {
    match before {
        Some(before) => format!("{before},{element}"),
        None => element.to_owned(),
    }
}

/// The last address that is not of a trusted proxy; if all are, the first. Everything before an entry that is not an
/// address is not believed.
fn client_of(chain: &str, peer: IpAddr, trusted: &TrustedProxies) -> IpAddr {
    let mut client = peer;
    for entry in chain.rsplit(',') {
        let Some(ip) = address(entry.trim()) else { break };
        client = ip;
        if !trusted.contains(ip) {
            break;
        }
    }
    client
}

/// An address with or without a port.
fn address(text: &str) -> Option<IpAddr> {
    let ip = text.trim_matches(['[', ']']).parse().ok();
    ip.or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()))
        .map(|ip: IpAddr| ip.to_canonical())
}
