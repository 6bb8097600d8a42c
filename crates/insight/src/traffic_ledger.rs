//! The traffic ledger of the leading controller: reports of nodes and proxies in, sums, zones of pods and metrics out.
//! Only the leader has one, and each leader starts its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::ledger::{
    PodZones, PriceTable, ReportedProxy, TrafficCost, TrafficLedger, TrafficReply, TrafficReport,
    TrafficSums, proxy_addresses,
};
use clock::Clock;
use cluster::admin_server::{AdminPage, AdminPost, AdminRoutes, ReviewedUser};
use cluster::ledger_client;
use http::StatusCode;
use model::ProxyUser;
use model::{Name, Node, ObjectKey, Snapshot};
use plan::gateway_api::{PortReport, UnboundPort, UnboundPorts};
use plan::work_queue::MonotonicTime;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use serde::Serialize;
use tokio::sync::watch;

use crate::status_board::LedgerView;

/// What prices are for.
const GB: u64 = 1_000_000_000;
/// The window of a page without `?window=`.
const DEFAULT_WINDOW: Duration = Duration::from_secs(3600);
/// Interval between reads of the Nodes.
const NODES_INTERVAL: Duration = Duration::from_secs(10);
/// Proxies whose addresses are sent to nodes, and addresses that each may name.
const MAX_PROXIES: usize = 10_000;
const MAX_ADDRESSES: usize = 16;
/// Ports that a proxy may report as not bound.
const MAX_UNBOUND: usize = 64;
/// Reports of unbound ports expire after this time without another report of the proxy.
const UNBOUND_TIMEOUT: Duration = Duration::from_secs(90);

/// The ledger, shared by the admin server and the controller's loop.
#[derive(Clone)]
pub struct SharedLedger {
    state: Arc<Mutex<LedgerState>>,
    clock: Clock,
    start: Instant,
    /// Values of `--price`.
    price_flags: Vec<String>,
    /// Of all proxies that report.
    unbound: Arc<watch::Sender<UnboundPorts>>,
}

#[derive(Default)]
struct LedgerState {
    /// While leading.
    ledger: Option<TrafficLedger>,
    zones: PodZones,
    /// Of the Nodes with a zone, by name.
    zone_by_node: BTreeMap<Name, Name>,
    prices: PriceTable,
    /// Proxies that report, and when they did.
    proxies: BTreeMap<String, (ReportedProxy, MonotonicTime)>,
    /// The ports of gateways that proxies could not bind, and when they reported it.
    unbound: BTreeMap<String, (Vec<UnboundPort>, MonotonicTime)>,
    /// Whether they changed since they were published.
    has_new_unbound: bool,
    /// Reporters that are not expected to report: their Node, pod or process has gone.
    gone: BTreeSet<String>,
    /// Proxies without a pod that report over a socket of their own.
    sockets: BTreeSet<String>,
    nodes_read: Option<MonotonicTime>,
    accepted: u64,
    refused: u64,
}

/// What `GET /ledger` returns.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LedgerPage {
    #[serde(flatten)]
    pub sums: TrafficSums,
    pub prices: PriceTable,
    /// `None` if no price is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<TrafficCost>,
}

impl fmt::Debug for SharedLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedLedger")
    }
}

impl SharedLedger {
    /// `price_flags` are the values of `--price`.
    pub fn new(clock: &Clock, price_flags: &[String]) -> Result<Self, String> {
        let prices = PriceTable::new(&Snapshot::default(), price_flags)?;
        let state = LedgerState { prices, ..LedgerState::default() };
        Ok(Self {
            state: Arc::new(Mutex::new(state)),
            clock: clock.clone(),
            start: clock.now(),
            price_flags: price_flags.to_vec(),
            unbound: Arc::default(),
        })
    }

