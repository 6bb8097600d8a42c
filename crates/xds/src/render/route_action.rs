//! The action of a rule as an Envoy route action.

use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::{
    DataSource, HeaderValue, HeaderValueOption, RuntimeFractionalPercent, data_source::Specifier,
    header_value_option::HeaderAppendAction,
};
use envoy_types::pb::envoy::config::route::v3::redirect_action::{
    PathRewriteSpecifier, RedirectResponseCode, SchemeRewriteSpecifier,
};
use envoy_types::pb::envoy::config::route::v3::retry_policy::RetryBackOff;
use envoy_types::pb::envoy::config::route::v3::route::Action as EnvoyAction;
use envoy_types::pb::envoy::config::route::v3::route_action::hash_policy::{self, PolicySpecifier};
use envoy_types::pb::envoy::config::route::v3::route_action::{
    ClusterNotFoundResponseCode, ClusterSpecifier, HashPolicy, HostRewriteSpecifier, RequestMirrorPolicy,
};
use envoy_types::pb::envoy::config::route::v3::weighted_cluster::{ClusterWeight, cluster_weight};
use envoy_types::pb::envoy::config::route::v3::{
    DirectResponseAction, RedirectAction, RetryPolicy, Route, RouteAction, WeightedCluster,
};
use envoy_types::pb::envoy::extensions::filters::http::cors::v3::CorsPolicy;
use envoy_types::pb::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use envoy_types::pb::envoy::r#type::matcher::v3::{RegexMatchAndSubstitute, RegexMatcher, StringMatcher};
use envoy_types::pb::envoy::r#type::v3::{FractionalPercent, fractional_percent::DenominatorType};
use envoy_types::pb::google::protobuf::Any;
use model::Name;
use model::route::{
    Arrival, BODY_NOT_READABLE, BackendId, BackendTarget, CorsFilter, CorsOrigin, DirectResponse,
    DirectResponseBody, HashOn, HeaderChange, HeaderChanges, LoadBalancing, PathChange, PathMatch,
    RequestMirror, RequestRedirect, Responder, RetryLimits, Rewrite, RouteRetry, RouteTable, RuleAction,
    Scheme, WeightedBackend, WeightedBackends, error_text, hop_by_hop,
};

use super::protobuf::{any, duration, no, number, source, yes};
use super::{DirectResponseAllowlist, RouteContext, route_configuration, traffic_filters};

/// A cluster that never exists: its share of requests gets 500 (semantics 1.8).
pub(super) const UNRESOLVED: &str = "unresolved";

/// Sets the action, and returns what Envoy does not support.
pub(super) fn fill(
    route: &mut Route,
    action: &RuleAction,
    on: &PathMatch,
    context: &RouteContext<'_>,
) -> Vec<String> {
    let mut problems = Vec::new();
    for changes in [&action.request_headers, &action.response_headers] {
        let names = changes.remove.iter().chain(changes.put.iter().map(|change| &change.name));
        let left_out: Vec<&str> = names.map(|name| name.as_str()).filter(|name| is_protected(name)).collect();
        if !left_out.is_empty() {
            problems.push(format!(
                "changes of {} are ignored: the header frames the message or names its host; use urlRewrite.hostname for the host",
                left_out.join(", ")
            ));
        }
    }
    if !has_backend_filters(action) {
        (route.request_headers_to_remove, route.request_headers_to_add) = headers(&action.request_headers);
        (route.response_headers_to_remove, route.response_headers_to_add) = headers(&action.response_headers);
    }
    if let Some(cors) = &action.cors {
        route.typed_per_filter_config.insert(CORS.to_owned(), any(&cors_policy(cors, &mut problems)));
    }
    let faults = BackendFaults { routes: context.arrival.as_ref().map(|_| context.routes) };
    if let Responder::Forward(split) = &action.responder
        && let Some(id) = only_backend(split)
    {
        route.typed_per_filter_config.extend(faults.of(id));
    }
    route.action = Some(match &action.responder {
        Responder::Forward(split) => forward(split, action, on, context, faults, &mut problems),
        Responder::Redirect(to) => EnvoyAction::Redirect(redirect(to, on, context.arrival.as_ref())),
        Responder::Respond(response) => {
            EnvoyAction::DirectResponse(respond(response, context.allowlist, &mut problems))
        }
    });
    problems
}

