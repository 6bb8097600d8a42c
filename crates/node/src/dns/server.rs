//! The sockets. Names of the cluster are answered at once; forwarded queries have tasks of their own, in bounded number.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use clock::Clock;
use hickory_proto::op::ResponseCode;
use listener::{AtLimit, ConnectionLimit, ConnectionPolicy};
use plan::dns::{DnsAnswer, DnsDecision, DnsQueryType};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Semaphore, watch};
use tracing::{debug, warn};

use super::forwarder::{DnsTransport, ForwardFailure, Forwarder, write_framed};
use super::metrics::{AnswerSource, DnsMetrics};
use super::table::{self, DnsTable};
use super::wire::{self, DnsQuery, ReceivedMessage};

/// Open TCP connections; more are closed.
const MAX_CONNECTIONS: usize = 128;
/// Between two queries of a connection (RFC 7766, 6.2.3: in the order of seconds).
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// For one message to arrive, and for a response to be taken.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// UDP queries with a task of their own.
const MAX_TASKS: usize = 512;
/// Pause after receiving failed.
const RECEIVE_BACKOFF: Duration = Duration::from_millis(20);

pub(super) struct DnsService {
    pub(super) table: Arc<RwLock<DnsTable>>,
    pub(super) forwarder: Forwarder,
    pub(super) metrics: DnsMetrics,
    pub(super) clock: Clock,
    turn: AtomicUsize,
    has_warned_of_upstreams: AtomicBool,
}

/// What a message leads to.
enum Next {
    /// `None`: no response.
    Done(Option<Vec<u8>>),
    /// Another server has to be asked first.
    Forward(Box<DnsQuery>, Option<Box<DnsAnswer>>, Instant),
}

impl DnsService {
    pub(super) fn new(
        table: Arc<RwLock<DnsTable>>,
        forwarder: Forwarder,
        metrics: DnsMetrics,
        clock: Clock,
    ) -> Self {
        let (turn, has_warned_of_upstreams) = Default::default();
        Self { table, forwarder, metrics, clock, turn, has_warned_of_upstreams }
    }

    /// The part without waiting.
    fn begin(&self, bytes: &[u8], transport: DnsTransport) -> Next {
        let began = self.clock.now();
        let query = match wire::read(bytes) {
            ReceivedMessage::Query(query) => query,
            ReceivedMessage::Rejected(code, response) => {
                let rcode = code_text(code);
                let (kind, source) = (DnsQueryType::Other, AnswerSource::Rejected);
                self.metrics.answered(transport.as_str(), kind, rcode, source, Duration::ZERO);
                return Next::Done(Some(response));
            }
            ReceivedMessage::Ignored => {
                self.metrics.failed("malformed");
                return Next::Done(None);
            }
        };
        let decision = table::read(&self.table).answer(&query.question);
        match decision {
            DnsDecision::Forward => Next::Forward(query, None, began),
            DnsDecision::Answer(answer) if answer.chase.is_some() => {
                Next::Forward(query, Some(Box::new(answer)), began)
            }
            DnsDecision::Answer(answer) => {
                let response = self.finish(&query, &answer, Vec::new(), transport, began);
                Next::Done(Some(response))
            }
        }
    }

    /// The response with an answer of the cluster.
    fn finish(
        &self,
        query: &DnsQuery,
        answer: &DnsAnswer,
        chased: Vec<hickory_proto::rr::Record>,
        transport: DnsTransport,
        began: Instant,
    ) -> Vec<u8> {
        let limit = match transport {
            DnsTransport::Udp => query.udp_limit(),
            DnsTransport::Tcp => u16::MAX,
        };
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let response = query.encode(answer, chased, turn, limit);
        self.count(query, answer.rcode.as_str(), AnswerSource::Cluster, transport, began);
        response
    }

    fn count(
        &self,
        query: &DnsQuery,
        rcode: &'static str,
        source: AnswerSource,
        transport: DnsTransport,
        began: Instant,
    ) {
        let took = self.clock.since(began);
        let (name, kind) = (&query.question.name, query.question.kind);
        debug!(%name, kind = kind.as_str(), rcode, source = ?source, "DNS request");
        self.metrics.answered(transport.as_str(), kind, rcode, source, took);
    }

    /// The part that asks another server: a query as it came, or the name of an alias.
    async fn ask_upstream(
        &self,
        bytes: &[u8],
        query: &DnsQuery,
        answer: Option<&DnsAnswer>,
        transport: DnsTransport,
        began: Instant,
    ) -> Vec<u8> {
        let Some(answer) = answer else {
            let forwarded = self.forwarder.forward(bytes, transport).await;
            let response = forwarded.unwrap_or_else(|failure| {
                self.report(failure);
                query.failure(ResponseCode::ServFail)
            });
            let rcode = code_text(wire::header_code(&response));
            self.count(query, rcode, AnswerSource::Forward, transport, began);
            return response;
        };
        match self.chase(query, answer).await {
            Some(records) => self.finish(query, answer, records, transport, began),
            None => self.finish(query, &DnsAnswer::unresolved(), Vec::new(), transport, began),
        }
    }

