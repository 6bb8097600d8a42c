//! One machine: `zoneward up` with its proxies, plain processes as endpoints, and clients that count what comes back.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fixtures::eventually;
use serde_json::{Value, json};

use crate::namespace::run;

pub(crate) fn root() -> &'static Path {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    crates.and_then(Path::parent).expect("this crate lies two levels below the root")
}

/// Gives this namespace an address that is not loopback's: Kubernetes refuses those as endpoints.
pub(crate) fn add_address(ip: IpAddr) {
    let (net, more): (_, &[&str]) = match ip {
        IpAddr::V4(_) => (format!("{ip}/32"), &[]),
        IpAddr::V6(_) => (format!("{ip}/128"), &["nodad"]),
    };
    run("ip", &[&["address", "replace", &net, "dev", "lo"], more].concat());
}

/// What a process saw of a request.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
}

/// A plain process: it answers with its name, and remembers what it was asked.
pub(crate) struct Upstream {
    pub(crate) address: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Upstream {
    pub(crate) fn start(name: &str, ip: &str) -> Self {
        Self::slow(name, ip, Duration::ZERO)
    }

    /// One that takes its time.
    pub(crate) fn slow(name: &str, ip: &str, pause: Duration) -> Self {
        let ip: IpAddr = ip.parse().unwrap();
        add_address(ip);
        let listener = TcpListener::bind((ip, 8080)).unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (name, noted) = (name.to_owned(), seen.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (name, noted) = (name.clone(), noted.clone());
                std::thread::spawn(move || serve(stream, &name, &noted, pause));
            }
        });
        let address = if ip.is_ipv4() { format!("{ip}:8080") } else { format!("[{ip}]:8080") };
        Self { address, seen }
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

fn serve(stream: TcpStream, name: &str, noted: &Mutex<Vec<Seen>>, pause: Duration) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    while let Some((first, headers)) = head(&mut reader) {
        let length: usize = headers.get("content-length").and_then(|v| v.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
        noted.lock().unwrap().push(Seen { path, headers });
        std::thread::sleep(pause);
        let answer =
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nx-seen-by: {name}\r\n\r\n{name}", name.len());
        if writer.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// The first line and the headers, names in lower case.
fn head(reader: &mut impl BufRead) -> Option<(String, BTreeMap<String, String>)> {
    let mut line = String::new();
    if reader.read_line(&mut line).ok()? == 0 {
        return None;
    }
    let first = line.trim_end().to_owned();
    let mut headers = BTreeMap::new();
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { return Some((first, headers)) };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

/// Asks over any stream; `None` if no whole answer came.
pub(crate) fn ask_over(stream: impl Read + Write, host: &str, path: &str, more: &str) -> Option<Answer> {
    let mut stream = BufReader::new(stream);
    let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{more}\r\n");
    stream.get_mut().write_all(request.as_bytes()).ok()?;
    let (first, headers) = head(&mut stream)?;
    let status = first.split(' ').nth(1)?.parse().ok()?;
    let mut body = String::new();
    match headers.get("content-length").and_then(|length| length.parse().ok()) {
        Some(length) => {
            let mut bytes = vec![0; length];
            stream.read_exact(&mut bytes).ok()?;
            body = String::from_utf8_lossy(&bytes).into_owned();
        }
        None => drop(stream.read_to_string(&mut body)),
    }
    Some(Answer { status, headers, body })
}

/// Asks a server of this namespace.
pub(crate) fn ask(at: &str, host: &str, path: &str, more: &str) -> Option<Answer> {
    let stream = TcpStream::connect_timeout(&at.parse().unwrap(), Duration::from_secs(2)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    ask_over(stream, host, path, more)
}

/// The body of a good answer.
pub(crate) fn body(at: &str, path: &str) -> Option<String> {
    ask(at, "x", path, "").filter(|answer| answer.status == 200).map(|answer| answer.body)
}

/// A child that ends with the test; its words are in a file.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) log: PathBuf,
}

impl Running {
    pub(crate) fn start(folder: &Path, name: &str, words: &[&str]) -> Self {
        let log = folder.join(format!("{name}.log"));
        let file = || fs::File::options().create(true).append(true).open(&log).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_zoneward"))
            .args(words)
            .current_dir(root())
            .stdin(Stdio::null())
            .stdout(file())
            .stderr(file())
            .spawn()
            .unwrap();
        Self { child, log }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn signal(&self, signal: nix::sys::signal::Signal) {
        let id = nix::unistd::Pid::from_raw(self.child.id().try_into().unwrap());
        nix::sys::signal::kill(id, signal).unwrap();
    }

    /// Asks it to stop and waits; its exit code.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        self.signal(nix::sys::signal::Signal::SIGTERM);
        self.child.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}:\n{}", self.log.display(), self.log());
        }
    }
}

/// `zoneward up` in this namespace.
pub(crate) struct Machine {
    pub(crate) up: Running,
    pub(crate) folder: PathBuf,
}

impl Machine {
    pub(crate) fn up(name: &str, more: &[&str]) -> Self {
        let folder = folder(name);
        let data = folder.join("data").display().to_string();
        let words = ["up", "--no-node", "--listen", "127.0.0.1:0", "--data-dir", &data];
        let up = Running::start(&folder, "up", &[&words[..], more].concat());
        let machine = Self { up, folder };
        eventually("the API", || machine.up.log().contains("serving on"));
        machine
    }

    pub(crate) fn socket(&self) -> String {
        self.folder.join("data/api.sock").display().to_string()
    }

    /// Asks the API.
    pub(crate) fn call(&self, method: &str, path: &str, kind: &str, object: &Value) -> Value {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        let body = if object.is_null() { String::new() } else { object.to_string() };
        let head = format!(
            "{method} {path} HTTP/1.0\r\nhost: x\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{method} {path}: {error}: {answer}"))
    }

    /// Where a Service is reached, in every family.
    pub(crate) fn vips(&self, service: &str) -> Vec<String> {
        let path = format!("/api/v1/namespaces/default/services/{service}");
        let found = self.read(&path)["spec"]["clusterIPs"].as_array().cloned().unwrap_or_default();
        let text = |ip: &Value| {
            let ip = ip.as_str().unwrap();
            if ip.contains(':') { format!("[{ip}]:80") } else { format!("{ip}:80") }
        };
        found.iter().map(text).collect()
    }

    pub(crate) fn read(&self, path: &str) -> Value {
        self.call("GET", path, "application/json", &Value::Null)
    }

    /// Creates an object, or replaces the spec of the one that is there.
    pub(crate) fn apply(&self, object: &Value) {
        let path = collection(object);
        let made = self.call("POST", &path, "application/json", object);
        if made["code"] == 409 {
            let path = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap());
            let patched = self.call("PATCH", &path, "application/merge-patch+json", object);
            assert_ne!(patched["kind"], "Status", "{patched}");
        } else {
            assert_ne!(made["kind"], "Status", "{made}");
        }
    }