/// Whether a backendRef has filters. Envoy applies those of a cluster before those of the route, and here they come after:
/// each cluster then has both.
fn has_backend_filters(action: &RuleAction) -> bool {
    match &action.responder {
        Responder::Forward(split) => split.entries().iter().any(|leg| leg.filters.is_some()),
        Responder::Redirect(_) | Responder::Respond(_) => false,
    }
}

/// The changes of a rule, then those of a backendRef.
fn chained(rule: &HeaderChanges, backend: Option<&HeaderChanges>) -> HeaderChanges {
    let Some(backend) = backend else { return rule.clone() };
    let is_gone = |change: &&HeaderChange| {
        backend.remove.iter().any(|removed| removed.eq_ignore_ascii_case(&change.name))
    };
    let kept = rule.put.iter().filter(|change| !is_gone(change));
    HeaderChanges {
        remove: rule.remove.iter().chain(&backend.remove).cloned().collect(),
        put: kept.chain(&backend.put).cloned().collect(),
    }
}

/// Changing these would allow request smuggling; Envoy rejects changes of the host.
fn is_protected(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.starts_with(':')
        || hop_by_hop::is_hop_by_hop(&name)
        || matches!(name.as_str(), "content-length" | "host" | "trailer")
}

fn headers(changes: &HeaderChanges) -> (Vec<String>, Vec<HeaderValueOption>) {
    let remove = changes.remove.iter().filter(|name| !is_protected(name)).map(|name| name.to_string());
    // Envoy sets headers before it adds any: what a later change overwrites is left out, and the order of both is kept.
    let is_overwritten = |at: usize, name: &Name| {
        changes.put[at + 1..].iter().any(|later| !later.append && later.name.eq_ignore_ascii_case(name))
    };
    let put = changes.put.iter().enumerate();
    let put = put.filter(|(at, change)| !is_protected(&change.name) && !is_overwritten(*at, &change.name));
    let put = put.map(|(_, change)| {
        let action = if change.append {
            HeaderAppendAction::AppendIfExistsOrAdd
        } else {
            HeaderAppendAction::OverwriteIfExistsOrAdd
        };
        HeaderValueOption {
            header: Some(HeaderValue {
                key: change.name.to_string(),
                // Envoy parses values as format strings.
                value: change.value.replace('%', "%%"),
                ..HeaderValue::default()
            }),
            append_action: action.into(),
            keep_empty_value: true,
            ..HeaderValueOption::default()
        }
    });
    (remove.collect(), put.collect())
}

