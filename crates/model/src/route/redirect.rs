//! Redirects: the Location header for a request.

use std::fmt;

use crate::name::Name;
use crate::route::action::PathChange;
use crate::route::hostname::plain_host;
use crate::route::path;
use crate::route::request::RequestView;
use crate::route::rule::{PathMatch, RedirectFilter};

/// The scheme of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

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

/// The listener that a request arrived at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub scheme: Scheme,
    /// The port of a gateway's listener. `None` in the mesh, where the port is taken from the Host header.
    pub port: Option<u16>,
}

/// A redirect response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRedirect {
    /// The scheme; `None` keeps it.
    pub scheme: Option<Scheme>,
    /// The host; `None` keeps it.
    pub hostname: Option<Name>,
    /// The path; `None` keeps it.
    pub path: Option<PathChange>,
    /// The port; `None` follows the scheme, else stays.
    pub port: Option<u16>,
    pub status: u16,
}

impl From<&RedirectFilter> for RequestRedirect {
    fn from(filter: &RedirectFilter) -> Self {
        Self {
            scheme: filter.scheme,
            hostname: filter.hostname.clone(),
            path: filter.path.clone(),
            port: filter.port,
            // Semantics 1.7: the default status.
            status: filter.status.unwrap_or(302),
        }
    }
}

impl RequestRedirect {
    /// The Location header of a request that hit the path match `matched`. The query is kept.
    pub fn location(&self, request: &RequestView<'_>, matched: &PathMatch, at: &Arrival) -> String {
        let scheme = self.scheme.unwrap_or(at.scheme);
        let own_host = plain_host(request.host);
        let host = self.hostname.as_deref().unwrap_or(&own_host);
        let port = self.port.or_else(|| match self.scheme {
            // A new scheme implies its default port; otherwise the client returns to the port that it used.
            Some(scheme) => Some(scheme.default_port()),
            None => at.port.or_else(|| port_of(request.host)),
        });
        let port = port.filter(|port| *port != scheme.default_port());
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        let path = match &self.path {
            Some(change) => change.apply(request.path, matched),
            None => request.path.to_owned(),
        };
        format!("{scheme}://{host}{port}{}", path::join(&path, request.query))
    }
}

fn port_of(host: &str) -> Option<u16> {
    let (_, port) = host.rsplit_once(':')?;
    port.parse().ok()
}
