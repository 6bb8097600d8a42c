//! The report of `zoneward status` and of the dashboard, made by the controller that leads.
//!
//! ```text
//! HTTP request -> StatusBoard::ask -> channel -> the controller's loop: evaluations (kept) + ledger + Leases -> report
//! ```
//!
//! The loop owns the snapshot, so it makes the report. What-if of a Service is kept until the Service, its slices, the
//! nodes or its demand change, and only a bounded number is evaluated at a time; a report says how many are missing.

mod views;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::ledger::{LedgerDemand, TrafficMinute, TrafficOwner, TrafficSums, ZonePairTraffic};
use crate::status::{
    self, ConvergenceFigures, NodeReportState, ServiceEvaluation, ServiceView, SpillDemandStatus,
    StatusInput, StatusReport, StatusSignals, WhatIfView,
};
use crate::what_if::{DemandBasis, WhatIfEvaluator};
use model::{Name, Node, Service, ServiceKey, Slice, Snapshot};
use plan::PlanningConfig;
use plan::work_queue::MonotonicTime;
use tokio::sync::{mpsc, oneshot};

pub use views::WhatIfQuestion;

/// Requests that wait.
const MAX_REQUESTS: usize = 64;
/// Time for the loop to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Services evaluated for one request, and per tick while reports are requested: about 1 ms each.
const EVALUATED_PER_REQUEST: usize = 100;
const EVALUATED_PER_TICK: usize = 50;
/// Evaluation goes on for this time after a request.
const INTEREST: Duration = Duration::from_secs(60);
/// How often demand is compared while all Services are evaluated.
const DEMAND_PERIOD: Duration = Duration::from_secs(10);
/// Interval between updates of the metrics.
const SIGNALS_INTERVAL: Duration = Duration::from_secs(15);
/// The window of rates and shares.
pub const WINDOW: Duration = Duration::from_secs(3_600);
/// Demand is compared in these parts of the Service's traffic.
const DEMAND_PARTS: f64 = 32.0;

type TrafficOf = Arc<dyn Fn(Duration) -> Option<TrafficSums> + Send + Sync>;
type HistoryOf = Arc<dyn Fn(Option<&TrafficOwner>) -> Vec<TrafficMinute> + Send + Sync>;
type DemandOf = Arc<dyn Fn() -> Option<LedgerDemand> + Send + Sync>;
type PriceOf = Arc<dyn Fn(&str, &str) -> Option<f64> + Send + Sync>;

/// Where measured traffic and prices come from; by default nothing is measured.
#[derive(Clone, Default)]
pub struct LedgerView {
    sums: Option<TrafficOf>,
    price: Option<PriceOf>,
    history: Option<HistoryOf>,
    demand: Option<DemandOf>,
}

impl LedgerView {
    /// `sums` of the last window; `price` of 10^9 bytes between two zones, in USD.
    pub fn new(
        sums: impl Fn(Duration) -> Option<TrafficSums> + Send + Sync + 'static,
        price: impl Fn(&str, &str) -> Option<f64> + Send + Sync + 'static,
    ) -> Self {
        Self { sums: Some(Arc::new(sums)), price: Some(Arc::new(price)), history: None, demand: None }
    }

    /// With the minutes of one row of the ledger, or of all.
    pub fn with_history(
        self,
        history: impl Fn(Option<&TrafficOwner>) -> Vec<TrafficMinute> + Send + Sync + 'static,
    ) -> Self {
        Self { history: Some(Arc::new(history)), ..self }
    }

    /// With the rates of the last reports; `None` while another controller leads.
    pub fn with_demand(self, demand: impl Fn() -> Option<LedgerDemand> + Send + Sync + 'static) -> Self {
        Self { demand: Some(Arc::new(demand)), ..self }
    }

    pub fn demand(&self) -> Option<LedgerDemand> {
        self.demand.as_ref().and_then(|demand| demand())
    }

