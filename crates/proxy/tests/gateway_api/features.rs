//! Features that the conformance cases do not show: small cases in the same form.

use fixtures::eventually_async;
use serde_json::{Value, json};

use super::check::check;
use super::client::{Exchange, send};
use super::echo::Sighting;
use super::serving::{PREFLIGHT, Proxies, has_default_port};
use super::world::World;

pub const NAMESPACE: &str = "gateway-conformance-infra";

pub fn object(kind: &str, name: &str, spec: Value) -> Value {
    let version = match kind {
        "Service" => "v1",
        "MeshRouteFilter" => "zoneward.dev/v1alpha1",
        _ => "gateway.networking.k8s.io/v1",
    };
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})
}

pub fn gateway(listeners: Value) -> Value {
    object("Gateway", "edge", json!({"gatewayClassName": "conformance", "listeners": listeners}))
}

pub fn plain_gateway() -> Value {
    gateway(json!([{"name": "http", "port": 80, "protocol": "HTTP"}]))
}

/// A Service whose port 8080 is its workload's 3000.
pub fn service(name: &str) -> Value {
    object("Service", name, json!({"selector": {"app": name}, "ports": [{"port": 8080, "targetPort": 3000}]}))
}

pub fn workload(name: &str, serves: &str) -> Value {
    json!({"namespace": NAMESPACE, "name": name, "labels": {"app": name}, "replicas": 1, "serves": {"3000": serves}})
}

pub fn route(kind: &str, name: &str, spec: Value) -> Value {
    let mut spec = spec;
    if spec["parentRefs"].is_null() {
        spec["parentRefs"] = json!([{"name": "edge"}]);
    }
    object(kind, name, spec)
}

pub fn to(name: &str) -> Value {
    json!({"name": name, "port": 8080})
}

/// A request to port 80 of the Gateway.
pub fn request(path: &str, expect: Value) -> Value {
    json!({"gateway": format!("{NAMESPACE}/edge"), "port": 80, "path": path, "expect": expect})
}

pub struct Running {
    case: Value,
    pub world: World,
    pub proxies: Proxies,
}

impl Running {
    pub async fn new(objects: Vec<Value>, workloads: Vec<Value>, certificates: Value) -> Self {
        let case = json!({"kind": "gateway", "objects": objects, "workloads": workloads,
            "certificates": certificates});
        Self { world: World::new(&case).await, proxies: Proxies::default(), case }
    }

    pub async fn plain(objects: Vec<Value>, workloads: Vec<Value>) -> Self {
        Self::new(objects, workloads, json!([])).await
    }

    async fn send(&mut self, request: &Value) -> (Exchange, Vec<Sighting>) {
        let (at, host) = self.proxies.address(&self.world, request).await;
        self.world.sightings.prepare(request);
        let got = send(at, request, &host, &self.world.pairs).await;
        (got, self.world.sightings.all())
    }

    pub async fn expect(&mut self, request: Value) -> (Exchange, Vec<Sighting>) {
        let (got, seen) = self.send(&request).await;
        if let Err(why) = check(&self.case, &request, &got, &seen) {
            panic!("{request}: {why}: {got:?}");
        }
        (got, seen)
    }
}

