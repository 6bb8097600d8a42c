//! `zoneward trace http`: which rule a request matches, why the others do not, and what the backend receives.

use std::io::Read;

use anyhow::{Context, Result, bail};
use model::gateway_api::RouteKind;
use model::route::{
    BackendTarget, DirectResponseBody, EdgeSettings, HeaderChanges, RequestTimeouts, RetryLimits, Routing,
    WeightedBackend, retry_value, timeouts_value,
};
use model::{GoDuration, Name};
use plan::gateway_api::{ArrivingRequest, trace_at_gateway, trace_in_mesh};
use plan::routes::{RequestOutcome, RequestTrace, TracedRequest, trace};
use serde_json::{Map, Value, json};

use crate::cli::{Format, TraceHttp};
use crate::routes::PlannedRoutes;
use cluster::input::LoadedObjects;
use output::{notices_text, print_text, print_value};

pub(crate) fn run(args: &TraceHttp) -> Result<bool> {
    let mut loaded = LoadedObjects::read(&args.routes.input(&args.input))?;
    let namespace = args.input.namespace.as_deref().unwrap_or("default");
    let mut routes = PlannedRoutes::plan(&args.routes, &loaded.snapshot, namespace)?;
    loaded.notices.append(&mut routes.notices);
    let request = request(args)?;
    let (incoming, edge) = (&request.incoming, args.edge.settings()?);
    let trace = match routes.standard_port(&incoming.host) {
        Some(port) => {
            let at = ArrivingRequest {
                port,
                is_udp: request.is_udp,
                sni: request.sni.clone(),
                is_grpc: request.is_grpc,
            };
            trace_at_gateway(&routes.table, &at, incoming, &edge)
        }
        None if routes.is_standard() => bail!("no listener of the Gateway can be served: see plan status"),
        None => trace_in_table(&routes, &request, &edge)?,
    };
    match args.output.format {
        Format::Table => print_text(&(text(incoming, &trace) + &notices_text(&loaded.notices)))?,
        format => {
            eprint!("{}", notices_text(&loaded.notices).trim_start());
            print_value(&value(&trace, routes.is_standard()), format)?;
        }
    }
    Ok(!loaded.unreadable)
}

/// The request of a file.
struct RequestFile {
    incoming: TracedRequest,
    sni: Option<String>,
    is_udp: bool,
    is_grpc: bool,
}

fn trace_in_table<'t>(
    routes: &'t PlannedRoutes,
    request: &RequestFile,
    edge: &EdgeSettings,
) -> Result<RequestTrace<'t>> {
    let (routing, arrival) = routes.routing(&request.incoming.host);
    Ok(match routing {
        Some(Routing::Tcp(_)) => {
            bail!("the port forwards TCP connections: it does not use HTTP, or only a MeshTCPRoute applies")
        }
        Some(routing) if request.is_grpc && arrival.port.is_none() => {
            trace_in_mesh(routing, &request.incoming, edge, true)
        }
        Some(Routing::Http(routes)) => trace(Some(routes), &request.incoming, &arrival, edge),
        None => trace(None, &request.incoming, &arrival, edge),
    })
}

fn request(args: &TraceHttp) -> Result<RequestFile> {
    let path = &args.request;
    let text = if path.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("reading the request")?;
        text
    } else {
        std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?
    };
    let value: Value =
        serde_json::from_str(&text).with_context(|| format!("{}: malformed JSON", path.display()))?;
    parse(&value).with_context(|| path.display().to_string())
}

fn parse(value: &Value) -> Result<RequestFile> {
    let field = |name: &str, otherwise: &str| match &value[name] {
        Value::Null => Ok(otherwise.to_owned()),
        Value::String(text) => Ok(text.clone()),
        _ => bail!("{name}: expected a string"),
    };
    if !value.is_object() {
        bail!(r#"expected {{"method", "host", "path", "headers", "client"}}"#);
    }
    let (scheme, protocol) = (field("scheme", "")?, field("protocol", "")?);
    for (name, text, known) in [("scheme", &scheme, &SCHEMES[..]), ("protocol", &protocol, &PROTOCOLS[..])] {
        if !text.is_empty() && !known.contains(&text.as_str()) {
            bail!("{name}: {text:?} is not one of {}", known.join(", "));
        }
    }
    let is_grpc = protocol == "grpc";
    let mut lines = headers(&value["headers"]).context("headers")?;
    if is_grpc && !lines.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
        lines.push(("content-type".into(), "application/grpc".into()));
    }
    let incoming = TracedRequest {
        method: field("method", if is_grpc { "POST" } else { "GET" })?,
        host: field("host", "")?,
        path: field("path", "/")?,
        headers: lines,
        client: match &value["client"] {
            Value::Null => None,
            Value::String(text) => {
                Some(text.parse().ok().with_context(|| format!("client: {text:?} is not an IP address"))?)
            }
            _ => bail!("client: expected a string"),
        },
        response_headers: headers(&value["upstreamResponseHeaders"]).context("upstreamResponseHeaders")?,
    };
    let sni = field("sni", "")?;
    Ok(RequestFile {
        incoming,
        sni: Some(sni).filter(|sni| !sni.is_empty()),
        is_udp: scheme == "udp",
        is_grpc,
    })
}

