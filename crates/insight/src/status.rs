//! What is measured beside what is planned, why traffic leaves its zone, and what to change: the content of
//! `zoneward status` and of the dashboard.
//!
//! ```text
//! Service, slices, Nodes, measured demand -> evaluate: planned split, best split, recommendation (what-if) --\
//! traffic ledger, prices -----------------------------------------------------------------------------------> report
//! Leases of the node proxies -> nodes: current, behind, silent ---------------------------------------------/
//! ```
//!
//! An evaluation is the costly part; callers keep it while its inputs stay. Shares are fractions of one.

pub mod convergence;
mod detail;
mod even_spread;
mod health_checks;
mod nodes;
mod object_age;
mod observed;
mod reason;
mod signals;
mod view;

use std::collections::BTreeMap;

use model::{Labels, Name, Service, ServiceKey, Slice, annotation};
use serde::{Deserialize, Serialize};

use crate::ledger::{TrafficOwner, TrafficRow, TrafficSums, ZonePairTraffic};
use crate::what_if::{TrafficFigures, WhatIfEvaluator, WhatIfQuery, recommend, setting_command};
use plan::hints::Mechanism;
use plan::hints::conditions::{ACCEPTED, HONORED, PROGRAMMED};
use plan::select::not_proxied;

pub use convergence::ConvergenceFigures;
pub use detail::{
    CanaryShare, DetailReason, ServiceDetail, SpillDemandStatus, SpillZoneStatus, StatusCondition,
    StatusEvent, SuspectedNodeStatus, ZoneFlow, ZoneRow, detail,
};
pub use health_checks::{HealthCheckStatus, NotReadyEndpoint};
pub use nodes::{NodeReportState, NodeState, NodeStatus};
pub use object_age::{ObjectAge, PastOutage};
pub use observed::{
    Agreement, Observation, WINDOWS_TO_TURN, agreement, not_compared_condition, observed_condition,
};
pub use signals::{ServiceSignal, StatusSignals, signals};
pub use view::{ServiceView, WhatIfView};

const GB: f64 = 1e9;
const SECONDS_PER_DAY: f64 = 86_400.0;
const DAYS_PER_MONTH: f64 = 30.0;

/// The state of a cluster's traffic.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusReport {
    pub summary: StatusSummary,
    /// By avoidable cost, then by avoidable and all traffic that leaves its zone, then by name.
    pub services: Vec<ServiceStatus>,
    /// By state, the worst first, then by name.
    pub nodes: Vec<NodeStatus>,
    /// What the figures do not cover.
    pub limits: Vec<String>,
    /// Health checks of exposed processes, by Service.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub health_checks: Vec<HealthCheckStatus>,
    /// Of the one Service that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<ServiceDetail>,
}

/// The figures of the whole cluster. Figures of traffic are absent until some is measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusSummary {
    /// Share of the bytes that stay in their zone.
    pub in_zone: Option<f64>,
    /// The same as planned for the Services with traffic.
    pub in_zone_planned: Option<f64>,
    pub cross_zone_bytes_per_day: Option<f64>,
    pub cost_per_month: Option<f64>,
    /// What the recommended settings would save of it.
    pub avoidable_per_month: Option<f64>,
    /// Bytes that do not cross zones, compared with an even spread over all ready endpoints of each Service.
    #[serde(default)]
    pub saved_bytes_per_day: Option<f64>,
    /// What they would cost.
    #[serde(default)]
    pub saved_per_month: Option<f64>,
    pub currency: String,
    /// The largest overload of an endpoint by the plan, as a share of its fair load.
    pub worst_overload: Option<f64>,
    /// The Service with that endpoint.
    pub worst_overload_service: Option<String>,
    pub nodes: NodeCounts,
    pub services: usize,
    /// Services whose conditions say that the requested distribution is not in effect.
    pub not_honored: Vec<String>,
    /// Start of the counting, as RFC 3339.
    pub since: Option<String>,
    pub window_seconds: u64,
    /// Pod Ready to EndpointSlice written, and pod Ready to a node's kernel.
    pub convergence: ConvergenceFigures,
    /// Traffic between zones, sorted.
    pub zones: Vec<ZonePairStatus>,
}

/// Nodes by state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeCounts {
    pub current: usize,
    /// Names of nodes that have not programmed the newest EndpointSlices, or failed to.
    pub behind: Vec<String>,
    /// Names of nodes whose Lease is not renewed.
    pub silent: Vec<String>,
    /// Ready nodes without a Zoneward node proxy.
    pub without_proxy: usize,
}

