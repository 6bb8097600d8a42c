//! Routes: which backend gets a request, and what happens to the request on the way.
//!
//! ```text
//! MeshHTTPRoute, MeshGatewayHTTPRoute, MeshTCPRoute, MeshGateway (policy, rule); routes of the Gateway API;
//! MeshLoadBalancing (load_balancing)
//!   -> plan::routes: which apply, merged, ordered, backends resolved
//!   -> RouteTable of one proxy (table) -> the rule that a request hits (matcher) -> its Action (action)
//! ```
//!
//! A [`RouteTable`] holds finished decisions: a proxy looks up and obeys, and chooses only among weighted backends.

mod action;
mod cors;
mod edge;
mod error_response;
mod forwarded;
mod header_changes;
pub mod hop_by_hop;
mod hostname;
mod load_balancing;
mod matcher;
pub mod path;
mod pattern;
mod policy;
mod redirect;
mod request;
mod retry;
mod route_filter;
mod rule;
mod rule_json;
mod table;
#[cfg(test)]
mod tests;
mod tls;

pub use action::{
    BackendFilters, BackendTarget, DirectResponse, DirectResponseBody, PathChange, RequestMirror, Responder,
    Rewrite, RuleAction, WeightedBackend, WeightedBackends,
};
pub use cors::{CorsFilter, CorsOrigin, CorsRequest};
pub use edge::EdgeSettings;
pub use error_response::{BODY_NOT_READABLE, INJECTED_FAULT, error_text, grpc_status};
pub use forwarded::{
    FORWARDED_HEADERS, ForwardedHeaders, RequestOrigin, TrustedProxies, X_FORWARDED_PREFIX,
    is_forwarded_header,
};
pub use header_changes::{HeaderChange, HeaderChanges};
pub use hostname::{HostMap, Hostname, plain_host};
pub use load_balancing::{
    CircuitBreakerFields, EffectiveLoadBalancing, FaultInjection, FieldOrigin, HashOn, InjectedAbort,
    InjectedDelay, LbAlgorithm, LoadBalancing, LocalityPriority, LocalityRule, MeshLoadBalancing,
    OutlierLimits, RateLimit, RetryBudget, RetryDefaults, SlowStart, TimeoutDefaults, ToLoadBalancing,
    WeightedZone, ZoneMatch,
};
pub use matcher::{MatchEntry, RouteGroup};
pub use pattern::Pattern;
pub use policy::{
    Certificate, MeshGateway, MeshGatewayHttpRoute, MeshGatewayListener, MeshGatewayProtocol, MeshHttpRoute,
    MeshTcpRoute, PolicyTarget, ToHttp, ToTcp,
};
pub use redirect::{Arrival, RequestRedirect, Scheme};
pub use request::{HeaderLines, HeaderList, RequestView, UnmetCondition};
pub use retry::{RetryLimits, RouteRetry};
pub use route_filter::{ExtensionEffect, MeshRouteFilter};
pub use rule::{
    BackendObject, BackendRef, ExtensionFilter, HeaderMatch, HeaderModifier, MatchConditions, PathMatch,
    Percentage, QueryMatch, RedirectFilter, RequestTimeouts, RewriteFilter, RouteFilter, RouteMatch,
    RouteRule, RuleOverrides, ValueTest,
};
pub use rule_json::{backend_value, match_value, retry_value, rule_value, timeouts_value};
pub use table::{
    AppProtocol, BackendId, GatewayPort, HttpRoutes, HttpRule, Listener, ListenerChoice, MatchedRoute,
    Outbound, RouteTable, Routing, RuleOrigin,
};
pub use tls::{BackendTls, ClientAuthentication};
