//! Everything that runs: the API with its controllers as a process on the host's side, the stage with its nodes and
//! pods, and a mirror of what the API holds.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clock::Clock;
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

use super::director::Director;
use super::layout::{self, API_PORT, Node, POD_RANGES};
use super::measure::{Client as Sender, Planned};
use super::objects::{self, NAMESPACE, Pod};
use super::protocol::{Request, Restarted};
use cluster::supervisor;
use cluster::{Connection, ResourceKind, WatchCache, WatchSpec, WatchStream};

const WATCHED: [ResourceKind; 4] =
    [ResourceKind::Service, ResourceKind::Slice, ResourceKind::Node, ResourceKind::Pod];
const PATIENCE: Duration = Duration::from_secs(30);

/// Changes count as arrived everywhere when none came for this long.
const QUIET: Duration = Duration::from_secs(1);
/// Changes that never cease are not waited for longer than this.
const LONGEST_CHANGE: Duration = Duration::from_secs(10);

/// Everything that runs.
pub struct World {
    /// Where the API keeps its data, and logs are.
    pub folder: PathBuf,
    /// The kubeconfig of the API.
    pub kubeconfig: PathBuf,
    /// The namespaces.
    pub stage: Director,
    api: Child,
    client: Client,
    feed: WatchStream,
    mirror: WatchCache,
    pods: BTreeMap<String, Pod>,
    /// Threads of the stage, by node or pod: how `demo exec` finds their namespaces.
    threads: BTreeMap<String, i32>,
    /// The node proxies and sidecars, by node or pod.
    processes: BTreeMap<String, i32>,
}