fn forward(
    split: &WeightedBackends,
    action: &RuleAction,
    on: &PathMatch,
    context: &RouteContext<'_>,
    faults: BackendFaults<'_>,
    problems: &mut Vec<String>,
) -> EnvoyAction {
    if let Some(status) = split.failure() {
        // Envoy translates 503 to UNAVAILABLE for gRPC clients, and 500 to UNKNOWN.
        return EnvoyAction::DirectResponse(error(if action.is_grpc { 503 } else { status }));
    }
    let host = action.rewrite.hostname.as_deref().map(str::to_owned);
    let not_found = match action.is_grpc {
        true => ClusterNotFoundResponseCode::ServiceUnavailable,
        false => ClusterNotFoundResponseCode::InternalServerError,
    };
    let policies = BackendPolicies { split, routes: context.routes };
    let timeouts = action.timeouts.or(policies.common("timeouts", LoadBalancing::request_timeouts, problems));
    let retry = policies.common("retries", LoadBalancing::retry, problems);
    let retry = RouteRetry::resolve(action.retry.as_ref(), retry);
    let hash_on = policies.common("algorithm.hashOn", LoadBalancing::hash_on, problems);
    let mut forward = RouteAction {
        cluster_specifier: Some(destination(split, action, faults)),
        cluster_not_found_response_code: not_found.into(),
        host_rewrite_specifier: host.map(HostRewriteSpecifier::HostRewriteLiteral),
        // Zero disables Envoy's default of 15 s.
        timeout: duration(timeouts.request.unwrap_or_default()),
        retry_policy: retry_policy(timeouts.backend_request, retry.as_deref(), context.retries),
        hash_policy: hash_on.map(hash_policy).into_iter().collect(),
        request_mirror_policies: action.mirrors.iter().map(|m| mirror(m, action.is_grpc)).collect(),
        ..RouteAction::default()
    };
    let mut path = &action.rewrite;
    let own_path = |leg: &&WeightedBackend| leg.filters.as_ref().is_some_and(|f| f.rewrite.path.is_some());
    match split.entries() {
        [WeightedBackend { filters: Some(filters), .. }] if filters.rewrite.path.is_some() => {
            path = &filters.rewrite;
        }
        legs if legs.iter().any(|leg| own_path(&leg)) => problems.push(
            "urlRewrite.path of one of several backendRefs is ignored: Envoy rewrites paths per route; split the rule"
                .to_owned(),
        ),
        _ => {}
    }
    rewrite(path, on, &mut forward);
    EnvoyAction::Route(forward)
}

/// The policies for the backends of a rule.
struct BackendPolicies<'r> {
    split: &'r WeightedBackends,
    routes: &'r RouteTable,
}

