//! Routes of every kind.

use std::sync::Arc;
use std::time::Duration;

use super::filters::filters;
use super::gateway::hostname;
use super::matches::{grpc_match, http_match};
use super::{name, optional_name, parent};
use crate::duration::GoDuration;
use crate::field::{Field, FieldErrors, quoted};
use crate::gateway_api::{GatewayApiRule, ObjectIdentity, Route, RouteKind};
use crate::name::Name;
use crate::route::{
    BackendObject, BackendRef, PathChange, PathMatch, RequestTimeouts, RouteFilter, RouteMatch, RouteRetry,
    RouteRule,
};

/// The first value of a rule that is not supported.
#[derive(Default)]
pub(super) struct Unsupported(Option<Name>);

impl Unsupported {
    pub(super) fn add(&mut self, at: &Field, value: &str) {
        let text = || Name::new(&format!("{}: {} is not supported", at.path(), quoted(value)));
        self.0.get_or_insert_with(text);
    }
}

pub(super) fn route(
    kind: RouteKind,
    identity: ObjectIdentity,
    spec: &Field,
    errors: &mut FieldErrors,
) -> Route {
    let namespace = identity.key.namespace.clone();
    let parents = spec.child("parentRefs").items(errors);
    let hosts = spec.child("hostnames").items(errors);
    let list = spec.child("rules");
    let mut rules: Vec<GatewayApiRule> =
        list.items(errors).iter().map(|entry| rule(kind, entry, &namespace, errors)).collect();
    if kind == RouteKind::Http && !list.is_set() {
        // The default of the schema.
        let rule = RouteRule { matches: [RouteMatch::default()].into(), ..RouteRule::default() };
        rules.push(GatewayApiRule { rule: Arc::new(rule), unsupported: None });
    }
    Route {
        identity,
        kind,
        parents: parents.iter().map(|entry| parent(entry, &namespace, errors)).collect(),
        hostnames: hosts.iter().filter_map(|host| hostname(host, errors)).collect(),
        rules: rules.into(),
    }
}

fn rule(kind: RouteKind, at: &Field, namespace: &Name, errors: &mut FieldErrors) -> GatewayApiRule {
    let mut unsupported = Unsupported::default();
    let matches = at.child("matches").items(errors);
    let matches: Box<[RouteMatch]> = match kind {
        RouteKind::Http | RouteKind::Grpc if matches.is_empty() => [RouteMatch::default()].into(),
        RouteKind::Http => matches.iter().map(|entry| http_match(entry, &mut unsupported, errors)).collect(),
        RouteKind::Grpc => matches.iter().map(|entry| grpc_match(entry, &mut unsupported, errors)).collect(),
        RouteKind::Tls | RouteKind::Tcp | RouteKind::Udp => Box::default(),
    };
    let list = at.child("filters");
    let filters = list.is_set().then(|| filters(&list, namespace, &mut unsupported, errors));
    let refs = at.child("backendRefs");
    let backends = refs.is_set().then(|| {
        let items = refs.items(errors);
        items.iter().map(|entry| backend(entry, namespace, &mut unsupported, errors)).collect()
    });
    let rule = RouteRule {
        timeouts: timeouts(&at.child("timeouts"), &mut unsupported, errors),
        retry: retry(&at.child("retry"), &mut unsupported, errors),
        matches,
        filters,
        backends,
        ..RouteRule::default()
    };
    check_prefix_changes(&rule, &list, &mut unsupported);
    let session = at.child("sessionPersistence");
    if session.is_set() {
        unsupported.add(&session, "sessionPersistence");
    }
    GatewayApiRule { rule: Arc::new(rule), unsupported: unsupported.0 }
}

/// A prefix is replaced only where one matched.
fn check_prefix_changes(rule: &RouteRule, at: &Field, unsupported: &mut Unsupported) {
    let is_prefix = |on: &RouteMatch| matches!(on.full_path(), PathMatch::Prefix(_));
    let replaces = |filter: &RouteFilter| match filter {
        RouteFilter::Redirect(redirect) => matches!(redirect.path, Some(PathChange::Prefix(_))),
        RouteFilter::Rewrite(rewrite) => matches!(rewrite.path, Some(PathChange::Prefix(_))),
        _ => false,
    };
    if rule.filters.iter().flatten().any(replaces) && !rule.matches.iter().all(is_prefix) {
        unsupported.add(at, "ReplacePrefixMatch without PathPrefix");
    }
}

pub(super) fn backend(
    at: &Field,
    namespace: &Name,
    unsupported: &mut Unsupported,
    errors: &mut FieldErrors,
) -> BackendRef {
    let weight = at.child("weight").integer_within(0, i64::from(u32::MAX), errors);
    let list = at.child("filters");
    let filters = filters(&list, namespace, unsupported, errors);
    let is_known = |filter: &RouteFilter| {
        matches!(
            filter,
            RouteFilter::RequestHeaders(_)
                | RouteFilter::ResponseHeaders(_)
                | RouteFilter::Rewrite(_)
                | RouteFilter::Extension(_)
        )
    };
    if !filters.iter().all(is_known) {
        unsupported.add(
            &list,
            "a filter other than RequestHeaderModifier, ResponseHeaderModifier, URLRewrite and ExtensionRef",
        );
    }
    BackendRef {
        name: name(&at.child("name"), errors),
        tags: None,
        port: at.child("port").port(errors),
        weight: weight.and_then(|weight| u32::try_from(weight).ok()),
        object: Some(Box::new(BackendObject {
            group: Name::new(at.child("group").string(errors).unwrap_or_default()),
            kind: optional_name(&at.child("kind"), errors).unwrap_or_else(|| Name::new("Service")),
            namespace: optional_name(&at.child("namespace"), errors).unwrap_or_else(|| namespace.clone()),
        })),
        filters,
    }
}

fn timeouts(at: &Field, unsupported: &mut Unsupported, errors: &mut FieldErrors) -> RequestTimeouts {
    // Zero is no limit.
    let mut limit = |field| duration(&at.child(field), unsupported, errors).filter(|limit| !limit.is_zero());
    RequestTimeouts { request: limit("request"), backend_request: limit("backendRequest") }
}

fn retry(at: &Field, unsupported: &mut Unsupported, errors: &mut FieldErrors) -> Option<RouteRetry> {
    let at = at.clone().map(errors);
    if !at.is_set() {
        return None;
    }
    let codes = at.child("codes").items(errors);
    let codes = codes.iter().filter_map(|code| code.integer_within(400, 599, errors));
    Some(RouteRetry {
        codes: codes.filter_map(|code| u16::try_from(code).ok()).collect(),
        attempts: at
            .child("attempts")
            .integer_within(0, i64::from(i32::MAX), errors)
            .and_then(|attempts| u32::try_from(attempts).ok()),
        backoff: duration(&at.child("backoff"), unsupported, errors),
    })
}

fn duration(at: &Field, unsupported: &mut Unsupported, errors: &mut FieldErrors) -> Option<Duration> {
    let text = at.string(errors)?;
    match text.parse::<GoDuration>() {
        Ok(GoDuration(duration)) => Some(duration),
        Err(_) => {
            unsupported.add(at, text);
            None
        }
    }
}
