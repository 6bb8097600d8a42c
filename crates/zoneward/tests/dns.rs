//! DNS of `zoneward up` from the outside: dig, getaddrinfo and systemd-resolved, in namespaces of their own.

use crate::started;
use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fixtures::eventually;
use serde_json::{Value, json};
use started::Up;

const DNS: &str = "127.0.0.10";
const STUB: &str = "127.0.0.53";
const UPSTREAM: &str = "127.0.0.99";
const DROP_IN: &str = "/etc/systemd/resolved.conf.d/zoneward.conf";
const SERVICES: &str = "/api/v1/namespaces/default/services";
/// The folder of a test, in the process that has its own namespaces.
const FOLDER: &str = "ZONEWARD_DNS_FOLDER";

/// Runs the test again in its own network, mounts and users; returns the folder there.
fn own_namespaces(test: &str) -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os(FOLDER) {
        let folder = PathBuf::from(folder);
        prepare(&folder);
        return Some(folder);
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("dns-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("bin")).unwrap();
    let tools = toolbox::search_path();
    let path = [folder.join("bin")].into_iter().chain(std::env::split_paths(&tools));
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "--mount", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(FOLDER, &folder)
        .env("PATH", std::env::join_paths(path).unwrap())
        .env_remove("RUST_LOG")
        .output()
        .unwrap();
    // Its resolver, if the test failed.
    if let Ok(id) = fs::read_to_string(folder.join("resolved.pid")) {
        let _ = Command::new("kill").arg(id.trim()).output();
    }
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let is_passed = output.status.success() && said.contains("1 passed");
    let log = fs::read_to_string(folder.join("data/log")).unwrap_or_default();
    assert!(is_passed, "{said}\n{log}");
    fs::remove_dir_all(&folder).unwrap();
    None
}

fn run(program: &str, words: &[&str]) -> Output {
    let output = Command::new(program).args(words).output().unwrap();
    assert!(output.status.success(), "{program} {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// The files of a resolver, and a `systemctl` that starts a real systemd-resolved anew.
fn prepare(folder: &Path) {
    // systemd-resolved asks nobody while loopback is the only link.
    for words in [
        "link set lo up",
        "link add v0 type veth peer name v1",
        "link set v0 up",
        "link set v1 up",
        "address add 198.51.100.1/24 dev v0",
    ] {
        run(toolbox::path("ip").to_str().unwrap(), &words.split(' ').collect::<Vec<_>>());
    }
    let resolv_conf = fs::canonicalize("/etc/resolv.conf").unwrap();
    for place in ["/run", "/etc/systemd"] {
        run("mount", &["-t", "tmpfs", "tmpfs", place]);
    }
    let users = "root:x:0:0:root:/root:/bin/sh\nsystemd-resolve:x:0:0::/:/bin/sh\n";
    for (name, text) in [
        ("/etc/passwd", users),
        ("/etc/group", "root:x:0:\nsystemd-resolve:x:0:\n"),
        ("/etc/nsswitch.conf", "hosts: files dns\n"),
    ] {
        let file = folder.join(Path::new(name).file_name().unwrap());
        fs::write(&file, text).unwrap();
        run("mount", &["--bind", file.to_str().unwrap(), name]);
    }
    if resolv_conf.starts_with("/run") {
        fs::create_dir_all(resolv_conf.parent().unwrap()).unwrap();
        fs::write(&resolv_conf, "").unwrap();
    } else {
        let file = folder.join("resolv.conf");
        fs::write(&file, "").unwrap();
        run("mount", &["--bind", file.to_str().unwrap(), resolv_conf.to_str().unwrap()]);
    }
    let (pid, calls) = (folder.join("resolved.pid"), folder.join("calls"));
    let script = format!(
        "#!/bin/sh\necho \"$@\" >> {calls}\n\
         if [ -f {pid} ]; then old=$(cat {pid}); kill $old; while kill -0 $old 2>/dev/null; do sleep 0.05; done; fi\n\
         mkdir -p /run/systemd\n{resolved} </dev/null >/dev/null 2>&1 &\necho $! > {pid}\n",
        calls = calls.display(),
        pid = pid.display(),
        resolved = toolbox::path("systemd-resolved").display(),
    );
    let systemctl = folder.join("bin/systemctl");
    fs::write(&systemctl, script).unwrap();
    fs::set_permissions(&systemctl, fs::Permissions::from_mode(0o755)).unwrap();
}

fn set_nameservers(text: &str) {
    fs::write("/etc/resolv.conf", text).unwrap();
}

/// A nameserver that gives every name the address 192.0.2.80.
fn start_upstream() {
    let socket = UdpSocket::bind((UPSTREAM, 53)).unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 4_096];
        while let Ok((length, peer)) = socket.recv_from(&mut buffer) {
            let name = buffer[12..length].iter().position(|byte| *byte == 0).unwrap();
            let question = &buffer[12..12 + name + 5];
            let head = [buffer[0], buffer[1], 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0];
            let record = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 80];
            let _ = socket.send_to(&[&head[..], question, &record].concat(), peer);
        }
    });
}

