//! One Service as it is and after a change: another mechanism, more or fewer replicas, a zone that fails.

use std::collections::BTreeMap;

use model::{AddressType, Family, Name, Service, Slice};
use plan::hints::{Hysteresis, Mechanism, MechanismChoice};

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
        let family = family_of(service, slices);
        figures_and_loads(service, &self.stored(slices, family), family, &measured(&self.sources, &query)).1
    }

    /// Compares the slices as they are with those that the controller would write after the change and `query.scale`.
    /// A zone that no ready node has does not fail.
    pub fn compare(&self, query: &WhatIfQuery<'_>, change: &WhatIfChange) -> WhatIfComparison {
        let family = family_of(query.service, query.slices);
        let stored = self.stored(query.slices, family);
        let current = self.config.choose(query.service, query.namespace_default).mechanism;
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
        let choice = self.config.choose(&service, None);
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
    fn stored(&self, slices: &[Slice], family: Family) -> Vec<Slice> {
        let counts =
            |slice: &&Slice| slice.content.address_type == AddressType::Ip(family) && !slice.deleting;
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

#[cfg(test)]
mod tests {
    use model::{Interner, Object, parse};
    use serde_json::{Value, json};

    use super::*;
    use crate::what_if::DemandBasis;
    use plan::PlanningConfig;

    fn parsed(value: &Value) -> Object {
        parse::object(value, &mut Interner::default()).0.expect("a valid object")
    }

    /// Three zones of one node; four endpoints in zone a, one in b, one in c.
    fn world() -> (BTreeMap<Name, model::Node>, Service, Vec<Slice>) {
        let mut snapshot = model::Snapshot::default();
        for zone in ["a", "b", "c"] {
            snapshot.apply(parsed(&json!({"apiVersion": "v1", "kind": "Node",
                "metadata": {"name": format!("n{zone}"), "labels": {"topology.kubernetes.io/zone": zone}},
                "status": {"allocatable": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]}})));
        }
        snapshot.apply(parsed(&json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "namespace": "d"},
            "spec": {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ports": [{"port": 80}]}})));
        let endpoint = |(at, zone): (usize, &str)| {
            json!({"addresses": [format!("10.1.0.{}", at + 1)],
            "conditions": {"ready": true}, "zone": zone, "nodeName": format!("n{zone}")})
        };
        let endpoints: Vec<Value> =
            ["a", "a", "a", "a", "b", "c"].into_iter().enumerate().map(endpoint).collect();
        snapshot.apply(parsed(&json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "web-1", "namespace": "d", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4", "ports": [{"name": "", "port": 80, "protocol": "TCP"}], "endpoints": endpoints})));
        let key = model::ServiceKey::new(&"d".into(), &"web".into());
        let service = snapshot.service(&key).expect("it is there").clone();
        (snapshot.nodes().clone(), service, snapshot.slices(&key).to_vec())
    }

    fn compared(change: &WhatIfChange, scale: &[(Name, i64)]) -> WhatIfComparison {
        let (nodes, service, slices) = world();
        let evaluator = WhatIfEvaluator::new(&nodes, DemandBasis::Cpu, &PlanningConfig::without_flags());
        let query = WhatIfQuery {
            service: &service,
            slices: &slices,
            namespace_default: None,
            scale,
            measured: None,
        };
        evaluator.compare(&query, change)
    }

    /// `--default-traffic-distribution` and the gates of a controller hold in what its status predicts.
    #[test]
    fn the_present_mechanism_is_that_of_the_controller() {
        let (nodes, service, slices) = world();
        let current = |config: &PlanningConfig| {
            let evaluator = WhatIfEvaluator::new(&nodes, DemandBasis::Cpu, config);
            let query = WhatIfQuery {
                service: &service,
                slices: &slices,
                namespace_default: None,
                scale: &[],
                measured: None,
            };
            let before = evaluator.compare(&query, &WhatIfChange::default()).before.mechanism;
            assert_eq!(evaluator.evaluate(&query).current, before);
            before
        };
        let mut config = PlanningConfig::without_flags();
        assert_eq!(current(&config), Mechanism::None);
        config.default_traffic_distribution = Some("PreferSameZone".into());
        assert_eq!(current(&config), Mechanism::PreferSameZone);
        config.gates.service_traffic_distribution = false;
        assert_eq!(current(&config), config.choose(&service, None).mechanism);
    }

    #[test]
    fn nothing_changes_without_a_change_and_loads_add_up() {
        let WhatIfComparison { before, after } = compared(&WhatIfChange::default(), &[]);
        assert_eq!(before, after);
        let sum: f64 = before.endpoints.iter().map(|endpoint| endpoint.load).sum();
        assert!((sum - 1.0).abs() < 1e-9 && before.endpoints.len() == 6, "{before:?}");
        assert!((before.figures.in_zone - 1.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn a_mechanism_moves_traffic_and_more_replicas_carry_it() {
        let same_zone =
            WhatIfChange { mechanism: Some(Mechanism::PreferSameZone), ..WhatIfChange::default() };
        let after = compared(&same_zone, &[]).after;
        assert!(
            (after.figures.in_zone - 1.0).abs() < 1e-9 && (after.figures.max_overload - 1.0).abs() < 1e-9
        );
        let scaled = compared(&same_zone, &[("b".into(), 3), ("c".into(), 3)]).after;
        assert_eq!(
            scaled.endpoints_by_zone,
            BTreeMap::from([("a".into(), 4), ("b".into(), 4), ("c".into(), 4)])
        );
        assert!(scaled.figures.max_overload < 1e-9, "{scaled:?}");
    }

    #[test]
    fn a_failed_zone_neither_sends_nor_serves_and_an_unknown_one_changes_nothing() {
        let fails = |zone: &str| WhatIfChange { failed_zone: Some(zone.into()), ..WhatIfChange::default() };
        let after = compared(&fails("a"), &[]).after;
        assert_eq!(after.endpoints_by_zone, BTreeMap::from([("b".into(), 1), ("c".into(), 1)]));
        assert!(after.figures.zones.keys().all(|(from, to)| from.as_str() != "a" && to.as_str() != "a"));
        assert!(after.figures.refused < 1e-9);
        let unknown = compared(&fails("nowhere"), &[]);
        assert_eq!(unknown.before, unknown.after);
    }
}
