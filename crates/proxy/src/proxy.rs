//! The proxy as its owner sees it: made once, fed with tables, given listeners, drained at the end.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use http::{Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use model::route::{End, HeaderLines, LegTarget, Request, Routing, path};
use model::{BackendTable, Notice, ObjectKey, RouteTable, ServiceKey};
use tokio::net::{TcpListener, TcpStream};

use crate::certificate::KeyPair;
use crate::settings::Settings;

/// What a proxy obeys. All of it is replaced together.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// Which way requests go.
    pub routes: Arc<RouteTable>,
    /// Who answers there.
    pub backends: Arc<BackendTable>,
    /// The certificates of a gateway's listeners, by Secret.
    pub certificates: Arc<BTreeMap<ObjectKey, Arc<KeyPair>>>,
}

/// How requests come to a listener, and so which routes are theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entrance {
    /// All of them are for this port of a Service.
    Outbound {
        /// The Service.
        service: ServiceKey,
        /// Its port.
        port: u16,
    },
    /// The kernel sent them here; it knows where they were going.
    OriginalDestination,
    /// They are for a gateway.
    Gateway {
        /// The port of the gateway's listeners, whatever the number that this machine listens on.
        port: u16,
    },
}

/// The proxy. Clones are the same proxy.
#[derive(Clone)]
pub struct Proxy {
    inner: Arc<Inner>,
}

struct Inner {
    #[allow(dead_code)]
    settings: Settings,
    tables: RwLock<Tables>,
}

struct Headers<'a>(&'a http::HeaderMap);

impl HeaderLines for Headers<'_> {
    fn any(&self, name: &str, test: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.0.get_all(name).iter().any(|value| test(value.as_bytes()))
    }
}

type Answer = Response<http_body_util::Either<Incoming, http_body_util::Empty<bytes::Bytes>>>;

impl Proxy {
    /// A proxy that obeys these tables.
    pub fn new(settings: Settings, tables: Tables) -> Self {
        Self { inner: Arc::new(Inner { settings, tables: RwLock::new(tables) }) }
    }

    /// Obeys other tables from the next request on; requests in flight keep theirs. What cannot be obeyed is told.
    pub fn swap(&self, tables: Tables) -> Vec<Notice> {
        *self.inner.tables.write().unwrap_or_else(PoisonError::into_inner) = tables;
        Vec::new()
    }

    /// Accepts connections until `stop`; those that are open then go on, see [`Proxy::drain`].
    pub async fn serve(&self, listener: TcpListener, entrance: Entrance, stop: impl Future<Output = ()>) {
        let entrance = Arc::new(entrance);
        let mut stop = std::pin::pin!(stop);
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = &mut stop => return,
            };
            let Ok((stream, _)) = accepted else { continue };
            let (proxy, entrance) = (self.clone(), entrance.clone());
            tokio::spawn(async move {
                let service = service_fn(|request| proxy.answer(&entrance, request));
                let server = hyper::server::conn::http1::Builder::new();
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    }

    /// Lets open connections come to their end, and ends those that take longer.
    pub async fn drain(&self, within: Duration) {
        let _ = within;
    }

    /// What was counted, as text for Prometheus.
    pub fn metrics(&self) -> String {
        String::new()
    }

    async fn answer(
        &self,
        entrance: &Entrance,
        request: http::Request<Incoming>,
    ) -> Result<Answer, hyper::Error> {
        let status = match self.forward(entrance, request).await {
            Ok(response) => return Ok(response.map(http_body_util::Either::Left)),
            Err(status) => status,
        };
        let mut response = Response::new(http_body_util::Either::Right(http_body_util::Empty::new()));
        *response.status_mut() = status;
        Ok(response)
    }

    async fn forward(
        &self,
        entrance: &Entrance,
        mut request: http::Request<Incoming>,
    ) -> Result<Response<Incoming>, StatusCode> {
        let address = self.address(entrance, &request)?;
        let bad = |_| StatusCode::BAD_GATEWAY;
        let stream = TcpStream::connect(address).await.map_err(|_| StatusCode::BAD_GATEWAY)?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(bad)?;
        tokio::spawn(connection);
        let target = request.uri().path_and_query().cloned();
        *request.uri_mut() = target.map(http::Uri::from).unwrap_or_default();
        sender.send_request(request).await.map_err(bad)
    }

    fn address(
        &self,
        entrance: &Entrance,
        request: &http::Request<Incoming>,
    ) -> Result<std::net::SocketAddr, StatusCode> {
        let tables = self.inner.tables.read().unwrap_or_else(PoisonError::into_inner).clone();
        let host =
            request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let routing = match entrance {
            Entrance::Outbound { service, port } => {
                tables.routes.outbound(service, *port).map(|o| &o.routing)
            }
            Entrance::OriginalDestination => None,
            Entrance::Gateway { port } => {
                tables.routes.port(*port).and_then(|p| p.listener(host)?.routing(host))
            }
        };
        let Some(Routing::Http(routes)) = routing else { return Err(StatusCode::NOT_FOUND) };
        let normal = path::normalize(request.uri().path());
        let headers = Headers(request.headers());
        let asked = Request {
            method: request.method().as_str(),
            host,
            path: &normal,
            query: request.uri().query(),
            headers: &headers,
        };
        let hit = routes.find(&asked).ok_or(StatusCode::NOT_FOUND)?;
        let End::Forward(split) = &hit.rule.action.end else { return Err(StatusCode::NOT_IMPLEMENTED) };
        let Some(LegTarget::Backend(id)) = split.pick(0) else {
            return Err(StatusCode::INTERNAL_SERVER_ERROR);
        };
        let backend = tables.backends.backend(id).ok_or(StatusCode::SERVICE_UNAVAILABLE)?;
        backend.endpoints.first().map(|endpoint| endpoint.address).ok_or(StatusCode::SERVICE_UNAVAILABLE)
    }
}
