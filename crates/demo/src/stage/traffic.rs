//! Real connections: a server that answers with its name, and clients that count the answers.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result};

use super::place::Place;
use crate::protocol::Counts;

/// How long a client waits for a connection, and then for the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// A client that sends nothing for this long is no HTTP client and gets the bare line.
const SILENCE: Duration = Duration::from_millis(200);
/// The longest head of a request that is read.
const LONGEST_HEAD: usize = 16 << 10;
/// Between two connections of a loop, so that it shares the machine.
const BREATH: Duration = Duration::from_millis(2);

/// A listening server; it ends when this is dropped.
pub struct Server {
    stop: Arc<AtomicBool>,
}

impl Server {
    /// A pod's server in the namespace of this thread, on both families: the line, by HTTP or bare.
    pub fn start(line: &str, port: u16) -> Result<Self> {
        let line = line.to_owned();
        Self::start_with((Ipv6Addr::UNSPECIFIED, port).into(), move |stream| answer(stream, &line))
    }

    /// A server with a thread for each connection.
    pub fn start_with(
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

impl Drop for Server {
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
        // A signal or the end of the wait: in both cases the stop is checked again.
        let _ = nix::poll::poll(&mut wait, 100u8);
        while let Ok((stream, _)) = listener.accept() {
            let answer = answer.clone();
            // A client that went away gets nothing, nor does one for which there is no thread.
            let _ = std::thread::Builder::new()
                .spawn(move || stream.set_nonblocking(false).and_then(|()| answer(stream)));
        }
    }
}

/// One request by each connection. A client that speaks no HTTP, or nothing at all, gets the bare line.
fn answer(mut stream: TcpStream, line: &str) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE))?;
    let (mut head, mut buffer) = (Vec::new(), [0; 512]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return if head.is_empty() { stream.write_all(line.as_bytes()) } else { Ok(()) },
            Ok(count) => head.extend_from_slice(&buffer[..count]),
            Err(error) if is_timeout(&error) && head.is_empty() => return stream.write_all(line.as_bytes()),
            Err(error) => return Err(error),
        }
        stream.set_read_timeout(Some(PATIENCE))?;
        if !is_http(&head) {
            return stream.write_all(line.as_bytes());
        }
        if head.windows(4).any(|end| end == b"\r\n\r\n") || head.len() > LONGEST_HEAD {
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

/// Whether this can be the beginning of an HTTP/1 request.
fn is_http(head: &[u8]) -> bool {
    match head.iter().position(|byte| *byte == b'\n') {
        Some(end) => head[..end].windows(6).any(|word| word == b" HTTP/"),
        None => head.iter().all(|byte| byte.is_ascii_graphic() || b" \r".contains(byte)),
    }
}

/// Sends so many requests, one after the other.
pub fn connect(to: SocketAddr, count: u32) -> Counts {
    let mut counts = Counts::default();
    (0..count).for_each(|_| connect_once(to, &mut counts));
    counts
}

fn connect_once(to: SocketAddr, counts: &mut Counts) {
    let asked = TcpStream::connect_timeout(&to, PATIENCE).and_then(|mut stream| {
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "GET / HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    });
    match asked {
        Ok(text) => match pod(&text) {
            Some(pod) => *counts.answers.entry(pod.to_owned()).or_default() += 1,
            None => counts.failed += 1,
        },
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => counts.refused += 1,
        Err(_) => counts.failed += 1,
    }
}

/// The pod that sent a whole answer.
fn pod(answer: &str) -> Option<&str> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let line = body.strip_suffix('\n').filter(|_| head.starts_with("HTTP/1.1 200 "))?;
    line.split_whitespace().next()
}

/// A client that connects until it is stopped.
pub struct Loop {
    stop: Arc<AtomicBool>,
    result: mpsc::Receiver<Counts>,
}

impl Loop {
    /// Starts in a pod's namespace; the pod can do nothing else meanwhile.
    pub fn start(place: &Place, to: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (say, result) = mpsc::channel();
        let stopped = stop.clone();
        place.start(move || {
            let mut counts = Counts::default();
            while !stopped.load(Ordering::Relaxed) {
                connect_once(to, &mut counts);
                std::thread::sleep(BREATH);
            }
            let _ = say.send(counts);
        });
        Self { stop, result }
    }

    /// Stops it, and returns what it met.
    pub fn stop(self) -> Counts {
        self.stop.store(true, Ordering::Relaxed);
        self.result.recv().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_other_words_are_told_apart() {
        assert!(is_http(b"GE"));
        assert!(is_http(b"GET / HTTP/1.1\r\nhost: web\r\n"));
        assert!(!is_http(b"hello\n"));
        assert!(!is_http(b"\x16\x03\x01"));
    }

    #[test]
    fn only_a_whole_answer_names_its_pod() {
        assert_eq!(pod("HTTP/1.1 200 OK\r\n\r\nweb-a1-0 on node-a1 in zone-a\n"), Some("web-a1-0"));
        assert_eq!(pod("HTTP/1.1 200 OK\r\n\r\nweb-a1-0 on no"), None);
        assert_eq!(pod("HTTP/1.1 503 Service Unavailable\r\n\r\nno endpoint\n"), None);
    }
}
