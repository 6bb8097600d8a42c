//! Machines: network, mount, user and UTS namespaces of their own, with an address, and the program in them.
//!
//! A machine has its own `/run`, `/etc/hostname` and data folder, and does not see those of the others: a socket or a file
//! that two of them could share by accident is not there.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fixtures::eventually;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::net::{Neighbour, be_a_router, set};

/// A machine under load is slow, not wrong.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Whether an object of this name is in the snapshot of a machine, as JSON or as a message of protobuf.
pub fn is_in_snapshot(file: &Path, name: &str) -> bool {
    let stored: Value =
        fs::read(file).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    stored["objects"].as_array().into_iter().flatten().any(|entry| match entry["message"].as_str() {
        Some(message) => {
            let message = STANDARD.decode(message).unwrap();
            message.windows(name.len()).any(|part| part == name.as_bytes())
        }
        None => entry["object"].to_string().contains(name),
    })
}

fn children(process: u32) -> Vec<u32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let ids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter(|id| fields(*id).is_some_and(|(_, parent)| parent == process)).collect()
}

/// The state and the parent of a process.
fn fields(process: u32) -> Option<(String, u32)> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

fn is_running(process: u32) -> bool {
    fields(process).is_some_and(|(state, _)| state != "Z")
}

/// A process that ends with the test.
pub struct Running(Child);

impl Running {
    /// Kills the process and waits for the end of its children, which stop when it is gone.
    pub fn kill(&mut self) {
        let children = children(self.0.id());
        let _ = self.0.kill();
        let _ = self.0.wait();
        for child in children {
            eventually("the end of a child", || !is_running(child));
        }
    }

    /// Kills the process and its children at once.
    pub fn kill_all(&mut self) {
        for process in children(self.0.id()) {
            let _ = kill(Pid::from_raw(process.cast_signed()), Signal::SIGKILL);
        }
        self.kill();
    }

