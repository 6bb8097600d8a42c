//! The limit on buffered body bytes: peers that read nothing are closed and block no other request.

use std::time::{Duration, Instant};

use http::Request;
use http_body_util::BodyExt;
use proxy::{ListenerKind, ProxyLimits, ProxyOptions, ProxyTimeouts};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::harness::*;
use super::http2_frames::{
    DATA, END_HEADERS, END_STREAM, HEADERS, PING, PREFACE, SETTINGS, block, frame, get, read_frame,
};

fn impatient() -> ProxyOptions {
    let timeouts = ProxyTimeouts { idle: Duration::from_millis(400), ..ProxyTimeouts::default() };
    ProxyOptions { timeouts, ..ProxyOptions::default() }
}

async fn to(name: &str, settings: ProxyOptions) -> Running {
    let routes = sidecar(&[], &[name], "frontend");
    Running::start(routes, ListenerKind::Outbound { service: key(name), port: 80 }, settings).await
}

fn metric(running: &Running, name: &str) -> u64 {
    let text = running.metrics();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("zoneward_proxy_{name} ")));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name}: {text}"))
}

/// A client of HTTP/2 that opens no window for answers.
async fn closed_window(running: &Running) -> TcpStream {
    let mut stream = running.connect().await;
    let mut bytes = PREFACE.to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]));
    stream.write_all(&bytes).await.expect("sent");
    stream
}

/// Whether the connection ends, while the client shows life by PING and takes what frames it gets.
async fn is_left(mut stream: TcpStream) -> bool {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(5) {
        if stream.write_all(&frame(PING, 0, 0, &[1; 8])).await.is_err() {
            return true;
        }
        let pause = tokio::time::sleep(Duration::from_millis(30));
        tokio::pin!(pause);
        loop {
            tokio::select! {
                read = read_frame(&mut stream) => match read {
                    None => return true,
                    Some((kind, ..)) => assert_ne!(kind, DATA, "the window is closed"),
                },
                () = &mut pause => break,
            }
        }
    }
    false
}

#[tokio::test]
async fn a_client_that_never_opens_its_window_is_left_and_others_are_served_meanwhile() {
    let running = to("backend", impatient()).await;
    let mut stream = closed_window(&running).await;
    stream.write_all(&get(1)).await.expect("sent");
    let others = async {
        for _ in 0..20 {
            assert_eq!(running.get("/", &[]).await.status, 200);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let (left, ()) = tokio::join!(is_left(stream), others);
    assert!(left, "the stream is still held");
    assert_eq!(metric(&running, "stalled_connections_total"), 1);
    assert_eq!(metric(&running, "held_body_bytes"), 0);
}

#[tokio::test]
async fn a_stalled_stream_is_noticed_among_those_that_move() {
    let running = to("backend", impatient()).await;
    let mut stream = closed_window(&running).await;
    // A long answer for the first, which stays; the others' have no body, and come and go.
    let head =
        [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "a"), ("x-body-back", "1")];
    let mut bytes = frame(HEADERS, END_HEADERS, 1, &block(&head));
    bytes.extend(frame(DATA, END_STREAM, 1, &[b'x'; 16_000]));
    stream.write_all(&bytes).await.expect("sent");
    let (mut read, mut write) = stream.into_split();
    let reader = tokio::spawn(async move {
        let mut buffer = [0; 4096];
        while let Ok(1..) = tokio::io::AsyncReadExt::read(&mut read, &mut buffer).await {}
    });
    let began = Instant::now();
    let head = [(":method", "HEAD"), (":scheme", "http"), (":path", "/"), (":authority", "a")];
    for at in 1.. {
        let next = frame(HEADERS, END_STREAM | END_HEADERS, at * 2 + 1, &block(&head));
        if write.write_all(&next).await.is_err() || reader.is_finished() {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(5), "the stream is still held");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(metric(&running, "stalled_connections_total"), 1);
}

#[tokio::test]
async fn a_client_that_takes_its_answer_slowly_is_not_left() {
    let running = to("backend", impatient()).await;
    let mut stream = closed_window(&running).await;
    stream.write_all(&get(1)).await.expect("sent");
    let mut taken = 0;
    let began = Instant::now();
    loop {
        // A byte of window ten times as often as it has to be.
        let window = frame(8, 0, 1, &[0, 0, 0, 1]);
        stream.write_all(&window).await.expect("sent");
        let read = tokio::time::timeout(Duration::from_millis(10), read_frame(&mut stream)).await;
        match read {
            Ok(Some((DATA, flags, _, payload))) => {
                taken += payload.len();
                if flags & END_STREAM != 0 {
                    break;
                }
            }
            Ok(None) => panic!("left after {taken} bytes and {:?}", began.elapsed()),
            _ => {}
        }
    }
    assert!(taken > 50, "{taken}");
}

#[tokio::test]
async fn answers_that_nobody_takes_do_not_hold_up_others_by_the_same_connection_to_an_endpoint() {
    let running = to("h2-backend", ProxyOptions::default()).await;
    let sender = http2(running.address).await;
    let mut untaken = Vec::new();
    for _ in 0..16 {
        let mut sender = sender.clone();
        let body = full(vec![b'x'; 4_000_000]);
        let request = Request::post("http://a/").header("x-body-back", "1").body(body).expect("a request");
        untaken.push(tokio::spawn(async move { sender.send_request(request).await }));
    }
    let mut held = Vec::new();
    for response in untaken {
        held.push(response.await.expect("asked").expect("an answer"));
    }
    for _ in 0..5 {
        let answer = running.send("POST", "/", &[("x-body-back", "1")], &[b'y'; 200_000]).await;
        assert_eq!((answer.status, answer.body.len()), (200, 200_000));
    }
    // At once: what a client of HTTP/2 leaves lying holds up its own others.
    let bodies = held.into_iter().map(|response| response.into_body().collect());
    for body in futures_util::future::join_all(bodies).await {
        assert_eq!(body.expect("a body").to_bytes().len(), 4_000_000);
    }
    assert_eq!(metric(&running, "held_body_bytes"), 0);
}

#[tokio::test]
async fn long_bodies_pass_through_a_small_bound() {
    let limits = ProxyLimits { held_body_bytes: 300_000, ..ProxyLimits::default() };
    let running = to("backend", ProxyOptions { limits, ..ProxyOptions::default() }).await;
    let body = vec![b'x'; 3_000_000];
    let sends = (0..2).map(|_| running.send("POST", "/", &[("x-body-back", "1")], &body));
    for answer in futures_util::future::join_all(sends).await {
        assert!(matches!(answer.status, 200 | 503), "{}", answer.status);
        assert!(answer.status == 503 || answer.body.len() == body.len());
    }
    assert_eq!(metric(&running, "held_body_bytes"), 0);
}
