//! The API server: TLS for kubectl and others, a unix socket for processes of this user, and a tower service for
//! controllers in the same process.
//!
//! Callers have a certificate or a token of [`Credentials`], the token of a service account, or may open the socket. Others
//! are refused, or are `system:anonymous` if the server was told so.
//!
//! ```text
//! TLS connection, counted for its source -> first authenticated request, in time -> counted for its user
//!                                                                                \-> admin: a reserved place
//! unix socket: a reserved place
//! ```

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use ::listener::fair_connections::RequestInFlight;
use ::listener::{ConnectionOwner, ConnectionPlace, HandshakeTurns};
use apimachinery::join::{NodeIdentity, bound_node};
use apimachinery::rbac::{self, UserInfo};
use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, AUTHORIZATION};
use http::{HeaderMap, HeaderValue, Request, Response};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{Notify, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::CertificateDer;

use crate::api::body::TruncatedBody;
use crate::api::fairness::{DRAIN_TIMEOUT, is_exempt};
use crate::api::{Api, Caller, ResponseBody, body};
use crate::authenticator::{AuthenticationError, find_object};
use crate::credentials::Credentials;
use crate::engine::ResourceId;
use crate::kinds;
use crate::status::StatusError;

/// Time of a new connection for the TLS handshake and its first authenticated request.
const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(10);
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Buffer of a connection, each direction; a request head has to fit. No smaller window is possible in HTTP/2.
const CONNECTION_BUFFER: u32 = 64 << 10;
/// Streams of an HTTP/2 connection, as kube-apiserver has them, and the buffer of each for what the client does not take,
/// which is charged to the user.
const MAX_STREAMS: u32 = 100;
const STREAM_BUFFER: usize = 16 << 10;
/// Encrypted bytes that the client does not take: one record.
const TLS_BUFFER: usize = 16 << 10;
/// Requests without valid credentials in the audit log: per second, and at once.
const UNAUTHENTICATED_EVENTS: (f64, f64) = (10.0, 1_000.0);

/// Serves an API to authenticated callers.
#[derive(Clone)]
pub struct ApiServer {
    api: Api,
    credentials: Arc<Credentials>,
    /// Requests without valid credentials that the audit log records: a flood of them must not displace the rest.
    unauthenticated: Arc<Mutex<TokenBucket>>,
    stop: watch::Receiver<bool>,
    /// Whether requests without credentials are served, as `system:anonymous`.
    anonymous: bool,
}

/// Limits a rate.
struct TokenBucket {
    tokens: f64,
    filled: Instant,
    per_second: f64,
    most: f64,
}

impl TokenBucket {
    fn full((per_second, most): (f64, f64), now: Instant) -> Self {
        Self { tokens: most, filled: now, per_second, most }
    }

    fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + passed * self.per_second).min(self.most);
        self.filled = now;
        let has_token = self.tokens >= 1.0;
        if has_token {
            self.tokens -= 1.0;
        }
        has_token
    }
}

impl ApiServer {
    /// A server that stops when `stop` turns true.
    pub fn new(api: Api, credentials: Arc<Credentials>, stop: watch::Receiver<bool>) -> Self {
        let unauthenticated = TokenBucket::full(UNAUTHENTICATED_EVENTS, api.clock().now());
        let unauthenticated = Arc::new(Mutex::new(unauthenticated));
        api.authenticator().set_credentials(credentials.clone());
        Self { api, credentials, unauthenticated, stop, anonymous: false }
    }

    /// Serves requests without credentials as `system:anonymous`.
    pub fn with_anonymous(self, anonymous: bool) -> Self {
        Self { anonymous, ..self }
    }

    /// Serves TLS until the stop.
    pub async fn serve_tls(self, listener: TcpListener, config: ServerConfig) {
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let owner = |(_, peer): &(TcpStream, SocketAddr)| ConnectionOwner::source(peer.ip());
        let serve = |(stream, peer): (TcpStream, SocketAddr), place: ConnectionPlace| {
            let (server, acceptor) = (self.clone(), acceptor.clone());
            async move {
                let client = Arc::new(ClientConnection::new(place));
                let server_api = server.api.clone();
                let connection = server.serve_tls_connection(stream, peer, &acceptor, client.clone());
                tokio::select! {
                    biased;
                    () = connection => {}
                    () = client.authentication_timeout() => {}
                    () = client.revocation(&server_api) => {}
                }
            }
        };
        let connections = &self.api.fairness().connections;
        connections.serve(|| listener.accept(), self.stop.clone(), owner, serve).await;
    }