    pub fn stop(&mut self) -> Option<i32> {
        assert!(Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status().unwrap().success());
        self.0.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

pub struct Machine {
    neighbour: Neighbour,
    spaces: Namespaces,
    number: u8,
    pub data: PathBuf,
}

impl Machine {
    pub fn name(&self) -> String {
        format!("box-{}", self.number)
    }

    pub fn address(&self) -> String {
        format!("10.0.0.{}", self.number)
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.data.join("kubeconfig")
    }

    /// Runs a function in the namespace of the machine.
    pub fn within<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        self.neighbour.within(work)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.spaces.command(env!("CARGO_BIN_EXE_zoneward"));
        command.args(words);
        command
    }

    /// Runs a command there to its end.
    pub fn run(&self, words: &[&str]) -> Output {
        let mut command = self.command(words);
        self.neighbour.within(move || command.output().unwrap())
    }

    pub fn run_json(&self, words: &[&str]) -> Value {
        let output = self.run(&[words, &["-o", "json"]].concat());
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// What a command says that fails.
    pub fn refused(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        said
    }

    /// Starts a command there that runs on, and waits until it has printed the path of its kubeconfig.
    pub fn start(&self, words: &[&str]) -> Running {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log()).unwrap();
        let mut command = self.command(words);
        command.args(["--data-dir"]).arg(&self.data).stdout(Stdio::piped()).stderr(log);
        let mut child = self.neighbour.within(move || command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let running = Running(child);
        assert!(line.ends_with("kubeconfig\n"), "{words:?}: {}", fs::read_to_string(self.log()).unwrap());
        running
    }

    pub fn log(&self) -> PathBuf {
        self.data.with_extension("log")
    }

    pub fn up(&self) -> Running {
        self.up_with(&[])
    }

    pub fn up_with(&self, more: &[&str]) -> Running {
        let audit = self.data.with_extension("audit");
        let listen = format!("{}:6443", self.address());
        let words = ["up", "--no-mesh", "--zone", "zone-1", "--listen", &listen, "--audit-log-path"];
        self.start(&[&words[..], &[audit.to_str().unwrap()], more].concat())
    }

    /// The events of the audit log.
    pub fn audit(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.data.with_extension("audit")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// A token for another machine, as `zoneward token create` prints it.
    pub fn token(&self, node: &str, more: &[&str]) -> Value {
        let data = self.data.display().to_string();
        self.run_json(&[&["token", "create", "--data-dir", &data, "--node", node], more].concat())
    }

    /// The words with which a machine joins.
    pub fn join_words(token: &Value) -> Vec<String> {
        let text = |name: &str| token[name].as_str().unwrap().to_owned();
        ["join", &text("server"), "--token", &text("token"), "--ca-hash", &text("caHash")]
            .map(str::to_owned)
            .to_vec()
    }

    pub fn join(&self, token: &Value) -> Running {
        let zone = format!("zone-{}", self.number);
        let words = Self::join_words(token);
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        words.extend(["--zone", &zone]);
        self.start(&words)
    }

    /// Asks the API as its admin, by the socket of this machine.
    pub fn admin(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        exchange(&self.data.join("api.sock"), method, path, body).expect("the API answers")
    }

    /// The same if the API is there.
    pub fn try_admin(&self, method: &str, path: &str, body: &str) -> Option<(u16, Value)> {
        exchange(&self.data.join("api.sock"), method, path, body)
    }

    /// The traffic ledger of the controller.
    pub fn ledger(&self) -> Value {
        exchange(&self.data.join("ledger.sock"), "GET", "/ledger?window=3600", "")
            .map_or(Value::Null, |(_, page)| page)
    }

    /// Asks the API with a kubeconfig, from this machine: the code and the message, or 200 and the object.
    pub fn ask(&self, kubeconfig: &Path, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let content = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = http::Request::builder().method(method).uri(path).header("content-type", content);
        let (request, kubeconfig) = (request.body(body).unwrap(), kubeconfig.to_owned());
        self.neighbour.within(move || {
            block_on(async {
                let client = client(kubeconfig).await;
                match client.request::<Value>(request).await {
                    Ok(object) => (200, object),
                    Err(kube::Error::Api(status)) => (status.code, status.message.clone().into()),
                    Err(error) => panic!("{error}"),
                }
            })
        })
    }

    /// Watches Services with this machine's credential, until the watch ends.
    pub fn watch(&self) -> std::thread::JoinHandle<()> {
        let kubeconfig = self.kubeconfig();
        let (say, hear) = std::sync::mpsc::channel();
        let thread = self.neighbour.within(move || {
            std::thread::spawn(move || {
                block_on(async {
                    use http_body_util::BodyExt;
                    let request = http::Request::get("/api/v1/services?watch=1").body(Vec::new()).unwrap();
                    let client = client(kubeconfig).await;
                    let response = client.send(request.map(kube::client::Body::from)).await.unwrap();
                    assert_eq!(response.status(), 200);
                    let mut body = response.into_body();
                    let _first = body.frame().await.unwrap().unwrap();
                    say.send(()).unwrap();
                    while let Some(Ok(_)) = body.frame().await {}
                });
            })
        });
        hear.recv().unwrap();
        thread
    }

    /// A server that tells the name of its machine and its port.
    pub fn serve(&self, port: u16) {
        let (address, name) = (format!("{}:{port}", self.address()), format!("{}:{port}", self.name()));
        self.neighbour.within(move || {
            let listener = TcpListener::bind(address).unwrap();
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let _ = stream.unwrap().write_all(name.as_bytes());
                }
            });
        });
    }

