//! Routes: which backend gets a request, and what happens to the request on the way.
//!
//! ```text
//! MeshHTTPRoute, MeshGatewayHTTPRoute, MeshTCPRoute, MeshGateway (policy, rule)
//!   -> plan::routes: which apply, merged, ordered, backends resolved
//!   -> RouteTable of one proxy (table) -> the rule that a request hits (matcher) -> its Action (action)
//! ```
//!
//! A [`RouteTable`] holds finished decisions: a proxy looks up and obeys, and chooses only among weighted backends.

mod action;
mod edge;
mod error_response;
mod forwarded;
mod header_changes;
pub mod hop_by_hop;
mod hostname;
mod matcher;
pub mod path;
mod pattern;
mod policy;
mod redirect;
mod request;
mod rule;
mod rule_json;
mod table;
#[cfg(test)]
mod tests;

pub use action::{
    BackendTarget, DirectResponse, DirectResponseBody, PathChange, RequestMirror, Responder, Rewrite,
    RuleAction, WeightedBackend, WeightedBackends,
};
pub use edge::EdgeSettings;
pub use error_response::{BODY_NOT_READABLE, error_text};
pub use forwarded::{
    FORWARDED_HEADERS, ForwardedHeaders, RequestOrigin, TrustedProxies, X_FORWARDED_PREFIX,
    is_forwarded_header,
};
pub use header_changes::{HeaderChange, HeaderChanges};
pub use hostname::{HostMap, Hostname, plain_host};
pub use matcher::{MatchEntry, RouteGroup};
pub use pattern::Pattern;
pub use policy::{
    Certificate, Gateway, GatewayHttpRoute, GatewayListener, GatewayProtocol, HttpRoute, PolicyTarget,
    TcpRoute, ToHttp, ToTcp,
};
pub use redirect::{Arrival, RequestRedirect, Scheme};
pub use request::{HeaderLines, HeaderList, RequestView, UnmetCondition};
pub use rule::{
    BackendRef, HeaderMatch, HeaderModifier, MatchConditions, PathMatch, Percentage, QueryMatch,
    RedirectFilter, RewriteFilter, RouteFilter, RouteMatch, RouteRule, ValueTest,
};
pub use rule_json::{backend_value, match_value, rule_value};
pub use table::{
    AppProtocol, BackendId, GatewayPort, HttpRoutes, HttpRule, Listener, MatchedRoute, Outbound, RouteTable,
    Routing, RuleOrigin,
};
