//! One machine with the program of some version: `up`, a node proxy in this namespace, and what the API holds.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use dataplane::nfnetlink::{NetlinkError, NetlinkSocket};
use dataplane::nftables::apply::{apply_diff, read};
use dataplane::nftables::ir::Ruleset;
use dataplane::nftables::render::table_id;
use dataplane::nftables::trace::{NodeAddresses, TracedPacket, evaluate};
use dataplane::nftables::{DumpRequest, Kernel};
use fixtures::eventually;
use model::Family;
use serde_json::Value;

pub(crate) const THIS: &str = env!("CARGO_BIN_EXE_zoneward");
/// Without a change for this long, every component has seen the last one.
const QUIET: Duration = Duration::from_millis(1500);

pub(crate) const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
pub(crate) const SERVICES: &str = "/api/v1/services";
pub(crate) const LEASES: &str = "/apis/coordination.k8s.io/v1/leases";

/// A folder for one test, removed at its end.
pub(crate) struct TestFolder(pub PathBuf);

impl TestFolder {
    pub(crate) fn new(name: &str) -> TestFolder {
        // Short, because paths of unix sockets are.
        let path = std::env::temp_dir().join(format!("zoneward-upgrade-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        TestFolder(path)
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A folder below `tests/fixtures`.
pub(crate) struct Fixture {
    pub name: String,
    pub folder: PathBuf,
}

pub(crate) fn fixtures_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// Every version that was recorded.
pub(crate) fn fixtures() -> Vec<Fixture> {
    let entries = fs::read_dir(fixtures_folder()).unwrap().map(|entry| entry.unwrap());
    let mut all: Vec<Fixture> = entries
        .filter(|entry| entry.path().is_dir())
        .map(|entry| Fixture { name: entry.file_name().into_string().unwrap(), folder: entry.path() })
        .collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(!all.is_empty(), "no version was recorded");
    all
}

impl Fixture {
    /// Unpacks the store into a data directory.
    pub(crate) fn unpack(&self, data: &Path) {
        fs::create_dir_all(data).unwrap();
        let tar = Command::new("tar")
            .arg("-xzf")
            .arg(self.folder.join("store.tar.gz"))
            .arg("-C")
            .arg(data)
            .status()
            .unwrap();
        assert!(tar.success());
    }

    /// Gives the kernel of this namespace the recorded rules, which are a netlink batch: nft lists rules that it does not
    /// read again.
    pub(crate) fn load_rules(&self) {
        let batch = fs::read(self.folder.join("ruleset.netlink")).unwrap();
        NetlinkSocket::open().unwrap().transact(&batch).unwrap();
    }

    /// Records the rules that the kernel of this namespace holds.
    pub(crate) fn save_rules(&self, listed: &str) {
        let mut recorder = BatchRecorder(Vec::new());
        assert_eq!(apply_diff(&mut recorder, &Ruleset::default(), &held()).unwrap(), 1);
        fs::write(self.folder.join("ruleset.netlink"), recorder.0).unwrap();
        fs::write(self.folder.join("ruleset.nft"), listed).unwrap();
    }

    pub(crate) fn objects(&self) -> Value {
        serde_json::from_str(&fs::read_to_string(self.folder.join("objects.json")).unwrap()).unwrap()
    }
}

/// A kernel that keeps the transaction which it is sent.
struct BatchRecorder(Vec<u8>);

impl Kernel for BatchRecorder {
    fn transact(&mut self, batch: &[u8]) -> Result<(), NetlinkError> {
        self.0.extend(batch);
        Ok(())
    }

    fn dump(&mut self, _: &DumpRequest) -> Result<Vec<u8>, NetlinkError> {
        Ok(Vec::new())
    }

    fn generation(&mut self) -> Result<u32, NetlinkError> {
        Ok(0)
    }

    fn longest_batch(&self) -> usize {
        usize::MAX
    }
}

/// A process that ends with the test.
pub(crate) struct Process(pub Child);

impl Process {
    pub(crate) fn signal(&mut self, signal: nix::sys::signal::Signal) -> Option<i32> {
        let id = nix::unistd::Pid::from_raw(self.0.id().try_into().unwrap());
        nix::sys::signal::kill(id, signal).unwrap();
        self.0.wait().unwrap().code()
    }

    pub(crate) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A data directory and the program that serves it.
pub(crate) struct Machine {
    pub program: PathBuf,
    pub data: PathBuf,
}

impl Machine {
    pub(crate) fn new(program: impl Into<PathBuf>, data: &Path) -> Machine {
        Machine { program: program.into(), data: data.to_owned() }
    }

    fn log(&self, name: &str) -> Stdio {
        fs::create_dir_all(&self.data).unwrap();
        let path = self.data.join(format!("{name}.log"));
        fs::File::options().create(true).append(true).open(path).unwrap().into()
    }

    pub(crate) fn read_log(&self, name: &str) -> String {
        fs::read_to_string(self.data.join(format!("{name}.log"))).unwrap_or_default()
    }

    /// Starts the API and waits until it serves.
    pub(crate) fn up(&self, more: &[&str]) -> Process {
        let mut child = Command::new(&self.program)
            .args(["up", "--no-node", "--no-mesh", "--listen", "127.0.0.1:6443", "--data-dir"])
            .arg(&self.data)
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(self.log("up"))
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.ends_with("kubeconfig\n"), "it did not start: {}", self.read_log("up"));
        Process(child)
    }

    /// Starts the node proxy of `n1` in this namespace.
    pub(crate) fn node(&self) -> Process {
        let child = Command::new(&self.program)
            .args(["node", "--hostname-override", "n1", "--proxy-mode", "nftables"])
            .args(["--cluster-cidr", "10.1.0.0/16", "--conntrack-max-per-core", "0", "--conntrack-min", "0"])
            .arg("--api-socket")
            .arg(self.data.join("api.sock"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(self.log("node"))
            .spawn()
            .unwrap();
        Process(child)
    }

    pub(crate) fn store(&self, words: &[&str]) -> Output {
        Command::new(&self.program)
            .arg("store")
            .args(words)
            .arg("--data-dir")
            .arg(&self.data)
            .output()
            .unwrap()
    }

    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> Value {
        let mut stream = UnixStream::connect(self.data.join("api.sock")).unwrap();
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let head = format!(
            "{method} {path} HTTP/1.0\r\nhost: x\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + body).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"))
    }

    /// Creates an object, and then its status.
    pub(crate) fn create(&self, path: &str, object: &Value) {
        let made = self.ask("POST", path, &object.to_string());
        assert_ne!(made["kind"], "Status", "{path}: {made}");
        if let Some(status) = object.get("status") {
            let status = serde_json::json!({"status": status}).to_string();
            let path = format!("{path}/{}/status", object["metadata"]["name"].as_str().unwrap());
            let made = self.ask("PATCH", &path, &status);
            assert_ne!(made["kind"], "Status", "{path}: {made}");
        }
    }

    pub(crate) fn list(&self, path: &str) -> Vec<Value> {
        self.ask("GET", path, "")["items"].as_array().cloned().unwrap_or_default()
    }

    /// Name and resourceVersion of every slice.
    pub(crate) fn slice_versions(&self) -> Vec<(String, u64)> {
        let version = |slice: &Value| {
            let meta = &slice["metadata"];
            let version = meta["resourceVersion"].as_str().unwrap().parse().unwrap();
            (format!("{}/{}", text(&meta["namespace"]), text(&meta["name"])), version)
        };
        let mut all: Vec<_> = self.list(SLICES).iter().map(version).collect();
        all.sort();
        all
    }

    pub(crate) fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        eventually(what, || {
            holds().then_some(()).ok_or_else(|| self.read_log("up") + &self.read_log("node"))
        });
    }

    /// Waits until slices and Services have not changed for a while.
    pub(crate) fn until_quiet(&self) {
        let state = || (self.slice_versions(), self.list(SERVICES));
        let (mut last, mut since) = (state(), Instant::now());
        self.until("no more changes", || {
            let now = state();
            if now != last {
                (last, since) = (now, Instant::now());
            }
            since.elapsed() > QUIET
        });
    }

    /// The Lease of the node proxy, which names the newest slice that the kernel has.
    pub(crate) fn programmed(&self) -> u64 {
        let leases = self.list(LEASES);
        let lease = leases.iter().find(|lease| lease["metadata"]["name"] == "zoneward-node-n1");
        let revision =
            lease.map(|lease| &lease["metadata"]["annotations"]["zoneward.dev/programmed-revision"]);
        revision.and_then(|text| text.as_str()?.parse().ok()).unwrap_or(0)
    }

    pub(crate) fn renewed(&self, lease: &str) -> String {
        let leases = self.list(LEASES);
        let lease = leases.iter().find(|found| found["metadata"]["name"] == lease);
        lease.map(|lease| text(&lease["spec"]["renewTime"]).to_owned()).unwrap_or_default()
    }
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Where the kernel's rules of this namespace send connections to each address.
pub(crate) fn endpoints(addresses: &[String]) -> Vec<(String, Vec<String>)> {
    let rules = held();
    let sorted = |address: &String| {
        let mut all = endpoints_of(&rules, address);
        all.sort();
        (address.clone(), all)
    };
    addresses.iter().map(sorted).collect()
}

fn held() -> Ruleset {
    let mut kernel = NetlinkSocket::open().unwrap();
    read(&mut kernel, &[table_id(Family::V4), table_id(Family::V6)]).unwrap().0
}

fn endpoints_of(rules: &Ruleset, address: &str) -> Vec<String> {
    let to: SocketAddr = address.parse().unwrap();
    let packet = TracedPacket::new(6, "10.1.0.99:40000".parse().unwrap(), to);
    let evaluation = evaluate(rules, &packet, &NodeAddresses { addresses: Vec::new() }).unwrap();
    evaluation.endpoints.iter().map(|(address, weight)| format!("{address} {weight:.3}")).collect()
}
