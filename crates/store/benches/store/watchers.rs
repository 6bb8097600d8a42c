//! A thousand watchers on the wire: each on a connection of its own, HTTP/2 over TLS. How long from a write until
//! the last of them has read the change, and what it costs the server. The clients share the machine with it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::client::Access;
use super::percentile;
use super::server::{Running, own_processor};

const WATCHERS: usize = 1_000;
const SECONDS: u64 = 5;
/// Writes per second, one row each.
const RATES: [u64; 3] = [100, 300, 1_000];
/// Writers, so many that a slow answer does not hold up the clock.
const WRITERS: u64 = 128;
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
/// What node proxies ask for: without the Services that others serve.
const SELECTOR: &str = "&labelSelector=%21service.kubernetes.io%2Fheadless";

/// When each event was written, and who has it.
struct Events {
    written: Vec<Mutex<Option<Instant>>>,
    deliveries: Vec<AtomicU32>,
    delays: Mutex<Vec<Duration>>,
    over: AtomicBool,
}

impl Events {
    fn new(count: usize) -> Arc<Events> {
        Arc::new(Events {
            written: (0..count).map(|_| Mutex::new(None)).collect(),
            deliveries: (0..count).map(|_| AtomicU32::new(0)).collect(),
            delays: Mutex::new(Vec::new()),
            over: AtomicBool::new(false),
        })
    }

    fn delays(&self) -> std::sync::MutexGuard<'_, Vec<Duration>> {
        self.delays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Each watcher sees every change once and in order, so its nth line is the nth change.
    fn deliver(&self, event: usize) {
        let Some(deliveries) = self.deliveries.get(event) else { return };
        if deliveries.fetch_add(1, Ordering::Relaxed) + 1 < WATCHERS as u32 {
            return;
        }
        let written = *self.written[event].lock().unwrap_or_else(PoisonError::into_inner);
        self.delays().push(written.map_or(Duration::ZERO, |written| written.elapsed()));
    }
}

pub async fn run() {
    println!(
        "\n{WATCHERS} watchers of EndpointSlices (630 bytes), TLS, a connection each; {SECONDS} s for each rate"
    );
    println!(
        "selector | events/s | delivered | to the last: p50 ms | p99 ms | max ms | took | µs per delivery: server, clients"
    );
    println!(
        "---------+----------+-----------+---------------------+--------+--------+------+---------------------------------"
    );
    for selector in ["", SELECTOR] {
        for rate in RATES {
            row(rate, selector).await;
        }
    }
}

async fn row(rate: u64, selector: &str) {
    let api = Running::api();
    let events = Events::new((rate * SECONDS) as usize);
    let mut first = api.access.connect().await;
    for number in 0..200 {
        first.done("POST", SLICES, slice(number, 0)).await;
    }
    let list: Value = serde_json::from_slice(&first.done("GET", SLICES, Bytes::new()).await).expect("a list");
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    let path = format!("{SLICES}?watch=true&resourceVersion={version}{selector}");
    for _ in 0..WATCHERS {
        let mut connection = api.access.connect().await;
        let response = connection.send("GET", &path, Bytes::new()).await;
        assert!(response.status().is_success());
        tokio::spawn(watch(response.into_body(), events.clone(), connection));
    }
    let (before, start) = ([api.processor(), own_processor()], Instant::now());
    write_all(&api, rate, &events).await;
    while events.delays().len() < events.written.len() && start.elapsed() < Duration::from_secs(SECONDS * 6) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (seconds, after) = (start.elapsed().as_secs_f64(), [api.processor(), own_processor()]);
    events.over.store(true, Ordering::SeqCst);
    let deliveries =
        events.deliveries.iter().map(|count| u64::from(count.load(Ordering::Relaxed))).sum::<u64>();
    let cost =
        |side: usize| after[side].saturating_sub(before[side]).as_secs_f64() * 1e6 / deliveries.max(1) as f64;
    let mut delays = events.delays();
    let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| percentile(&mut delays, share));
    println!(
        "{:<8} | {rate:>8} | {:>9} | {p50:>19.1} | {p99:>6.1} | {max:>6.1} | {seconds:>4.1} | {:.2}, {:.2}",
        if selector.is_empty() { "none" } else { "labels" },
        format!("{:.0}%", 100.0 * delays.len() as f64 / events.written.len() as f64),
        cost(0),
        cost(1),
    );
}

async fn watch(mut body: Incoming, events: Arc<Events>, _connection: super::client::Connection) {
    let mut seen = 0;
    while let Some(Ok(frame)) = body.frame().await {
        let lines = frame.data_ref().map_or(0, |data| lines(data));
        (seen..seen + lines).for_each(|event| events.deliver(event));
        seen += lines;
        if events.over.load(Ordering::SeqCst) {
            return;
        }
    }
}

/// Many bytes at a time: what the clients cost, the server does not get.
fn lines(data: &[u8]) -> usize {
    let count = |part: &[u8]| part.iter().map(|byte| u8::from(*byte == b'\n')).sum::<u8>();
    data.chunks(255).map(|part| usize::from(count(part))).sum()
}

/// One object for each writer at a time; the order among writers is the server's, and any event may be any write.
/// On threads of their own: those of the watchers are busy.
async fn write_all(api: &Running, rate: u64, events: &Arc<Events>) {
    let (access, events) = (api.access.clone(), events.clone());
    let writing = std::thread::spawn(move || super::on_runtime(write_evenly(&access, rate, &events)));
    tokio::task::spawn_blocking(move || writing.join())
        .await
        .expect("it only waits")
        .expect("writers do not fail");
}

async fn write_evenly(access: &Access, rate: u64, events: &Arc<Events>) {
    let start = Instant::now();
    let mut tasks = Vec::new();
    for writer in 0..WRITERS {
        let mut connection = access.connect().await;
        let events = events.clone();
        tasks.push(tokio::spawn(async move {
            for number in (writer..events.written.len() as u64).step_by(WRITERS as usize) {
                let due = start + Duration::from_micros(number * 1_000_000 / rate);
                tokio::time::sleep_until(due.into()).await;
                *events.written[number as usize].lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(Instant::now());
                let object = number % 200;
                let path = format!("{SLICES}/{}", name(object));
                connection.done("PUT", &path, slice(object, number + 1)).await;
            }
        }));
    }
    for task in tasks {
        task.await.expect("writers do not fail");
    }
}

fn name(number: u64) -> String {
    format!("web-{number}")
}

fn slice(number: u64, version: u64) -> Bytes {
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": name(number), "namespace": "default",
            "labels": {"kubernetes.io/service-name": "web"},
            "annotations": {"zoneward.dev/bench-version": version.to_string()}},
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": [format!("10.0.0.{}", version % 256)], "conditions": {"ready": true},
            "nodeName": "node-1", "zone": "zone-a"}],
    });
    Bytes::from(slice.to_string())
}
