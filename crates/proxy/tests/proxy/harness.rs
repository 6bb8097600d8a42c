//! A small world on loopback: policies become tables by the plan, Services become echoing endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use fixtures::eventually_async;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use model::backend::{Backend, BackendEndpoint, BackendTable, ConsumerLocation};
use model::route::{AppProtocol, BackendId, RouteTable};
use model::{Locality, ObjectKey, ServiceKey, Snapshot};
use proxy::{ListenerKind, Proxy, ProxyOptions, ProxyTables};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// How long a connection may take to be closed. No more than the shortest timeout of the proxy's defaults: what is closed by
/// then was closed by what the test set.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How long an answer may take on a loaded machine.
pub const ANSWER_PATIENCE: Duration = Duration::from_secs(60);

/// The sum of a metric over its labels; `labels` is a part of the line.
pub fn metric_sum(running: &Running, name: &str, labels: &str) -> u64 {
    let text = running.metrics();
    let lines = text.lines().filter(|line| line.starts_with(&format!("zoneward_proxy_{name}")));
    let values = lines.filter(|line| line.contains(labels)).filter_map(|line| line.rsplit(' ').next());
    values.filter_map(|value| value.parse::<u64>().ok()).sum()
}

pub fn key(name: &str) -> ServiceKey {
    ServiceKey::new(&"default".into(), &name.into())
}

/// What an endpoint saw.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: String,
    pub path: String,
    pub host: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub trailers: Option<HeaderMap>,
}

/// An endpoint that answers with what it got.
#[derive(Clone)]
pub struct Echo {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Echo {
    pub async fn start(name: &str) -> Self {
        Self::start_on(name, "127.0.0.1:0").await
    }

    pub async fn start_on(name: &str, at: &str) -> Self {
        let listener = TcpListener::bind(at).await.expect("loopback has ports");
        let echo = Self { address: listener.local_addr().expect("bound"), seen: Arc::default() };
        let (name, seen) = (name.to_owned(), echo.seen.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let (name, seen) = (name.clone(), seen.clone());
                tokio::spawn(async move {
                    let service = service_fn(|request| echo_answer(name.clone(), seen.clone(), request));
                    let server = auto::Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
                });
            }
        });
        echo
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("no test panics here").clone()
    }

    pub async fn wait_for(&self, count: usize) -> Vec<Seen> {
        eventually_async("requests at the endpoint", async || self.seen().len() >= count).await;
        self.seen()
    }
}

type EchoBody = http_body_util::combinators::BoxBody<Bytes, Infallible>;

async fn echo_answer(
    name: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    mut request: Request<Incoming>,
) -> Result<Response<EchoBody>, hyper::Error> {
    if request.headers().contains_key("upgrade") {
        return Ok(echo_upgrade(&mut request));
    }
    let (parts, body) = request.into_parts();
    let collected = body.collect().await?;
    let trailers = collected.trailers().cloned();
    let host = parts.uri.authority().map(|authority| authority.to_string());
    let header = parts.headers.get("host").map(|host| String::from_utf8_lossy(host.as_bytes()).into_owned());
    let saw = Seen {
        method: parts.method.to_string(),
        path: parts.uri.path_and_query().map(|target| target.to_string()).unwrap_or_default(),
        host: host.or(header).unwrap_or_default(),
        headers: parts.headers.clone(),
        body: collected.to_bytes(),
        trailers,
    };
    let answer = json!({"backend": name, "method": saw.method, "path": saw.path, "host": saw.host,
        "length": saw.body.len()});
    let mut response = Response::new(echo_body(&parts.headers, &saw, answer.to_string()));
    for (name, value) in &parts.headers {
        // `x-echo-*` asks for a response header.
        if let Some(name) = name.as_str().strip_prefix("x-echo-") {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
            response.headers_mut().append(name, value.clone());
        }
    }
    if let Some(status) = parts.headers.get("x-status").and_then(|status| status.to_str().ok()?.parse().ok())
    {
        *response.status_mut() = http::StatusCode::from_u16(status).expect("a status");
    }
    if let Some(delay) = parts.headers.get("x-delay").and_then(|delay| delay.to_str().ok()?.parse().ok()) {
        tokio::time::sleep(Duration::from_millis(delay)).await;
    }
    seen.lock().expect("no test panics here").push(saw);
    Ok(response)
}

