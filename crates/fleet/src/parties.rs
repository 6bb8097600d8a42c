//! The parties: production code on paused runtimes. A crash drops the runtime with all that it spawned.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use clock::Clock;
use cluster::leader_election::election::ElectionTiming;
use cluster::leader_election::{LeaderElectionConfig, LedgerAddressSource};
use controller::ControllerConfig;
use controller::controllers::{ClusterIpOptions, Controllers, ControllersOptions};
use dataplane::conntrack::FakeConntrack;
use dataplane::nftables::NftablesBackend;
use dataplane::nftables::fake::{FakeKernel, FaultyKernel};
use fixtures::FaultyDisk;
use http::Request;
use http_body_util::BodyExt;
use insight::ledger::ZoneLookup;
use insight::traffic_ledger::SharedLedger;
use insight::traffic_reporter::TrafficReporter;
use ipnet::IpNet;
use model::plant::{PlantedBug, is_planted};
use model::random::Random;
use node::config::{Configuration, NodeSettings, resolve};
use node::health::ProxyHealth;
use node::metrics::NodeMetrics;
use node::node_events::EventRecorder;
use node::node_lease::{ProgrammedState, keep_lease};
use node::object_contact::ObjectContact;
use node::run::{SharedState, run_with_fixed_addresses};
use node::slice_watches::NodeWatches;
use node::sync_loop::{SyncLoop, SyncLoopParts};
use node::traffic::{self, ConnectionSource, NodeTraffic, NodeTrafficSource};
use plan::gateway_api::AssignedAddresses;
use store::admission::service::ServiceRanges;
use store::api::{Api, ApiLimits, Caller};
use store::bootstrap::{BootstrapOptions, bootstrap};
use store::engine::{CommitMode, Engine, EngineOptions};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::counters::{FlowAccounts, MachineCounters, Reports};
use crate::link::Link;
use crate::network::ResponsePart;
use crate::time::PausedRuntime;

/// Cluster IPs.
pub(crate) const SERVICE_RANGE: &str = "10.96.0.0/16";
const LEASES: &str = "kube-system";

/// What the API sent: the call, and a part of its response.
type FromApi = Arc<Mutex<VecDeque<(u64, ResponsePart)>>>;

/// The API while it runs.
pub(crate) struct ApiProcess {
    pub api: Api,
    responses: FromApi,
    /// A sync failed: the process would have aborted.
    pub has_aborted: Arc<AtomicBool>,
    _stop: watch::Sender<bool>,
}

impl ApiProcess {
    /// Opens the store on its disk. Fails if the machine stops meanwhile, or if the store is damaged, which the text says.
    pub(crate) fn start(runtime: &PausedRuntime, disk: &FaultyDisk, random: Random) -> Result<Self, String> {
        let has_aborted = Arc::new(AtomicBool::new(false));
        let aborted = has_aborted.clone();
        let options = EngineOptions {
            commit: CommitMode::Inline,
            clock: runtime.clock(),
            cache_bytes: 512 << 10,
            log_revisions: 3_000,
            history_events: 512,
            journal_bytes: 256 << 10,
            on_sync_failure: Arc::new(move |_| aborted.store(true, Ordering::SeqCst)),
            ..EngineOptions::default()
        };
        let (stop, stopped) = watch::channel(false);
        let started = runtime.block_on(async {
            let engine = Engine::open_on(disk.clone(), options).map_err(|error| error.to_string())?;
            let ranges =
                ServiceRanges { cluster_ips: vec![service_range()], ..ServiceRanges::without_flags() };
            let api = Api::new(Arc::new(engine), ranges, ApiLimits::default()).with_random(random);
            let listen = SocketAddr::from(([192, 0, 2, 1], 6443));
            let options = BootstrapOptions { service_cidrs: vec![service_range()], listen };
            bootstrap(&api, options).await.map_err(|error| error.message.to_string())?;
            tokio::spawn(store::garbage_collector::run(api.clone(), stopped));
            Ok::<Api, String>(api)
        });
        Ok(Self { api: started?, responses: FromApi::default(), has_aborted, _stop: stop })
    }

    /// Handles a request in a task of its own.
    pub(crate) fn serve(&self, runtime: &PausedRuntime, id: u64, request: Request<Bytes>) -> AbortHandle {
        let (api, responses) = (self.api.clone(), self.responses.clone());
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let task = runtime.handle().spawn(async move {
            let push = |part| responses.lock().unwrap_or_else(PoisonError::into_inner).push_back((id, part));
            let (head, mut body) = api.answer(request, &Caller::own()).await.into_parts();
            if !(is_watch && head.status.is_success()) {
                if let Ok(body) = body.collect().await {
                    push(ResponsePart::Whole(head, body.to_bytes()));
                }
                return;
            }
            push(ResponsePart::Stream(head));
            while let Some(Ok(frame)) = body.frame().await {
                if let Ok(bytes) = frame.into_data() {
                    push(ResponsePart::Frame(bytes));
                }
            }
            push(ResponsePart::End);
        });
        task.abort_handle()
    }

