//! The weighted backends of a rule or of a TCP route.

use std::sync::Arc;

use http::StatusCode;
use model::route::{BackendTarget, WeightedBackends};

use super::backend::UpstreamBackend;
use crate::registry::Registry;

#[derive(Debug, Default)]
pub(crate) struct BackendPicker {
    targets: Box<[PickedBackend]>,
    /// Running sums of the weights.
    ends: Box<[u64]>,
}

#[derive(Clone, Debug)]
pub(crate) enum PickedBackend {
    Backend(Arc<UpstreamBackend>),
    /// The share of a backend that cannot be resolved.
    Error(StatusCode),
}

impl BackendPicker {
    pub(crate) fn new(split: &WeightedBackends, registry: &mut Registry) -> Self {
        let mut sum = 0;
        let (mut targets, mut ends) = (Vec::new(), Vec::new());
        for leg in split.entries() {
            sum += leg.weight;
            ends.push(sum);
            targets.push(match &leg.to {
                BackendTarget::Backend(id) => PickedBackend::Backend(registry.backend(id)),
                BackendTarget::Error(status) => PickedBackend::Error(status_or_500(*status)),
            });
        }
        Self { targets: targets.into(), ends: ends.into() }
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