#[tokio::test]
async fn filters_of_a_backend_ref_are_applied_after_those_of_the_rule() {
    let set = |name: &str, value: &str| json!({"set": [{"name": name, "value": value}]});
    let rule = json!({"matches": [{"path": {"type": "PathPrefix", "value": "/a"}}],
        "filters": [
            {"type": "RequestHeaderModifier", "requestHeaderModifier": set("x-from", "rule")},
            {"type": "ResponseHeaderModifier", "responseHeaderModifier": set("x-answer", "rule")}],
        "backendRefs": [{"name": "one", "port": 8080, "filters": [
            {"type": "RequestHeaderModifier", "requestHeaderModifier": {
                "set": [{"name": "x-from", "value": "backend"}], "add": [{"name": "x-more", "value": "2"}],
                "remove": ["x-gone"]}},
            {"type": "ResponseHeaderModifier", "responseHeaderModifier": set("x-answer", "backend")},
            {"type": "URLRewrite", "urlRewrite": {"hostname": "inner.example",
                "path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/b"}}}]}]});
    let other =
        json!({"matches": [{"path": {"type": "PathPrefix", "value": "/plain"}}], "backendRefs": [to("one")]});
    let objects =
        vec![plain_gateway(), service("one"), route("HTTPRoute", "r", json!({"rules": [rule, other]}))];
    let mut running = Running::plain(objects, vec![workload("one", "http")]).await;
    let mut changed = request(
        "/a/x?q=1",
        json!({"status": 200, "backend": "one", "responseHeaders": {"x-answer": "backend"},
            "seen": {"path": "/b/x?q=1", "host": "inner.example", "absentHeaders": ["x-gone"],
                "headers": {"x-from": "backend", "x-more": "1,2"}}}),
    );
    changed["headers"] = json!({"x-gone": "1", "x-more": "1"});
    running.expect(changed).await;
    let unchanged = json!({"status": 200, "backend": "one", "responseAbsentHeaders": ["x-answer"],
        "seen": {"path": "/plain", "host": "192.0.2.1", "absentHeaders": ["x-from"]}});
    running.expect(request("/plain", unchanged)).await;
}

#[tokio::test]
async fn an_extension_answers_for_a_rule_or_chooses_a_subset_of_its_backends() {
    let extension = |name: &str| {
        json!([{"type": "ExtensionRef",
            "extensionRef": {"group": "zoneward.dev", "kind": "MeshRouteFilter", "name": name}}])
    };
    let at = |path: &str| json!([{"path": {"type": "PathPrefix", "value": path}}]);
    let rules = json!([
        {"matches": at("/closed"), "filters": extension("closed")},
        {"matches": at("/rule"), "filters": extension("v2"), "backendRefs": [to("one")]},
        {"matches": at("/backend"), "backendRefs": [{"name": "one", "port": 8080, "filters": extension("v1")}]},
        {"matches": at("/missing"), "filters": extension("missing"), "backendRefs": [to("one")]},
    ]);
    let subset = |version: &str| json!({"subset": {"tags": {"version": version}}});
    let response = json!({"directResponse": {"status": 451, "body": {"inlineString": "not here"}}});
    let objects = vec![
        plain_gateway(),
        service("one"),
        object("MeshRouteFilter", "closed", response),
        object("MeshRouteFilter", "v1", subset("v1")),
        object("MeshRouteFilter", "v2", subset("v2")),
        route("HTTPRoute", "r", json!({"rules": rules})),
    ];
    let version = |version: &str| {
        let mut own = workload(&format!("one-{version}"), "http");
        own["labels"] = json!({"app": "one", "version": version});
        own
    };
    let mut running = Running::plain(objects, vec![version("v1"), version("v2")]).await;
    running.expect(request("/closed", json!({"status": 451}))).await;
    for _ in 0..10 {
        running.expect(request("/rule", json!({"status": 200, "backend": "one-v2"}))).await;
        running.expect(request("/backend", json!({"status": 200, "backend": "one-v1"}))).await;
    }
    running.expect(request("/missing", json!({"status": 500}))).await;
}

