//! The L7 cases for real: each request goes through the proxy, by HTTP/1.1 and by HTTP/2, to echoing endpoints.

use std::collections::BTreeMap;

use http_body_util::BodyExt;
use model::route::RouteTable;
use serde_json::Value;

use super::harness::*;
use proxy::{ListenerKind, ProxyOptions};

fn file() -> Value {
    let path = format!("{}/../../vectors/l7-routing.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("the vectors are in the repository");
    serde_json::from_str(&text).expect("the vectors are JSON")
}

fn items(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn table(fixture: &Value) -> (RouteTable, ListenerKind) {
    let resources = items(&fixture["resources"]);
    match fixture["destination"].as_str() {
        Some(destination) => {
            let client = fixture["client"]["service"].as_str().expect("a client");
            let routes = sidecar(&resources, &[destination], client);
            (routes, ListenerKind::Outbound { service: key(destination), port: 80 })
        }
        None => {
            let port = fixture["listeners"][0]["port"].as_u64().expect("a port");
            let port = u16::try_from(port).expect("a port");
            (gateway(&resources, &fixture["listeners"]), ListenerKind::Gateway { port })
        }
    }
}

fn pairs(value: &Value) -> Vec<(String, String)> {
    let map = value.as_object().into_iter().flatten();
    map.map(|(name, value)| (name.clone(), value.as_str().expect("a text").to_owned())).collect()
}

/// The headers of a case, and what the endpoint is asked to set.
fn headers(request: &Value) -> Vec<(String, String)> {
    let asked = pairs(&request["backend_sets_response_headers"]);
    let asked = asked.into_iter().map(|(name, value)| (format!("x-echo-{name}"), value));
    let host = ("host".to_owned(), request["host"].as_str().expect("a host").to_owned());
    [host].into_iter().chain(pairs(&request["headers"])).chain(asked).collect()
}

async fn by_http1(running: &Running, request: &Value) -> Answer {
    let headers = headers(request);
    let headers: Vec<(&str, &str)> = headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    let text = |name: &str| request[name].as_str().expect("a text");
    running.send(text("method"), text("path"), &headers, b"").await
}

async fn by_http2(running: &Running, request: &Value) -> Answer {
    let text = |name: &str| request[name].as_str().expect("a text");
    let mut sender = http2(running.address).await;
    let mut builder = http::Request::builder()
        .method(text("method"))
        .uri(format!("http://{}{}", text("host"), text("path")))
        .version(http::Version::HTTP_2);
    for (name, value) in headers(request).into_iter().skip(1) {
        builder = builder.header(name, value);
    }
    let response = sender.send_request(builder.body(full("")).expect("a request")).await.expect("an answer");
    let (parts, body) = response.into_parts();
    let body = body.collect().await.expect("a body").to_bytes().to_vec();
    Answer { status: parts.status.as_u16(), headers: parts.headers, body, trailers: http::HeaderMap::new() }
}

/// Lines of one name are one value with commas.
fn joined(headers: &http::HeaderMap, name: &str) -> String {
    let lines = headers.get_all(name).iter().map(|line| line.to_str().expect("ASCII"));
    lines.collect::<Vec<_>>().join(",")
}

fn check_headers(id: &str, headers: &http::HeaderMap, expect: &Value) {
    for (name, value) in pairs(&expect["headers"]) {
        assert_eq!(joined(headers, &name), value, "{id}: {name}");
    }
    for name in items(&expect["absent_headers"]) {
        assert!(!headers.contains_key(name.as_str().expect("a name")), "{id}: {name}");
    }
}

fn check_location(id: &str, answer: &Answer, expect: &Value) {
    let location: http::Uri = answer.header("location").expect("a location").parse().expect("an address");
    let default = if location.scheme_str() == Some("https") { 443 } else { 80 };
    assert_eq!(location.scheme_str(), expect["scheme"].as_str(), "{id}");
    assert_eq!(location.host(), expect["host"].as_str(), "{id}");
    assert_eq!(Some(u64::from(location.port_u16().unwrap_or(default))), expect["port"].as_u64(), "{id}");
    assert_eq!(Some(location.path()), expect["path"].as_str(), "{id}");
}

async fn check(running: &Running, case: &Value, answer: &Answer, seen_before: &BTreeMap<String, usize>) {
    let (id, expect) = (case["id"].as_str().expect("an id"), &case["expect"]);
    if let Some(status) = expect["status"].as_u64() {
        assert_eq!(u64::from(answer.status), status, "{id}");
    }
    check_headers(id, &answer.headers, &expect["response"]);
    if expect["location"].is_object() {
        check_location(id, answer, &expect["location"]);
    }
    if let Some(body) = expect["body"].as_str() {
        assert_eq!(String::from_utf8_lossy(&answer.body), body, "{id}");
    }
    if let Some(backend) = expect["backend"].as_str() {
        assert_eq!(answer.json()["backend"].as_str(), Some(backend), "{id}");
        let seen = running.echo(backend).seen().last().cloned().expect("a request");
        if let Some(path) = expect["upstream"]["path"].as_str() {
            assert_eq!(seen.path, path, "{id}");
        }
        check_headers(id, &seen.headers, &expect["upstream"]);
    }
    for mirror in items(&expect["mirrors"]) {
        let mirror = mirror.as_str().expect("a name");
        let seen = running.echo(mirror).wait_for(seen_before[mirror] + 1).await;
        let copy = seen.last().expect("a copy");
        assert_eq!(
            copy.host,
            format!("{}-shadow", case["request"]["host"].as_str().expect("a host")),
            "{id}"
        );
    }
}

async fn check_distribution(running: &Running, case: &Value) {
    let expect = &case["expect"];
    let mut counts: BTreeMap<String, f64> = BTreeMap::new();
    let requests = expect["requests"].as_u64().expect("a number");
    for _ in 0..requests {
        let answer = by_http1(running, &case["request"]).await;
        let own = answer.json()["backend"].as_str().map(str::to_owned);
        *counts.entry(own.unwrap_or(format!("status:{}", answer.status))).or_default() +=
            1.0 / requests as f64;
    }
    for (name, share) in expect["distribution"].as_object().expect("shares") {
        let (found, wanted) = (counts.get(name).copied().unwrap_or(0.0), share.as_f64().expect("a share"));
        let tolerance = expect["tolerance"].as_f64().expect("a tolerance");
        assert!((found - wanted).abs() <= tolerance, "{}: {name} got {found}", case["id"]);
    }
}

#[tokio::test]
async fn requests_go_where_the_cases_say_by_both_versions_of_http() {
    let all = file();
    let cases = items(&all["cases"]);
    let mut done = 0;
    for (name, fixture) in all["fixtures"].as_object().expect("fixtures") {
        let own: Vec<&Value> = cases
            .iter()
            .filter(|case| case["kind"] == "request" && case["fixture"] == name.as_str())
            .collect();
        let (routes, kind) = table(fixture);
        let running = Running::start(routes, kind, ProxyOptions::default()).await;
        for case in own {
            done += 1;
            if case["expect"]["distribution"].is_object() {
                check_distribution(&running, case).await;
                continue;
            }
            for is_h2 in [false, true] {
                let before =
                    running.echoes.iter().map(|(name, echo)| (name.clone(), echo.seen().len())).collect();
                let answer = if is_h2 {
                    by_http2(&running, &case["request"]).await
                } else {
                    by_http1(&running, &case["request"]).await
                };
                check(&running, case, &answer, &before).await;
            }
        }
    }
    assert_eq!(done, cases.iter().filter(|case| case["kind"] == "request").count());
}
