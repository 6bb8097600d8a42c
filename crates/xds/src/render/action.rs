//! What happens to a request that hit a rule, as an action of Envoy.

use envoy_types::pb::envoy::config::core::v3::{
    DataSource, HeaderValue, HeaderValueOption, RuntimeFractionalPercent, data_source::Specifier,
    header_value_option::HeaderAppendAction,
};
use envoy_types::pb::envoy::config::route::v3::redirect_action::{
    PathRewriteSpecifier, RedirectResponseCode, SchemeRewriteSpecifier,
};
use envoy_types::pb::envoy::config::route::v3::route::Action as Then;
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
    WeightedBackends, error_text,
};

use super::wire::{number, seconds, source};
use super::{Allowed, Setting};

/// A cluster that never exists: its share of requests is answered with 500 (semantics 1.8).
pub(super) const NOBODY: &str = "unresolved";

/// Fills in what happens. What Envoy cannot do is said and left out.
pub(super) fn fill(
    route: &mut Route,
    action: &RuleAction,
    on: &PathMatch,
    setting: &Setting<'_>,
) -> Vec<String> {
    let mut problems = Vec::new();
    for changes in [&action.request_headers, &action.response_headers] {
        let names = changes.remove.iter().chain(changes.put.iter().map(|change| &change.name));
        let left_out: Vec<&str> = names.map(|name| name.as_str()).filter(|name| frames(name)).collect();
        if !left_out.is_empty() {
            problems.push(format!(
                "changes of {} are left out: it frames the message or names its host; for the host there is urlRewrite.hostname",
                left_out.join(", ")
            ));
        }
    }
    (route.request_headers_to_remove, route.request_headers_to_add) = headers(&action.request_headers);
    (route.response_headers_to_remove, route.response_headers_to_add) = headers(&action.response_headers);
    route.action = Some(match &action.responder {
        Responder::Forward(split) => forward(split, action, on),
        Responder::Redirect(to) => Then::Redirect(redirect(to, on, setting.arrival.as_ref())),
        Responder::Respond(response) => {
            Then::DirectResponse(respond(response, setting.allowed, &mut problems))
        }
    });
    problems
}

