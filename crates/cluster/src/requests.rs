//! Requests to the API as metrics, by the names of Kubernetes' own clients, and the news that the API is away or back.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Instant;

use http::{Request, Response};
use kube::client::Body;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tower::{BoxError, Layer, Service};

use super::outage;

/// The upper bounds of client-go, in seconds.
const BUCKETS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
/// The code of a request without an answer, as client-go writes it.
const NO_ANSWER: &str = "<error>";

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Answered {
    code: String,
    method: String,
    host: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Sent {
    verb: String,
    host: String,
}

/// The counts of this process.
#[derive(Clone)]
struct Requests {
    answers: Family<Answered, Counter>,
    durations: Family<Sent, Histogram, fn() -> Histogram>,
}

fn durations() -> Histogram {
    Histogram::new(BUCKETS)
}

static REQUESTS: LazyLock<Requests> = LazyLock::new(|| Requests {
    answers: Family::default(),
    durations: Family::new_with_constructor(durations as fn() -> Histogram),
});

impl Requests {
    fn count(&self, code: &str, method: &str, host: &str, began: Instant) {
        let answered = Answered { code: code.to_owned(), method: method.to_owned(), host: host.to_owned() };
        self.answers.get_or_create(&answered).inc();
        let sent = Sent { verb: method.to_owned(), host: host.to_owned() };
        self.durations.get_or_create(&sent).observe(began.elapsed().as_secs_f64());
    }

    /// Series that exist before the first request.
    fn prepare(&self, host: &str) {
        for code in ["200", NO_ANSWER] {
            let (code, method) = (code.to_owned(), "GET".to_owned());
            drop(self.answers.get_or_create(&Answered { code, method, host: host.to_owned() }));
        }
        drop(self.durations.get_or_create(&Sent { verb: "GET".to_owned(), host: host.to_owned() }));
    }
}

/// Registers `rest_client_*`.
pub fn register(registry: &mut Registry) {
    let Requests { answers, durations } = &*REQUESTS;
    registry.register(
        "rest_client_requests",
        "Requests to the API by status, method and host",
        answers.clone(),
    );
    registry.register(
        "rest_client_request_duration_seconds",
        "Time until the API began its answer, by method and host",
        durations.clone(),
    );
}

/// Counts the requests of a client to this host.
#[derive(Clone, Debug)]
pub(super) struct Counting {
    host: Arc<str>,
}

impl Counting {
    pub(super) fn new(host: &str) -> Self {
        REQUESTS.prepare(host);
        Self { host: host.into() }
    }
}

impl<S> Layer<S> for Counting {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner, host: self.host.clone() }
    }
}

/// A client whose requests are counted.
#[derive(Clone, Debug)]
pub(super) struct Counted<S> {
    inner: S,
    host: Arc<str>,
}

impl<S, B> Service<Request<Body>> for Counted<S>
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
        let (host, method) = (self.host.clone(), request.method().clone());
        let began = Instant::now();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await.map_err(Into::into);
            match &answer {
                Ok(response) => {
                    let status = response.status();
                    REQUESTS.count(status.as_str(), method.as_str(), &host, began);
                    if outage::means_away(status.as_u16()) {
                        outage::api_failed(&status.to_string());
                    } else {
                        outage::api_answered();
                    }
                }
                Err(error) => {
                    REQUESTS.count(NO_ANSWER, method.as_str(), &host, began);
                    outage::api_failed(&explain(error.as_ref()));
                }
            }
            answer
        })
    }
}

/// An error with its causes, each once.
pub(super) fn explain(error: &(dyn Error + 'static)) -> String {
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
