//! Redirects: from a request and where it arrived to the address that it is sent to.

use std::fmt;

use crate::name::Name;
use crate::route::action::PathChange;
use crate::route::host::plain_host;
use crate::route::path;
use crate::route::request::Request;
use crate::route::rule::PathMatch;

/// How a client speaks to the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// In the clear.
    Http,
    /// By TLS.
    Https,
}

impl Scheme {
    /// As it stands in an address.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// The port that an address need not name.
    pub fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where a request arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// How the client spoke.
    pub scheme: Scheme,
    /// The port of a gateway's listener. `None` in the mesh: the Host header has the port that the client meant.
    pub port: Option<u16>,
}

/// An answer with another address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The scheme; `None` keeps it.
    pub scheme: Option<Scheme>,
    /// The host; `None` keeps it.
    pub hostname: Option<Name>,
    /// The path; `None` keeps it.
    pub path: Option<PathChange>,
    /// The port; `None` follows the scheme, else stays.
    pub port: Option<u16>,
    /// The status.
    pub status: u16,
    /// Whether the query goes along: in the mesh it does, at a gateway it does not (semantics 1.7).
    pub keeps_query: bool,
}

impl Redirect {
    /// The Location header for a request whose path hit `matched`.
    pub fn location(&self, request: &Request<'_>, matched: &PathMatch, at: &Arrival) -> String {
        let scheme = self.scheme.unwrap_or(at.scheme);
        let own_host = plain_host(request.host);
        let host = self.hostname.as_deref().unwrap_or(&own_host);
        let port = self.port.or_else(|| match self.scheme {
            // A scheme brings its own port; without one the client comes back to where it was.
            Some(scheme) => Some(scheme.default_port()),
            None => at.port.or_else(|| port_of(request.host)),
        });
        let port = port.filter(|port| *port != scheme.default_port());
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        let path = match &self.path {
            Some(change) => change.apply(request.path, matched),
            None => request.path.to_owned(),
        };
        let query = request.query.filter(|_| self.keeps_query);
        format!("{scheme}://{host}{port}{}", path::join(&path, query))
    }
}

fn port_of(host: &str) -> Option<u16> {
    let (_, port) = host.rsplit_once(':')?;
    port.parse().ok()
}
