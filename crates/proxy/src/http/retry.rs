//! The retries of a request: one loop and one budget, for all reasons and endpoints together.
//!
//! ```text
//! request timeout: |----------------------------------------------------| the whole exchange, 504
//!                  | try: not sent | try: status or timeout | backoff | try | ...   each try at most backendRequest
//! ```
//!
//! A request that no endpoint has seen is sent to another one at once: no connection could be established, or a reused one
//! turned out to be closed. A safe request without a body is also sent again if a reused connection failed afterwards.
//! Statuses, timeouts and broken connections are retried by a rule or policy with retries only, after its backoff.
//! The number of retries of a request is `RetryLimits::of`, as for Envoy; `RetryBudget` limits the retries in flight of all.

use std::pin::Pin;
use std::sync::Arc;

use http::{Request, Response, StatusCode};
use hyper::body::{Body, Incoming};
use model::route::RouteRetry;
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};

use super::attempt::{self, AttemptContext, FailedAttempt};
use super::body::RequestBody;
use super::forward::is_gateway_failure;
use super::request_template::RequestTemplate;
use crate::downstream::connection::HttpConnection;
use crate::request_log::RequestLog;
use crate::upstream::backend::UpstreamBackend;
use crate::upstream::backend_settings::RequestLimits;
use crate::upstream::circuit_breaker::InFlightGuard;
use crate::upstream::connection_pool::{Connector, PooledConnection, overload_reason};
use crate::upstream::endpoint::{ProxyTime, UpstreamEndpoint};
use crate::upstream::outlier_detection::note_failure;

/// The response, or the status of the local reply, with a reason where the status does not say it.
pub(super) type SentRequest =
    Result<(Response<Incoming>, PooledConnection), (StatusCode, Option<&'static str>)>;

/// Sends a request to an endpoint of a backend, with retries. Also returns until when the body of the response may take.
pub(super) async fn send(
    connection: &HttpConnection,
    backend: &Arc<UpstreamBackend>,
    request: Request<RequestBody>,
    context: &AttemptContext<'_>,
    limits: Option<&RequestLimits>,
    request_log: &mut RequestLog,
) -> (SentRequest, Option<Instant>) {
    let deadline = limits.and_then(|limits| limits.timeouts.request).map(|limit| Instant::now() + limit);
    let retry = limits.and_then(|limits| limits.retry.as_ref());
    let mut tries = Tries {
        connection,
        backend,
        context,
        // An upgrade is retried only if no endpoint has seen it.
        retry: retry.filter(|_| context.upgrade.is_none()),
        limits,
        deadline,
        until: deadline,
        avoid: Vec::new(),
        left: connection.proxy.settings.limits.retries.of(retry),
        permit: None,
    };
    let sent = tries.run(request, request_log).await;
    (sent, tries.until)
}

struct Tries<'s> {
    connection: &'s HttpConnection,
    backend: &'s Arc<UpstreamBackend>,
    context: &'s AttemptContext<'s>,
    limits: Option<&'s RequestLimits>,
    /// How a request is retried that an endpoint may have seen.
    retry: Option<&'s RouteRetry>,
    deadline: Option<Instant>,
    /// The end of the current try.
    until: Option<Instant>,
    /// Endpoints that failed before.
    avoid: Vec<Arc<UpstreamEndpoint>>,
    /// Retries left.
    left: u32,
    /// One of the retries that the circuit breaker allows, from the first one on.
    permit: Option<InFlightGuard<'s>>,
}

