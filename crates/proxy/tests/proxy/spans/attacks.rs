//! Attacks by clients and by collectors: requests get their answers, memory is bounded, what is lost is counted.

use std::time::Duration;

use proxy::SpanExporterOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

#[tokio::test]
async fn a_malformed_context_starts_a_new_trace() {
    let collector = Collector::start().await;
    let running = with_rules(rules(), traced(collector.options())).await;
    let long = "0".repeat(60_000);
    let malformed = [
        "",
        "00",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00F067AA0BA902B7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\u{e9}",
        &long,
    ];
    for text in malformed {
        let headers = [("traceparent", text), ("tracestate", "a=1")];
        assert_eq!(running.get("/v1", &headers).await.status, 200, "{text}");
    }
    let twice = [("traceparent", &*traceparent("01")), ("traceparent", &*traceparent("01"))];
    assert_eq!(running.get("/v1", &twice).await.status, 200);
    let spans = collector.spans(2 * malformed.len() + 2).await;
    for span in spans.iter().filter(|span| span.kind == 2) {
        assert!(span.parent().is_empty() && span.trace() != TRACE && span.trace_state.is_empty(), "{span:?}");
    }
    for seen in running.echo("backend").seen() {
        assert_eq!(seen.headers.get_all("traceparent").iter().count(), 1);
        assert!(header(&seen, "traceparent").is_some_and(|text| text.len() == 55 && text.starts_with("00-")));
        assert_eq!(header(&seen, "tracestate"), None);
    }
}

#[tokio::test]
async fn a_huge_tracestate_is_cut_and_a_malformed_one_removed() {
    let collector = Collector::start().await;
    let running = with_rules(rules(), traced(collector.options())).await;
    let huge = (0..32).map(|i| format!("k{i}={}", "v".repeat(250))).collect::<Vec<_>>().join(",");
    let parent = traceparent("01");
    for state in [&*huge, &"a=1,".repeat(10_000), &"x".repeat(50_000), "\u{e9}=1"] {
        let headers = [("traceparent", &*parent), ("tracestate", state)];
        assert_eq!(running.get("/v1", &headers).await.status, 200);
    }
    let spans = collector.spans(8).await;
    // The trace goes on without it.
    assert!(spans.iter().all(|span| span.trace() == TRACE && span.trace_state.len() <= 512));
    for seen in running.echo("backend").seen() {
        assert!(header(&seen, "tracestate").is_none_or(|state| state.len() <= 512));
    }
}

#[tokio::test]
async fn long_values_are_cut() {
    let collector = Collector::start().await;
    let running = with_rules(rules(), traced(collector.options())).await;
    let (path, agent) = (format!("/v1/{}", "p".repeat(20_000)), "\u{e9}".repeat(10_000));
    let path = format!("{path}?{}", "q".repeat(20_000));
    assert_eq!(running.get(&path, &[("user-agent", &agent)]).await.status, 200);
    for span in collector.spans(2).await {
        for (name, value) in texts(&span.attributes) {
            assert!(value.len() <= 1_024, "{name} has {} bytes", value.len());
        }
    }
}

#[tokio::test]
async fn a_dead_collector_costs_no_request_and_delays_exit_by_seconds_only() {
    let dead = toolbox::ports::free_port();
    let options = SpanExporterOptions::new(format!("http://{dead}/v1/traces").parse().expect("a URL"));
    let options = SpanExporterOptions { max_queue: 16, max_delay: Duration::from_millis(10), ..options };
    let mut running = with_rules(rules(), traced(options)).await;
    for _ in 0..100 {
        assert_eq!(running.get("/v1", &[]).await.status, 200);
    }
    // One batch waits for its retry, 16 spans in the queue.
    assert!(count(&running, "dropped") >= 100, "{}", count(&running, "dropped"));
    running.stop();
    tokio::time::timeout(PATIENCE, running.proxy.drain(Duration::from_secs(1))).await.expect("it ends");
    assert_eq!(count(&running, "exported"), 0);
}

