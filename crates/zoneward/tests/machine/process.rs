//! The program as a process, and its API by the unix socket.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

pub fn folder(name: &str) -> PathBuf {
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("machine-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    folder
}

pub fn signal(name: &str, process: u32) {
    assert!(Command::new("kill").args([name, &process.to_string()]).status().unwrap().success());
}

/// Whether a process is there and not only waiting to be buried.
pub fn lives(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

/// An answer of a server on loopback, with its head.
pub fn http(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A child that ends with the test.
pub struct Running {
    child: Child,
}

impl Running {
    pub fn stop(&mut self) -> Option<i32> {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        self.child.wait().unwrap().code()
    }

    /// Whether it still runs.
    pub fn lives(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits until it ends by itself: its exit code, and what it said.
    pub fn ended(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Where health is served, out of the log, which is then read on so that the child never waits for us.
    pub fn served_at(&mut self) -> String {
        let mut lines = BufReader::new(self.child.stderr.take().unwrap()).lines();
        let found = lines.by_ref().map(Result::unwrap).find_map(|line| {
            let (_, address) = line.split_once("http://").filter(|_| line.contains("health and metrics"))?;
            Some(address.split(|c: char| c == '"' || c.is_whitespace()).next()?.to_owned())
        });
        std::thread::spawn(move || lines.for_each(drop));
        found.unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

pub struct Machine {
    up: Running,
    /// Where its health and metrics are.
    pub served_at: String,
    data: PathBuf,
}

impl Machine {
    pub fn up(data: &Path, more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zoneward"));
        command.args(["up", "--no-node"]);
        Self::start(command, data, more)
    }

    /// With a node proxy. `unshare` becomes the program, so the process is still its own.
    pub fn up_in_namespace(data: &Path) -> Self {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net", "--", env!("CARGO_BIN_EXE_zoneward"), "up"]);
        Self::start(command, data, &["--zone", "zone-a"])
    }

    /// The processes that it has started.
    pub fn children(&self) -> Vec<u32> {
        let id = self.up.child.id();
        let tasks = fs::read_dir(format!("/proc/{id}/task")).unwrap();
        let children =
            tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        let list: Vec<String> = children.collect();
        list.iter().flat_map(|text| text.split_whitespace()).filter_map(|id| id.parse().ok()).collect()
    }

    fn start(mut command: Command, data: &Path, more: &[&str]) -> Self {
        let mut child = command
            .args(["--listen", "127.0.0.1:0", "--metrics-bind-address", "127.0.0.1:0", "--data-dir"])
            .arg(data)
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.trim().ends_with("kubeconfig"), "{line}");
        let mut up = Running { child };
        let served_at = up.served_at();
        Self { up, served_at, data: data.to_owned() }
    }

    /// The same data, served by another process.
    pub fn again(&self, more: &[&str]) -> Self {
        Self::up(&self.data, more)
    }

    pub fn kill(&mut self) {
        self.up.kill();
    }

    pub fn stop(&mut self) -> Option<i32> {
        self.up.stop()
    }

    pub fn remove(&self) {
        fs::remove_dir_all(&self.data).unwrap();
    }

    fn socket(&self) -> String {
        self.data.join("api.sock").display().to_string()
    }

    pub fn zoneward(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zoneward"));
        command.args(words).args(["--api-socket", &self.socket()]).output().unwrap()
    }

    pub fn expose(&self, words: &[&str]) -> Value {
        let output = self.zoneward(&[&["expose", "shop", "-o", "json"][..], words].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub fn controller(&self, words: &[&str]) -> Running {
        let child = Command::new(env!("CARGO_BIN_EXE_zoneward"))
            .args(["controller", "--api-socket", &self.socket()])
            .args(words)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Running { child }
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> Value {
        let mut stream = UnixStream::connect(self.data.join("api.sock")).unwrap();
        let length = body.len();
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let head = format!(
            "{method} {path} HTTP/1.0\r\nhost: x\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all((head + body).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{method} {path}: {error}: {answer}"))
    }

    pub fn read(&self, path: &str) -> Value {
        self.ask("GET", path, "")
    }

    /// Changes an object, as a program of this name.
    pub fn merge_as(&self, manager: &str, path: &str, patch: &Value) {
        let made = self.ask("PATCH", &format!("{path}?fieldManager={manager}"), &patch.to_string());
        assert_ne!(made["kind"], "Status", "{made}");
    }

    pub fn post(&self, path: &str, object: &Value) {
        let made = self.ask("POST", path, &object.to_string());
        assert_ne!(made["kind"], "Status", "{made}");
    }

    /// Creates a pod, and then says how it is: a status does not come with the creation.
    pub fn post_pod(&self, pod: &Value) {
        let pods = "/api/v1/namespaces/default/pods";
        self.post(pods, pod);
        let status = serde_json::json!({"status": pod["status"]});
        let path = format!("{pods}/{}/status", pod["metadata"]["name"].as_str().unwrap());
        let told = self.ask("PATCH", &path, &status.to_string());
        assert_ne!(told["kind"], "Status", "{told}");
    }

    /// Who leads; empty if the Lease was given up.
    pub fn holder(&self) -> Option<String> {
        let lease =
            self.read("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/zoneward-controller");
        (lease["kind"] == "Lease").then(|| lease["spec"]["holderIdentity"].as_str().unwrap_or("").to_owned())
    }
}