    pub(crate) fn delete(&self, object: &Value) {
        let path = format!("{}/{}", collection(object), object["metadata"]["name"].as_str().unwrap());
        self.call("DELETE", &path, "application/json", &Value::Null);
    }

    /// Applies an example.
    pub(crate) fn example(&self, name: &str) {
        let text = fs::read_to_string(root().join(format!("examples/routes/{name}.yaml"))).unwrap();
        for document in text.split("\n---\n") {
            self.apply(&serde_saphyr::from_str(document).unwrap());
        }
    }

    /// Registers plain processes, as a user would.
    pub(crate) fn expose(&self, service: &str, targets: &[String]) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zoneward"));
        command.args(["expose", service, "--port", "80:http", "--api-socket", &self.socket()]);
        for target in targets {
            command.args(["--to", target]);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// A proxy of the machine, beside those of `up`.
    pub(crate) fn proxy(&self, name: &str, more: &[&str]) -> Running {
        let socket = self.socket();
        let words = ["mesh", "proxy", "--api-socket", &socket, "--bind-address", "127.0.0.1:0"];
        Running::start(&self.folder, name, &[&words[..], more].concat())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.up.child.kill();
        let _ = self.up.child.wait();
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

pub(crate) fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("zoneward-mesh-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn collection(object: &Value) -> String {
    let (version, plural) = match object["kind"].as_str().unwrap() {
        "Service" => ("api/v1", "services"),
        "Secret" => ("api/v1", "secrets"),
        "Node" => return "/api/v1/nodes".to_owned(),
        "EndpointSlice" => ("apis/discovery.k8s.io/v1", "endpointslices"),
        "MeshHTTPRoute" => ("apis/zoneward.dev/v1alpha1", "meshhttproutes"),
        "MeshGatewayHTTPRoute" => ("apis/zoneward.dev/v1alpha1", "meshgatewayhttproutes"),
        "MeshGateway" => ("apis/zoneward.dev/v1alpha1", "meshgateways"),
        other => panic!("{other}: where is it?"),
    };
    format!("/{version}/namespaces/default/{plural}")
}

/// A route of every client to a Service.
pub(crate) fn route(name: &str, service: &str, rules: Value) -> Value {
    json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshHTTPRoute", "metadata": {"name": name},
        "spec": {"targetRef": {"kind": "Mesh"},
            "to": [{"targetRef": {"kind": "MeshService", "name": service}, "rules": rules}]}})
}

/// Connections to cluster IPs need some way out, or the kernel refuses them before anybody sees them.
pub(crate) fn way_out() {
    run("ip", &["link", "add", "out0", "type", "veth", "peer", "name", "out1"]);
    run("ip", &["link", "set", "out0", "up"]);
    run("ip", &["link", "set", "out1", "up"]);
    run("ip", &["address", "add", "10.9.0.1/24", "dev", "out0"]);
    run("ip", &["address", "add", "fd00:9::1/64", "dev", "out0", "nodad"]);
    run("ip", &["-4", "route", "add", "default", "dev", "out0"]);
    run("ip", &["-6", "route", "add", "default", "dev", "out0"]);
}
