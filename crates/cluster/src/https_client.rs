//! An API client over TCP that detects dead connections, where no FIN or RST arrives: the machine lost power, or packets are
//! dropped. A watch sends nothing, so TCP has to ask. client-go pings for the same reason.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use clock::Clock;
use http::Uri;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::retry::RetryPolicy;
use kube::client::{ClientBuilder, ConfigExt};
use kube::{Client, Config};
use tower::retry::RetryLayer;
use tower::{BoxError, Service, ServiceBuilder};

use super::request_metrics::RequestMetricsLayer;

/// Silence after which the API is asked whether the connection is still there. One that was restarted refuses it then.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// Silence after which the connection ends.
const SILENCE: Duration = Duration::from_secs(30);

/// The stack of kube-client with connections that end when the API is silent; that of kube-client itself behind a proxy.
pub(crate) fn client(config: Config, host: &str, clock: &Clock) -> kube::Result<Client> {
    let metrics = RequestMetricsLayer::new(host, clock);
    if config.proxy_url.is_some() {
        return Ok(ClientBuilder::try_from(config)?.with_layer(&metrics).build());
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE));
    tcp.set_tcp_user_timeout(Some(SILENCE));
    let connector = config.rustls_https_connector_with_connector(tcp)?;
    let connector = BoundedConnector { connector, timeout: config.connect_timeout.unwrap_or(SILENCE) };
    let service = ServiceBuilder::new()
        .layer(metrics)
        .layer(config.base_uri_layer())
        .option_layer(config.default_retry.then(|| RetryLayer::new(RetryPolicy::server_retry())))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(legacy::Client::builder(TokioExecutor::new()).build(connector));
    Ok(Client::new(service, config.default_namespace))
}

/// Bounds the time to connect, the TLS handshake included.
#[derive(Clone)]
struct BoundedConnector<C> {
    connector: C,
    timeout: Duration,
}

impl<C> Service<Uri> for BoundedConnector<C>
where
    C: Service<Uri, Error: Into<BoxError>, Future: Send + 'static>,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<C::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.connector.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connected = tokio::time::timeout(self.timeout, self.connector.call(uri));
        Box::pin(async move { connected.await?.map_err(Into::into) })
    }
}