/// The output of dig, as lines.
fn dig(server: &str, words: &[&str]) -> Vec<String> {
    let output = toolbox::command("dig")
        .args([&format!("@{server}"), "+tries=1", "+time=3"])
        .args(words)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

fn short(name: &str, kind: &str) -> Vec<String> {
    let mut lines = dig(DNS, &["+short", name, kind]);
    lines.sort();
    lines
}

fn slice(service: &str, endpoints: Value) -> Value {
    json!({"addressType": "IPv4", "metadata": {"name": format!("{service}-1"),
            "labels": {"kubernetes.io/service-name": service}},
        "ports": [{"name": "pg", "port": 5432, "protocol": "TCP"}], "endpoints": endpoints})
}

fn endpoint(address: &str, hostname: &str, zone: &str) -> Value {
    json!({"addresses": [address], "hostname": hostname, "zone": zone, "conditions": {"ready": true},
        "hints": {"forZones": [{"name": zone}]}})
}

/// The cluster IPs of Service web.
fn put_objects(up: &Up) -> Vec<String> {
    let web = json!({"metadata": {"name": "web"}, "spec": {"ipFamilyPolicy": "PreferDualStack",
        "ports": [{"name": "http", "port": 80}]}});
    let web = up.post(SERVICES, &web);
    let headless = |name: &str| json!({"metadata": {"name": name}, "spec": {"clusterIP": "None", "ports": [{"name": "pg", "port": 5432}]}});
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    up.post(SERVICES, &headless("db"));
    let endpoints = json!([endpoint("10.1.0.1", "db-0", "zone-a"), endpoint("10.2.0.1", "db-1", "zone-b")]);
    up.post(slices, &slice("db", endpoints));
    up.post(SERVICES, &headless("many"));
    let many: Vec<Value> = (1..=200)
        .map(|n| json!({"addresses": [format!("10.3.0.{n}")], "conditions": {"ready": true}}))
        .collect();
    up.post(slices, &slice("many", json!(many)));
    let alias = json!({"metadata": {"name": "ext"}, "spec": {"type": "ExternalName", "externalName": "www.example.test"}});
    up.post(SERVICES, &alias);
    let ips = web["spec"]["clusterIPs"].as_array().unwrap();
    ips.iter().map(|ip| ip.as_str().unwrap().to_owned()).collect()
}

#[test]
fn dig_and_getaddrinfo_find_services_through_dns_and_through_systemd_resolved() {
    let Some(folder) = own_namespaces(toolbox::this_test!()) else {
        return;
    };
    let search = "search default.svc.cluster.local svc.cluster.local cluster.local\n";
    set_nameservers(&format!("nameserver {DNS}\nnameserver {UPSTREAM}\n{search}"));
    start_upstream();
    let data = folder.join("data");
    fs::create_dir_all(&data).unwrap();
    let flags = ["--dns", "--zone", "zone-a", "--configure-resolver", "--no-mesh"];
    let (mut up, _) = Up::start_logged_with(&data, &flags);
    let ips = put_objects(&up);
    let web = "web.default.svc.cluster.local";
    eventually("the address of web", || short(web, "A") == [ips[0].as_str()]);
    check_records(&ips);
    check_forwarding();
    check_topology(&data);
    check_sizes();
    check_getaddrinfo("web", &ips[0]);

    eventually("the file", || Path::new(DROP_IN).exists());
    let text = fs::read_to_string(DROP_IN).unwrap();
    assert!(text.contains(&format!("\nDNS={DNS}\nDomains=~cluster.local ~96.10.in-addr.arpa")), "{text}");
    eventually("systemd-resolved", || dig(STUB, &["+short", web, "A"]) == [ips[0].as_str()]);
    assert_eq!(dig(STUB, &["+short", "-x", &ips[0]]), [format!("{web}.")]);
    set_nameservers(&format!("nameserver {STUB}\n{search}"));
    check_getaddrinfo("web", &ips[0]);

    let metrics =
        run(toolbox::path("curl").to_str().unwrap(), &["-s", "http://127.0.0.1:10270/metrics"]).stdout;
    let metrics = String::from_utf8(metrics).unwrap();
    check_metrics(&metrics);
    assert_eq!(up.signal("-TERM"), Some(0));
    assert!(!Path::new(DROP_IN).exists(), "undone at the end");
    let calls = fs::read_to_string(folder.join("calls")).unwrap();
    assert_eq!(calls.lines().count(), 2, "{calls}");
    assert!(calls.starts_with("try-reload-or-restart systemd-resolved.service\n"), "{calls}");

    let (mut again, _) = Up::start_logged_with(&data, &flags);
    // With its `systemctl`, which would go on alone.
    let log = || fs::read_to_string(data.join("log")).unwrap();
    eventually("the resolver", || log().contains("systemd-resolved configured"));
    assert!(Path::new(DROP_IN).exists());
    again.signal("-KILL");
    let zoneward = env!("CARGO_BIN_EXE_zoneward");
    let shown = Command::new(zoneward).args(["cleanup", "--only-zoneward", "--dry-run"]).output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains(&format!("would remove resolver configuration {DROP_IN}")), "{shown}");
    let removed = Command::new(zoneward).args(["cleanup", "--only-zoneward"]).output().unwrap();
    let removed = String::from_utf8_lossy(&removed.stdout).into_owned();
    assert!(removed.contains(&format!("removed resolver configuration {DROP_IN}")), "{removed}");
    assert!(!Path::new(DROP_IN).exists());
    run("kill", &[fs::read_to_string(folder.join("resolved.pid")).unwrap().trim()]);
    fs::remove_file(folder.join("resolved.pid")).unwrap();
}

