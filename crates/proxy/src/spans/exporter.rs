//! The exporter: a bounded queue, and a task that sends batches of spans to a collector (OTLP by HTTP, protobuf).

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clock::Clock;
use http::header::{self, HeaderValue};
use http::uri::Scheme;
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use model::random::Random;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::encoding;
use super::trace_context::SamplingRatio;
use crate::stats::Counter;
use crate::upstream::connection_pool::marked_socket;

/// Spans of one request to the collector.
const MAX_BATCH: usize = 512;
/// Retries of a batch; each waits twice as long as the one before.
const RETRIES: u32 = 4;
/// Longest wait that a collector may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);
/// Bytes of a response that are read.
const MAX_RESPONSE: usize = 64 << 10;
/// At most one log line about failures in this time.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// The time for the last spans at shutdown.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Where spans go, and how many.
#[derive(Clone)]
pub struct SpanExporterOptions {
    /// The URL that spans are posted to, such as `http://collector:4318/v1/traces`.
    pub url: Uri,
    /// Additional headers, such as a token.
    pub headers: HeaderMap,
    /// PEM certificates of the authorities that the collector's certificate is checked against; `None`: those of the
    /// system.
    pub authorities: Option<Vec<u8>>,
    /// Attributes of the proxy, such as `service.name`.
    pub resource: Vec<(String, String)>,
    /// The share of new traces that are recorded, from 0 to 1; requests with a trace context keep its decision.
    pub sampling_ratio: f64,
    /// The firewall mark of its connections, as in [`ProxyOptions`](crate::ProxyOptions).
    pub mark: Option<u32>,
    /// Spans that wait; more are dropped.
    pub max_queue: usize,
    /// A batch that is not full is sent after this time.
    pub max_delay: Duration,
    /// Time for one request to the collector.
    pub timeout: Duration,
    /// Before the first retry of a batch.
    pub first_backoff: Duration,
    pub clock: Clock,
    /// For the jitter of retries.
    pub random: Random,
}

impl SpanExporterOptions {
    /// The defaults of the OpenTelemetry SDKs, but for a shorter delay.
    pub fn new(url: Uri) -> Self {
        Self {
            url,
            headers: HeaderMap::new(),
            authorities: None,
            resource: Vec::new(),
            sampling_ratio: 1.0,
            mark: None,
            max_queue: 2_048,
            max_delay: Duration::from_secs(1),
            timeout: Duration::from_secs(10),
            first_backoff: Duration::from_secs(1),
            clock: Clock::system(),
            random: Random::seeded(0),
        }
    }
}

/// Why an exporter cannot start.
#[derive(Debug, thiserror::Error)]
pub enum SpanExporterError {
    #[error("not a URL of a collector; expected http://HOST[:PORT] or https://HOST[:PORT]")]
    Url,
    #[error("certificate authorities of the collector: {0}")]
    Authorities(String),
}

/// Exports spans. Clones share one queue; the task ends with the last clone.
#[derive(Clone)]
pub struct SpanExporter {
    queue: mpsc::Sender<QueueItem>,
    stats: Arc<SpanStats>,
    pub(crate) ratio: SamplingRatio,
}

#[derive(Debug, Default)]
pub(crate) struct SpanStats {
    pub(crate) exported: Counter,
    /// The queue was full.
    pub(crate) dropped: Counter,
    /// The collector did not take them.
    pub(crate) failed: Counter,
}

enum QueueItem {
    Span(Vec<u8>),
    Flush(oneshot::Sender<()>),
}

impl SpanExporter {
    /// Starts the exporter's task on the current runtime.
    pub fn start(options: SpanExporterOptions) -> Result<Self, SpanExporterError> {
        let collector = Collector::new(&options)?;
        let (queue, items) = mpsc::channel(options.max_queue.max(1));
        let stats = Arc::new(SpanStats::default());
        let ratio = SamplingRatio::new(options.sampling_ratio);
        let resource = encoding::resource(&options.resource);
        let task = ExportTask { options, resource, collector, items, stats: stats.clone(), failing: None };
        tokio::spawn(task.run());
        Ok(Self { queue, stats, ratio })
    }

    /// Never waits.
    pub(crate) fn put(&self, span: Vec<u8>) {
        if self.queue.try_send(QueueItem::Span(span)).is_err() {
            self.stats.dropped.inc();
        }
    }

    pub(crate) fn stats(&self) -> &SpanStats {
        &self.stats
    }

