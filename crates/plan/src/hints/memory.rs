//! What the mechanisms remember from one decision to the next, so that small changes of the world stay small.
//!
//! It is an argument and a result, never a cache: all of it that decides anything can be read back from the slices,
//! so a controller that starts anew goes on where the last one stopped.

use std::net::IpAddr;

use model::{AddressType, Family, Name, Slice, SliceContent, annotation};

use super::facts::ClusterFacts;
use super::mechanism::Mechanism;
use super::{Task, auto, reason, survey};
use crate::slices::Packing;
use crate::spill::Demand;

/// The state of one Service and one address family as its slices tell it.
///
/// Two memories are equal when they lead to the same decisions; what has been said about them does not count.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    pub(super) mechanism: Mechanism,
    /// Whether the mechanism is at work, and not held back by a safeguard.
    pub(super) programmed: bool,
    /// Whether ready endpoints carry hints for zones. Kept for Auto, Prefer and Spill, and for hints of somebody else.
    pub(super) hinted: bool,
    /// Ready endpoints that serve each zone, by its name. Kept for Auto alone.
    pub(super) hints_by_zone: Vec<(Name, usize)>,
    /// Ready endpoints that serve another zone than their own, in the order of their addresses. Kept for Auto and Prefer.
    pub(super) lent: Vec<(IpAddr, Name)>,
    pub(super) demand: Option<Demand>,
    /// What was said last. Unknown after a start.
    pub(super) said: Option<Said>,
}

/// The last Notices, as far as saying them again would be a repetition.
#[derive(Clone, Debug, Default)]
pub(super) struct Said {
    reasons: Vec<&'static str>,
    /// Notices about the settings themselves, whose words hold no numbers.
    about_settings: Vec<String>,
    /// The setting that decided.
    source: String,
    /// Why the mechanism held back.
    held_back: Option<&'static str>,
}

impl Said {
    pub(super) fn new(task: &Task<'_>, held_back: Option<&'static str>) -> Self {
        let about_settings = task.said.iter().filter(|(reason, _)| reason::is_about_settings(reason));
        Self {
            reasons: task.said.iter().map(|(reason, _)| *reason).collect(),
            about_settings: about_settings.map(|(_, message)| message.clone()).collect(),
            source: task.source.clone(),
            held_back,
        }
    }
}

impl PartialEq for Memory {
    fn eq(&self, other: &Self) -> bool {
        self.mechanism == other.mechanism
            && self.programmed == other.programmed
            && self.hinted == other.hinted
            && self.hints_by_zone == other.hints_by_zone
            && self.lent == other.lent
            && self.demand == other.demand
    }
}

impl Eq for Memory {}

impl Memory {
    /// Reads it back from the stored slices of one Service: those of `family`, whatever else is among them.
    pub fn from_slices(family: Family, slices: &[Slice]) -> Self {
        // Beside those of Kubernetes' own controller, ours alone tell what we decided.
        let beside = slices.iter().any(Slice::is_coexisting);
        let of_family = |s: &&Slice| {
            s.content.address_type == AddressType::Ip(family) && !s.deleting && s.is_coexisting() == beside
        };
        let contents = || slices.iter().filter(of_family).map(|s| &s.content);
        let said = |c: &SliceContent| Mechanism::parse(c.annotation(annotation::MECHANISM)?);
        // Slices disagree when a controller stopped half-way. Mechanisms at work stand before resting ones.
        let mechanism = contents().filter_map(said).filter(|m| *m != Mechanism::None).min();
        let mechanism = mechanism.unwrap_or_default();
        let demand = contents().find_map(|c| Demand::parse(c.annotation(annotation::DEMAND)?).ok());
        let mut memory = Self::of(mechanism, demand, None, contents());
        if mechanism == Mechanism::None {
            let ready = contents().flat_map(|c| &c.endpoints).filter(|e| e.conditions.is_ready_for_hints());
            memory.hinted = ready.into_iter().any(|e| e.hints.is_some());
        }
        memory
    }

