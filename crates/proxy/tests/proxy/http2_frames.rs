//! Invalid HTTP/2 frames, in the manner of h2spec: each ends its stream or connection with the right error, within
//! the limits, and affects no other connection.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::harness::*;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// A header block without compression: literals, never indexed.
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in fields {
        bytes.push(0x10);
        for text in [name, value] {
            length(text.len(), &mut bytes);
            bytes.extend_from_slice(text.as_bytes());
        }
    }
    bytes
}

fn length(mut value: usize, bytes: &mut Vec<u8>) {
    if value < 127 {
        bytes.push(value as u8);
        return;
    }
    bytes.push(127);
    value -= 127;
    while value >= 128 {
        bytes.push((value % 128) as u8 | 128);
        value /= 128;
    }
    bytes.push(value as u8);
}

const GET: [(&str, &str); 4] = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a")];

pub fn get(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &block(&GET))
}

/// What the proxy says to a connection.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// The connection is ended, with this error if one is said.
    Connection(Option<u32>),
    /// A stream is ended with this error.
    Stream(u32),
    /// A stream is answered with an error of HTTP.
    Refused,
    /// An answer, as if nothing had been wrong.
    Answered,
    /// Nothing for a while.
    Silence,
}

async fn begin(running: &Running) -> TcpStream {
    let mut stream = running.connect().await;
    let mut bytes = PREFACE.to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    stream.write_all(&bytes).await.expect("sent");
    stream
}

pub async fn read_frame(stream: &mut TcpStream) -> Option<(u8, u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.ok()?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; length as usize];
    stream.read_exact(&mut payload).await.ok()?;
    Some((head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload))
}

async fn outcome(stream: &mut TcpStream) -> Outcome {
    let watch = async {
        loop {
            match read_frame(stream).await {
                None => return Outcome::Connection(None),
                Some((GOAWAY, _, _, payload)) => {
                    let code = u32::from_be_bytes([payload[4], payload[5], payload[6], payload[7]]);
                    return Outcome::Connection(Some(code));
                }
                Some((RST_STREAM, _, _, payload)) => {
                    return Outcome::Stream(u32::from_be_bytes([
                        payload[0], payload[1], payload[2], payload[3],
                    ]));
                }
                // The first byte of the block is the status: an index of HPACK's table for the usual ones.
                Some((HEADERS, _, _, payload)) if payload.first() == Some(&0x88) => return Outcome::Answered,
                Some((HEADERS, ..)) => return Outcome::Refused,
                Some(_) => {}
            }
        }
    };
    tokio::time::timeout(Duration::from_millis(1500), watch).await.unwrap_or(Outcome::Silence)
}

async fn send(running: &Running, bytes: &[u8]) -> Outcome {
    let mut stream = begin(running).await;
    let _ = stream.write_all(bytes).await;
    outcome(&mut stream).await
}

fn joined(frames: &[Vec<u8>]) -> Vec<u8> {
    frames.concat()
}

/// All of these end the connection or the stream; none is answered as if it were good.
async fn refused(cases: Vec<(&str, Vec<u8>)>) {
    let running = plain().await;
    for (name, bytes) in cases {
        let outcome = send(&running, &bytes).await;
        assert!(!matches!(outcome, Outcome::Answered | Outcome::Silence), "{name}: {outcome:?}");
        assert_eq!(running.get("/", &[]).await.status, 200, "after {name}");
    }
}

#[tokio::test]
async fn a_good_request_is_answered() {
    let running = plain().await;
    assert_eq!(send(&running, &get(1)).await, Outcome::Answered);
    let padded =
        frame(HEADERS, END_STREAM | END_HEADERS | PADDED, 1, &[&[2], &block(&GET)[..], &[0, 0]].concat());
    assert_eq!(send(&running, &padded).await, Outcome::Answered);
    let parts = joined(&[
        frame(HEADERS, END_STREAM, 1, &block(&GET[..2])),
        frame(CONTINUATION, END_HEADERS, 1, &block(&GET[2..])),
    ]);
    assert_eq!(send(&running, &parts).await, Outcome::Answered);
    // Unknown frames and settings are passed over (RFC 9113, 5.5 and 6.5.2).
    let unknown =
        joined(&[frame(0xee, 0xff, 0, b"x"), frame(SETTINGS, 0, 0, &[0xff, 1, 0, 0, 0, 1]), get(1)]);
    assert_eq!(send(&running, &unknown).await, Outcome::Answered);
}

