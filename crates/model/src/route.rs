//! Routes: which backend gets a request, and what happens to the request on the way.
//!
//! ```text
//! MeshHTTPRoute, MeshGatewayHTTPRoute, MeshTCPRoute, MeshGateway (policy, rule)
//!   -> plan::routes: which apply, merged, ordered, backends resolved
//!   -> RouteTable of one proxy (table) -> the rule that a request hits (matcher) -> its Action (action)
//! ```
//!
//! Everything that is chosen has been chosen when it stands in a [`RouteTable`]. Who carries requests looks up
//! and obeys; the only choice left is among weights.

mod action;
mod changes;
mod error;
mod host;
mod matcher;
pub mod path;
mod pattern;
mod policy;
mod redirect;
mod request;
mod rule;
mod table;
#[cfg(test)]
mod tests;
mod write;

pub use action::{Action, Body, DirectResponse, End, Leg, LegTarget, Mirror, PathChange, Rewrite, Split};
pub use changes::{HeaderChange, HeaderChanges};
pub use error::{BODY_NOT_READABLE, error_text};
pub use host::{HostMap, Hostname, plain_host};
pub use matcher::{Entry, RouteGroup};
pub use pattern::Pattern;
pub use policy::{
    Certificate, Gateway, GatewayHttpRoute, GatewayListener, GatewayProtocol, HttpRoute, PolicyTarget,
    TcpRoute, ToHttp, ToTcp,
};
pub use redirect::{Arrival, Redirect, Scheme};
pub use request::{HeaderLines, HeaderList, Miss, Request};
pub use rule::{
    BackendRef, Conditions, Filter, HeaderMatch, HeaderModifier, Match, PathMatch, Percentage, QueryMatch,
    RedirectFilter, RewriteFilter, Rule, ValueTest,
};
pub use table::{
    AppProtocol, BackendId, GatewayPort, Hit, HttpRoutes, HttpRule, Listener, Outbound, RouteTable, Routing,
    RuleOrigin,
};
pub use write::{backend_value, match_value, rule_value};