    async fn serve_tls_connection(
        self,
        stream: TcpStream,
        peer: SocketAddr,
        acceptor: &TlsAcceptor,
        client: Arc<ClientConnection>,
    ) {
        let _ = stream.set_nodelay(true);
        // Until there is something to read, a connection is a descriptor and nothing else.
        if stream.readable().await.is_err() {
            return;
        }
        client.place.touch();
        let source = ConnectionOwner::source(peer.ip());
        let handshake =
            async { acceptor.accept_with(stream, |tls| tls.set_buffer_limit(Some(TLS_BUFFER))).await };
        let Ok(stream) = HandshakeTurns::of_process().run(&source, handshake).await else { return };
        let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        if let Some(certificate) = certificate {
            let _ = client.certificate.set(certificate.clone().into_owned());
        }
        let connection = Some(client.place.handle());
        let caller = Caller { user: Arc::default(), source: Some(peer.ip()), connection };
        self.serve_connection(stream, caller, client).await;
    }

    /// Serves a unix socket until the stop. The mode of its file is the access control: callers may do everything.
    pub async fn serve_unix(self, listener: UnixListener) {
        self.serve_unix_as(listener, Caller::own()).await;
    }

    /// Serves a unix socket whose callers are this user. Its connections have reserved places.
    pub async fn serve_unix_as(self, listener: UnixListener, caller: Caller) {
        let name: Arc<str> = caller.user.name.as_str().into();
        let owner = |_: &_| ConnectionOwner::User(name.clone());
        let serve = |(stream, _), place: ConnectionPlace| {
            let caller = Caller { connection: Some(place.handle()), ..caller.clone() };
            let client = Arc::new(ClientConnection::new(place));
            // It has its place; a token does not change that.
            let _ = client.user.set(());
            self.clone().serve_connection(stream, caller, client)
        };
        let reserved = &self.api.fairness().reserved;
        reserved.serve(|| listener.accept(), self.stop.clone(), owner, serve).await;
    }

    async fn serve_connection(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
        caller: Caller,
        client: Arc<ClientConnection>,
    ) {
        let mut stop = self.stop.clone();
        let (server, caller) = (Arc::new(self), Arc::new(caller));
        let service = service_fn(move |request| {
            let (server, caller, client) = (server.clone(), caller.clone(), client.clone());
            async move {
                let in_flight = client.place.begin_request();
                let response = server.answer(request, &caller, &client).await;
                Ok::<_, Infallible>(response.map(|body| ServedBody { body, _in_flight: in_flight }))
            }
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_buf_size(CONNECTION_BUFFER as usize);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .initial_stream_window_size(CONNECTION_BUFFER)
            .initial_connection_window_size(CONNECTION_BUFFER)
            .max_header_list_size(CONNECTION_BUFFER)
            .max_send_buf_size(STREAM_BUFFER);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => connection.as_mut().graceful_shutdown(),
            // Clients may disconnect at any time; errors are not reported.
            _ = connection.as_mut() => return,
        }
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, connection).await;
    }

    async fn answer(
        &self,
        request: Request<hyper::body::Incoming>,
        caller: &Caller,
        client: &ClientConnection,
    ) -> Response<ResponseBody> {
        match self.authenticate(request.headers(), caller, client.certificate.get()) {
            Ok(caller) => {
                client.authenticated(&caller, &self.api);
                self.api.serve(request, &caller).await
            }
            Err(why) => {
                if self.api.has_audit() {
                    let now = self.api.clock().now();
                    let mut bucket = self.unauthenticated.lock().unwrap_or_else(PoisonError::into_inner);
                    let is_recorded = bucket.take(now);
                    drop(bucket);
                    let has_certificate = client.certificate.get().is_some();
                    let request = request.into_parts().0;
                    self.api.audit_unauthenticated(&request, caller, has_certificate, is_recorded);
                }
                body::error(&why)
            }
        }
    }

    /// The user of a request. A token takes precedence over a certificate and over the socket: who sends one wants its
    /// rights. A certificate that is not valid any more is refused, not anonymous, as in Kubernetes.
    fn authenticate<'a>(
        &self,
        headers: &HeaderMap,
        caller: &'a Caller,
        certificate: Option<&CertificateDer<'_>>,
    ) -> Result<Cow<'a, Caller>, StatusError> {
        let Some(value) = headers.get(AUTHORIZATION) else {
            if let Some(certificate) = certificate {
                let known = self.credentials.by_certificate(certificate);
                let user = known.ok_or_else(StatusError::unauthorized)?.user;
                return Ok(Cow::Owned(Caller { user, ..caller.clone() }));
            }
            let is_known = !caller.user.name.is_empty();
            return match is_known {
                true => Ok(Cow::Borrowed(caller)),
                false if self.anonymous => Ok(Cow::Owned(caller.with_user(UserInfo::anonymous()))),
                false => Err(StatusError::unauthorized()),
            };
        };
        let token = bearer(value).ok_or_else(StatusError::unauthorized)?;
        let now = self.api.clock().timestamp().as_second();
        match self.api.authenticator().authenticate(self.api.engine(), token, &[], now) {
            Ok((user, _)) => Ok(Cow::Owned(caller.with_user(user))),
            Err(AuthenticationError::Ended(why)) => Err(StatusError::credentials_ended(&why)),
            Err(AuthenticationError::Invalid(_)) => Err(StatusError::unauthorized()),
        }
    }
}

