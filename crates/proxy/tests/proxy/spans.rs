//! OpenTelemetry spans at a collector: a real HTTP server that decodes the protobuf by prost, independently of the proxy.

#[path = "spans/attacks.rs"]
mod attacks;
#[path = "spans/collector.rs"]
mod collector;

use std::sync::Arc;
use std::time::Duration;

use fixtures::eventually_async;
use model::route::TrustedProxies;
use proxy::{ListenerKind, ProxyOptions, ProxyTables, SpanExporter, SpanExporterError, SpanExporterOptions};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use self::collector::*;
use super::harness::*;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{PARENT}-{flags}")
}

fn rules() -> Value {
    json!([{"matches": [{"path": {"type": "Prefix", "value": "/v1"}}],
        "default": {"backendRefs": [{"kind": "MeshService", "name": "backend"}]}},
        {"matches": [{"path": {"type": "Exact", "value": "/tea"}}],
        "default": {"filters": [{"type": "DirectResponse", "directResponse": {"status": 418}}]}}])
}

fn traced(options: SpanExporterOptions) -> ProxyOptions {
    let exporter = SpanExporter::start(options).expect("a collector");
    ProxyOptions { span_exporter: Some(exporter), ..ProxyOptions::default() }
}

fn header<'a>(seen: &'a Seen, name: &str) -> Option<&'a str> {
    seen.headers.get(name).map(|value| value.to_str().expect("text"))
}

fn count(running: &Running, result: &str) -> u64 {
    let line = format!("zoneward_proxy_spans_total{{result=\"{result}\"}} ");
    let text = running.metrics();
    let value = text.lines().find_map(|found| found.strip_prefix(&line)).expect("the metric");
    value.parse().expect("a number")
}

async fn wait_for(running: &Running, result: &str, at_least: u64) {
    eventually_async(&format!("{at_least} {result}"), async || {
        let found = count(running, result);
        if found >= at_least { Ok(()) } else { Err(found) }
    })
    .await;
}