fn echo_body(headers: &HeaderMap, saw: &Seen, text: String) -> EchoBody {
    if headers.contains_key("x-body-back") {
        return Full::new(saw.body.clone()).boxed();
    }
    if !headers.contains_key("x-trailers") {
        return Full::new(Bytes::from(text)).boxed();
    }
    let mut trailers = saw.trailers.clone().unwrap_or_default();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let frames = [Frame::data(Bytes::from(text)), Frame::trailers(trailers)];
    let frames = frames.into_iter().map(Ok::<_, Infallible>);
    http_body_util::StreamBody::new(futures(frames)).boxed()
}

/// An iterator as a stream, without a crate for it.
fn futures<I: Iterator + Unpin>(items: I) -> Items<I> {
    Items(items)
}

pub struct Items<I>(I);

impl<I: Iterator + Unpin> futures_util::Stream for Items<I> {
    type Item = I::Item;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<I::Item>> {
        std::task::Poll::Ready(self.0.next())
    }
}

/// Sends back, in capitals, what comes after the upgrade.
fn echo_upgrade(request: &mut Request<Incoming>) -> Response<EchoBody> {
    let wanted = request.headers()["upgrade"].clone();
    let upgraded = hyper::upgrade::on(request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgraded.await else { return };
        let mut stream = TokioIo::new(upgraded);
        let mut buffer = [0; 1024];
        while let Ok(count @ 1..) = stream.read(&mut buffer).await {
            if stream.write_all(&buffer[..count].to_ascii_uppercase()).await.is_err() {
                return;
            }
        }
    });
    let mut response = Response::new(Full::new(Bytes::new()).boxed());
    *response.status_mut() = http::StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert("connection", HeaderValue::from_static("upgrade"));
    response.headers_mut().insert("upgrade", wanted);
    response.headers_mut().insert("sec-websocket-accept", HeaderValue::from_static("accepted"));
    response
}

/// Objects as a snapshot; names of Services that policies refer to become Services, except `missing*`.
pub fn snapshot(resources: &[Value], services: &[&str], listeners: Option<&Value>) -> Snapshot {
    let mut names: BTreeSet<String> = services.iter().map(|name| (*name).to_owned()).collect();
    resources.iter().for_each(|resource| names_in(resource, &mut names));
    let there = names.iter().filter(|name| !name.starts_with("missing"));
    let mut values: Vec<Value> = there
        .map(|name| {
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
                "spec": {"ports": [{"port": 80, "appProtocol": app_protocol(name)}]}})
        })
        .collect();
    values.extend(resources.iter().map(|resource| {
        json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": resource["type"],
            "metadata": {"name": resource["name"], "namespace": "default"}, "spec": resource["spec"]})
    }));
    if let Some(listeners) = listeners {
        values.push(json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshGateway",
            "metadata": {"name": "edge"}, "spec": {"listeners": listeners}}));
    }
    fixtures::snapshot(&values)
}

/// A Service's protocol by its name: `grpc-*`, `h2-*` and `tcp-*` are what they say.
fn app_protocol(name: &str) -> &'static str {
    match name.split('-').next() {
        Some("grpc") => "grpc",
        Some("h2") => "http2",
        Some("tcp") => "tcp",
        _ => "http",
    }
}

fn names_in(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            let is_service =
                map.get("kind").and_then(Value::as_str).is_some_and(|k| k.starts_with("MeshService"));
            names.extend(map.get("name").and_then(Value::as_str).filter(|_| is_service).map(str::to_owned));
            map.values().for_each(|inner| names_in(inner, names));
        }
        Value::Array(list) => list.iter().for_each(|inner| names_in(inner, names)),
        _ => {}
    }
}

/// The table of a gateway `edge` with these listeners.
pub fn gateway(resources: &[Value], listeners: &Value) -> RouteTable {
    let snapshot = snapshot(resources, &[], Some(listeners));
    let edge =
        snapshot.mesh_gateway(&ObjectKey::new(&"default".into(), &"edge".into())).expect("the gateway");
    plan::routes::gateway(&snapshot, edge).0
}

/// The table of a client that belongs to a Service.
pub fn sidecar(resources: &[Value], services: &[&str], client: &str) -> RouteTable {
    let mut services = services.to_vec();
    services.push(client);
    let snapshot = snapshot(resources, &services, None);
    let client = plan::routes::MeshClient::of_service(&snapshot, &key(client), &model::Labels::EMPTY);
    plan::routes::sidecar(&snapshot, &client).0
}

