//! The action of a merged rule: what a proxy does with a request.

use std::sync::Arc;

use model::route::{
    BackendFilters, BackendId, BackendTarget, DirectResponse, HeaderChanges, HeaderModifier, HttpRule,
    Percentage, RequestMirror, Responder, Rewrite, RewriteFilter, RouteFilter, RouteRule, RuleAction,
    RuleOrigin, WeightedBackends,
};
use model::{Notice, ObjectRef};

use super::backend_resolution::{BackendResolver, unresolved};

/// Where rules apply: at a gateway, or for one destination of the mesh.
pub(super) struct RouteContext<'a> {
    pub(super) resolver: BackendResolver<'a>,
    /// The backend of rules without backendRefs; none at a gateway.
    pub(super) otherwise: Option<BackendId>,
}

#[cfg(test)]
pub(super) fn rules(
    merged: Vec<(Arc<RouteRule>, RuleOrigin)>,
    setting: &RouteContext<'_>,
    notices: &mut Vec<Notice>,
) -> Vec<HttpRule> {
    merged.into_iter().map(|(rule, origin)| setting.rule(rule, origin, notices)).collect()
}

/// The action that only forwards.
pub(super) fn forward_to(to: BackendId) -> RuleAction {
    RuleAction::new(Responder::Forward(WeightedBackends::new([(BackendTarget::Backend(to), 1)])))
}

impl RouteContext<'_> {
    pub(super) fn rule(
        &self,
        rule: Arc<RouteRule>,
        origin: RuleOrigin,
        notices: &mut Vec<Notice>,
    ) -> HttpRule {
        let action = self.action(&rule, &origin, notices);
        HttpRule { rule, origin, action }
    }

    fn action(&self, rule: &RouteRule, origin: &RuleOrigin, notices: &mut Vec<Notice>) -> RuleAction {
        let filters = &*rule.effective_filters().unwrap_or_default();
        let changes = header_and_path_changes(filters);
        RuleAction {
            request_headers: changes.request_headers,
            response_headers: changes.response_headers,
            mirrors: self.mirrors(filters, origin, notices),
            rewrite: changes.rewrite,
            timeouts: rule.timeouts,
            retry: rule.retry.clone(),
            cors: None,
            is_grpc: false,
            responder: self.responder(rule, filters, origin, notices),
        }
    }

    fn mirrors(
        &self,
        filters: &[RouteFilter],
        origin: &RuleOrigin,
        notices: &mut Vec<Notice>,
    ) -> Box<[RequestMirror]> {
        let mut mirrors = Vec::new();
        // Those of `merge` are at the end.
        let chosen = filters.len().saturating_sub(origin.merged.len());
        for (i, filter) in filters.iter().enumerate() {
            let RouteFilter::Mirror { backend, percentage } = filter else { continue };
            let added_by = i.checked_sub(chosen).and_then(|at| origin.merged.get(at));
            let of_list = origin.filters_override.as_ref().or(origin.filters.as_ref());
            let policy = policy(added_by.or(of_list));
            match self.resolver.backend(backend, &policy.namespace, true) {
                Ok(to) => mirrors.push(RequestMirror { to, share: percentage.unwrap_or(Percentage::ALL) }),
                Err(reason) => {
                    notices.push(unresolved(&policy, backend, &reason, "no requests are mirrored"));
                }
            }
        }
        mirrors.into()
    }

    /// A redirect or direct response of a filter, else the backends, else the original destination.
    fn responder(
        &self,
        rule: &RouteRule,
        filters: &[RouteFilter],
        origin: &RuleOrigin,
        notices: &mut Vec<Notice>,
    ) -> Responder {
        let backends = rule.effective_backends().unwrap_or_default();
        let own = filters.iter().find_map(|filter| match filter {
            RouteFilter::Redirect(redirect) => Some(Responder::Redirect(redirect.into())),
            RouteFilter::Respond { status, body } => {
                Some(Responder::Respond(DirectResponse { status: *status, body: body.clone() }))
            }
            _ => None,
        });
        if let Some(end) = own {
            if !backends.is_empty() {
                notices.push(overruled(origin));
            }
            return end;
        }
        if !backends.is_empty() {
            let policy = policy(origin.backends_override.as_ref().or(origin.backends.as_ref()));
            return Responder::Forward(self.resolver.split(backends, true, &policy, notices));
        }
        let otherwise = self.otherwise.clone().map(|id| (BackendTarget::Backend(id), 1));
        Responder::Forward(WeightedBackends::new(otherwise))
    }
}

/// The policy that a part of a rule comes from; the catch-all rule has none of these parts.
fn policy(origin: Option<&ObjectRef>) -> ObjectRef {
    origin.cloned().unwrap_or_else(|| ObjectRef::new("MeshHTTPRoute", "", ""))
}

/// Two valid policies conflict: one redirects what the other sends to backends.
fn overruled(origin: &RuleOrigin) -> Notice {
    let other = policy(origin.backends.as_ref());
    let message = format!(
        "{}: the redirect or direct response overrides the backendRefs of {other}, which get no requests; remove one of the two",
        origin.field
    );
    Notice::new(policy(origin.filters.as_ref()), "RouteConflict", message)
}

/// The changes of a list of filters to headers, host and path.
pub(crate) fn header_and_path_changes(filters: &[RouteFilter]) -> BackendFilters {
    let of = |read: fn(&RouteFilter) -> Option<&HeaderModifier>| {
        HeaderChanges::new(filters.iter().filter_map(read))
    };
    let rewrite = filters.iter().find_map(|filter| match filter {
        RouteFilter::Rewrite(RewriteFilter { hostname, path }) => {
            Some(Rewrite { hostname: hostname.clone(), path: path.clone() })
        }
        _ => None,
    });
    BackendFilters {
        request_headers: of(|filter| match filter {
            RouteFilter::RequestHeaders(modifier) => Some(modifier),
            _ => None,
        }),
        response_headers: of(|filter| match filter {
            RouteFilter::ResponseHeaders(modifier) => Some(modifier),
            _ => None,
        }),
        rewrite: rewrite.unwrap_or_default(),
    }
}
