//! TCP servers and clients in the namespaces: the echo server of a pod, the relay to the API, and clients that count
//! responses.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result};
use clock::Clock;

use super::network_namespace::NetworkNamespace;
use crate::layout::API_PORT;
use crate::protocol::ConnectionCounts;

/// Connect and read timeout of clients.
const TIMEOUT: Duration = Duration::from_secs(2);
/// A client that sends nothing for this long does not use HTTP and gets the plain line.
const HTTP_WAIT: Duration = Duration::from_millis(200);
const MAX_HEADER_BYTES: usize = 16 << 10;
/// Pause between connections of a loop, to limit its CPU usage.
const LOOP_PAUSE: Duration = Duration::from_millis(2);

/// A listening server, stopped on drop.
pub(super) struct TcpServer {
    stop: Arc<AtomicBool>,
}

impl TcpServer {
    /// The echo server of a pod, in the namespace of this thread, on both families: sends the line, by HTTP or plain.
    pub(super) fn start(line: &str, port: u16) -> Result<Self> {
        let line = line.to_owned();
        Self::start_with((Ipv6Addr::UNSPECIFIED, port).into(), move |stream| answer(stream, &line))
    }

    /// A server with a thread per connection.
    pub(super) fn start_with(
        at: SocketAddr,
        answer: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> Result<Self> {
        let listener = TcpListener::bind(at).with_context(|| format!("listening on {at}"))?;
        listener.set_nonblocking(true).with_context(|| format!("listening on {at}"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        std::thread::Builder::new().spawn(move || serve(&listener, &Arc::new(answer), &stopped))?;
        Ok(Self { stop })
    }
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn serve(
    listener: &TcpListener,
    answer: &Arc<impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static>,
    stop: &AtomicBool,
) {
    use std::os::fd::AsFd;
    while !stop.load(Ordering::Relaxed) {
        let mut wait = [nix::poll::PollFd::new(listener.as_fd(), nix::poll::PollFlags::POLLIN)];
        let _ = nix::poll::poll(&mut wait, 100u8);
        while let Ok((stream, _)) = listener.accept() {
            let answer = answer.clone();
            // Errors affect only this connection.
            let _ = std::thread::Builder::new()
                .spawn(move || stream.set_nonblocking(false).and_then(|()| answer(stream)));
        }
    }
}

/// Serves one request per connection. A client that does not send HTTP gets the plain line.
fn answer(mut stream: TcpStream, line: &str) -> io::Result<()> {
    stream.set_read_timeout(Some(HTTP_WAIT))?;
    let (mut head, mut buffer) = (Vec::new(), [0; 512]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return if head.is_empty() { stream.write_all(line.as_bytes()) } else { Ok(()) },
            Ok(count) => head.extend_from_slice(&buffer[..count]),
            Err(error) if is_timeout(&error) && head.is_empty() => return stream.write_all(line.as_bytes()),
            Err(error) => return Err(error),
        }
        stream.set_read_timeout(Some(TIMEOUT))?;
        if !is_http(&head) {
            return stream.write_all(line.as_bytes());
        }
        if head.windows(4).any(|end| end == b"\r\n\r\n") || head.len() > MAX_HEADER_BYTES {
            break;
        }
    }
    let length = line.len();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all((head + line).as_bytes())
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Whether this can be the start of an HTTP/1 request.
fn is_http(head: &[u8]) -> bool {
    match head.iter().position(|byte| *byte == b'\n') {
        Some(end) => head[..end].windows(6).any(|word| word == b" HTTP/"),
        None => head.iter().all(|byte| byte.is_ascii_graphic() || b" \r".contains(byte)),
    }
}

/// Sends requests one after the other.
pub(super) fn connect(to: SocketAddr, count: u32) -> ConnectionCounts {
    let mut counts = ConnectionCounts::default();
    (0..count).for_each(|_| connect_once(to, &mut counts));
    counts
}

fn connect_once(to: SocketAddr, counts: &mut ConnectionCounts) {
    let response = TcpStream::connect_timeout(&to, TIMEOUT).and_then(|mut stream| {
        stream.set_read_timeout(Some(TIMEOUT))?;
        write!(stream, "GET / HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    });
    match response {
        Ok(text) => match pod(&text) {
            Some(pod) => *counts.answers.entry(pod.to_owned()).or_default() += 1,
            None => counts.failed += 1,
        },
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => counts.refused += 1,
        Err(_) => counts.failed += 1,
    }
}

/// The pod name in a complete response.
fn pod(answer: &str) -> Option<&str> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let line = body.strip_suffix('\n').filter(|_| head.starts_with("HTTP/1.1 200 "))?;
    line.split_whitespace().next()
}

/// A client that opens connections until it is stopped.
pub(super) struct ConnectionLoop {
    stop: Arc<AtomicBool>,
    result: mpsc::Receiver<ConnectionCounts>,
}

impl ConnectionLoop {
    /// Occupies the thread of the namespace until it is stopped.
    pub(super) fn start(namespace: &NetworkNamespace, to: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (done, result) = mpsc::channel();
        let stopped = stop.clone();
        namespace.start(move || {
            let (mut counts, clock) = (ConnectionCounts::default(), Clock::system());
            while !stopped.load(Ordering::Relaxed) {
                connect_once(to, &mut counts);
                clock.sleep_blocking(LOOP_PAUSE);
            }
            let _ = done.send(counts);
        });
        Self { stop, result }
    }

    pub(super) fn stop(self) -> ConnectionCounts {
        self.stop.store(true, Ordering::Relaxed);
        self.result.recv().unwrap_or_default()
    }
}

/// Relays 127.0.0.1:6443 in the namespace of this thread to the unix socket of the API, so that kubectl and `zoneward`
/// work in a node or pod as they do outside.
pub(super) fn start_relay(api: PathBuf) -> Result<TcpServer> {
    TcpServer::start_with((Ipv4Addr::LOCALHOST, API_PORT).into(), move |stream| relay(stream, &api))
}

fn relay(client: TcpStream, api: &Path) -> io::Result<()> {
    let server = UnixStream::connect(api)?;
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    let upstream = std::thread::Builder::new().spawn(move || {
        let _ = io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Write);
    })?;
    let (mut from_server, mut to_client) = (server, client);
    let copied = io::copy(&mut from_server, &mut to_client);
    let _ = to_client.shutdown(Shutdown::Both);
    let _ = upstream.join();
    copied.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_http_requests_are_recognised_as_http() {
        assert!(is_http(b"GE"));
        assert!(is_http(b"GET / HTTP/1.1\r\nhost: web\r\n"));
        assert!(!is_http(b"hello\n"));
        assert!(!is_http(b"\x16\x03\x01"));
    }

    #[test]
    fn only_a_complete_response_names_its_pod() {
        assert_eq!(pod("HTTP/1.1 200 OK\r\n\r\nweb-a1-0 on node-a1 in zone-a\n"), Some("web-a1-0"));
        assert_eq!(pod("HTTP/1.1 200 OK\r\n\r\nweb-a1-0 on no"), None);
        assert_eq!(pod("HTTP/1.1 503 Service Unavailable\r\n\r\nno endpoint\n"), None);
    }
}
