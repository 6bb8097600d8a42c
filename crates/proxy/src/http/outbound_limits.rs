//! Rate limits and injected faults of requests to a Service, by MeshLoadBalancing policies.
//!
//! ```text
//! in the mesh:   request to a Service -> token bucket: 429 -> delay -> abort: its status -> the matching rule
//! at a gateway:  request -> the matching rule -> its backend -> token bucket -> delay -> abort -> the backend
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::StatusCode;
use model::route::{FaultInjection, INJECTED_FAULT, LoadBalancing, RateLimit, RouteTable, Routing};
use model::{Name, ServiceKey};
use tokio::time::sleep;

use crate::proxy::ProxyShared;

/// The reason of a 429.
const RATE_LIMITED: &str = "too many requests to this destination";

/// By port of a Service; only destinations that have limits.
pub(crate) type OutboundLimitsByPort = BTreeMap<(ServiceKey, u16), Arc<OutboundLimits>>;

/// By port of a gateway, listener (with TLS) and backend; only backends that have limits.
pub(crate) type BackendLimits = BTreeMap<(u16, Option<Name>, Arc<str>), Arc<OutboundLimits>>;

#[derive(Debug)]
pub(crate) struct OutboundLimits {
    bucket: Option<TokenBucket>,
    faults: Option<FaultInjection>,
}

/// The limits of a table. A bucket whose limit did not change stays as it is.
pub(crate) fn of_table(routes: &RouteTable, before: &OutboundLimitsByPort) -> OutboundLimitsByPort {
    let mut all = OutboundLimitsByPort::new();
    if routes.all_load_balancing().is_empty() {
        return all;
    }
    for outbound in routes.outbounds() {
        let Some(policy) = routes.load_balancing(&outbound.service) else { continue };
        let key = (outbound.service.clone(), outbound.port);
        if let Some(limits) = OutboundLimits::new(&policy.settings, before.get(&key)) {
            all.insert(key, limits);
        }
    }
    all
}

/// The limits of a gateway's backends. As in Envoy, listeners in the clear share those of their port.
pub(crate) fn of_gateway(routes: &RouteTable, before: &BackendLimits) -> BackendLimits {
    let mut all = BackendLimits::new();
    if !routes.all_load_balancing().values().any(|policy| policy.settings.has_request_filters()) {
        return all;
    }
    for port in routes.ports() {
        for listener in &port.listeners {
            let mut backends = BTreeSet::new();
            let routings = listener.hosts.iter().map(|(_, routing)| routing);
            let of_http = routings.filter(|routing| matches!(routing, Routing::Http(_)));
            of_http.for_each(|routing| routing.add_backends(&mut backends));
            for id in backends {
                let Some(policy) = routes.load_balancing(&id.service) else { continue };
                let name = port.protocol.is_tls().then(|| listener.name.clone());
                let key = (port.number, name, id.to_string().into());
                if let Some(limits) = OutboundLimits::new(&policy.settings, before.get(&key)) {
                    all.entry(key).or_insert(limits);
                }
            }
        }
    }
    all
}

impl OutboundLimits {
    /// `None` without limits.
    fn new(policy: &LoadBalancing, before: Option<&Arc<Self>>) -> Option<Arc<Self>> {
        let (rate, faults) = (policy.rate_limit, policy.faults);
        if !policy.has_request_filters() {
            return None;
        }
        let is_same = |known: &&Arc<Self>| {
            known.faults == faults && known.bucket.as_ref().map(|bucket| bucket.limit) == rate
        };
        let known = before.filter(is_same).cloned();
        Some(known.unwrap_or_else(|| Arc::new(Self { bucket: rate.map(TokenBucket::new), faults })))
    }

    /// Waits for an injected delay; the status and reason of a request that is not served.
    pub(crate) async fn admit(&self, proxy: &ProxyShared) -> Result<(), (StatusCode, &'static str)> {
        if let Some(bucket) = &self.bucket
            && !bucket.take(proxy.since_start())
        {
            return Err((StatusCode::TOO_MANY_REQUESTS, RATE_LIMITED));
        }
        let Some(faults) = &self.faults else { return Ok(()) };
        if let Some(delay) = faults.delay.filter(|delay| delay.share.includes(proxy.random.next())) {
            sleep(delay.duration).await;
        }
        match faults.abort.filter(|abort| abort.share.includes(proxy.random.next())) {
            Some(abort) => {
                let status = StatusCode::from_u16(abort.status);
                Err((status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), INJECTED_FAULT))
            }
            None => Ok(()),
        }
    }
}

/// A token bucket that is filled evenly, as the time at which it will be full again.
#[derive(Debug)]
struct TokenBucket {
    limit: RateLimit,
    /// Nanoseconds since the start of the proxy.
    full_at: AtomicU64,
}

impl TokenBucket {
    fn new(limit: RateLimit) -> Self {
        Self { limit, full_at: AtomicU64::new(0) }
    }

    /// Takes a token, if there is one.
    fn take(&self, now: Duration) -> bool {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let (now, interval) = (nanos(now), nanos(self.limit.interval));
        let per_token = (interval / u64::from(self.limit.requests)).max(1);
        let taken = self.full_at.fetch_update(Relaxed, Relaxed, |full_at| {
            let next = full_at.max(now).saturating_add(per_token);
            (next - now <= interval.max(per_token)).then_some(next)
        });
        taken.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_tokens_at_once_and_then_evenly() {
        let second = Duration::from_secs(1);
        let bucket = TokenBucket::new(RateLimit { requests: 4, interval: second });
        let taken = |at: Duration, wanted: usize| (0..wanted).filter(|_| bucket.take(at)).count();
        assert_eq!(taken(second, 10), 4);
        assert_eq!(taken(second + second / 8, 10), 0);
        assert_eq!(taken(second + second / 4, 10), 1);
        assert_eq!(taken(second * 10, 10), 4, "never more than the bucket holds");
        let rare = TokenBucket::new(RateLimit { requests: 3, interval: second });
        assert_eq!((0..10).filter(|_| rare.take(second)).count(), 3, "rounding takes none away");
    }
}
