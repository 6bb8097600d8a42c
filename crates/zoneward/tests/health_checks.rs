//! Health checks of exposed processes with real processes: traffic through a cluster IP leaves one that is killed or hangs
//! and comes back, and many checks at once stay bounded.

use crate::namespace;
use crate::started;
use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fixtures::eventually;
use namespace::run;
use serde_json::Value;

const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
const METRICS: &str = "127.0.0.1:10270";

/// The test that starts processes.
const KILLED: &str = "health_checks::traffic_leaves_a_killed_process_and_returns";
/// With this variable, it is a plain process that answers with its name: `NAME ADDRESS`.
const PROCESS: &str = "HEALTH_CHECK_TEST_PROCESS";

fn serve(listener: &TcpListener, name: &str) {
    for stream in listener.incoming() {
        answer(stream.unwrap(), name);
    }
}

fn answer(mut stream: TcpStream, name: &str) {
    let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
    let _ = stream.read(&mut [0; 4096]);
    let text =
        format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{name}", name.len());
    let _ = stream.write_all(text.as_bytes());
}

/// A process that ends with the test.
struct Process(Child);

impl Process {
    fn start(name: &str, address: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", KILLED, "--nocapture"])
            .env(PROCESS, format!("{name} {address}"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn add_address(ip: &str) {
    run("ip", &["address", "replace", &format!("{ip}/32"), "dev", "lo"]);
}

/// `zoneward up` with its node proxy.
struct Machine {
    child: Child,
    data: PathBuf,
}

impl Machine {
    fn up(data: &Path) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_zoneward"))
            .args([
                "up",
                "--no-mesh",
                "--listen",
                "127.0.0.1:0",
                "--metrics-bind-address",
                METRICS,
                "--data-dir",
            ])
            .arg(data)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let machine = Self { child, data: data.to_owned() };
        eventually("the API", || {
            machine.data.join("kubeconfig").exists() && http(METRICS, "/readyz").contains(" 200 ")
        });
        machine
    }

    fn zoneward(&self, words: &[&str]) -> Output {
        let socket = self.data.join("api.sock");
        Command::new(env!("CARGO_BIN_EXE_zoneward"))
            .args(words)
            .arg("--api-socket")
            .arg(socket)
            .output()
            .unwrap()
    }

    fn expose(&self, words: &[&str]) {
        let output = self
            .zoneward(&[&["expose", "web", "--port", "80", "--check-interval", "1s"][..], words].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn status(&self) -> String {
        String::from_utf8_lossy(&self.zoneward(&["status"]).stdout).into_owned()
    }

    fn slice(&self) -> Value {
        started::ask(&self.data, "GET", SLICES, "").json()["items"]
            .as_array()
            .unwrap()
            .iter()
            .find(|slice| slice["metadata"]["labels"]["kubernetes.io/service-name"] == "web")
            .unwrap()
            .clone()
    }

    /// Addresses that are ready.
    fn ready(&self) -> Vec<String> {
        let slice = self.slice();
        let endpoints = slice["endpoints"].as_array().unwrap();
        let ready = endpoints.iter().filter(|endpoint| endpoint["conditions"]["ready"] == true);
        ready.map(|endpoint| endpoint["addresses"][0].as_str().unwrap().to_owned()).collect()
    }

    fn cluster_ip(&self) -> String {
        let service = started::ask(&self.data, "GET", "/api/v1/namespaces/default/services/web", "").json();
        format!("{}:80", service["spec"]["clusterIP"].as_str().unwrap())
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

/// The whole answer; empty if there is none.
fn http(address: &str, path: &str) -> String {
    let Ok(mut stream) = TcpStream::connect_timeout(&address.parse().unwrap(), Duration::from_secs(2)) else {
        return String::new();
    };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    let mut answer = String::new();
    let _ = stream.write_all(request.as_bytes());
    let _ = stream.read_to_string(&mut answer);
    answer
}

/// Who answers twenty requests to the cluster IP; one that fails is empty.
fn answers(address: &str) -> BTreeSet<String> {
    let body =
        |answer: String| answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
    (0..20).map(|_| body(http(address, "/"))).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn metric(name: &str) -> u64 {
    let page = http(METRICS, "/metrics");
    let line =
        page.lines().find(|line| line.starts_with(name) && line.as_bytes().get(name.len()) == Some(&b' '));
    line.and_then(|line| line.rsplit(' ').next()).and_then(|value| value.parse().ok()).unwrap_or(0)
}

#[test]
fn traffic_leaves_a_killed_process_and_returns() {
    if let Ok(text) = std::env::var(PROCESS) {
        let (name, address) = text.split_once(' ').unwrap();
        return serve(&TcpListener::bind(address).unwrap(), name);
    }
    toolbox::in_own_namespaces!();
    for ip in ["10.50.0.1", "10.50.0.2"] {
        add_address(ip);
    }
    run("ip", &["route", "replace", "default", "dev", "lo"]);
    let mut machine = Machine::up(&started::folder("checks-killed"));
    let _first = Process::start("first", "10.50.0.1:8080");
    let words =
        ["--to", "10.50.0.1:8080", "--to", "10.50.0.2:8080", "--check", "tcp", "--check-failures", "2"];
    machine.expose(&words);
    eventually("the first is ready", || machine.ready() == ["10.50.0.1"]);
    let reason = "TCP 10.50.0.2:8080: connection refused";
    eventually("the reason is written", || {
        machine.slice()["metadata"]["annotations"]["zoneward.dev/not-ready"]
            .as_str()
            .is_some_and(|text| text.contains(reason))
    });
    let address = machine.cluster_ip();
    eventually("only the first gets traffic", || answers(&address) == set(&["first"]));
    let status = machine.status();
    assert!(status.contains("default/web  tcp      1/2"), "{status}");
    assert!(status.replace('\n', " ").contains("connection refused"), "{status}");

    let mut second = Process::start("second", "10.50.0.2:8080");
    eventually("both get traffic", || answers(&address) == set(&["first", "second"]));
    assert_eq!(machine.slice()["metadata"]["annotations"]["zoneward.dev/not-ready"], Value::Null);
    // The same flags again write nothing, and nothing is written while nothing changes.
    let version = machine.slice()["metadata"]["resourceVersion"].clone();
    machine.expose(&words);
    let checks = metric("zoneward_health_checks_total{check=\"tcp\",result=\"success\"}");
    eventually("more checks", || {
        metric("zoneward_health_checks_total{check=\"tcp\",result=\"success\"}") >= checks + 4
    });
    assert_eq!(machine.slice()["metadata"]["resourceVersion"], version, "no write when nothing changed");

    second.kill();
    eventually("traffic leaves the killed one", || answers(&address) == set(&["first"]));
    let _second = Process::start("second", "10.50.0.2:8080");
    eventually("and returns", || answers(&address) == set(&["first", "second"]));

    // A restart of the checks disturbs nothing.
    machine.child.kill().unwrap();
    machine.child.wait().unwrap();
    let data = machine.data.clone();
    std::mem::forget(std::mem::replace(&mut machine, Machine::up(&data)));
    assert_eq!(machine.ready().len(), 2);
    // Without a check, all are ready.
    machine.expose_unchecked(&["--to", "10.50.0.1:8080", "--to", "10.50.0.9:8080"]);
    assert_eq!(machine.ready().len(), 2);
    assert_eq!(machine.slice()["metadata"]["annotations"]["zoneward.dev/health-check"], Value::Null);
}

impl Machine {
    fn expose_unchecked(&self, words: &[&str]) {
        let output = self.zoneward(&[&["expose", "web", "--port", "80"][..], words].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_hanging_process_is_not_ready_and_says_why() {
    toolbox::in_own_namespaces!();
    add_address("10.50.0.1");
    let machine = Machine::up(&started::folder("checks-hanging"));
    let hangs = Arc::new(AtomicBool::new(false));
    let listener = TcpListener::bind("10.50.0.1:8080").unwrap();
    let asked = hangs.clone();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for stream in listener.incoming().map(Result::unwrap) {
            match asked.load(Ordering::SeqCst) {
                true => held.push(stream),
                false => answer(stream, "x"),
            }
        }
    });
    machine.expose(&["--to", "10.50.0.1:8080", "--check", "http:/healthz", "--check-failures", "2"]);
    eventually("it is ready", || machine.ready().len() == 1);
    hangs.store(true, Ordering::SeqCst);
    eventually("it is not ready", || machine.ready().is_empty());
    let status = machine.status();
    assert!(status.contains("http:/healthz") && status.contains("0/1"), "{status}");
    let words = status.split_whitespace().collect::<Vec<_>>().join(" ");
    let why =
        "default/web 10.50.0.1:8080 is not ready: GET http://10.50.0.1:8080/healthz: no answer within 1s";
    assert!(words.contains(why), "{status}");
    hangs.store(false, Ordering::SeqCst);
    eventually("it is ready again", || machine.ready().len() == 1);
}

/// Whether the peer has not closed yet. Reads what it sent.
fn is_open(stream: &mut TcpStream) -> bool {
    let mut request = [0; 512];
    loop {
        match stream.read(&mut request) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}

/// 300 endpoints accept and never answer: 64 checks at once, and the slice is written a few times, not 300.
#[test]
fn many_checks_are_bounded_and_written_once() {
    toolbox::in_own_namespaces!();
    let listener = TcpListener::bind("0.0.0.0:8080").unwrap();
    let most = Arc::new(AtomicUsize::new(0));
    let peak = most.clone();
    std::thread::spawn(move || {
        let mut open: Vec<TcpStream> = Vec::new();
        for stream in listener.incoming().map(Result::unwrap) {
            stream.set_nonblocking(true).unwrap();
            open.push(stream);
            // Those that the checker has not given up yet. All of them were open when the newest was accepted.
            open.retain_mut(is_open);
            peak.fetch_max(open.len(), Ordering::SeqCst);
        }
    });
    run("ip", &["route", "add", "local", "10.60.0.0/16", "dev", "lo"]);
    let machine = Machine::up(&started::folder("checks-many"));
    let targets: Vec<String> = (0..300).map(|n| format!("10.60.{}.{}:8080", n / 200, n % 200 + 1)).collect();
    let mut words = vec!["--check", "http:/", "--check-failures", "1"];
    targets.iter().for_each(|target| words.extend(["--to", target]));
    machine.expose(&words);
    let failures = "zoneward_health_checks_total{check=\"http\",result=\"failure\"}";
    eventually("each was checked", || metric(failures) >= 300);
    let reasons = || {
        let slice = machine.slice();
        let text = slice["metadata"]["annotations"]["zoneward.dev/not-ready"].as_str().unwrap().to_owned();
        let reasons: std::collections::BTreeMap<String, String> = serde_json::from_str(&text).unwrap();
        reasons.values().filter(|reason| reason.contains("no answer within 1s")).count()
    };
    eventually("each has its reason", || reasons() == 300);
    assert!(most.load(Ordering::SeqCst) <= 64, "{most:?} at once");
    assert!(most.load(Ordering::SeqCst) > 32, "{most:?}: they are concurrent");
    assert!(metric("zoneward_health_checks_overdue") > 0, "what waits is shown");
    assert!(metric("zoneward_health_check_writes_total") < 300, "many results share a write");
}