    async fn chase(&self, query: &DnsQuery, answer: &DnsAnswer) -> Option<Vec<hickory_proto::rr::Record>> {
        let request = wire::alias_query(answer.chase.as_ref()?, query.number)?;
        let mut response = self.forwarder.forward(&request, DnsTransport::Udp).await;
        if response.as_ref().is_ok_and(|response| wire::is_truncated(response)) {
            response = self.forwarder.forward(&request, DnsTransport::Tcp).await;
        }
        match response {
            Ok(response) => match wire::header_code(&response) {
                ResponseCode::NoError | ResponseCode::NXDomain => wire::answers(&response),
                _ => None,
            },
            Err(failure) => {
                self.report(failure);
                None
            }
        }
    }

    fn report(&self, failure: ForwardFailure) {
        self.metrics.failed(match failure {
            ForwardFailure::Overload => "overload",
            ForwardFailure::Unanswered => "upstream_unanswered",
            ForwardFailure::NoUpstream => "no_upstream",
        });
        let has_none = failure == ForwardFailure::NoUpstream;
        if has_none && !self.has_warned_of_upstreams.swap(true, Ordering::Relaxed) {
            warn!("no nameserver for names outside of the cluster: set --dns-upstream");
        }
    }
}

/// For metrics: a bounded set.
fn code_text(code: ResponseCode) -> &'static str {
    match code {
        ResponseCode::NoError => "NOERROR",
        ResponseCode::FormErr => "FORMERR",
        ResponseCode::ServFail => "SERVFAIL",
        ResponseCode::NXDomain => "NXDOMAIN",
        ResponseCode::NotImp => "NOTIMP",
        ResponseCode::Refused => "REFUSED",
        _ => "other",
    }
}

pub(super) async fn serve_udp(socket: UdpSocket, service: Arc<DnsService>, mut stop: watch::Receiver<bool>) {
    let (socket, tasks) = (Arc::new(socket), Arc::new(Semaphore::new(MAX_TASKS)));
    let mut buffer = vec![0; usize::from(u16::MAX)];
    loop {
        let received = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            received = socket.recv_from(&mut buffer) => received,
        };
        let (bytes, peer) = match received {
            Ok((length, peer)) => (&buffer[..length], peer),
            // Of an earlier response that its client did not wait for.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
            Err(error) => {
                debug!(%error, "receiving failed");
                tokio::time::sleep(RECEIVE_BACKOFF).await;
                continue;
            }
        };
        match service.begin(bytes, DnsTransport::Udp) {
            Next::Done(None) => {}
            Next::Done(Some(response)) => send(&socket, &response, peer).await,
            Next::Forward(query, answer, began) => {
                let Ok(permit) = tasks.clone().try_acquire_owned() else {
                    service.report(ForwardFailure::Overload);
                    service.count(&query, "SERVFAIL", AnswerSource::Forward, DnsTransport::Udp, began);
                    send(&socket, &query.failure(ResponseCode::ServFail), peer).await;
                    continue;
                };
                let (socket, service, bytes) = (socket.clone(), service.clone(), bytes.to_vec());
                tokio::spawn(async move {
                    let _permit = permit;
                    let response = service
                        .ask_upstream(&bytes, &query, answer.as_deref(), DnsTransport::Udp, began)
                        .await;
                    send(&socket, &response, peer).await;
                });
            }
        }
    }
}

async fn send(socket: &UdpSocket, response: &[u8], peer: SocketAddr) {
    if let Err(error) = socket.send_to(response, peer).await {
        debug!(%error, "response was not sent");
    }
}

pub(super) async fn serve_tcp(socket: TcpListener, service: Arc<DnsService>, stop: watch::Receiver<bool>) {
    let policy = ConnectionPolicy {
        max_connections: MAX_CONNECTIONS,
        at_limit: AtLimit::Close,
        drain_timeout: Duration::ZERO,
    };
    let limit = ConnectionLimit::new(policy);
    limit
        .serve(
            || socket.accept(),
            stop,
            |(stream, _)| {
                let service = service.clone();
                async move {
                    if let Err(error) = serve_connection(stream, &service).await {
                        debug!(%error, "connection ended");
                    }
                }
            },
        )
        .await;
}

/// Queries of a connection are answered one after the other.
async fn serve_connection(mut stream: TcpStream, service: &DnsService) -> io::Result<()> {
    loop {
        let Ok(length) = tokio::time::timeout(IDLE_TIMEOUT, stream.read_u16()).await else { return Ok(()) };
        let length = match length {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            length => length?,
        };
        let mut bytes = vec![0; usize::from(length)];
        within(stream.read_exact(&mut bytes)).await?;
        let response = match service.begin(&bytes, DnsTransport::Tcp) {
            Next::Done(None) => return Ok(()),
            Next::Done(Some(response)) => response,
            Next::Forward(query, answer, began) => {
                service.ask_upstream(&bytes, &query, answer.as_deref(), DnsTransport::Tcp, began).await
            }
        };
        within(write_framed(&mut stream, &response)).await?;
    }
}

async fn within<T>(io: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(MESSAGE_TIMEOUT, io).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