/// Endpoints for all that a table leads to: by Service, each with its weight and whether it is near.
pub fn backends(
    routes: &RouteTable,
    endpoints: &BTreeMap<String, Vec<(SocketAddr, f32, bool)>>,
) -> BackendTable {
    let mut table = BackendTable::new(ConsumerLocation { node: "here".into(), zone: Some("za".into()) });
    for id in routes.backends() {
        let own = endpoints.get(id.service.name.as_str()).cloned().unwrap_or_default();
        table.put(Arc::new(backend(&id, &own)));
    }
    table
}

pub fn backend(id: &BackendId, endpoints: &[(SocketAddr, f32, bool)]) -> Backend {
    let endpoint = |(address, weight, is_near): &(SocketAddr, f32, bool)| BackendEndpoint {
        address: *address,
        priority: 0,
        weight: *weight,
        zone: Some(if *is_near { "za".into() } else { "zb".into() }),
        locality: if *is_near { Locality::SameZone } else { Locality::CrossZone },
    };
    Backend {
        id: id.clone(),
        protocol: AppProtocol::of(Some(app_protocol(&id.service.name)), ""),
        proxy_protocol: None,
        endpoints: endpoints.iter().map(endpoint).collect(),
        mode: "all",
        is_warmed: false,
    }
}

/// A proxy with its listener.
pub struct Running {
    pub proxy: Proxy,
    pub address: SocketAddr,
    pub echoes: BTreeMap<String, Echo>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
}

impl Running {
    /// The metrics as OpenMetrics text.
    pub fn metrics(&self) -> String {
        let (mut registry, mut text) = (prometheus_client::registry::Registry::default(), String::new());
        self.proxy.register_metrics(&mut registry);
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("a String takes everything");
        text
    }

    /// A proxy over a table, with one echo per backend.
    pub async fn start(routes: RouteTable, kind: ListenerKind, settings: ProxyOptions) -> Self {
        let mut echoes = BTreeMap::new();
        for id in routes.backends() {
            let name = id.service.name.to_string();
            if !echoes.contains_key(&name) {
                echoes.insert(name.clone(), Echo::start(&name).await);
            }
        }
        let endpoints =
            echoes.iter().map(|(name, echo)| (name.clone(), vec![(echo.address, 1.0, true)])).collect();
        let backends = backends(&routes, &endpoints);
        let tables =
            ProxyTables { routes: Arc::new(routes), backends: Arc::new(backends), ..ProxyTables::default() };
        let mut running = Self::with(tables, kind, settings).await;
        running.echoes = echoes;
        running
    }

    pub async fn with(tables: ProxyTables, kind: ListenerKind, settings: ProxyOptions) -> Self {
        let proxy = Proxy::new(settings, tables);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has ports");
        let address = listener.local_addr().expect("bound");
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let server = proxy.clone();
        tokio::spawn(async move {
            server.serve(listener, kind, async { drop(stopped.await) }).await;
        });
        Self { proxy, address, echoes: BTreeMap::new(), stop: Some(stop) }
    }

    pub fn stop(&mut self) {
        self.stop = None;
    }

    pub fn echo(&self, name: &str) -> &Echo {
        &self.echoes[name]
    }

    pub async fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).await.expect("the proxy listens");
        stream.set_nodelay(true).expect("a TCP socket");
        stream
    }

    /// One HTTP/1.1 request by a connection of its own.
    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.send("GET", path, headers, b"").await
    }

    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut stream = self.connect().await;
        let mut text = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            text.push_str("host: svc.test\r\n");
        }
        headers.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
        if !body.is_empty() {
            text.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        text.push_str("\r\n");
        stream.write_all(text.as_bytes()).await.expect("sent");
        stream.write_all(body).await.expect("sent");
        read_answer(&mut stream, method).await.expect("an answer")
    }
}

/// The outbound to a Service `backend`, for a client `frontend`.
pub fn to_backend() -> ListenerKind {
    ListenerKind::Outbound { service: key("backend"), port: 80 }
}