const SCHEMES: [&str; 5] = ["http", "https", "tls", "tcp", "udp"];
const PROTOCOLS: [&str; 4] = ["h2", "h2c", "grpc", "websocket"];

/// `{name: value}` or `{name: [values]}`.
fn headers(value: &Value) -> Result<Vec<(Name, Name)>> {
    let mut headers = Vec::new();
    let map = match value {
        Value::Null => return Ok(headers),
        Value::Object(map) => map,
        _ => bail!("expected a map of names and values"),
    };
    for (name, value) in map {
        let lines = match value {
            Value::Array(lines) => lines.as_slice(),
            one => std::slice::from_ref(one),
        };
        for line in lines {
            let text =
                line.as_str().with_context(|| format!("{name}: expected a string or a list of strings"))?;
            headers.push((Name::new(name), Name::new(text)));
        }
    }
    Ok(headers)
}

fn value(trace: &RequestTrace<'_>, is_standard: bool) -> Value {
    let RequestOutcome {
        status,
        backends: weighted,
        mirrors,
        host,
        path,
        headers,
        response_headers,
        body,
        is_closed,
    } = &trace.outcome;
    let kind = trace.hit.as_ref().and_then(|hit| hit.rule.origin.policy.as_ref()).map(|policy| &policy.kind);
    let is_standard = is_standard || kind.is_some_and(|kind| RouteKind::parse(kind).is_some());
    let named = |mut value: Value| {
        if is_standard && value["kind"] == "MeshService" {
            value["kind"] = "Service".into();
        }
        value
    };
    let matched = trace.hit.as_ref().and_then(|hit| {
        let origin = &hit.rule.origin;
        let policy = origin.policy.as_ref()?.to_string();
        Some(json!({"policy": policy, "rule": origin.index, "match": hit.entry.alternative}))
    });
    let backends: Vec<Value> =
        weighted.iter().map(|backend| named(backend_entry(backend, weighted.len() > 1))).collect();
    let mirrors: Vec<Value> = mirrors
        .iter()
        .map(|mirror| {
            let mut value = named(backend_value(&mirror.to));
            value["percentage"] = mirror.share.as_f64().into();
            value
        })
        .collect();
    let why: Vec<Value> =
        trace.why.iter().map(|step| json!({"rule": step.rule, "detail": step.detail})).collect();
    let request = json!({"host": host, "path": path, "headers": headers_value(headers)});
    let mut answer = json!({
        "matched": matched,
        "status": status,
        "backends": backends,
        "mirrors": mirrors,
        "request": request,
        "response": {"headers": headers_value(response_headers), "body": body.as_ref().map(body_value)},
        "why": why,
    });
    if *is_closed {
        answer["closed"] = true.into();
    }
    if let Some(action) = trace.hit.as_ref().map(|hit| &hit.rule.action) {
        if action.timeouts != RequestTimeouts::default() {
            answer["timeouts"] = timeouts_value(&action.timeouts);
        }
        if let Some(retry) = &action.retry {
            answer["retry"] = retry_value(retry);
            // What a proxy makes of it, by its default flags.
            answer["retry"]["attempts"] = RetryLimits::DEFAULT.of(Some(retry)).into();
        }
    }
    answer
}

/// A backend; one of several has its own changes to the request.
fn backend_entry(backend: &WeightedBackend, is_one_of_several: bool) -> Value {
    let mut value = weighted_backend_value(&backend.to, backend.weight);
    if let Some(filters) = backend.filters.as_ref().filter(|_| is_one_of_several) {
        value["requestHeaders"] = header_changes_value(&filters.request_headers);
        value["responseHeaders"] = header_changes_value(&filters.response_headers);
    }
    value
}