    fn with<T>(&self, act: impl FnOnce(&mut LedgerState, MonotonicTime) -> T) -> T {
        let now = MonotonicTime(self.clock.since(self.start));
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner), now)
    }

    /// Starts a ledger with each lead, and drops it afterwards, until `stop` is true.
    pub async fn follow(self, mut leading: watch::Receiver<bool>, mut stop: watch::Receiver<bool>) {
        loop {
            let leads = *leading.borrow_and_update();
            self.set_leading(leads);
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                changed = leading.changed() => if changed.is_err() { return },
            }
        }
    }

    fn set_leading(&self, leads: bool) {
        let since = self.clock.timestamp().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        self.with(|state, now| {
            if leads && state.ledger.is_none() {
                state.ledger = Some(TrafficLedger::new(since, now));
            } else if !leads {
                state.ledger = None;
                state.proxies.clear();
                state.gone.clear();
                state.unbound.clear();
                state.has_new_unbound = true;
            }
        });
        self.publish_unbound();
    }

    /// The ports of gateways that proxies could not bind.
    pub fn unbound_ports(&self) -> watch::Receiver<UnboundPorts> {
        self.unbound.subscribe()
    }

    fn publish_unbound(&self) {
        self.with(|state, now| {
            let before = state.unbound.len();
            state.unbound.retain(|_, (_, heard)| heard.after(UNBOUND_TIMEOUT) > now);
            if !std::mem::take(&mut state.has_new_unbound) && state.unbound.len() == before {
                return;
            }
            let all = state.unbound.values().flat_map(|(ports, _)| ports.iter().cloned());
            let all = UnboundPort::by_gateway(all);
            self.unbound.send_if_modified(|known| {
                let is_changed = *known != all;
                *known = all;
                is_changed
            });
        });
    }

    /// Reads the zones of pods and the provider from the Nodes, every ten seconds.
    pub fn read_nodes(&self, snapshot: &Snapshot) {
        let due =
            self.with(|state, now| state.nodes_read.is_none_or(|read| read.after(NODES_INTERVAL) <= now));
        if !due {
            return;
        }
        self.publish_unbound();
        // The flags were checked at the start.
        let prices = PriceTable::new(snapshot, &self.price_flags);
        let proxies = self.with(|state, now| {
            // A proxy that stopped to report is forgotten after five minutes: its address may be another pod's.
            state.proxies.retain(|_, (_, heard)| heard.after(Duration::from_secs(300)) > now);
            state.proxies.values().map(|(proxy, _)| proxy.clone()).collect::<Vec<ReportedProxy>>()
        });
        let zones = PodZones::of(snapshot, proxy_addresses(snapshot, &proxies));
        let zone_of = |node: &Node| Some((node.name.clone(), node.zone.clone()?));
        let zone_by_node = snapshot.nodes().values().filter_map(zone_of).collect();
        self.with(|state, now| {
            state.nodes_read = Some(now);
            state.zones = zones;
            state.zone_by_node = zone_by_node;
            let sums = state.ledger.as_ref().map(|ledger| ledger.sums(Duration::ZERO, now));
            let silent = sums.into_iter().flat_map(|sums| sums.silent);
            let sockets = &state.sockets;
            state.gone = silent.filter(|name| !sockets.contains(name) && has_gone(snapshot, name)).collect();
            if let Ok(prices) = prices {
                state.prices = prices;
            }
        });
    }

    /// Adds `/ledger`: GET for sums, POST for reports of traffic; and reports of ports, by proxies and by `mesh control`.
    pub fn routes(&self, routes: AdminRoutes) -> AdminRoutes {
        let (reader, writer, ports, envoys) = (self.clone(), self.clone(), self.clone(), self.clone());
        routes
            .page(ledger_client::PATH, move |head| reader.page(head.uri.query().unwrap_or_default()))
            .post(ledger_client::PATH, move |post| writer.receive(post))
            .post(ledger_client::PORTS_PATH, move |post| ports.receive_ports(post, |_| {}))
            .post(ledger_client::ENVOYS_PATH, move |post| envoys.receive_envoys(post))
    }

    /// Sums of a window; `None` while another controller leads.
    pub fn read(&self, window: Duration) -> Option<LedgerPage> {
        self.with(|state, now| {
            let sums = state.sums(window, now)?;
            let cost = state.prices.cost(&sums);
            Some(LedgerPage { sums, prices: state.prices.clone(), cost })
        })
    }

    /// Measured traffic and prices for the status report.
    pub fn view(&self) -> LedgerView {
        let (sums, prices, history, demand) = (self.clone(), self.clone(), self.clone(), self.clone());
        LedgerView::new(
            move |window| sums.with(|state, now| state.sums(window, now)),
            move |from, to| prices.with(|state, _| state.prices.usd(from, to, GB)),
        )
        .with_demand(move || {
            demand.with(|state, now| {
                let zone = |node: &str| state.zone_by_node.get(node).map(|zone| &**zone);
                Some(state.ledger.as_ref()?.demand(now, zone))
            })
        })
        .with_history(move |owner| {
            history.with(|state, _| {
                state.ledger.as_ref().map(|ledger| ledger.history(owner)).unwrap_or_default()
            })
        })
    }

    fn page(&self, query: &str) -> AdminPage {
        let asked = query.split('&').find_map(|part| part.strip_prefix("window="));
        let window = match asked.map(|text| text.parse().map(Duration::from_secs)) {
            None => DEFAULT_WINDOW,
            Some(Ok(window)) => window,
            Some(Err(_)) => {
                let text = "window: expected seconds, such as /ledger?window=3600\n";
                return AdminPage::text(StatusCode::BAD_REQUEST, text);
            }
        };
        match self.read(window).map(serde_json::to_value) {
            Some(Ok(page)) => AdminPage::json(StatusCode::OK, &page),
            Some(Err(error)) => AdminPage::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
            None => not_leading(),
        }
    }

    /// Routes for one proxy of this machine: it reports under this name, and reads nothing. It is on the host network,
    /// where addresses tell nothing.
    pub fn report_routes(&self, reporter: &str) -> AdminRoutes {
        self.with(|state, _| state.sockets.insert(reporter.to_owned()));
        let (ledger, name) = (self.clone(), reporter.to_owned());
        let routes = AdminRoutes::default().post(ledger_client::PATH, move |post| {
            ledger.receive_as(post, |report| {
                report.reporter.clone_from(&name);
                report.addresses.clear();
            })
        });
        let (ports, name) = (self.clone(), reporter.to_owned());
        routes.post(ledger_client::PORTS_PATH, move |post| {
            ports.receive_ports(post, |report| report.reporter.clone_from(&name))
        })
    }

    /// The reporter of such routes has ended.
    pub fn close_reporter(&self, reporter: &str) {
        self.with(|state, _| {
            state.sockets.remove(reporter);
            state.has_new_unbound |= state.unbound.remove(reporter).is_some();
        });
        self.publish_unbound();
    }

    /// A report of a node or proxy.
    pub fn receive(&self, post: &AdminPost) -> AdminPage {
        self.receive_as(post, |_| {})
    }

    fn receive_as(&self, post: &AdminPost, amend: impl Fn(&mut TrafficReport)) -> AdminPage {
        let report: TrafficReport = match serde_json::from_slice(&post.body) {
            Ok(mut report) => {
                amend(&mut report);
                report
            }
            Err(error) => {
                self.with(|state, _| state.refused += 1);
                return AdminPage::text(StatusCode::BAD_REQUEST, format!("malformed report: {error}\n"));
            }
        };
        if let Some(user) = &post.user
            && let Err(why) = check_reporter(&report.reporter, user)
        {
            self.with(|state, _| state.refused += 1);
            return AdminPage::text(StatusCode::FORBIDDEN, format!("forbidden: {why}\n"));
        }
        self.with(|state, now| {
            let Some(ledger) = &mut state.ledger else { return not_leading() };
            if let Err(why) = ledger.record(&report, now) {
                state.refused += 1;
                let text = format!("not counted: {why}\n");
                return AdminPage::text(StatusCode::UNPROCESSABLE_ENTITY, text);
            }
            state.accepted += 1;
            // On a joined machine a proxy is on the host network, where addresses tell nothing.
            let is_joined = post.user.as_ref().is_some_and(|user| ProxyUser::of_name(&user.name).is_some());
            if let Some(name) = report.reporter.strip_prefix("proxy/").filter(|_| !is_joined)
                && (state.proxies.len() < MAX_PROXIES || state.proxies.contains_key(&report.reporter))
            {
                // The token is of this pod: that was checked.
                let pod = name.split_once('/').filter(|_| post.user.is_some());
                let proxy = ReportedProxy {
                    pod: pod.map(|(namespace, pod)| ObjectKey::new(&namespace.into(), &pod.into())),
                    peer: post.peer.map(|peer| peer.to_canonical()),
                    named: report.addresses.iter().take(MAX_ADDRESSES).copied().collect(),
                };
                state.proxies.insert(report.reporter.clone(), (proxy, now));
            }
            let has_zones = report.reporter.starts_with("node/") && state.zones.version != 0;
            let is_newer = has_zones && state.zones.version != report.pod_zones_version;
            let reply = TrafficReply { pod_zones: is_newer.then(|| state.zones.clone()) };
            let body = serde_json::to_value(reply).unwrap_or_default();
            AdminPage::json(StatusCode::OK, &body)
        })
    }

    /// A report of a proxy about ports that it could not bind: for the gateways of its namespace.
    fn receive_ports(&self, post: &AdminPost, amend: impl Fn(&mut PortReport)) -> AdminPage {
        self.record_ports(post, |report, user| {
            amend(report);
            user.map_or(Ok(()), |user| check_reporter(&report.reporter, user))?;
            let name = report.reporter.strip_prefix("proxy/").and_then(|name| name.split_once('/'));
            let namespace = name.map(|(namespace, _)| namespace.to_owned());
            report.unbound_ports.retain(|port| Some(&port.namespace) == namespace.as_ref());
            report.unbound_ports.truncate(MAX_UNBOUND);
            Ok(())
        })
    }

    /// A report of `mesh control`. The right to send one is that of a control plane: it may report for every gateway, and
    /// vouches for its Envoys.
    fn receive_envoys(&self, post: &AdminPost) -> AdminPage {
        self.record_ports(post, |report, user| check_control_plane(&report.reporter, user))
    }

    /// `scope` refuses a report, or reduces it to what its reporter may report.
    fn record_ports(
        &self,
        post: &AdminPost,
        scope: impl Fn(&mut PortReport, Option<&ReviewedUser>) -> Result<(), String>,
    ) -> AdminPage {
        let refuse = |status, text: String| {
            self.with(|state, _| state.refused += 1);
            AdminPage::text(status, text)
        };
        let mut report: PortReport = match serde_json::from_slice(&post.body) {
            Ok(report) => report,
            Err(error) => return refuse(StatusCode::BAD_REQUEST, format!("malformed report: {error}\n")),
        };
        if let Err(why) = scope(&mut report, post.user.as_ref()) {
            return refuse(StatusCode::FORBIDDEN, format!("forbidden: {why}\n"));
        }
        // The bounds are those of the reporter, whatever it sent.
        let report = PortReport::new(&report.reporter, report.unbound_ports);
        let page = self.with(|state, now| {
            if state.ledger.is_none() {
                return not_leading();
            }
            state.accepted += 1;
            state.set_unbound(report.reporter, report.unbound_ports, now);
            AdminPage::json(StatusCode::OK, &serde_json::json!({}))
        });
        self.publish_unbound();
        page
    }

    /// Registers the sums by pair of zones.
    pub fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(LedgerCollector(self.clone())));
    }
}