    /// A server that sends back what it gets.
    pub fn serve_echo(&self, port: u16) {
        let address = format!("{}:{port}", self.address());
        self.neighbour.within(move || {
            let listener = TcpListener::bind(address).unwrap();
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let mut stream = stream.unwrap();
                    std::thread::spawn(move || {
                        let mut back = stream.try_clone().unwrap();
                        let _ = std::io::copy(&mut stream, &mut back);
                    });
                }
            });
        });
    }

    /// Whether an echo server answers there.
    pub fn exchange_echo(&self, to: SocketAddr) -> bool {
        self.neighbour.within(move || echo(to, None).is_ok())
    }

    /// Opens connections to an echo server all the time.
    pub fn load(&self, to: SocketAddr) -> Load {
        let (stop, opened, failures) = (Arc::default(), Arc::default(), Arc::default());
        let load = Load { stop, opened, failures, thread: None };
        let (stop, opened, failures) = (load.stop.clone(), load.opened.clone(), load.failures.clone());
        let name = self.name();
        let thread = self.neighbour.within(move || {
            std::thread::spawn(move || {
                let began = Instant::now();
                let mut old = echo(to, None).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    let (at, done) = (began.elapsed(), echo(to, None));
                    if let Err(error) = done {
                        failures.lock().unwrap().push(format!("{name} at {at:?}: {error}"));
                    }
                    opened.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(5));
                }
                match echo(to, Some(old)) {
                    Ok(stream) => old = stream,
                    Err(error) => {
                        return failures.lock().unwrap().push(format!("{name}: the first one: {error}"));
                    }
                }
                drop(old);
            })
        });
        Load { thread: Some(thread), ..load }
    }

    /// The kernel stops repeating that a process closed its connections.
    pub fn forget_closed_connections(&self) {
        self.neighbour.within(|| set("net/ipv4/tcp_orphan_retries", "1"));
    }

    /// Does something with a client of the API on this machine, in a thread of its own.
    pub fn spawn_with_client<T: Send + 'static, F: Future<Output = T>>(
        &self,
        kubeconfig: PathBuf,
        task: impl FnOnce(kube::Client) -> F + Send + 'static,
    ) -> std::thread::JoinHandle<T> {
        self.neighbour.within(move || {
            std::thread::spawn(move || block_on(async { task(client(kubeconfig).await).await }))
        })
    }

    /// The name of the machine that answers there.
    pub fn connect(&self, to: SocketAddr) -> Option<String> {
        self.connect_within(to, Duration::from_secs(5))
    }

    pub fn connect_within(&self, to: SocketAddr, timeout: Duration) -> Option<String> {
        self.neighbour.within(move || {
            let mut stream = TcpStream::connect_timeout(&to, timeout).ok()?;
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).ok()?;
            Some(text)
        })
    }

    /// What a server there answers to a message.
    pub fn exchange(&self, to: SocketAddr, message: &[u8]) -> Option<Vec<u8>> {
        let message = message.to_owned();
        self.neighbour.within(move || {
            let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(5)).ok()?;
            stream.write_all(&message).ok()?;
            let mut length = [0; 2];
            stream.read_exact(&mut length).ok()?;
            let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
            stream.read_exact(&mut answer).ok()?;
            Some(answer)
        })
    }

    pub fn remove(&self) {
        let _ = fs::remove_dir_all(&self.data);
        for file in [self.log(), self.data.with_extension("audit"), self.data.with_extension("hostname")] {
            let _ = fs::remove_file(file);
        }
    }
}

/// Clients of one machine that open connections.
pub struct Load {
    stop: Arc<AtomicBool>,
    opened: Arc<AtomicU64>,
    failures: Arc<Mutex<Vec<String>>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Load {
    /// How many connections were opened, and what failed.
    pub fn end(self) -> (u64, Vec<String>) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.unwrap().join().unwrap();
        let failures = self.failures.lock().unwrap().clone();
        (self.opened.load(Ordering::Relaxed), failures)
    }
}

/// Sends something and gets it back, by a new connection or an old one.
fn echo(to: SocketAddr, old: Option<TcpStream>) -> std::io::Result<TcpStream> {
    const TIMEOUT: Duration = Duration::from_secs(5);
    let mut stream = match old {
        Some(stream) => stream,
        None => TcpStream::connect_timeout(&to, TIMEOUT)?,
    };
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(b"still there?")?;
    let mut back = [0; 12];
    stream.read_exact(&mut back)?;
    Ok(stream)
}