#[tokio::test]
async fn preflight_requests_are_answered_and_responses_have_the_headers_of_the_route() {
    let cors = json!({"type": "CORS", "cors": {"allowOrigins": ["https://*.shop.example"], "allowCredentials": true,
        "allowMethods": ["GET", "PUT"], "allowHeaders": ["x-a"], "exposeHeaders": ["x-b"], "maxAge": 60}});
    let rules = json!([{"filters": [cors], "backendRefs": [to("one")]}]);
    let objects = vec![plain_gateway(), service("one"), route("HTTPRoute", "r", json!({"rules": rules}))];
    let mut running = Running::plain(objects, vec![workload("one", "http")]).await;
    let mut preflight = request(
        "/",
        json!({"status": PREFLIGHT, "responseHeaders": {"access-control-allow-origin": "https://www.shop.example",
            "access-control-allow-methods": "GET, PUT", "access-control-allow-headers": "x-a",
            "access-control-allow-credentials": "true", "access-control-max-age": "60"}}),
    );
    preflight["method"] = json!("OPTIONS");
    preflight["headers"] =
        json!({"origin": "https://www.shop.example", "access-control-request-method": "PUT"});
    let (_, seen) = running.expect(preflight.clone()).await;
    assert!(seen.is_empty(), "a backend saw the preflight request");
    preflight["headers"]["origin"] = json!("https://evil.example");
    preflight["expect"] =
        json!({"status": PREFLIGHT, "responseAbsentHeaders": ["access-control-allow-origin"]});
    running.expect(preflight).await;
    let mut simple = request(
        "/",
        json!({"status": 200, "backend": "one", "responseHeaders": {
            "access-control-allow-origin": "https://www.shop.example", "access-control-expose-headers": "x-b"}}),
    );
    simple["headers"] = json!({"origin": "https://www.shop.example"});
    simple["backendSets"] = json!({"access-control-allow-origin": "*"});
    running.expect(simple).await;
}

#[tokio::test]
async fn redirects_have_every_status_and_the_port_that_belongs_to_them() {
    let redirect = |value: &str, redirect: Value| {
        json!({"matches": [{"path": {"type": "PathPrefix", "value": value}}],
            "filters": [{"type": "RequestRedirect", "requestRedirect": redirect}]})
    };
    let rules = json!([
        redirect("/303", json!({"statusCode": 303, "hostname": "x.example"})),
        redirect("/307", json!({"statusCode": 307, "port": 8443, "scheme": "https"})),
        redirect("/308", json!({"statusCode": 308, "scheme": "https"})),
        redirect(
            "/kept",
            json!({"statusCode": 301, "path": {"type": "ReplaceFullPath", "replaceFullPath": "/n"}})
        )
    ]);
    let listeners = json!([{"name": "http", "port": 80, "protocol": "HTTP"}, {"name": "alt", "port": 8080, "protocol": "HTTP"}]);
    let objects = vec![gateway(listeners), route("HTTPRoute", "r", json!({"rules": rules}))];
    let mut running = Running::plain(objects, vec![]).await;
    for (path, port, location) in [
        ("/303", 80, "http://x.example/303"),
        ("/303", 8080, "http://x.example:8080/303"),
        ("/307/a", 80, "https://192.0.2.1:8443/307/a"),
        ("/308", 8080, "https://192.0.2.1/308"),
        ("/kept?q=1", 80, "http://192.0.2.1/n?q=1"),
    ] {
        let with_port = location.replacen("://192.0.2.1/", default_port(location), 1);
        let location = if has_default_port() { with_port } else { location.to_owned() };
        let mut sent = request(path, json!({"responseHeaders": {"location": location}}));
        sent["port"] = json!(port);
        let (got, _) = running.expect(sent).await;
        let status = path.trim_start_matches('/').get(..3).and_then(|status| status.parse().ok());
        assert_eq!(got.status, status.unwrap_or(301));
    }
}

fn default_port(location: &str) -> &'static str {
    if location.starts_with("https") { "://192.0.2.1:443/" } else { "://192.0.2.1:80/" }
}

#[tokio::test]
async fn a_request_sees_the_routes_of_one_listener() {
    let listeners = json!([
        {"name": "any", "port": 80, "protocol": "HTTP"},
        {"name": "wide", "port": 80, "protocol": "HTTP", "hostname": "*.example.com"},
        {"name": "exact", "port": 80, "protocol": "HTTP", "hostname": "a.example.com"}]);
    let of = |name: &str| {
        let matches = json!([{"path": {"type": "PathPrefix", "value": format!("/{name}")}}]);
        let rules = json!([{"matches": matches, "backendRefs": [to("one")]}]);
        route(
            "HTTPRoute",
            name,
            json!({"parentRefs": [{"name": "edge", "sectionName": name}], "rules": rules}),
        )
    };
    let objects = vec![gateway(listeners), service("one"), of("any"), of("wide"), of("exact")];
    let mut running = Running::plain(objects, vec![workload("one", "http")]).await;
    for (host, served) in [
        ("other.test", "any"),
        ("b.example.com", "wide"),
        ("a.example.com", "exact"),
        ("A.example.com:80", "exact"),
    ] {
        for path in ["any", "wide", "exact"] {
            let status = if path == served { 200 } else { 404 };
            let mut sent = request(&format!("/{path}"), json!({"status": status}));
            sent["host"] = json!(host);
            running.expect(sent).await;
        }
    }
}

