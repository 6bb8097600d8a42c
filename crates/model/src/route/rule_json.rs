//! Rules as JSON in the long form of the specification: the output of `plan routes`.

use std::time::Duration;

use base64::Engine;
use serde_json::{Map, Value, json};

use crate::duration::GoDuration;
use crate::label::Labels;
use crate::name::Name;
use crate::route::action::{DirectResponseBody, PathChange};
use crate::route::cors::CorsFilter;
use crate::route::retry::RouteRetry;
use crate::route::rule::{
    BackendRef, ExtensionFilter, HeaderModifier, PathMatch, Percentage, RedirectFilter, RequestTimeouts,
    RewriteFilter, RouteFilter, RouteMatch, RouteRule, ValueTest,
};

/// A rule: `matches`, and `filters` and `backendRefs` where some policy has them.
pub fn rule_value(rule: &RouteRule) -> Value {
    let mut value = Map::new();
    value.insert("matches".to_owned(), rule.matches.iter().map(match_value).collect());
    if let Some(filters) = rule.effective_filters() {
        value.insert("filters".to_owned(), filters.iter().map(filter_value).collect());
    }
    if let Some(backends) = rule.effective_backends() {
        value.insert("backendRefs".to_owned(), backends.iter().map(backend_value).collect());
    }
    if rule.timeouts != RequestTimeouts::default() {
        value.insert("timeouts".to_owned(), timeouts_value(&rule.timeouts));
    }
    put(&mut value, "retry", rule.retry.as_ref().map(retry_value));
    value.into()
}

pub fn match_value(on: &RouteMatch) -> Value {
    let mut value = Map::new();
    if let Some(path) = &on.path {
        let kind = match path {
            PathMatch::Exact(_) => "Exact",
            PathMatch::Prefix(_) => "Prefix",
            PathMatch::Regex(_) => "RegularExpression",
        };
        value.insert("path".to_owned(), json!({"type": kind, "value": path.value()}));
    }
    if let Some(method) = &on.conditions.method {
        value.insert("method".to_owned(), method.as_str().into());
    }
    let tests = |list: Vec<(&Name, &ValueTest)>| list.into_iter().map(|(n, t)| test_value(n, t)).collect();
    if !on.conditions.headers.is_empty() {
        let headers = on.conditions.headers.iter().map(|header| (&header.name, &header.test));
        value.insert("headers".to_owned(), tests(headers.collect()));
    }
    if !on.conditions.query.is_empty() {
        let query = on.conditions.query.iter().map(|query| (&query.name, &query.test));
        value.insert("queryParams".to_owned(), tests(query.collect()));
    }
    value.into()
}

fn test_value(name: &Name, test: &ValueTest) -> Value {
    let (kind, value) = match test {
        ValueTest::Exact(value) => ("Exact", Some(value.as_str())),
        ValueTest::Prefix(value) => ("Prefix", Some(value.as_str())),
        ValueTest::Regex(pattern) => ("RegularExpression", Some(pattern.as_str())),
        ValueTest::Present => ("Present", None),
        ValueTest::Absent => ("Absent", None),
    };
    match value {
        Some(value) => json!({"type": kind, "name": name.as_str(), "value": value}),
        None => json!({"type": kind, "name": name.as_str()}),
    }
}

fn filter_value(filter: &RouteFilter) -> Value {
    match filter {
        RouteFilter::RequestHeaders(modifier) => {
            json!({"type": "RequestHeaderModifier", "requestHeaderModifier": modifier_value(modifier)})
        }
        RouteFilter::ResponseHeaders(modifier) => {
            json!({"type": "ResponseHeaderModifier", "responseHeaderModifier": modifier_value(modifier)})
        }
        RouteFilter::Mirror { backend, percentage } => {
            let mut mirror = json!({"backendRef": backend_value(backend)});
            if let Some(percentage) = percentage {
                mirror["percentage"] = percentage_value(*percentage);
            }
            json!({"type": "RequestMirror", "requestMirror": mirror})
        }
        RouteFilter::Redirect(redirect) => {
            json!({"type": "RequestRedirect", "requestRedirect": redirect_value(redirect)})
        }
        RouteFilter::Rewrite(rewrite) => json!({"type": "URLRewrite", "urlRewrite": rewrite_value(rewrite)}),
        RouteFilter::Respond { status, body } => {
            let mut response = json!({"status": status});
            if let Some(body) = body {
                response["body"] = body_value(body);
            }
            json!({"type": "DirectResponse", "directResponse": response})
        }
        RouteFilter::Cors(cors) => json!({"type": "CORS", "cors": cors_value(cors)}),
        RouteFilter::Extension(ExtensionFilter { group, kind, name }) => {
            json!({"type": "ExtensionRef", "extensionRef":
                {"group": group.as_str(), "kind": kind.as_str(), "name": name.as_str()}})
        }
    }
}

