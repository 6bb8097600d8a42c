//! One Service as it is and after a change: another mechanism, more or fewer replicas, a zone that fails.

use std::collections::BTreeMap;

use crate::FeatureGates;
use crate::hints::{Hysteresis, Mechanism, MechanismChoice, TrafficDistributionDefaults, choose};
use model::{AddressType, Name, Service, Slice};

use super::scenario::{Scenario, without_zone};
use super::traffic::{EndpointLoad, figures_and_loads};
use super::{TrafficFigures, WhatIfEvaluator, WhatIfQuery, family_of, measured, with_mechanism};

/// What changes; by default nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WhatIfChange {
    /// Another mechanism than the present one.
    pub mechanism: Option<Mechanism>,
    /// A zone whose nodes and endpoints fail.
    pub failed_zone: Option<Name>,
}

/// A Service before and after a change.
#[derive(Clone, Debug, PartialEq)]
pub struct WhatIfComparison {
    pub before: ComparedState,
    pub after: ComparedState,
}

/// Where traffic goes in one of the two.
#[derive(Clone, Debug, PartialEq)]
pub struct ComparedState {
    pub mechanism: Mechanism,
    /// Why a safeguard holds the hints back.
    pub held_back: Option<&'static str>,
    pub figures: TrafficFigures,
    pub endpoints: Vec<EndpointLoad>,
    /// Ready endpoints by zone.
    pub endpoints_by_zone: BTreeMap<Name, usize>,
}

impl WhatIfEvaluator {
    /// The load of each endpoint by the slices as they are.
    pub fn endpoint_loads(
        &self,
        service: &Service,
        slices: &[Slice],
        demand: Option<&BTreeMap<Name, f64>>,
    ) -> Vec<EndpointLoad> {
        let query = WhatIfQuery { service, slices, namespace_default: None, scale: &[], measured: demand };
        let family = family_of(slices);
        figures_and_loads(service, &self.stored(slices), family, &measured(&self.sources, &query)).1
    }

    /// Compares the slices as they are with those that the controller would write after the change and `query.scale`.
    /// A zone that no ready node has does not fail.
    pub fn compare(&self, query: &WhatIfQuery<'_>, change: &WhatIfChange) -> WhatIfComparison {
        let family = family_of(query.slices);
        let stored = self.stored(query.slices);
        let defaults =
            TrafficDistributionDefaults { namespace: query.namespace_default.cloned(), cluster: None };
        let current = choose(query.service, &defaults, &FeatureGates::default()).mechanism;
        let sources = measured(&self.sources, query);
        let (figures, endpoints) = figures_and_loads(query.service, &stored, family, &sources);
        let before = ComparedState {
            mechanism: current,
            held_back: None,
            figures,
            endpoints_by_zone: by_zone(&stored),
            endpoints,
        };

        let mechanism = change.mechanism.unwrap_or(current);
        let one_port =
            Service { ports: query.service.ports.iter().take(1).cloned().collect(), ..query.service.clone() };
        let service = with_mechanism(&one_port, mechanism);
        let choice = choose(&service, &TrafficDistributionDefaults::default(), &self.config.gates);
        let choice = MechanismChoice { source: None, notices: Vec::new(), ..choice };
        let scenario =
            Scenario { evaluator: self, service: &service, family, config: &self.config, choice: &choice };
        let hysteresis = Hysteresis::from_slices(family, &stored);
        let mut scaled = stored;
        query.scale.iter().for_each(|(zone, by)| self.scale(&mut scaled, family, zone, *by));
        let mut then = scenario.hinted(&self.topology, &hysteresis, scaled);
        let mut sources = sources;
        let failed = self.failures.iter().find(|(zone, _, _)| Some(zone) == change.failed_zone.as_ref());
        if let Some((zone, topology, left)) = failed {
            let without: Vec<Slice> = then.slices.iter().map(|slice| without_zone(slice, zone)).collect();
            then = scenario.hinted(topology, &then.hysteresis, without);
            sources = measured(left, query);
        }
        let (figures, endpoints) = figures_and_loads(&service, &then.slices, family, &sources);
        let after = ComparedState {
            mechanism,
            held_back: then.held_back,
            figures,
            endpoints_by_zone: by_zone(&then.slices),
            endpoints,
        };
        WhatIfComparison { before, after }
    }

    /// The slices of the evaluated family, reduced to what decides on traffic.
    fn stored(&self, slices: &[Slice]) -> Vec<Slice> {
        let family = AddressType::Ip(family_of(slices));
        let counts = |slice: &&Slice| slice.content.address_type == family && !slice.deleting;
        slices.iter().filter(counts).map(|slice| self.reduced_slice(slice)).collect()
    }
}

fn by_zone(slices: &[Slice]) -> BTreeMap<Name, usize> {
    let mut counts: BTreeMap<Name, usize> = BTreeMap::new();
    for endpoint in super::ready(slices) {
        *counts.entry(endpoint.zone.clone().unwrap_or_default()).or_default() += 1;
    }
    counts
}
