//! A server of ours and an Envoy that knows nothing but where it is.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use xds::bootstrap::Bootstrap;
use xds::identity::{Identity, Role};
use xds::resource::{Kind, ResourceSet};
use xds::server::{Ledger, Settings, Source, serve};
use xds::stream::Published;

/// A port that nobody has for now.
pub fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// One configuration for everybody who connects.
struct Same(watch::Sender<Option<Arc<Published>>>);

impl Source for Same {
    fn watch(&self, _: &Identity) -> Result<watch::Receiver<Option<Arc<Published>>>, String> {
        Ok(self.0.subscribe())
    }
}

/// A server of ours.
pub struct Control {
    pub address: SocketAddr,
    pub ledger: Arc<Ledger>,
    source: Arc<Same>,
    stop: watch::Sender<bool>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Control {
    pub fn start(resources: &Arc<ResourceSet>) -> Self {
        Self::start_at(free_port(), resources, Settings::default())
    }

    pub fn start_at(address: SocketAddr, resources: &Arc<ResourceSet>, settings: Settings) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (sender, _) = watch::channel(Some(Arc::new(Published::first(resources.clone()))));
        let source = Arc::new(Same(sender));
        let (stop, stopped) = watch::channel(false);
        let ledger = Arc::new(Ledger::default());
        let listener = runtime.block_on(tokio::net::TcpListener::bind(address)).unwrap();
        runtime.spawn(serve(listener, settings, source.clone(), ledger.clone(), stopped));
        Self { address, ledger, source, stop, runtime: Some(runtime) }
    }

    pub fn publish(&self, resources: &Arc<ResourceSet>) {
        self.source.0.send_modify(|held| {
            let next = held.as_ref().and_then(|held| held.next(resources.clone()));
            if let Some(next) = next {
                *held = Some(Arc::new(next));
            }
        });
    }

    /// How many resources of each kind were sent.
    pub fn sent(&self) -> BTreeMap<Kind, u64> {
        self.ledger.counts().into_iter().map(|(kind, count)| (kind, count.resources)).collect()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(3));
        }
    }
}

/// A running Envoy.
pub struct Envoy {
    child: Child,
    folder: PathBuf,
    pub admin: SocketAddr,
}

/// The Envoy that `cargo xtask test` put below the target directory, else the one on PATH.
fn program() -> PathBuf {
    let tools = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("tools").join("envoy/envoy/_bin/envoy");
    if tools.is_file() { tools } else { PathBuf::from("envoy") }
}

/// Some gateway: the server of these tests serves everybody the same.
pub fn bootstrap(server: SocketAddr) -> Bootstrap {
    Bootstrap {
        identity: Identity {
            namespace: "ns".to_owned(),
            role: Role::Gateway {
                name: "edge".to_owned(),
                bind: "127.0.0.1".parse().unwrap(),
                places: BTreeMap::new(),
            },
            node: String::new(),
            zone: None,
        },
        id: "envoy-1".to_owned(),
        host: server.ip().to_string(),
        port: server.port(),
        tls: None,
        token: None,
        admin: Some(free_port()),
        whole: false,
    }
}

impl Envoy {
    pub fn start(bootstrap: &Bootstrap) -> Self {
        let admin = bootstrap.admin.unwrap();
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!(
            "envoy-{}-{}",
            std::process::id(),
            admin.port()
        ));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("bootstrap.json");
        std::fs::write(&file, bootstrap.value().to_string()).unwrap();
        let log = std::fs::File::create(folder.join("log")).unwrap();
        let child = Command::new(program())
            .arg("-c")
            .arg(&file)
            .args(["--concurrency", "1", "--disable-hot-restart", "-l", "warning", "--drain-time-s", "1"])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("envoy runs: `cargo xtask test` installs it");
        Self { child, folder, admin }
    }

    /// Waits until something listens there.
    pub fn wait_for(&self, at: SocketAddr) {
        self.wait(&format!("a listener on {at}"), || TcpStream::connect(at).is_ok());
    }

    pub fn wait(&self, what: &str, mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            if start.elapsed() > Duration::from_secs(30) {
                panic!("{what} did not come within 30 s; Envoy says: {}", self.log());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn log(&self) -> String {
        let text = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let from = text.char_indices().rev().nth(4000).map_or(0, |(at, _)| at);
        text[from..].to_owned()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
