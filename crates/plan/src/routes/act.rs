//! From a merged rule to what a proxy does.

use std::sync::Arc;

use model::route::{
    Action, BackendId, DirectResponse, End, Filter, HeaderChanges, HttpRule, LegTarget, Mirror, Percentage,
    Redirect, RedirectFilter, Rewrite, RewriteFilter, Rule, RuleOrigin, Split,
};
use model::{Notice, ObjectRef};

use super::resolve::{Resolver, unresolved};

/// What rules need to know of the place where they act.
pub(super) struct Setting<'a> {
    pub(super) resolver: Resolver<'a>,
    /// Where requests go that name no backend; nowhere at a gateway.
    pub(super) otherwise: Option<BackendId>,
    /// Whether redirects keep the query.
    pub(super) keeps_query: bool,
}

/// Semantics 1.7: a redirect without a status.
const FOUND: u16 = 302;

#[cfg(test)]
pub(super) fn rules(
    merged: Vec<(Arc<Rule>, RuleOrigin)>,
    setting: &Setting<'_>,
    notices: &mut Vec<Notice>,
) -> Vec<HttpRule> {
    merged.into_iter().map(|(rule, origin)| setting.rule(rule, origin, notices)).collect()
}

/// The action that only sends on.
pub(super) fn pass_on(to: BackendId) -> Action {
    Action {
        request_headers: HeaderChanges::default(),
        response_headers: HeaderChanges::default(),
        mirrors: Box::default(),
        rewrite: Rewrite::default(),
        end: End::Forward(Split::new([(LegTarget::Backend(to), 1)])),
    }
}

impl Setting<'_> {
    pub(super) fn rule(&self, rule: Arc<Rule>, origin: RuleOrigin, notices: &mut Vec<Notice>) -> HttpRule {
        let action = self.action(&rule, &origin, notices);
        HttpRule { rule, origin, action }
    }

    fn action(&self, rule: &Rule, origin: &RuleOrigin, notices: &mut Vec<Notice>) -> Action {
        let filters = rule.filters.as_deref().unwrap_or_default();
        let request = filters.iter().filter_map(|f| match f {
            Filter::RequestHeaders(modifier) => Some(modifier),
            _ => None,
        });
        let response = filters.iter().filter_map(|f| match f {
            Filter::ResponseHeaders(modifier) => Some(modifier),
            _ => None,
        });
        let rewrite = filters.iter().find_map(|f| match f {
            Filter::Rewrite(RewriteFilter { hostname, path }) => {
                Some(Rewrite { hostname: hostname.clone(), path: path.clone() })
            }
            _ => None,
        });
        Action {
            request_headers: HeaderChanges::new(request),
            response_headers: HeaderChanges::new(response),
            mirrors: self.mirrors(filters, origin, notices),
            rewrite: rewrite.unwrap_or_default(),
            end: self.end(rule, filters, origin, notices),
        }
    }

    fn mirrors(&self, filters: &[Filter], origin: &RuleOrigin, notices: &mut Vec<Notice>) -> Box<[Mirror]> {
        let mut mirrors = Vec::new();
        for filter in filters {
            let Filter::Mirror { backend, percentage } = filter else { continue };
            let policy = policy(origin.filters.as_ref());
            match self.resolver.backend(backend, &policy.namespace, true) {
                Ok(to) => mirrors.push(Mirror { to, share: percentage.unwrap_or(Percentage::ALL) }),
                Err(reason) => {
                    notices.push(unresolved(&policy, backend, &reason, "no copies are sent"));
                }
            }
        }
        mirrors.into()
    }

    /// Who answers: the proxy if a filter says so, else the backends, else whom the client asked for.
    fn end(&self, rule: &Rule, filters: &[Filter], origin: &RuleOrigin, notices: &mut Vec<Notice>) -> End {
        let backends = rule.backends.as_deref().unwrap_or_default();
        let own = filters.iter().find_map(|filter| match filter {
            Filter::Redirect(redirect) => Some(End::Redirect(self.redirect(redirect))),
            Filter::Respond { status, body } => {
                Some(End::Respond(DirectResponse { status: *status, body: body.clone() }))
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
            let policy = policy(origin.backends.as_ref());
            return End::Forward(self.resolver.split(backends, true, &policy, notices));
        }
        let otherwise = self.otherwise.clone().map(|id| (LegTarget::Backend(id), 1));
        End::Forward(Split::new(otherwise))
    }

    fn redirect(&self, filter: &RedirectFilter) -> Redirect {
        Redirect {
            scheme: filter.scheme,
            hostname: filter.hostname.clone(),
            path: filter.path.clone(),
            port: filter.port,
            status: filter.status.unwrap_or(FOUND),
            keeps_query: self.keeps_query,
        }
    }
}

/// Every part of a merged rule comes from a policy; a rule of our own has none of these parts.
fn policy(origin: Option<&ObjectRef>) -> ObjectRef {
    origin.cloned().unwrap_or_else(|| ObjectRef::new("MeshHTTPRoute", "", ""))
}

/// Each policy is valid by itself; together one redirects what the other sends to backends.
fn overruled(origin: &RuleOrigin) -> Notice {
    let other = policy(origin.backends.as_ref());
    let message = format!(
        "{}: the redirect or direct response here overrules the backendRefs of {other}, which never get a request; remove one of them",
        origin.field
    );
    Notice::new(policy(origin.filters.as_ref()), "RouteConflict", message)
}