#[tokio::test]
async fn a_collector_that_never_responds_costs_no_request() {
    let collector = Collector::responding(|_| None).await;
    let options = SpanExporterOptions {
        max_queue: 64,
        first_backoff: Duration::from_millis(20),
        timeout: Duration::from_millis(200),
        ..collector.options()
    };
    let running = with_rules(rules(), traced(options)).await;
    let mut clients = tokio::task::JoinSet::new();
    let running = Arc::new(running);
    for _ in 0..8 {
        let running = running.clone();
        clients.spawn(async move {
            for _ in 0..100 {
                assert_eq!(running.get("/v1", &[]).await.status, 200);
            }
        });
    }
    while let Some(client) = clients.join_next().await {
        client.expect("every request gets its answer");
    }
    // 1,600 spans; at most a batch of 512 and the queue of 64 are in memory.
    let (dropped, failed) = (count(&running, "dropped"), count(&running, "failed"));
    assert!(dropped > 0 && dropped + failed >= 1_600 - 512 - 64, "{dropped} dropped, {failed} failed");
    // The batch is given up after its retries.
    wait_for(&running, "failed", 1).await;
    assert_eq!((collector.requests() >= 5, count(&running, "exported")), (true, 0));
}

#[tokio::test]
async fn a_busy_collector_gets_each_span_once() {
    let collector = Collector::responding(|n| Some((if n == 0 { 503 } else { 200 }, Vec::new()))).await;
    let running = with_rules(rules(), traced(collector.options())).await;
    running.get("/v1", &[]).await;
    let spans = collector.spans(2).await;
    wait_for(&running, "exported", 2).await;
    assert_eq!((spans.len(), collector.requests(), count(&running, "failed")), (2, 2, 0));
}

#[tokio::test]
async fn a_refusal_is_not_retried() {
    let collector = Collector::responding(|_| Some((400, b"no".to_vec()))).await;
    let running = with_rules(rules(), traced(collector.options())).await;
    running.get("/v1", &[]).await;
    wait_for(&running, "failed", 2).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(collector.requests() <= 2, "one for each batch");
}

#[tokio::test]
async fn rejected_spans_are_counted() {
    // partial_success { rejected_spans: 1, error_message: "quota" }
    let collector = Collector::responding(|_| Some((200, b"\x0a\x09\x08\x01\x12\x05quota".to_vec()))).await;
    let options = SpanExporterOptions { max_delay: Duration::from_millis(500), ..collector.options() };
    let running = with_rules(rules(), traced(options)).await;
    running.get("/v1", &[]).await;
    wait_for(&running, "failed", 1).await;
    assert_eq!((count(&running, "exported"), count(&running, "failed")), (1, 1));
}

/// Responds to each connection with these bytes, again and again where `is_endless`.
async fn responds_with(head: &'static str, is_endless: bool) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has ports");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut read = vec![0; 64 << 10];
                let _ = stream.read(&mut read).await;
                let _ = stream.write_all(head.as_bytes()).await;
                while is_endless && stream.write_all(&read).await.is_ok() {}
            });
        }
    });
    address
}

#[tokio::test]
async fn endless_and_malformed_responses_end() {
    for (head, is_endless, result) in [
        ("HTTP/1.1 200 OK\r\n\r\n", true, "exported"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n\x0a\x7f\x08\x7f", false, "exported"),
        ("HTTP/1.1 307 Moved\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n", false, "failed"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", false, "exported"),
    ] {
        let address = responds_with(head, is_endless).await;
        let options = SpanExporterOptions::new(format!("http://{address}/").parse().expect("a URL"));
        let options = SpanExporterOptions { max_delay: Duration::from_millis(10), ..options };
        let running = with_rules(rules(), traced(options)).await;
        for sent in 1..=3 {
            assert_eq!(running.get("/v1", &[]).await.status, 200);
            wait_for(&running, result, 2 * sent).await;
        }
    }
}
