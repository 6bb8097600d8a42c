//! One Service under one mechanism: as it is, without a zone, with one more replica, during a rolling update.

use std::collections::BTreeMap;
use std::net::IpAddr;

use model::{Endpoint, EndpointConditions, Family, Labels, Name, Service, Slice, SliceContent};
use plan::PlanningConfig;
use plan::hints::{ClusterTopology, HintInput, Hysteresis, MechanismChoice, assign_chosen};
use plan::slices::Packing;

use super::traffic::{TrafficSources, figures};
use super::{TrafficFigures, WhatIfEvaluator, new_endpoint};

/// Addresses of added endpoints start here, above those of `--scale`.
const FIRST_ADDED: u64 = 1 << 20;

pub(super) struct Scenario<'t> {
    pub evaluator: &'t WhatIfEvaluator,
    pub service: &'t Service,
    pub family: Family,
    pub config: &'t PlanningConfig,
    pub choice: &'t MechanismChoice,
}

/// Default `maxSurge` of a Deployment: a quarter, rounded up.
pub fn surge(replicas: usize) -> usize {
    replicas.div_ceil(4)
}

/// Default `maxUnavailable` of a Deployment: a quarter, rounded down.
pub fn unavailable(replicas: usize) -> usize {
    replicas / 4
}

/// Slices with hints, and the decision.
pub(super) struct Hinted {
    pub slices: Vec<Slice>,
    pub hysteresis: Hysteresis,
    pub programmed: bool,
    pub held_back: Option<&'static str>,
}