impl LedgerState {
    fn set_unbound(&mut self, reporter: String, ports: Vec<UnboundPort>, now: MonotonicTime) {
        let before = self.unbound.get(&reporter).map(|(ports, _)| ports.as_slice());
        self.has_new_unbound |= before.unwrap_or_default() != ports;
        let has_room = self.unbound.len() < MAX_PROXIES || before.is_some();
        if ports.is_empty() {
            self.unbound.remove(&reporter);
        } else if has_room {
            self.unbound.insert(reporter, (ports, now));
        }
    }

    /// Sums of a window; reporters that have gone are not silent. `None` while another controller leads.
    fn sums(&self, window: Duration, now: MonotonicTime) -> Option<TrafficSums> {
        let mut sums = self.ledger.as_ref()?.sums(window, now);
        let before = sums.silent.len();
        sums.silent.retain(|reporter| !self.gone.contains(reporter));
        sums.reporters = sums.reporters.saturating_sub(before - sums.silent.len());
        Some(sums)
    }
}

/// `mesh control` reports for its pod; without a token, over a socket of this machine, under any such name.
fn check_control_plane(reporter: &str, user: Option<&ReviewedUser>) -> Result<(), String> {
    let name = reporter.strip_prefix("control/").and_then(|name| name.split_once('/'));
    let Some((namespace, pod)) = name else {
        return Err(format!("reporter {reporter:?}: expected control/NAMESPACE/POD"));
    };
    user.map_or(Ok(()), |user| check_pod(namespace, pod, user))
}