    /// Waits until all spans so far are exported, but at most 2 seconds: a collector that is away must not block exit.
    pub async fn flush(&self) {
        let (done, finished) = oneshot::channel();
        let flush = async {
            if self.queue.send(QueueItem::Flush(done)).await.is_ok() {
                let _ = finished.await;
            }
        };
        let _ = timeout(FLUSH_TIMEOUT, flush).await;
    }
}

impl fmt::Debug for SpanExporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SpanExporter")
    }
}

struct ExportTask {
    options: SpanExporterOptions,
    /// Encoded.
    resource: Vec<u8>,
    collector: Collector,
    items: mpsc::Receiver<QueueItem>,
    stats: Arc<SpanStats>,
    /// When the last log line about failures was written; `None` while exports succeed.
    failing: Option<Instant>,
}

/// Why a batch was not taken.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("{0}")]
    Unreachable(String),
    #[error("no response in time")]
    Timeout,
    /// With the time after which it may be sent again, if the collector said one.
    #[error("status {0}")]
    Busy(StatusCode, Option<Duration>),
    #[error("status {0}")]
    Refused(StatusCode),
}

impl ExportTask {
    async fn run(mut self) {
        let mut batch = Vec::new();
        while let Some(first) = self.items.recv().await {
            let mut flushed = add(&mut batch, first);
            let deadline = tokio::time::Instant::now() + self.options.max_delay;
            while flushed.is_none() && batch.len() < MAX_BATCH {
                match timeout_at(deadline, self.items.recv()).await {
                    Ok(Some(item)) => flushed = add(&mut batch, item),
                    Ok(None) | Err(_) => break,
                }
            }
            if !batch.is_empty() {
                self.export(&batch).await;
                batch.clear();
            }
            if let Some(flushed) = flushed {
                let _ = flushed.send(());
            }
        }
    }

    async fn export(&mut self, batch: &[Vec<u8>]) {
        let body = Bytes::from(encoding::export_request(&self.resource, batch));
        let count = batch.len() as u64;
        let mut attempt = 0;
        let error = loop {
            let sent = timeout(self.options.timeout, self.collector.post(body.clone())).await;
            let error = match sent.unwrap_or(Err(ExportError::Timeout)) {
                Ok(response) => return self.exported(count, &response),
                Err(error) => error,
            };
            self.collector.close_after(&error);
            let Some(wait) = self.backoff(attempt, &error) else { break error };
            attempt += 1;
            sleep(wait).await;
        };
        self.stats.failed.inc_by(count);
        self.report(&error.to_string(), count);
    }

    fn exported(&mut self, count: u64, response: &[u8]) {
        let (rejected, why) = encoding::rejected_spans(response);
        let rejected = rejected.min(count);
        self.stats.exported.inc_by(count - rejected);
        self.stats.failed.inc_by(rejected);
        if rejected > 0 {
            self.report(&why, rejected);
        } else if self.failing.take().is_some() {
            tracing::info!("collector accepts spans again");
        }
    }

    /// The wait before the next attempt; `None` if the batch is given up.
    fn backoff(&mut self, attempt: u32, error: &ExportError) -> Option<Duration> {
        if attempt >= RETRIES {
            return None;
        }
        let backoff = self.options.first_backoff * (1 << attempt);
        let backoff = backoff.mul_f64(1.0 + self.options.random.fraction() / 2.0);
        match error {
            ExportError::Refused(_) => None,
            ExportError::Busy(_, Some(asked)) => Some((*asked).min(MAX_RETRY_AFTER).max(backoff)),
            ExportError::Busy(_, None) | ExportError::Unreachable(_) | ExportError::Timeout => Some(backoff),
        }
    }

    fn report(&mut self, error: &str, spans: u64) {
        let clock = &self.options.clock;
        if self.failing.is_some_and(|logged| clock.since(logged) < LOG_INTERVAL) {
            return;
        }
        self.failing = Some(clock.now());
        let (failed, dropped) = (self.stats.failed.value(), self.stats.dropped.value());
        let url = self.collector.shown_url();
        tracing::warn!(url, error, spans, failed, dropped, "failed to export spans");
    }
}

fn add(batch: &mut Vec<Vec<u8>>, item: QueueItem) -> Option<oneshot::Sender<()>> {
    match item {
        QueueItem::Span(span) => {
            batch.push(span);
            None
        }
        QueueItem::Flush(done) => Some(done),
    }
}