impl<'r> BackendPolicies<'r> {
    /// A setting that Envoy has per route: that of the first backend.
    fn common<T: Default + PartialEq>(
        &self,
        field: &str,
        read: impl Fn(&'r LoadBalancing) -> T,
        problems: &mut Vec<String>,
    ) -> T {
        let mut all = self.split.backends().map(|id| {
            self.routes.load_balancing(&id.service).map(|policy| read(&policy.settings)).unwrap_or_default()
        });
        let first = all.next().unwrap_or_default();
        if all.any(|other| other != first) {
            problems.push(format!(
                "the backends of this rule have MeshLoadBalancing policies that differ in {field}: Envoy has it per route and uses that of the first; split the rule, or use one policy for both"
            ));
        }
        first
    }
}

/// A request without the header or cookie goes to any endpoint, as at the embedded proxy.
fn hash_policy(on: &HashOn) -> HashPolicy {
    let specifier = match on {
        HashOn::Header(name) => PolicySpecifier::Header(hash_policy::Header {
            header_name: name.to_string(),
            ..hash_policy::Header::default()
        }),
        HashOn::Cookie(name) => PolicySpecifier::Cookie(hash_policy::Cookie {
            name: name.to_string(),
            ..hash_policy::Cookie::default()
        }),
        HashOn::SourceIp => {
            PolicySpecifier::ConnectionProperties(hash_policy::ConnectionProperties { source_ip: true })
        }
    };
    HashPolicy { policy_specifier: Some(specifier), ..HashPolicy::default() }
}

/// The retries of a rule replace those of its host, which are kept besides.
fn retry_policy(
    per_try: Option<Duration>,
    retry: Option<&RouteRetry>,
    limits: RetryLimits,
) -> Option<RetryPolicy> {
    if retry.is_none() && per_try.is_none() {
        return None;
    }
    let mut policy = route_configuration::retry_policy(limits.of(retry));
    policy.per_try_timeout = per_try.and_then(duration);
    if let Some(retry) = retry {
        // `reset` is also the end of a try by its timeout.
        policy.retry_on.push_str(",reset,retriable-status-codes");
        policy.retriable_status_codes = retry.codes.iter().map(|code| u32::from(*code)).collect();
        let base = retry.backoff().max(Duration::from_millis(1));
        policy.retry_back_off =
            Some(RetryBackOff { base_interval: duration(base), max_interval: duration(base * 10) });
    }
    Some(policy)
}

/// The filter of cross-origin requests.
pub(super) const CORS: &str = "envoy.filters.http.cors";

fn cors_policy(filter: &CorsFilter, problems: &mut Vec<String>) -> CorsPolicy {
    let listed = |names: &[Name]| names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
    let all = [&filter.methods, &filter.headers, &filter.exposed_headers];
    if filter.allows_credentials && all.iter().any(|names| names.iter().any(|name| name == "*")) {
        problems.push(
            "cors: with allowCredentials, browsers do not take * for methods and headers, and Envoy does not repeat what the request asks for; list them"
                .to_owned(),
        );
    }
    CorsPolicy {
        allow_origin_string_match: filter.origins.iter().map(origin).collect(),
        allow_methods: listed(&filter.methods),
        allow_headers: listed(&filter.headers),
        expose_headers: listed(&filter.exposed_headers),
        max_age: filter.max_age.to_string(),
        allow_credentials: filter.allows_credentials.then(yes).flatten(),
        // The proxy answers preflight requests of every origin.
        forward_not_matching_preflights: no(),
        ..CorsPolicy::default()
    }
}

/// A pattern of the whole origin, with the default port of its scheme or without a port.
fn origin(origin: &CorsOrigin) -> StringMatcher {
    let regex = match origin {
        CorsOrigin::Any => ".*".to_owned(),
        CorsOrigin::Pattern { scheme, host, port, .. } => {
            let host_regex = match host.strip_prefix('*') {
                Some(suffix) => format!("[^/:]+{}", super::regex::literal(suffix)),
                None => super::regex::literal(host),
            };
            let port = match (host.as_str(), *port) {
                ("*", _) => "(?::[0-9]+)?".to_owned(),
                (_, port) if port == scheme.default_port() => format!("(?::{port})?"),
                (_, port) => format!(":{port}"),
            };
            format!("(?i){scheme}://{host_regex}{port}")
        }
    };
    StringMatcher {
        match_pattern: Some(MatchPattern::SafeRegex(RegexMatcher { regex, ..RegexMatcher::default() })),
        ..StringMatcher::default()
    }
}

/// An error with the text of the embedded proxy.
pub(super) fn error(status: u16) -> DirectResponseAction {
    DirectResponseAction { status: status.into(), body: text(error_text(status)), ..Default::default() }
}

fn text(text: &str) -> Option<DataSource> {
    source(Specifier::InlineString(text.to_owned()))
}

/// The faults of backends at a gateway.
#[derive(Clone, Copy)]
struct BackendFaults<'r> {
    /// `None` in the mesh, where the destination has them.
    routes: Option<&'r RouteTable>,
}

impl BackendFaults<'_> {
    /// By filter.
    fn of(self, id: &BackendId) -> Option<(String, Any)> {
        traffic_filters::backend_faults(&self.routes?.load_balancing(&id.service)?.settings)
    }
}

/// The backend of a rule that is rendered without a split.
fn only_backend(split: &WeightedBackends) -> Option<&BackendId> {
    match split.entries() {
        [WeightedBackend { to: BackendTarget::Backend(id), filters: None, .. }] => Some(id),
        _ => None,
    }
}

pub(super) fn cluster_name(id: &BackendId, is_grpc: bool) -> String {
    if is_grpc { grpc_cluster(id) } else { id.to_string() }
}

