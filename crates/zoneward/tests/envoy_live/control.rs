//! `zoneward mesh control` as a process, bootstraps as it is meant to be printed, and clients that count.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use fixtures::eventually;
use serde_json::{Value, json};

use crate::http::{Connection, request};
use crate::mesh_live::world::{Machine, Running};
use crate::process::Envoy;

/// Where Envoys connect to, and where health is: every test has all ports to itself.
const SERVER: &str = "127.0.0.1:15010";
const HEALTH: &str = "127.0.0.1:10272";

pub(crate) struct Control {
    pub(crate) running: Running,
}

impl Control {
    /// Starts it on the API of a machine; it is ready afterwards.
    pub(crate) fn start(machine: &Machine, more: &[&str]) -> Self {
        let socket = machine.socket();
        let words = ["mesh", "control", "--api-socket", &socket, "--listen", SERVER];
        let control =
            Self { running: Running::start(&machine.folder, "control", &[&words[..], more].concat()) };
        eventually("mesh control", || control.page("/readyz").contains("ok"));
        control
    }

    pub(crate) fn page(&self, path: &str) -> String {
        let answer = request(HEALTH.parse().unwrap(), "GET", "x", path, &[]);
        answer.map(|answer| String::from_utf8_lossy(&answer.body).into_owned()).unwrap_or_default()
    }

    pub(crate) fn status(&self) -> Value {
        serde_json::from_str(&self.page("/status")).unwrap_or_default()
    }

    /// How many Envoys are connected.
    pub(crate) fn streams(&self) -> usize {
        self.status()["streams"].as_array().map_or(0, Vec::len)
    }

    /// A metric, of all kinds together if it has kinds.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let text = self.page("/metrics");
        let lines = text
            .lines()
            .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }

    pub(crate) fn sent(&self) -> u64 {
        self.metric("zoneward_xds_resources_sent_total")
    }
}

/// What the command prints.
pub(crate) fn said(words: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_zoneward")).args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A bootstrap as it is printed.
pub(crate) fn bootstrap(words: &[&str]) -> String {
    said(&[&["mesh", "bootstrap", "--server", SERVER], words].concat())
}

/// An Envoy with such a bootstrap.
pub(crate) fn envoy(words: &[&str]) -> Envoy {
    Envoy::start(&bootstrap(words), "yaml")
}

/// Runs kubectl.
pub(crate) fn kubectl(kubeconfig: &Path, words: &[&str]) -> String {
    let output =
        toolbox::command("kubectl").arg("--kubeconfig").arg(kubeconfig).args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Applies objects with kubectl, out of a file in this folder.
pub(crate) fn apply(folder: &Path, kubeconfig: &Path, objects: &[Value]) {
    let file: PathBuf = folder.join("apply.yaml");
    let documents: Vec<String> = objects.iter().map(Value::to_string).collect();
    std::fs::write(&file, documents.join("\n---\n")).unwrap();
    kubectl(kubeconfig, &["apply", "-f", &file.display().to_string()]);
}

/// Who answered how often, and `failed`: on one connection, as long as it is good.
pub(crate) fn count(at: SocketAddr, requests: usize) -> Value {
    let mut seen: BTreeMap<String, u64> = [("failed".to_owned(), 0)].into();
    let mut connection = None;
    for _ in 0..requests {
        let mut open = match connection.take() {
            Some(open) => open,
            None => match Connection::open(at) {
                Ok(open) => open,
                Err(_) => {
                    *seen.entry("failed".to_owned()).or_default() += 1;
                    continue;
                }
            },
        };
        match open.send("GET", "x", "/", &[]) {
            Ok(answer) if answer.status() == 200 => {
                let name = String::from_utf8_lossy(&answer.body).trim().to_owned();
                *seen.entry(name).or_default() += 1;
                connection = (answer.header("connection") != Some("close")).then_some(open);
            }
            _ => *seen.entry("failed".to_owned()).or_default() += 1,
        }
    }
    json!(seen)
}

/// Requests without a pause, on connections that stay and on new ones.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Vec<String>>>,
}

impl Load {
    pub(crate) fn start(at: SocketAddr) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thread = |keeps: bool| {
            let (stop, done) = (stop.clone(), done.clone());
            std::thread::spawn(move || ask_on(at, keeps, &stop, &done))
        };
        let threads = [true, true, false].map(thread).into();
        Self { stop, done, threads }
    }

    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::SeqCst)
    }

    /// Ends when so many more were answered.
    pub(crate) fn wait_for(&self, more: u64) {
        let so_far = self.done();
        eventually("more requests", || self.done() >= so_far + more);
    }

    /// How many there were; none of them failed.
    pub(crate) fn end(self) -> u64 {
        self.stop.store(true, Ordering::SeqCst);
        let failures: Vec<String> =
            self.threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        let done = self.done.load(Ordering::SeqCst);
        assert_eq!(failures, [""; 0], "of {done}");
        done
    }
}

fn ask_on(at: SocketAddr, keeps: bool, stop: &AtomicBool, done: &AtomicU64) -> Vec<String> {
    let (mut failures, mut kept) = (Vec::new(), None);
    while !stop.load(Ordering::SeqCst) {
        let answer = match kept.take() {
            Some(open) => Ok(open),
            None => Connection::open(at),
        };
        let answer = answer.and_then(|mut open| Ok((open.send("GET", "backend", "/", &[])?, open)));
        match answer {
            Ok((answer, open)) if answer.status() == 200 => {
                // Envoy says so when a connection is not to be used again.
                kept = (keeps && answer.header("connection") != Some("close")).then_some(open);
            }
            Ok((answer, _)) => failures.push(answer.first),
            Err(error) => failures.push(error.to_string()),
        }
        done.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(1));
    }
    failures
}
