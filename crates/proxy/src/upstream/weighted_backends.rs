//! The weighted backends of a rule or of a TCP route.

use std::sync::Arc;

use http::StatusCode;
use model::route::{LegTarget, Split};

use super::backend::UpstreamBackend;
use crate::registry::Registry;

#[derive(Debug, Default)]
pub(crate) struct WeightedBackends {
    targets: Box<[BackendTarget]>,
    /// Running sums of the weights.
    ends: Box<[u64]>,
}

#[derive(Clone, Debug)]
pub(crate) enum BackendTarget {
    Backend(Arc<UpstreamBackend>),
    /// The share of a backend that cannot be resolved.
    Error(StatusCode),
}

impl WeightedBackends {
    pub(crate) fn new(split: &Split, registry: &mut Registry) -> Self {
        let mut sum = 0;
        let (mut targets, mut ends) = (Vec::new(), Vec::new());
        for leg in split.legs() {
            sum += leg.weight;
            ends.push(sum);
            targets.push(match &leg.to {
                LegTarget::Backend(id) => BackendTarget::Backend(registry.backend(id)),
                LegTarget::Error(status) => BackendTarget::Error(status_or_500(*status)),
            });
        }
        Self { targets: targets.into(), ends: ends.into() }
    }

    /// Picks a target by weight; `random` is called only where there is a choice.
    pub(crate) fn pick(&self, random: impl FnOnce() -> u64) -> Option<&BackendTarget> {
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