#[tokio::test]
async fn a_bad_preface_is_no_http2() {
    let running = plain().await;
    for bytes in [&b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n"[..], b"PRI / HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut stream = running.connect().await;
        stream.write_all(bytes).await.expect("sent");
        let mut all = Vec::new();
        let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut all)).await.expect("closed");
        let text = String::from_utf8_lossy(&all).into_owned();
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
    }
    // Something else than SETTINGS behind it.
    let mut stream = running.connect().await;
    stream.write_all(&joined(&[PREFACE.to_vec(), get(1)])).await.expect("sent");
    assert!(matches!(outcome(&mut stream).await, Outcome::Connection(_)));
}

#[tokio::test]
async fn frames_of_wrong_size_are_refused() {
    refused(vec![
        ("a frame longer than allowed", frame(DATA, 0, 1, &[0; 20_000])),
        ("headers longer than a frame", frame(HEADERS, END_HEADERS, 1, &[0; 20_000])),
        ("PING of 7 bytes", frame(PING, 0, 0, &[0; 7])),
        ("SETTINGS of 5 bytes", frame(SETTINGS, 0, 0, &[0; 5])),
        ("SETTINGS acknowledged with a payload", frame(SETTINGS, ACK, 0, &[0; 6])),
        ("WINDOW_UPDATE of 3 bytes", frame(WINDOW_UPDATE, 0, 0, &[0; 3])),
        ("RST_STREAM of 3 bytes", joined(&[get(1), frame(RST_STREAM, 0, 1, &[0; 3])])),
        ("PRIORITY of 4 bytes", frame(PRIORITY, 0, 1, &[0; 4])),
        ("GOAWAY of 4 bytes", frame(GOAWAY, 0, 0, &[0; 4])),
        ("padding longer than the frame", frame(HEADERS, END_HEADERS | PADDED, 1, &[200, 0x82])),
        (
            "DATA padded beyond its end",
            joined(&[
                frame(
                    HEADERS,
                    END_HEADERS,
                    1,
                    &block(&[("x", "y"); 0].iter().chain(&GET).copied().collect::<Vec<_>>()),
                ),
                frame(DATA, PADDED, 1, &[9, 1]),
            ]),
        ),
    ])
    .await;
}

#[tokio::test]
async fn wrong_streams_are_refused() {
    let post = [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "a")];
    refused(vec![
        ("HEADERS on stream 0", frame(HEADERS, END_HEADERS, 0, &block(&GET))),
        ("HEADERS on an even stream", get(2)),
        ("DATA on stream 0", frame(DATA, 0, 0, b"x")),
        ("DATA on an idle stream", frame(DATA, 0, 5, b"x")),
        ("RST_STREAM on stream 0", frame(RST_STREAM, 0, 0, &[0; 4])),
        ("RST_STREAM on an idle stream", frame(RST_STREAM, 0, 7, &[0; 4])),
        ("WINDOW_UPDATE on an idle stream", frame(WINDOW_UPDATE, 0, 7, &[0, 0, 0, 1])),
        ("SETTINGS on a stream", frame(SETTINGS, 0, 1, &[])),
        ("PING on a stream", frame(PING, 0, 1, &[0; 8])),
        ("GOAWAY on a stream", frame(GOAWAY, 0, 1, &[0; 8])),
        ("CONTINUATION without HEADERS", frame(CONTINUATION, END_HEADERS, 1, &block(&GET))),
        (
            "CONTINUATION of another stream",
            joined(&[frame(HEADERS, 0, 1, &block(&GET)), frame(CONTINUATION, END_HEADERS, 3, &[])]),
        ),
        (
            "a frame between HEADERS and CONTINUATION",
            joined(&[frame(HEADERS, 0, 1, &block(&GET)), frame(PING, 0, 0, &[0; 8])]),
        ),
        ("a client's PUSH_PROMISE", frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2])),
        ("a stream number that goes back", joined(&[frame(HEADERS, END_HEADERS, 5, &block(&post)), get(3)])),
    ])
    .await;
}

