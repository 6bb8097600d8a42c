//! Load balancing: two endpoints are drawn by weight, and the less loaded one gets the request. A policy may ask for turns
//! or for a hash instead.
//!
//! The weights are the plan's (hints, Require, Spill). Load decides only between the two that were drawn. Ejected
//! endpoints are skipped, unless so many are ejected that the rest could not take the load (panic), and new ones get a
//! part of their share during slow start.
//!
//! With the priorities of a policy there are several tiers of endpoints: each gets what those before it cannot serve.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use http::{HeaderMap, header};
use model::Locality;
use model::random::{GOLDEN_STEP, mix};
use model::route::{HashOn, LbAlgorithm};

use super::backend_settings::BackendSettings;
use super::endpoint::{ProxyTime, UpstreamEndpoint};
use super::hash_table::{HashTable, hash_of};
use crate::random::SharedRandom;

/// The endpoints of a backend.
#[derive(Debug, Default)]
pub(crate) struct LoadBalancer {
    /// Sorted by priority.
    endpoints: Box<[WeightedEndpoint]>,
    tiers: Box<[EndpointTier]>,
    /// The end of the last slow start.
    warm_at: ProxyTime,
    pub(crate) settings: Arc<BackendSettings>,
    /// The end of the last ejection.
    ejected_until: AtomicU64,
    /// Until then so many endpoints are ejected that ejection is disregarded.
    panic_until: AtomicU64,
}

/// The endpoints of one priority.
#[derive(Debug)]
struct EndpointTier {
    range: Range<usize>,
    /// Running sums of the weights; empty if all weights are equal.
    ends: Box<[f32]>,
    hash_table: HashTable,
    /// Requests so far, by turns.
    turns: AtomicU64,
}

/// A tier can serve all requests while so many percent of its endpoints, divided by 100, are not ejected; as in Envoy.
const OVERPROVISIONING: usize = 140;

#[derive(Debug)]
pub(crate) struct WeightedEndpoint {
    pub(crate) endpoint: Arc<UpstreamEndpoint>,
    pub(crate) weight: f32,
    pub(crate) priority: u8,
    pub(crate) locality: Locality,
}

impl LoadBalancer {
    pub(crate) fn new(mut endpoints: Vec<WeightedEndpoint>, settings: Arc<BackendSettings>) -> Self {
        endpoints.sort_by_key(|weighted| weighted.priority);
        let newest = endpoints.iter().filter_map(|weighted| weighted.endpoint.added_at).max();
        let warm_at = newest.map(|added_at| added_at.plus(settings.slow_start.window)).unwrap_or_default();
        let mut start = 0;
        let tier = |own: &[WeightedEndpoint]| {
            let range = start..start + own.len();
            start = range.end;
            EndpointTier::new(range, own, &settings.algorithm)
        };
        let tiers = endpoints.chunk_by(|a, b| a.priority == b.priority).map(tier).collect();
        let (ejected_until, panic_until) = (AtomicU64::new(0), AtomicU64::new(0));
        let balancer =
            Self { endpoints: endpoints.into(), tiers, warm_at, settings, ejected_until, panic_until };
        balancer.update_ejections();
        balancer
    }

    /// Continues the turns of the balancer before.
    pub(crate) fn after(self, before: &Self) -> Self {
        for (tier, before) in self.tiers.iter().zip(&before.tiers) {
            tier.turns.store(before.turns.load(Relaxed), Relaxed);
        }
        self
    }

    pub(crate) fn endpoints(&self) -> &[WeightedEndpoint] {
        &self.endpoints
    }

    /// What a connection is hashed by; `None`: nothing.
    pub(crate) fn key_of_connection(&self, client: IpAddr) -> Option<u64> {
        let on = self.settings.algorithm.hash_on()?;
        matches!(on, HashOn::SourceIp).then(|| hash_of(client.to_canonical().to_string().as_bytes()))
    }

    /// What a request is hashed by; `None`: nothing, or the request has no such header or cookie.
    pub(crate) fn key_of_request(&self, headers: &HeaderMap, client: IpAddr) -> Option<u64> {
        match self.settings.algorithm.hash_on()? {
            HashOn::SourceIp => self.key_of_connection(client),
            HashOn::Header(name) => headers.get(name.as_str()).map(|value| hash_of(value.as_bytes())),
            HashOn::Cookie(name) => {
                let lines = headers.get_all(header::COOKIE).iter();
                let mut pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
                let value = pairs.find_map(|pair| {
                    let pair = pair.trim_ascii();
                    pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=")
                })?;
                Some(hash_of(value))
            }
        }
    }

