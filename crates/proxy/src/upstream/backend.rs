//! A backend as rules refer to it. Its endpoints change without the rules being rebuilt.

use std::sync::{Arc, PoisonError, RwLock};

use model::ServiceKey;
use model::backend::{Backend, BackendEndpoint};
use model::route::{AppProtocol, BackendId};

use super::circuit_breaker::CircuitBreaker;
use super::endpoint::{EndpointProtocol, ProxyTime, UpstreamEndpoint};
use super::load_balancer::{LoadBalancer, WeightedEndpoint};
use crate::settings::LoadBalancerSettings;
use crate::stats::BackendStats;

#[derive(Debug)]
pub(crate) struct UpstreamBackend {
    pub(crate) service: ServiceKey,
    /// For logs and metrics.
    pub(crate) label: Arc<str>,
    pub(crate) stats: BackendStats,
    pub(crate) breaker: CircuitBreaker,
    current: RwLock<CurrentEndpoints>,
}

#[derive(Debug, Default)]
struct CurrentEndpoints {
    /// The table's value that the load balancer was built from.
    source: Option<Arc<Backend>>,
    load_balancer: Arc<LoadBalancer>,
}

impl UpstreamBackend {
    pub(crate) fn new(id: &BackendId) -> Self {
        Self {
            service: id.service.clone(),
            label: id.to_string().into(),
            stats: BackendStats::default(),
            breaker: CircuitBreaker::default(),
            current: RwLock::default(),
        }
    }

    pub(crate) fn load_balancer(&self) -> Arc<LoadBalancer> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).load_balancer.clone()
    }

    /// Replaces the endpoints if they changed. `endpoint` finds or creates the state of one.
    pub(crate) fn update(
        &self,
        backend: &Arc<Backend>,
        now: ProxyTime,
        settings: &LoadBalancerSettings,
        mut endpoint: impl FnMut(&BackendEndpoint, &Backend, Option<ProxyTime>) -> Arc<UpstreamEndpoint>,
    ) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if current.source.as_ref().is_some_and(|source| Arc::ptr_eq(source, backend)) {
            return;
        }
        // Slow start needs older endpoints that take the load in the meantime.
        let added_at = (!current.load_balancer.endpoints().is_empty()).then_some(now);
        let weighted = |source: &BackendEndpoint| WeightedEndpoint {
            endpoint: endpoint(source, backend, added_at),
            weight: source.weight,
            locality: source.locality,
        };
        let load_balancer = LoadBalancer::new(backend.endpoints.iter().map(weighted).collect(), settings);
        *current = CurrentEndpoints { source: Some(backend.clone()), load_balancer: Arc::new(load_balancer) };
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