fn check_pod(
    namespace: &str,
    reported: &str,
    ReviewedUser { name, pod, .. }: &ReviewedUser,
) -> Result<(), String> {
    let account = name.strip_prefix("system:serviceaccount:").and_then(|name| name.split(':').next());
    match (account, pod) {
        (Some(of), Some(pod)) if of == namespace && pod == reported => Ok(()),
        _ => Err(format!("the token of User {name:?} is not of pod {namespace}/{reported}")),
    }
}

/// Whether the Node or pod of a reporter is not there. A proxy without a pod, of another process on this machine, is named
/// by its process, and has gone when it is silent.
fn has_gone(snapshot: &Snapshot, reporter: &str) -> bool {
    if let Some(node) = reporter.strip_prefix("node/") {
        return snapshot.node(node).is_none();
    }
    let pod = reporter.strip_prefix("proxy/").and_then(|name| name.split_once('/'));
    pod.is_some_and(|(namespace, pod)| {
        snapshot.pod(&ObjectKey::new(&namespace.into(), &pod.into())).is_none()
    })
}

fn not_leading() -> AdminPage {
    AdminPage::text(StatusCode::MISDIRECTED_REQUEST, "another controller leads: its Lease has its address\n")
}

/// A node reports for itself: the token of a pod names its node, and that of a kubelet is the node's own. A proxy reports
/// for its pod, and on a joined machine under its own name.
fn check_reporter(reporter: &str, user: &ReviewedUser) -> Result<(), String> {
    let ReviewedUser { name, node, .. } = user;
    // A proxy of a joined machine: its credential names the node.
    if let (Some(proxy), Some(node)) = (ProxyUser::of_name(name), node) {
        let own = proxy.reporter(Some(node));
        return match own == reporter {
            true => Ok(()),
            false => Err(format!("the token of User {name:?} is of {own}, and the report of {reporter:?}")),
        };
    }
    if let Some(reported) = reporter.strip_prefix("node/") {
        let node = node.as_deref().or_else(|| name.strip_prefix("system:node:"));
        return match node {
            Some(node) if node == reported => Ok(()),
            Some(node) => Err(format!("the token is of node {node:?}, and the report of {reported:?}")),
            None => {
                Err(format!("the token of User {name:?} names no node; use the one that the kubelet mounts"))
            }
        };
    }
    let Some((namespace, reported)) = reporter.strip_prefix("proxy/").and_then(|name| name.split_once('/'))
    else {
        return Err(format!("reporter {reporter:?}: expected node/NAME or proxy/NAMESPACE/POD"));
    };
    check_pod(namespace, reported, user)
}

