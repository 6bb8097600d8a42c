//! HTTP to loopback listeners of controllers and node proxies: directly, or by port-forward to their pods.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::Api;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// About 60,000 Services of a report.
const MAX_BODY: usize = 64 << 20;

/// A connection for requests one after the other.
pub(super) struct HttpSession {
    sender: SendRequest<Empty<Bytes>>,
}

impl HttpSession {
    pub(super) async fn new(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<Self> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.context("speaking HTTP")?;
        tokio::spawn(connection);
        Ok(Self { sender })
    }

    /// Connects to an address; `what` is there.
    pub(super) async fn direct(address: SocketAddr, what: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).await;
        Self::new(stream.with_context(|| format!("connecting to {what} at {address}"))?).await
    }

    /// The body of a page; another status than 200 is an error with its text.
    pub(super) async fn get(&mut self, path: &str) -> Result<Bytes> {
        let request = Request::get(path).header("host", "localhost").body(Empty::<Bytes>::new())?;
        let response = self.sender.send_request(request).await.context("sending a request")?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_BODY).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("reading the response: {error}"))?.to_bytes();
        if status != StatusCode::OK {
            bail!("the response is {status}: {}", String::from_utf8_lossy(&body).trim());
        }
        Ok(body)
    }
}

/// A connection to a port on the loopback of a pod.
pub(super) async fn forward(
    client: &Client,
    namespace: &str,
    pod: &str,
    port: u16,
) -> Result<impl AsyncRead + AsyncWrite + Unpin + Send + use<>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let mut forwarder = pods.portforward(pod, &[port]).await.with_context(|| {
        format!("port-forward to Pod {namespace}/{pod}: it needs the right to create pods/portforward")
    })?;
    let stream = forwarder.take_stream(port).context("port-forward has no stream")?;
    // Ends with the stream.
    tokio::spawn(async move { forwarder.join().await });
    Ok(stream)
}
