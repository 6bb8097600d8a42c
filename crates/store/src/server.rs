//! The API server: TLS for kubectl and others, a unix socket for processes of this user, and a tower service for
//! controllers in the same process.
//!
//! Callers have a certificate or a token of [`Credentials`], the token of a service account, or may open the socket. Others
//! are refused, or are `system:anonymous` if the server was told so.

use std::borrow::Cow;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use ::listener::{AtLimit, ConnectionLimit, ConnectionPolicy};
use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Request, Response};
use hyper::body::Body as HttpBody;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use plan::rbac::UserInfo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use crate::api::{Api, ApiLimits, Caller, ResponseBody, body};
use crate::credentials::Credentials;
use crate::status::StatusError;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for requests in progress after the stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Requests without valid credentials in the audit log: per second, and at once.
const UNAUTHENTICATED_EVENTS: (f64, f64) = (10.0, 1_000.0);

/// Serves an API to authenticated callers.
#[derive(Clone)]
pub struct ApiServer {
    api: Api,
    credentials: Arc<Credentials>,
    connections: ConnectionLimit,
    bucket: Arc<Mutex<TokenBucket>>,
    /// Requests without valid credentials that the audit log records: a flood of them must not displace the rest.
    unauthenticated: Arc<Mutex<TokenBucket>>,
    stop: watch::Receiver<bool>,
    /// Whether requests without credentials are served, as `system:anonymous`.
    anonymous: bool,
}

/// Limits the request rate.
struct TokenBucket {
    tokens: f64,
    filled: Instant,
    per_second: f64,
    most: f64,
}

impl TokenBucket {
    fn full(limits: &ApiLimits, now: Instant) -> Self {
        let most = f64::from(limits.requests_at_once);
        Self { tokens: most, filled: now, per_second: f64::from(limits.requests_per_second), most }
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
        let limits = api.limits();
        let bucket = Arc::new(Mutex::new(TokenBucket::full(&limits, api.clock().now())));
        let (per_second, most) = UNAUTHENTICATED_EVENTS;
        let filled = api.clock().now();
        let unauthenticated = Arc::new(Mutex::new(TokenBucket { tokens: most, filled, per_second, most }));
        api.authenticator().set_credentials(credentials.clone());
        let connections = ConnectionLimit::new(ConnectionPolicy {
            max_connections: limits.connections,
            at_limit: AtLimit::Close,
            drain_timeout: DRAIN_TIMEOUT,
        });
        Self { api, credentials, connections, bucket, unauthenticated, stop, anonymous: false }
    }

    /// Serves requests without credentials as `system:anonymous`.
    pub fn with_anonymous(self, anonymous: bool) -> Self {
        Self { anonymous, ..self }
    }

    /// Serves TLS until the stop.
    pub async fn serve_tls(self, listener: TcpListener, config: ServerConfig) {
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let serve = |(stream, peer): (TcpStream, SocketAddr)| {
            let (server, acceptor) = (self.clone(), acceptor.clone());
            async move {
                let _ = stream.set_nodelay(true);
                let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream));
                let Ok(Ok(stream)) = handshake.await else { return };
                let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
                let user = certificate.and_then(|certificate| server.credentials.by_certificate(certificate));
                let user = user.map(|caller| caller.user.clone()).unwrap_or_default();
                server.serve_connection(stream, Caller { user, source: Some(peer.ip()) }).await;
            }
        };
        self.connections.serve(|| listener.accept(), self.stop.clone(), serve).await;
    }

    /// Serves a unix socket until the stop. The mode of its file is the access control: callers may do everything.
    pub async fn serve_unix(self, listener: UnixListener) {
        let serve = |(stream, _)| self.clone().serve_connection(stream, Caller::own());
        self.connections.serve(|| listener.accept(), self.stop.clone(), serve).await;
    }

    async fn serve_connection(self, stream: impl AsyncRead + AsyncWrite + Unpin + 'static, caller: Caller) {
        let mut stop = self.stop.clone();
        let (server, caller) = (Arc::new(self), Arc::new(caller));
        let service = service_fn(move |request| {
            let (server, caller) = (server.clone(), caller.clone());
            async move { Ok::<_, Infallible>(server.answer(request, &caller).await) }
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
        builder.http2().timer(TokioTimer::new()).max_concurrent_streams(1_000);
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
    ) -> Response<ResponseBody> {
        if !self.bucket.lock().unwrap_or_else(PoisonError::into_inner).take(self.api.clock().now()) {
            return body::error(&StatusError::too_many_requests("too many requests: retry after a second"));
        }
        match self.authenticate(request.headers(), caller) {
            Some(caller) => self.api.serve(request, &caller).await,
            None => {
                if self.api.has_audit() {
                    let now = self.api.clock().now();
                    let mut bucket = self.unauthenticated.lock().unwrap_or_else(PoisonError::into_inner);
                    let is_recorded = bucket.take(now);
                    drop(bucket);
                    self.api.audit_unauthenticated(&request.into_parts().0, caller, is_recorded);
                }
                body::error(&StatusError::unauthorized())
            }
        }
    }

    /// A token takes precedence over a certificate and over the socket: who sends one wants its rights.
    fn authenticate<'a>(&self, headers: &HeaderMap, caller: &'a Caller) -> Option<Cow<'a, Caller>> {
        let Some(value) = headers.get(AUTHORIZATION) else {
            let is_known = !caller.user.name.is_empty();
            return match is_known {
                true => Some(Cow::Borrowed(caller)),
                false if self.anonymous => Some(Cow::Owned(caller.with_user(UserInfo::anonymous()))),
                false => None,
            };
        };
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        let token = token.trim();
        // A token file that was emptied by hand lets no request in.
        if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
            return None;
        }
        let now = self.api.clock().timestamp().as_second();
        let found = self.api.authenticator().authenticate(self.api.engine(), token, &[], now).ok()?;
        Some(Cow::Owned(caller.with_user(found.0)))
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

    fn call(&mut self, request: Request<B>) -> ResponseFuture {
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
        let limits = ApiLimits { requests_at_once: 2, requests_per_second: 1_000, ..ApiLimits::default() };
        let mut bucket = TokenBucket::full(&limits, start);
        assert!(bucket.take(start) && bucket.take(start) && !bucket.take(start));
        assert!(bucket.take(start + Duration::from_millis(1)));
    }
}
