//! One Service in full: where each zone sends its traffic by the plan and by measurement, and why.

use std::collections::BTreeMap;

use model::{Family, Name, Node, Service, Slice};
use serde::{Deserialize, Serialize};

use super::{ServiceEvaluation, rounded, volumes};
use crate::ledger::ZonePairTraffic;
use plan::FeatureGates;
use plan::hints::conditions::{ACCEPTED, HONORED, OBSERVED, PROGRAMMED};
use plan::select::{NodeView, explain, not_proxied, select};

/// The full state of one Service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceDetail {
    pub namespace: String,
    pub name: String,
    /// By source zone.
    pub zones: Vec<ZoneRow>,
    pub conditions: Vec<StatusCondition>,
    /// Newest first.
    #[serde(default)]
    pub events: Vec<StatusEvent>,
    /// Backends of the routes to this Service.
    #[serde(default)]
    pub canary: Vec<CanaryShare>,
    /// Of a Service with Spill whose demand is observed or measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spill_demand: Option<SpillDemandStatus>,
}

/// What Spill does, and what it does or would do on measured demand.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SpillDemandStatus {
    /// `observe` or `measured`.
    pub mode: String,
    pub zones: Vec<SpillZoneStatus>,
    /// The keep factor on measured demand, and the highest load that the endpoints have carried, as annotations have them.
    pub keep: Option<String>,
    pub proved: Option<String>,
    /// The measured demand over today's slices: the share in zone, and the highest load in fair shares.
    pub in_zone: f64,
    pub highest_load: f64,
    /// The same if the slices were planned on measured demand.
    pub measured_in_zone: f64,
    pub measured_highest_load: f64,
}

/// The demand of one zone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SpillZoneStatus {
    pub zone: String,
    /// `None` if it never reported.
    pub connections_per_second: Option<f64>,
    /// The share of the Service's traffic, by measurement and CPU.
    pub share: f64,
    pub cpu_share: f64,
    /// Whether its traffic follows capacity, because its demand is not known.
    pub is_spread: bool,
    /// The node that reports far more than the others of the zone, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspected_node: Option<SuspectedNodeStatus>,
}

/// A node that reports far more connections than the others of its zone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SuspectedNodeStatus {
    pub node: String,
    pub connections_per_second: f64,
    /// Those of the node with the next most.
    pub next_connections_per_second: f64,
}

/// Where the traffic of one zone goes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ZoneRow {
    pub from: String,
    /// Share of the Service's traffic that this zone sends.
    pub demand: f64,
    /// Ready endpoints in this zone.
    pub endpoints: usize,
    /// How its nodes select endpoints, as in `zoneward trace select`.
    pub mode: String,
    pub flows: Vec<ZoneFlow>,
    /// Why, from the view of a node of the zone, as in `zoneward trace select`.
    pub why: Vec<DetailReason>,
}

/// A share of what a zone sends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ZoneFlow {
    pub to: String,
    pub planned: f64,
    /// Absent until traffic of the zone is measured.
    pub measured: Option<f64>,
}

/// One step of an explanation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetailReason {
    pub rule: String,
    pub detail: String,
}

/// A condition of the Service that Zoneward wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusCondition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    pub reason: String,
    pub message: String,
}

/// An Event about the Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusEvent {
    #[serde(rename = "type")]
    pub kind: String,
    pub reason: String,
    pub message: String,
    /// RFC 3339.
    pub time: String,
    pub count: u64,
}

/// The share of one backend of a route.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CanaryShare {
    pub route: String,
    /// namespace/name of the backend's Service.
    pub backend: String,
    pub planned: f64,
    /// By connections in the ledger; absent until some are counted.
    pub measured: Option<f64>,
}

/// The detail of a Service. `traffic` is its row of the ledger.
pub fn detail(
    service: &Service,
    slices: &[Slice],
    nodes: &BTreeMap<Name, Node>,
    evaluation: Option<&ServiceEvaluation>,
    traffic: Option<&[ZonePairTraffic]>,
    gates: FeatureGates,
) -> ServiceDetail {
    ServiceDetail {
        namespace: service.key.namespace.to_string(),
        name: service.key.name.to_string(),
        zones: zones(service, slices, nodes, evaluation, traffic.unwrap_or_default(), gates),
        conditions: conditions(service),
        events: Vec::new(),
        canary: Vec::new(),
        spill_demand: None,
    }
}

/// In the order in which they depend on each other.
fn conditions(service: &Service) -> Vec<StatusCondition> {
    let known = [ACCEPTED, PROGRAMMED, HONORED, OBSERVED];
    let place = |kind: &str| known.iter().position(|known| *known == kind).unwrap_or(known.len());
    let mut all: Vec<StatusCondition> =
        service.conditions.iter().map(|(kind, text)| condition(kind, text)).collect();
    all.sort_by_key(|condition| place(&condition.kind));
    all
}

fn condition(kind: &str, text: &str) -> StatusCondition {
    let mut words = text.splitn(3, ' ');
    let mut next = || words.next().unwrap_or_default().to_owned();
    StatusCondition { kind: kind.to_owned(), status: next(), reason: next(), message: next() }
}

