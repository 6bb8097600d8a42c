//! Everything that runs: the API with its controllers as a process on the host's side, the stage with its nodes and
//! pods, and a mirror of what the API holds.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, PostParams};
use model::{Family, Name, ServiceKey, Snapshot, annotation};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use plan::FeatureGates;
use plan::select::{NodeView, select};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::director::Director;
use super::layout::{self, Node, POD_RANGES};
use super::objects::{self, NAMESPACE, Pod, SERVICE_PORT};
use super::protocol::Request;
use crate::children;
use crate::cluster::{self, Connection, Feed, Kind, Mirror, Wanted};

const WATCHED: [Kind; 4] = [Kind::Service, Kind::Slice, Kind::Node, Kind::Pod];
const PATIENCE: Duration = Duration::from_secs(30);

/// Shares of traffic: from a zone, to a zone.
pub type Shares = BTreeMap<String, BTreeMap<String, f64>>;

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
    feed: Feed,
    mirror: Mirror,
    pods: BTreeMap<String, Pod>,
    /// Threads of the stage, by node or pod: how `demo exec` finds their namespaces.
    threads: BTreeMap<String, i32>,
}

impl World {
    /// Starts the API and the stage; nodes and pods come later.
    pub async fn start(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder.join("logs")).with_context(|| format!("{}", folder.display()))?;
        let stage = Director::start(&folder.join("logs/stage.log"))?;
        let (api, kubeconfig) = start_api(folder).await?;
        let socket = folder.join("data/api.sock");
        let connection = Connection { api_socket: Some(socket), ..Connection::default() };
        let client = cluster::connect(&connection).await?;
        let feed = Feed::start(&client, WATCHED.map(Wanted::all));
        Ok(Self {
            folder: folder.to_owned(),
            kubeconfig,
            stage,
            api,
            client,
            feed,
            mirror: Mirror::default(),
            pods: BTreeMap::new(),
            threads: BTreeMap::new(),
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
        self.create(Kind::Node, objects::node(node)).await
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

    /// Starts a node's proxy.
    pub async fn start_proxy(&self, node: &Node) -> Result<()> {
        let socket = self.folder.join("data/api.sock");
        let arguments = [
            "node",
            "--api-socket",
            &socket.display().to_string(),
            "--hostname-override",
            &node.name,
            "--proxy-mode",
            "nftables",
            "--cluster-cidr",
            &POD_RANGES.join(","),
        ];
        let arguments = arguments.map(str::to_owned).to_vec();
        let log = self.folder.join(format!("logs/{}.log", node.name));
        self.ask(Request::StartProcess { node: node.name.clone(), arguments, log }).await?;
        Ok(())
    }

    /// Makes a pod: first its namespace, so that it answers when the API says that it is ready.
    pub async fn add_pod(&mut self, pod: Pod) -> Result<()> {
        let (name, node) = (pod.name.clone(), pod.node.name.clone());
        let thread = self.ask(Request::AddPod { name, node, number: pod.number }).await?;
        self.threads.extend(thread.map(|thread| (pod.name.clone(), thread)));
        self.create(Kind::Pod, objects::pod(&pod)).await?;
        self.pods.insert(pod.name.clone(), pod);
        Ok(())
    }

    /// Says that a pod is gone. Its namespace stays for a while, as a container has a grace period.
    pub async fn forget_pod(&mut self, name: &str) -> Result<()> {
        self.api(Kind::Pod)
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
    pub async fn create(&self, kind: Kind, object: Value) -> Result<()> {
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

    fn api(&self, kind: Kind) -> Api<DynamicObject> {
        match kind {
            Kind::Node => Api::all_with(self.client.clone(), &kind.resource()),
            _ => Api::namespaced_with(self.client.clone(), NAMESPACE, &kind.resource()),
        }
    }

    /// Follows the API until something is so.
    pub async fn until(&mut self, what: &str, done: impl Fn(&Snapshot) -> bool) -> Result<()> {
        let start = Instant::now();
        while !(self.mirror.has_listed(&WATCHED) && done(self.mirror.snapshot())) {
            let left = PATIENCE.checked_sub(start.elapsed());
            let left = left.with_context(|| format!("waited 30 s for this and it did not come: {what}"))?;
            let Ok(event) = tokio::time::timeout(left, self.feed.next()).await else { continue };
            for change in self.mirror.read(event) {
                self.mirror.apply(change);
            }
        }
        Ok(())
    }

    /// Waits until every node says in its Lease that it has programmed the slices that are there now.
    pub async fn until_programmed(&self) -> Result<()> {
        let slices = self.mirror.snapshot().services().flat_map(|(_, slices)| slices);
        let newest = slices.filter_map(|slice| slice.resource_version.as_ref()?.parse::<u64>().ok()).max();
        let leases: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), "kube-system", &Kind::Lease.resource());
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

    /// Where a Service is reached.
    pub fn address(&self, service: &str, family: Family) -> Result<SocketAddr> {
        let service =
            self.snapshot().service(&key(service)).with_context(|| format!("no Service {service}"))?;
        let ip = service.cluster_ips.addresses().iter().find(|ip| Family::of(**ip) == family);
        Ok(SocketAddr::new(*ip.context("a Service without an address of this family")?, SERVICE_PORT))
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

    /// The client pods, with their zones.
    pub fn clients(&self) -> Vec<(String, &'static str)> {
        let clients = self.pods.values().filter(|pod| pod.app == "client");
        clients.map(|pod| (pod.name.clone(), pod.node.zone)).collect()
    }

    /// The pods of an app.
    pub fn pods_of(&self, app: &str) -> Vec<Pod> {
        self.pods.values().filter(|pod| pod.app == app).cloned().collect()
    }

    /// Where a Service's traffic should go, by the same function that the nodes call. A zone that may go nowhere has
    /// no shares.
    pub fn expected(&self, service: &str, family: Family) -> Shares {
        let snapshot = self.snapshot();
        let zone_of: BTreeMap<IpAddr, &str> = self
            .pods
            .values()
            .map(|pod| (layout::pod(pod.node.number, pod.number, family), pod.node.zone))
            .collect();
        let mut shares = Shares::new();
        let Some(object) = snapshot.service(&key(service)) else { return shares };
        let nodes = layout::nodes();
        for node in &nodes {
            let view = NodeView { name: &node.name, zone: Some(node.zone), gates: FeatureGates::default() };
            let per_zone = nodes.iter().filter(|n| n.zone == node.zone).count() as f64;
            let selected = select(object, snapshot.slices(&object.key), family, &view);
            let targets = selected.into_iter().filter_map(|port| port.cluster).flat_map(|set| set.endpoints);
            let targets: Vec<_> = targets.collect();
            let all: f64 = targets.iter().map(|target| target.weight).sum();
            let row = shares.entry(node.zone.to_owned()).or_default();
            for target in targets {
                let to = zone_of.get(&target.address.ip()).copied().unwrap_or("elsewhere");
                *row.entry(to.to_owned()).or_default() += target.weight / all / per_zone;
            }
        }
        shares
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
        let places = json!({"pid": self.stage.pid(), "api": self.api.id(), "threads": self.threads});
        let path = self.folder.join("places.json");
        std::fs::write(&path, places.to_string()).with_context(|| format!("{}", path.display()))
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

fn key(service: &str) -> ServiceKey {
    ServiceKey::new(&Name::new(NAMESPACE), &Name::new(service))
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
        .env(children::PARENT, "1")
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
