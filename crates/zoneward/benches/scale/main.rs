//! What a cluster costs as a whole: a fleet of simulated nodes, which are watch clients without kernels, the embedded API
//! and two controllers, each in processes of their own. `cargo xtask bench scale`.
//!
//! ```text
//! this process --pods--> API <--watch-- controller (leader), controller (standby)
//!                         |
//!                         +--watch of slices--> fleet processes, some hundred nodes each
//! ```
//!
//! Options after `--`: `--nodes N`, `--services N` (of ten pods each), `--rolling N` (pods), `--managed-fields` (nodes ask
//! for them), `--selector TEXT` (of the nodes' watches; `{zone}` is the node's zone; repeated for a second watch) and
//! `--controller-flag TEXT`, for comparing with slice subsetting; `--memory N,N` measures the memory of a controller alone.
#![allow(clippy::unwrap_used, reason = "a bench that cannot go on ends here")]

mod api;
mod fleet;
mod fleet_client;
mod objects;
mod process;
mod scenarios;

use std::path::PathBuf;

use process::{Running, private_memory};

/// The cluster that figures are scaled to.
const WHOLE_NODES: usize = 5_000;
const WHOLE_SERVICES: usize = 100_000;
const WHOLE_ROLLING: usize = 20_000;
/// The part of it that two cores carry.
const FACTOR: usize = 10;
/// Says to a child what it is.
const ROLE: &str = "ZONEWARD_BENCH_ROLE";

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) nodes: usize,
    pub(crate) services: usize,
    pub(crate) rolling: usize,
    pub(crate) managed_fields: bool,
    pub(crate) selectors: Vec<String>,
    pub(crate) controller_flags: Vec<String>,
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
    let mut options = Options {
        nodes: WHOLE_NODES / FACTOR,
        services: WHOLE_SERVICES / FACTOR,
        rolling: WHOLE_ROLLING / FACTOR,
        managed_fields: false,
        selectors: Vec::new(),
        controller_flags: Vec::new(),
        memory: Vec::new(),
    };
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_else(|| panic!("{word} needs a value"));
        match word.as_str() {
            "--nodes" => options.nodes = value().parse().unwrap(),
            "--services" => options.services = value().parse().unwrap(),
            "--rolling" => options.rolling = value().parse().unwrap(),
            "--managed-fields" => options.managed_fields = true,
            "--selector" => options.selectors.push(value()),
            "--controller-flag" => options.controller_flags.push(value()),
            "--memory" => options.memory = value().split(',').map(|size| size.parse().unwrap()).collect(),
            other => panic!("unknown option {other}: the head of benches/scale/main.rs lists them"),
        }
    }
    options
}

async fn measure(options: Options) {
    if !options.memory.is_empty() {
        return controller_memory(&options).await;
    }
    let Options { nodes, services, rolling, .. } = options;
    println!(
        "{nodes} nodes (1/{:.0} of {WHOLE_NODES}), {services} Services x {} pods (1/{:.0} of {WHOLE_SERVICES}), rolling update of \
         {rolling} pods (1/{:.0} of {WHOLE_ROLLING})",
        WHOLE_NODES as f64 / nodes as f64,
        objects::PODS,
        WHOLE_SERVICES as f64 / services as f64,
        WHOLE_ROLLING as f64 / rolling as f64,
    );
    let mut cluster = Cluster::start(&options, services).await;
    cluster.until_written(services).await;
    println!("controller: {:.1} MB private, {} Services", cluster.leader_memory(), services);
    scenarios::lists(&cluster).await;
    scenarios::run(&mut cluster, &options).await;
}

/// The private memory of a controller by number of Services.
async fn controller_memory(options: &Options) {
    println!("| Services x {} | controller, MB private | kB per Service |", objects::PODS);
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
        let api = api::start(&folder, services);
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

    /// Waits until every Service has a slice.
    async fn until_written(&self, services: usize) {
        let begin = std::time::Instant::now();
        while objects::slice_count(&self.client).await < services {
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
