//! For tests: a server of its own on loopback, and kubectl pointed at it and nothing else.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use store::admission::service::Ranges;
use store::api::{Api, Limits};
use store::credentials::Credentials;
use store::engine::{Engine, Options};
use store::first_start::{Beginning, begin};
use store::server::Server;
use tokio::net::TcpListener;
use tokio::sync::watch;

pub struct Session {
    data: PathBuf,
    kubeconfig: PathBuf,
    program: PathBuf,
    server: Option<(tokio::runtime::Runtime, watch::Sender<bool>)>,
}

/// The kubectl that `cargo xtask test` put below the target directory, else the one on PATH.
fn program() -> PathBuf {
    let tools = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("tools").join("python/bin/kubectl");
    let program = if tools.is_file() { tools } else { PathBuf::from("kubectl") };
    let answer = Command::new(&program).args(["version", "--client"]).output();
    let version =
        answer.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    assert!(
        version.contains("v1.37") || version.contains("v1.38"),
        "these tests need kubectl 1.37: `cargo xtask test` installs it (found: {version:?})"
    );
    program
}

impl Session {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("kubectl-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let data = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&data).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (stop, stopped) = watch::channel(false);
        let kubeconfig = runtime.block_on(serve(&data, stopped));
        Self { data, kubeconfig, program: program(), server: Some((runtime, stop)) }
    }

    /// The same server for the user who may only look.
    pub fn as_reader(&self) -> Self {
        let data = self.data.join("reader");
        std::fs::create_dir_all(&data).unwrap();
        let kubeconfig = self.data.join("reader.kubeconfig");
        Self { data, kubeconfig, program: self.program.clone(), server: None }
    }

    fn command(&self, words: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--kubeconfig").arg(&self.kubeconfig).arg("--cache-dir").arg(self.data.join("cache"));
        command.args(words.split(' ')).env("HOME", &self.data).env_remove("KUBECONFIG");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Output, error output, and whether it went well.
    pub fn output(&self, words: &str, variables: &[(&str, &str)], input: &str) -> (String, String, bool) {
        let mut child = self.command(words).envs(variables.iter().copied()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&output.stdout), text(&output.stderr), output.status.success())
    }

    pub fn run_with(&self, words: &str, variables: &[(&str, &str)], input: &str) -> String {
        let (out, err, good) = self.output(words, variables, input);
        assert!(good, "kubectl {words}: {out}{err}");
        out
    }

    pub fn run(&self, words: &str) -> String {
        self.run_with(words, &[], "")
    }

    pub fn apply(&self, manifest: &str) -> String {
        self.run_with("apply -f -", &[], manifest)
    }

    pub fn fails_with(&self, words: &str, input: &str) -> String {
        let (out, err, good) = self.output(words, &[], input);
        assert!(!good, "kubectl {words} should fail: {out}");
        err
    }

    pub fn fails(&self, words: &str) -> String {
        self.fails_with(words, "")
    }

    /// A command that goes on.
    pub fn start(&self, words: &str) -> Running {
        let mut child = self.command(words).spawn().unwrap();
        let (sender, lines) = channel();
        let out = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let running = Running { child, lines };
        // So that what follows happens while it watches.
        running.settle();
        running
    }
}

async fn serve(data: &Path, stopped: watch::Receiver<bool>) -> PathBuf {
    let engine = Engine::open(&data.join("store"), Options::default()).unwrap();
    let api = Api::new(Arc::new(engine), Ranges::default(), Limits::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listen = listener.local_addr().unwrap();
    let service_cidrs = vec!["10.96.0.0/16".parse().unwrap(), "fd00:10:96::/112".parse().unwrap()];
    begin(&api, Beginning { service_cidrs, listen }).await.unwrap();
    let credentials = Credentials::open(data).unwrap();
    let config = credentials.server_config(&[listen.ip()]).unwrap();
    let kubeconfig = credentials.write_kubeconfigs(listen).unwrap();
    let server = Server::new(api.clone(), Arc::new(credentials), stopped.clone());
    tokio::spawn(server.serve_tls(listener, config));
    tokio::spawn(store::collect::run(api, stopped));
    kubeconfig
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some((runtime, stop)) = self.server.take() {
            stop.send_replace(true);
            runtime.shutdown_timeout(Duration::from_secs(3));
            let _ = std::fs::remove_dir_all(&self.data);
        }
    }
}

/// A kubectl that runs.
pub struct Running {
    child: Child,
    lines: Receiver<String>,
}

impl Running {
    fn settle(&self) {
        std::thread::sleep(Duration::from_millis(1_000));
    }

    /// All lines up to the first with this word.
    pub fn wait_for(self, word: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(15);
        let mut seen = String::new();
        while !seen.contains(word) {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).unwrap_or_else(|_| panic!("no {word} in: {seen}"));
            seen.push_str(&line);
            seen.push('\n');
        }
        seen
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