pub fn secret(name: &str, names: &[&str]) -> Value {
    json!({"kind": "Secret", "type": "kubernetes.io/tls", "namespace": NAMESPACE, "name": name, "ca": "ca", "names": names})
}

pub fn authority(name: &str) -> Value {
    json!({"kind": "ConfigMap", "key": "ca.crt", "namespace": NAMESPACE, "name": name, "isCA": true})
}

pub fn https(name: &str, hostname: &str) -> Value {
    json!({"name": name, "port": 443, "protocol": "HTTPS", "hostname": hostname,
        "tls": {"certificateRefs": [{"name": name}]}})
}

/// A request by TLS; both HTTP versions are to be the same.
pub fn by_tls(sni: &str, host: &str, is_http2: bool, expect: Value) -> Value {
    json!({"gateway": format!("{NAMESPACE}/edge"), "port": 443, "scheme": "https", "sni": sni, "host": host,
        "protocol": if is_http2 { "h2" } else { "" }, "trusts": format!("{NAMESPACE}/ca"), "expect": expect})
}

#[tokio::test]
async fn the_server_name_chooses_certificate_and_listener_and_another_host_is_misdirected() {
    let listeners = json!([https("one", "one.example"), https("two", "*.two.example")]);
    let of = |name: &str, host: &str| {
        let rules = json!([{"backendRefs": [to(name)]}]);
        route("HTTPRoute", name, json!({"hostnames": [host], "rules": rules}))
    };
    let objects = vec![
        gateway(listeners),
        service("one"),
        service("two"),
        of("one", "one.example"),
        of("two", "a.two.example"),
    ];
    let workloads = vec![workload("one", "http"), workload("two", "http")];
    let certificates =
        json!([authority("ca"), secret("one", &["one.example"]), secret("two", &["*.two.example"])]);
    let mut running = Running::new(objects, workloads, certificates).await;
    for is_http2 in [false, true] {
        for (sni, host, expect) in [
            ("one.example", "one.example", json!({"status": 200, "backend": "one"})),
            ("a.two.example", "a.two.example:443", json!({"status": 200, "backend": "two"})),
            ("one.example", "a.two.example", json!({"status": 421})),
            ("a.two.example", "one.example", json!({"status": 421})),
            ("a.two.example", "b.two.example", json!({"status": 404})),
            ("one.example", "other.example", json!({"status": 404})),
            ("other.example", "other.example", json!({"failure": "no listener"})),
        ] {
            running.expect(by_tls(sni, host, is_http2, expect)).await;
        }
    }
}

#[tokio::test]
async fn one_of_several_certificates_of_a_listener_has_the_server_name() {
    let mut listener = https("many", "*.many.example");
    let names = ["one", "two", "wild"];
    listener["tls"]["certificateRefs"] = names.map(|name| json!({"name": name})).into_iter().collect();
    let rules = json!([{"backendRefs": [to("one")]}]);
    let objects =
        vec![gateway(json!([listener])), service("one"), route("HTTPRoute", "r", json!({"rules": rules}))];
    let certificates = json!([
        authority("ca"),
        secret("one", &["one.many.example"]),
        secret("two", &["two.many.example"]),
        secret("wild", &["*.many.example"])
    ]);
    let mut running = Running::new(objects, vec![workload("one", "http")], certificates).await;
    // The client verifies the name.
    for host in ["one.many.example", "two.many.example", "three.many.example"] {
        for is_http2 in [false, true] {
            running.expect(by_tls(host, host, is_http2, json!({"status": 200, "backend": "one"}))).await;
        }
    }
}