/// A sidecar of `frontend` whose outbound to `backend` has these rules.
pub async fn with_rules(rules: Value, settings: ProxyOptions) -> Running {
    let route = json!({"type": "MeshHTTPRoute", "name": "r", "spec": {"targetRef": {"kind": "Mesh"},
        "to": [{"targetRef": {"kind": "MeshService", "name": "backend"}, "rules": rules}]}});
    Running::start(sidecar(&[route], &["backend"], "frontend"), to_backend(), settings).await
}

/// A sidecar without rules: everything goes to `backend`.
pub async fn plain() -> Running {
    Running::start(sidecar(&[], &["backend"], "frontend"), to_backend(), ProxyOptions::default()).await
}

/// An answer of HTTP/1.1.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    pub trailers: HeaderMap,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

async fn read_line(stream: &mut TcpStream) -> Option<String> {
    let mut line = Vec::new();
    loop {
        let byte = stream.read_u8().await.ok()?;
        line.push(byte);
        if line.ends_with(b"\r\n") {
            return Some(String::from_utf8_lossy(&line[..line.len() - 2]).into_owned());
        }
    }
}

async fn read_fields(stream: &mut TcpStream) -> Option<HeaderMap> {
    let mut fields = HeaderMap::new();
    loop {
        let line = read_line(stream).await?;
        if line.is_empty() {
            return Some(fields);
        }
        let (name, value) = line.split_once(':').expect("a field");
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
        fields.append(name, HeaderValue::from_str(value.trim()).expect("a value"));
    }
}

/// Reads one answer; `None` if the connection ends before.
pub async fn read_answer(stream: &mut TcpStream, method: &str) -> Option<Answer> {
    tokio::time::timeout(ANSWER_PATIENCE, read_answer_now(stream, method)).await.expect("an answer in time")
}

async fn read_answer_now(stream: &mut TcpStream, method: &str) -> Option<Answer> {
    let line = read_line(stream).await?;
    let status = line.split(' ').nth(1)?.parse().ok()?;
    let headers = read_fields(stream).await?;
    let (mut body, mut trailers) = (Vec::new(), HeaderMap::new());
    let length = headers.get("content-length").and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if method == "HEAD" || status < 200 || status == 204 || status == 304 {
        return Some(Answer { status, headers, body, trailers });
    }
    if headers.get("transfer-encoding").is_some() {
        loop {
            let size = usize::from_str_radix(read_line(stream).await?.trim(), 16).ok()?;
            if size == 0 {
                trailers = read_fields(stream).await?;
                break;
            }
            let mut chunk = vec![0; size + 2];
            stream.read_exact(&mut chunk).await.ok()?;
            body.extend_from_slice(&chunk[..size]);
        }
    } else if let Some(length) = length {
        body = vec![0; length];
        stream.read_exact(&mut body).await.ok()?;
    } else {
        stream.read_to_end(&mut body).await.ok()?;
    }
    Some(Answer { status, headers, body, trailers })
}

/// A client of HTTP/2 with prior knowledge.
pub async fn http2(
    address: SocketAddr,
) -> hyper::client::conn::http2::SendRequest<http_body_util::combinators::BoxBody<Bytes, Infallible>> {
    let stream = TcpStream::connect(address).await.expect("the proxy listens");
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .expect("a handshake");
    tokio::spawn(connection);
    sender
}

/// The answer to an extended CONNECT on a connection of its own. The client refuses to send it until the proxy's settings
/// have come, which say that it knows the extension.
pub async fn extended_connect(
    address: SocketAddr,
    request: impl Fn() -> http::Request<http_body_util::combinators::BoxBody<Bytes, Infallible>>,
) -> hyper::Response<hyper::body::Incoming> {
    let mut sender = http2(address).await;
    eventually_async("the settings of the server", async || {
        sender.ready().await.expect("ready");
        sender.send_request(request()).await
    })
    .await
}

pub fn full(bytes: impl Into<Bytes>) -> http_body_util::combinators::BoxBody<Bytes, Infallible> {
    Full::new(bytes.into()).boxed()
}

/// A body whose length is not known before its end.
pub fn unsized_body(chunks: &[&'static str]) -> http_body_util::combinators::BoxBody<Bytes, Infallible> {
    let chunks: Vec<_> =
        chunks.iter().map(|chunk| Frame::data(Bytes::from_static(chunk.as_bytes()))).collect();
    http_body_util::StreamBody::new(futures(chunks.into_iter().map(Ok::<_, Infallible>))).boxed()
}
