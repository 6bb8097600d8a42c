//! The API server: TLS for kubectl and others, a unix socket for processes of this user, and a tower service for
//! controllers in the same process.
//!
//! There is no anonymous access: callers have a certificate or a token of [`Credentials`], or may open the socket.

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
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body as HttpBody;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
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

/// Serves an API to authenticated callers.
#[derive(Clone)]
pub struct ApiServer {
    api: Api,
    credentials: Arc<Credentials>,
    connections: ConnectionLimit,
    bucket: Arc<Mutex<TokenBucket>>,
    stop: watch::Receiver<bool>,
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
        let connections = ConnectionLimit::new(ConnectionPolicy {
            max_connections: limits.connections,
            at_limit: AtLimit::Close,
            drain_timeout: DRAIN_TIMEOUT,
        });
        Self { api, credentials, connections, bucket, stop }
    }

    /// Serves TLS until the stop.
    pub async fn serve_tls(self, listener: TcpListener, config: ServerConfig) {
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let serve = |(stream, _): (TcpStream, SocketAddr)| {
            let (server, acceptor) = (self.clone(), acceptor.clone());
            async move {
                let _ = stream.set_nodelay(true);
                let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream));
                let Ok(Ok(stream)) = handshake.await else { return };
                let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
                let caller = certificate
                    .and_then(|certificate| server.credentials.by_certificate(certificate))
                    .cloned();
                server.serve_connection(stream, caller).await;
            }
        };
        self.connections.serve(|| listener.accept(), self.stop.clone(), serve).await;
    }

    /// Serves a unix socket until the stop. The mode of its file is the access control: callers may do everything.
    pub async fn serve_unix(self, listener: UnixListener) {
        let serve = |(stream, _)| self.clone().serve_connection(stream, Some(Caller::own()));
        self.connections.serve(|| listener.accept(), self.stop.clone(), serve).await;
    }

    async fn serve_connection(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
        caller: Option<Caller>,
    ) {
        let mut stop = self.stop.clone();
        let (server, caller) = (Arc::new(self), caller.map(Arc::new));
        let service = service_fn(move |request| {
            let (server, caller) = (server.clone(), caller.clone());
            async move { Ok::<_, Infallible>(server.answer(request, caller.as_deref()).await) }
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
        caller: Option<&Caller>,
    ) -> Response<ResponseBody> {
        if !self.bucket.lock().unwrap_or_else(PoisonError::into_inner).take(self.api.clock().now()) {
            return body::error(&StatusError::too_many_requests("too many requests: retry after a second"));
        }
        let Some(caller) = self.authenticate(request.headers(), caller) else {
            return body::error(&StatusError::unauthorized());
        };
        answer(&self.api, request, caller).await
    }

    /// A token takes precedence over a certificate, as in Kubernetes.
    fn authenticate<'a>(&'a self, headers: &HeaderMap, certified: Option<&'a Caller>) -> Option<&'a Caller> {
        let Some(value) = headers.get(AUTHORIZATION) else { return certified };
        let token = value.to_str().ok().and_then(|value| value.strip_prefix("Bearer "));
        token.and_then(|token| self.credentials.by_token(token.trim()))
    }
}

/// Reads a request up to the limit of its body and answers it.
async fn answer<B>(api: &Api, request: Request<B>, caller: &Caller) -> Response<ResponseBody>
where
    B: HttpBody,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let limit = api.limits().body;
    let (head, content) = request.into_parts();
    match Limited::new(content, limit).collect().await {
        Ok(content) => api.answer(Request::from_parts(head, content.to_bytes()), caller).await,
        Err(error) if error.is::<LengthLimitError>() => body::error(&StatusError::too_large(limit)),
        Err(error) => body::error(&StatusError::bad_request(format!(
            "the body of the request could not be read: {error}"
        ))),
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
        Box::pin(async move { Ok(answer(&api, request, &caller).await) })
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
