//! The running cluster: the API with its controllers as a child process, the namespaces of nodes and pods, and a watch
//! cache of the API.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clock::Clock;
use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, PostParams};
use model::random::Random;
use model::{
    AddressType, Family, Name, Protocol, ServiceKey, ServicePort, Snapshot, TrafficPolicy, annotation,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use plan::FeatureGates;
use plan::select::{NodeView, select};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::layout::{self, API_PORT, DemoNode, POD_RANGES};
use super::measure::{PlannedTraffic, TrafficClient};
use super::namespace_client::NamespaceHostClient;
use super::objects::{self, DemoPod, NAMESPACE};
use super::protocol::{NamespaceRequest, ProcessRestart};
use cluster::supervisor;
use cluster::{Connection, Informer, ObjectKind, WatchCache, WatchSpec};

const WATCHED: [ObjectKind; 4] = [ObjectKind::Service, ObjectKind::Slice, ObjectKind::Node, ObjectKind::Pod];
const TIMEOUT: Duration = Duration::from_secs(60);

/// Time without changes after which all components have seen the last one.
const QUIET_PERIOD: Duration = Duration::from_secs(1);
/// Limit on waiting for a quiet period.
const MAX_QUIET_WAIT: Duration = Duration::from_secs(10);

pub(crate) struct DemoCluster {
    /// Data directory of the API, and logs.
    pub folder: PathBuf,
    pub kubeconfig: PathBuf,
    pub namespaces: NamespaceHostClient,
    api: Child,
    client: Client,
    feed: Informer,
    mirror: WatchCache,
    pods: BTreeMap<String, DemoPod>,
    /// Threads of the namespace host, by node or pod: `demo exec` finds their namespaces by them.
    threads: BTreeMap<String, i32>,
    /// Pids of node proxies and sidecars, by node or pod.
    processes: BTreeMap<String, i32>,
    clock: Clock,
    started: Timestamp,
}

impl DemoCluster {
    /// Starts the API and the namespace host, without nodes and pods.
    pub(crate) async fn start(folder: &Path, clock: Clock) -> Result<Self> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder.join("logs"))
            .with_context(|| format!("{}", folder.display()))?;
        // Child processes get paths below it.
        let folder = &std::path::absolute(folder).with_context(|| format!("{}", folder.display()))?;
        let socket = folder.join("data/api.sock");
        let namespaces = NamespaceHostClient::start(&socket, &folder.join("logs/namespaces.log"))?;
        let (api, kubeconfig) = start_api(folder, None).await?;
        write_inner_kubeconfig(folder)?;
        let connection = Connection { api_socket: Some(socket), ..Connection::default() };
        let client = cluster::connect(&connection, &clock).await?;
        let feed = Informer::start(&client, Random::seeded(clock::os_seed()), WATCHED.map(WatchSpec::all));
        Ok(Self {
            folder: folder.to_owned(),
            kubeconfig,
            namespaces,
            api,
            client,
            feed,
            mirror: WatchCache::default(),
            pods: BTreeMap::new(),
            threads: BTreeMap::new(),
            processes: BTreeMap::new(),
            started: clock.timestamp(),
            clock,
        })
    }

    /// The address of the dashboard, as the leader's Lease has it.
    pub(crate) async fn dashboard(&self) -> String {
        let leases: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), "kube-system", &ObjectKind::Lease.resource());
        let lease = leases.get_opt("zoneward-controller").await.ok().flatten();
        let annotations = lease.and_then(|lease| lease.metadata.annotations).unwrap_or_default();
        match annotations.get(annotation::STATUS_ADDRESS) {
            Some(address) => format!("http://{address}/"),
            None => format!("the address that {} has", self.folder.join("logs/api.log").display()),
        }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The objects of the watch cache.
    pub(crate) fn snapshot(&self) -> &Snapshot {
        self.mirror.snapshot()
    }

    /// Creates the namespace and the object of a node. [`DemoCluster::start_proxy`] starts its proxy.
    pub(crate) async fn add_node(&mut self, node: &DemoNode) -> Result<()> {
        let request = NamespaceRequest::AddNode { name: node.name.clone(), number: node.number };
        let thread = self.request(request).await?;
        self.threads.extend(thread.map(|thread| (node.name.clone(), thread)));
        self.create(ObjectKind::Node, objects::node(node)).await
    }

    /// Sends a request to the namespace host; on failure, the error contains its log.
    async fn request(&self, request: NamespaceRequest) -> Result<Option<i32>> {
        let result = self.namespaces.ask(request).await;
        result.map_err(|error| {
            let log = std::fs::read_to_string(self.folder.join("logs/namespaces.log")).unwrap_or_default();
            match log.trim() {
                "" => error,
                log => error.context(log.to_owned()),
            }
        })
    }

    /// Starts the proxy of a node, without settings that fail in a namespace (conntrack limits, a lower OOM score).
    pub(crate) async fn start_proxy(&mut self, node: &DemoNode, program: Option<PathBuf>) -> Result<()> {
        let socket = self.folder.join("data/api.sock").display().to_string();
        let oom_score = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
        let options = [
            ("--api-socket", socket.as_str()),
            ("--hostname-override", &node.name),
            ("--proxy-mode", "nftables"),
            ("--cluster-cidr", &POD_RANGES.join(",")),
            ("--conntrack-max-per-core", "0"),
            ("--conntrack-min", "0"),
            ("--oom-score-adj", oom_score.trim()),
        ];
        let given = options.iter().filter(|(_, value)| !value.is_empty());
        let words = given.map(|(name, value)| format!("{name}={value}"));
        let arguments = std::iter::once("node".to_owned()).chain(words).collect();
        self.start_process(&node.name, program, arguments, &format!("{}.log", node.name)).await
    }

    /// Starts a process in the namespace of a node or pod.
    pub(crate) async fn start_process(
        &mut self,
        namespace: &str,
        program: Option<PathBuf>,
        arguments: Vec<String>,
        log: &str,
    ) -> Result<()> {
        let log = self.folder.join("logs").join(log);
        let namespace = namespace.to_owned();
        let request =
            NamespaceRequest::StartProcess { namespace: namespace.clone(), program, arguments, log };
        let pid = self.request(request).await?;
        self.processes.extend(pid.map(|pid| (namespace, pid)));
        Ok(())
    }

    /// Stops the process in the namespace of a node or pod.
    pub(crate) async fn stop_process(&mut self, namespace: &str) -> Result<()> {
        self.request(NamespaceRequest::StopProcess { namespace: namespace.to_owned() }).await?;
        self.processes.remove(namespace);
        Ok(())
    }

    /// Replaces the API and its controllers by those of another program. If that does not start, the one before does.
    pub(crate) async fn replace_api(&mut self, program: &Path) -> Result<()> {
        let before = format!("/proc/{}/exe", self.api.id().unwrap_or_default());
        let before = std::fs::read_link(&before).with_context(|| before.clone())?;
        stop(&mut self.api).await?;
        match start_api(&self.folder, Some(program)).await {
            Ok((api, _)) => self.api = api,
            Err(error) => {
                self.api = start_api(&self.folder, Some(&before)).await?.0;
                return Err(error);
            }
        }
        self.write_state()
    }

    /// Records the new pid of a restarted process.
    pub(crate) fn restarted(&mut self, restarted: &ProcessRestart) -> Result<()> {
        self.processes.insert(restarted.namespace.clone(), restarted.pid);
        self.write_state()
    }

    /// Creates the namespace of a pod before its object, so that it serves by the time that it is ready.
    pub(crate) async fn add_pod(&mut self, pod: DemoPod) -> Result<()> {
        self.add_pod_namespace(&pod).await?;
        self.add_pod_object(pod).await
    }

    /// Creates the namespace of a pod alone, for a process to start in it.
    pub(crate) async fn add_pod_namespace(&mut self, pod: &DemoPod) -> Result<()> {
        let (name, node, zone) = (pod.name.clone(), pod.node.name.clone(), pod.node.zone.to_owned());
        let thread = self.request(NamespaceRequest::AddPod { name, node, zone, number: pod.number }).await?;
        self.threads.extend(thread.map(|thread| (pod.name.clone(), thread)));
        Ok(())
    }

    /// Creates the object of a pod, which is ready.
    pub(crate) async fn add_pod_object(&mut self, pod: DemoPod) -> Result<()> {
        self.create(ObjectKind::Pod, objects::pod(&pod)).await?;
        self.pods.insert(pod.name.clone(), pod);
        Ok(())
    }

    /// Deletes the object of a pod. Its namespace stays, as a container does during its grace period.
    pub(crate) async fn delete_pod_object(&mut self, name: &str) -> Result<()> {
        self.api(ObjectKind::Pod)
            .delete(name, &DeleteParams::default().grace_period(0))
            .await
            .context("deleting a pod")?;
        Ok(())
    }

    /// Removes the namespace of a pod.
    pub(crate) async fn remove_pod(&mut self, name: &str) -> Result<()> {
        self.request(NamespaceRequest::RemovePod { name: name.to_owned() }).await?;
        self.threads.remove(name);
        self.pods.remove(name);
        Ok(())
    }

    /// Creates an object, and its status if it has one.
    pub(crate) async fn create(&self, kind: ObjectKind, object: Value) -> Result<()> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let status = json!({"status": object["status"]});
        let object: DynamicObject = serde_json::from_value(object).context("an object of the demo")?;
        let api = self.api(kind);
        api.create(&PostParams::default(), &object).await.with_context(|| format!("creating {name}"))?;
        if !status["status"].is_null() {
            let patch = kube::api::Patch::Merge(&status);
            let params = kube::api::PatchParams::default();
            api.patch_status(&name, &params, &patch).await.with_context(|| format!("status of {name}"))?;
        }
        Ok(())
    }

    fn api(&self, kind: ObjectKind) -> Api<DynamicObject> {
        match kind {
            ObjectKind::Node => Api::all_with(self.client.clone(), &kind.resource()),
            _ => Api::namespaced_with(self.client.clone(), NAMESPACE, &kind.resource()),
        }
    }

    /// Applies the next watch event to the cache. Cancel safe.
    pub(crate) async fn follow(&mut self) {
        let event = self.feed.next().await;
        for change in self.mirror.read(event) {
            self.mirror.apply(change);
        }
    }

    /// Applies the next watch event to the cache, or returns a restarted process. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<ProcessRestart> {
        let event = tokio::select! {
            biased;
            restarted = self.namespaces.restarted() => return Some(restarted),
            event = self.feed.next() => event,
        };
        for change in self.mirror.read(event) {
            self.mirror.apply(change);
        }
        None
    }

    /// Follows the watch until there is a quiet period, so that controllers and nodes have seen all changes.
    pub(crate) async fn until_quiet(&mut self) {
        let start = self.clock.now();
        while self.clock.since(start) < MAX_QUIET_WAIT
            && tokio::time::timeout(QUIET_PERIOD, self.follow()).await.is_ok()
        {}
    }

    /// Follows the watch until a condition holds.
    pub(crate) async fn until(&mut self, what: &str, done: impl Fn(&Snapshot) -> bool) -> Result<()> {
        let start = self.clock.now();
        while !(self.mirror.has_listed(&WATCHED) && done(self.mirror.snapshot())) {
            let left = TIMEOUT.checked_sub(self.clock.since(start));
            let left = left.with_context(|| format!("timed out after 60 s waiting for {what}"))?;
            // The next iteration reports the timeout.
            let _ = tokio::time::timeout(left, self.follow()).await;
        }
        Ok(())
    }

    /// Waits until every node says in its Lease that it has programmed the slices that are there now.
    pub(crate) async fn until_programmed(&self) -> Result<()> {
        let slices = self.mirror.snapshot().services().flat_map(|(_, slices)| slices);
        let newest = slices.filter_map(|slice| slice.resource_version.as_ref()?.parse::<u64>().ok()).max();
        let leases: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), "kube-system", &ObjectKind::Lease.resource());
        let start = self.clock.now();
        for node in layout::nodes() {
            let lease = format!("zoneward-node-{}", node.name);
            loop {
                let found = leases.get_opt(&lease).await.context("reading a node's Lease")?;
                let programmed = found.and_then(|lease| {
                    lease.metadata.annotations?.get(annotation::PROGRAMMED_REVISION)?.parse::<u64>().ok()
                });
                if programmed >= newest {
                    break;
                }
                if self.clock.since(start) > TIMEOUT {
                    bail!(
                        "node {} did not program its rules within 60 s: see {}/logs/{}.log",
                        node.name,
                        self.folder.display(),
                        node.name
                    );
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    /// When the proxy of a node renewed its Lease last; empty if it has none.
    pub(crate) async fn lease_renewed(&self, node: &str) -> Result<String> {
        let leases: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), "kube-system", &ObjectKind::Lease.resource());
        let found = leases.get_opt(&format!("{}{node}", annotation::NODE_LEASE_PREFIX)).await;
        let found = found.context("reading a node's Lease")?;
        let time = found.as_ref().and_then(|lease| lease.data["spec"]["renewTime"].as_str());
        Ok(time.unwrap_or_default().to_owned())
    }

    /// Cluster IP and first TCP port of a Service.
    pub(crate) fn address(&self, service: &ServiceKey, family: Family) -> Result<SocketAddr> {
        let object = self.snapshot().service(service);
        let object = object.with_context(|| format!("there is no Service {service}; {}", self.services()))?;
        let ip = object.cluster_ips.addresses().iter().find(|ip| Family::of(**ip) == family);
        let ip = ip.with_context(|| format!("Service {service} has no cluster IP of family {family}"))?;
        let port = object.ports.iter().find(|port| port.protocol == Protocol::Tcp);
        let port = port.with_context(|| format!("Service {service} has no TCP port"))?;
        Ok(SocketAddr::new(*ip, port.port))
    }

    fn services(&self) -> String {
        let names: Vec<String> = self.snapshot().services().map(|(s, _)| s.key.name.to_string()).collect();
        format!("there are {}", names.join(", "))
    }

    pub(crate) fn zone(&self, pod: &str) -> Option<&'static str> {
        self.pods.get(pod).map(|pod| pod.node.zone)
    }

    pub(crate) fn version(&self, pod: &str) -> Option<&'static str> {
        self.pods.get(pod).and_then(|pod| pod.version)
    }

    pub(crate) fn node_of(&self, pod: &str) -> Option<String> {
        self.pods.get(pod).map(|pod| pod.node.name.clone())
    }

    pub(crate) fn clients(&self) -> Vec<TrafficClient> {
        let clients = self.pods.values().filter(|pod| pod.app == "client");
        clients.filter_map(|pod| self.traffic_client(&pod.name)).collect()
    }

    pub(crate) fn traffic_client(&self, name: &str) -> Option<TrafficClient> {
        let pod = self.pods.get(name)?;
        Some(TrafficClient { pod: pod.name.clone(), node: pod.node.name.clone(), zone: pod.node.zone })
    }

    /// All pods with a namespace.
    pub(crate) fn all_pods(&self) -> Vec<DemoPod> {
        self.pods.values().cloned().collect()
    }

    pub(crate) fn pods_of(&self, app: &str) -> Vec<DemoPod> {
        self.pods.values().filter(|pod| pod.app == app).cloned().collect()
    }

    pub(crate) fn has_object(&self, pod: &str) -> bool {
        self.snapshot().pods().any(|known| known.key.name == pod && known.key.namespace == NAMESPACE)
    }

    /// The planned traffic of a Service, by the function that nodes use.
    pub(crate) fn planned(
        &self,
        service: &ServiceKey,
        family: Family,
        clients: &[TrafficClient],
    ) -> PlannedTraffic {
        let mut planned = PlannedTraffic::default();
        let snapshot = self.snapshot();
        let Some(object) = snapshot.service(service) else { return planned };
        let Some(port) = object.ports.iter().find(|port| port.protocol == Protocol::Tcp) else {
            return planned;
        };
        planned.endpoints = self.ready_endpoints(service, family);
        let pod_of: BTreeMap<IpAddr, &DemoPod> =
            (self.pods.values()).map(|pod| (layout::pod(pod.node.number, pod.number, family), pod)).collect();
        let targets = |client: &TrafficClient| self.targets(service, port, family, client);
        let sending = |zone: &str| {
            clients.iter().filter(|c| c.zone == zone && !targets(c).is_empty()).count().max(1) as f64
        };
        let all_sending = clients.iter().filter(|client| !targets(client).is_empty()).count().max(1) as f64;
        for client in clients {
            let targets = targets(client);
            let row = planned.zones.entry(client.zone.to_owned()).or_default();
            if targets.is_empty() {
                planned.refusing.insert(client.zone.to_owned());
            }
            let sum: f64 = targets.iter().map(|(_, weight)| weight).sum();
            let in_zone = sending(client.zone);
            for (address, weight) in targets {
                let pod = pod_of.get(&address);
                let to = pod.map_or("elsewhere", |pod| pod.node.zone).to_owned();
                *row.entry(to).or_default() += weight / sum / in_zone;
                let name = pod.map_or_else(|| address.to_string(), |pod| pod.name.clone());
                *planned.pods.entry(name).or_default() += weight / sum / all_sending;
            }
        }
        planned
    }

    /// The endpoints that the node of a client selects, with their weights.
    fn targets(
        &self,
        service: &ServiceKey,
        port: &ServicePort,
        family: Family,
        client: &TrafficClient,
    ) -> Vec<(IpAddr, f64)> {
        let snapshot = self.snapshot();
        let Some(object) = snapshot.service(service) else { return Vec::new() };
        let view = NodeView { name: &client.node, zone: Some(client.zone), gates: FeatureGates::ALL };
        let selected = select(object, snapshot.slices(service), family, &view);
        let of_port =
            selected.into_iter().find(|s| s.port.name == port.name && s.port.protocol == port.protocol);
        let set = of_port.and_then(|selection| match object.internal_policy {
            TrafficPolicy::Cluster => selection.cluster,
            TrafficPolicy::Local => selection.local,
        });
        let endpoints = set.into_iter().flat_map(|set| set.endpoints);
        endpoints.map(|target| (target.address.ip(), target.weight)).collect()
    }

    fn ready_endpoints(&self, service: &ServiceKey, family: Family) -> usize {
        let slices = self.snapshot().slices(service).iter();
        let of_family = slices.filter(|slice| slice.content.address_type == AddressType::Ip(family));
        let endpoints = of_family.flat_map(|slice| &slice.content.endpoints);
        endpoints.filter(|endpoint| endpoint.conditions.is_ready()).count()
    }

    /// Captures the cluster in `snapshot.yaml` for `simulate what-if -f`, before the steps change it.
    pub(crate) async fn capture(&self) -> Result<()> {
        let program = std::env::current_exe().context("path of this program")?;
        let mut command = Command::new(program);
        command.args(["simulate", "capture", "-A", "--kubeconfig"]).arg(&self.kubeconfig);
        let run = command.arg(self.folder.join("snapshot.yaml")).output().await.context("capturing")?;
        if !run.status.success() {
            bail!("capturing the cluster: {}", String::from_utf8_lossy(&run.stderr).trim());
        }
        Ok(())
    }

    /// Writes the state that commands for a running demo read.
    pub(crate) fn write_state(&self) -> Result<()> {
        let nodes = layout::nodes().into_iter().map(|node| (node.name.clone(), node.name));
        let pods = self.pods.values().map(|pod| (pod.name.clone(), pod.node.name.clone()));
        let nodes: BTreeMap<String, String> = nodes.chain(pods).collect();
        let state = json!({
            "demo": std::process::id(), "started": self.started.to_string(),
            "pid": self.namespaces.pid(), "api": self.api.id(), "threads": self.threads,
            "nodes": nodes, "processes": self.processes,
        });
        // Atomically: commands read it while processes are restarted.
        let (new, path) = (self.folder.join("namespaces.json.new"), self.folder.join("namespaces.json"));
        let written = std::fs::write(&new, state.to_string()).and_then(|()| std::fs::rename(&new, &path));
        written.with_context(|| format!("{}", path.display()))
    }

    /// Stops all processes.
    pub(crate) async fn stop(mut self) -> Result<()> {
        self.namespaces.stop().await?;
        stop(&mut self.api).await
    }
}