/// Traffic between two zones, of all Services and of pods directly.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ZonePairStatus {
    pub from: String,
    pub to: String,
    pub bytes_per_day: f64,
    /// Absent if the price is unknown.
    pub cost_per_month: Option<f64>,
    /// Share of the source zone's traffic that goes there.
    pub measured: f64,
    /// The same by the plan, of the Services with traffic.
    pub planned: Option<f64>,
}

/// The state of one Service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceStatus {
    pub namespace: String,
    pub name: String,
    pub mechanism: String,
    pub in_zone: InZoneShares,
    /// The largest overload of an endpoint by the plan, as a share of its fair load.
    pub worst_overload: Option<f64>,
    pub bytes_per_day: Option<f64>,
    pub cross_zone_bytes_per_day: Option<f64>,
    /// What the fix would keep in zone.
    pub avoidable_bytes_per_day: Option<f64>,
    pub connections_per_second: Option<f64>,
    pub cost_per_month: Option<f64>,
    pub avoidable_per_month: Option<f64>,
    /// Why traffic leaves its zone; `None` if none does, or nothing is to be done.
    pub reason: Option<String>,
    /// One kubectl command.
    pub fix: Option<String>,
    /// What the fix would do, by what-if on the measured demand.
    pub effect: Option<FixEffect>,
    /// Whether the requested distribution is in effect, by the conditions of the Service.
    pub honored: bool,
}

impl ServiceStatus {
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// Shares of traffic that stays in its zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InZoneShares {
    /// By bytes; by connections where no bytes are counted.
    pub measured: Option<f64>,
    /// By the EndpointSlices and the rules of the nodes, for the measured demand.
    pub planned: Option<f64>,
    /// Under the recommended mechanism, with the endpoints where they are.
    pub best: Option<f64>,
}

/// The predicted effect of a fix.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FixEffect {
    pub mechanism: String,
    pub in_zone: f64,
    pub worst_overload: f64,
    /// Change of the cost; absent until traffic is measured.
    pub cost_per_month: Option<f64>,
}

/// The evaluation of a Service: the planned traffic, and the best that a setting can do.
#[derive(Clone, Debug)]
pub struct ServiceEvaluation {
    pub mechanism: Mechanism,
    pub planned: TrafficFigures,
    pub best: f64,
    /// The recommended mechanism, if it is not the present one.
    pub change: Option<RecommendedChange>,
    /// The zone that lacks endpoints most: its name, its share of traffic and of endpoints.
    pub lacking: Option<(Name, f64, f64)>,
    /// Ready endpoints; those of an unknown zone have an empty name.
    pub endpoints_by_zone: BTreeMap<Name, usize>,
    /// What the endpoints of a zone get by the plan above their fair share, by zone with endpoints.
    pub overload_by_zone: BTreeMap<Name, f64>,
}

impl ServiceEvaluation {
    fn is_serving(&self) -> bool {
        !self.endpoints_by_zone.is_empty()
    }
}

/// A mechanism that would keep more traffic in its zone.
#[derive(Clone, Debug)]
pub struct RecommendedChange {
    pub mechanism: Mechanism,
    pub in_zone: f64,
    pub max_overload: f64,
}

/// A share of traffic that is not worth a remark.
const NEGLIGIBLE: f64 = 0.01;
/// What a fix has to keep in zone more than the plan. Demand by zone is measured to a 32nd, about three points: a smaller
/// gain may be none, and another setting moves connections.
const WORTH_A_CHANGE: f64 = 0.03;

