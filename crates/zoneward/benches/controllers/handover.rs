//! How long a change waits while one controller process takes over from another: the program as it is shipped, with
//! the usual times of the Lease, over the embedded API's socket.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cluster::{self, Connection, Informer, InformerEvent, ObjectKind, WatchSpec};
use kube::Client;
use serde_json::{Value, json};

use super::load::{self, pod_name, pod_status, service_name};

const SERVICES: usize = 1_000;
const ROUNDS: usize = 5;

/// A process that ends with the bench.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// SIGTERM or SIGKILL; this process does not wait for the end.
    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.0.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    fn memory(&self) -> u64 {
        super::process::memory_of(self.0.id())
    }
}

/// Another build can be measured the same way.
fn program() -> Command {
    let given = std::env::var_os("ZONEWARD_BENCH_PROGRAM");
    Command::new(given.unwrap_or_else(|| env!("CARGO_BIN_EXE_zoneward").into()))
}

fn up(data: &Path) -> Running {
    let mut command = program();
    command.args(["up", "--no-node", "--no-controllers", "--listen", "127.0.0.1:0", "--data-dir"]).arg(data);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.trim().ends_with("kubeconfig"), "{line}");
    Running(child)
}

fn controller(socket: &Path) -> Running {
    let mut command = program();
    command.args(["controller", "--bind-address", "127.0.0.1:0", "--api-socket"]).arg(socket);
    Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

pub async fn measure() {
    let data: PathBuf =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("handover-{}", std::process::id()));
    let api = up(&data);
    let socket = data.join("api.sock");
    let connection = Connection { api_socket: Some(socket.clone()), ..Connection::default() };
    let client = cluster::connect(&connection, &clock::Clock::system()).await.unwrap();
    load::fill(&client, SERVICES).await;
    let mut seen =
        Informer::start(&client, model::random::Random::seeded(1), [WatchSpec::all(ObjectKind::Slice)]);
    let mut leader = controller(&socket);
    let mut written = 0;
    while written < SERVICES {
        written += usize::from(matches!(seen.next().await, InformerEvent::Applied(..)));
    }
    println!("hand-over between two processes, {SERVICES} Services");
    for signal in ["-TERM", "-KILL"] {
        let mut times = Vec::new();
        for round in 0..ROUNDS {
            let mut next = controller(&socket);
            tokio::time::sleep(Duration::from_secs(3)).await;
            times.push(take_over(&client, &mut seen, &leader, signal, round).await);
            std::mem::swap(&mut leader, &mut next);
        }
        times.sort_unstable();
        let what = if signal == "-TERM" { "stopped" } else { "killed, its Lease runs out after 15 s" };
        println!(
            "  the leader is {what}: a change then waits {:.0} ms (least {:.0}, most {:.0})",
            times[ROUNDS / 2].as_secs_f64() * 1e3,
            times[0].as_secs_f64() * 1e3,
            times[ROUNDS - 1].as_secs_f64() * 1e3
        );
    }
    let next = controller(&socket);
    tokio::time::sleep(Duration::from_secs(3)).await;
    println!(
        "  memory: API {} MB, leader {} MB, standby {} MB",
        api.memory(),
        leader.memory(),
        next.memory()
    );
    drop(api);
    std::fs::remove_dir_all(&data).unwrap();
}

/// From the signal, with a change right after it, until that change is on the watch of slices.
async fn take_over(
    client: &Client,
    seen: &mut Informer,
    leader: &Running,
    signal: &str,
    round: usize,
) -> Duration {
    while seen.ready().is_some() {}
    let service = (round * 37 + usize::from(signal == "-KILL")) % SERVICES;
    let now = load::pod_ready(client, &pod_name(service, 5)).await;
    let status: Value = json!({"status": pod_status(service, 5, !now)});
    let start = Instant::now();
    leader.signal(signal);
    // Whoever is told to stop still writes what came before; a killed one is gone at once.
    tokio::time::sleep(Duration::from_millis(5)).await;
    load::patch_status(client, &pod_name(service, 5), &status).await;
    super::until_slice_of(seen, &service_name(service)).await;
    start.elapsed()
}
