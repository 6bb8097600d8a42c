//! One check: a TCP connection, or a GET as the kubelet sends it.

use std::io;
use std::net::SocketAddr;

use super::readiness::{EndpointCheck, Probe};
use bytes::Bytes;
use http::Request;
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// The error is the reason, stable from one check to the next.
pub(super) async fn run(address: SocketAddr, check: &EndpointCheck) -> Result<(), String> {
    let what = match &check.probe {
        Probe::Tcp { .. } => format!("TCP {address}"),
        Probe::Http { path, .. } => format!("GET http://{address}{path}"),
    };
    let attempt = async {
        match &check.probe {
            Probe::Tcp { .. } => connect(address).await.map(drop),
            Probe::Http { path, .. } => get(address, path).await,
        }
    };
    match tokio::time::timeout(check.timeout(), attempt).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(why)) => Err(format!("{what}: {why}")),
        Err(_) => Err(format!("{what}: no answer within {}s", check.timeout_seconds)),
    }
}

async fn connect(address: SocketAddr) -> Result<TcpStream, String> {
    TcpStream::connect(address).await.map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::HostUnreachable => "host unreachable".to_owned(),
        io::ErrorKind::NetworkUnreachable => "network unreachable".to_owned(),
        _ => error.to_string(),
    })
}

/// A status from 200 to 399 is a success. The body is not read.
async fn get(address: SocketAddr, path: &str) -> Result<(), String> {
    let stream = connect(address).await?;
    let failed = || "the connection ended without a response".to_owned();
    let (mut requests, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|_| failed())?;
    let request = Request::get(path)
        .header("host", address.to_string())
        .header("user-agent", concat!("zoneward-health-check/", env!("CARGO_PKG_VERSION")))
        .header("accept", "*/*")
        .header("connection", "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    // The connection ends with this function. One that ended may have brought the response.
    let mut response = std::pin::pin!(requests.send_request(request));
    let response = tokio::select! {
        response = &mut response => response,
        _ = connection => response.await,
    };
    let response = response.map_err(|_| failed())?;
    match response.status().as_u16() {
        200..=399 => Ok(()),
        status => Err(format!("status {status}")),
    }
}