/// Evaluates a Service that nodes proxy; `None` for others.
pub fn evaluate(
    evaluator: &WhatIfEvaluator,
    service: &Service,
    slices: &[Slice],
    namespace_default: Option<&Name>,
    measured: Option<&BTreeMap<Name, f64>>,
) -> Option<ServiceEvaluation> {
    if not_proxied(service).is_some() {
        return None;
    }
    let result =
        evaluator.evaluate(&WhatIfQuery { service, slices, namespace_default, scale: &[], measured });
    let planned = evaluator.planned(service, slices, measured);
    let recommendation = recommend(&result);
    let best = recommendation.chosen.map_or(planned.in_zone, |c| c.figures.in_zone.max(planned.in_zone));
    let gains = |in_zone: f64| in_zone - planned.in_zone >= WORTH_A_CHANGE;
    let local = service.internal_policy == model::TrafficPolicy::Local;
    // Of slices that others write, the controller sets hints only on those of `zoneward expose`.
    let exposed =
        |slice: &Slice| slice.managed_by().is_some_and(|by| by == annotation::EXPOSE_CONTROLLER_NAME);
    let can_change = !local && (service.selector.is_some() || slices.iter().any(exposed));
    let change = recommendation
        .chosen
        .filter(|chosen| !recommendation.stays && can_change && gains(chosen.figures.in_zone))
        .map(|chosen| RecommendedChange {
            mechanism: chosen.mechanism,
            in_zone: chosen.figures.in_zone,
            max_overload: chosen.figures.max_overload,
        });
    let ready_endpoints: usize = result.endpoints_by_zone.values().sum();
    let share = |zone: &Name| {
        result.endpoints_by_zone.get(zone).copied().unwrap_or(0) as f64 / ready_endpoints.max(1) as f64
    };
    let lacks = result.shares.iter().map(|(zone, sends)| (zone.clone(), *sends, share(zone)));
    let lacking = lacks.max_by(|a, b| (a.1 - a.2).total_cmp(&(b.1 - b.2)));
    let lacking = lacking.filter(|(_, sends, has)| sends - has > NEGLIGIBLE);
    let zones = result.endpoints_by_zone.keys();
    let overload_by_zone =
        zones.map(|zone| (zone.clone(), zone_overload(&planned, zone, share(zone)))).collect();
    let (mechanism, endpoints_by_zone) = (result.current, result.endpoints_by_zone);
    Some(ServiceEvaluation { mechanism, planned, best, change, lacking, endpoints_by_zone, overload_by_zone })
}

/// What a zone with this share of the endpoints gets above that share of the traffic.
fn zone_overload(planned: &TrafficFigures, zone: &Name, fair: f64) -> f64 {
    let served: f64 = planned.zones.values().sum();
    let received: f64 = planned.zones.iter().filter(|((_, to), _)| to == zone).map(|(_, share)| share).sum();
    if served > 0.0 { received / served / fair - 1.0 } else { 0.0 }
}

/// What a report is made of.
pub struct StatusInput<'a> {
    /// Services with their slices.
    pub services: Vec<(&'a Service, &'a [Slice])>,
    /// Kept evaluations; a Service without one has no planned figures yet.
    pub evaluations: &'a BTreeMap<ServiceKey, ServiceEvaluation>,
    pub traffic: Option<&'a TrafficSums>,
    /// Price of 10^9 bytes between two zones, if known, and its currency.
    pub price: &'a dyn Fn(&str, &str) -> Option<f64>,
    pub currency: &'a str,
    pub nodes: Vec<NodeReportState>,
    /// Ready nodes without a Zoneward node proxy.
    pub nodes_without_proxy: usize,
    pub convergence: ConvergenceFigures,
    /// Only Services of this namespace; the summary covers all.
    pub namespace: Option<&'a str>,
    /// Only the Service of this name.
    pub name: Option<&'a str>,
}

/// The report of a cluster.
pub fn report(input: StatusInput<'_>) -> StatusReport {
    let rows: BTreeMap<&TrafficOwner, &TrafficRow> =
        input.traffic.into_iter().flat_map(|sums| &sums.rows).map(|row| (&row.owner, row)).collect();
    let window = input.traffic.map_or(0, |sums| sums.window_seconds);
    let rate = Rate { window: window as f64, price: input.price };
    let mut services = Vec::with_capacity(input.services.len());
    for (service, _) in &input.services {
        let traffic = rows.get(&TrafficOwner::from(&service.key)).map(|row| row.zone_pairs.as_slice());
        let evaluation = input.evaluations.get(&service.key);
        services.push(service_status(service, evaluation, traffic, &rate));
    }
    services.sort_by(|a, b| {
        let money = |s: &ServiceStatus| s.avoidable_per_month.unwrap_or(0.0);
        let kept = |s: &ServiceStatus| s.avoidable_bytes_per_day.unwrap_or(0.0);
        let bytes = |s: &ServiceStatus| s.cross_zone_bytes_per_day.unwrap_or(0.0);
        let honored = a.honored.cmp(&b.honored);
        // Without measurements, what a fix would gain by the plan.
        let gain = |s: &ServiceStatus| {
            s.effect.as_ref().map_or(0.0, |effect| effect.in_zone - s.in_zone.planned.unwrap_or(0.0))
        };
        let by_money = money(b)
            .total_cmp(&money(a))
            .then(kept(b).total_cmp(&kept(a)))
            .then(bytes(b).total_cmp(&bytes(a)));
        by_money
            .then(honored)
            .then(gain(b).total_cmp(&gain(a)))
            .then_with(|| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)))
    });
    let nodes = nodes::statuses(input.nodes);
    let summary = StatusSummary {
        currency: input.currency.to_owned(),
        nodes: nodes::counts(&nodes, input.nodes_without_proxy),
        since: input.traffic.map(|sums| sums.since.clone()).filter(|since| !since.is_empty()),
        window_seconds: window,
        convergence: input.convergence,
        ..summary(&services, &rows, input.evaluations, &rate)
    };
    let limits = reason::limits(input.traffic, &services);
    let is_wanted = |s: &ServiceStatus| {
        input.namespace.is_none_or(|namespace| s.namespace == namespace)
            && input.name.is_none_or(|name| s.name == name)
    };
    services.retain(is_wanted);
    StatusReport { summary, services, nodes, limits, health_checks: Vec::new(), detail: None }
}

