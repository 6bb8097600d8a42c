//! Forwards queries to the machine's nameservers, as they came but with an id of its own.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clock::Clock;
use hickory_proto::op::ResponseCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;

use super::wire::{header_code, question_bytes};

/// Queries that wait for a nameserver. Others fail at once.
const MAX_FORWARDED: usize = 256;
/// Of one attempt; clients wait 5 s before they ask again.
const TIMEOUT: Duration = Duration::from_secs(2);
const ATTEMPTS: usize = 2;
/// As in glibc.
const MAX_UPSTREAMS: usize = 3;
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The nameservers behind systemd-resolved's stubs, which would ask us again.
const RESOLVED_CONF: &str = "/run/systemd/resolve/resolv.conf";
const RESOLVED_STUBS: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 0, 0, 53), Ipv4Addr::new(127, 0, 0, 54)];
const REREAD: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DnsTransport {
    Udp,
    Tcp,
}

impl DnsTransport {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
        }
    }
}

/// Why a query was not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForwardFailure {
    NoUpstream,
    Overload,
    Unanswered,
}

/// The nameservers, reread when they may have changed.
#[derive(Debug)]
pub(super) struct Upstreams {
    configured: Vec<SocketAddr>,
    own: SocketAddr,
    clock: Clock,
    read: Mutex<Option<(Instant, Vec<SocketAddr>)>>,
}

impl Upstreams {
    pub(super) fn new(configured: Vec<SocketAddr>, own: SocketAddr, clock: Clock) -> Self {
        Self { configured, own, clock, read: Mutex::new(None) }
    }

    fn current(&self) -> Vec<SocketAddr> {
        if !self.configured.is_empty() {
            return usable(self.configured.clone(), self.own);
        }
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        match &*read {
            Some((at, upstreams)) if self.clock.since(*at) < REREAD => upstreams.clone(),
            _ => {
                let text = |path| std::fs::read_to_string(path).unwrap_or_default();
                let upstreams = upstreams(&text(RESOLV_CONF), &text(RESOLVED_CONF), self.own);
                *read = Some((self.clock.now(), upstreams.clone()));
                upstreams
            }
        }
    }
}

/// The nameservers of resolv.conf; behind a stub of systemd-resolved, its own. Never this server.
pub(super) fn upstreams(resolv_conf: &str, resolved_conf: &str, own: SocketAddr) -> Vec<SocketAddr> {
    let servers = nameservers(resolv_conf);
    let is_stub = |server: &SocketAddr| RESOLVED_STUBS.iter().any(|stub| server.ip() == IpAddr::V4(*stub));
    match servers.iter().any(is_stub) {
        true => usable(nameservers(resolved_conf), own),
        false => usable(servers, own),
    }
}

fn usable(mut servers: Vec<SocketAddr>, own: SocketAddr) -> Vec<SocketAddr> {
    servers.retain(|server| *server != own);
    servers.truncate(MAX_UPSTREAMS);
    servers
}

fn nameservers(text: &str) -> Vec<SocketAddr> {
    let mut addresses = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if words.next() == Some("nameserver")
            && let Some(Ok(ip)) = words.next().map(str::parse::<IpAddr>)
        {
            addresses.push(SocketAddr::new(ip, 53));
        }
    }
    addresses
}

#[derive(Debug)]
pub(super) struct Forwarder {
    upstreams: Upstreams,
    permits: Arc<Semaphore>,
}

impl Forwarder {
    pub(super) fn new(upstreams: Upstreams) -> Self {
        Self { upstreams, permits: Arc::new(Semaphore::new(MAX_FORWARDED)) }
    }

    /// The response of the first nameserver that has one, with the id of the query.
    pub(super) async fn forward(
        &self,
        query: &[u8],
        transport: DnsTransport,
    ) -> Result<Vec<u8>, ForwardFailure> {
        let Ok(_permit) = self.permits.try_acquire() else { return Err(ForwardFailure::Overload) };
        let upstreams = self.upstreams.current();
        if upstreams.is_empty() {
            return Err(ForwardFailure::NoUpstream);
        }
        let mut refused = None;
        for upstream in upstreams.iter().cycle().take(upstreams.len() * ATTEMPTS) {
            let asked = tokio::time::timeout(TIMEOUT, ask(*upstream, query, transport)).await;
            match asked {
                // Another nameserver may know.
                Ok(Ok(response))
                    if matches!(header_code(&response), ResponseCode::ServFail | ResponseCode::Refused) =>
                {
                    refused = Some(response);
                }
                Ok(Ok(response)) => return Ok(response),
                Ok(Err(error)) => tracing::debug!(%upstream, %error, "nameserver failed"),
                Err(_) => tracing::debug!(%upstream, "nameserver did not answer in time"),
            }
        }
        refused.ok_or(ForwardFailure::Unanswered)
    }
}

/// One attempt. A response counts only with our id and question.
async fn ask(upstream: SocketAddr, query: &[u8], transport: DnsTransport) -> io::Result<Vec<u8>> {
    let malformed = || io::Error::from(io::ErrorKind::InvalidData);
    let question = question_bytes(query).ok_or_else(malformed)?;
    let id = (clock::os_seed() as u16).to_be_bytes();
    let request = [&id[..], &query[2..]].concat();
    let is_ours = |response: &[u8]| {
        response.starts_with(&id)
            && question_bytes(response).is_some_and(|echoed| echoed.eq_ignore_ascii_case(question))
    };
    let mut response = match transport {
        DnsTransport::Udp => ask_udp(upstream, &request, is_ours).await?,
        DnsTransport::Tcp => ask_tcp(upstream, &request).await?,
    };
    if !is_ours(&response) {
        return Err(malformed());
    }
    response[..2].copy_from_slice(&query[..2]);
    Ok(response)
}

/// From a port of its own, which a forged response would have to guess.
async fn ask_udp(
    upstream: SocketAddr,
    request: &[u8],
    is_ours: impl Fn(&[u8]) -> bool,
) -> io::Result<Vec<u8>> {
    let any: IpAddr = match upstream {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(upstream).await?;
    socket.send(request).await?;
    let mut buffer = vec![0; usize::from(u16::MAX)];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if is_ours(&buffer[..length]) {
            buffer.truncate(length);
            return Ok(buffer);
        }
    }
}

async fn ask_tcp(upstream: SocketAddr, request: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(upstream).await?;
    write_framed(&mut stream, request).await?;
    let length = stream.read_u16().await?;
    let mut response = vec![0; usize::from(length)];
    stream.read_exact(&mut response).await?;
    Ok(response)
}

/// A message over TCP has its length in front (RFC 1035, 4.2.2).
pub(super) async fn write_framed(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    stream.write_all(&[&length.to_be_bytes()[..], message].concat()).await
}