fn zones(
    service: &Service,
    slices: &[Slice],
    nodes: &BTreeMap<Name, Node>,
    evaluation: Option<&ServiceEvaluation>,
    traffic: &[ZonePairTraffic],
    gates: FeatureGates,
) -> Vec<ZoneRow> {
    if not_proxied(service).is_some() {
        return Vec::new();
    }
    let planned = evaluation.map(|evaluation| evaluation.planned.rows()).unwrap_or_default();
    let demand = demand(evaluation);
    let mut measured: BTreeMap<&str, BTreeMap<&str, f64>> = BTreeMap::new();
    for (pair, volume) in volumes(traffic) {
        *measured.entry(&pair.from_zone).or_default().entry(&pair.to_zone).or_default() += volume;
    }
    let mut first_nodes: BTreeMap<&Name, &Node> = BTreeMap::new();
    for node in nodes.values().filter(|node| node.ready) {
        if let Some(zone) = &node.zone {
            first_nodes.entry(zone).or_insert(node);
        }
    }
    let row = |(zone, node): (&Name, &Node)| {
        let (mode, why) = why(service, slices, node, gates);
        let sent = measured.get(zone.as_str());
        ZoneRow {
            from: zone.to_string(),
            demand: rounded(demand.get(zone).copied().unwrap_or(0.0)),
            endpoints: ready_in(slices, zone),
            mode,
            flows: flows(planned.get(zone), sent),
            why,
        }
    };
    first_nodes.into_iter().map(row).collect()
}

fn demand(evaluation: Option<&ServiceEvaluation>) -> BTreeMap<Name, f64> {
    let mut demand: BTreeMap<Name, f64> = BTreeMap::new();
    for ((from, _), share) in evaluation.into_iter().flat_map(|evaluation| &evaluation.planned.zones) {
        *demand.entry(from.clone()).or_default() += share;
    }
    demand
}

/// The ready endpoints of a zone, in the first family.
fn ready_in(slices: &[Slice], zone: &Name) -> usize {
    let family = slices.first().map(|slice| slice.content.address_type);
    let of_family = slices.iter().filter(|slice| Some(slice.content.address_type) == family);
    let endpoints = of_family.flat_map(|slice| &slice.content.endpoints);
    endpoints.filter(|e| e.conditions.is_ready() && e.zone.as_ref() == Some(zone)).count()
}

fn flows(planned: Option<&BTreeMap<Name, f64>>, sent: Option<&BTreeMap<&str, f64>>) -> Vec<ZoneFlow> {
    let all: f64 = sent.into_iter().flat_map(BTreeMap::values).sum();
    let mut flows: BTreeMap<String, ZoneFlow> = BTreeMap::new();
    for (to, share) in planned.into_iter().flatten() {
        let measured = (all > 0.0).then_some(0.0);
        flows.insert(to.to_string(), ZoneFlow { to: to.to_string(), planned: rounded(*share), measured });
    }
    for (to, volume) in sent.into_iter().flatten().filter(|_| all > 0.0) {
        let flow = flows
            .entry((*to).to_owned())
            .or_insert_with(|| ZoneFlow { to: (*to).to_owned(), ..ZoneFlow::default() });
        flow.measured = Some(rounded(volume / all));
    }
    flows.into_values().collect()
}

/// The selection of a node for the first port and family.
fn why(service: &Service, slices: &[Slice], node: &Node, gates: FeatureGates) -> (String, Vec<DetailReason>) {
    let family = service.cluster_ips.addresses().first().map_or(Family::V4, |ip| Family::of(*ip));
    let view = NodeView { name: &node.name, zone: node.zone.as_deref(), gates };
    let Some(selection) = select(service, slices, family, &view).into_iter().next() else {
        return Default::default();
    };
    let set = selection.cluster.as_ref().or(selection.local.as_ref());
    let mode = set.map(|set| set.mode.as_str().to_owned()).unwrap_or_default();
    let reasons = explain(service, &selection, &view).into_iter();
    (mode, reasons.map(|r| DetailReason { rule: r.rule.to_owned(), detail: r.detail }).collect())
}

impl CanaryShare {
    /// The backends of a rule, with weights, and the connections that the ledger has of each.
    pub fn of_rule(
        route: &str,
        backends: &[(String, String, u64)],
        connections: impl Fn(&str, &str) -> Option<f64>,
    ) -> Vec<Self> {
        let counted = |namespace: &str, name: &str| connections(namespace, name).unwrap_or(0.0);
        let weights = backends.iter().map(|(_, _, weight)| *weight as f64).sum::<f64>();
        let all: f64 = backends.iter().map(|(namespace, name, _)| counted(namespace, name)).sum();
        let share = |part: f64, all: f64| if all > 0.0 { rounded(part / all) } else { 0.0 };
        let one = |(namespace, name, weight): &(String, String, u64)| Self {
            route: route.to_owned(),
            backend: format!("{namespace}/{name}"),
            planned: share(*weight as f64, weights),
            measured: (all > 0.0).then(|| share(counted(namespace, name), all)),
        };
        backends.iter().map(one).collect()
    }
}
