//! What the dashboard costs in a cluster of 10,000 Services: server time of each page, its size, and 50 viewers at rest,
//! with the embedded API, the controller and the viewers in one process; and the memory of the fullest traffic ledger, in a
//! process of its own. `cargo xtask bench dashboard`.

#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, reason = "a bench that cannot go on ends here")]
#![allow(dead_code, reason = "the worlds of other benches are used in part")]

mod full_ledger;
#[path = "../controllers/load.rs"]
mod load;
#[path = "../controllers/process.rs"]
mod process;

use std::io::Write;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cluster::Connection;
use cluster::admin_server::access::AdminAccessArgs;
use controller::{ControllerConfig, ControllerMetrics};
use insight::ledger::{TrafficLedger, TrafficOwner, TrafficReport, TrafficRow, ZonePairTraffic};
use insight::status_board::{LedgerView, StatusBoard};
use plan::work_queue::MonotonicTime;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use zoneward::commands::status::server::{StatusListener, StatusListenerArgs};

const SERVICES: usize = 10_000;
const VIEWERS: usize = 50;
/// Services with traffic: as many as the ledger has rows for.
const BUSY: usize = 200;
const MINUTES: u64 = 24 * 60;
/// How often each page is asked for, when no report is kept.
const TIMES: usize = 10;
const REST: Duration = Duration::from_secs(60);
const GOAL: Duration = Duration::from_millis(150);
const GOAL_BYTES: usize = 60_000;
const GOAL_MEMORY: i64 = 20;
const GOAL_CPU: f64 = 2.0;
const PAGES: &[&str] = &[
    "/",
    "/services",
    "/services?sort=name&page=20",
    "/services?q=service-77",
    "/services/default/service-7",
    "/nodes",
    "/routes",
    "/what-if?service=default%2Fservice-7&mechanism=Spill&zone=zone-1",
    "/api/status?window=3600",
];

fn main() {
    if std::env::args().any(|word| word == full_ledger::WORD) {
        return full_ledger::measure();
    }
    let program = std::env::current_exe().unwrap();
    assert!(Command::new(program).arg(full_ledger::WORD).status().unwrap().success());
    let given = std::env::var("ZONEWARD_BENCH_SERVICES").ok().and_then(|text| text.parse().ok());
    tokio::runtime::Runtime::new().unwrap().block_on(measure(given.unwrap_or(SERVICES)));
}

async fn measure(services: usize) {
    let clock = clock::Clock::system();
    let client = cluster::in_process(load::store().await.local(), &clock);
    let start = Instant::now();
    load::fill(&client, services).await;
    println!("{services} Services: written in {:.1} s", start.elapsed().as_secs_f64());
    let config = ControllerConfig {
        traffic: traffic(services),
        ..ControllerConfig::new(plan::PlanningConfig::without_flags())
    };
    let board = config.status.clone();
    let args =
        StatusListenerArgs { status_bind_address: Some("127.0.0.1:0".parse().unwrap()), allow_apply: false };
    let listener = StatusListener::bind(&args).await.unwrap();
    let address = listener.address();
    let (_stop, stopped) = watch::channel(false);
    let (_leading, leads) = watch::channel(true);
    let access = AdminAccessArgs::default();
    let connection = Connection::default();
    listener.serve(&config, &access, client.clone(), connection, stopped.clone()).await.unwrap();
    tokio::spawn(controller::run(client, config, ControllerMetrics::default(), leads, stopped));
    until_evaluated(&board).await;
    println!("  evaluated after {:.1} s, {} MB", start.elapsed().as_secs_f64(), process::memory());
    report(&board).await;
    pages(address).await;
    viewers(address).await;
}

