//! The settings of one backend: those of the proxy, and of the MeshLoadBalancing policies for its Service.

use std::borrow::Cow;
use std::time::Duration;

use model::backend::CircuitBreakerLimits;
use model::route::{
    LbAlgorithm, LoadBalancing, OutlierLimits, RequestTimeouts, RetryBudget, RouteRetry, SlowStart,
};

use crate::settings::{LoadBalancerSettings, ProxyOptions};

#[derive(Debug)]
pub(crate) struct BackendSettings {
    pub(crate) algorithm: LbAlgorithm,
    pub(crate) load_balancing: LoadBalancerSettings,
    pub(crate) slow_start: SlowStart,
    /// Below this percentage of endpoints that are not ejected, ejection is disregarded; 0: never.
    pub(crate) panic_threshold: u8,
    pub(crate) circuit_breakers: CircuitBreakerLimits,
    pub(crate) retry_budget: Option<RetryBudget>,
    pub(crate) connect_timeout: Duration,
    /// Of rules that have none themselves.
    pub(crate) request_limits: RequestLimits,
}

/// The timeouts and retries of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestLimits {
    pub(crate) timeouts: RequestTimeouts,
    pub(crate) retry: Option<RouteRetry>,
}

impl RequestLimits {
    /// Whether a request has deadlines, or may be sent again.
    pub(crate) fn any(&self) -> bool {
        self.timeouts != RequestTimeouts::default() || self.retry.is_some()
    }

    /// Each absent field is that of `otherwise`.
    pub(crate) fn or(&self, otherwise: &Self) -> Self {
        Self {
            timeouts: self.timeouts.or(otherwise.timeouts),
            retry: RouteRetry::resolve(self.retry.as_ref(), otherwise.retry.as_ref()).map(Cow::into_owned),
        }
    }

    /// Until the headers of a response, where a request without limits has `default`.
    pub(crate) fn response(&self, default: Duration) -> Duration {
        default.max(self.timeouts.backend_request.or(self.timeouts.request).unwrap_or_default())
    }
}

impl Default for BackendSettings {
    fn default() -> Self {
        Self::new(&ProxyOptions::default(), None, false)
    }
}

impl BackendSettings {
    /// `is_warmed`: the weights of the endpoints contain their slow start.
    pub(crate) fn new(proxy: &ProxyOptions, policy: Option<&LoadBalancing>, is_warmed: bool) -> Self {
        let none = LoadBalancing::default();
        let policy = policy.unwrap_or(&none);
        let mut load_balancing = proxy.load_balancing;
        if let Some(limits) = policy.outlier_detection {
            let OutlierLimits { consecutive_failures, base_ejection_time, max_ejection_percent } = limits;
            load_balancing = LoadBalancerSettings {
                consecutive_failures,
                base_ejection_time,
                max_ejection_percent,
                ..load_balancing
            };
        }
        let breakers = policy.circuit_breakers.unwrap_or_default();
        let connect = policy.timeouts.and_then(|timeouts| timeouts.connect);
        Self {
            algorithm: policy.algorithm.clone().unwrap_or(LbAlgorithm::LeastRequest),
            load_balancing,
            slow_start: match policy.slow_start {
                _ if is_warmed => SlowStart::even(Duration::ZERO),
                Some(slow_start) => slow_start,
                None => SlowStart::even(proxy.load_balancing.slow_start),
            },
            panic_threshold: policy.panic_threshold.unwrap_or(0),
            circuit_breakers: breakers.or(&proxy.circuit_breakers),
            retry_budget: policy.retries.as_ref().and_then(|retries| retries.budget),
            connect_timeout: connect.unwrap_or(proxy.timeouts.connect),
            request_limits: RequestLimits {
                timeouts: policy.request_timeouts(),
                retry: policy.retry().cloned(),
            },
        }
    }

    /// Retries in flight, for so many requests in flight.
    pub(crate) fn max_retries(&self, requests: usize) -> u32 {
        match &self.retry_budget {
            Some(budget) => budget.limit(requests),
            None => self.circuit_breakers.max_retries,
        }
    }
}
