//! The action of a rule as an Envoy route action.

use envoy_types::pb::envoy::config::core::v3::{
    DataSource, HeaderValue, HeaderValueOption, RuntimeFractionalPercent, data_source::Specifier,
    header_value_option::HeaderAppendAction,
};
use envoy_types::pb::envoy::config::route::v3::redirect_action::{
    PathRewriteSpecifier, RedirectResponseCode, SchemeRewriteSpecifier,
};
use envoy_types::pb::envoy::config::route::v3::route::Action as EnvoyAction;
use envoy_types::pb::envoy::config::route::v3::route_action::{
    ClusterNotFoundResponseCode, ClusterSpecifier, HostRewriteSpecifier, RequestMirrorPolicy,
};
use envoy_types::pb::envoy::config::route::v3::weighted_cluster::ClusterWeight;
use envoy_types::pb::envoy::config::route::v3::{
    DirectResponseAction, RedirectAction, Route, RouteAction, WeightedCluster,
};
use envoy_types::pb::envoy::r#type::matcher::v3::{RegexMatchAndSubstitute, RegexMatcher};
use envoy_types::pb::envoy::r#type::v3::{FractionalPercent, fractional_percent::DenominatorType};
use model::route::{
    Arrival, BODY_NOT_READABLE, BackendTarget, DirectResponse, DirectResponseBody, HeaderChanges, PathChange,
    PathMatch, RequestMirror, RequestRedirect, Responder, Rewrite, RuleAction, WeightedBackend,
    WeightedBackends, error_text, hop_by_hop,
};

use super::protobuf::{number, seconds, source};
use super::{DirectResponseAllowlist, RouteContext};

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
    (route.request_headers_to_remove, route.request_headers_to_add) = headers(&action.request_headers);
    (route.response_headers_to_remove, route.response_headers_to_add) = headers(&action.response_headers);
    route.action = Some(match &action.responder {
        Responder::Forward(split) => forward(split, action, on),
        Responder::Redirect(to) => EnvoyAction::Redirect(redirect(to, on, context.arrival.as_ref())),
        Responder::Respond(response) => {
            EnvoyAction::DirectResponse(respond(response, context.allowlist, &mut problems))
        }
    });
    problems
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
    let put = changes.put.iter().filter(|change| !is_protected(&change.name)).map(|change| {
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

fn forward(split: &WeightedBackends, action: &RuleAction, on: &PathMatch) -> EnvoyAction {
    if let Some(status) = split.failure() {
        return EnvoyAction::DirectResponse(error(status));
    }
    let host = action.rewrite.hostname.as_deref().map(str::to_owned);
    let mut forward = RouteAction {
        cluster_specifier: Some(destination(split)),
        cluster_not_found_response_code: ClusterNotFoundResponseCode::InternalServerError.into(),
        host_rewrite_specifier: host.map(HostRewriteSpecifier::HostRewriteLiteral),
        // Disables Envoy's default of 15 s: routes do not limit the response time.
        timeout: seconds(0),
        request_mirror_policies: action.mirrors.iter().map(mirror).collect(),
        ..RouteAction::default()
    };
    rewrite(&action.rewrite, on, &mut forward);
    EnvoyAction::Route(forward)
}

/// An error with the text of the embedded proxy.
pub(super) fn error(status: u16) -> DirectResponseAction {
    DirectResponseAction { status: status.into(), body: text(error_text(status)), ..Default::default() }
}

fn text(text: &str) -> Option<DataSource> {
    source(Specifier::InlineString(text.to_owned()))
}

fn destination(split: &WeightedBackends) -> ClusterSpecifier {
    if let [WeightedBackend { to: BackendTarget::Backend(id), .. }] = split.entries() {
        return ClusterSpecifier::Cluster(id.to_string());
    }
    let cluster = |(name, weight): (String, u32)| ClusterWeight {
        name,
        weight: number(weight),
        ..ClusterWeight::default()
    };
    let clusters = weights(split).map(cluster).collect();
    ClusterSpecifier::WeightedClusters(WeightedCluster { clusters, ..WeightedCluster::default() })
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

fn mirror(mirror: &RequestMirror) -> RequestMirrorPolicy {
    let share = FractionalPercent { numerator: mirror.share.0, denominator: DenominatorType::Million.into() };
    RequestMirrorPolicy {
        cluster: mirror.to.to_string(),
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
        strip_query: !to.keeps_query,
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