impl Scenario<'_> {
    /// Assigns hints. Slices that the scenario changed (generation > 0) are updates; the others are only written if
    /// their hints change.
    pub(super) fn hinted(
        &self,
        topology: &ClusterTopology,
        hysteresis: &Hysteresis,
        mut slices: Vec<Slice>,
    ) -> Hinted {
        let touched = slices.iter_mut().filter(|slice| slice.generation > 0);
        let updates =
            touched.map(|slice| (slice.key.name.clone(), take_content(&mut slice.content))).collect();
        let unchanged = slices.iter().filter(|slice| slice.generation == 0).collect();
        let capacities = slices.iter().filter_map(|slice| slice.shares.as_ref());
        let capacities = capacities.flat_map(|shares| shares.capacities.iter().copied()).collect();
        let mut packing = Packing { updates, unchanged, capacities, ..Packing::default() };
        let (service, family, config) = (self.service, self.family, self.config);
        let input = HintInput {
            service,
            family,
            topology,
            namespace_default: None,
            config,
            hysteresis,
            with_notices: false,
        };
        let outcome = assign_chosen(&input, self.choice.clone(), &mut packing);
        for (name, content) in packing.updates {
            if let Some(slice) = slices.iter_mut().find(|slice| slice.key.name == name) {
                slice.content = content;
                slice.generation = 0;
            }
        }
        let held_back = outcome.held_back.map(|(_, sentence)| sentence);
        Hinted { slices, hysteresis: outcome.hysteresis, programmed: outcome.programmed, held_back }
    }

    pub(super) fn figures(&self, slices: &[Slice], sources: &TrafficSources) -> TrafficFigures {
        figures(self.service, slices, self.family, sources)
    }

    /// The worst zone failure, after the controller has synced.
    pub(super) fn worst_failure(
        &self,
        now: &Hinted,
        failures: &[(&Name, &ClusterTopology, TrafficSources)],
    ) -> Option<(Name, TrafficFigures)> {
        let failed = failures.iter().map(|(zone, topology, sources)| {
            let without: Vec<Slice> = now.slices.iter().map(|slice| without_zone(slice, zone)).collect();
            let then = self.hinted(topology, &now.hysteresis, without);
            ((*zone).clone(), self.figures(&then.slices, sources))
        });
        failed.reduce(|a, b| if b.1.badness() > a.1.badness() { b } else { a })
    }

    /// With one more replica, spread over zones.
    pub(super) fn with_replica(
        &self,
        now: &Hinted,
        sources: &TrafficSources,
    ) -> Option<(Name, TrafficFigures)> {
        let mut slices = now.slices.clone();
        let zone = self.add(&mut slices, FIRST_ADDED)?;
        let then = self.hinted(&self.evaluator.topology, &now.hysteresis, slices);
        Some((zone, self.figures(&then.slices, sources)))
    }

    /// The worst point of a rolling update with the defaults of a Deployment: number of ready endpoints, and figures.
    /// New pods become ready all at once, then old ones are deleted, the last first.
    pub(super) fn worst_of_rolling_update(
        &self,
        now: &Hinted,
        sources: &TrafficSources,
    ) -> Option<(usize, TrafficFigures)> {
        let is_ready = |e: &&Endpoint| e.conditions.is_ready();
        let ready = now.slices.iter().flat_map(|slice| &slice.content.endpoints).filter(is_ready);
        let mut old: Vec<IpAddr> = ready.map(|e| e.addresses.first()).collect();
        let wanted = old.len();
        let (mut new, mut next) = (0, FIRST_ADDED);
        let (mut slices, mut hysteresis) = (now.slices.clone(), now.hysteresis.clone());
        let mut worst: Option<(usize, TrafficFigures)> = None;
        while !old.is_empty() {
            let spare = (old.len() + new).saturating_sub(wanted - unavailable(wanted)).min(old.len());
            let gone = old.split_off(old.len() - spare);
            for slice in &mut slices {
                let before = slice.content.endpoints.len();
                slice.content.endpoints.retain(|e| !gone.contains(&e.addresses.first()));
                slice.generation += i64::from(slice.content.endpoints.len() < before);
            }
            let then = self.hinted(&self.evaluator.topology, &hysteresis, slices);
            let figures = self.figures(&then.slices, sources);
            if worst.as_ref().is_none_or(|(_, known)| figures.badness() > known.badness()) {
                worst = Some((old.len() + new, figures));
            }
            (slices, hysteresis) = (then.slices, then.hysteresis);
            let started = (wanted - new).min(wanted + surge(wanted) - old.len() - new);
            for _ in 0..started {
                self.add(&mut slices, next)?;
                next += 1;
            }
            new += started;
        }
        worst
    }

    /// Adds a ready endpoint to the zone with the fewest.
    fn add(&self, slices: &mut [Slice], number: u64) -> Option<Name> {
        let zones = self.evaluator.topology.zones().iter().filter(|zone| zone.ready_nodes > 0);
        let mut counts: BTreeMap<&Name, usize> = zones.map(|zone| (&zone.name, 0)).collect();
        for endpoint in slices.iter().flat_map(|slice| &slice.content.endpoints) {
            let count = endpoint.zone.as_ref().and_then(|zone| counts.get_mut(zone));
            if let Some(count) = count.filter(|_| endpoint.conditions.is_ready()) {
                *count += 1;
            }
        }
        let (zone, _) = counts.into_iter().min_by_key(|(_, count)| *count)?;
        let slice = slices.iter_mut().min_by_key(|slice| slice.content.endpoints.len())?;
        let node = self.evaluator.first_node.get(zone).cloned();
        slice.content.endpoints.push(new_endpoint(self.family, number, zone, node));
        slice.generation += 1;
        Some(zone.clone())
    }
}

/// The slice after the failure of a zone.
pub(super) fn without_zone(slice: &Slice, zone: &Name) -> Slice {
    let mut slice = slice.clone();
    let lost = slice.content.endpoints.iter_mut().filter(|e| e.zone.as_ref() == Some(zone));
    for endpoint in lost {
        endpoint.conditions = EndpointConditions::new(false, false, false);
        slice.generation += 1;
    }
    slice
}

/// Takes the content and leaves an empty one.
fn take_content(content: &mut SliceContent) -> SliceContent {
    let empty = SliceContent {
        address_type: content.address_type,
        labels: Labels::EMPTY,
        annotations: Labels::EMPTY,
        ports: content.ports.clone(),
        endpoints: Vec::new(),
    };
    std::mem::replace(content, empty)
}