fn header_changes_value(changes: &HeaderChanges) -> Value {
    let put = |is_added: bool| -> Vec<Value> {
        let own = changes.put.iter().filter(|change| change.append == is_added);
        own.map(|change| json!({"name": change.name.as_str(), "value": change.value.as_str()})).collect()
    };
    let remove: Vec<&str> = changes.remove.iter().map(Name::as_str).collect();
    json!({"set": put(false), "add": put(true), "remove": remove})
}

/// A backend with its weight, or the error for an unresolved one.
pub(in crate::commands) fn weighted_backend_value(to: &BackendTarget, weight: u64) -> Value {
    match to {
        BackendTarget::Backend(id) => {
            let mut value = backend_value(id);
            value["weight"] = weight.into();
            value
        }
        BackendTarget::Error(status) => json!({"kind": "Error", "status": status, "weight": weight}),
    }
}

fn backend_value(id: &model::BackendId) -> Value {
    let kind = if id.tags.is_empty() { "MeshService" } else { "MeshServiceSubset" };
    let tags = id.tags.iter().map(|(key, value)| (key.to_string(), Value::from(value.as_str())));
    let tags: Map<String, Value> = tags.collect();
    json!({"kind": kind, "namespace": id.service.namespace.as_str(), "name": id.service.name.as_str(), "tags": tags,
        "port": id.port})
}

/// A string, or a list for repeated headers.
fn headers_value(headers: &[(Name, Name)]) -> Value {
    let mut map = Map::new();
    for (name, value) in headers {
        let known = map.keys().find(|key| key.eq_ignore_ascii_case(name)).cloned();
        match known.and_then(|key| map.get_mut(&key)) {
            Some(Value::Array(lines)) => lines.push(value.as_str().into()),
            Some(one) => *one = json!([one.take(), value.as_str()]),
            None => drop(map.insert(name.to_string(), value.as_str().into())),
        }
    }
    Value::Object(map)
}

fn body_value(body: &DirectResponseBody) -> Value {
    match body {
        DirectResponseBody::Text(text) => text.as_str().into(),
        DirectResponseBody::Bytes(bytes) => String::from_utf8_lossy(bytes).into(),
        DirectResponseBody::File(name) => json!({"filename": name.as_str()}),
        DirectResponseBody::Environment(name) => json!({"environmentVariable": name.as_str()}),
    }
}

fn text(incoming: &TracedRequest, trace: &RequestTrace<'_>) -> String {
    let outcome = &trace.outcome;
    let answer = match outcome.status {
        None if outcome.is_closed => "the connection is closed".to_owned(),
        Some(status) => format!("responds with {status}"),
        None => "sent on".to_owned(),
    };
    let mut text = format!("{} {}{}: {answer}\n", incoming.method, incoming.host, incoming.path);
    let total: u64 = outcome.backends.iter().map(|backend| backend.weight).sum();
    for backend in &outcome.backends {
        let share = backend.weight as f64 * 100.0 / total as f64;
        text += &match &backend.to {
            BackendTarget::Backend(id) => format!("  to {id} ({share:.1} %)\n"),
            BackendTarget::Error(status) => format!("  error {status} ({share:.1} %)\n"),
        };
    }
    for mirror in &outcome.mirrors {
        text += &format!("  mirrored to {} ({} %)\n", mirror.to, mirror.share.as_f64());
    }
    if !outcome.backends.is_empty() && (outcome.path != incoming.path || outcome.host != incoming.host) {
        text += &format!("  as {}{}\n", outcome.host, outcome.path);
    }
    if let Some(action) = trace.hit.as_ref().map(|hit| &hit.rule.action) {
        let RequestTimeouts { request, backend_request } = action.timeouts;
        for (what, limit) in [("request", request), ("request to a backend", backend_request)] {
            if let Some(limit) = limit {
                text += &format!("  timeout of the {what}: {}\n", GoDuration(limit));
            }
        }
    }
    for (name, value) in &outcome.response_headers {
        text += &format!("  response header {name}: {value}\n");
    }
    text += "  why:\n";
    for step in &trace.why {
        text += &format!("    {}: {}\n", step.rule, step.detail);
    }
    text
}