    /// The endpoint for a request; `key` is what it is hashed by, and `avoid` are endpoints that already failed for it.
    pub(crate) fn pick(
        &self,
        random: &SharedRandom,
        now: ProxyTime,
        key: Option<u64>,
        avoid: &[Arc<UpstreamEndpoint>],
    ) -> Option<&WeightedEndpoint> {
        if let [only] = &*self.endpoints {
            return Some(only);
        }
        let in_panic = self.panic_until.load(Relaxed) > now.0
            && (self.tiers.len() == 1 || self.health(now).sum::<usize>() < 100);
        let usable = |weighted: &WeightedEndpoint| {
            (in_panic || !weighted.endpoint.is_ejected(now))
                && !avoid.iter().any(|avoid| Arc::ptr_eq(avoid, &weighted.endpoint))
        };
        let tier = self.tier(random, now, key, usable)?;
        let own = self.endpoints.get(tier.range.clone())?;
        match &self.settings.algorithm {
            LbAlgorithm::LeastRequest => {}
            LbAlgorithm::RoundRobin => return self.next_in_turn(tier, own, random, now, usable),
            // Without a key, any endpoint.
            LbAlgorithm::RingHash(_) | LbAlgorithm::Maglev(_) => {
                let key = key.unwrap_or_else(|| random.next());
                let is_usable = |index: usize| own.get(index).is_some_and(usable);
                return own.get(tier.hash_table.find(key, own.len(), is_usable)?);
            }
        }
        let chance = random.next();
        let first = self.draw_warm(tier, own, chance as u32, random, now)?;
        let second = self.draw_warm(tier, own, (chance >> 32) as u32, random, now)?;
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
            (false, false) => own.iter().find(|weighted| usable(weighted)).unwrap_or(first),
        };
        Some(chosen)
    }

    /// The tier for a request: by health, else the first with a usable endpoint.
    fn tier(
        &self,
        random: &SharedRandom,
        now: ProxyTime,
        key: Option<u64>,
        usable: impl Fn(&WeightedEndpoint) -> bool,
    ) -> Option<&EndpointTier> {
        let first = self.tiers.first()?;
        if self.tiers.len() == 1 {
            return Some(first);
        }
        let mut chosen = first;
        // Without ejections the first tier serves everything.
        if self.ejected_until.load(Relaxed) > now.0 {
            let all = self.health(now).sum::<usize>().min(100) as u64;
            let mut point = key.map_or_else(|| random.next(), mix).checked_rem(all).unwrap_or_default();
            for (tier, health) in self.tiers.iter().zip(self.health(now)) {
                if point < health as u64 {
                    chosen = tier;
                    break;
                }
                point -= health as u64;
            }
        }
        let has_usable = |tier: &&EndpointTier| {
            self.endpoints.get(tier.range.clone()).is_some_and(|own| own.iter().any(&usable))
        };
        if has_usable(&chosen) {
            return Some(chosen);
        }
        Some(self.tiers.iter().find(has_usable).unwrap_or(chosen))
    }

    /// The percentage of all requests that each tier can serve.
    fn health(&self, now: ProxyTime) -> impl Iterator<Item = usize> {
        self.tiers.iter().map(move |tier| {
            let own = self.endpoints.get(tier.range.clone()).unwrap_or_default();
            let healthy = own.iter().filter(|weighted| !weighted.endpoint.is_ejected(now)).count();
            (OVERPROVISIONING * healthy / own.len().max(1)).min(100)
        })
    }

    /// The next endpoint in turn. With unequal weights, turns are spread evenly over the sum of weights, in steps of the
    /// golden ratio.
    fn next_in_turn<'b>(
        &'b self,
        tier: &EndpointTier,
        own: &'b [WeightedEndpoint],
        random: &SharedRandom,
        now: ProxyTime,
        usable: impl Fn(&WeightedEndpoint) -> bool,
    ) -> Option<&'b WeightedEndpoint> {
        let mut passed = None;
        for _ in 0..own.len().saturating_mul(2) {
            let turn = tier.turns.fetch_add(1, Relaxed);
            let next = if tier.ends.is_empty() {
                own.get(usize::try_from(turn % own.len() as u64).unwrap_or_default())?
            } else {
                tier.draw(own, (turn.wrapping_mul(GOLDEN_STEP) >> 32) as u32)?
            };
            if usable(next) {
                if now >= self.warm_at || !self.is_withheld(next, random, now) {
                    return Some(next);
                }
                passed = Some(next);
            }
        }
        passed.or_else(|| own.iter().find(|next| usable(next))).or(own.first())
    }

    /// Draws by weight, and again where slow start withholds the endpoint that was drawn.
    fn draw_warm<'b>(
        &self,
        tier: &EndpointTier,
        own: &'b [WeightedEndpoint],
        chance: u32,
        random: &SharedRandom,
        now: ProxyTime,
    ) -> Option<&'b WeightedEndpoint> {
        const DRAWS: usize = 8;
        let mut drawn = tier.draw(own, chance)?;
        for _ in 0..DRAWS {
            if now >= self.warm_at || !self.is_withheld(drawn, random, now) {
                break;
            }
            drawn = tier.draw(own, random.next() as u32).unwrap_or(drawn);
        }
        Some(drawn)
    }

    /// Whether the limit on ejected endpoints allows one more.
    pub(crate) fn may_eject(&self, now: ProxyTime) -> bool {
        let ejected = self.endpoints.iter().filter(|weighted| weighted.endpoint.is_ejected(now)).count();
        let percent = self.settings.load_balancing.max_ejection_percent as usize;
        (ejected + 1) * 100 <= self.endpoints.len() * percent
    }

    /// Computes until when endpoints are ejected, and until when too few are not: after a change of endpoints, and after an
    /// ejection.
    pub(crate) fn update_ejections(&self) {
        let mut ends: Vec<u64> =
            self.endpoints.iter().map(|weighted| weighted.endpoint.outlier.ejected_until().0).collect();
        ends.sort_unstable();
        self.ejected_until.store(ends.last().copied().unwrap_or_default(), Relaxed);
        // Fewer than so many of them are panic.
        let needed = (ends.len() * usize::from(self.settings.panic_threshold)).div_ceil(100);
        if needed == 0 {
            return;
        }
        // When `needed` endpoints are back.
        let until = ends.get(needed - 1).copied().unwrap_or_default();
        self.panic_until.store(until, Relaxed);
    }

    fn is_withheld(&self, weighted: &WeightedEndpoint, random: &SharedRandom, now: ProxyTime) -> bool {
        let factor = weighted.endpoint.slow_start_factor(now, &self.settings.slow_start);
        factor < 1.0 && (random.next() >> 40) as f32 / (1 << 24) as f32 >= factor
    }
}