/// A Service of the demo.
pub(crate) fn key(service: &str) -> ServiceKey {
    ServiceKey::new(&Name::new(NAMESPACE), &Name::new(service))
}

/// The kubeconfig for kubectl and `zoneward` in a namespace, which use the relay to the API.
pub(crate) fn inner_kubeconfig(folder: &Path) -> PathBuf {
    folder.join("namespaces.kubeconfig")
}

fn write_inner_kubeconfig(folder: &Path) -> Result<()> {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "demo",
        "clusters": [{"name": "demo", "cluster": {"server": format!("http://127.0.0.1:{API_PORT}")}}],
        "contexts": [{"name": "demo", "context": {"cluster": "demo", "user": "demo", "namespace": NAMESPACE}}],
        "users": [{"name": "demo", "user": {}}],
    });
    let path = inner_kubeconfig(folder);
    std::fs::write(&path, config.to_string()).with_context(|| format!("{}", path.display()))
}

async fn stop(api: &mut Child) -> Result<()> {
    if let Some(pid) = api.id() {
        // It may have exited already.
        let _ = kill(Pid::from_raw(pid as i32), Signal::SIGTERM);
    }
    api.wait().await.context("waiting for the API")?;
    Ok(())
}

/// USD per GB between zones, as on AWS.
pub(crate) const PRICE: &str = "0.02";