/// How counted bytes become rates and money.
struct Rate<'a> {
    window: f64,
    price: &'a dyn Fn(&str, &str) -> Option<f64>,
}

impl Rate<'_> {
    fn per_day(&self, bytes: u64) -> f64 {
        if self.window > 0.0 { bytes as f64 / self.window * SECONDS_PER_DAY } else { 0.0 }
    }

    /// `None` if a price is unknown.
    fn cost_per_month<'p>(&self, pairs: impl IntoIterator<Item = &'p ZonePairTraffic>) -> Option<f64> {
        let crossing = pairs.into_iter().filter(|pair| crosses(pair));
        let cost = |pair: &ZonePairTraffic| {
            let price = (self.price)(&pair.from_zone, &pair.to_zone)?;
            Some(self.per_day(pair.bytes) * DAYS_PER_MONTH / GB * price)
        };
        crossing.map(cost).sum()
    }
}

/// Whether the traffic is known to leave its zone.
fn crosses(pair: &ZonePairTraffic) -> bool {
    has_zones(pair) && pair.from_zone != pair.to_zone
}

fn has_zones(pair: &ZonePairTraffic) -> bool {
    !pair.from_zone.is_empty() && !pair.to_zone.is_empty()
}

/// Bytes, or connections where no bytes are counted, of pairs with known zones.
fn volumes(pairs: &[ZonePairTraffic]) -> impl Iterator<Item = (&ZonePairTraffic, f64)> {
    let by_bytes = pairs.iter().any(|pair| pair.bytes > 0);
    let known = pairs.iter().filter(|pair| has_zones(pair));
    known.map(move |pair| (pair, if by_bytes { pair.bytes } else { pair.connections } as f64))
}

/// The measured demand by zone, as what-if takes it.
pub fn demand_of(pairs: &[ZonePairTraffic]) -> Option<BTreeMap<Name, f64>> {
    let mut demand: BTreeMap<Name, f64> = BTreeMap::new();
    for (pair, volume) in volumes(pairs) {
        *demand.entry(Name::new(&pair.from_zone)).or_default() += volume;
    }
    (demand.values().sum::<f64>() > 0.0).then_some(demand)
}

fn in_zone(pairs: &[ZonePairTraffic]) -> Option<f64> {
    let all: f64 = volumes(pairs).map(|(_, volume)| volume).sum();
    let kept: f64 = volumes(pairs).filter(|(pair, _)| !crosses(pair)).map(|(_, volume)| volume).sum();
    (all > 0.0).then(|| rounded(kept / all))
}

/// Four decimals: a hundredth of a percent.
fn rounded(share: f64) -> f64 {
    // A sum of nothing is -0.0.
    (share * 1e4).round() / 1e4 + 0.0
}

fn cents(money: f64) -> f64 {
    (money * 100.0).round() / 100.0
}

