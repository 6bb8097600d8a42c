//! Latency at a fixed rate, HTTP/1.1: one thread and 32 connections. A request's latency counts from the time at which it
//! was due, so that one which waits for a connection counts with its wait.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use super::load::Protocol;
use super::rival::Running;

const CONNECTIONS: usize = 32;

/// What one round showed.
#[derive(Clone)]
pub struct Latencies {
    sorted: Vec<Duration>,
    lasted: Duration,
}

impl Latencies {
    pub fn per_second(&self) -> f64 {
        self.sorted.len() as f64 / self.lasted.as_secs_f64()
    }

    pub fn percentile_micros(&self, percent: usize) -> f64 {
        let at = self.sorted.len() * percent / 100;
        self.sorted[at.min(self.sorted.len() - 1)].as_secs_f64() * 1e6
    }
}

/// A connection with keep-alive.
struct Connection {
    stream: TcpStream,
    /// When its request was due, until the response is complete.
    due: Option<Instant>,
    received: Vec<u8>,
}

/// Loads a proxy: at `rate` requests per second, or without one as fast as responses come.
pub fn run(running: &Running, rate: Option<f64>, lasts: Duration) -> Latencies {
    // A sleep may otherwise be 50 us longer.
    nix::sys::prctl::set_timerslack(1).unwrap();
    let port = running.port(Protocol::Http1);
    let mut connections: Vec<Connection> = (0..CONNECTIONS).map(|_| Connection::open(port)).collect();
    let request = format!("GET /r{}/x HTTP/1.1\r\nhost: bench\r\n\r\n", running.routes - 1);
    let mut idle: VecDeque<usize> = (0..CONNECTIONS).collect();
    let mut latencies = Vec::new();
    let (begin, mut sent) = (Instant::now(), 0_u64);
    loop {
        let now = Instant::now();
        if now.duration_since(begin) >= lasts {
            break;
        }
        let due_of =
            |number: u64| rate.map_or(now, |rate| begin + Duration::from_secs_f64(number as f64 / rate));
        while due_of(sent) <= now
            && let Some(at) = idle.pop_front()
        {
            let due = due_of(sent);
            connections[at].send(request.as_bytes(), due);
            sent += 1;
        }
        let end = begin + lasts;
        let until = if idle.is_empty() { end } else { due_of(sent).min(end) };
        let ready = wait(&connections, until.saturating_duration_since(Instant::now()));
        for at in ready {
            if let Some(latency) = connections[at].receive() {
                latencies.push(latency);
                idle.push_back(at);
            }
        }
    }
    latencies.sort();
    assert!(!latencies.is_empty(), "{} does not respond", running.rival.as_str());
    Latencies { sorted: latencies, lasted: lasts }
}

/// The connections that can be read.
fn wait(connections: &[Connection], timeout: Duration) -> Vec<usize> {
    let mut polled: Vec<PollFd<'_>> =
        connections.iter().map(|own| PollFd::new(own.stream.as_fd(), PollFlags::POLLIN)).collect();
    ppoll(&mut polled, Some(TimeSpec::from_duration(timeout)), None).unwrap();
    let is_ready = |(at, polled): (usize, &PollFd<'_>)| polled.any().unwrap_or(false).then_some(at);
    polled.iter().enumerate().filter_map(is_ready).collect()
}

impl Connection {
    fn open(port: u16) -> Self {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_nonblocking(true).unwrap();
        Self { stream, due: None, received: Vec::new() }
    }

    fn send(&mut self, request: &[u8], due: Instant) {
        // A short request fits into an empty send buffer.
        let written = self.stream.write(request).unwrap();
        assert_eq!(written, request.len());
        self.due = Some(due);
    }

    /// The latency of a response that is complete.
    fn receive(&mut self) -> Option<Duration> {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(0) => panic!("the proxy closed a connection"),
            Ok(count) => self.received.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            Err(error) => panic!("{error}"),
        }
        if !is_complete(&self.received) {
            return None;
        }
        self.received.clear();
        self.due.take().map(|due| Instant::now().duration_since(due))
    }
}

/// Whether a response is there, with the body that its content-length says.
pub fn is_complete(received: &[u8]) -> bool {
    let Some(end) = received.windows(4).position(|at| at == b"\r\n\r\n") else { return false };
    let head = std::str::from_utf8(&received[..end]).unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().unwrap())
    });
    received.len() >= end + 4 + length.unwrap_or_else(|| panic!("no content-length: {head}"))
}