/// A request by a unix socket. `None` if the server is not there, or goes before it has answered.
fn exchange(socket: &Path, method: &str, path: &str, body: &str) -> Option<(u16, Value)> {
    let content = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let mut stream = UnixStream::connect(socket).ok()?;
    let head = format!(
        "{method} {path} HTTP/1.0\r\nhost: x\r\ncontent-type: {content}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, serde_json::from_str(body).unwrap_or_default()))
}

/// The namespaces of a machine. They live as long as the process that holds them, which ends with its input.
struct Namespaces {
    holder: Child,
    _input: ChildStdin,
}

/// Arguments: the name, a file for it, and the folders of other machines.
const HOLD: &str = r#"set -e
hostname "$1"
echo "$1" > "$2"
mount -t tmpfs none /run
mount --bind "$2" /etc/hostname
shift 2
for other; do mount -t tmpfs none "$other"; done
echo ready
exec cat"#;

impl Namespaces {
    fn new(name: &str, data: &Path, others: &[PathBuf]) -> Self {
        let mut command = Command::new("unshare");
        command.args([
            "--user",
            "--map-root-user",
            "--net",
            "--mount",
            "--uts",
            "sh",
            "-c",
            HOLD,
            "sh",
            name,
        ]);
        command.arg(data.with_extension("hostname")).args(others);
        command.env("PATH", toolbox::Toolbox::own().search_path());
        let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "the namespaces of {name}");
        Self { _input: holder.stdin.take().unwrap(), holder }
    }

    /// Moves the calling thread to the network and the mount namespace; a thread has no user namespace of its own.
    fn enter(process: u32) {
        unshare(CloneFlags::CLONE_FS).unwrap();
        for (name, kind) in [("net", CloneFlags::CLONE_NEWNET), ("mnt", CloneFlags::CLONE_NEWNS)] {
            let file = fs::File::open(format!("/proc/{process}/ns/{name}")).unwrap();
            setns(file, kind).unwrap();
        }
    }

    /// A program in all of the namespaces.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.holder.id().to_string(), "--user", "--net", "--mount", "--uts"]);
        command.args(["--preserve-credentials", "--", program]);
        command.env("PATH", toolbox::Toolbox::own().search_path());
        command
    }
}

/// What the program said there, where a test fails.
impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.log()).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(40)..];
            eprintln!("the last lines of {}:\n{}", self.name(), last.join("\n"));
        }
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

async fn client(kubeconfig: PathBuf) -> kube::Client {
    let connection = cluster::Connection { kubeconfig: Some(kubeconfig), ..Default::default() };
    cluster::connect(&connection, &clock::Clock::system()).await.unwrap()
}

/// Machines with the addresses 10.0.0.1 and so on.
pub fn machines<const N: usize>(test: &str) -> [Machine; N] {
    be_a_router(&[]);
    let folder = |number: usize| {
        let name = format!("zoneward-join-{test}-{}-{number}", std::process::id());
        std::env::temp_dir().join(name)
    };
    let folders: Vec<PathBuf> = (1..=N).map(folder).collect();
    for folder in &folders {
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder).unwrap();
    }
    std::array::from_fn(|at| {
        let (number, data) = (u8::try_from(at + 1).unwrap(), folders[at].clone());
        let others: Vec<PathBuf> = folders.iter().filter(|folder| **folder != data).cloned().collect();
        let spaces = Namespaces::new(&format!("box-{number}"), &data, &others);
        let process = spaces.holder.id();
        let enter = move || Namespaces::enter(process);
        let neighbour = Neighbour::entering(number, &format!("box{number}"), enter);
        neighbour.add_address(format!("10.0.0.{number}").parse().unwrap());
        Machine { neighbour, spaces, number, data }
    })
}