fn service_status(
    service: &Service,
    evaluation: Option<&ServiceEvaluation>,
    traffic: Option<&[ZonePairTraffic]>,
    rate: &Rate<'_>,
) -> ServiceStatus {
    let traffic = traffic.filter(|pairs| pairs.iter().any(|pair| pair.bytes > 0 || pair.connections > 0));
    let serving = evaluation.filter(|evaluation| evaluation.is_serving());
    let shares = InZoneShares {
        measured: traffic.and_then(in_zone),
        planned: serving.map(|e| rounded(e.planned.in_zone)),
        best: serving.map(|e| rounded(e.best)),
    };
    let sum = |of: &dyn Fn(&ZonePairTraffic) -> f64| traffic.map(|pairs| pairs.iter().map(of).sum::<f64>());
    let cost = traffic.and_then(|pairs| rate.cost_per_month(pairs));
    let change = serving.and_then(|evaluation| evaluation.change.as_ref());
    let crossing = sum(&|pair| if crosses(pair) { rate.per_day(pair.bytes) } else { 0.0 });
    // The part of the crossing traffic that would stay.
    let kept = |in_zone: f64| match shares.measured {
        Some(measured) if measured < 1.0 => ((in_zone - measured) / (1.0 - measured)).clamp(0.0, 1.0),
        _ => 0.0,
    };
    let avoidable = change.map_or(0.0, |change| kept(change.in_zone));
    let honored = is_honored(&service.conditions);
    ServiceStatus {
        namespace: service.key.namespace.to_string(),
        name: service.key.name.to_string(),
        mechanism: mechanism_name(evaluation),
        in_zone: shares,
        worst_overload: serving.map(|e| rounded(e.planned.max_overload)),
        bytes_per_day: sum(&|pair| rate.per_day(pair.bytes)).map(f64::round),
        cross_zone_bytes_per_day: crossing.map(f64::round),
        avoidable_bytes_per_day: crossing.map(|bytes| (bytes * avoidable).round()),
        connections_per_second: sum(&|pair| pair.connections as f64)
            .filter(|_| rate.window > 0.0)
            .map(|count| (count / rate.window * 100.0).round() / 100.0),
        cost_per_month: cost.map(cents),
        avoidable_per_month: cost.map(|cost| cents(cost * avoidable)),
        reason: reason::reason(service, evaluation, &shares),
        fix: change.map(|change| setting_command(service, change.mechanism).join(" ")),
        effect: change.map(|change| FixEffect {
            mechanism: change.mechanism.as_str().to_owned(),
            in_zone: rounded(change.in_zone),
            worst_overload: rounded(change.max_overload),
            cost_per_month: cost.map(|cost| cents(-cost * avoidable)),
        }),
        honored,
    }
}

fn mechanism_name(evaluation: Option<&ServiceEvaluation>) -> String {
    match evaluation.map(|evaluation| evaluation.mechanism) {
        None => String::new(),
        Some(Mechanism::None) => "default".to_owned(),
        Some(mechanism) => mechanism.as_str().to_owned(),
    }
}

/// Whether no condition says that the requested distribution is not in effect.
fn is_honored(conditions: &Labels) -> bool {
    ![ACCEPTED, PROGRAMMED, HONORED].into_iter().any(|kind| denied(conditions, kind).is_some())
}

/// Reason and message of a condition that is False because something is wrong: an explicit "off" is not, a Service that
/// nodes do not proxy is shown as such, and Honored repeats Programmed.
fn denied<'c>(conditions: &'c Labels, kind: &str) -> Option<(&'c str, &'c str)> {
    let text = conditions.value(kind)?.strip_prefix("False ")?;
    let (reason, message) = text.split_once(' ').unwrap_or((text, ""));
    (!["NoMechanism", "NotRequested", "NotProgrammed", "NotProxied"].contains(&reason))
        .then_some((reason, message))
}

