//! Metrics `rest_client_*` of requests to the API, named as by client-go. The same layer reports outages of the API.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use clock::Clock;
use http::{Request, Response};
use kube::client::Body;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tower::{BoxError, Layer, Service};

use super::api_outage;

/// Upper bounds of client-go, in seconds.
const BUCKETS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
/// Label `code` of a request without a response, as in client-go.
const NO_RESPONSE: &str = "<error>";

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResponseLabels {
    code: String,
    method: String,
    host: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    verb: String,
    host: String,
}

/// Metrics of this process.
#[derive(Clone)]
struct RequestMetrics {
    responses: Family<ResponseLabels, Counter>,
    durations: Family<RequestLabels, Histogram, fn() -> Histogram>,
}

fn durations() -> Histogram {
    Histogram::new(BUCKETS)
}

static REQUESTS: LazyLock<RequestMetrics> = LazyLock::new(|| RequestMetrics {
    responses: Family::default(),
    durations: Family::new_with_constructor(durations as fn() -> Histogram),
});

impl RequestMetrics {
    fn count(&self, code: &str, method: &str, host: &str, duration: Duration) {
        let labels =
            ResponseLabels { code: code.to_owned(), method: method.to_owned(), host: host.to_owned() };
        self.responses.get_or_create(&labels).inc();
        let labels = RequestLabels { verb: method.to_owned(), host: host.to_owned() };
        self.durations.get_or_create(&labels).observe(duration.as_secs_f64());
    }

    /// Creates series before the first request.
    fn prepare(&self, host: &str) {
        for code in ["200", NO_RESPONSE] {
            let (code, method) = (code.to_owned(), "GET".to_owned());
            drop(self.responses.get_or_create(&ResponseLabels { code, method, host: host.to_owned() }));
        }
        drop(self.durations.get_or_create(&RequestLabels { verb: "GET".to_owned(), host: host.to_owned() }));
    }
}

/// Registers `rest_client_*`.
pub(crate) fn register(registry: &mut Registry) {
    let RequestMetrics { responses, durations } = &*REQUESTS;
    registry.register(
        "rest_client_requests",
        "Requests to the API by status code, method and host",
        responses.clone(),
    );
    registry.register(
        "rest_client_request_duration_seconds",
        "Time to the response headers of the API, by verb and host",
        durations.clone(),
    );
}

/// Measures the requests of a client.
#[derive(Clone, Debug)]
pub(super) struct RequestMetricsLayer {
    host: Arc<str>,
    clock: Clock,
}

impl RequestMetricsLayer {
    pub(super) fn new(host: &str, clock: &Clock) -> Self {
        REQUESTS.prepare(host);
        api_outage::set_clock(clock);
        Self { host: host.into(), clock: clock.clone() }
    }
}

impl<S> Layer<S> for RequestMetricsLayer {
    type Service = MeasuredService<S>;

    fn layer(&self, inner: S) -> MeasuredService<S> {
        MeasuredService { inner, layer: self.clone() }
    }
}

#[derive(Clone, Debug)]
pub(super) struct MeasuredService<S> {
    inner: S,
    layer: RequestMetricsLayer,
}

impl<S, B> Service<Request<Body>> for MeasuredService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (RequestMetricsLayer { host, clock }, method) = (self.layer.clone(), request.method().clone());
        let start = clock.now();
        let response = self.inner.call(request);
        Box::pin(async move {
            let result = response.await.map_err(Into::into);
            let duration = clock.since(start);
            match &result {
                Ok(response) => {
                    let status = response.status();
                    REQUESTS.count(status.as_str(), method.as_str(), &host, duration);
                    if api_outage::is_unreachable_status(status.as_u16()) {
                        api_outage::api_failed(&status.to_string());
                    } else {
                        api_outage::api_answered();
                    }
                }
                Err(error) => {
                    REQUESTS.count(NO_RESPONSE, method.as_str(), &host, duration);
                    api_outage::api_failed(&explain(error.as_ref()));
                }
            }
            result
        })
    }
}

/// An error with its causes, without repetitions.
fn explain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}
