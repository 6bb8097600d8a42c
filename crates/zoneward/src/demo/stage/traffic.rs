//! Real connections: a server that answers with its name, and clients that count who answered.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result};

use super::place::Place;
use crate::demo::protocol::Counts;

/// How long a client waits for a connection, and then for the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest head of a request that is read.
const LONGEST_HEAD: usize = 16 << 10;
/// Between two connections of a loop, so that it shares the machine.
const BREATH: Duration = Duration::from_millis(2);

/// A listening server; it ends when this is dropped.
pub struct Server {
    stop: Arc<AtomicBool>,
}

impl Server {
    /// Listens in the namespace of this thread, on both families.
    pub fn start(name: &str, port: u16) -> Result<Self> {
        let words = format!("{name}\n").into_bytes();
        Self::start_with(port, move |mut stream| stream.write_all(&words))
    }

    /// The same for HTTP: one request by each connection, answered with the name.
    pub fn start_http(name: &str, port: u16) -> Result<Self> {
        let words = format!(
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{name}\n",
            name.len() + 1
        );
        Self::start_with(port, move |mut stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            let (mut head, mut byte) = (Vec::new(), [0; 512]);
            while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < LONGEST_HEAD {
                let count = stream.read(&mut byte)?;
                if count == 0 {
                    return Ok(());
                }
                head.extend_from_slice(&byte[..count]);
            }
            stream.write_all(words.as_bytes())
        })
    }

    fn start_with(port: u16, answer: impl Fn(TcpStream) -> io::Result<()> + Send + 'static) -> Result<Self> {
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).context("a pod's server")?;
        listener.set_nonblocking(true).context("a pod's server")?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        std::thread::spawn(move || serve(&listener, answer, &stopped));
        Ok(Self { stop })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn serve(listener: &TcpListener, answer: impl Fn(TcpStream) -> io::Result<()>, stop: &AtomicBool) {
    use std::os::fd::AsFd;
    while !stop.load(Ordering::Relaxed) {
        let mut wait = [nix::poll::PollFd::new(listener.as_fd(), nix::poll::PollFlags::POLLIN)];
        // A signal or the end of the wait: in both cases the stop is looked at again.
        let _ = nix::poll::poll(&mut wait, 100u8);
        while let Ok((stream, _)) = listener.accept() {
            // A client that went away gets nothing.
            let _ = stream.set_nonblocking(false).and_then(|()| answer(stream));
        }
    }
}

/// Connects so many times, one after the other.
pub fn connect(to: SocketAddr, count: u32) -> Counts {
    let mut counts = Counts::default();
    (0..count).for_each(|_| connect_once(to, &mut counts));
    counts
}

/// Sends so many HTTP requests, one after the other.
pub fn ask(to: SocketAddr, count: u32) -> Counts {
    let mut counts = Counts::default();
    for _ in 0..count {
        let asked = TcpStream::connect_timeout(&to, PATIENCE).and_then(|mut stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(b"GET / HTTP/1.1\r\nhost: cart\r\nconnection: close\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        });
        match asked {
            Ok(text) if text.starts_with("HTTP/1.1 200 ") && text.ends_with('\n') => {
                let name = text.lines().last().unwrap_or_default();
                *counts.answers.entry(name.to_owned()).or_default() += 1;
            }
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => counts.refused += 1,
            _ => counts.failed += 1,
        }
    }
    counts
}

fn connect_once(to: SocketAddr, counts: &mut Counts) {
    let asked = TcpStream::connect_timeout(&to, PATIENCE).and_then(|mut stream| {
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    });
    match asked {
        Ok(text) if text.ends_with('\n') => {
            *counts.answers.entry(text.trim_end().to_owned()).or_default() += 1;
        }
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => counts.refused += 1,
        _ => counts.failed += 1,
    }
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
