//! A collector: OTLP by HTTP, with the messages as opentelemetry-proto 1.x has them.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::Write;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use fixtures::{TestCertificate, eventually_async};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use prost::Message;
use proxy::SpanExporterOptions;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

#[derive(Clone, PartialEq, Message)]
pub struct ExportTraceServiceRequest {
    #[prost(message, repeated, tag = "1")]
    pub resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Scope {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub version: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Span {
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    pub trace_state: String,
    #[prost(bytes = "vec", tag = "4")]
    pub parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub name: String,
    #[prost(int32, tag = "6")]
    pub kind: i32,
    #[prost(fixed64, tag = "7")]
    pub start: u64,
    #[prost(fixed64, tag = "8")]
    pub end: u64,
    #[prost(message, repeated, tag = "9")]
    pub attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    pub status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    pub flags: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Status {
    #[prost(string, tag = "2")]
    pub message: String,
    #[prost(int32, tag = "3")]
    pub code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub struct AnyValue {
    #[prost(string, optional, tag = "1")]
    pub string: Option<String>,
    #[prost(int64, optional, tag = "3")]
    pub int: Option<i64>,
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Attributes as text; each name once.
pub fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    for KeyValue { key, value } in attributes {
        let value = value.as_ref().expect("a value");
        let text = value.string.clone().or(value.int.map(|int| int.to_string())).expect("text or a number");
        assert_eq!(texts.insert(key.clone(), text), None, "{key} twice");
    }
    texts
}

impl Span {
    pub fn trace(&self) -> String {
        assert_eq!(self.trace_id.len(), 16);
        hexadecimal(&self.trace_id)
    }

    pub fn id(&self) -> String {
        assert_eq!(self.span_id.len(), 8);
        hexadecimal(&self.span_id)
    }

    pub fn parent(&self) -> String {
        hexadecimal(&self.parent_span_id)
    }

    pub fn status_code(&self) -> i32 {
        self.status.as_ref().map_or(0, |status| status.code)
    }

    pub fn attribute(&self, name: &str) -> Option<String> {
        texts(&self.attributes).remove(name)
    }
}

pub fn assert_attributes(span: &Span, expected: &[(&str, &str)]) {
    let found = texts(&span.attributes);
    for (name, value) in expected {
        assert_eq!(found.get(*name).map(String::as_str), Some(*value), "{name} of {found:#?}");
    }
}

pub fn named<'s>(spans: &'s [Span], name: &str) -> &'s Span {
    spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("{name} is not in {spans:#?}"))
}

/// A request that the collector got.
#[derive(Clone)]
pub struct Export {
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub request: ExportTraceServiceRequest,
}

/// The response to the n-th request; `None` never responds.
type Respond = fn(usize) -> Option<(u16, Vec<u8>)>;

#[derive(Clone)]
pub struct Collector {
    pub address: SocketAddr,
    scheme: &'static str,
    exports: Arc<Mutex<Vec<Export>>>,
    requests: Arc<AtomicUsize>,
}

impl Export {
    /// The request as JSON, by the messages that OpenTelemetry publishes.
    pub fn as_opentelemetry_reads_it(&self) -> Value {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/proxy/spans/decode.py");
        let mut command = toolbox::command("python3-opentelemetry");
        let command = command.args(["-B", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a tool");
        child.stdin.take().expect("piped").write_all(&self.body).expect("a script that reads");
        let output = child.wait_with_output().expect("a child");
        assert!(output.status.success());
        serde_json::from_slice(&output.stdout).expect("JSON")
    }
}

impl Collector {
    pub async fn start() -> Self {
        Self::responding(|_| Some((200, Vec::new()))).await
    }

    pub async fn responding(respond: Respond) -> Self {
        Self::listen(respond, None).await
    }

    /// With the certificate that a client has to trust.
    pub async fn start_tls() -> (Self, Vec<u8>) {
        let certificate = TestCertificate::of("127.0.0.1");
        let tls = TlsAcceptor::from(certificate.server());
        (Self::listen(|_| Some((200, Vec::new())), Some(tls)).await, certificate.chain.into_bytes())
    }

    async fn listen(respond: Respond, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has ports");
        let collector = Self {
            address: listener.local_addr().expect("bound"),
            scheme: if tls.is_some() { "https" } else { "http" },
            exports: Arc::default(),
            requests: Arc::default(),
        };
        let server = collector.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (server, tls) = (server.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => server.serve(stream, respond).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                server.serve(stream, respond).await;
                            }
                        }
                    }
                });
            }
        });
        collector
    }

    async fn serve<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S, respond: Respond) {
        let service = service_fn(|request| self.take(request, respond));
        let _ =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
    }

    async fn take(
        &self,
        request: Request<Incoming>,
        respond: Respond,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        let Some((status, text)) = respond(self.requests.fetch_add(1, Relaxed)) else {
            return std::future::pending().await;
        };
        if status == 200 {
            let request = ExportTraceServiceRequest::decode(body.clone()).expect("valid protobuf");
            let export = Export { path: parts.uri.path().to_owned(), headers: parts.headers, body, request };
            self.exports.lock().expect("no test panics here").push(export);
        }
        let mut response = Response::new(Full::new(text.into()));
        *response.status_mut() = StatusCode::from_u16(status).expect("a status");
        Ok(response)
    }

    /// Of an exporter that does not wait long for a batch.
    pub fn options(&self) -> SpanExporterOptions {
        let url = format!("{}://{}/v1/traces", self.scheme, self.address);
        let options = SpanExporterOptions::new(url.parse().expect("a URL"));
        SpanExporterOptions { max_delay: Duration::from_millis(50), ..options }
    }

    pub fn exports(&self) -> Vec<Export> {
        self.exports.lock().expect("no test panics here").clone()
    }

    pub fn requests(&self) -> usize {
        self.requests.load(Relaxed)
    }

    pub fn received(&self) -> Vec<Span> {
        let exports = self.exports().into_iter();
        let resource_spans = exports.flat_map(|export| export.request.resource_spans);
        resource_spans.flat_map(|spans| spans.scope_spans).flat_map(|scope| scope.spans).collect()
    }

    /// Waits for at least so many spans.
    pub async fn spans(&self, count: usize) -> Vec<Span> {
        eventually_async(&format!("{count} spans"), async || {
            let received = self.received();
            if received.len() >= count { Ok(received) } else { Err(received.len()) }
        })
        .await
    }
}
