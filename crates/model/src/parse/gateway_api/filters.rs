//! Filters of rules and backendRefs.

use super::route::{Unsupported, backend};
use super::{name, optional_name};
use crate::field::{Field, FieldErrors};
use crate::name::Name;
use crate::route::{
    CorsFilter, CorsOrigin, ExtensionFilter, HeaderModifier, PathChange, Percentage, RedirectFilter,
    RewriteFilter, RouteFilter, Scheme,
};

pub(super) fn filters(
    at: &Field,
    namespace: &Name,
    unsupported: &mut Unsupported,
    errors: &mut FieldErrors,
) -> Box<[RouteFilter]> {
    let items = at.items(errors);
    items.iter().filter_map(|entry| filter(entry, namespace, unsupported, errors)).collect()
}

fn filter(
    at: &Field,
    namespace: &Name,
    unsupported: &mut Unsupported,
    errors: &mut FieldErrors,
) -> Option<RouteFilter> {
    let kind = at.child("type");
    Some(match kind.required_string(errors)? {
        "RequestHeaderModifier" => {
            RouteFilter::RequestHeaders(modifier(&at.child("requestHeaderModifier"), errors))
        }
        "ResponseHeaderModifier" => {
            RouteFilter::ResponseHeaders(modifier(&at.child("responseHeaderModifier"), errors))
        }
        "RequestRedirect" => {
            RouteFilter::Redirect(redirect(&at.child("requestRedirect"), unsupported, errors))
        }
        "URLRewrite" => {
            let rewrite = at.child("urlRewrite").map(errors);
            RouteFilter::Rewrite(RewriteFilter {
                hostname: optional_name(&rewrite.child("hostname"), errors),
                path: path_change(&rewrite.child("path"), unsupported, errors),
            })
        }
        "RequestMirror" => {
            let mirror = at.child("requestMirror").map(errors);
            RouteFilter::Mirror {
                backend: backend(&mirror.child("backendRef"), namespace, unsupported, errors),
                percentage: share(&mirror, errors),
            }
        }
        "CORS" => RouteFilter::Cors(cors(&at.child("cors"), unsupported, errors)),
        "ExtensionRef" => {
            let extension = at.child("extensionRef").map(errors);
            RouteFilter::Extension(ExtensionFilter {
                group: Name::new(extension.child("group").string(errors).unwrap_or_default()),
                kind: name(&extension.child("kind"), errors),
                name: name(&extension.child("name"), errors),
            })
        }
        other => {
            unsupported.add(&kind, other);
            return None;
        }
    })
}

fn modifier(at: &Field, errors: &mut FieldErrors) -> HeaderModifier {
    let pairs = |list: Field, errors: &mut FieldErrors| {
        let items = list.items(errors);
        let read = items.iter().map(|item| {
            let value = item.child("value").string(errors).unwrap_or_default();
            (name(&item.child("name"), errors), Name::new(value))
        });
        read.collect()
    };
    let removed = at.child("remove").items(errors);
    HeaderModifier {
        set: pairs(at.child("set"), errors),
        add: pairs(at.child("add"), errors),
        remove: removed.iter().map(|item| name(item, errors)).collect(),
    }
}

fn redirect(at: &Field, unsupported: &mut Unsupported, errors: &mut FieldErrors) -> RedirectFilter {
    let scheme = at.child("scheme");
    let scheme = match scheme.string(errors) {
        None => None,
        Some("http") => Some(Scheme::Http),
        Some("https") => Some(Scheme::Https),
        Some(other) => {
            unsupported.add(&scheme, other);
            None
        }
    };
    let status = at.child("statusCode");
    let code = status.integer(errors).and_then(|code| u16::try_from(code).ok());
    if status.is_set() && !matches!(code, Some(301 | 302 | 303 | 307 | 308)) {
        unsupported.add(&status, &status.value().to_string());
    }
    RedirectFilter {
        scheme,
        hostname: optional_name(&at.child("hostname"), errors),
        path: path_change(&at.child("path"), unsupported, errors),
        port: at.child("port").port(errors),
        status: code,
    }
}

fn path_change(at: &Field, unsupported: &mut Unsupported, errors: &mut FieldErrors) -> Option<PathChange> {
    if !at.is_set() {
        return None;
    }
    let kind = at.child("type");
    let value = |field: &'static str, errors: &mut FieldErrors| {
        Name::new(at.child(field).string(errors).unwrap_or_default())
    };
    match kind.required_string(errors)? {
        "ReplaceFullPath" => {
            let path = value("replaceFullPath", errors);
            Some(PathChange::Full(if path.is_empty() { Name::new("/") } else { path }))
        }
        "ReplacePrefixMatch" => Some(PathChange::Prefix(value("replacePrefixMatch", errors))),
        other => {
            unsupported.add(&kind, other);
            None
        }
    }
}

/// `percent`, or `fraction` of a denominator.
fn share(at: &Field, errors: &mut FieldErrors) -> Option<Percentage> {
    if let Some(percent) = at.child("percent").integer_within(0, 100, errors) {
        return Some(Percentage(u32::try_from(percent).unwrap_or(100) * 10_000));
    }
    let fraction = at.child("fraction").map(errors);
    let numerator = fraction.child("numerator").integer_within(0, i64::from(i32::MAX), errors)?;
    let denominator = fraction.child("denominator").integer_within(1, i64::from(i32::MAX), errors);
    let millionths = numerator.saturating_mul(1_000_000) / denominator.unwrap_or(100);
    Some(Percentage(u32::try_from(millionths).unwrap_or(u32::MAX).min(Percentage::ALL.0)))
}

fn cors(at: &Field, unsupported: &mut Unsupported, errors: &mut FieldErrors) -> CorsFilter {
    const DEFAULT_MAX_AGE: i64 = 5;
    let names = |list: Field, errors: &mut FieldErrors| {
        let items = list.items(errors);
        items.iter().map(|item| name(item, errors)).collect()
    };
    let origins = at.child("allowOrigins").items(errors);
    let origins = origins.iter().filter_map(|item| {
        let text = item.required_string(errors)?;
        let origin = CorsOrigin::parse(text);
        if origin.is_none() {
            unsupported.add(item, text);
        }
        origin
    });
    let origins = origins.collect();
    let max_age = at.child("maxAge").integer_within(0, i64::from(i32::MAX), errors);
    CorsFilter {
        origins,
        allows_credentials: at.child("allowCredentials").boolean(errors).unwrap_or(false),
        methods: names(at.child("allowMethods"), errors),
        headers: names(at.child("allowHeaders"), errors),
        exposed_headers: names(at.child("exposeHeaders"), errors),
        max_age: u32::try_from(max_age.unwrap_or(DEFAULT_MAX_AGE)).unwrap_or_default(),
    }
}
