//! Requests to the dashboard that a browser of another site, a rebound name or a greedy client would send, and the fix
//! applied with a token.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use fixtures::eventually;
use serde_json::{Value, json};

use super::started::{Up, folder};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// A request with these headers, and the whole answer.
fn ask(address: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    let _ = write!(
        stream,
        "{method} {path} HTTP/1.1\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
    );
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

pub fn get(address: SocketAddr, path: &str) -> String {
    ask(address, "GET", path, &[("host", "localhost")], "")
}

/// A cluster of three zones with the Service shop/cart, and the address of the dashboard.
fn cluster(name: &str, more: &[&str]) -> (Up, SocketAddr) {
    let up =
        Up::start(&folder(name), &[&["--no-mesh", "--status-bind-address", "127.0.0.1:0"], more].concat());
    up.post("/api/v1/namespaces", &json!({"metadata": {"name": "shop"}}));
    for zone in ["zone-a", "zone-b", "zone-c"] {
        let labels = json!({"topology.kubernetes.io/zone": zone});
        up.post("/api/v1/nodes", &json!({"metadata": {"name": zone, "labels": labels}}));
        let ready = json!({"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "4"}});
        put_status(&up, &format!("/api/v1/nodes/{zone}"), &ready);
        let pod = json!({"metadata": {"name": zone, "labels": {"app": "cart"}},
            "spec": {"nodeName": zone, "containers": [{"name": "c", "image": "c"}]}});
        up.post("/api/v1/namespaces/shop/pods", &pod);
        let ip = format!("10.244.{}.10", zone.as_bytes()[5]);
        let running = fixtures::pod_status(&[&ip], true);
        put_status(&up, &format!("/api/v1/namespaces/shop/pods/{zone}"), &running);
    }
    let service =
        json!({"metadata": {"name": "cart"}, "spec": {"selector": {"app": "cart"}, "ports": [{"port": 80}]}});
    up.post("/api/v1/namespaces/shop/services", &service);
    let address = status_address(&up);
    (up, address)
}

fn put_status(up: &Up, path: &str, status: &Value) {
    let mut object = up.ask("GET", path, "").json();
    object["status"] = status.clone();
    let answer = up.ask("PUT", &format!("{path}/status"), &object.to_string());
    assert_eq!(answer.code, 200, "{path}: {}", answer.body);
}

fn status_address(up: &Up) -> SocketAddr {
    let path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/zoneward-controller";
    eventually("the address of the status", || {
        let lease = up.ask("GET", path, "").json();
        let address = lease["metadata"]["annotations"]["zoneward.dev/status-address"].as_str();
        address.map(|address| address.parse().unwrap()).ok_or(lease)
    })
}

/// A page when it has this part.
fn page_with(address: SocketAddr, path: &str, part: &str) -> String {
    eventually(part, || {
        let answer = get(address, path);
        if answer.contains(part) { Ok(answer) } else { Err(answer) }
    })
}

#[test]
fn the_page_of_a_service_shows_its_last_events_and_those_of_no_other() {
    let (up, address) = cluster("dashboard-events", &[]);
    for (name, message) in [("cart", "the zone <b>a</b> has no capacity"), ("other", "not of this page")] {
        let event = json!({"metadata": {"name": format!("{name}.1")}, "type": "Warning", "reason": "Overloaded",
            "involvedObject": {"kind": "Service", "namespace": "shop", "name": name}, "message": message,
            "count": 3, "firstTimestamp": "2026-11-17T08:00:00Z", "lastTimestamp": "2026-11-17T08:30:00Z"});
        up.post("/api/v1/namespaces/shop/events", &event);
    }
    let page = page_with(address, "/services/shop/cart", "Overloaded");
    assert!(page.contains("the zone &lt;b&gt;a&lt;/b&gt; has no capacity (x3)"), "{page}");
    assert!(page.contains("2026-11-17T08:30:00Z") && !page.contains("not of this page"), "{page}");
}

#[test]
fn other_sites_and_rebound_names_get_nothing() {
    let (up, address) = cluster("dashboard-guard", &[]);
    page_with(address, "/services", "shop/cart");
    let own = format!("http://{address}");
    let host = address.to_string();
    let refused: &[&[(&str, &str)]] = &[
        &[("host", "rebound.example")],
        &[("host", &host), ("origin", "http://rebound.example")],
        &[("host", &host), ("origin", "null")],
        &[
            ("host", &host),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "no-cors"),
            ("sec-fetch-dest", "script"),
        ],
        &[("host", &host), ("sec-fetch-site", "same-site"), ("sec-fetch-mode", "cors")],
        &[
            ("host", &host),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "iframe"),
        ],
    ];
    for headers in refused {
        for path in
            ["/", "/services/shop/cart", "/api/status", "/events?page=%2F", "/services/shop/cart/apply"]
        {
            let answer = ask(address, "GET", path, headers, "");
            assert!(
                answer.starts_with("HTTP/1.1 403") && !answer.contains("cart\""),
                "{path} {headers:?}: {answer}"
            );
        }
    }
    let link = [
        ("host", host.as_str()),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-mode", "navigate"),
        ("sec-fetch-dest", "document"),
    ];
    for headers in
        [&link[..], &[("host", host.as_str()), ("origin", own.as_str()), ("sec-fetch-site", "same-origin")]]
    {
        let answer = ask(address, "GET", "/", headers, "");
        assert!(answer.starts_with("HTTP/1.1 200"), "{headers:?}: {answer}");
        for header in [
            &format!("content-security-policy: {POLICY}"),
            "x-frame-options: DENY",
            "cross-origin-resource-policy: same-origin",
            "cache-control: no-store",
        ] {
            assert!(answer.contains(header), "{header}: {answer}");
        }
    }
    let same = [("host", host.as_str()), ("origin", own.as_str())];
    for (method, path, code) in [
        ("POST", "/", 404),
        ("POST", "/services/shop/cart/apply", 403),
        ("PUT", "/", 405),
        ("DELETE", "/services/shop/cart", 405),
        ("GET", "/services/shop/none", 404),
        ("GET", "/services/shop", 404),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/assets/0/app.js", 404),
        ("GET", "/events?page=%2Fnone", 404),
        ("GET", "/events", 404),
        ("GET", "/api/status?x=1", 400),
    ] {
        let answer = ask(address, method, path, &same, "token=x");
        assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{method} {path}: {answer}");
    }
    std::fs::remove_dir_all(&up.data).unwrap();
}

#[test]
fn hostile_parameters_make_small_pages() {
    let (up, address) = cluster("dashboard-hostile", &[]);
    page_with(address, "/services", "shop/cart");
    let (long, many) = ("a".repeat(7_000), "q=x&".repeat(1_500));
    for path in [
        format!("/services?q={long}"),
        format!("/services?{many}"),
        "/services?page=18446744073709551615&sort=%00&q=%ff%fe%00%3Cscript%3E".to_owned(),
        "/nodes?page=-1&q=%25%25%25".to_owned(),
        format!("/what-if?service=shop%2Fcart&mechanism={long}&zone={long}"),
        "/what-if?service=shop%2Fcart&add=zone-a&replicas=999999999999".to_owned(),
        "/what-if?service=shop%2Fcart&add=nowhere&replicas=-100&zone=nowhere".to_owned(),
        "/what-if?service=%2F".to_owned(),
        "/what-if?service=default%2Fkubernetes".to_owned(),
        format!("/routes?q={long}"),
    ] {
        let answer = get(address, &path);
        assert!(answer.starts_with("HTTP/1.1 200"), "{}: {answer}", &path[..60.min(path.len())]);
        assert!(answer.len() < 60_000 && !answer.contains("<script>"), "{}", &path[..60.min(path.len())]);
    }
    let header = "a".repeat(600_000);
    let answer = ask(address, "GET", "/", &[("host", "localhost"), ("x", &header)], "");
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{}", &answer[..60.min(answer.len())]);
    assert!(get(address, "/services").contains("shop/cart"));
    std::fs::remove_dir_all(&up.data).unwrap();
}

#[test]
fn viewers_are_bounded_and_a_page_is_rendered_while_they_idle() {
    let (up, address) = cluster("dashboard-viewers", &[]);
    page_with(address, "/services", "shop/cart");
    let viewer = || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        write!(stream, "GET /events?page=%2Fservices HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let mut first = [0; 32];
        let read = stream.read(&mut first).unwrap();
        (stream, String::from_utf8_lossy(&first[..read]).into_owned())
    };
    let viewers: Vec<(TcpStream, String)> = (0..64).map(|_| viewer()).collect();
    assert!(viewers.iter().all(|(_, head)| head.starts_with("HTTP/1.1 200")));
    assert!(viewer().1.starts_with("HTTP/1.1 503"));
    assert!(get(address, "/services").contains("shop/cart"));
    // The fragments come without a request.
    let (mut stream, _) = viewers.into_iter().next().unwrap();
    let mut seen = String::new();
    let start = Instant::now();
    while !seen.contains("event: fragment") || !seen.contains("shop/cart") {
        assert!(start.elapsed() < Duration::from_secs(60), "{seen}");
        let mut part = [0; 4_096];
        let read = stream.read(&mut part).unwrap();
        seen += &String::from_utf8_lossy(&part[..read]);
    }
    std::fs::remove_dir_all(&up.data).unwrap();
}

#[test]
fn a_fix_is_applied_with_the_token_of_a_viewer_who_may_and_with_no_other() {
    let (up, address) = cluster("dashboard-apply", &["--allow-apply"]);
    page_with(address, "/services/shop/cart", "kubectl patch service cart");
    let token = |name: &str| {
        up.post("/api/v1/namespaces/shop/serviceaccounts", &json!({"metadata": {"name": name}}));
        let path = format!("/api/v1/namespaces/shop/serviceaccounts/{name}/token");
        let made = up.post(
            &path,
            &json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}),
        );
        made["status"]["token"].as_str().unwrap().to_owned()
    };
    let (editor, reader) = (token("editor"), token("reader"));
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/shop";
    up.post(
        &format!("{rbac}/roles"),
        &json!({"metadata": {"name": "edit"},
            "rules": [{"apiGroups": [""], "resources": ["services"], "verbs": ["get", "patch"]}]}),
    );
    up.post(
        &format!("{rbac}/rolebindings"),
        &json!({"metadata": {"name": "edit"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "edit"},
            "subjects": [{"kind": "ServiceAccount", "name": "editor", "namespace": "shop"}]}),
    );
    let (host, own) = (address.to_string(), format!("http://{address}"));
    let form = ("content-type", "application/x-www-form-urlencoded");
    let same = [("host", host.as_str()), ("origin", own.as_str()), form];
    let path = "/services/shop/cart/apply";
    let distribution = || {
        up.ask("GET", "/api/v1/namespaces/shop/services/cart", "").json()["spec"]["trafficDistribution"]
            .clone()
    };
    for (headers, body, code) in [
        (&[("host", host.as_str()), form][..], format!("token={editor}"), 403),
        (&[("host", host.as_str()), ("origin", "http://evil.example"), form], format!("token={editor}"), 403),
        (
            &[("host", "evil.example"), ("origin", "http://evil.example"), form],
            format!("token={editor}"),
            403,
        ),
        (&same, String::new(), 400),
        (&same, "token=a%0d%0ab".to_owned(), 400),
        (&same, "token=wrong".to_owned(), 502),
        (&same, format!("token={reader}"), 502),
        (&same, format!("token={}", "x".repeat(40_000)), 413),
    ] {
        let answer = ask(address, "POST", path, headers, &body);
        assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{code} {headers:?}: {answer}");
        assert!(!answer.contains(&editor) && !answer.contains(&reader), "a token is shown");
        assert_eq!(distribution(), Value::Null);
    }
    let answer = ask(address, "POST", path, &same, &format!("token={editor}"));
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("Applied"), "{answer}");
    assert_eq!(distribution(), "PreferSameZone");
    page_with(address, "/services/shop/cart", "No setting is known");
    let again = ask(address, "POST", path, &same, &format!("token={editor}"));
    assert!(again.starts_with("HTTP/1.1 409"), "{again}");
    std::fs::remove_dir_all(&up.data).unwrap();
}

#[test]
fn off_loopback_nothing_is_shown_without_https_and_a_token() {
    let up = Up::start(&folder("dashboard-open"), &["--no-mesh", "--status-bind-address", "0.0.0.0:0"]);
    let address = SocketAddr::new("127.0.0.1".parse().unwrap(), status_address(&up).port());
    for path in ["/", "/services", "/api/status", "/events?page=%2F"] {
        let answer = get(address, path);
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("HTTPS only"), "{path}: {answer}");
    }
    std::fs::remove_dir_all(&up.data).unwrap();
}
