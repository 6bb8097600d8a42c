//! Hysteresis: what mechanisms remember between two decisions, so that small changes have small effects.
//!
//! It is an argument and a result. Everything that affects decisions can be read back from the slices, so a restarted
//! controller continues where the last one stopped.

use std::net::IpAddr;

use model::{AddressType, Family, Name, Slice, SliceContent, annotation};

use super::mechanism::Mechanism;
use super::topology::ClusterTopology;
use super::{HintContext, auto, endpoints_by_zone, event_reason};
use crate::slices::Packing;
use crate::spill::{MeasuredDemand, ProvedLoad, SpillDemand, SpillKeep};

/// The state of one Service and one address family.
///
/// Two are equal if they lead to the same decisions; reported Notices do not count.
#[derive(Clone, Debug, Default)]
pub struct Hysteresis {
    pub(super) mechanism: Mechanism,
    /// Whether the mechanism is active, not disabled by a safeguard.
    pub(super) programmed: bool,
    /// Whether ready endpoints have zone hints. For Auto, Prefer and Spill, and for hints of other writers.
    pub(super) hinted: bool,
    /// Ready endpoints per served zone. Only for Auto.
    pub(super) hints_by_zone: Vec<(Name, usize)>,
    /// Ready endpoints that serve another zone than their own, sorted by address. For Auto and Prefer.
    pub(super) reassigned: Vec<(IpAddr, Name)>,
    pub(super) demand: Option<SpillDemand>,
    /// Only if the demand is measured.
    pub(super) proved: Option<ProvedLoad>,
    /// The demand to write now.
    pub(super) measured: Option<MeasuredDemand>,
    /// Unknown after a restart.
    pub(super) reported: Option<ReportedNotices>,
}

/// The last Notices, to report each only once.
#[derive(Clone, Debug, Default)]
pub(super) struct ReportedNotices {
    reasons: Vec<&'static str>,
    /// Messages about settings, which hold no numbers.
    about_settings: Vec<String>,
    source: String,
    held_back: Option<&'static str>,
}

impl ReportedNotices {
    pub(super) fn new(context: &HintContext<'_>, held_back: Option<&'static str>) -> Self {
        let about_settings =
            context.notices.iter().filter(|(reason, _)| event_reason::is_about_settings(reason));
        Self {
            reasons: context.notices.iter().map(|(reason, _)| *reason).collect(),
            about_settings: about_settings.map(|(_, message)| message.clone()).collect(),
            source: context.source.clone(),
            held_back,
        }
    }
}

impl PartialEq for Hysteresis {
    fn eq(&self, other: &Self) -> bool {
        self.mechanism == other.mechanism
            && self.programmed == other.programmed
            && self.hinted == other.hinted
            && self.hints_by_zone == other.hints_by_zone
            && self.reassigned == other.reassigned
            && self.demand == other.demand
            && self.proved == other.proved
            && self.measured == other.measured
    }
}

impl Eq for Hysteresis {}

impl Hysteresis {
    /// Reads it back from the stored slices of one Service; slices of other families are ignored.
    pub fn from_slices(family: Family, slices: &[Slice]) -> Self {
        // If Kubernetes' own controller also writes slices, only ours count.
        let beside = slices.iter().any(Slice::is_coexisting);
        let of_family = |s: &&Slice| {
            s.content.address_type == AddressType::Ip(family) && !s.deleting && s.is_coexisting() == beside
        };
        let contents = || slices.iter().filter(of_family).map(|s| &s.content);
        let annotated = |c: &SliceContent| Mechanism::parse(c.annotation(annotation::MECHANISM)?);
        // Slices differ if a controller stopped half-way. Active mechanisms sort before inactive ones.
        let mechanism = contents().filter_map(annotated).filter(|m| *m != Mechanism::None).min();
        let mechanism = mechanism.unwrap_or_default();
        let demand = contents().find_map(spill_demand);
        let mut hysteresis = Self::of(mechanism, demand, None, contents());
        hysteresis.proved =
            contents().find_map(|c| ProvedLoad::parse(c.annotation(annotation::PROVED)?).ok());
        if mechanism == Mechanism::None {
            let ready = contents().flat_map(|c| &c.endpoints).filter(|e| e.conditions.is_ready_for_hints());
            hysteresis.hinted = ready.into_iter().any(|e| e.hints.is_some());
        }
        hysteresis
    }

