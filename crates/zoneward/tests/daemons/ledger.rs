//! Traffic of L7 proxies in the ledger, from real connections through real processes: the sidecar of `up` by its own
//! socket, and a proxy that finds the leader by its Lease. Nodes do not count these connections once more.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fixtures::eventually;
use serde_json::{Value, json};

use crate::daemons::world::{Daemon, Folder, get};
use crate::started::ask;

/// What the endpoint answers with.
const BODY_BYTES: usize = 20_000;
const ENDPOINT: &str = "192.0.2.1:8080";

fn serve() {
    let listener = TcpListener::bind(ENDPOINT).unwrap();
    std::thread::spawn(move || {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {BODY_BYTES}\r\nconnection: close\r\n\r\n");
        let body = "x".repeat(BODY_BYTES);
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(format!("{head}{body}").as_bytes());
        }
    });
}

/// Requests through a proxy; the result is the bytes of their bodies.
fn request(proxy: &str, times: usize) -> u64 {
    for _ in 0..times {
        let mut stream = TcpStream::connect(proxy).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer.len() > BODY_BYTES, "{}", String::from_utf8_lossy(&answer));
    }
    (times * BODY_BYTES) as u64
}

/// The response of a socket.
fn exchange(socket: &Path, request: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn ledger(folder: &Folder) -> Value {
    let request = "GET /ledger?window=3600 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let answer = exchange(&folder.0.join("data/ledger.sock"), request);
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap_or_default()
}

/// Bytes from zone-a to zone-b of a row.
fn bytes(ledger: &Value, kind: &str) -> u64 {
    let rows = ledger["rows"].as_array().into_iter().flatten().filter(|row| row["kind"] == kind);
    let pairs = rows.flat_map(|row| row["zonePairs"].as_array().unwrap());
    let pairs = pairs.filter(|pair| pair["fromZone"] == "zone-a");
    pairs.map(|pair| pair["bytes"].as_u64().unwrap()).sum()
}

/// The Service, and this machine as the node of all pod addresses.
fn make_objects(folder: &Folder, data: &str) {
    let socket = folder.path("data/api.sock");
    let exposed = Command::new(env!("CARGO_BIN_EXE_zoneward"))
        .args(["expose", "web", "--port", "80", "--to", "192.0.2.1:8080@zone-b", "--api-socket", &socket])
        .output()
        .unwrap();
    assert!(exposed.status.success(), "{}", String::from_utf8_lossy(&exposed.stderr));
    let nodes: Value = serde_json::from_str(&ask(Path::new(data), "GET", "/api/v1/nodes", "").body).unwrap();
    let mut node = nodes["items"][0].clone();
    node["spec"] = json!({"podCIDR": "192.0.2.0/24", "podCIDRs": ["192.0.2.0/24"]});
    let path = format!("/api/v1/nodes/{}", node["metadata"]["name"].as_str().unwrap());
    let put = ask(Path::new(data), "PUT", &path, &node.to_string());
    assert_eq!(put.code, 200, "{}", put.body);
}

/// The socket of the sidecar takes reports under its own name, and nothing else.
fn attack_report_socket(folder: &Folder) {
    let socket = folder.0.join("runtime/proxies/0-ledger.sock");
    let socket = if socket.exists() { socket } else { folder.0.join("data/proxies/0-ledger.sock") };
    assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, 0o600);
    for path in ["/ledger", "/metrics", "/api/status"] {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let answer = exchange(&socket, &request);
        assert!(answer.starts_with("HTTP/1.1 404") || answer.starts_with("HTTP/1.1 405"), "{path}: {answer}");
    }
    let body = json!({"reporter": "node/other", "start": "s", "sequence": 1, "countedSeconds": 1, "rows": [],
        "gaps": {"lostEvents": 7_777}, "addresses": ["192.0.2.1"]})
    .to_string();
    let request = format!(
        "POST /ledger HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let before = ledger(folder)["reporters"].as_u64().unwrap();
    assert!(exchange(&socket, &request).starts_with("HTTP/1.1 200"), "{socket:?}");
    assert_eq!(ledger(folder)["reporters"], before, "it is the report of the sidecar");
}

#[test]
fn traffic_of_l7_proxies_is_in_the_ledger_once() {
    toolbox::in_own_namespaces!();
    let ip =
        |words: &[&str]| assert!(Command::new(toolbox::path("ip")).args(words).status().unwrap().success());
    ip(&["link", "add", "net0", "type", "bridge"]);
    ip(&["link", "set", "net0", "up"]);
    ip(&["address", "add", "192.0.2.1/24", "dev", "net0"]);
    ip(&["route", "add", "default", "via", "192.0.2.254"]);
    let folder = Folder::new("ledger");
    let (data, socket) = (folder.path("data"), folder.path("data/api.sock"));
    let up =
        ["up", "--data-dir", &data, "--zone", "zone-a", "--sidecar", "frontend:18081=web", "--price", "0.02"];
    let up = Daemon::start(&folder, "up", &up);
    eventually("the API", || get("127.0.0.1:10270", "/readyz"));
    make_objects(&folder, &data);
    serve();
    let proxy =
        ["mesh", "proxy", "--api-socket", &socket, "-n", "default", "--from", "frontend", "--outbound"];
    let proxy =
        [&proxy[..], &["18082=web", "--zone", "zone-a", "--bind-address", "127.0.0.1:10300"]].concat();
    let proxy = Daemon::start(&folder, "proxy", &proxy);
    for address in ["127.0.0.1:10280", "127.0.0.1:10300"] {
        eventually(address, || get(address, "/readyz"));
    }
    // The node, the sidecar of `up`, and the other proxy.
    eventually("three reporters", || ledger(&folder)["reporters"] == 3);
    let mut sent = request("127.0.0.1:18081", 40);
    sent += request("127.0.0.1:18082", 40);
    eventually("both transfers", || bytes(&ledger(&folder), "Service") >= sent);
    let counted = bytes(&ledger(&folder), "Service");
    assert!(counted < sent + sent / 10, "payload and HTTP headers: {counted} of {sent}");

    // Once the node knows where the proxy dials from, it leaves these connections to it.
    let direct = || {
        let page = get("127.0.0.1:10249", "/metrics").unwrap();
        let lines = page.lines().filter(|line| line.starts_with("zoneward_direct_bytes_total"));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum::<f64>()
    };
    let is_left_to_the_proxy = (0..4).any(|_| {
        let before = direct();
        request("127.0.0.1:18082", 10);
        // The node reads open connections every half minute.
        std::thread::sleep(Duration::from_secs(40));
        direct() <= before
    });
    assert!(is_left_to_the_proxy, "{}", direct());

    eventually("metrics of the Service", || {
        let page = get("127.0.0.1:10270", "/metrics")?;
        let has = |line: &str| page.lines().any(|found| found.starts_with(line));
        (has(r#"zoneward_service_in_zone_ratio{namespace="default",service="web"} 0"#)
            && has(r#"zoneward_service_planned_in_zone_ratio{namespace="default",service="web"} 0"#)
            && has(r#"zoneward_service_honored{namespace="default",service="web"} 1"#)
            && has("zoneward_cost_usd_per_month "))
        .then_some(())
    });
    attack_report_socket(&folder);
    [proxy, up].into_iter().for_each(Daemon::stop);
}