/// The collector, and the connection to it.
struct Collector {
    url: Uri,
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    headers: HeaderMap,
    mark: Option<u32>,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl Collector {
    fn new(options: &SpanExporterOptions) -> Result<Self, SpanExporterError> {
        let url = options.url.clone();
        let authority = url.authority().ok_or(SpanExporterError::Url)?;
        let is_tls = url.scheme() == Some(&Scheme::HTTPS);
        if !is_tls && url.scheme() != Some(&Scheme::HTTP) {
            return Err(SpanExporterError::Url);
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let tls = match is_tls {
            true => {
                let name = ServerName::try_from(host.clone()).map_err(|_| SpanExporterError::Url)?;
                Some((tls_connector(options.authorities.as_deref())?, name))
            }
            false => None,
        };
        let mut headers = options.headers.clone();
        let host_header = match authority.port() {
            Some(port) => format!("{}:{port}", authority.host()),
            None => authority.host().to_owned(),
        };
        headers.insert(header::HOST, HeaderValue::try_from(host_header).map_err(|_| SpanExporterError::Url)?);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        headers
            .entry(header::USER_AGENT)
            .or_insert(HeaderValue::from_static(concat!("zoneward/", env!("CARGO_PKG_VERSION"))));
        Ok(Self { url, host, port, tls, headers, mark: options.mark, connection: None })
    }

    /// Without a user and password.
    fn shown_url(&self) -> String {
        let scheme = self.url.scheme_str().unwrap_or("http");
        format!("{scheme}://{}:{}{}", self.host, self.port, self.url.path())
    }

    /// Posts a batch by HTTP/1.1 and returns the body of the response.
    async fn post(&mut self, body: Bytes) -> Result<Bytes, ExportError> {
        let unreachable = |error: &dyn fmt::Display| ExportError::Unreachable(error.to_string());
        let mut connection = match self.connection.take() {
            Some(connection) if !connection.is_closed() => connection,
            _ => self.connect().await.map_err(|error| unreachable(&error))?,
        };
        connection.ready().await.map_err(|error| unreachable(&error))?;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = crate::http::headers::path_and_query(&self.url).into();
        *request.headers_mut() = self.headers.clone();
        let response = connection.send_request(request).await.map_err(|error| unreachable(&error))?;
        let (status, retry_after) = (response.status(), retry_after(response.headers()));
        let response = Limited::new(response.into_body(), MAX_RESPONSE).collect().await;
        if response.is_ok() {
            self.connection = Some(connection);
        }
        match status.as_u16() {
            200..=299 => Ok(response.map(|response| response.to_bytes()).unwrap_or_default()),
            // The statuses of OTLP that may be retried.
            429 | 502 | 503 | 504 => Err(ExportError::Busy(status, retry_after)),
            _ => Err(ExportError::Refused(status)),
        }
    }

    /// Closes the connection, unless the collector answered on it.
    fn close_after(&mut self, error: &ExportError) {
        if matches!(error, ExportError::Timeout | ExportError::Unreachable(_)) {
            self.connection = None;
        }
    }

    async fn connect(&self) -> io::Result<SendRequest<Full<Bytes>>> {
        let stream = self.dial().await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            None => handshake(stream).await,
            Some((tls, name)) => handshake(tls.connect(name.clone(), stream).await?).await,
        }
    }

    /// Tries the addresses of the collector in turn.
    async fn dial(&self) -> io::Result<TcpStream> {
        let mut failed = io::Error::new(io::ErrorKind::NotFound, "no address");
        for address in tokio::net::lookup_host((self.host.as_str(), self.port)).await? {
            match marked_socket(address, self.mark)?.connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }
}

async fn handshake<S>(stream: S) -> io::Result<SendRequest<Full<Bytes>>>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // The sender of the request gets the error.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

/// In seconds; dates are not used by collectors.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

fn tls_connector(authorities: Option<&[u8]>) -> Result<TlsConnector, SpanExporterError> {
    let wrong = |error: &dyn fmt::Display| SpanExporterError::Authorities(error.to_string());
    let mut roots = RootCertStore::empty();
    match authorities {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                roots.add(certificate.map_err(|error| wrong(&error))?).map_err(|error| wrong(&error))?;
            }
        }
        None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
    }
    if roots.is_empty() {
        return Err(wrong(&"no certificate found"));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
