//! An endpoint that reads HTTP/1.1 without a library and by the letter of RFC 9112: a proxy has no reason to send what a
//! lenient reader would have to guess. It answers 200 to each request and records what is wrong.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

pub(super) async fn start(violations: Arc<Mutex<Vec<String>>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has ports");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let violations = violations.clone();
            tokio::spawn(async move {
                if let Err(violation) = serve(stream).await {
                    violations.lock().expect("no holder panics").push(violation);
                }
            });
        }
    });
    address
}

/// Reads requests until the proxy closes; what is cut off is no violation, since clients leave.
async fn serve(mut stream: TcpStream) -> Result<(), String> {
    let mut read = Vec::new();
    loop {
        let Some(end) = fill_until(&mut stream, &mut read, b"\r\n\r\n").await else { return Ok(()) };
        let head: Vec<u8> = read.drain(..end).collect();
        let shown = String::from_utf8_lossy(&head).into_owned();
        let framing = check_head(&head).map_err(|why| format!("{why} in {shown:?}"))?;
        if shown.to_ascii_lowercase().contains("\r\nexpect:") && stream.write_all(CONTINUE).await.is_err() {
            return Ok(());
        }
        let body = take_body(&mut stream, &mut read, framing).await;
        if !body.map_err(|why| format!("{why} in the body of {shown:?}"))? {
            return Ok(());
        }
        if stream.write_all(ANSWER).await.is_err() {
            return Ok(());
        }
    }
}

/// Reads until the buffer has a delimiter; the offset behind it, or `None` at the end of the stream.
async fn fill_until(stream: &mut TcpStream, read: &mut Vec<u8>, delimiter: &[u8]) -> Option<usize> {
    loop {
        if let Some(at) = read.windows(delimiter.len()).position(|window| window == delimiter) {
            return Some(at + delimiter.len());
        }
        if !matches!(stream.read_buf(read).await, Ok(1..)) {
            return None;
        }
    }
}

/// Takes bytes off the front; `None` at the end of the stream.
async fn take(stream: &mut TcpStream, read: &mut Vec<u8>, count: usize) -> Option<Vec<u8>> {
    while read.len() < count {
        if !matches!(stream.read_buf(read).await, Ok(1..)) {
            return None;
        }
    }
    Some(read.drain(..count).collect())
}

enum Framing {
    None,
    Length(usize),
    Chunked,
}

/// Whether the body is complete.
async fn take_body(stream: &mut TcpStream, read: &mut Vec<u8>, framing: Framing) -> Result<bool, String> {
    match framing {
        Framing::None => Ok(true),
        Framing::Length(count) => Ok(take(stream, read, count).await.is_some()),
        Framing::Chunked => loop {
            let Some(end) = fill_until(stream, read, b"\r\n").await else { return Ok(false) };
            let line: Vec<u8> = read.drain(..end).collect();
            let digits = std::str::from_utf8(&line[..line.len() - 2]).unwrap_or_default();
            let is_hex = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            let size = usize::from_str_radix(digits, 16).ok().filter(|_| is_hex);
            let size = size.ok_or_else(|| format!("the chunk size {digits:?}"))?;
            if size == 0 {
                return take_trailers(stream, read).await;
            }
            let Some(chunk) = take(stream, read, size + 2).await else { return Ok(false) };
            if !chunk.ends_with(b"\r\n") {
                return Err("a chunk that is longer than its size".to_owned());
            }
        },
    }
}

async fn take_trailers(stream: &mut TcpStream, read: &mut Vec<u8>) -> Result<bool, String> {
    loop {
        let Some(end) = fill_until(stream, read, b"\r\n").await else { return Ok(false) };
        let line: Vec<u8> = read.drain(..end).collect();
        if line.len() == 2 {
            return Ok(true);
        }
        field(&line[..line.len() - 2])?;
    }
}

fn is_token(text: &[u8]) -> bool {
    !text.is_empty()
        && text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}

/// Name, in lower case, and value of a field line.
fn field(line: &[u8]) -> Result<(String, String), String> {
    let shown = || String::from_utf8_lossy(line).into_owned();
    let colon =
        line.iter().position(|byte| *byte == b':').ok_or_else(|| format!("no colon in {}", shown()))?;
    let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
    if !is_token(name) {
        return Err(format!("the name of the field {}", shown()));
    }
    if value.iter().any(|byte| (*byte < 0x20 && *byte != b'\t') || *byte == 0x7f) {
        return Err(format!("a control character in the field {}", shown()));
    }
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    Ok((name, String::from_utf8_lossy(value).into_owned()))
}

fn check_head(head: &[u8]) -> Result<Framing, String> {
    let mut lines = head[..head.len() - 4].split(|byte| *byte == b'\n');
    let without_cr = |line: &[u8]| line.strip_suffix(b"\r").unwrap_or(line).to_vec();
    let request = without_cr(lines.next().unwrap_or_default());
    check_request_line(&request)?;
    let fields: Vec<(String, String)> =
        lines.map(|line| field(&without_cr(line))).collect::<Result<_, _>>()?;
    let all = |name: &str| -> Vec<&str> {
        fields.iter().filter(|(own, _)| own == name).map(|(_, value)| value.as_str()).collect()
    };
    if all("host").len() != 1 {
        return Err(format!("{} fields Host", all("host").len()));
    }
    if all("x-gateway") != ["edge"] || !all("x-internal-user").is_empty() {
        return Err("the header modifier of the rule was not applied".to_owned());
    }
    for hop_by_hop in ["keep-alive", "proxy-connection", "proxy-authenticate"] {
        if !all(hop_by_hop).is_empty() {
            return Err(format!("the hop-by-hop field {hop_by_hop}"));
        }
    }
    if !all("upgrade").is_empty()
        && !all("connection").iter().any(|value| value.eq_ignore_ascii_case("upgrade"))
    {
        return Err("Upgrade without Connection: upgrade".to_owned());
    }
    framing(&all("content-length"), &all("transfer-encoding"))
}

fn framing(lengths: &[&str], encodings: &[&str]) -> Result<Framing, String> {
    match (lengths, encodings) {
        ([], []) => Ok(Framing::None),
        ([], ["chunked"]) => Ok(Framing::Chunked),
        ([length], []) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
            length.parse().map(Framing::Length).map_err(|error| format!("Content-Length {length}: {error}"))
        }
        _ => Err(format!("Content-Length {lengths:?} and Transfer-Encoding {encodings:?}")),
    }
}

fn check_request_line(line: &[u8]) -> Result<(), String> {
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let [method, target, b"HTTP/1.1"] = words.as_slice() else { return Err("the request line".to_owned()) };
    if !is_token(method) {
        return Err("the method".to_owned());
    }
    let is_path = target.starts_with(b"/") || target == b"*";
    if !is_path || target.iter().any(|byte| *byte <= 0x20 || *byte == 0x7f || *byte == b'#') {
        return Err("the request target".to_owned());
    }
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    if path == b"/admin" || path.starts_with(b"/admin/") {
        return Err("a path that a rule refuses".to_owned());
    }
    Ok(())
}