impl Tries<'_> {
    async fn run(&mut self, mut request: Request<RequestBody>, request_log: &mut RequestLog) -> SentRequest {
        let proxy = &self.connection.proxy;
        let template = match self.retry {
            // Boxed, so that the futures of requests without retries stay small.
            Some(_) if self.left > 0 => Box::pin(self.template(&mut request)).await?,
            _ => None,
        };
        let mut now = proxy.at(request_log.started);
        loop {
            let (sent, unsent) = match self.send_once(request, now, request_log).await {
                Ok(responded) => (Ok(responded), None),
                Err(failed) => (Err((failed.status, failed.reason)), failed.request),
            };
            let is_over = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
            let template = template.as_ref().filter(|_| self.is_retried(&sent));
            if is_over || (unsent.is_none() && template.is_none()) || !self.take_retry() {
                return sent;
            }
            request = match (unsent, template) {
                (Some(unsent), _) => unsent,
                (None, Some(template)) => {
                    self.leave(sent);
                    Box::pin(self.back_off()).await?;
                    template.request(self.connection)
                }
                (None, None) => return sent,
            };
            now = proxy.now();
        }
    }

    /// One try at one endpoint, within its own limit and that of all.
    async fn send_once(
        &mut self,
        mut request: Request<RequestBody>,
        now: ProxyTime,
        request_log: &mut RequestLog,
    ) -> Result<(Response<Incoming>, PooledConnection), FailedAttempt> {
        let Self { connection, backend, context, .. } = *self;
        let proxy = &*connection.proxy;
        let connector =
            Connector { proxy, backend, claimant: Some(&connection.activity), from: &context.from };
        let mut timer = self.start_timer();
        let balancer = backend.load_balancer();
        let client = || request_log.forwarded_for.unwrap_or(context.from.client.ip());
        let key = match balancer.settings.algorithm.hash_on() {
            Some(_) => balancer.key_of_request(request.headers(), client()),
            None => None,
        };
        let Some(chosen) = balancer.pick(&proxy.random, now, key, &self.avoid) else {
            return Err(FailedAttempt::by_proxy(None));
        };
        let endpoint = &chosen.endpoint;
        request_log.backend = Some((backend.clone(), chosen.locality));
        request_log.endpoint = Some(endpoint.address);
        let limits = &balancer.settings.circuit_breakers;
        if !request_log.take_slot_of_backend(backend, limits, endpoint.protocol) {
            return Err(FailedAttempt::by_proxy(Some(BACKEND_OVERFLOW)));
        }
        if let Some(trace) = &mut request_log.trace {
            trace.start_attempt(proxy, backend, chosen, &mut request);
        }
        let sent = async {
            match PooledConnection::acquire(endpoint, connector, context.purpose).await {
                Ok(connection) => attempt::send(connection, request, context).await,
                Err(error) => match overload_reason(&error) {
                    Some(reason) => Err(FailedAttempt::by_proxy(Some(reason))),
                    None => {
                        backend.stats.connect_failures.inc();
                        let failed = FailedAttempt::by_endpoint(StatusCode::SERVICE_UNAVAILABLE);
                        Err(FailedAttempt { request: Some(request), ..failed })
                    }
                },
            }
        };
        let sent = tokio::select! {
            biased;
            sent = sent => sent,
            () = request_log.evicted() => Err(FailedAttempt::by_proxy(Some(EVICTED))),
            () = expired(&mut timer) => Err(FailedAttempt::by_endpoint(StatusCode::GATEWAY_TIMEOUT)),
        };
        match &sent {
            Ok((response, _)) if is_gateway_failure(response.status()) => {
                note_failure(proxy, backend, &balancer, endpoint);
            }
            Ok(_) => endpoint.outlier.succeeded(),
            Err(failed) if failed.is_endpoint_fault => {
                note_failure(proxy, backend, &balancer, endpoint);
                self.avoid.push(endpoint.clone());
            }
            Err(_) => {}
        }
        if let Some(trace) = &mut request_log.trace {
            match &sent {
                Ok((response, _)) => trace.attempt_responded(response.status()),
                Err(failed) => trace.attempt_failed(proxy, failed.status, failed.reason),
            }
        }
        sent
    }

    /// The timer of a try; `None` without a limit.
    fn start_timer(&mut self) -> Option<Pin<Box<Sleep>>> {
        let own = self.limits.and_then(|limits| limits.timeouts.backend_request);
        let end = own.map(|limit| Instant::now() + limit);
        self.until = self.deadline.into_iter().chain(end).min();
        self.until.map(|until| Box::pin(sleep_until(until)))
    }

    /// Connection errors and timeouts are retried without being listed; an overloaded proxy or backend is not.
    fn is_retried(&self, sent: &SentRequest) -> bool {
        match (self.retry, sent) {
            (None, _) | (_, Err((_, Some(_)))) => false,
            (Some(retry), Ok((response, _))) => retry.codes.contains(&response.status().as_u16()),
            (Some(_), Err((status, None))) => status.is_server_error(),
        }
    }

    /// Takes one of the retries left, the first one within the circuit breaker.
    fn take_retry(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        let backend = self.backend;
        if self.permit.is_none() {
            let settings = &backend.load_balancer().settings;
            let max_retries = settings.max_retries(backend.breaker.requests.in_use());
            self.permit = backend.breaker.retries.enter(max_retries);
            if self.permit.is_none() {
                backend.stats.retry_overflow.inc();
                return false;
            }
        }
        self.left -= 1;
        backend.stats.retries.inc();
        true
    }

    /// Leaves a response that the client does not get.
    fn leave(&mut self, sent: SentRequest) {
        if let Ok((response, mut upstream)) = sent {
            self.avoid.push(upstream.endpoint.clone());
            if response.body().is_end_stream() {
                upstream.release();
            }
        }
    }

    /// 504 if there is no time for another try.
    async fn back_off(&self) -> Result<(), (StatusCode, Option<&'static str>)> {
        let end = Instant::now() + self.retry.map(RouteRetry::backoff).unwrap_or_default();
        sleep_until(self.deadline.map_or(end, |deadline| deadline.min(end))).await;
        match self.deadline {
            Some(deadline) if deadline <= end => Err(TIMED_OUT),
            _ => Ok(()),
        }
    }

    /// What the request is sent from again; `None` if its body is too long to keep.
    async fn template(
        &self,
        request: &mut Request<RequestBody>,
    ) -> Result<Option<Box<RequestTemplate>>, (StatusCode, Option<&'static str>)> {
        let template = RequestTemplate::of(request, self.connection);
        let template = match self.deadline {
            None => template.await,
            Some(deadline) => timeout_at(deadline, template).await.map_err(|_| TIMED_OUT)?,
        };
        template.map_err(|status| (status, None))
    }
}

/// Reasons of a 503.
const BACKEND_OVERFLOW: &str = "too many requests of this backend";
const EVICTED: &str = "evicted for other clients";

const TIMED_OUT: (StatusCode, Option<&str>) = (StatusCode::GATEWAY_TIMEOUT, None);

async fn expired(timer: &mut Option<Pin<Box<Sleep>>>) {
    match timer {
        Some(timer) => timer.await,
        None => std::future::pending().await,
    }
}