    /// What the slices of a packing will tell once they are written.
    pub(super) fn after(
        mechanism: Mechanism,
        demand: Option<Demand>,
        said: Said,
        packing: &Packing<'_>,
    ) -> Self {
        Self::of(mechanism, demand, Some(said), survey::contents(packing))
    }

    fn of<'s>(
        mechanism: Mechanism,
        demand: Option<Demand>,
        said: Option<Said>,
        contents: impl Iterator<Item = &'s SliceContent>,
    ) -> Self {
        let mut memory = Self { mechanism, demand, said, ..Self::default() };
        let lends = mechanism.rebalances() && !mechanism.is_resting();
        if lends || matches!(mechanism, Mechanism::Auto | Mechanism::Spill) {
            memory.add_hints(contents);
        }
        memory.hinted = !memory.hints_by_zone.is_empty();
        memory.programmed = match mechanism {
            Mechanism::None => false,
            Mechanism::Auto => memory.hinted,
            Mechanism::Spill => memory.demand.is_some(),
            other => !other.is_resting(),
        };
        if mechanism != Mechanism::Auto {
            memory.hints_by_zone = Vec::new();
        }
        memory
    }

    fn add_hints<'s>(&mut self, contents: impl Iterator<Item = &'s SliceContent>) {
        let endpoints = contents.flat_map(|c| &c.endpoints);
        for endpoint in endpoints.filter(|e| e.conditions.is_ready_for_hints()) {
            let [zone, ..] = endpoint.zone_hints() else { continue };
            match self.hints_by_zone.iter_mut().find(|(z, _)| z == zone) {
                Some((_, count)) => *count += 1,
                None => self.hints_by_zone.push((zone.clone(), 1)),
            }
            if endpoint.zone.as_ref() != Some(zone) {
                self.lent.push((endpoint.addresses.first(), zone.clone()));
            }
        }
        self.hints_by_zone.sort_unstable();
        self.lent.sort_unstable();
        self.lent.dedup_by(|a, b| a.0 == b.0);
    }

    /// The zone that an endpoint was lent to.
    pub(super) fn lent_to(&self, address: IpAddr) -> Option<&Name> {
        let at = self.lent.binary_search_by(|(lent, _)| lent.cmp(&address)).ok()?;
        Some(&self.lent[at].1)
    }

    /// Whether a Notice, given now, was not given `before`.
    pub(super) fn is_news(&self, before: &Self, reason: &str, message: &String) -> bool {
        let holds_back = matches!(reason, reason::AUTO_DISABLED | reason::WITHHELD);
        let now = self.said.as_ref();
        match &before.said {
            Some(said) if reason::is_about_settings(reason) => !said.about_settings.contains(message),
            Some(said) => {
                let switched = self.mechanism.at_work() != before.mechanism.at_work()
                    || now.is_some_and(|now| now.source != said.source);
                let other_cause = now.is_some_and(|now| now.held_back != said.held_back);
                !said.reasons.contains(&reason) || switched || (holds_back && other_cause)
            }
            // A start. What the slices show was said when they were written; of the rest nobody knows.
            None if before.mechanism == Mechanism::None => !(before.hinted && self.programmed),
            None => self.mechanism != before.mechanism || self.programmed != before.programmed,
        }
    }

    /// The mechanism behind the slices.
    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    /// Whether Auto has to look at the Service again because the nodes changed: a zone has too few endpoints for its
    /// new share (semantics A2).
    pub fn is_overloaded(&self, facts: &ClusterFacts) -> bool {
        let counts: Vec<(&str, usize)> = self.hints_by_zone.iter().map(|(z, n)| (z.as_str(), *n)).collect();
        let ratios: Vec<(&str, f64)> =
            facts.cpu_ratios().into_iter().flatten().map(|(z, r)| (z.as_str(), r)).collect();
        auto::allocation::is_overloaded(&counts, &ratios)
    }
}