#[tokio::test]
async fn a_request_has_a_server_span_and_a_client_span_with_route_policy_and_zones() {
    let collector = Collector::start().await;
    let mut options = collector.options();
    options.headers.insert("authorization", "Bearer token".parse().expect("a header"));
    options.resource = vec![("service.name".to_owned(), "frontend".to_owned())];
    let running = with_rules(rules(), traced(options)).await;
    let headers = [
        ("traceparent", &*traceparent("01")),
        ("tracestate", "congo=t61rcWkgMzE"),
        ("host", "shop.test:8080"),
        ("user-agent", "curl/8"),
    ];
    assert_eq!(running.get("/v1/a?b=1&sig=secret", &headers).await.status, 200);
    let spans = collector.spans(2).await;
    let (server, client) = (named(&spans, "GET /v1/*"), named(&spans, "GET"));

    assert_eq!((server.kind, client.kind), (2, 3));
    assert_eq!((server.trace(), client.trace()), (TRACE.to_owned(), TRACE.to_owned()));
    assert_eq!((server.parent(), client.parent()), (PARENT.to_owned(), server.id()));
    assert_eq!((server.flags, client.flags), (0x301, 0x101), "the parent of the server span is remote");
    assert_eq!((&*server.trace_state, &*client.trace_state), ("congo=t61rcWkgMzE", "congo=t61rcWkgMzE"));
    assert!(server.start <= client.start && client.start <= client.end && client.end <= server.end);
    assert_eq!((server.status_code(), client.status_code()), (0, 0), "unset");

    let endpoint = running.echo("backend").address;
    let zones = [
        ("zoneward.backend", "default/backend:80"),
        ("zoneward.locality", "same-zone"),
        ("zoneward.client.zone", "za"),
        ("zoneward.endpoint.zone", "za"),
        ("http.request.method", "GET"),
        ("http.response.status_code", "200"),
        ("network.protocol.version", "1.1"),
    ];
    assert_attributes(server, &zones);
    assert_attributes(client, &zones);
    assert_attributes(
        server,
        &[
            ("http.route", "/v1/*"),
            ("zoneward.route", "MeshHTTPRoute default/r spec.to[0].rules[0]"),
            ("zoneward.policy", "MeshHTTPRoute default/r"),
            ("url.scheme", "http"),
            ("url.path", "/v1/a"),
            ("url.query", "b=1&sig=REDACTED"),
            ("server.address", "shop.test"),
            ("server.port", "8080"),
            ("client.address", "127.0.0.1"),
            ("network.peer.address", "127.0.0.1"),
            ("user_agent.original", "curl/8"),
        ],
    );
    assert_attributes(
        client,
        &[
            ("url.full", "http://shop.test:8080/v1/a?b=1&sig=REDACTED"),
            ("server.address", "127.0.0.1"),
            ("server.port", &endpoint.port().to_string()),
            ("network.peer.port", &endpoint.port().to_string()),
        ],
    );
    // The endpoint continues the client span.
    let seen = &running.echo("backend").seen()[0];
    assert_eq!(header(seen, "traceparent"), Some(&*format!("00-{TRACE}-{}-01", client.id())));
    assert_eq!(header(seen, "tracestate"), Some("congo=t61rcWkgMzE"));

    let export = &collector.exports()[0];
    assert_eq!(export.path, "/v1/traces");
    assert_eq!(export.headers["content-type"], "application/x-protobuf");
    assert_eq!(export.headers["authorization"], "Bearer token");
    let resource = export.request.resource_spans[0].resource.as_ref().expect("a resource");
    assert_eq!(texts(&resource.attributes), [("service.name".to_owned(), "frontend".to_owned())].into());
    let scope = export.request.resource_spans[0].scope_spans[0].scope.as_ref().expect("a scope");
    assert_eq!(scope.name, "zoneward");
    let read = export.as_opentelemetry_reads_it();
    let span = &read["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
    assert_eq!(span["kind"], json!("SPAN_KIND_CLIENT"), "it ends first: {read:#}");
    assert_eq!(
        (&span["name"], &span["traceState"]),
        (&json!("GET"), &json!("congo=t61rcWkgMzE")),
        "{read:#}"
    );
    let resource = &read["resourceSpans"][0]["resource"]["attributes"];
    assert_eq!(*resource, json!([{"key": "service.name", "value": {"stringValue": "frontend"}}]));
    wait_for(&running, "exported", 2).await;
}

#[tokio::test]
async fn a_request_without_context_starts_a_trace_and_local_replies_have_no_client_span() {
    let collector = Collector::start().await;
    let running = with_rules(rules(), traced(collector.options())).await;
    assert_eq!(running.get("/tea", &[]).await.status, 418);
    let spans = collector.spans(1).await;
    let server = named(&spans, "GET /tea");
    assert_eq!((server.parent().as_str(), server.flags), ("", 0x101));
    assert_attributes(server, &[("http.response.status_code", "418"), ("zoneward.client.zone", "za")]);
    // A 4xx is a fault of the client.
    assert_eq!((server.status_code(), server.attribute("error.type")), (0, None));
    assert_eq!(server.attribute("zoneward.backend"), None);

    // No policy: no route.
    assert_eq!(running.get("/other", &[("x-status", "500")]).await.status, 500);
    let spans = collector.spans(3).await;
    let server = spans.iter().rfind(|span| span.kind == 2).expect("a server span");
    assert_eq!((server.name.as_str(), server.attribute("http.route")), ("GET", None));
    assert_attributes(server, &[("zoneward.route", "original destination"), ("error.type", "500")]);
    assert_eq!((server.status_code(), server.attribute("zoneward.policy")), (2, None));
    let client = spans.iter().rfind(|span| span.kind == 3).expect("a client span");
    assert_eq!((client.status_code(), client.trace()), (2, server.trace()));
}

#[tokio::test]
async fn each_retry_is_a_client_span() {
    let (collector, alive) = (Collector::start().await, Echo::start("backend").await);
    let dead = toolbox::ports::free_port();
    let routes = Arc::new(sidecar(&[], &["backend"], "frontend"));
    // The dead endpoint is nearly always drawn first.
    let endpoints = vec![(dead, 10_000.0, true), (alive.address, 1.0, false)];
    let backends = Arc::new(backends(&routes, &[("backend".to_owned(), endpoints)].into()));
    let tables = ProxyTables { routes, backends, ..ProxyTables::default() };
    let running = Running::with(tables, to_backend(), traced(collector.options())).await;
    assert_eq!(running.get("/", &[("traceparent", &traceparent("01"))]).await.status, 200);
    let spans = collector.spans(3).await;
    let server = spans.iter().find(|span| span.kind == 2).expect("a server span");
    let attempts: Vec<_> = spans.iter().filter(|span| span.kind == 3).collect();
    assert_eq!(attempts.len(), 2);
    assert!(attempts.iter().all(|attempt| attempt.parent() == server.id()));
    assert_attributes(
        attempts[0],
        &[
            ("error.type", "connection_failed"),
            ("zoneward.endpoint.zone", "za"),
            ("server.port", &dead.port().to_string()),
        ],
    );
    assert_eq!((attempts[0].status_code(), attempts[0].attribute("http.request.resend_count")), (2, None));
    assert_attributes(
        attempts[1],
        &[
            ("http.request.resend_count", "1"),
            ("zoneward.endpoint.zone", "zb"),
            ("zoneward.locality", "cross-zone"),
        ],
    );
    assert_attributes(server, &[("zoneward.endpoint.zone", "zb"), ("http.response.status_code", "200")]);
    // The endpoint belongs to the attempt that reached it.
    let expected = format!("00-{TRACE}-{}-01", attempts[1].id());
    assert_eq!(header(&alive.seen()[0], "traceparent"), Some(&*expected));
}

#[tokio::test]
async fn the_decision_of_the_client_is_kept() {
    let collector = Collector::start().await;
    let running = with_rules(rules(), traced(collector.options())).await;
    // Not sampled: no spans, and the headers pass unchanged.
    let headers = [("traceparent", &*traceparent("00")), ("tracestate", "a=1")];
    running.get("/v1", &headers).await;
    let seen = running.echo("backend").wait_for(1).await;
    assert_eq!(header(&seen[0], "traceparent"), Some(&*traceparent("00")));
    assert_eq!(header(&seen[0], "tracestate"), Some("a=1"));
    // Sampled, although the ratio is 0.
    let mut options = collector.options();
    options.sampling_ratio = 0.0;
    let running = with_rules(rules(), traced(options)).await;
    running.get("/v1", &[]).await;
    running.get("/v1", &[("traceparent", &traceparent("01"))]).await;
    let spans = collector.spans(2).await;
    assert!(spans.iter().all(|span| span.trace() == TRACE), "{spans:?}");
    // The endpoint keeps the decision of the proxy.
    let seen = running.echo("backend").seen();
    assert!(header(&seen[0], "traceparent").is_some_and(|header| header.ends_with("-00")));
    assert_eq!(header(&seen[0], "tracestate"), None);
}

#[tokio::test]
async fn without_an_exporter_trace_headers_pass_unchanged() {
    let running = plain().await;
    let headers = [("traceparent", "00-malformed"), ("tracestate", "=,="), ("baggage", "a=b")];
    running.get("/", &headers).await;
    running.get("/", &[]).await;
    let seen = running.echo("backend").seen();
    for (name, value) in headers {
        assert_eq!(header(&seen[0], name), Some(value));
        assert_eq!(header(&seen[1], name), None);
    }
    assert_eq!(count(&running, "exported"), 0);
}

#[tokio::test]
async fn a_mirrored_request_belongs_to_the_server_span() {
    let collector = Collector::start().await;
    let rules = json!([{"matches": [{"path": {"type": "Prefix", "value": "/"}}],
        "default": {"filters": [{"type": "RequestMirror", "requestMirror": {"percentage": 100,
            "backendRef": {"kind": "MeshService", "name": "mirror"}}}]}}]);
    let running = with_rules(rules, traced(collector.options())).await;
    running.get("/", &[]).await;
    let spans = collector.spans(2).await;
    let server = spans.iter().find(|span| span.kind == 2).expect("a server span");
    let seen = running.echo("mirror").wait_for(1).await;
    let expected = format!("00-{}-{}-01", server.trace(), server.id());
    assert_eq!(header(&seen[0], "traceparent"), Some(&*expected));
}

#[tokio::test]
async fn a_gateway_names_the_client_that_trusted_proxies_name() {
    let collector = Collector::start().await;
    let route = json!({"type": "MeshGatewayHTTPRoute", "name": "r", "spec": {
        "targetRef": {"kind": "MeshGateway", "name": "edge"},
        "rules": [{"matches": [{"path": {"type": "RegularExpression", "value": "/a+"}}],
            "default": {"backendRefs": [{"kind": "MeshService", "name": "h2-backend"}]}}]}});
    let routes = gateway(&[route], &json!([{"name": "http", "port": 8080, "protocol": "HTTP"}]));
    let mut options = traced(collector.options());
    options.edge.trusted_proxies = TrustedProxies::new(["127.0.0.0/8".parse().expect("a network")]);
    let running = Running::start(routes, ListenerKind::Gateway { port: 8080 }, options).await;
    let request = http::Request::get("http://shop.test/aaa").header("x-forwarded-for", "203.0.113.7");
    let mut client = http2(running.address).await;
    let response = client.send_request(request.body(full("")).expect("a request")).await.expect("a response");
    assert_eq!(response.status(), 200);
    drop(response);
    let spans = collector.spans(2).await;
    let (server, client) = (named(&spans, "GET /a+"), named(&spans, "GET"));
    assert_attributes(
        server,
        &[
            ("client.address", "203.0.113.7"),
            ("network.peer.address", "127.0.0.1"),
            ("network.protocol.version", "2"),
            ("server.address", "shop.test"),
            ("server.port", "80"),
            ("zoneward.policy", "MeshGatewayHTTPRoute default/r"),
        ],
    );
    assert_attributes(client, &[("network.protocol.version", "2"), ("url.full", "http://shop.test/aaa")]);
}

#[tokio::test]
async fn a_client_that_disconnects_ends_both_spans() {
    let collector = Collector::start().await;
    let running = with_rules(rules(), traced(collector.options())).await;
    let mut stream = running.connect().await;
    stream.write_all(b"GET /v1 HTTP/1.1\r\nhost: a\r\nx-delay: 5000\r\n\r\n").await.expect("sent");
    eventually_async("a connection to the endpoint", async || {
        metric_sum(&running, "upstream_sockets", "") > 0
    })
    .await;
    drop(stream);
    let spans = collector.spans(2).await;
    for span in &spans {
        assert_attributes(span, &[("error.type", "canceled")]);
        assert_eq!((span.status_code(), span.attribute("http.response.status_code")), (2, None));
    }
}

#[tokio::test]
async fn draining_exports_what_waits() {
    let collector = Collector::start().await;
    let options = SpanExporterOptions { max_delay: Duration::from_secs(3_600), ..collector.options() };
    let mut running = with_rules(rules(), traced(options)).await;
    running.get("/v1", &[]).await;
    running.stop();
    running.proxy.drain(Duration::from_secs(2)).await;
    assert_eq!(collector.received().len(), 2);
}

#[tokio::test]
async fn tls_to_the_collector_needs_its_authority() {
    let (collector, authority) = Collector::start_tls().await;
    let options = SpanExporterOptions { authorities: Some(authority), ..collector.options() };
    let running = with_rules(rules(), traced(options)).await;
    running.get("/v1", &[]).await;
    collector.spans(2).await;

    let (other, _) = Collector::start_tls().await;
    let (_, wrong) = Collector::start_tls().await;
    let exporter = SpanExporterOptions { authorities: Some(wrong), ..other.options() };
    let mut running = with_rules(rules(), traced(exporter)).await;
    assert_eq!(running.get("/v1", &[]).await.status, 200);
    running.stop();
    running.proxy.drain(Duration::from_secs(1)).await;
    assert_eq!(other.received().len(), 0);
}

#[tokio::test]
async fn options_that_cannot_work_are_refused() {
    let start = |url: &str, authorities: Option<&[u8]>| {
        let mut options = SpanExporterOptions::new(url.parse().expect("a URI"));
        options.authorities = authorities.map(<[u8]>::to_vec);
        SpanExporter::start(options).expect_err(url)
    };
    for url in ["/v1/traces", "collector:4318", "ftp://collector/v1/traces", "grpc://collector:4317"] {
        assert!(matches!(start(url, None), SpanExporterError::Url), "{url}");
    }
    let wrong = start("https://collector", Some(b"not PEM"));
    assert!(wrong.to_string().contains("no certificate found"), "{wrong}");
}
