//! What a cluster costs as a whole: a fleet of simulated nodes, which are watch clients without kernels, the embedded API
//! and two controllers, each in processes of their own. `cargo xtask bench scale`.
//!
//! ```text
//! this process --pods--> API <--watch-- controller (leader), controller (standby)
//!                         |
//!                         +--watch of slices--> fleet processes, some hundred nodes each
//! ```
//!
//! Options after `--`: `--nodes N`, `--services N`, `--pods N` (of each Service), `--rolling N` (pods; 0 for single changes
//! alone), `--json` and `--managed-fields` (what nodes ask for, instead of protobuf without managedFields), `--selector TEXT`
//! (of the nodes' watches; `{zone}` is the node's zone; repeated for a second watch) and `--controller-flag TEXT`.
//! `--subsetting` measures twice, with all slices for all nodes and with slices by zone, and has Services that are large
//! enough for them. `--memory N,N` measures the memory of a controller alone.

#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, reason = "a bench that cannot go on ends here")]

mod api;
mod fleet;
mod fleet_client;
mod objects;
mod process;
mod scenarios;

use std::path::PathBuf;

use process::{Running, private_memory};
use scenarios::Figures;

/// The cluster that figures are scaled to.
const WHOLE_NODES: usize = 5_000;
const WHOLE_ROLLING: usize = 20_000;
const WHOLE_ENDPOINTS: usize = 1_000_000;
/// The part of it that two cores carry.
const FACTOR: usize = 10;
const PODS: usize = 10;
/// A Service has slices by zone from 100 endpoints on.
const SUBSET_PODS: usize = 300;
/// Says to a child what it is.
const ROLE: &str = "ZONEWARD_BENCH_ROLE";

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) nodes: usize,
    pub(crate) services: usize,
    pub(crate) pods: usize,
    pub(crate) rolling: usize,
    pub(crate) accept: &'static str,
    pub(crate) selectors: Vec<String>,
    pub(crate) controller_flags: Vec<String>,
    pub(crate) subsetting: bool,
    pub(crate) memory: Vec<usize>,
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match std::env::var(ROLE).as_deref() {
        Ok("api") => runtime.block_on(api::serve()),
        Ok("fleet") => runtime.block_on(fleet::run()),
        _ => runtime.block_on(measure(options())),
    }
}

fn options() -> Options {
    let (mut services, mut pods) = (None, None);
    let mut options = Options {
        nodes: WHOLE_NODES / FACTOR,
        services: 0,
        pods: 0,
        rolling: WHOLE_ROLLING / FACTOR,
        accept: fleet::PROTOBUF,
        selectors: Vec::new(),
        controller_flags: Vec::new(),
        subsetting: false,
        memory: Vec::new(),
    };
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_else(|| panic!("{word} needs a value"));
        match word.as_str() {
            "--nodes" => options.nodes = value().parse().unwrap(),
            "--services" => services = Some(value().parse().unwrap()),
            "--pods" => pods = Some(value().parse().unwrap()),
            "--rolling" => options.rolling = value().parse().unwrap(),
            "--json" => options.accept = fleet::LEAN,
            "--managed-fields" => options.accept = fleet::WHOLE,
            "--selector" => options.selectors.push(value()),
            "--controller-flag" => options.controller_flags.push(value()),
            "--subsetting" => options.subsetting = true,
            "--memory" => options.memory = value().split(',').map(|size| size.parse().unwrap()).collect(),
            other => panic!("unknown option {other}: the head of benches/scale/main.rs lists them"),
        }
    }
    options.pods = pods.unwrap_or(if options.subsetting { SUBSET_PODS } else { PODS });
    options.services = services.unwrap_or(WHOLE_ENDPOINTS / FACTOR / options.pods);
    options
}

async fn measure(options: Options) {
    if !options.memory.is_empty() {
        return controller_memory(&options).await;
    }
    let Options { nodes, services, pods, rolling, .. } = options;
    println!(
        "{nodes} nodes (1/{:.0} of {WHOLE_NODES}), {services} Services x {pods} pods (1/{:.0} of {WHOLE_ENDPOINTS} endpoints), \
         rolling update of {rolling} pods (of {WHOLE_ROLLING}); nodes ask for {}",
        WHOLE_NODES as f64 / nodes as f64,
        WHOLE_ENDPOINTS as f64 / (services * pods) as f64,
        options.accept,
    );
    let all = figures(&options, "all slices").await;
    if !options.subsetting {
        return scenarios::print(&all);
    }
    let mut by_zone = options;
    by_zone.controller_flags.push("--subset-slices".to_owned());
    let label = model::annotation::FOR_ZONE;
    by_zone.selectors = [format!("!{label}"), format!("{label}={{zone}}")]
        .map(|selector| format!("!service.kubernetes.io/headless,{selector}"))
        .to_vec();
    let by_zone = figures(&by_zone, "by zone").await;
    // Each pair of rows is one scenario.
    let pairs = all.into_iter().zip(by_zone).flat_map(|(all, by_zone)| [all, by_zone]);
    scenarios::print(&pairs.collect::<Vec<_>>());
}

async fn figures(options: &Options, view: &'static str) -> Vec<Figures> {
    let mut cluster = Cluster::start(options, options.services).await;
    let slices = cluster.until_written(options.services).await;
    println!("{view}: {slices} slices, controller {:.1} MB private", cluster.leader_memory());
    scenarios::lists(&cluster).await;
    scenarios::run(&mut cluster, options, view).await
}

/// The private memory of a controller by number of Services.
async fn controller_memory(options: &Options) {
    println!("| Services x {} | controller, MB private | kB per Service |", options.pods);
    println!("|---|---|---|");
    for services in &options.memory {
        let cluster = Cluster::start(options, *services).await;
        cluster.until_written(*services).await;
        tokio::time::sleep(std::time::Duration::from_secs(3)).await;
        let memory = cluster.leader_memory();
        println!("| {services} | {memory:.1} | {:.2} |", memory * 1e3 / *services as f64);
    }
}

/// An API with objects, and two controllers.
pub(crate) struct Cluster {
    pub(crate) folder: PathBuf,
    pub(crate) client: kube::Client,
    pub(crate) api: Running,
    pub(crate) leader: Running,
    pub(crate) standby: Running,
}

impl Cluster {
    async fn start(options: &Options, services: usize) -> Cluster {
        let folder = std::env::temp_dir().join(format!("zoneward-bench-scale-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let api = api::start(&folder, services, options.pods);
        let socket = folder.join("api.sock");
        let connection =
            cluster::Connection { api_socket: Some(socket.clone()), ..cluster::Connection::default() };
        let client = cluster::connect(&connection, &clock::Clock::system()).await.unwrap();
        let leader = process::controller(&socket, &options.controller_flags);
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        let standby = process::controller(&socket, &options.controller_flags);
        Cluster { folder, client, api, leader, standby }
    }

    fn leader_memory(&self) -> f64 {
        private_memory(self.leader.id())
    }

    /// Waits until every Service has its slices: their number stays as it is. Returns it.
    async fn until_written(&self, services: usize) -> usize {
        let begin = std::time::Instant::now();
        let mut last = (0, begin);
        loop {
            let count = objects::slice_count(&self.client).await;
            if count != last.0 {
                last = (count, std::time::Instant::now());
            }
            if count >= services && last.1.elapsed().as_secs() >= 3 {
                return count;
            }
            assert!(begin.elapsed().as_secs() < 1_800, "the slices were not written in half an hour");
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
