//! The admin server over TCP: responses, formats and shutdown.

use std::sync::atomic::{AtomicBool, Ordering};

use prometheus_client::metrics::counter::Counter;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

struct Served {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
    healthy: Arc<AtomicBool>,
}

async fn served() -> Served {
    let healthy = Arc::new(AtomicBool::new(true));
    let flag = healthy.clone();
    let checks = HealthChecks::default().check("api", || Ok(())).check("leader", move || {
        if flag.load(Ordering::SeqCst) { Ok(()) } else { Err("no leader".to_owned()) }
    });
    let mut registry = Registry::default();
    let syncs: Counter = Counter::default();
    syncs.inc();
    registry.register("syncs", "Runs", syncs);
    let routes = AdminRoutes::default().checks("/readyz", checks).metrics(registry);
    let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0)), "--bind-address").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(serve(listener, routes, stopped));
    Served { address, stop, task, healthy }
}

async fn request(address: SocketAddr, line: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let request = format!("{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    answer
}

#[tokio::test]
async fn health_reports_the_failed_check_and_its_reason() {
    let served = served().await;
    let fine = request(served.address, "GET /readyz", "").await;
    assert!(fine.starts_with("HTTP/1.1 200") && fine.ends_with("\r\n\r\nok"), "{fine}");
    let list = request(served.address, "GET /readyz?verbose", "").await;
    assert!(list.contains("[+]api ok\n[+]leader ok\n"), "{list}");
    served.healthy.store(false, Ordering::SeqCst);
    let bad = request(served.address, "GET /readyz", "").await;
    assert!(bad.starts_with("HTTP/1.1 503") && bad.contains("[-]leader failed: no leader"), "{bad}");
}

#[tokio::test]
async fn metrics_come_in_both_formats() {
    let served = served().await;
    let older = request(served.address, "GET /metrics", "accept: text/plain\r\n").await;
    assert!(older.contains("version=0.0.4") && older.contains("# TYPE syncs_total counter"), "{older}");
    let newer = request(served.address, "GET /metrics", "accept: application/openmetrics-text\r\n").await;
    assert!(newer.contains("application/openmetrics-text; version=1.0.0"), "{newer}");
    assert!(newer.contains("# TYPE syncs counter") && newer.ends_with("# EOF\n"), "{newer}");
}

#[tokio::test]
async fn unknown_paths_get_404_with_the_known_ones_and_other_methods_405() {
    let served = served().await;
    let missing = request(served.address, "GET /other", "").await;
    assert!(missing.starts_with("HTTP/1.1 404") && missing.contains("/metrics, /readyz"), "{missing}");
    let posted = request(served.address, "POST /readyz", "content-length: 0\r\n").await;
    assert!(posted.starts_with("HTTP/1.1 405") && posted.contains("allow: GET, HEAD"), "{posted}");
}

#[tokio::test]
async fn it_stops_with_an_open_connection() {
    let served = served().await;
    let _idle = TcpStream::connect(served.address).await.expect("a connection");
    served.stop.send_replace(true);
    tokio::time::timeout(Duration::from_secs(60), served.task).await.expect("it ends").expect("no panic");
}

/// Silent connections from an address of 127.0.0.0/8, each accepted before the next.
async fn silent(served: &Served, source: u8, count: usize) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    for _ in 0..count {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(SocketAddr::from(([127, 0, 0, source], 0))).expect("an address of loopback");
        streams.push(socket.connect(served.address).await.expect("a connection"));
    }
    streams
}

#[tokio::test]
async fn silent_connections_keep_no_probe_out() {
    let served = served().await;
    // Of one source, of sixteen others, and of the address that the probe comes from.
    for sources in [2..3_u8, 10..26, 1..2] {
        let (mut held, each) = (Vec::new(), 1_600 / sources.len() / 4);
        for source in sources.clone() {
            held.extend(silent(&served, source, each).await);
        }
        for _ in 0..100 {
            let fine = request(served.address, "GET /readyz", "").await;
            assert!(fine.starts_with("HTTP/1.1 200"), "{sources:?}: {fine}");
        }
        let mut open = 0;
        for stream in &mut held {
            let read = tokio::time::timeout(Duration::from_millis(1), stream.read_u8());
            open += usize::from(read.await.is_err());
        }
        assert!(open <= MAX_CONNECTIONS, "{open} are open");
    }
    assert!(EVICTED.load(Ordering::Relaxed) > 0);
}

#[tokio::test]
async fn a_probe_that_keeps_its_connection_is_not_evicted_by_another_source() {
    let served = served().await;
    let mut probe = TcpStream::connect(served.address).await.expect("a connection");
    let _held = silent(&served, 2, 300).await;
    probe
        .write_all(b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .await
        .expect("a request");
    let mut answer = String::new();
    probe.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn a_silent_connection_ends_after_the_header_timeout() {
    let served = served().await;
    let mut stream = TcpStream::connect(served.address).await.expect("a connection");
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(HEADER_TIMEOUT * 6, stream.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "it ends");
}
