//! Metrics per route and backend, and the access log.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fixtures::eventually_async;
use proxy::{AccessLog, ProxyOptions, ProxyTables};
use serde_json::{Value, json};

use super::harness::*;

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no test panics here").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn rules() -> Value {
    json!([{"matches": [{"path": {"type": "Prefix", "value": "/v1"}}],
        "default": {"backendRefs": [{"kind": "MeshService", "name": "backend"}]}},
        {"matches": [{"path": {"type": "Prefix", "value": "/tea"}}],
        "default": {"filters": [{"type": "DirectResponse", "directResponse": {"status": 418}}]}}])
}

#[tokio::test]
async fn routes_and_backends_are_counted_with_their_zones() {
    let running = with_rules(rules(), ProxyOptions::default()).await;
    for path in ["/v1/a", "/v1/b", "/tea", "/other"] {
        running.get(path, &[]).await;
    }
    running.get("/v1", &[("x-status", "500")]).await;
    // Counted after the answer.
    for line in [
        "route_requests_total{route=\"MeshHTTPRoute default/r spec.to[0].rules[0]\",code=\"2xx\"} 2",
        "route_requests_total{route=\"MeshHTTPRoute default/r spec.to[0].rules[0]\",code=\"5xx\"} 1",
        "route_requests_total{route=\"MeshHTTPRoute default/r spec.to[0].rules[1]\",code=\"4xx\"} 1",
        "route_requests_total{route=\"original destination\",code=\"2xx\"} 1",
        "route_duration_seconds_count{route=\"MeshHTTPRoute default/r spec.to[0].rules[0]\"} 3",
        "backend_requests_total{backend=\"default/backend:80\",code=\"2xx\"} 3",
        "backend_zone_total{backend=\"default/backend:80\",locality=\"same-zone\"} 4",
        "backend_zone_total{backend=\"default/backend:80\",locality=\"cross-zone\"} 0",
        "backend_endpoints{backend=\"default/backend:80\",state=\"used\"} 1",
        "open_requests 0",
    ] {
        eventually_async(line, async || running.metrics().contains(&format!("\nzoneward_proxy_{line}\n")))
            .await;
    }
}

#[tokio::test]
async fn counters_go_on_when_tables_change() {
    let running = with_rules(rules(), ProxyOptions::default()).await;
    running.get("/v1", &[]).await;
    let route = json!({"type": "MeshHTTPRoute", "name": "r", "spec": {"targetRef": {"kind": "Mesh"},
        "to": [{"targetRef": {"kind": "MeshService", "name": "backend"}, "rules": rules()}]}});
    let routes = sidecar(&[route], &["backend"], "frontend");
    let echo = running.echo("backend").address;
    let backends = backends(&routes, &[("backend".to_owned(), vec![(echo, 1.0, false)])].into());
    running.proxy.swap(ProxyTables {
        routes: Arc::new(routes),
        backends: Arc::new(backends),
        ..ProxyTables::default()
    });
    running.get("/v1", &[]).await;
    for part in ["rules[0]\",code=\"2xx\"} 2", "locality=\"cross-zone\"} 1"] {
        eventually_async(part, async || running.metrics().contains(part)).await;
    }
    // What no table has any more is not told any more.
    running.proxy.swap(ProxyTables::default());
    assert!(!running.metrics().contains("rules[0]"));
}

#[tokio::test]
async fn every_request_is_a_line_of_json() {
    let sink = Sink::default();
    let log = AccessLog::to(sink.clone()).expect("a thread");
    let settings = ProxyOptions { access_log: Some(log), ..ProxyOptions::default() };
    let mut running = with_rules(rules(), settings).await;
    let headers = [("x-request-id", "id\"1\\"), ("traceparent", "00-1-2-01"), ("host", "a.test")];
    running.get("/v1/x?y=%22", &headers).await;
    running.get("/tea", &[]).await;
    running.stop();
    running.proxy.drain(Duration::from_secs(2)).await;
    let text = String::from_utf8(sink.0.lock().expect("no panic").clone()).expect("UTF-8");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 2, "{text}");
    let first = &lines[0];
    assert_eq!(first["method"], "GET");
    assert_eq!(first["host"], "a.test");
    assert_eq!(first["path"], "/v1/x?y=%22");
    assert_eq!(first["status"], 200);
    assert_eq!(first["route"], "MeshHTTPRoute default/r spec.to[0].rules[0]");
    assert_eq!(first["backend"], "default/backend:80");
    assert_eq!(first["endpoint"], running.echo("backend").address.to_string());
    assert_eq!(first["locality"], "same-zone");
    assert_eq!(first["requestId"], "id\"1\\");
    assert_eq!(first["traceparent"], "00-1-2-01");
    assert!(first["sent"].as_u64().expect("a number") > 10 && first["microseconds"].is_u64());
    assert!(first["time"].as_str().expect("a time").ends_with('Z'), "{first}");
    assert_eq!((&lines[1]["status"], &lines[1]["backend"]), (&json!(418), &Value::Null));
}
