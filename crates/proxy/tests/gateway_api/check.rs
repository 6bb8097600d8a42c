//! Compares what a client got, and what echo servers saw, with the expectation of a request.

use serde_json::Value;

use super::client::Exchange;
use super::echo::Sighting;
use super::world::{items, text};

pub fn check(case: &Value, request: &Value, got: &Exchange, seen: &[Sighting]) -> Result<(), String> {
    let expect = &request["expect"];
    if expect["failure"].is_string() {
        return if got.is_closed { Ok(()) } else { Err("not closed".to_owned()) };
    }
    if got.is_closed {
        return Err("closed".to_owned());
    }
    let statuses: Vec<u64> = match &expect["status"] {
        Value::Array(all) => all.iter().filter_map(Value::as_u64).collect(),
        one => one.as_u64().into_iter().collect(),
    };
    if !statuses.is_empty() && !statuses.contains(&got.status.into()) {
        return Err(format!("status {}", got.status));
    }
    if let Some(wanted) = expect["grpcStatus"].as_str() {
        let code = got.trailers.get("grpc-status").or(got.headers.get("grpc-status"));
        let code = match code.and_then(|code| code.to_str().ok()) {
            Some("0") => "OK",
            Some("12") => "Unimplemented",
            Some("14") => "Unavailable",
            other => return Err(format!("gRPC status {other:?}")),
        };
        if code != wanted {
            return Err(format!("gRPC status {code}"));
        }
    }
    if expect["echoes"] == true && !got.echoes {
        return Err("no echoes".to_owned());
    }
    check_seen(case, request, seen)?;
    check_redirect(request, got)?;
    let joined = |name: &str| joined(&got.headers, name);
    for (name, value) in expect["responseHeaders"].as_object().into_iter().flatten() {
        if joined(name) != text(value) {
            return Err(format!("{name}: {:?}", joined(name)));
        }
    }
    for name in items(&expect["responseAbsentHeaders"]) {
        if got.headers.contains_key(text(&name)) {
            return Err(format!("{name} is there"));
        }
    }
    Ok(())
}

fn joined(headers: &http::HeaderMap, name: &str) -> String {
    let lines = headers.get_all(name).iter().map(|line| String::from_utf8_lossy(line.as_bytes()));
    lines.collect::<Vec<_>>().join(",")
}

fn check_seen(case: &Value, request: &Value, all: &[Sighting]) -> Result<(), String> {
    let expect = &request["expect"];
    // A Service of the case with the same name as its workload.
    let Some(workload) = expect["backend"].as_str().or(expect["service"].as_str()) else { return Ok(()) };
    let default =
        if case["kind"] == "mesh" { "gateway-conformance-mesh" } else { "gateway-conformance-infra" };
    let namespace = expect["namespace"].as_str().unwrap_or(default);
    let Some(last) = all.last() else { return Err("no backend saw the request".to_owned()) };
    if all.iter().any(|saw| saw.workload != workload || saw.namespace != namespace) {
        return Err(format!("{}/{} saw it, not {namespace}/{workload}", last.namespace, last.workload));
    }
    if expect["backendSeesTLS"].as_bool().is_some_and(|wanted| wanted != last.is_tls) {
        return Err(format!("TLS: {}", last.is_tls));
    }
    let seen = &expect["seen"];
    let (path, host) = (Some(last.path.as_str()), Some(last.host.as_str()));
    for (field, own) in [("path", path), ("host", host), ("sni", last.sni.as_deref())] {
        if seen[field].as_str().is_some_and(|wanted| Some(wanted) != own) {
            return Err(format!("{field} {own:?}"));
        }
    }
    for (name, value) in seen["headers"].as_object().into_iter().flatten() {
        if joined(&last.headers, name) != text(value) {
            return Err(format!("{name}: {:?}", joined(&last.headers, name)));
        }
    }
    for name in items(&seen["absentHeaders"]) {
        if last.headers.contains_key(text(&name)) {
            return Err(format!("{name} is there"));
        }
    }
    Ok(())
}

fn check_redirect(request: &Value, got: &Exchange) -> Result<(), String> {
    let redirect = &request["expect"]["redirect"];
    if !redirect.is_object() {
        return Ok(());
    }
    let location = joined(&got.headers, "location");
    let (scheme, rest) = location.split_once("://").unwrap_or(("", &location));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (host, port) = authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port)));
    let own_scheme = request["scheme"].as_str().unwrap_or("http");
    let own_path = request["path"].as_str().unwrap_or("/");
    let is_host = redirect["host"].as_str().is_none_or(|wanted| wanted == host);
    let is_port = match &redirect["port"] {
        Value::Null => port.is_none_or(|port| port == if scheme == "https" { "443" } else { "80" }),
        wanted => port == Some(wanted.to_string().trim_matches('"')),
    };
    let is_scheme = scheme == redirect["scheme"].as_str().unwrap_or(own_scheme);
    if is_scheme && path == redirect["path"].as_str().unwrap_or(own_path) && is_host && is_port {
        return Ok(());
    }
    Err(format!("location {location}, not {redirect}"))
}