fn destination(split: &WeightedBackends, action: &RuleAction, faults: BackendFaults<'_>) -> ClusterSpecifier {
    let name = |id: &BackendId| cluster_name(id, action.is_grpc);
    let has_filters = has_backend_filters(action);
    if let Some(id) = only_backend(split) {
        return ClusterSpecifier::Cluster(name(id));
    }
    let cluster = |(leg, (_, weight)): (&WeightedBackend, (String, u32))| {
        let mut cluster = ClusterWeight {
            name: match &leg.to {
                BackendTarget::Backend(id) => name(id),
                BackendTarget::Error(_) => UNRESOLVED.to_owned(),
            },
            weight: number(weight),
            ..ClusterWeight::default()
        };
        if let BackendTarget::Backend(id) = &leg.to {
            cluster.typed_per_filter_config.extend(faults.of(id));
        }
        if has_filters {
            let own = leg.filters.as_deref();
            let request = chained(&action.request_headers, own.map(|own| &own.request_headers));
            let response = chained(&action.response_headers, own.map(|own| &own.response_headers));
            (cluster.request_headers_to_remove, cluster.request_headers_to_add) = headers(&request);
            (cluster.response_headers_to_remove, cluster.response_headers_to_add) = headers(&response);
            let host = own.and_then(|own| own.rewrite.hostname.as_deref()).map(str::to_owned);
            cluster.host_rewrite_specifier =
                host.map(cluster_weight::HostRewriteSpecifier::HostRewriteLiteral);
        }
        cluster
    };
    let clusters = split.entries().iter().zip(weights(split)).map(cluster).collect();
    ClusterSpecifier::WeightedClusters(WeightedCluster { clusters, ..WeightedCluster::default() })
}

/// The cluster of a backend of a GRPCRoute: with HTTP/2, whatever the port declares.
pub(super) fn grpc_cluster(id: &BackendId) -> String {
    format!("{id} by HTTP/2")
}

/// Cluster names with weights, whose sum must fit into 32 bits.
pub(super) fn weights(split: &WeightedBackends) -> impl Iterator<Item = (String, u32)> {
    let total: u128 = split.entries().iter().map(|leg| u128::from(leg.weight)).sum();
    // Leaves room for weights that are rounded up to one.
    let limit = u128::from(u32::MAX) - split.entries().len() as u128;
    split.entries().iter().map(move |leg| {
        let scaled = if total > limit { u128::from(leg.weight) * limit / total } else { leg.weight.into() };
        let name = match &leg.to {
            BackendTarget::Backend(id) => id.to_string(),
            BackendTarget::Error(_) => UNRESOLVED.to_owned(),
        };
        (name, u32::try_from(scaled).unwrap_or(u32::MAX).max(1))
    })
}

fn mirror(mirror: &RequestMirror, is_grpc: bool) -> RequestMirrorPolicy {
    let share = FractionalPercent { numerator: mirror.share.0, denominator: DenominatorType::Million.into() };
    RequestMirrorPolicy {
        cluster: if is_grpc { grpc_cluster(&mirror.to) } else { mirror.to.to_string() },
        runtime_fraction: Some(RuntimeFractionalPercent {
            default_value: Some(share),
            ..RuntimeFractionalPercent::default()
        }),
        ..RequestMirrorPolicy::default()
    }
}

fn rewrite(rewrite: &Rewrite, on: &PathMatch, forward: &mut RouteAction) {
    match (&rewrite.path, on) {
        (Some(PathChange::Full(value)), _) => {
            forward.regex_rewrite = Some(substitute("^.*$".to_owned(), value));
        }
        (Some(PathChange::Prefix(value)), PathMatch::Prefix(prefix)) => match prefix_rewrite(prefix, value) {
            PrefixRewrite::Literal(new) => forward.prefix_rewrite = new,
            PrefixRewrite::Regex(new) => forward.regex_rewrite = Some(new),
        },
        _ => {}
    }
}

enum PrefixRewrite {
    Literal(String),
    /// Where a literal replacement would leave a slash too many.
    Regex(RegexMatchAndSubstitute),
}

/// Semantics 1.7: a trailing slash of the replacement does not double, `/` removes the prefix with the slash after it,
/// and a bare `/` below the prefix `/` becomes the replacement without a trailing slash.
fn prefix_rewrite(prefix: &str, replacement: &str) -> PrefixRewrite {
    let start = replacement.strip_suffix('/').unwrap_or(replacement);
    match (prefix, start) {
        ("/", "") => PrefixRewrite::Literal("/".to_owned()),
        ("/", start) => PrefixRewrite::Regex(substitute("^/$|^".to_owned(), start)),
        (prefix, "") => {
            PrefixRewrite::Regex(substitute(format!("^{}/?", super::regex::literal(prefix)), "/"))
        }
        (_, start) => PrefixRewrite::Literal(start.to_owned()),
    }
}

