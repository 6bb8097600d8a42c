//! What a proxy does with a request before it is matched.

use crate::route::forwarded::TrustedProxies;
use crate::route::path::PathNormalization;

/// The settings of a proxy's operator, the same in the embedded proxy, in Envoy and in traces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EdgeSettings {
    pub path: PathNormalization,
    /// Peers of a gateway whose forwarded headers, and PROXY protocol headers, are believed.
    pub trusted_proxies: TrustedProxies,
    /// Connections to a gateway begin with a PROXY protocol header, and come from trusted proxies only.
    pub proxy_protocol: bool,
}