    fn history(&self, owner: Option<&TrafficOwner>) -> Vec<TrafficMinute> {
        self.history.as_ref().map(|history| history(owner)).unwrap_or_default()
    }

    fn price(&self, from: &str, to: &str) -> Option<f64> {
        self.price.as_ref().and_then(|price| price(from, to))
    }

    pub fn sums(&self, window: Duration) -> Option<TrafficSums> {
        self.sums.as_ref().and_then(|sums| sums(window))
    }
}

impl fmt::Debug for LedgerView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LedgerView").field("is_measured", &self.sums.is_some()).finish_non_exhaustive()
    }
}

/// What a report is asked for.
#[derive(Clone, Debug, Default)]
pub struct StatusQuery {
    pub namespace: Option<String>,
    /// Of one Service, in full.
    pub name: Option<String>,
    /// The window of rates; by default [`WINDOW`].
    pub window: Option<Duration>,
    /// Services that are evaluated for the answer, if their evaluation is missing; by default 100.
    pub evaluations: Option<usize>,
}

/// Why there is no report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusUnavailable {
    /// Another controller leads, or none does yet.
    NotLeading,
    /// The watches have not synced.
    NotSynced,
    /// The controller has stopped, or is too busy.
    NoAnswer,
}

impl fmt::Display for StatusUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotLeading => "this controller does not lead: ask the holder of the Lease",
            Self::NotSynced => "this controller has not read all objects yet: try again in a few seconds",
            Self::NoAnswer => "this controller does not answer: it stops, or is busy",
        })
    }
}

type Reply<T> = oneshot::Sender<Result<T, StatusUnavailable>>;

/// A question and where its answer goes.
pub enum StatusRequest {
    Report(StatusQuery, Reply<StatusReport>),
    View(ServiceKey, Reply<Option<ServiceView>>),
    WhatIf(WhatIfQuestion, Reply<Option<WhatIfView>>),
    History(Reply<Vec<TrafficMinute>>),
}

/// Handle of the report; clones share it.
#[derive(Clone)]
pub struct StatusBoard {
    requests: mpsc::Sender<StatusRequest>,
    received: Arc<Mutex<Option<mpsc::Receiver<StatusRequest>>>>,
}

impl Default for StatusBoard {
    fn default() -> Self {
        let (requests, received) = mpsc::channel(MAX_REQUESTS);
        Self { requests, received: Arc::new(Mutex::new(Some(received))) }
    }
}

impl fmt::Debug for StatusBoard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StatusBoard")
    }
}

impl StatusBoard {
    /// The report of the controller.
    pub async fn ask(&self, query: StatusQuery) -> Result<StatusReport, StatusUnavailable> {
        self.request(|reply| StatusRequest::Report(query, reply)).await
    }

    /// One Service in full; `None` if there is none of this name.
    pub async fn view(&self, key: ServiceKey) -> Result<Option<ServiceView>, StatusUnavailable> {
        self.request(|reply| StatusRequest::View(key, reply)).await
    }

    /// A change of one Service; `None` if nodes do not proxy it, or it does not exist.
    pub async fn what_if(&self, question: WhatIfQuestion) -> Result<Option<WhatIfView>, StatusUnavailable> {
        self.request(|reply| StatusRequest::WhatIf(question, reply)).await
    }

    /// The traffic of all Services by the minute.
    pub async fn history(&self) -> Result<Vec<TrafficMinute>, StatusUnavailable> {
        self.request(StatusRequest::History).await
    }

    async fn request<T>(
        &self,
        request: impl FnOnce(Reply<T>) -> StatusRequest,
    ) -> Result<T, StatusUnavailable> {
        let (reply, answer) = oneshot::channel();
        let sent = self.requests.try_send(request(reply));
        sent.map_err(|_| StatusUnavailable::NoAnswer)?;
        match tokio::time::timeout(TIMEOUT, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Err(StatusUnavailable::NoAnswer),
        }
    }