#[tokio::test]
async fn windows_and_settings_out_of_range_are_refused() {
    refused(vec![
        ("WINDOW_UPDATE of 0", frame(WINDOW_UPDATE, 0, 0, &[0; 4])),
        ("a connection's window over 2^31", frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff])),
        ("ENABLE_PUSH of 2", frame(SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 2])),
        ("INITIAL_WINDOW_SIZE over 2^31", frame(SETTINGS, 0, 0, &[0, 4, 0x80, 0, 0, 0])),
        ("MAX_FRAME_SIZE too small", frame(SETTINGS, 0, 0, &[0, 5, 0, 0, 0, 1])),
        ("MAX_FRAME_SIZE too large", frame(SETTINGS, 0, 0, &[0, 5, 1, 0, 0, 0])),
    ])
    .await;
    // A stream's window: by SETTINGS that make it overflow, and by updates.
    let running = plain().await;
    let post = [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "a")];
    let over = joined(&[
        frame(HEADERS, END_HEADERS, 1, &block(&post)),
        frame(WINDOW_UPDATE, 0, 1, &[0x7f, 0xff, 0xff, 0xff]),
    ]);
    assert!(matches!(send(&running, &over).await, Outcome::Stream(_) | Outcome::Connection(_)));
}

#[tokio::test]
async fn malformed_fields_are_refused() {
    let with = |extra: &[(&'static str, &'static str)]| {
        let fields: Vec<_> = GET.iter().chain(extra).copied().collect();
        frame(HEADERS, END_STREAM | END_HEADERS, 1, &block(&fields))
    };
    let only = |fields: &[(&str, &str)]| frame(HEADERS, END_STREAM | END_HEADERS, 1, &block(fields));
    refused(vec![
        ("capitals in a name", with(&[("X-Up", "1")])),
        ("a connection header", with(&[("connection", "close")])),
        ("transfer-encoding", with(&[("transfer-encoding", "chunked")])),
        ("te other than trailers", with(&[("te", "gzip")])),
        ("an unknown pseudo header", with(&[(":x", "1")])),
        ("a pseudo header behind others", only(&[("x", "1"), GET[0], GET[1], GET[2], GET[3]])),
        ("two paths", with(&[(":path", "/2")])),
        ("two methods", with(&[(":method", "GET")])),
        ("a response's pseudo header", with(&[(":status", "200")])),
        ("no method", only(&GET[1..])),
        ("no scheme", only(&[GET[0], GET[2], GET[3]])),
        ("no path", only(&[GET[0], GET[1], GET[3]])),
        ("an empty path", only(&[GET[0], GET[1], (":path", ""), GET[3]])),
        ("a line break in a value", with(&[("x", "a\r\nb: c")])),
        ("a zero byte in a value", with(&[("x", "a\0b")])),
        ("a space in a name", with(&[("a b", "1")])),
        ("a bad index of HPACK", frame(HEADERS, END_STREAM | END_HEADERS, 1, &[0xff, 0xff, 0xff, 0x7f])),
        ("an endless number of HPACK", frame(HEADERS, END_STREAM | END_HEADERS, 1, &[0xff; 64])),
        ("a cut string of HPACK", frame(HEADERS, END_STREAM | END_HEADERS, 1, &[0x00, 0x7f])),
        (
            "a table size above the limit",
            frame(HEADERS, END_STREAM | END_HEADERS, 1, &[0x3f, 0xff, 0xff, 0x7f]),
        ),
        ("an authority with spaces", only(&[GET[0], GET[1], GET[2], (":authority", "a b")])),
    ])
    .await;
}

#[tokio::test]
async fn a_length_that_is_not_the_bodys_never_makes_a_whole_request() {
    let running = plain().await;
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "a"),
        ("content-length", "5"),
    ];
    for body in [&b"four"[..], b"sixsix"] {
        let bytes =
            joined(&[frame(HEADERS, END_HEADERS, 1, &block(&fields)), frame(DATA, END_STREAM, 1, body)]);
        let outcome = send(&running, &bytes).await;
        assert!(!matches!(outcome, Outcome::Answered), "{outcome:?}");
        assert!(running.echo("backend").seen().is_empty());
    }
}

