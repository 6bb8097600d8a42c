//! Small HTTP servers: health, metrics, and a port for each Service whose load balancer asks. One request, one answer
//! out of a function; slow clients and too many of them are turned away.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;

/// An answer.
pub type Answer = Response<Full<Bytes>>;
/// From a path to its answer.
pub type Handler = Arc<dyn Fn(&str) -> Answer + Send + Sync>;

/// Connections that one server has open.
const CONNECTIONS: usize = 128;
/// How long a client may take for its request.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long one connection lives: probes come again.
const LONGEST: Duration = Duration::from_secs(120);
const BACKLOG: u32 = 128;

/// Listens. An address of IPv6 stands for itself alone, so that `::` and `0.0.0.0` go together.
pub fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = match address.ip() {
        IpAddr::V4(_) => TcpSocket::new_v4()?,
        IpAddr::V6(_) => {
            let socket = TcpSocket::new_v6()?;
            setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
            socket
        }
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves until it is dropped.
pub async fn serve(listener: TcpListener, handler: Handler) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors, most likely: some will come free.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Ok(place) = places.clone().try_acquire_owned() else { continue };
        let handler = handler.clone();
        tokio::spawn(async move {
            let _ = tokio::time::timeout(LONGEST, answer(stream, handler)).await;
            drop(place);
        });
    }
}

async fn answer(stream: TcpStream, handler: Handler) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = handler(request.uri().path());
        async move { Ok::<_, Infallible>(answer) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    // That a client went away is its own business.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

/// Serves at an address; where that cannot be listened on, it is tried again every five seconds.
pub async fn keep_serving(name: &'static str, address: SocketAddr, handler: Handler) {
    loop {
        match listen(address) {
            Ok(listener) => serve(listener, handler.clone()).await,
            Err(error) => {
                tracing::error!(%address, %error, "cannot listen for {name}; trying again in 5 s");
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
        }
    }
}

/// JSON that no browser mistakes for something else.
pub fn json(code: u16, value: &serde_json::Value) -> Answer {
    let mut answer = text(code, "application/json", value.to_string());
    answer.headers_mut().insert("x-content-type-options", http::HeaderValue::from_static("nosniff"));
    answer
}

/// Any text.
pub fn text(code: u16, kind: &'static str, body: String) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() =
        http::StatusCode::from_u16(code).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    answer.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    answer
}

/// There is nothing at that path.
pub fn nothing() -> Answer {
    text(404, "text/plain; charset=utf-8", "404 page not found\n".to_owned())
}