/// A day of traffic of the first Services.
fn traffic(services: usize) -> LedgerView {
    let mut ledger = TrafficLedger::new("2026-11-17T00:00:00Z", MonotonicTime(Duration::ZERO));
    let pair = |from: usize, to: usize, minute: u64| ZonePairTraffic {
        from_zone: format!("zone-{from}"),
        to_zone: format!("zone-{to}"),
        connections: minute,
        bytes: minute * 1_000_000,
    };
    let pairs = |minute| (0..9).map(|at| pair(at / 3, at % 3, minute)).collect::<Vec<_>>();
    for (node, minute) in (1..=MINUTES).flat_map(|minute| [(0, minute), (1, minute)]) {
        // Reports are bounded, so each of two nodes has a part.
        let row = |number: usize| TrafficRow {
            owner: TrafficOwner::Service {
                namespace: "default".to_owned(),
                name: load::service_name(number),
            },
            zone_pairs: pairs(minute),
        };
        let report = TrafficReport {
            reporter: format!("node/{node}"),
            start: "one".to_owned(),
            sequence: minute,
            counted_seconds: minute * 60,
            rows: (0..BUSY.min(services)).filter(|number| number % 2 == node).map(row).collect(),
            ..TrafficReport::default()
        };
        ledger.record(&report, MonotonicTime(Duration::from_secs(minute * 60))).unwrap();
    }
    let ledger = Arc::new(Mutex::new(ledger));
    let history = ledger.clone();
    let now = MonotonicTime(Duration::from_secs(MINUTES * 60));
    LedgerView::new(move |window| Some(ledger.lock().unwrap().sums(window, now)), |_, _| Some(0.02))
        .with_history(move |owner| history.lock().unwrap().history(owner))
}

async fn until_evaluated(board: &StatusBoard) {
    loop {
        if let Ok(report) = board.ask(insight::status_board::StatusQuery::default()).await {
            let missing = report.services.iter().filter(|service| service.mechanism.is_empty()).count();
            if missing == 0 && !report.services.is_empty() {
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The time of the controller's loop for one report.
async fn report(board: &StatusBoard) {
    let mut times = Vec::new();
    for _ in 0..TIMES {
        let start = Instant::now();
        board.ask(insight::status_board::StatusQuery::default()).await.unwrap();
        times.push(start.elapsed());
    }
    times.sort();
    println!(
        "  report at the controller: median {:.1} ms, worst {:.1} ms",
        times[TIMES / 2].as_secs_f64() * 1e3,
        times[TIMES - 1].as_secs_f64() * 1e3
    );
}

async fn pages(address: SocketAddr) {
    for path in PAGES {
        let (mut times, mut body) = (Vec::new(), Vec::new());
        for _ in 0..TIMES {
            // A report is kept for a second.
            tokio::time::sleep(Duration::from_millis(1_100)).await;
            let start = Instant::now();
            body = get(address, path).await;
            times.push(start.elapsed());
        }
        times.sort();
        let size = gzipped(&body);
        println!(
            "  {path}: median {:.1} ms, worst {:.1} ms, {} bytes, {size} gzipped{}",
            times[TIMES / 2].as_secs_f64() * 1e3,
            times[TIMES - 1].as_secs_f64() * 1e3,
            body.len(),
            // The report itself is no page.
            missed(!path.starts_with("/api/") && (times[TIMES / 2] > GOAL || size > GOAL_BYTES))
        );
    }
    println!("  goals: {} ms, {GOAL_BYTES} bytes gzipped", GOAL.as_millis());
}

fn missed(is_missed: bool) -> &'static str {
    if is_missed { " (goal missed)" } else { "" }
}

async fn get(address: SocketAddr, path: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{path}: {}", String::from_utf8_lossy(&answer[..200]));
    let head = answer.windows(4).position(|part| part == b"\r\n\r\n").unwrap();
    answer.split_off(head + 4)
}

fn gzipped(bytes: &[u8]) -> usize {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap().len()
}

/// What viewers cost while nothing changes, above what the process needs without them.
async fn viewers(address: SocketAddr) {
    let used = async |time: Duration| {
        let before = process::cpu();
        tokio::time::sleep(time).await;
        (process::cpu() - before).as_secs_f64() / time.as_secs_f64() * 100.0
    };
    // Evaluation goes on for a minute after a request.
    tokio::time::sleep(Duration::from_secs(65)).await;
    let (idle, before) = (used(REST).await, process::memory());
    for number in 0..VIEWERS {
        let page = PAGES[number % PAGES.len()].replace('?', "%3F").replace('&', "%26").replace('=', "%3D");
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET /events?page={page} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        tokio::spawn(async move {
            let mut part = [0; 16_384];
            while stream.read(&mut part).await.is_ok_and(|read| read > 0) {}
        });
    }
    tokio::time::sleep(Duration::from_secs(15)).await;
    let cpu = used(REST).await - idle;
    let memory = process::memory().cast_signed() - before.cast_signed();
    println!(
        "  {VIEWERS} viewers at rest: {cpu:.2} % of a core, {memory} MB{} (goals {GOAL_CPU} %, {GOAL_MEMORY} MB; without \
         viewers {idle:.2} %)",
        missed(cpu > GOAL_CPU || memory > GOAL_MEMORY)
    );
}