fn check_records(ips: &[String]) {
    let web = "web.default.svc.cluster.local";
    assert_eq!(short(web, "AAAA"), [ips[1].as_str()]);
    assert_eq!(short("WEB.Default.svc.cluster.LOCAL", "A"), [ips[0].as_str()]);
    assert_eq!(short(&format!("_http._tcp.{web}"), "SRV"), [format!("0 50 80 {web}.")]);
    for ip in ips {
        assert_eq!(dig(DNS, &["+short", "-x", ip]), [format!("{web}.")]);
    }
    assert_eq!(short("dns-version.cluster.local", "TXT"), ["\"1.1.0\""]);
    let answer = dig(DNS, &["+noall", "+answer", web, "A"]);
    assert_eq!(answer, [format!("{web}. 5 IN A {}", ips[0])]);
    let srv = dig(DNS, &["+noall", "+additional", &format!("_http._tcp.{web}"), "SRV"]);
    assert_eq!(srv.iter().filter(|line| line.starts_with(web)).count(), 2, "{srv:?}");
    for (name, status) in [
        ("no.default.svc.cluster.local", "NXDOMAIN"),
        ("web.nowhere.svc.cluster.local", "NXDOMAIN"),
        ("99.99.96.10.in-addr.arpa", "NXDOMAIN"),
        ("default.svc.cluster.local", "NOERROR"),
        ("db.default.svc.cluster.local", "NOERROR"),
    ] {
        let kind = if name.starts_with("99") { "PTR" } else { "AAAA" };
        let lines = dig(DNS, &["+noall", "+comments", "+authority", name, kind]);
        let text = lines.join("\n");
        assert!(text.contains(&format!("status: {status}")) && text.contains("ANSWER: 0"), "{name}: {text}");
        let soa = lines.iter().find(|line| line.contains(" IN SOA ")).expect("an SOA");
        assert!(soa.contains(" 5 IN SOA ") && soa.ends_with(" 7200 1800 86400 5"), "{soa}");
    }
}