fn summary(
    services: &[ServiceStatus],
    rows: &BTreeMap<&TrafficOwner, &TrafficRow>,
    evaluations: &BTreeMap<ServiceKey, ServiceEvaluation>,
    rate: &Rate<'_>,
) -> StatusSummary {
    let pairs: Vec<ZonePairTraffic> = summed(rows.values().copied());
    let has_traffic = pairs.iter().any(|pair| pair.bytes > 0 || pair.connections > 0);
    let measured = |value: f64| has_traffic.then_some(value);
    let crossing = pairs.iter().filter(|pair| crosses(pair));
    let cost = rate.cost_per_month(&pairs).filter(|_| has_traffic);
    let avoidable: f64 = services.iter().filter_map(|s| s.avoidable_per_month).sum();
    let worst = services.iter().filter(|s| s.worst_overload.is_some_and(|load| load > 0.0));
    let worst = worst
        .max_by(|a, b| a.worst_overload.partial_cmp(&b.worst_overload).unwrap_or(std::cmp::Ordering::Equal));
    let any_planned = services.iter().any(|s| s.worst_overload.is_some());
    let planned = planned_pairs(rows, evaluations);
    let planned_sum: f64 = planned.values().sum();
    let saved = even_spread::saved(rows, evaluations, rate);
    let planned_in_zone: f64 = planned.iter().filter(|((from, to), _)| from == to).map(|(_, v)| v).sum();
    StatusSummary {
        in_zone: in_zone(&pairs),
        in_zone_planned: (planned_sum > 0.0).then(|| rounded(planned_in_zone / planned_sum)),
        cross_zone_bytes_per_day: measured(
            crossing.map(|pair| rate.per_day(pair.bytes)).sum::<f64>().round(),
        ),
        cost_per_month: cost.map(cents),
        avoidable_per_month: cost.map(|_| cents(avoidable)),
        saved_bytes_per_day: saved.map(|saved| saved.bytes_per_day),
        saved_per_month: saved.and_then(|saved| saved.cost_per_month),
        worst_overload: worst.and_then(|s| s.worst_overload).or(any_planned.then_some(0.0)),
        worst_overload_service: worst.map(ServiceStatus::key),
        services: services.len(),
        not_honored: services.iter().filter(|s| !s.honored).map(ServiceStatus::key).collect(),
        zones: zone_pairs(&pairs, &planned, rate),
        ..StatusSummary::default()
    }
}

/// The traffic of several rows together, sorted by zones.
fn summed<'a>(rows: impl Iterator<Item = &'a TrafficRow>) -> Vec<ZonePairTraffic> {
    let mut sums: BTreeMap<(&str, &str), ZonePairTraffic> = BTreeMap::new();
    for pair in rows.flat_map(|row| &row.zone_pairs) {
        let sum = sums.entry((&pair.from_zone, &pair.to_zone)).or_insert_with(|| ZonePairTraffic {
            from_zone: pair.from_zone.clone(),
            to_zone: pair.to_zone.clone(),
            ..ZonePairTraffic::default()
        });
        sum.connections = sum.connections.saturating_add(pair.connections);
        sum.bytes = sum.bytes.saturating_add(pair.bytes);
    }
    sums.into_values().collect()
}

/// The traffic of the evaluated Services as it would be by the plan: volume by pair of zones.
fn planned_pairs(
    rows: &BTreeMap<&TrafficOwner, &TrafficRow>,
    evaluations: &BTreeMap<ServiceKey, ServiceEvaluation>,
) -> BTreeMap<(String, String), f64> {
    let mut planned: BTreeMap<(String, String), f64> = BTreeMap::new();
    for (key, evaluation) in evaluations {
        let Some(row) = rows.get(&TrafficOwner::from(key)) else { continue };
        let volume: f64 = volumes(&row.zone_pairs).map(|(_, volume)| volume).sum();
        for ((from, to), share) in &evaluation.planned.zones {
            *planned.entry((from.to_string(), to.to_string())).or_default() += share * volume;
        }
    }
    planned
}

fn zone_pairs(
    pairs: &[ZonePairTraffic],
    planned: &BTreeMap<(String, String), f64>,
    rate: &Rate<'_>,
) -> Vec<ZonePairStatus> {
    let mut sent: BTreeMap<&str, f64> = BTreeMap::new();
    volumes(pairs).for_each(|(pair, volume)| *sent.entry(&pair.from_zone).or_default() += volume);
    let mut planned_sent: BTreeMap<&str, f64> = BTreeMap::new();
    planned.iter().for_each(|((from, _), volume)| *planned_sent.entry(from).or_default() += volume);
    let status = |(pair, volume): (&ZonePairTraffic, f64)| {
        let all = sent.get(pair.from_zone.as_str()).copied().unwrap_or(0.0).max(1.0);
        let of_plan = planned_sent.get(pair.from_zone.as_str()).copied().filter(|sum| *sum > 0.0);
        let by_plan = planned.get(&(pair.from_zone.clone(), pair.to_zone.clone())).copied().unwrap_or(0.0);
        ZonePairStatus {
            from: pair.from_zone.clone(),
            to: pair.to_zone.clone(),
            bytes_per_day: rate.per_day(pair.bytes).round(),
            cost_per_month: rate.cost_per_month([pair]).map(cents),
            measured: rounded(volume / all),
            planned: of_plan.map(|sum| rounded(by_plan / sum)),
        }
    };
    volumes(pairs).map(status).collect()
}

#[cfg(test)]
mod tests;
