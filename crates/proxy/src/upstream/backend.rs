//! A backend as rules refer to it. Its endpoints change without the rules being rebuilt.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use model::ServiceKey;
use model::backend::{Backend, BackendEndpoint};
use model::route::{AppProtocol, BackendId, EffectiveLoadBalancing};

use super::backend_settings::{BackendSettings, RequestLimits};
use super::circuit_breaker::CircuitBreaker;
use super::endpoint::{EndpointProtocol, ProxyTime, UpstreamEndpoint};
use super::load_balancer::{LoadBalancer, WeightedEndpoint};
use super::tls::UpstreamTls;
use crate::settings::ProxyOptions;
use crate::stats::BackendStats;

#[derive(Debug)]
pub(crate) struct UpstreamBackend {
    pub(crate) service: ServiceKey,
    /// For logs and metrics.
    pub(crate) label: Arc<str>,
    pub(crate) stats: BackendStats,
    pub(crate) breaker: CircuitBreaker,
    /// Whether rules without timeouts and retries have those of a policy.
    has_request_limits: AtomicBool,
    current: RwLock<CurrentEndpoints>,
}

#[derive(Debug, Default)]
struct CurrentEndpoints {
    /// The table's value that the load balancer was built from.
    source: Option<Arc<Backend>>,
    tls: Option<Arc<UpstreamTls>>,
    policy: Option<Arc<EffectiveLoadBalancing>>,
    load_balancer: Arc<LoadBalancer>,
}

impl UpstreamBackend {
    pub(crate) fn new(id: &BackendId) -> Self {
        Self {
            service: id.service.clone(),
            label: id.to_string().into(),
            stats: BackendStats::default(),
            breaker: CircuitBreaker::default(),
            has_request_limits: AtomicBool::new(false),
            current: RwLock::default(),
        }
    }

    pub(crate) fn load_balancer(&self) -> Arc<LoadBalancer> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).load_balancer.clone()
    }

    /// Timeouts and retries of rules that have none themselves.
    pub(crate) fn request_limits(&self) -> Option<RequestLimits> {
        let is_set = self.has_request_limits.load(Relaxed);
        is_set.then(|| self.load_balancer().settings.request_limits.clone())
    }

    /// Replaces the endpoints if they or their settings changed. `endpoint` finds or creates the state of one.
    pub(crate) fn update(
        &self,
        backend: &Arc<Backend>,
        tls: Option<&Arc<UpstreamTls>>,
        policy: Option<&Arc<EffectiveLoadBalancing>>,
        now: ProxyTime,
        settings: &ProxyOptions,
        mut endpoint: impl FnMut(&BackendEndpoint, &Backend, Option<ProxyTime>) -> Arc<UpstreamEndpoint>,
    ) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let is_same_tls = current.tls.as_ref().map(Arc::as_ptr) == tls.map(Arc::as_ptr);
        let is_same_policy = current.policy.as_ref().map(Arc::as_ptr) == policy.map(Arc::as_ptr);
        if is_same_tls
            && is_same_policy
            && current.source.as_ref().is_some_and(|source| Arc::ptr_eq(source, backend))
        {
            return;
        }
        // Slow start needs older endpoints that take the load in the meantime.
        let added_at = (!current.load_balancer.endpoints().is_empty()).then_some(now);
        let weighted = |source: &BackendEndpoint| WeightedEndpoint {
            endpoint: endpoint(source, backend, added_at),
            weight: source.weight,
            priority: source.priority,
            locality: source.locality,
        };
        let endpoints = backend.endpoints.iter().map(weighted).collect();
        // `source` is absent at first, when the balancer has default settings.
        let is_as_warm = current.source.as_ref().is_some_and(|source| source.is_warmed == backend.is_warmed);
        let balancer_settings = match is_same_policy && is_as_warm {
            true => current.load_balancer.settings.clone(),
            false => {
                let policy = policy.map(|policy| &policy.settings);
                Arc::new(BackendSettings::new(settings, policy, backend.is_warmed))
            }
        };
        self.has_request_limits.store(balancer_settings.request_limits.any(), Relaxed);
        let load_balancer = LoadBalancer::new(endpoints, balancer_settings).after(&current.load_balancer);
        *current = CurrentEndpoints {
            source: Some(backend.clone()),
            tls: tls.cloned(),
            policy: policy.cloned(),
            load_balancer: Arc::new(load_balancer),
        };
    }

    /// Removes all endpoints of a backend that no table has any more.
    pub(crate) fn clear(&self) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = CurrentEndpoints::default();
    }
}

pub(crate) fn endpoint_protocol(protocol: AppProtocol) -> EndpointProtocol {
    match protocol {
        AppProtocol::Http => EndpointProtocol::Http1,
        AppProtocol::Http2 | AppProtocol::Grpc => EndpointProtocol::Http2,
        AppProtocol::Tcp => EndpointProtocol::Tcp,
    }
}