fn check_forwarding() {
    assert_eq!(short("www.example.test", "A"), ["192.0.2.80"]);
    assert_eq!(
        dig(DNS, &["+short", "ext.default.svc.cluster.local", "A"]),
        ["www.example.test.", "192.0.2.80"]
    );
}

fn check_topology(data: &Path) {
    let db = "db.default.svc.cluster.local";
    assert_eq!(short(db, "A"), ["10.1.0.1"], "only the endpoint of zone-a");
    assert_eq!(short(db, "SRV"), [format!("0 100 5432 db-0.{db}.")]);
    assert_eq!(short(&format!("db-1.{db}"), "A"), ["10.2.0.1"], "by its name from every zone");
    assert_eq!(dig(DNS, &["+short", "-x", "10.2.0.1"]), [format!("db-1.{db}.")]);
    let socket = data.join("api.sock");
    let traced = Command::new(env!("CARGO_BIN_EXE_zoneward"))
        .args(["trace", "dns", db, "--zone", "zone-b", "-o", "json", "--api-socket"])
        .arg(socket)
        .output()
        .unwrap();
    let traced: Value = serde_json::from_slice(&traced.stdout).unwrap();
    assert_eq!(
        traced["answer"],
        json!([{"name": format!("{db}."), "ttl": 5, "type": "A", "data": "10.2.0.1"}])
    );
    assert!(
        traced["why"].to_string().contains("1 of 2 ready endpoints have a hint for zone zone-b"),
        "{traced}"
    );
}

fn check_sizes() {
    let many = "many.default.svc.cluster.local";
    let cut = dig(DNS, &["+ignore", "+noall", "+comments", many, "A"]).join("\n");
    assert!(cut.contains(" tc ") || cut.contains(" tc;"), "{cut}");
    assert_eq!(short(many, "A").len(), 200, "over TCP");
    assert_eq!(dig(DNS, &["+tcp", "+short", "web.default.svc.cluster.local", "A"]).len(), 1);
}

/// By the machine's own resolver.
fn check_getaddrinfo(name: &str, address: &str) {
    let script = format!(
        "import socket; print(sorted({{a[4][0] for a in socket.getaddrinfo({name:?}, 80, socket.AF_INET)}}))"
    );
    let output = toolbox::command("python3").args(["-c", &script]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(said.trim(), format!("['{address}']"), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The metrics of the reference.
fn check_metrics(metrics: &str) {
    let reference = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/metrics.md");
    let reference = fs::read_to_string(reference).unwrap();
    let rows: Vec<&str> = reference.lines().filter(|line| line.starts_with("| `zoneward_dns_")).collect();
    assert_eq!(rows.len(), 3, "{rows:?}");
    for row in rows {
        let name = row.split('`').nth(1).unwrap();
        assert!(metrics.contains(&format!("# TYPE {name} ")), "{name}: {metrics}");
    }
    let line = "zoneward_dns_requests_total{proto=\"tcp\",type=\"A\",rcode=\"NOERROR\",source=\"cluster\"}";
    assert!(metrics.contains(line), "{metrics}");
}

#[test]
fn wrong_flags_are_said_at_once() {
    let data = started::folder("dns-wrong");
    let run = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zoneward"));
        let output = command.args(["up", "--no-node", "--data-dir"]).arg(&data).args(words).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = run(&["--dns=192.0.2.1"]);
    assert!(code == Some(2) && said.contains("expected a loopback address"), "{said}");
    let (code, said) = run(&["--configure-resolver"]);
    assert!(code == Some(2) && said.contains("--dns"), "{said}");
}