/// Reads the ledger at each scrape.
struct LedgerCollector(SharedLedger);

impl fmt::Debug for LedgerCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LedgerCollector")
    }
}

impl Collector for LedgerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (totals, sums, accepted, refused) = self.0.with(|state, now| {
            let ledger = state.ledger.as_ref();
            let totals: Vec<_> = ledger.into_iter().flat_map(TrafficLedger::totals).collect();
            let sums = state.sums(Duration::ZERO, now).unwrap_or_default();
            (totals, sums, state.accepted, state.refused)
        });
        let mut reports = encoder.encode_descriptor(
            "zoneward_ledger_reports",
            "Reports of traffic received, by result",
            None,
            MetricType::Counter,
        )?;
        for (result, count) in [("accepted", accepted), ("refused", refused)] {
            ConstCounter::new(count).encode(reports.encode_family(&[("result", result)])?)?;
        }
        let silent = sums.silent.len();
        for (name, help, value) in [
            ("zoneward_ledger_reporters", "Nodes and proxies that report traffic", sums.reporters),
            ("zoneward_ledger_silent_reporters", "Those of them without a report for 90 s", silent),
        ] {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        for (name, help, is_bytes) in [
            ("zoneward_ledger_connections", "Connections of all nodes and proxies by zones", false),
            ("zoneward_ledger_bytes", "Bytes of all nodes and proxies by zones", true),
        ] {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (through_service, at) in &totals {
                let through = if *through_service { "service" } else { "none" };
                let labels = [("from_zone", &*at.from_zone), ("to_zone", &*at.to_zone), ("through", through)];
                let value = if is_bytes { at.bytes } else { at.connections };
                ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
