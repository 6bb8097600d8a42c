//! A client of the embedded API over its Unix socket. The file mode is the access control.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use clock::Clock;
use http::Uri;
use http::header::ACCEPT_ENCODING;
use http::uri::{Authority, PathAndQuery, Scheme};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::Client;
use tokio::net::UnixStream;
use tower::{Layer, ServiceExt};

use super::request_metrics::RequestMetricsLayer;

/// Connects when a request is sent; every watch has its own connection.
pub(crate) fn client(path: &Path, clock: &Clock) -> Client {
    let connector = Connector { path: Arc::new(path.to_owned()) };
    let http = legacy::Client::builder(TokioExecutor::new()).build(connector);
    let service = http.map_request(|mut request: http::Request<kube::client::Body>| {
        *request.uri_mut() = absolute(request.uri());
        // On one machine bytes cost less than their compression.
        request.headers_mut().remove(ACCEPT_ENCODING);
        request
    });
    Client::new(RequestMetricsLayer::new("api.sock", clock).layer(service), "default")
}

/// hyper requires an absolute URI; the connector ignores the authority.
fn absolute(uri: &Uri) -> Uri {
    let mut parts = uri.clone().into_parts();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(Authority::from_static("localhost"));
    parts.path_and_query.get_or_insert(PathAndQuery::from_static("/"));
    Uri::from_parts(parts).expect("scheme, authority and path are set")
}

#[derive(Clone)]
struct Connector {
    path: Arc<PathBuf>,
}

impl tower::Service<Uri> for Connector {
    type Response = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let path = self.path.clone();
        Box::pin(async move {
            let stream = UnixStream::connect(path.as_path()).await;
            let stream = stream
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
            Ok(Stream(TokioIo::new(stream)))
        })
    }
}

/// A connected socket for hyper's client.
struct Stream(TokioIo<UnixStream>);

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl Write for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
