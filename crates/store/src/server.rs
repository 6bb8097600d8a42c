//! The API on the network: TLS on loopback for kubectl and others, a unix socket for processes of this user,
//! and a tower service for controllers in the same process.
//!
//! Whoever comes is somebody: a certificate or a token of [`Credentials`], or the owner of the socket.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body as HttpBody;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use crate::api::{Api, Body, Caller, Limits, body};
use crate::credentials::Credentials;
use crate::status::Failure;

const HANDSHAKE: Duration = Duration::from_secs(10);
const HEADERS: Duration = Duration::from_secs(30);
/// How long requests under way may go on after the stop.
const FAREWELL: Duration = Duration::from_secs(2);

/// Serves an API to whoever has credentials.
#[derive(Clone)]
pub struct Server {
    api: Api,
    credentials: Arc<Credentials>,
    connections: Arc<Semaphore>,
    bucket: Arc<Mutex<Bucket>>,
    stop: watch::Receiver<bool>,
}

/// What is left of the rate.
struct Bucket {
    tokens: f64,
    filled: Instant,
    per_second: f64,
    most: f64,
}

impl Bucket {
    fn full(limits: &Limits, now: Instant) -> Self {
        let most = f64::from(limits.requests_at_once);
        Self { tokens: most, filled: now, per_second: f64::from(limits.requests_per_second), most }
    }

    fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + passed * self.per_second).min(self.most);
        self.filled = now;
        let served = self.tokens >= 1.0;
        if served {
            self.tokens -= 1.0;
        }
        served
    }
}

impl Server {
    /// A server that stops when `stop` turns true.
    pub fn new(api: Api, credentials: Arc<Credentials>, stop: watch::Receiver<bool>) -> Self {
        let limits = api.limits();
        let bucket = Arc::new(Mutex::new(Bucket::full(&limits, Instant::now())));
        Self { api, credentials, connections: Arc::new(Semaphore::new(limits.connections)), bucket, stop }
    }

    /// Serves TLS until the stop.
    pub async fn serve_tls(self, listener: TcpListener, config: ServerConfig) {
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let mut stop = self.stop.clone();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = stop.wait_for(|stop| *stop) => return,
            };
            let Some((stream, _)) = settle(accepted).await else { continue };
            let Ok(permit) = self.connections.clone().try_acquire_owned() else { continue };
            let (server, acceptor) = (self.clone(), acceptor.clone());
            tokio::spawn(async move {
                let _permit = permit;
                let _ = stream.set_nodelay(true);
                let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await else {
                    return;
                };
                let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
                let caller = shown.and_then(|shown| server.credentials.by_certificate(shown)).cloned();
                server.serve_connection(stream, caller).await;
            });
        }
    }

    /// Serves a unix socket until the stop. Its file's mode says who may come, and they may do everything.
    pub async fn serve_unix(self, listener: UnixListener) {
        let mut stop = self.stop.clone();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = stop.wait_for(|stop| *stop) => return,
            };
            let Some((stream, _)) = settle(accepted).await else { continue };
            let Ok(permit) = self.connections.clone().try_acquire_owned() else { continue };
            let server = self.clone();
            tokio::spawn(async move {
                let _permit = permit;
                server.serve_connection(stream, Some(Caller::own())).await;
            });
        }
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
        builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADERS);
        builder.http2().timer(TokioTimer::new()).max_concurrent_streams(1_000);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        tokio::select! {
            // A client that breaks off is no news.
            _ = connection.as_mut() => return,
            _ = stop.wait_for(|stop| *stop) => connection.as_mut().graceful_shutdown(),
        }
        let _ = tokio::time::timeout(FAREWELL, connection).await;
    }

    async fn answer(
        &self,
        request: Request<hyper::body::Incoming>,
        caller: Option<&Caller>,
    ) -> Response<Body> {
        if !self.bucket.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now()) {
            return body::failure(&Failure::too_many_requests("too many requests: try again in a second"));
        }
        let Some(caller) = self.recognise(request.headers(), caller) else {
            return body::failure(&Failure::unauthorized());
        };
        answer(&self.api, request, caller).await
    }

    /// A token counts more than a certificate, as with API servers.
    fn recognise<'a>(&'a self, headers: &HeaderMap, certified: Option<&'a Caller>) -> Option<&'a Caller> {
        let Some(value) = headers.get(AUTHORIZATION) else { return certified };
        let token = value.to_str().ok().and_then(|value| value.strip_prefix("Bearer "));
        token.and_then(|token| self.credentials.by_token(token.trim()))
    }
}

/// What came in. When the machine has no descriptors left, waiting a little is all that helps.
async fn settle<T>(accepted: io::Result<T>) -> Option<T> {
    match accepted {
        Ok(accepted) => Some(accepted),
        Err(_) => {
            tokio::time::sleep(Duration::from_millis(50)).await;
            None
        }
    }
}

/// Reads a request up to its limit and answers it.
async fn answer<B>(api: &Api, request: Request<B>, caller: &Caller) -> Response<Body>
where
    B: HttpBody,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let limit = api.limits().body;
    let (head, content) = request.into_parts();
    match Limited::new(content, limit).collect().await {
        Ok(content) => api.answer(Request::from_parts(head, content.to_bytes()), caller).await,
        Err(error) if error.is::<LengthLimitError>() => body::failure(&Failure::too_large(limit)),
        Err(error) => body::failure(&Failure::bad_request(format!("the body could not be read: {error}"))),
    }
}

/// The API as a tower service, for clients in the same process.
#[derive(Clone)]
pub struct Local {
    api: Api,
    caller: Caller,
}

impl Local {
    /// The API for a caller who needs no credentials.
    pub fn new(api: Api, caller: Caller) -> Self {
        Self { api, caller }
    }
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl<B> tower::Service<Request<B>> for Local
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Answer {
        let Self { api, caller } = self.clone();
        Box::pin(async move { Ok(answer(&api, request, &caller).await) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bucket_empties_and_fills_again() {
        let start = Instant::now();
        let limits = Limits { requests_at_once: 2, requests_per_second: 1_000, ..Limits::default() };
        let mut bucket = Bucket::full(&limits, start);
        assert!(bucket.take(start) && bucket.take(start) && !bucket.take(start));
        assert!(bucket.take(start + Duration::from_millis(1)));
    }
}
