//! Route rules, compiled when a table is activated: header names parsed, direct response bodies read, backends resolved.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use model::route::{
    BODY_NOT_READABLE, CorsFilter, DirectResponseBody, HttpRule, RequestMirror, Responder, RouteGroup,
    RuleAction,
};
use model::{Notice, ObjectRef};

use super::headers::HeaderMutations;
use crate::registry::Registry;
use crate::settings::{DirectResponseSources, ProxyOptions};
use crate::stats::RouteStats;
use crate::upstream::backend::UpstreamBackend;
use crate::upstream::backend_settings::RequestLimits;
use crate::upstream::weighted_backends::{BackendPicker, status_or_500};

/// The rules of a group, in its order. Groups share equal rules.
#[derive(Debug)]
pub(crate) struct RuleGroup {
    pub(crate) rules: Box<[Arc<CompiledRule>]>,
    pub(crate) notices: Vec<Notice>,
}

#[derive(Debug)]
pub(crate) struct CompiledRule {
    pub(crate) request: HeaderMutations,
    pub(crate) response: HeaderMutations,
    pub(crate) host: Option<HeaderValue>,
    pub(crate) mirrors: Box<[(RequestMirror, Arc<UpstreamBackend>)]>,
    pub(crate) action: CompiledAction,
    /// `None` for nearly all rules.
    pub(crate) extension: Option<Box<RuleExtension>>,
    pub(crate) stats: Arc<RouteStats>,
    /// About what in it cannot be applied.
    notices: Box<[Notice]>,
}

/// The parts of a rule that cost requests more than a test whether there are any.
#[derive(Debug)]
pub(crate) struct RuleExtension {
    pub(crate) limits: RequestLimits,
    pub(crate) cors: Option<CorsFilter>,
    pub(crate) is_grpc: bool,
}

impl RuleExtension {
    fn of(action: &RuleAction) -> Option<Box<Self>> {
        let RuleAction { timeouts, retry, cors, is_grpc, .. } = action;
        let limits = RequestLimits { timeouts: *timeouts, retry: retry.clone() };
        let is_plain = !limits.any() && cors.is_none() && !is_grpc;
        (!is_plain).then(|| Box::new(Self { limits, cors: cors.clone(), is_grpc: *is_grpc }))
    }
}

#[derive(Debug)]
pub(crate) enum CompiledAction {
    Forward(BackendPicker),
    Redirect,
    Respond(StatusCode, Bytes),
}

impl RuleGroup {
    pub(crate) fn new(source: &RouteGroup, registry: &mut Registry, options: &ProxyOptions) -> Self {
        let rules: Box<[Arc<CompiledRule>]> =
            source.rules().iter().map(|rule| registry.rule(rule, options)).collect();
        let notices = rules.iter().flat_map(|rule| rule.notices.iter().cloned()).collect();
        Self { rules, notices }
    }
}

impl CompiledRule {
    pub(crate) fn new(rule: &HttpRule, registry: &mut Registry, options: &ProxyOptions) -> Self {
        let RuleAction { request_headers, response_headers, mirrors, rewrite, responder, .. } = &rule.action;
        let (request, mut problems) = HeaderMutations::new(request_headers);
        let (response, more) = HeaderMutations::new(response_headers);
        problems.extend(more);
        let host = rewrite.hostname.as_deref().and_then(|host| HeaderValue::from_str(host).ok());
        let mirrors = mirrors.iter().map(|mirror| (mirror.clone(), registry.backend(&mirror.to))).collect();
        let action = match responder {
            Responder::Forward(split) => {
                CompiledAction::Forward(BackendPicker::new(split, registry, &mut problems))
            }
            Responder::Redirect(_) => CompiledAction::Redirect,
            Responder::Respond(response) => {
                match direct_response_body(response.body.as_ref(), &options.direct_response_sources) {
                    Ok(bytes) => CompiledAction::Respond(status_or_500(response.status), bytes),
                    Err(problem) => {
                        problems.push(problem);
                        let bytes = Bytes::from_static(BODY_NOT_READABLE.as_bytes());
                        CompiledAction::Respond(StatusCode::INTERNAL_SERVER_ERROR, bytes)
                    }
                }
            }
        };
        let notices = problems.into_iter().map(|problem| notice(rule, &problem));
        let notices = notices.chain(options.limits.retries.notice(rule)).collect();
        let stats = registry.route_stats(&label(rule));
        let extension = RuleExtension::of(&rule.action);
        Self { request, response, host, mirrors, action, extension, stats, notices }
    }
}

/// For logs and metrics.
fn label(rule: &HttpRule) -> String {
    match &rule.origin.policy {
        Some(policy) => format!("{policy} {}", rule.origin.field),
        None => "original destination".to_owned(),
    }
}

fn notice(rule: &HttpRule, problem: &str) -> Notice {
    let unknown = || ObjectRef::new("MeshHTTPRoute", "", "");
    let object = rule.origin.filters.clone().or_else(|| rule.origin.policy.clone()).unwrap_or_else(unknown);
    // Mesh* policies have `default` between rule and filters.
    let place = if object.kind.starts_with("Mesh") { ".default.filters" } else { ".filters" };
    Notice::new(object, "FilterNotApplied", format!("{}{place}: {problem}", rule.origin.field))
}

/// Larger responses belong to a backend.
const MAX_DIRECT_RESPONSE: u64 = 1 << 20;

/// Semantics 1.7: the operator decides what policies may read on this machine.
fn direct_response_body(
    body: Option<&DirectResponseBody>,
    sources: &DirectResponseSources,
) -> Result<Bytes, String> {
    match body {
        None => Ok(Bytes::new()),
        Some(DirectResponseBody::Text(text)) => Ok(Bytes::copy_from_slice(text.as_bytes())),
        Some(DirectResponseBody::Bytes(bytes)) => Ok(Bytes::copy_from_slice(bytes)),
        Some(DirectResponseBody::File(path)) if sources.files.contains(Path::new(path.as_str())) => {
            read(path).map_err(|error| format!("directResponse.body: cannot read {path}: {error}"))
        }
        Some(DirectResponseBody::File(path)) => Err(format!(
            "directResponse.body: reading {path} is not allowed; the operator of the proxy can allow it with --allow-file"
        )),
        Some(DirectResponseBody::Environment(name)) if sources.variables.contains(name.as_str()) => {
            let value = std::env::var_os(name.as_str());
            let value = value
                .ok_or_else(|| format!("directResponse.body: environment variable {name} is not set"))?;
            Ok(value.into_encoded_bytes().into())
        }
        Some(DirectResponseBody::Environment(name)) => Err(format!(
            "directResponse.body: reading environment variable {name} is not allowed; the operator of the proxy can allow it with --allow-env"
        )),
    }
}

fn read(path: &str) -> std::io::Result<Bytes> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(MAX_DIRECT_RESPONSE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_DIRECT_RESPONSE {
        return Err(std::io::Error::other("larger than 1 MiB"));
    }
    Ok(bytes.into())
}