    /// The receiver, for the one loop that answers.
    pub fn receiver(&self) -> mpsc::Receiver<StatusRequest> {
        let taken = self.received.lock().unwrap_or_else(PoisonError::into_inner).take();
        taken.unwrap_or_else(|| mpsc::channel(1).1)
    }
}

/// What the controller's loop knows beside the traffic.
pub trait ObservedCluster {
    fn snapshot(&self) -> &Snapshot;

    /// The nodes with a node proxy, and how many ready ones have none.
    fn node_states(&self, now: MonotonicTime) -> (Vec<NodeReportState>, usize);

    /// Times from changes to the slices and to the kernels.
    fn convergence(&self) -> ConvergenceFigures;

    /// Measured demand of a Service that spills.
    fn spill_demand(&self, key: &ServiceKey) -> Option<SpillDemandStatus>;
}

impl StatusRequest {
    /// Answers from the state of the controller's loop, or with the reason why there is no answer.
    pub fn answer(
        self,
        evaluations: &mut Evaluations,
        cluster: &impl ObservedCluster,
        traffic: &LedgerView,
        refusal: Option<StatusUnavailable>,
        now: MonotonicTime,
    ) {
        fn send<T>(reply: Reply<T>, refusal: Option<StatusUnavailable>, answer: impl FnOnce() -> T) {
            // The client may have gone.
            let _ = reply.send(refusal.map_or_else(|| Ok(answer()), Err));
        }
        match self {
            Self::Report(query, reply) => {
                send(reply, refusal, || evaluations.status(cluster, &query, traffic, now));
            }
            Self::View(key, reply) => {
                send(reply, refusal, || evaluations.view(cluster.snapshot(), &key, traffic, now));
            }
            Self::WhatIf(question, reply) => {
                send(reply, refusal, || evaluations.what_if(cluster.snapshot(), &question, traffic));
            }
            Self::History(reply) => send(reply, refusal, || traffic.history(None)),
        }
    }
}

/// The kept evaluations.
#[derive(Debug)]
pub struct Evaluations {
    /// That of the controller.
    planning: PlanningConfig,
    kept: BTreeMap<ServiceKey, ServiceEvaluation>,
    /// The demand that they were made with.
    demands: BTreeMap<ServiceKey, Vec<(Name, u8)>>,
    evaluator: Option<(Vec<NodeFacts>, WhatIfEvaluator)>,
    asked: Option<MonotonicTime>,
    /// When nothing was left to evaluate; demand is looked at again after [`DEMAND_PERIOD`].
    settled: Option<MonotonicTime>,
    /// When the metrics were updated.
    published: Option<MonotonicTime>,
}

/// The facts of a node that an evaluation depends on.
type NodeFacts = (Name, Option<Name>, Option<Name>, bool, Option<u64>);

impl Evaluations {
    pub fn new(planning: PlanningConfig) -> Self {
        Self {
            planning,
            kept: BTreeMap::new(),
            demands: BTreeMap::new(),
            evaluator: None,
            asked: None,
            settled: None,
            published: None,
        }
    }

    /// A Service or its slices have changed.
    pub fn forget(&mut self, key: &ServiceKey) {
        self.kept.remove(key);
        self.demands.remove(key);
        self.settled = None;
    }

    pub fn clear(&mut self) {
        let (asked, published) = (self.asked, self.published);
        *self = Self { asked, published, ..Self::new(self.planning.clone()) };
    }

    fn get(&self, key: &ServiceKey) -> Option<&ServiceEvaluation> {
        self.kept.get(key)
    }

    /// Whether a report was requested recently.
    fn is_wanted(&self, now: MonotonicTime) -> bool {
        self.asked.is_some_and(|asked| now.0.saturating_sub(asked.0) < INTEREST)
    }

