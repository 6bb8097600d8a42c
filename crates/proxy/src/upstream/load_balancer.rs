//! Load balancing: two endpoints are drawn by weight, and the less loaded one gets the request.
//!
//! The weights are the plan's (hints, Require, Spill). Load decides only between the two that were drawn. Ejected
//! endpoints are skipped, and new ones get a part of their share during slow start.

use std::sync::Arc;

use model::Locality;

use super::endpoint::{ProxyTime, UpstreamEndpoint};
use crate::random::SharedRandom;
use crate::settings::LoadBalancerSettings;

/// The endpoints of a backend.
#[derive(Debug, Default)]
pub(crate) struct LoadBalancer {
    endpoints: Box<[WeightedEndpoint]>,
    /// Running sums of the weights; empty if all weights are equal.
    ends: Box<[f32]>,
    /// The end of the last slow start.
    warm_at: ProxyTime,
}

#[derive(Debug)]
pub(crate) struct WeightedEndpoint {
    pub(crate) endpoint: Arc<UpstreamEndpoint>,
    pub(crate) weight: f32,
    pub(crate) locality: Locality,
}

impl LoadBalancer {
    pub(crate) fn new(endpoints: Vec<WeightedEndpoint>, settings: &LoadBalancerSettings) -> Self {
        let first = endpoints.first().map_or(1.0, |weighted| weighted.weight);
        let even = endpoints.iter().all(|weighted| weighted.weight == first);
        let sum = |sum: &mut f32, weighted: &WeightedEndpoint| {
            *sum += weighted.weight;
            Some(*sum)
        };
        let ends = if even { Box::default() } else { endpoints.iter().scan(0.0, sum).collect() };
        let newest = endpoints.iter().filter_map(|weighted| weighted.endpoint.added_at).max();
        let warm_at = newest.map(|added_at| added_at.plus(settings.slow_start)).unwrap_or_default();
        Self { endpoints: endpoints.into(), ends, warm_at }
    }

    pub(crate) fn endpoints(&self) -> &[WeightedEndpoint] {
        &self.endpoints
    }

    /// The endpoint for a request; `avoid` are those that already failed for it.
    pub(crate) fn pick(
        &self,
        random: &SharedRandom,
        now: ProxyTime,
        settings: &LoadBalancerSettings,
        avoid: &[Arc<UpstreamEndpoint>],
    ) -> Option<&WeightedEndpoint> {
        if let [only] = &*self.endpoints {
            return Some(only);
        }
        let chance = random.next();
        let first = self.draw_warm(chance as u32, random, now, settings)?;
        let second = self.draw_warm((chance >> 32) as u32, random, now, settings)?;
        let usable = |weighted: &WeightedEndpoint| {
            !weighted.endpoint.is_ejected(now)
                && !avoid.iter().any(|avoid| Arc::ptr_eq(avoid, &weighted.endpoint))
        };
        let chosen = match (usable(first), usable(second)) {
            // Load relative to weight: an endpoint with a small share must not look idle.
            (true, true) => {
                let (a, b) = (
                    first.endpoint.load() as f32 * second.weight,
                    second.endpoint.load() as f32 * first.weight,
                );
                if b < a { second } else { first }
            }
            (true, false) => first,
            (false, true) => second,
            (false, false) => self.endpoints.iter().find(|weighted| usable(weighted)).unwrap_or(first),
        };
        Some(chosen)
    }

    /// Draws by weight, and again where slow start withholds the endpoint that was drawn.
    fn draw_warm(
        &self,
        chance: u32,
        random: &SharedRandom,
        now: ProxyTime,
        settings: &LoadBalancerSettings,
    ) -> Option<&WeightedEndpoint> {
        const DRAWS: usize = 8;
        let mut drawn = self.draw(chance)?;
        for _ in 0..DRAWS {
            if now >= self.warm_at || !is_withheld(drawn, random, now, settings) {
                break;
            }
            drawn = self.draw(random.next() as u32).unwrap_or(drawn);
        }
        Some(drawn)
    }

    fn draw(&self, chance: u32) -> Option<&WeightedEndpoint> {
        let count = self.endpoints.len() as u64;
        let Some(total) = self.ends.last() else {
            let at = (u64::from(chance) * count) >> 32;
            return self.endpoints.get(usize::try_from(at).unwrap_or_default());
        };
        let point = chance as f32 / u32::MAX as f32 * total;
        let at = self.ends.partition_point(|end| *end <= point).min(self.ends.len() - 1);
        self.endpoints.get(at)
    }

    /// Whether the limit on ejected endpoints allows one more.
    pub(crate) fn may_eject(&self, now: ProxyTime, settings: &LoadBalancerSettings) -> bool {
        let ejected = self.endpoints.iter().filter(|weighted| weighted.endpoint.is_ejected(now)).count();
        (ejected + 1) * 100 <= self.endpoints.len() * settings.max_ejection_percent as usize
    }
}

fn is_withheld(
    weighted: &WeightedEndpoint,
    random: &SharedRandom,
    now: ProxyTime,
    settings: &LoadBalancerSettings,
) -> bool {
    let factor = weighted.endpoint.slow_start_factor(now, settings.slow_start);
    factor < 1.0 && (random.next() >> 40) as f32 / (1 << 24) as f32 >= factor
}

#[cfg(test)]
mod tests;