    /// The hysteresis after the slices of a packing are written.
    pub(super) fn after(
        mechanism: Mechanism,
        demand: Option<SpillDemand>,
        proved: Option<ProvedLoad>,
        reported: ReportedNotices,
        packing: &Packing<'_>,
    ) -> Self {
        let after = Self::of(mechanism, demand, Some(reported), endpoints_by_zone::contents(packing));
        Self { proved, ..after }
    }

    /// With a measured demand to write, for a Service that spills by measured demand.
    pub fn with_measured(self, measured: MeasuredDemand) -> Self {
        Self { measured: Some(measured), ..self }
    }

    /// The demand in the slices, if it is Spill's.
    pub fn demand(&self) -> Option<&SpillDemand> {
        self.demand.as_ref()
    }

    /// The proved load in the slices.
    pub fn proved(&self) -> Option<ProvedLoad> {
        self.proved
    }

    fn of<'s>(
        mechanism: Mechanism,
        demand: Option<SpillDemand>,
        reported: Option<ReportedNotices>,
        contents: impl Iterator<Item = &'s SliceContent>,
    ) -> Self {
        let mut hysteresis = Self { mechanism, demand, reported, ..Self::default() };
        let reassigns = mechanism.rebalances() && !mechanism.is_resting();
        if reassigns || matches!(mechanism, Mechanism::Auto | Mechanism::Spill) {
            hysteresis.add_hints(contents);
        }
        hysteresis.hinted = !hysteresis.hints_by_zone.is_empty();
        hysteresis.programmed = match mechanism {
            Mechanism::None => false,
            Mechanism::Auto => hysteresis.hinted,
            Mechanism::Spill => hysteresis.demand.is_some(),
            other => !other.is_resting(),
        };
        if mechanism != Mechanism::Auto {
            hysteresis.hints_by_zone = Vec::new();
        }
        hysteresis
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
                self.reassigned.push((endpoint.addresses.first(), zone.clone()));
            }
        }
        self.hints_by_zone.sort_unstable();
        self.reassigned.sort_unstable();
        self.reassigned.dedup_by(|a, b| a.0 == b.0);
    }

    /// The zone that an endpoint was reassigned to.
    pub(super) fn lent_to(&self, address: IpAddr) -> Option<&Name> {
        let at = self.reassigned.binary_search_by(|(reassigned, _)| reassigned.cmp(&address)).ok()?;
        Some(&self.reassigned[at].1)
    }

    /// Whether a Notice was not reported `before`.
    pub(super) fn is_news(&self, before: &Self, reason: &str, message: &String) -> bool {
        let holds_back = matches!(reason, event_reason::AUTO_DISABLED | event_reason::WITHHELD);
        let now = self.reported.as_ref();
        match &before.reported {
            Some(reported) if event_reason::is_about_settings(reason) => {
                !reported.about_settings.contains(message)
            }
            Some(reported) => {
                let switched = self.mechanism.active_form() != before.mechanism.active_form()
                    || now.is_some_and(|now| now.source != reported.source);
                let other_cause = now.is_some_and(|now| now.held_back != reported.held_back);
                !reported.reasons.contains(&reason) || switched || (holds_back && other_cause)
            }
            // After a restart: what the slices show was reported when they were written.
            None if before.mechanism == Mechanism::None => !(before.hinted && self.programmed),
            None => self.mechanism != before.mechanism || self.programmed != before.programmed,
        }
    }

    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    /// Whether Auto has to plan the Service again after a change of nodes: a zone has too few endpoints for its new share
    /// (semantics A2).
    pub fn is_overloaded(&self, topology: &ClusterTopology) -> bool {
        let counts: Vec<(&str, usize)> = self.hints_by_zone.iter().map(|(z, n)| (z.as_str(), *n)).collect();
        let ratios: Vec<(&str, f64)> =
            topology.cpu_ratios().into_iter().flatten().map(|(z, r)| (z.as_str(), r)).collect();
        auto::cpu_allocation::is_overloaded(&counts, &ratios)
    }
}

fn spill_demand(content: &SliceContent) -> Option<SpillDemand> {
    let demand = SpillDemand::parse(content.annotation(annotation::DEMAND)?).ok()?;
    let keep = content.annotation(annotation::KEEP).and_then(|text| SpillKeep::parse(text).ok());
    Some(demand.with_keep(keep))
}