fn substitute(regex: String, by: &str) -> RegexMatchAndSubstitute {
    RegexMatchAndSubstitute {
        pattern: Some(RegexMatcher { regex, ..RegexMatcher::default() }),
        // Semantics 1.7: `\1` would be a reference.
        substitution: by.replace('\\', "\\\\"),
    }
}

fn redirect(to: &RequestRedirect, on: &PathMatch, at: Option<&Arrival>) -> RedirectAction {
    // A scheme implies its default port; without one the listener's port stays (semantics 1.7).
    let port = to.port.or_else(|| match to.scheme {
        Some(scheme) => Some(scheme.default_port()),
        None => at.and_then(|at| at.port),
    });
    // The default port is left out; without a new host, Envoy needs it to replace a port of the Host header.
    let default_port = to.scheme.or(at.map(|at| at.scheme)).map(Scheme::default_port);
    let port = port.filter(|port| to.hostname.is_none() || Some(*port) != default_port);
    RedirectAction {
        scheme_rewrite_specifier: to
            .scheme
            .map(|scheme| SchemeRewriteSpecifier::SchemeRedirect(scheme.as_str().to_owned())),
        host_redirect: to.hostname.as_deref().unwrap_or_default().to_owned(),
        port_redirect: port.unwrap_or_default().into(),
        path_rewrite_specifier: match (&to.path, on) {
            (Some(PathChange::Full(value)), _) => Some(PathRewriteSpecifier::PathRedirect(value.to_string())),
            (Some(PathChange::Prefix(value)), PathMatch::Prefix(prefix)) => {
                Some(match prefix_rewrite(prefix, value) {
                    PrefixRewrite::Literal(new) => PathRewriteSpecifier::PrefixRewrite(new),
                    PrefixRewrite::Regex(new) => PathRewriteSpecifier::RegexRewrite(new),
                })
            }
            _ => None,
        },
        response_code: match to.status {
            301 => RedirectResponseCode::MovedPermanently,
            303 => RedirectResponseCode::SeeOther,
            307 => RedirectResponseCode::TemporaryRedirect,
            308 => RedirectResponseCode::PermanentRedirect,
            _ => RedirectResponseCode::Found,
        }
        .into(),
        strip_query: false,
    }
}

/// Semantics 1.7: the operator decides what policies may read on the proxy's machine.
fn respond(
    response: &DirectResponse,
    allowlist: &DirectResponseAllowlist,
    problems: &mut Vec<String>,
) -> DirectResponseAction {
    let mut reject = |what: &str, name: &str, flag: &str| {
        let advice = format!("allow it with {flag} of `zoneward mesh control`, or write the body inline");
        problems.push(format!(
            "reading {what} {name} for a direct response is not allowed, so the response is 500; {advice}"
        ));
        None
    };
    let body = match &response.body {
        None => return DirectResponseAction { status: response.status.into(), ..Default::default() },
        Some(DirectResponseBody::Text(text)) => Some(Specifier::InlineString(text.to_string())),
        Some(DirectResponseBody::Bytes(bytes)) => Some(Specifier::InlineBytes(bytes.to_vec())),
        Some(DirectResponseBody::File(name)) if allowlist.files.contains(&**name) => {
            Some(Specifier::Filename(name.to_string()))
        }
        Some(DirectResponseBody::File(name)) => reject("file", name, "--allow-file"),
        Some(DirectResponseBody::Environment(name)) if allowlist.environment.contains(&**name) => {
            Some(Specifier::EnvironmentVariable(name.to_string()))
        }
        Some(DirectResponseBody::Environment(name)) => reject("environment variable", name, "--allow-env"),
    };
    match body {
        Some(body) => DirectResponseAction {
            status: response.status.into(),
            body: source(body),
            ..DirectResponseAction::default()
        },
        None => DirectResponseAction { status: 500, body: text(BODY_NOT_READABLE), ..Default::default() },
    }
}