impl EndpointTier {
    fn new(range: Range<usize>, own: &[WeightedEndpoint], algorithm: &LbAlgorithm) -> Self {
        let first = own.first().map_or(1.0, |weighted| weighted.weight);
        let even = own.iter().all(|weighted| weighted.weight == first);
        let sum = |sum: &mut f32, weighted: &WeightedEndpoint| {
            *sum += weighted.weight;
            Some(*sum)
        };
        let ends = if even { Box::default() } else { own.iter().scan(0.0, sum).collect() };
        let addresses = || -> Vec<(SocketAddr, f32)> {
            own.iter().map(|weighted| (weighted.endpoint.address, weighted.weight)).collect()
        };
        let hash_table = match algorithm {
            LbAlgorithm::RingHash(_) => HashTable::ring(&addresses()),
            LbAlgorithm::Maglev(_) => HashTable::maglev(&addresses()),
            LbAlgorithm::RoundRobin | LbAlgorithm::LeastRequest => HashTable::None,
        };
        Self { range, ends, hash_table, turns: AtomicU64::new(0) }
    }

    fn draw<'b>(&self, own: &'b [WeightedEndpoint], chance: u32) -> Option<&'b WeightedEndpoint> {
        let Some(total) = self.ends.last() else {
            let at = (u64::from(chance) * own.len() as u64) >> 32;
            return own.get(usize::try_from(at).unwrap_or_default());
        };
        let point = chance as f32 / u32::MAX as f32 * total;
        let at = self.ends.partition_point(|end| *end <= point).min(self.ends.len() - 1);
        own.get(at)
    }
}

#[cfg(test)]
mod tests;
