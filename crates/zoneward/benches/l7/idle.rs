//! Memory of idle connections: each has had one request, and is kept alive.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use super::latency::is_complete;
use super::load::Protocol;
use super::rival::Running;

/// Connections that are opened and closed before, so that what the first ones cost is not counted.
const WARM_UP: usize = 100;
const PAUSE: Duration = Duration::from_secs(1);

/// Megabytes resident, proportional (`Pss`) and private, before and with the connections.
pub struct IdleMemory {
    pub before: [f64; 3],
    pub with: [f64; 3],
    connections: usize,
}

impl IdleMemory {
    /// Kilobytes (1,024 bytes) per connection.
    pub fn per_connection(&self) -> [f64; 3] {
        [0, 1, 2].map(|at| (self.with[at] - self.before[at]) * 1024.0 / self.connections as f64)
    }
}

pub fn measure(running: &Running, connections: usize) -> IdleMemory {
    let memory = || {
        std::thread::sleep(PAUSE);
        [running.memory_mb("VmRSS"), running.proportional_mb(), running.memory_mb("RssAnon")]
    };
    drop(open(running, WARM_UP));
    let before = memory();
    let open = open(running, connections);
    let with = memory();
    for stream in &open {
        stream.set_nonblocking(true).unwrap();
        let closed = stream.peek(&mut [0]).map_err(|error| error.kind());
        assert_eq!(closed, Err(ErrorKind::WouldBlock), "{} closed a connection", running.rival.as_str());
    }
    IdleMemory { before, with, connections }
}

fn open(running: &Running, count: usize) -> Vec<TcpStream> {
    let port = running.port(Protocol::Http1);
    let request = format!("GET /r{}/x HTTP/1.1\r\nhost: bench\r\n\r\n", running.routes - 1);
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let (mut received, mut buffer) = (Vec::new(), [0; 4096]);
        while !is_complete(&received) {
            let count = stream.read(&mut buffer).unwrap();
            assert_ne!(count, 0, "{} closed a connection", running.rival.as_str());
            received.extend_from_slice(&buffer[..count]);
        }
        all.push(stream);
    }
    all
}