    /// The evaluator for the present nodes.
    pub fn evaluator(&mut self, snapshot: &Snapshot) -> Option<&WhatIfEvaluator> {
        let facts: Vec<NodeFacts> = snapshot.nodes().values().map(node_facts).collect();
        if self.evaluator.as_ref().is_none_or(|(known, _)| *known != facts) {
            let evaluator = WhatIfEvaluator::new(snapshot.nodes(), DemandBasis::Cpu, &self.planning);
            self.clear();
            self.evaluator = Some((facts, evaluator));
        }
        self.evaluator.as_ref().map(|(_, evaluator)| evaluator)
    }

    /// Evaluates up to `budget` Services that have no valid evaluation, those with most traffic first; returns how many
    /// are left.
    fn refresh(
        &mut self,
        snapshot: &Snapshot,
        rows: &BTreeMap<ServiceKey, &[ZonePairTraffic]>,
        first: Option<&ServiceKey>,
        budget: usize,
    ) -> usize {
        self.refresh_where(snapshot, rows, first, budget, |_| true)
    }

    /// Likewise, of the Services that are wanted.
    fn refresh_where(
        &mut self,
        snapshot: &Snapshot,
        rows: &BTreeMap<ServiceKey, &[ZonePairTraffic]>,
        first: Option<&ServiceKey>,
        budget: usize,
        is_wanted: impl Fn(&ServiceKey) -> bool,
    ) -> usize {
        self.evaluator(snapshot);
        let Some((_, evaluator)) = &self.evaluator else { return 0 };
        let mut due: Vec<(u64, &Service, &[Slice])> = Vec::new();
        for (service, slices) in snapshot.services() {
            let traffic = rows.get(&service.key).copied().unwrap_or_default();
            // Services that nodes do not proxy have a demand and no evaluation.
            let is_valid = self.demands.get(&service.key).is_some_and(|known| *known == parts(traffic));
            if is_valid || !is_wanted(&service.key) {
                continue;
            }
            let bytes = traffic.iter().fold(0_u64, |sum, pair| sum.saturating_add(pair.bytes));
            let rank = if first == Some(&service.key) { u64::MAX } else { bytes };
            due.push((rank, service, slices));
        }
        due.sort_by_key(|(rank, _, _)| std::cmp::Reverse(*rank));
        let left = due.len().saturating_sub(budget);
        for (_, service, slices) in due.into_iter().take(budget) {
            let traffic = rows.get(&service.key).copied().unwrap_or_default();
            let default = snapshot.default_traffic_distribution(&service.key.namespace);
            let demand = status::demand_of(traffic);
            let evaluation = status::evaluate(evaluator, service, slices, default, demand.as_ref());
            self.demands.insert(service.key.clone(), parts(traffic));
            match evaluation {
                Some(evaluation) => drop(self.kept.insert(service.key.clone(), evaluation)),
                None => drop(self.kept.remove(&service.key)),
            }
        }
        let there: BTreeSet<&ServiceKey> = snapshot.services().map(|(service, _)| &service.key).collect();
        self.kept.retain(|key, _| there.contains(key));
        self.demands.retain(|key, _| there.contains(key));
        left
    }
}

fn node_facts(node: &Node) -> NodeFacts {
    (node.name.clone(), node.zone.clone(), node.region.clone(), node.ready, node.cpu_millis)
}

/// The demand by zone in whole parts.
fn parts(traffic: &[ZonePairTraffic]) -> Vec<(Name, u8)> {
    let demand = status::demand_of(traffic).unwrap_or_default();
    let all: f64 = demand.values().sum();
    demand.into_iter().map(|(zone, volume)| (zone, (volume / all * DEMAND_PARTS).round() as u8)).collect()
}

/// The rows of the ledger by Service.
pub(crate) fn rows_by_service(sums: &TrafficSums) -> BTreeMap<ServiceKey, &[ZonePairTraffic]> {
    let row = |row: &'_ crate::ledger::TrafficRow| match &row.owner {
        TrafficOwner::Service { namespace, name } => {
            Some(ServiceKey::new(&namespace.as_str().into(), &name.as_str().into()))
        }
        TrafficOwner::OtherServices | TrafficOwner::NotThroughService => None,
    };
    sums.rows.iter().filter_map(|r| Some((row(r)?, r.zone_pairs.as_slice()))).collect()
}