/// Starts `zoneward up`, which is ready when it prints the path of its kubeconfig.
async fn start_api(folder: &Path, program: Option<&Path>) -> Result<(Child, PathBuf)> {
    let log = folder.join("logs/api.log");
    let errors = std::fs::File::create(&log).with_context(|| format!("{}", log.display()))?;
    // An earlier version, which an upgrade starts with, may not know the flag.
    let price: &[&str] = if program.is_none() { &["--price", PRICE] } else { &[] };
    let program = match program {
        Some(program) => program.to_owned(),
        None => std::env::current_exe().context("path of this program")?,
    };
    let mut child = Command::new(program)
        // Gateways run in namespaces, not beside the API.
        .args(["up", "--no-node", "--no-mesh", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(folder.join("data"))
        .args(price)
        // It exits when this pipe is closed, even if this process is killed.
        .env(supervisor::PARENT_PIPE_ENV, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(errors)
        .kill_on_drop(true)
        .process_group(0)
        .spawn()
        .context("starting the API")?;
    let output = child.stdout.take().context("stdout is piped")?;
    let mut lines = BufReader::new(output).lines();
    match lines.next_line().await.context("reading the output of the API")? {
        Some(kubeconfig) => Ok((child, kubeconfig.into())),
        None => {
            bail!("the API failed to start: {}", std::fs::read_to_string(&log).unwrap_or_default().trim())
        }
    }
}
