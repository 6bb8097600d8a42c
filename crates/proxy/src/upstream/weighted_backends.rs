//! The weighted backends of a rule or of a TCP route.

use std::sync::Arc;

use http::{HeaderValue, StatusCode};
use model::route::{BackendFilters, BackendTarget, PathChange, WeightedBackends};

use super::backend::UpstreamBackend;
use crate::http::headers::HeaderMutations;
use crate::registry::Registry;

#[derive(Debug, Default)]
pub(crate) struct BackendPicker {
    targets: Box<[PickedBackend]>,
    /// Running sums of the weights.
    ends: Box<[u64]>,
}

#[derive(Debug)]
pub(crate) enum PickedBackend {
    /// With the filters of the backendRef.
    Backend(Arc<UpstreamBackend>, Option<Box<BackendMutations>>),
    /// The share of a backend that cannot be resolved.
    Error(StatusCode),
}

/// The filters of a backendRef, which are applied after those of the rule.
#[derive(Debug)]
pub(crate) struct BackendMutations {
    pub(crate) request: HeaderMutations,
    pub(crate) response: HeaderMutations,
    pub(crate) host: Option<HeaderValue>,
    pub(crate) path: Option<PathChange>,
}

impl BackendMutations {
    fn new(filters: &BackendFilters, problems: &mut Vec<String>) -> Self {
        let (request, refused) = HeaderMutations::new(&filters.request_headers);
        problems.extend(refused);
        let (response, refused) = HeaderMutations::new(&filters.response_headers);
        problems.extend(refused);
        let host = filters.rewrite.hostname.as_deref().and_then(|host| HeaderValue::from_str(host).ok());
        Self { request, response, host, path: filters.rewrite.path.clone() }
    }
}

impl BackendPicker {
    /// `problems` are those of filters that cannot be applied.
    pub(crate) fn new(split: &WeightedBackends, registry: &mut Registry, problems: &mut Vec<String>) -> Self {
        let mut sum = 0;
        let (mut targets, mut ends) = (Vec::new(), Vec::new());
        for leg in split.entries() {
            sum += leg.weight;
            ends.push(sum);
            targets.push(match &leg.to {
                BackendTarget::Backend(id) => {
                    let filters = leg.filters.as_deref();
                    let mutations = filters.map(|filters| Box::new(BackendMutations::new(filters, problems)));
                    PickedBackend::Backend(registry.backend(id), mutations)
                }
                BackendTarget::Error(status) => PickedBackend::Error(status_or_500(*status)),
            });
        }
        Self { targets: targets.into(), ends: ends.into() }
    }

    pub(crate) fn targets(&self) -> &[PickedBackend] {
        &self.targets
    }

    /// Picks a target by weight; `random` is called only where there is a choice.
    pub(crate) fn pick(&self, random: impl FnOnce() -> u64) -> Option<&PickedBackend> {
        if let [only] = &*self.targets {
            return Some(only);
        }
        let point = random() % *self.ends.last()?;
        self.targets.get(self.ends.partition_point(|end| *end <= point))
    }
}

pub(crate) fn status_or_500(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}