fn cors_value(cors: &CorsFilter) -> Value {
    let names = |names: &[Name]| names.iter().map(|name| name.as_str()).collect::<Value>();
    json!({
        "allowOrigins": cors.origins.iter().map(|origin| origin.as_str()).collect::<Value>(),
        "allowCredentials": cors.allows_credentials,
        "allowMethods": names(&cors.methods),
        "allowHeaders": names(&cors.headers),
        "exposeHeaders": names(&cors.exposed_headers),
        "maxAge": cors.max_age,
    })
}

/// The timeouts of a rule.
pub fn timeouts_value(timeouts: &RequestTimeouts) -> Value {
    let mut map = Map::new();
    let text = |duration: Duration| Value::from(GoDuration(duration).to_string());
    put(&mut map, "request", timeouts.request.map(text));
    put(&mut map, "backendRequest", timeouts.backend_request.map(text));
    map.into()
}

/// The retries of a rule.
pub fn retry_value(retry: &RouteRetry) -> Value {
    let mut map = Map::new();
    put(&mut map, "codes", (!retry.codes.is_empty()).then(|| retry.codes.iter().copied().collect()));
    put(&mut map, "attempts", retry.attempts.map(Value::from));
    put(&mut map, "backoff", retry.backoff.map(|backoff| GoDuration(backoff).to_string().into()));
    map.into()
}

/// A whole number, or a string for decimals, as in the schema.
pub(super) fn percentage_value(percentage: Percentage) -> Value {
    match percentage.0 % 10_000 {
        0 => (percentage.0 / 10_000).into(),
        _ => percentage.as_f64().to_string().into(),
    }
}

fn modifier_value(modifier: &HeaderModifier) -> Value {
    let pair = |(name, value): &(Name, Name)| json!({"name": name.as_str(), "value": value.as_str()});
    let mut map = Map::new();
    for (field, pairs) in [("set", &modifier.set), ("add", &modifier.add)] {
        if !pairs.is_empty() {
            map.insert(field.to_owned(), pairs.iter().map(pair).collect());
        }
    }
    if !modifier.remove.is_empty() {
        map.insert("remove".to_owned(), modifier.remove.iter().map(|name| name.as_str()).collect());
    }
    map.into()
}

fn redirect_value(redirect: &RedirectFilter) -> Value {
    let mut map = Map::new();
    put(&mut map, "scheme", redirect.scheme.map(|scheme| scheme.as_str().into()));
    put(&mut map, "hostname", redirect.hostname.as_ref().map(|name| name.as_str().into()));
    put(&mut map, "path", redirect.path.as_ref().map(change_value));
    put(&mut map, "port", redirect.port.map(Value::from));
    put(&mut map, "statusCode", redirect.status.map(Value::from));
    map.into()
}

fn rewrite_value(rewrite: &RewriteFilter) -> Value {
    let mut map = Map::new();
    put(&mut map, "hostname", rewrite.hostname.as_ref().map(|name| name.as_str().into()));
    put(&mut map, "path", rewrite.path.as_ref().map(change_value));
    map.into()
}

fn put(map: &mut Map<String, Value>, field: &str, value: Option<Value>) {
    if let Some(value) = value {
        map.insert(field.to_owned(), value);
    }
}

fn change_value(change: &PathChange) -> Value {
    match change {
        PathChange::Full(value) => json!({"replaceFullPath": value.as_str()}),
        PathChange::Prefix(value) => json!({"replacePrefixMatch": value.as_str()}),
    }
}

fn body_value(body: &DirectResponseBody) -> Value {
    match body {
        DirectResponseBody::Text(text) => json!({"inlineString": text.as_str()}),
        DirectResponseBody::Bytes(bytes) => {
            json!({"inlineBytes": base64::engine::general_purpose::STANDARD.encode(bytes)})
        }
        DirectResponseBody::File(name) => json!({"filename": name.as_str()}),
        DirectResponseBody::Environment(name) => json!({"environmentVariable": name.as_str()}),
    }
}

pub fn backend_value(backend: &BackendRef) -> Value {
    let mut value = json!({"kind": backend.kind(), "name": backend.name.as_str()});
    if let Some(object) = &backend.object {
        value["group"] = object.group.as_str().into();
        value["namespace"] = object.namespace.as_str().into();
    }
    if !backend.filters.is_empty() {
        value["filters"] = backend.filters.iter().map(filter_value).collect();
    }
    if let Some(tags) = &backend.tags {
        value["tags"] = tags_value(tags);
    }
    if let Some(port) = backend.port {
        value["port"] = port.into();
    }
    if let Some(weight) = backend.weight {
        value["weight"] = weight.into();
    }
    value
}

fn tags_value(tags: &Labels) -> Value {
    let pairs = tags.iter().map(|(key, value)| (key.to_string(), Value::from(value.as_str())));
    Value::Object(pairs.collect())
}