/// Sends until the proxy has had enough. How many bytes it took.
async fn flood(running: &Running, start: &[u8], mut next: impl FnMut(u32) -> Vec<u8>, most: usize) -> usize {
    let stream = begin(running).await;
    let (mut read, mut write) = stream.into_split();
    let reader = tokio::spawn(async move {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(1..) = read.read(&mut buffer).await {}
    });
    let _ = write.write_all(start).await;
    let (mut sent, mut at) = (0, 0);
    while sent < most {
        let mut batch = Vec::new();
        for _ in 0..64 {
            batch.extend(next(at));
            at += 1;
        }
        match tokio::time::timeout(Duration::from_secs(2), write.write_all(&batch)).await {
            Ok(Ok(())) => sent += batch.len(),
            // Ended, or not read any more: both bound what it costs.
            _ => break,
        }
    }
    reader.abort();
    sent
}

#[tokio::test]
async fn continuations_without_end_are_ended() {
    let running = plain().await;
    let filler = block(&[("x-filler", &"x".repeat(1000))]);
    let start = frame(HEADERS, END_STREAM, 1, &block(&GET));
    let sent = flood(&running, &start, |_| frame(CONTINUATION, 0, 1, &filler), 50_000_000).await;
    assert!(sent < 50_000_000, "{sent} bytes of one header block were taken");
    let empty = flood(&running, &start, |_| frame(CONTINUATION, 0, 1, &[]), 5_000_000).await;
    assert!(empty < 5_000_000, "{empty} bytes of empty CONTINUATION were taken");
    assert_eq!(running.get("/", &[]).await.status, 200);
}

#[tokio::test]
async fn streams_reset_as_soon_as_opened_end_the_connection() {
    let running = plain().await;
    let rapid = |at: u32| joined(&[get(at * 2 + 1), frame(RST_STREAM, 0, at * 2 + 1, &[0, 0, 0, 8])]);
    let sent = flood(&running, &[], rapid, 20_000_000).await;
    assert!(sent < 20_000_000, "{sent} bytes of streams opened and reset were taken");
    assert_eq!(running.get("/", &[]).await.status, 200);
}

#[tokio::test]
async fn floods_of_control_frames_do_not_hold_others_up() {
    let running = plain().await;
    for (name, bytes) in [
        ("SETTINGS", frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100])),
        ("PING", frame(PING, 0, 0, &[1; 8])),
        ("WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])),
        ("PRIORITY", frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 1])),
    ] {
        let began = Instant::now();
        let flooded = flood(&running, &[], |_| bytes.clone(), 300_000);
        let served = async {
            for _ in 0..20 {
                assert_eq!(running.get("/", &[]).await.status, 200, "during {name}");
            }
        };
        let ((), _) = tokio::join!(served, flooded);
        assert!(began.elapsed() < Duration::from_secs(15), "{name}: {:?}", began.elapsed());
    }
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_bounded_in_what_is_held_for_it() {
    // PINGs are answered, and nobody takes the answers: they must not pile up.
    let running = plain().await;
    let mut stream = begin(&running).await;
    let pings: Vec<u8> = (0..1000).flat_map(|_| frame(PING, 0, 0, &[1; 8])).collect();
    let mut sent = 0;
    while sent < 200_000_000 {
        match tokio::time::timeout(Duration::from_millis(500), stream.write_all(&pings)).await {
            Ok(Ok(())) => sent += pings.len(),
            _ => break,
        }
    }
    assert!(sent < 200_000_000, "{sent} bytes were taken without an answer being read");
    assert_eq!(running.get("/", &[]).await.status, 200);
}

#[tokio::test]
async fn more_streams_than_allowed_are_refused_and_the_rest_served() {
    let running = plain().await;
    let mut stream = begin(&running).await;
    // The proxy's SETTINGS say how many; whoever goes on regardless is refused stream by stream.
    let post = [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "a")];
    let open: Vec<u8> =
        (0..400).flat_map(|at| frame(HEADERS, END_HEADERS, at * 2 + 1, &block(&post))).collect();
    let _ = stream.write_all(&open).await;
    let outcome = outcome(&mut stream).await;
    assert!(matches!(outcome, Outcome::Stream(7) | Outcome::Connection(_)), "{outcome:?}");
    assert_eq!(running.get("/", &[]).await.status, 200);
}
