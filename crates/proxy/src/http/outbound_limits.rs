//! Rate limits and injected faults of requests to a destination, by MeshLoadBalancing policies.
//!
//! ```text
//! request to a Service -> token bucket: 429 -> delay -> abort: its status -> the matching rule
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::StatusCode;
use model::ServiceKey;
use model::route::{FaultInjection, INJECTED_FAULT, RateLimit, RouteTable};
use tokio::time::sleep;

use crate::proxy::ProxyShared;

/// The reason of a 429.
const RATE_LIMITED: &str = "too many requests to this destination";

/// By port of a Service; only destinations that have limits.
pub(crate) type OutboundLimitsByPort = BTreeMap<(ServiceKey, u16), Arc<OutboundLimits>>;

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
        let (rate, faults) = (policy.settings.rate_limit, policy.settings.faults);
        if rate.is_none() && faults.is_none() {
            continue;
        }
        let key = (outbound.service.clone(), outbound.port);
        let known = before.get(&key).filter(|known| {
            known.faults == faults && known.bucket.as_ref().map(|bucket| bucket.limit) == rate
        });
        let limits = match known {
            Some(known) => known.clone(),
            None => Arc::new(OutboundLimits { bucket: rate.map(TokenBucket::new), faults }),
        };
        all.insert(key, limits);
    }
    all
}

impl OutboundLimits {
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