#[tokio::test]
async fn a_listener_that_requires_client_certificates_refuses_other_clients() {
    let mut gateway = gateway(json!([https("one", "one.example")]));
    gateway["spec"]["tls"] = json!({"frontend": {"default": {"validation": {
        "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "clients"}]}}}});
    let rules = json!([{"backendRefs": [to("one")]}]);
    let objects = vec![gateway, service("one"), route("HTTPRoute", "r", json!({"rules": rules}))];
    let client = |name: &str, ca: &str| json!({"kind": "Secret", "type": "kubernetes.io/tls", "namespace": NAMESPACE, "name": name, "ca": ca, "client": true});
    let certificates = json!([
        authority("ca"),
        authority("clients"),
        secret("one", &["one.example"]),
        client("known", "clients"),
        client("unknown", "ca")
    ]);
    let mut running = Running::new(objects, vec![workload("one", "http")], certificates).await;
    let sent = |expect: Value, client: Option<&str>| {
        let mut sent = by_tls("one.example", "one.example", false, expect);
        if let Some(client) = client {
            sent["clientCertificate"] = json!(format!("{NAMESPACE}/{client}"));
        }
        sent
    };
    running.expect(sent(json!({"status": 200, "backend": "one"}), Some("known"))).await;
    running.expect(sent(json!({"failure": "no certificate"}), None)).await;
    running.expect(sent(json!({"failure": "another authority"}), Some("unknown"))).await;
    running.expect(sent(json!({"status": 200, "backend": "one"}), Some("known"))).await;
}

#[tokio::test]
async fn tls_to_a_backend_verifies_its_names_and_presents_the_gateways_certificate() {
    let mut gateway = plain_gateway();
    gateway["spec"]["tls"] = json!({"backend": {"clientCertificateRef": {"name": "own"}}});
    let policy = |name: &str, validation: Value| {
        let mut validation = validation;
        validation["caCertificateRefs"] = json!([{"group": "", "kind": "ConfigMap", "name": "ca"}]);
        let targets = json!([{"group": "", "kind": "Service", "name": name}]);
        object("BackendTLSPolicy", name, json!({"targetRefs": targets, "validation": validation}))
    };
    let uri = |uri: &str| json!([{"type": "URI", "uri": uri}]);
    let (mut objects, mut rules) = (vec![gateway], Vec::new());
    for (name, validation) in [
        ("named", json!({"hostname": "abc.example.com"})),
        ("misnamed", json!({"hostname": "other.example.com"})),
        (
            "by-uri",
            json!({"hostname": "sni.example.com", "subjectAltNames": uri("spiffe://abc.example.com/test")}),
        ),
        (
            "by-host",
            json!({"hostname": "sni.example.com",
            "subjectAltNames": [{"type": "Hostname", "hostname": "abc.example.com"}]}),
        ),
        ("no-uri", json!({"hostname": "abc.example.com", "subjectAltNames": uri("spiffe://other")})),
    ] {
        let selector = json!({"app": "one"});
        objects.push(object(
            "Service",
            name,
            json!({"selector": selector, "ports": [{"port": 8080, "targetPort": 3000}]}),
        ));
        objects.push(policy(name, validation));
        rules.push(json!({"matches": [{"path": {"type": "PathPrefix", "value": format!("/{name}")}}], "backendRefs": [to(name)]}));
    }
    objects.push(route("HTTPRoute", "r", json!({"rules": rules})));
    let mut backend = workload("one", "https");
    backend["certificate"] = json!("backend");
    let certificates = json!([
        authority("ca"),
        secret("own", &["gateway.example"]),
        secret("backend", &["abc.example.com", "spiffe://abc.example.com/test"])
    ]);
    let mut running = Running::new(objects, vec![backend], certificates).await;
    for (path, sni) in
        [("/named", "abc.example.com"), ("/by-uri", "sni.example.com"), ("/by-host", "sni.example.com")]
    {
        let expect = json!({"status": 200, "backend": "one", "backendSeesTLS": true, "seen": {"sni": sni}});
        let (_, seen) = running.expect(request(path, expect)).await;
        assert!(seen.iter().all(|saw| saw.has_client_certificate), "{seen:?}");
    }
    for path in ["/misnamed", "/no-uri"] {
        let (_, seen) = running.expect(request(path, json!({"status": 503}))).await;
        assert!(seen.is_empty(), "never without a valid certificate");
    }
}

#[tokio::test]
async fn a_grpc_route_makes_its_backends_http2_whatever_the_port_declares() {
    let rules = json!([{"backendRefs": [to("one")]}]);
    let objects = vec![plain_gateway(), service("one"), route("GRPCRoute", "r", json!({"rules": rules}))];
    let mut running = Running::plain(objects, vec![workload("one", "grpc")]).await;
    let mut sent = request("", json!({"grpcStatus": "OK", "backend": "one"}));
    sent["protocol"] = json!("grpc");
    let (_, seen) = running.expect(sent).await;
    assert!(seen.iter().all(|saw| saw.is_http2), "{seen:?}");
}

#[tokio::test]
async fn listed_statuses_are_retried_with_their_body_and_the_last_one_goes_to_the_client() {
    let rules =
        json!([{"retry": {"codes": [503], "attempts": 2, "backoff": "1ms"}, "backendRefs": [to("one")]}]);
    let objects = vec![plain_gateway(), service("one"), route("HTTPRoute", "r", json!({"rules": rules}))];
    let mut running = Running::plain(objects, vec![workload("one", "http")]).await;
    for (failures, status, tries) in [(0, 200, 1), (2, 200, 3), (3, 503, 3)] {
        let mut sent = request("/", json!({"status": status, "backend": "one"}));
        sent["method"] = json!("POST");
        sent["body"] = json!("some bytes");
        sent["backendBehaves"] = json!({"failures": failures, "failWith": 503});
        let (_, seen) = running.expect(sent).await;
        assert_eq!(seen.len(), tries);
        assert!(seen.iter().all(|saw| saw.method == "POST" && saw.body == "some bytes"), "{seen:?}");
    }
    let mut sent = request("/", json!({"status": 500, "backend": "one"}));
    sent["backendBehaves"] = json!({"failures": 1, "failWith": 500});
    assert_eq!(running.expect(sent).await.1.len(), 1, "not listed");
}

#[tokio::test]
async fn the_request_timeout_of_a_rule_is_504_or_cuts_the_response_off() {
    let rules = json!([{"timeouts": {"request": "300ms"}, "backendRefs": [to("one")]}]);
    let objects = vec![plain_gateway(), service("one"), route("HTTPRoute", "r", json!({"rules": rules}))];
    let mut running = Running::plain(objects, vec![workload("one", "http")]).await;
    running.expect(request("/", json!({"status": 200, "backend": "one"}))).await;
    running.expect(request("/?delay=2s", json!({"status": 504}))).await;
    running.expect(request("/slow-body", json!({"failure": "cut off"}))).await;
}

#[tokio::test]
async fn weights_and_backends_that_cannot_be_resolved_have_their_shares() {
    let weighted = |name: &str, weight: u32| json!({"name": name, "port": 8080, "weight": weight});
    let rules = json!([
        {"matches": [{"path": {"type": "PathPrefix", "value": "/split"}}],
            "backendRefs": [weighted("one", 5), weighted("two", 3), weighted("missing", 2), weighted("never", 0)]},
        {"matches": [{"path": {"type": "PathPrefix", "value": "/none"}}]},
        {"matches": [{"path": {"type": "PathPrefix", "value": "/zero"}}], "backendRefs": [weighted("one", 0)]}]);
    let mut objects = vec![plain_gateway(), route("HTTPRoute", "r", json!({"rules": rules}))];
    objects.extend(["one", "two", "never"].map(service));
    let workloads = ["one", "two", "never"].map(|name| workload(name, "http")).to_vec();
    let mut running = Running::plain(objects, workloads).await;
    let mut counts = std::collections::BTreeMap::<String, u32>::new();
    for _ in 0..500 {
        let (got, seen) = running.send(&request("/split", json!({}))).await;
        let backend = seen.first().map_or(got.status.to_string(), |saw| saw.workload.clone());
        *counts.entry(backend).or_default() += 1;
    }
    for (name, share) in [("one", 0.5), ("two", 0.3), ("500", 0.2)] {
        let own = f64::from(counts.remove(name).unwrap_or(0)) / 500.0;
        assert!((own - share).abs() < 0.1, "{name}: {own}");
    }
    assert!(counts.is_empty(), "{counts:?}");
    for path in ["/none", "/zero"] {
        running.expect(request(path, json!({"status": 500}))).await;
    }
    running.expect(request("/other", json!({"status": 404}))).await;
}

#[tokio::test]
async fn mirrors_have_their_fractions_and_a_bad_one_is_dropped() {
    let mirror = |name: &str, share: Value| {
        let mut mirror = json!({"backendRef": to(name)});
        mirror.as_object_mut().expect("an object").extend(share.as_object().cloned().unwrap_or_default());
        json!({"type": "RequestMirror", "requestMirror": mirror})
    };
    let rules = json!([{"filters": [mirror("all", json!({})), mirror("none", json!({"percent": 0})),
        mirror("half", json!({"fraction": {"numerator": 1, "denominator": 2}})), mirror("missing", json!({}))],
        "backendRefs": [to("one")]}]);
    let names = ["one", "all", "none", "half"];
    let mut objects = vec![plain_gateway(), route("HTTPRoute", "r", json!({"rules": rules}))];
    objects.extend(names.map(service));
    let mut running = Running::plain(objects, names.map(|name| workload(name, "http")).to_vec()).await;
    let sent = request("/", json!({}));
    let (at, host) = running.proxies.address(&running.world, &sent).await;
    running.world.sightings.prepare(&sent);
    for _ in 0..100 {
        assert_eq!(send(at, &sent, &host, &running.world.pairs).await.status, 200);
    }
    let count = |name: &str| running.world.sightings.all().iter().filter(|saw| saw.workload == name).count();
    // Nothing waits for copies.
    eventually_async("all copies", async || count("all") == 100).await;
    assert_eq!((count("one"), count("all"), count("none")), (100, 100, 0));
    assert!((20..=80).contains(&count("half")), "{}", count("half"));
}

#[tokio::test]
async fn passed_and_terminated_tls_share_a_port_by_server_name() {
    let passed = |name: &str, hostname: &str| json!({"name": name, "port": 443, "protocol": "TLS", "hostname": hostname, "tls": {"mode": "Passthrough"}});
    let listeners = json!([https("web", "web.example"), passed("pass", "*.pass.example")]);
    let tls_route = |name: &str, host: &str| {
        let rules = json!([{"backendRefs": [to(name)]}]);
        route("TLSRoute", name, json!({"hostnames": [host], "rules": rules}))
    };
    let web = json!([{"backendRefs": [to("web")]}]);
    let mut objects = vec![
        gateway(listeners),
        route("HTTPRoute", "web", json!({"rules": web})),
        tls_route("one", "one.pass.example"),
        tls_route("two", "two.pass.example"),
    ];
    objects.extend(["web", "one", "two"].map(service));
    let mut workloads = vec![workload("web", "http"), workload("one", "tcp+tls"), workload("two", "tcp+tls")];
    workloads[1]["certificate"] = json!("pass");
    workloads[2]["certificate"] = json!("pass");
    let certificates =
        json!([authority("ca"), secret("web", &["web.example"]), secret("pass", &["*.pass.example"])]);
    let mut running = Running::new(objects, workloads, certificates).await;
    running
        .expect(by_tls("web.example", "web.example", false, json!({"status": 200, "backend": "web"})))
        .await;
    let passed = |sni: &str, expect: Value| {
        json!({"gateway": format!("{NAMESPACE}/edge"), "port": 443, "scheme": "tls", "sni": sni,
            "trusts": format!("{NAMESPACE}/ca"), "expect": expect})
    };
    for name in ["one", "two"] {
        let sni = format!("{name}.pass.example");
        let expect = json!({"backend": name, "backendSeesTLS": true, "seen": {"sni": sni}});
        running.expect(passed(&sni, expect)).await;
    }
    for sni in ["three.pass.example", "other.example"] {
        running.expect(passed(sni, json!({"failure": "no route"}))).await;
    }
}
