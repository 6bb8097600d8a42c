//! Which endpoint gets a request: two are drawn by weight, and the less loaded one has it.
//!
//! The weights are the brain's (hints, Require, Spill). Load only decides between two that were drawn; one that
//! fails is left out for a while, unless that would leave out too many; a new one begins with a part of its share.

use std::sync::Arc;

use model::Locality;

use crate::peer::{Moment, Peer};
use crate::random::Random;
use crate::settings::Health;

/// The endpoints of a backend.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    choices: Box<[Choice]>,
    /// Where each ends when their weights are laid end to end; empty where all weigh the same.
    ends: Box<[f32]>,
    /// Until when one of them is new.
    warm_at: Moment,
}

/// One endpoint of a backend.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) peer: Arc<Peer>,
    pub(crate) weight: f32,
    pub(crate) locality: Locality,
}

impl Cluster {
    pub(crate) fn new(choices: Vec<Choice>, health: &Health) -> Self {
        let first = choices.first().map_or(1.0, |choice| choice.weight);
        let even = choices.iter().all(|choice| choice.weight == first);
        let sum = |sum: &mut f32, choice: &Choice| {
            *sum += choice.weight;
            Some(*sum)
        };
        let ends = if even { Box::default() } else { choices.iter().scan(0.0, sum).collect() };
        let born = choices.iter().filter_map(|choice| choice.peer.born).max();
        let warm_at = born.map(|born| born.plus(health.slow_start)).unwrap_or_default();
        Self { choices: choices.into(), ends, warm_at }
    }

    pub(crate) fn choices(&self) -> &[Choice] {
        &self.choices
    }

    /// The endpoint for the next request. Those of `avoid` have just failed for it.
    pub(crate) fn pick(
        &self,
        random: &Random,
        now: Moment,
        health: &Health,
        avoid: &[Arc<Peer>],
    ) -> Option<&Choice> {
        if let [only] = &*self.choices {
            return Some(only);
        }
        let chance = random.next();
        let first = self.warm(self.draw(chance as u32)?, random, now, health);
        let second = self.warm(self.draw((chance >> 32) as u32)?, random, now, health);
        let usable = |choice: &Choice| {
            !choice.peer.is_ejected(now) && !avoid.iter().any(|avoid| Arc::ptr_eq(avoid, &choice.peer))
        };
        let chosen = match (usable(first), usable(second)) {
            // Load relative to weight, so that a small share is not taken for a busy endpoint.
            (true, true) => {
                let (a, b) =
                    (first.peer.load() as f32 * second.weight, second.peer.load() as f32 * first.weight);
                if b < a { second } else { first }
            }
            (true, false) => first,
            (false, true) => second,
            (false, false) => self.choices.iter().find(|choice| usable(choice)).unwrap_or(first),
        };
        Some(chosen)
    }

    /// The one that was drawn, or another one where it is new and this is not yet of its share.
    fn warm<'c>(
        &'c self,
        mut drawn: &'c Choice,
        random: &Random,
        now: Moment,
        health: &Health,
    ) -> &'c Choice {
        const DRAWS: usize = 8;
        for _ in 0..DRAWS {
            if now >= self.warm_at || !self.is_held_back(drawn, random, now, health) {
                break;
            }
            drawn = self.draw(random.next() as u32).unwrap_or(drawn);
        }
        drawn
    }

    fn is_held_back(&self, choice: &Choice, random: &Random, now: Moment, health: &Health) -> bool {
        let warmth = choice.peer.warmth(now, health.slow_start);
        warmth < 1.0 && (random.next() >> 40) as f32 / (1 << 24) as f32 >= warmth
    }

    /// One endpoint by weight.
    fn draw(&self, chance: u32) -> Option<&Choice> {
        let count = self.choices.len() as u64;
        let Some(total) = self.ends.last() else {
            let at = (u64::from(chance) * count) >> 32;
            return self.choices.get(usize::try_from(at).unwrap_or_default());
        };
        let point = chance as f32 / u32::MAX as f32 * total;
        let at = self.ends.partition_point(|end| *end <= point).min(self.ends.len() - 1);
        self.choices.get(at)
    }

    /// Whether one more may be left out.
    pub(crate) fn may_eject(&self, now: Moment, health: &Health) -> bool {
        let out = self.choices.iter().filter(|choice| choice.peer.is_ejected(now)).count();
        (out + 1) * 100 <= self.choices.len() * health.ejected_percent as usize
    }
}

#[cfg(test)]
mod tests;