/// The token of the header; `None` for another scheme. A token file that was emptied by hand lets no request in.
fn bearer(value: &HeaderValue) -> Option<&str> {
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// An open connection, and whether a request of it was authenticated.
struct ClientConnection {
    place: ConnectionPlace,
    /// Set by the first authenticated request, whose user the connection counts for.
    user: OnceLock<()>,
    is_authenticated: Notify,
    /// What the handshake verified.
    certificate: OnceLock<CertificateDer<'static>>,
    /// Nodes whose credentials came by this connection.
    nodes: watch::Sender<BTreeSet<NodeIdentity>>,
}

impl ClientConnection {
    fn new(place: ConnectionPlace) -> Self {
        let (user, certificate, nodes) = (OnceLock::new(), OnceLock::new(), watch::Sender::default());
        Self { place, user, is_authenticated: Notify::new(), certificate, nodes }
    }

    fn authenticated(&self, caller: &Caller, api: &Api) {
        if let Some(node) = bound_node(&caller.user) {
            self.nodes.send_if_modified(|nodes| nodes.insert(node));
        }
        if self.user.set(()).is_err() {
            return;
        }
        self.is_authenticated.notify_one();
        let owner = ConnectionOwner::User(caller.user.name.as_str().into());
        if is_exempt(caller) {
            self.place.move_to(&api.fairness().reserved, owner);
        } else if caller.user.name != rbac::ANONYMOUS {
            self.place.assign(owner);
        }
    }

    /// Ends when a node whose credential came by this connection is deleted: its watches end, and its next request is
    /// refused.
    async fn revocation(&self, api: &Api) {
        let mut nodes = self.nodes.subscribe();
        if nodes.wait_for(|nodes| !nodes.is_empty()).await.is_err() {
            return;
        }
        let engine = api.engine();
        let Some(kind) = kinds::named("Node") else { return };
        // From the current revision, before the first look: no deletion is missed.
        let Ok(mut deletions) = engine.watch(ResourceId(kind.id), None, engine.revision()) else { return };
        let find = |kind: &str, namespace: &str, name: &str| find_object(engine, kind, namespace, name);
        loop {
            if nodes.borrow_and_update().iter().any(|node| !node.is_live(&find)) {
                return;
            }
            tokio::select! {
                biased;
                changed = nodes.changed() => if changed.is_err() { return },
                events = deletions.events() => if events.is_err() { return },
            }
        }
    }

    /// Ends if no request was authenticated in time.
    async fn authentication_timeout(&self) {
        let authenticated = self.is_authenticated.notified();
        if tokio::time::timeout(AUTHENTICATION_TIMEOUT, authenticated).await.is_ok() {
            std::future::pending().await
        }
    }
}

/// The body of a response on a connection, which is busy until it is sent.
struct ServedBody {
    body: ResponseBody,
    _in_flight: RequestInFlight,
}

impl HttpBody for ServedBody {
    type Data = Bytes;
    type Error = TruncatedBody;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, TruncatedBody>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The API as a tower service, for clients in the same process.
#[derive(Clone)]
pub struct LocalApi {
    api: Api,
    caller: Caller,
}

impl LocalApi {
    /// The API for a trusted caller.
    pub fn new(api: Api, caller: Caller) -> Self {
        Self { api, caller }
    }
}

impl Api {
    /// The API as a service for this process, with all permissions.
    pub fn local(&self) -> LocalApi {
        LocalApi::new(self.clone(), Caller::own())
    }
}

type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, Infallible>> + Send>>;

impl<B> tower::Service<Request<B>> for LocalApi
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> ResponseFuture {
        // Bytes that stay in this process are not compressed.
        request.headers_mut().remove(ACCEPT_ENCODING);
        let Self { api, caller } = self.clone();
        Box::pin(async move { Ok(api.serve(request, &caller).await) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_bucket_empties_and_refills() {
        let start = Instant::now();
        let mut bucket = TokenBucket::full((1_000.0, 2.0), start);
        assert!(bucket.take(start) && bucket.take(start) && !bucket.take(start));
        assert!(bucket.take(start + Duration::from_millis(1)));
    }
}