    pub(crate) fn take_response(&self) -> Option<(u64, ResponsePart)> {
        self.responses.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

pub(crate) fn service_range() -> IpNet {
    SERVICE_RANGE.parse().expect("a CIDR")
}

/// A controller manager while it runs.
pub(crate) struct ControllerProcess {
    /// Whether it leads.
    pub leading: watch::Receiver<bool>,
    pub ledger: SharedLedger,
}

/// A controller manager: the controllers of `zoneward up`, several of them, of which one leads.
pub(crate) fn start_controller(
    runtime: &PausedRuntime,
    link: &Link,
    name: &str,
    mut random: Random,
) -> ControllerProcess {
    let clock = runtime.clock();
    runtime.block_on(async {
        let election = LeaderElectionConfig {
            namespace: LEASES.to_owned(),
            name: "zoneward-controller".to_owned(),
            identity: format!("{name}_{:016x}", random.next_u64()),
            annotations: Default::default(),
            timing: ElectionTiming::default(),
            clock: clock.clone(),
            random: random.split(),
            ledger_address: LedgerAddressSource::default(),
        };
        let ledger = SharedLedger::new(&clock, &[]).expect("no prices");
        let options = ControllersOptions {
            slices: ControllerConfig {
                clock,
                random,
                lease_namespace: LEASES.to_owned(),
                ..ControllerConfig::new(plan::PlanningConfig::without_flags())
            },
            lease_name: election.name.clone(),
            election: Some(election),
            ledger: ledger.clone(),
            gateway_addresses: AssignedAddresses::Services,
            cluster_ips: Some(ClusterIpOptions { ranges: vec![service_range()], leader_only: true }),
        };
        let controllers =
            Controllers::start(link.client(), options, &mut cluster::admin_server::registry("fleet"));
        let leading = controllers.leading();
        let _ = link.leading.set(leading.clone());
        tokio::spawn(async move {
            controllers.failure().await;
            controllers.stop().await.expect("no controller panics");
        });
        ControllerProcess { leading, ledger }
    })
}

fn new_kernel() -> FaultyKernel<FakeKernel> {
    FaultyKernel::new(FakeKernel::new().with_halved_batches(is_planted(PlantedBug::HalfBatch)), &[])
}

/// What survives a restart of a node proxy: its kernel.
#[derive(Clone)]
pub struct Machine {
    pub name: String,
    pub address: IpAddr,
    pub kernel: Arc<Mutex<FaultyKernel<FakeKernel>>>,
    pub conntrack: Arc<Mutex<FakeConntrack>>,
    pub accounts: Arc<Mutex<FlowAccounts>>,
}

impl Machine {
    pub fn new(number: usize) -> Self {
        Self {
            name: format!("node-{number}"),
            address: IpAddr::from([192, 0, 2, 10 + number as u8]),
            kernel: Arc::new(Mutex::new(new_kernel())),
            conntrack: Arc::default(),
            accounts: Arc::default(),
        }
    }

    /// A reboot empties the kernel.
    pub fn reboot(&self) {
        *self.kernel.lock().unwrap_or_else(PoisonError::into_inner) = new_kernel();
        *self.conntrack.lock().unwrap_or_else(PoisonError::into_inner) = FakeConntrack::default();
        *self.accounts.lock().unwrap_or_else(PoisonError::into_inner) = FlowAccounts::default();
    }
}

pub(crate) fn node_settings() -> NodeSettings {
    let configuration = Configuration { mode: "nftables".to_owned(), ..Configuration::default() };
    resolve(configuration, false).expect("the default configuration").0
}

/// A node proxy on its machine. Returns what it counts.
pub(crate) fn start_node(
    runtime: &PausedRuntime,
    link: &Link,
    machine: &Machine,
    reports: &Reports,
    mut random: Random,
) -> watch::Receiver<NodeTraffic> {
    let clock: Clock = runtime.clock();
    let machine = machine.clone();
    runtime.block_on(async {
        let client = link.client();
        let settings = node_settings();
        let health = Mutex::new(ProxyHealth::new(settings.sync_period));
        let shared = Arc::new(SharedState {
            health,
            metrics: NodeMetrics::default(),
            objects: ObjectContact::default(),
        });
        let (programmed, reported) = watch::channel(ProgrammedState::default());
        let events = EventRecorder::start(client.clone(), &machine.name, clock.clone());
        let lease = keep_lease(
            client.clone(),
            LEASES.to_owned(),
            machine.name.clone(),
            None,
            reported,
            clock.clone(),
        );
        tokio::spawn(lease);
        let watches = NodeWatches::start(&client, random.split(), &machine.name, false, true);
        machine.accounts.lock().unwrap_or_else(PoisonError::into_inner).forget_events();
        let (zones, zones_of_pods) = watch::channel(ZoneLookup::default());
        let (sums, published) = watch::channel(NodeTraffic::default());
        let counters = Box::new(MachineCounters(machine.clone()));
        let (traffic, mut reader) =
            traffic::start_reading(&clock, counters, ConnectionSource::Rules, zones_of_pods, sums);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                reader.step();
            }
        });
        let reporter = TrafficReporter {
            channel: Box::new(reports.clone()),
            reporter: format!("node/{}", machine.name),
            source: Box::new(NodeTrafficSource { sums: published.clone(), zones, shared: shared.clone() }),
            clock: clock.clone(),
            random: random.split(),
        };
        tokio::spawn(reporter.run());
        let sync_loop = SyncLoop::new(SyncLoopParts {
            settings,
            node: machine.name.clone(),
            shared: shared.clone(),
            events,
            programmed,
            backend: Box::new(NftablesBackend::new(Box::new(machine.kernel.clone()))),
            other_modes: Vec::new(),
            conntrack: Some(Box::new(machine.conntrack.clone())),
            traffic,
            clock: clock.clone(),
            local_addresses: vec![machine.address],
        });
        tokio::spawn(async move { run_with_fixed_addresses(sync_loop, watches, &shared, &clock).await });
        published
    })
}