impl Evaluations {
    /// The report of the present state.
    fn status(
        &mut self,
        cluster: &impl ObservedCluster,
        query: &StatusQuery,
        traffic: &LedgerView,
        now: MonotonicTime,
    ) -> StatusReport {
        let sums = traffic.sums(query.window.unwrap_or(WINDOW));
        let rows = sums.as_ref().map(rows_by_service).unwrap_or_default();
        let named = query.namespace.as_deref().zip(query.name.as_deref());
        let named = named.map(|(namespace, name)| ServiceKey::new(&namespace.into(), &name.into()));
        self.asked = Some(now);
        let snapshot = cluster.snapshot();
        let budget = query.evaluations.unwrap_or(EVALUATED_PER_REQUEST);
        self.refresh(snapshot, &rows, named.as_ref(), budget);
        let mut report = self.report(cluster, query, sums.as_ref(), traffic, now);
        report.detail = named.and_then(|key| {
            let service = snapshot.service(&key)?;
            let evaluation = self.get(&key);
            let traffic = rows.get(&key).copied();
            let (slices, gates) = (snapshot.slices(&key), self.planning.gates);
            let detail = status::detail(service, slices, snapshot.nodes(), evaluation, traffic, gates);
            Some(status::ServiceDetail { spill_demand: cluster.spill_demand(&key), ..detail })
        });
        report
    }

    fn report(
        &self,
        cluster: &impl ObservedCluster,
        query: &StatusQuery,
        sums: Option<&TrafficSums>,
        traffic: &LedgerView,
        now: MonotonicTime,
    ) -> StatusReport {
        let (nodes, nodes_without_proxy) = cluster.node_states(now);
        status::report(StatusInput {
            services: cluster.snapshot().services().collect(),
            evaluations: &self.kept,
            traffic: sums,
            price: &|from, to| traffic.price(from, to),
            currency: "USD",
            nodes,
            nodes_without_proxy,
            convergence: cluster.convergence(),
            namespace: query.namespace.as_deref(),
            name: query.name.as_deref(),
        })
    }

    /// The figures for the metrics of Services, once per interval. Only Services with traffic are evaluated for them.
    pub fn signals(
        &mut self,
        cluster: &impl ObservedCluster,
        traffic: &LedgerView,
        now: MonotonicTime,
    ) -> Option<StatusSignals> {
        if self.published.is_some_and(|last| last.after(SIGNALS_INTERVAL) > now) {
            return None;
        }
        self.published = Some(now);
        let sums = traffic.sums(WINDOW);
        let rows = sums.as_ref().map(rows_by_service).unwrap_or_default();
        let has_traffic = |key: &ServiceKey| rows.contains_key(key);
        self.refresh_where(cluster.snapshot(), &rows, None, EVALUATED_PER_TICK, has_traffic);
        let report = self.report(cluster, &StatusQuery::default(), sums.as_ref(), traffic, now);
        let price = |from: &str, to: &str| traffic.price(from, to);
        Some(status::signals(&report, &self.kept, sums.as_ref(), &price))
    }

    /// The metrics were cleared: the next figures are due at once.
    pub fn forget_signals(&mut self) {
        self.published = None;
    }

    /// Goes on with evaluations while reports are requested.
    pub fn evaluate_more(&mut self, snapshot: &Snapshot, traffic: &LedgerView, now: MonotonicTime) {
        let is_settled = self.settled.is_some_and(|at| now < at.after(DEMAND_PERIOD));
        if self.is_wanted(now) && !is_settled {
            let sums = traffic.sums(WINDOW);
            let rows = sums.as_ref().map(rows_by_service).unwrap_or_default();
            let left = self.refresh(snapshot, &rows, None, EVALUATED_PER_TICK);
            self.settled = (left == 0).then_some(now);
        }
    }
}

#[cfg(test)]
mod tests;
