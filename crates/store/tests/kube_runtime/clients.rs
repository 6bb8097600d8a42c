//! For tests: kube's client by each of the three ways to the API.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::Request;
use hyper_util::rt::TokioIo;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use store::api::Caller;
use store::server::LocalApi;
use tokio::net::UnixStream;
use tower::ServiceExt;
use tower::util::service_fn;

use super::served::Served;

/// TLS on loopback, with the kubeconfig that `zoneward up` writes.
pub async fn by_tls(served: &Served) -> Client {
    let kubeconfig = Kubeconfig::read_from(&served.kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

/// The unix socket; one connection for each request.
pub fn by_socket(served: &Served) -> Client {
    let socket = served.socket.clone();
    Client::new(service_fn(move |request| ask(socket.clone(), request)), "default")
}

type Answer = http::Response<hyper::body::Incoming>;

async fn ask(
    socket: PathBuf,
    mut request: Request<Body>,
) -> Result<Answer, Box<dyn std::error::Error + Send + Sync>> {
    let stream = TokioIo::new(UnixStream::connect(socket).await?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    tokio::spawn(connection);
    request.headers_mut().insert("host", "localhost".parse()?);
    Ok(sender.send_request(request).await?)
}

/// The same process, with a count of the lists that are asked for.
pub fn counting(served: &Served, lists: Arc<AtomicU64>) -> Client {
    let local = LocalApi::new(served.api.clone(), Caller::own());
    let ask = move |request: Request<Body>| {
        let is_watch = request.uri().query().unwrap_or_default().contains("watch=true");
        if request.method() == http::Method::GET && !is_watch {
            lists.fetch_add(1, Ordering::Relaxed);
        }
        local.clone().oneshot(request)
    };
    Client::new(service_fn(ask), "default")
}

/// The same process, without a network.
pub fn in_process(served: &Served) -> Client {
    Client::new(LocalApi::new(served.api.clone(), Caller::own()), "default")
}