impl World {
    /// Starts the API and the stage; nodes and pods come later.
    pub async fn start(folder: &Path) -> Result<Self> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder.join("logs"))
            .with_context(|| format!("{}", folder.display()))?;
        // Children are given paths below it.
        let folder = &std::path::absolute(folder).with_context(|| format!("{}", folder.display()))?;
        let socket = folder.join("data/api.sock");
        let stage = Director::start(&socket, &folder.join("logs/stage.log"))?;
        let (api, kubeconfig) = start_api(folder).await?;
        write_inner_kubeconfig(folder)?;
        let connection = Connection { api_socket: Some(socket), ..Connection::default() };
        let client = cluster::connect(&connection, &Clock::system()).await?;
        let feed = WatchStream::start(&client, Random::seeded(clock::os_seed()), WATCHED.map(WatchSpec::all));
        Ok(Self {
            folder: folder.to_owned(),
            kubeconfig,
            stage,
            api,
            client,
            feed,
            mirror: WatchCache::default(),
            pods: BTreeMap::new(),
            threads: BTreeMap::new(),
            processes: BTreeMap::new(),
        })
    }

    /// What the API holds, as far as it has been heard of.
    pub fn snapshot(&self) -> &Snapshot {
        self.mirror.snapshot()
    }

    /// Makes a node: its namespace and its object. Its proxy is started by [`World::start_proxy`].
    pub async fn add_node(&mut self, node: &Node) -> Result<()> {
        let request = Request::AddNode { name: node.name.clone(), number: node.number };
        let thread = self.ask(request).await?;
        self.threads.extend(thread.map(|thread| (node.name.clone(), thread)));
        self.create(ResourceKind::Node, objects::node(node)).await
    }

    /// Asks the stage; if that cannot be done, its log may know more.
    async fn ask(&self, request: Request) -> Result<Option<i32>> {
        let asked = self.stage.ask(request).await;
        asked.map_err(|error| {
            let log = std::fs::read_to_string(self.folder.join("logs/stage.log")).unwrap_or_default();
            match log.trim() {
                "" => error,
                log => error.context(log.to_owned()),
            }
        })
    }

    /// Starts a node's proxy. What a namespace cannot set (the machine's connection tracking limit, a better
    /// standing with the OOM killer) it is not asked to set.
    pub async fn start_proxy(&mut self, node: &Node) -> Result<()> {
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
        self.start_process(&node.name, arguments, &format!("{}.log", node.name)).await
    }

    /// Starts a process in the namespace of a node or pod.
    pub async fn start_process(&mut self, place: &str, arguments: Vec<String>, log: &str) -> Result<()> {
        let log = self.folder.join("logs").join(log);
        let pid = self.ask(Request::StartProcess { node: place.to_owned(), arguments, log }).await?;
        self.processes.extend(pid.map(|pid| (place.to_owned(), pid)));
        Ok(())
    }

    /// Remembers the successor of a process, for those who read where it is.
    pub fn restarted(&mut self, restarted: &Restarted) -> Result<()> {
        self.processes.insert(restarted.place.clone(), restarted.pid);
        self.write_places()
    }

    /// Makes a pod: first its namespace, so that it answers when the API says that it is ready.
    pub async fn add_pod(&mut self, pod: Pod) -> Result<()> {
        let (name, node, zone) = (pod.name.clone(), pod.node.name.clone(), pod.node.zone.to_owned());
        let thread = self.ask(Request::AddPod { name, node, zone, number: pod.number }).await?;
        self.threads.extend(thread.map(|thread| (pod.name.clone(), thread)));
        self.create(ResourceKind::Pod, objects::pod(&pod)).await?;
        self.pods.insert(pod.name.clone(), pod);
        Ok(())
    }

    /// Says that a pod is gone. Its namespace stays for a while, as a container has a grace period.
    pub async fn forget_pod(&mut self, name: &str) -> Result<()> {
        self.api(ResourceKind::Pod)
            .delete(name, &DeleteParams::default().grace_period(0))
            .await
            .context("deleting a pod")?;
        Ok(())
    }

    /// Takes a pod's namespace away.
    pub async fn remove_pod(&mut self, name: &str) -> Result<()> {
        self.ask(Request::RemovePod { name: name.to_owned() }).await?;
        self.threads.remove(name);
        self.pods.remove(name);
        Ok(())
    }

    /// Creates an object, and its status where it has one.
    pub async fn create(&self, kind: ResourceKind, object: Value) -> Result<()> {
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

    fn api(&self, kind: ResourceKind) -> Api<DynamicObject> {
        match kind {
            ResourceKind::Node => Api::all_with(self.client.clone(), &kind.resource()),
            _ => Api::namespaced_with(self.client.clone(), NAMESPACE, &kind.resource()),
        }
    }

    /// Follows the API; it may be dropped and called again.
    pub async fn follow(&mut self) {
        let event = self.feed.next().await;
        for change in self.mirror.read(event) {
            self.mirror.apply(change);
        }
    }

    /// Follows the API, and returns a process that was restarted meanwhile; it may be dropped and called again.
    pub async fn next(&mut self) -> Option<Restarted> {
        let event = tokio::select! {
            restarted = self.stage.restarted() => return Some(restarted),
            event = self.feed.next() => event,
        };
        for change in self.mirror.read(event) {
            self.mirror.apply(change);
        }
        None
    }

    /// Follows the API until it is quiet, so that controllers and nodes have seen what was changed last.
    pub async fn until_quiet(&mut self) {
        let start = Instant::now();
        while start.elapsed() < LONGEST_CHANGE && tokio::time::timeout(QUIET, self.follow()).await.is_ok() {}
    }

    /// Follows the API until something is so.
    pub async fn until(&mut self, what: &str, done: impl Fn(&Snapshot) -> bool) -> Result<()> {
        let start = Instant::now();
        while !(self.mirror.has_listed(&WATCHED) && done(self.mirror.snapshot())) {
            let left = PATIENCE.checked_sub(start.elapsed());
            let left = left.with_context(|| format!("waited 30 s for this and it did not come: {what}"))?;
            // The end of the wait is noticed at the next turn.
            let _ = tokio::time::timeout(left, self.follow()).await;
        }
        Ok(())
    }

    /// Waits until every node says in its Lease that it has programmed the slices that are there now.
    pub async fn until_programmed(&self) -> Result<()> {
        let slices = self.mirror.snapshot().services().flat_map(|(_, slices)| slices);
        let newest = slices.filter_map(|slice| slice.resource_version.as_ref()?.parse::<u64>().ok()).max();
        let leases: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), "kube-system", &ResourceKind::Lease.resource());
        let start = Instant::now();
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
                if start.elapsed() > PATIENCE {
                    bail!(
                        "node {} did not program the kernel within 30 s: see {}/logs/{}.log",
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

    /// Where a Service is reached: its first TCP port.
    pub fn address(&self, service: &ServiceKey, family: Family) -> Result<SocketAddr> {
        let object = self.snapshot().service(service);
        let object = object.with_context(|| format!("there is no Service {service}; {}", self.services()))?;
        let ip = object.cluster_ips.addresses().iter().find(|ip| Family::of(**ip) == family);
        let ip = ip.with_context(|| format!("Service {service} has no cluster IP of family {family}"))?;
        let port = object.ports.iter().find(|port| port.protocol == Protocol::Tcp);
        let port = port.with_context(|| format!("Service {service} has no TCP port"))?;
        Ok(SocketAddr::new(*ip, port.port))
    }

    /// The Services that there are, for a sentence.
    fn services(&self) -> String {
        let names: Vec<String> = self.snapshot().services().map(|(s, _)| s.key.name.to_string()).collect();
        format!("there are {}", names.join(", "))
    }

    /// The zone of a pod.
    pub fn zone(&self, pod: &str) -> Option<&'static str> {
        self.pods.get(pod).map(|pod| pod.node.zone)
    }

    /// The version of a pod.
    pub fn version(&self, pod: &str) -> Option<&'static str> {
        self.pods.get(pod).and_then(|pod| pod.version)
    }

    /// The node of a pod.
    pub fn node_of(&self, pod: &str) -> Option<String> {
        self.pods.get(pod).map(|pod| pod.node.name.clone())
    }

    /// The client pods.
    pub fn clients(&self) -> Vec<Sender> {
        let clients = self.pods.values().filter(|pod| pod.app == "client");
        clients.filter_map(|pod| self.sender(&pod.name)).collect()
    }

    /// A pod, as one that sends requests.
    pub fn sender(&self, name: &str) -> Option<Sender> {
        let pod = self.pods.get(name)?;
        Some(Sender { pod: pod.name.clone(), node: pod.node.name.clone(), zone: pod.node.zone })
    }

    /// Every pod that has a namespace.
    pub fn all_pods(&self) -> Vec<Pod> {
        self.pods.values().cloned().collect()
    }

    /// The pods of an app.
    pub fn pods_of(&self, app: &str) -> Vec<Pod> {
        self.pods.values().filter(|pod| pod.app == app).cloned().collect()
    }

    /// Whether the API still has a pod.
    pub fn has_object(&self, pod: &str) -> bool {
        self.snapshot().pods().any(|known| known.key.name == pod && known.key.namespace == NAMESPACE)
    }

    /// Where a Service's traffic should go, by the same function that the nodes call.
    pub fn planned(&self, service: &ServiceKey, family: Family, clients: &[Sender]) -> Planned {
        let mut planned = Planned::default();
        let snapshot = self.snapshot();
        let Some(object) = snapshot.service(service) else { return planned };
        let Some(port) = object.ports.iter().find(|port| port.protocol == Protocol::Tcp) else {
            return planned;
        };
        planned.endpoints = self.endpoints(service, family);
        let pod_of: BTreeMap<IpAddr, &Pod> =
            (self.pods.values()).map(|pod| (layout::pod(pod.node.number, pod.number, family), pod)).collect();
        let targets = |client: &Sender| self.targets(service, port, family, client);
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

    /// The endpoints that the node of a client sends to, with their weights.
    fn targets(
        &self,
        service: &ServiceKey,
        port: &ServicePort,
        family: Family,
        client: &Sender,
    ) -> Vec<(IpAddr, f64)> {
        let snapshot = self.snapshot();
        let Some(object) = snapshot.service(service) else { return Vec::new() };
        let view = NodeView { name: &client.node, zone: Some(client.zone), gates: FeatureGates::default() };
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

    /// How many ready endpoints a Service has.
    fn endpoints(&self, service: &ServiceKey, family: Family) -> usize {
        let slices = self.snapshot().slices(service).iter();
        let of_family = slices.filter(|slice| slice.content.address_type == AddressType::Ip(family));
        let endpoints = of_family.flat_map(|slice| &slice.content.endpoints);
        endpoints.filter(|endpoint| endpoint.conditions.is_ready()).count()
    }

    /// Writes what the API holds into `snapshot.yaml`, for `simulate what-if -f`: the acts change the cluster.
    pub async fn capture(&self) -> Result<()> {
        let program = std::env::current_exe().context("finding our own program")?;
        let mut command = Command::new(program);
        command.args(["simulate", "capture", "-A", "--kubeconfig"]).arg(&self.kubeconfig);
        let run = command.arg(self.folder.join("snapshot.yaml")).output().await.context("capturing")?;
        if !run.status.success() {
            bail!("capturing the cluster: {}", String::from_utf8_lossy(&run.stderr).trim());
        }
        Ok(())
    }

    /// What `demo exec` needs to know.
    pub fn write_places(&self) -> Result<()> {
        let nodes = layout::nodes().into_iter().map(|node| (node.name.clone(), node.name));
        let pods = self.pods.values().map(|pod| (pod.name.clone(), pod.node.name.clone()));
        let nodes: BTreeMap<String, String> = nodes.chain(pods).collect();
        let places = json!({
            "pid": self.stage.pid(), "api": self.api.id(), "threads": self.threads,
            "nodes": nodes, "processes": self.processes,
        });
        // Whole at any moment: commands read it while processes are restarted.
        let (new, path) = (self.folder.join("places.json.new"), self.folder.join("places.json"));
        let written = std::fs::write(&new, places.to_string()).and_then(|()| std::fs::rename(&new, &path));
        written.with_context(|| format!("{}", path.display()))
    }

    /// Ends everything.
    pub async fn end(mut self) -> Result<()> {
        self.stage.end().await?;
        if let Some(pid) = self.api.id() {
            // It may have ended by itself.
            let _ = kill(Pid::from_raw(pid as i32), Signal::SIGTERM);
        }
        self.api.wait().await.context("waiting for the API")?;
        Ok(())
    }
}

/// A Service of the demo.
pub fn key(service: &str) -> ServiceKey {
    ServiceKey::new(&Name::new(NAMESPACE), &Name::new(service))
}

/// For kubectl and `zoneward` in a namespace: see `stage/relay.rs`.
pub fn inner_kubeconfig(folder: &Path) -> PathBuf {
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

/// `zoneward up` for the demo, ready when it has printed where its kubeconfig is.
async fn start_api(folder: &Path) -> Result<(Child, PathBuf)> {
    let log = folder.join("logs/api.log");
    let errors = std::fs::File::create(&log).with_context(|| format!("{}", log.display()))?;
    let program = std::env::current_exe().context("finding our own program")?;
    let mut child = Command::new(program)
        .args(["up", "--no-node", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(folder.join("data"))
        // It ends when this pipe does, however we end.
        .env(supervisor::PARENT_PIPE_ENV, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(errors)
        .kill_on_drop(true)
        .process_group(0)
        .spawn()
        .context("starting the API")?;
    let output = child.stdout.take().context("the API's output was asked for")?;
    let mut lines = BufReader::new(output).lines();
    match lines.next_line().await.context("hearing from the API")? {
        Some(kubeconfig) => Ok((child, kubeconfig.into())),
        None => bail!("the API did not start: {}", std::fs::read_to_string(&log).unwrap_or_default().trim()),
    }
}