/// A policy that could change these could smuggle requests; and of the host Envoy says no.
const FRAMES: &[&str] = &[
    "host",
    "connection",
    "content-length",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

fn frames(name: &str) -> bool {
    name.starts_with(':') || FRAMES.iter().any(|own| name.eq_ignore_ascii_case(own))
}

fn headers(changes: &HeaderChanges) -> (Vec<String>, Vec<HeaderValueOption>) {
    let remove = changes.remove.iter().filter(|name| !frames(name)).map(|name| name.to_string());
    let put = changes.put.iter().filter(|change| !frames(&change.name)).map(|change| {
        let action = if change.append {
            HeaderAppendAction::AppendIfExistsOrAdd
        } else {
            HeaderAppendAction::OverwriteIfExistsOrAdd
        };
        HeaderValueOption {
            header: Some(HeaderValue {
                key: change.name.to_string(),
                // Values are formats to Envoy, in which a percent sign begins a command.
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

fn forward(split: &WeightedBackends, action: &RuleAction, on: &PathMatch) -> Then {
    if let Some(status) = split.failure() {
        return Then::DirectResponse(error(status));
    }
    let host = action.rewrite.hostname.as_deref().map(str::to_owned);
    let mut forward = RouteAction {
        cluster_specifier: Some(destination(split)),
        cluster_not_found_response_code: ClusterNotFoundResponseCode::InternalServerError.into(),
        host_rewrite_specifier: host.map(HostRewriteSpecifier::HostRewriteLiteral),
        // Envoy ends a request after 15 s by itself; how long a backend may take is not said by routes.
        timeout: seconds(0),
        request_mirror_policies: action.mirrors.iter().map(mirror).collect(),
        ..RouteAction::default()
    };
    rewrite(&action.rewrite, on, &mut forward);
    Then::Route(forward)
}

/// An error with the short text that the embedded proxy gives, too.
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

/// Each backend with a weight; their sum fits into 32 bits, as Envoy wants it.
pub(super) fn weights(split: &WeightedBackends) -> impl Iterator<Item = (String, u32)> {
    let total: u128 = split.entries().iter().map(|backend| u128::from(backend.weight)).sum();
    // Leaves room for the weights that are rounded up to one.
    let limit = u128::from(u32::MAX) - split.entries().len() as u128;
    split.entries().iter().map(move |backend| {
        let scaled =
            if total > limit { u128::from(backend.weight) * limit / total } else { backend.weight.into() };
        let name = match &backend.to {
            BackendTarget::Backend(id) => id.to_string(),
            BackendTarget::Error(_) => NOBODY.to_owned(),
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
        (Some(PathChange::Prefix(value)), PathMatch::Prefix(prefix)) => match new_prefix(prefix, value) {
            NewPrefix::Text(new) => forward.prefix_rewrite = new,
            NewPrefix::Pattern(new) => forward.regex_rewrite = Some(new),
        },
        _ => {}
    }
}

/// How Envoy replaces a prefix.
enum NewPrefix {
    /// By this text.
    Text(String),
    /// By a pattern, where text for text would leave a slash too many.
    Pattern(RegexMatchAndSubstitute),
}

/// Semantics 1.7: a slash at the end of the replacement does not double, `/` takes the prefix off and the slash behind
/// it, too, and a bare `/` below the prefix `/` becomes the replacement, without a slash behind it.
fn new_prefix(prefix: &str, replacement: &str) -> NewPrefix {
    let start = replacement.strip_suffix('/').unwrap_or(replacement);
    match (prefix, start) {
        ("/", "") => NewPrefix::Text("/".to_owned()),
        ("/", start) => NewPrefix::Pattern(substitute("^/$|^".to_owned(), start)),
        (prefix, "") => {
            NewPrefix::Pattern(substitute(format!("^{}/?", super::pattern::literal(prefix)), "/"))
        }
        (_, start) => NewPrefix::Text(start.to_owned()),
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
    // A scheme brings its own port; without one a client comes back to the listener (semantics 1.7).
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
                Some(match new_prefix(prefix, value) {
                    NewPrefix::Text(new) => PathRewriteSpecifier::PrefixRewrite(new),
                    NewPrefix::Pattern(new) => PathRewriteSpecifier::RegexRewrite(new),
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

/// Semantics 1.7: what a policy may read of the proxy is the operator's to say.
fn respond(response: &DirectResponse, allowed: &Allowed, problems: &mut Vec<String>) -> DirectResponseAction {
    let mut refuse = |what: &str, name: &str, flag: &str| {
        let advice =
            format!("allow it with {flag} where `zoneward mesh control` runs, or say the body inline");
        problems.push(format!(
            "the body of the response is the {what} {name} of the proxy, which is not allowed: the answer is 500; {advice}"
        ));
        None
    };
    let body = match &response.body {
        None => return DirectResponseAction { status: response.status.into(), ..Default::default() },
        Some(DirectResponseBody::Text(text)) => Some(Specifier::InlineString(text.to_string())),
        Some(DirectResponseBody::Bytes(bytes)) => Some(Specifier::InlineBytes(bytes.to_vec())),
        Some(DirectResponseBody::File(name)) if allowed.files.contains(&**name) => {
            Some(Specifier::Filename(name.to_string()))
        }
        Some(DirectResponseBody::File(name)) => refuse("file", name, "--allow-file"),
        Some(DirectResponseBody::Environment(name)) if allowed.environment.contains(&**name) => {
            Some(Specifier::EnvironmentVariable(name.to_string()))
        }
        Some(DirectResponseBody::Environment(name)) => refuse("environment variable", name, "--allow-env"),
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
