//! Outlier detection: endpoints with consecutive failures are ejected for a while, then get one request on trial.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::backend::UpstreamBackend;
use super::endpoint::{ProxyTime, UpstreamEndpoint};
use super::load_balancer::LoadBalancer;
use crate::proxy::ProxyShared;
use crate::settings::LoadBalancerSettings;

/// The longest ejection, as a multiple of the first.
const MAX_EJECTION_FACTOR: u32 = 10;

#[derive(Debug, Default)]
pub(crate) struct OutlierState {
    failures: AtomicU32,
    ejections: AtomicU32,
    ejected_until: AtomicU64,
}

impl OutlierState {
    pub(crate) fn is_ejected(&self, now: ProxyTime) -> bool {
        self.ejected_until.load(Relaxed) > now.0
    }

    /// The end of the last ejection; zero if there was none.
    pub(crate) fn ejected_until(&self) -> ProxyTime {
        ProxyTime(self.ejected_until.load(Relaxed))
    }

    pub(crate) fn succeeded(&self) {
        // The common case only reads, which does not invalidate other threads' cache lines.
        if self.failures.load(Relaxed) != 0 {
            self.failures.store(0, Relaxed);
            self.ejections.store(0, Relaxed);
        }
    }

    /// Counts a failure and reports whether the consecutive failures reached the threshold.
    fn failed(&self, settings: &LoadBalancerSettings) -> bool {
        let count = self.failures.fetch_add(1, Relaxed).saturating_add(1);
        settings.consecutive_failures > 0 && count >= settings.consecutive_failures
    }

    pub(crate) fn eject(&self, now: ProxyTime, settings: &LoadBalancerSettings) {
        let factor = self.ejections.fetch_add(1, Relaxed).saturating_add(1).min(MAX_EJECTION_FACTOR);
        self.ejected_until.store(now.plus(settings.base_ejection_time * factor).0, Relaxed);
        // On trial afterwards: one more failure ejects it again.
        self.failures.store(settings.consecutive_failures.saturating_sub(1), Relaxed);
    }
}

/// Counts a failure of an endpoint and ejects it at the threshold.
pub(crate) fn note_failure(
    proxy: &ProxyShared,
    backend: &UpstreamBackend,
    balancer: &LoadBalancer,
    endpoint: &UpstreamEndpoint,
) {
    let (settings, now) = (&balancer.settings.load_balancing, proxy.now());
    let outlier = &endpoint.outlier;
    if outlier.failed(settings) && !outlier.is_ejected(now) && balancer.may_eject(now) {
        outlier.eject(now, settings);
        balancer.update_ejections();
        backend.stats.ejections.inc();
        tracing::info!(endpoint = %endpoint.address, backend = %backend.label, "ejected endpoint");
    }
}
