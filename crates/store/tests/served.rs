//! For tests: a server of its own on loopback and on a socket, with the kubeconfigs that `zoneward up` writes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use store::admission::service::ServiceRanges;
use store::api::{Api, ApiLimits};
use store::bootstrap::{BootstrapOptions, bootstrap, keep_api_service};
use store::credentials::Credentials;
use store::engine::{Engine, EngineOptions};
use store::server::ApiServer;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// A server that ends with the test.
pub struct Served {
    pub api: Api,
    pub data: PathBuf,
    pub kubeconfig: PathBuf,
    pub socket: PathBuf,
    runtime: Option<Runtime>,
    stop: watch::Sender<bool>,
}

impl Served {
    pub fn new(name: &str, options: EngineOptions) -> Self {
        Self::with(name, options, ApiLimits::default())
    }

    pub fn with(name: &str, options: EngineOptions, limits: ApiLimits) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{name}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let data = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&data).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (stop, stopped) = watch::channel(false);
        let (api, kubeconfig) = runtime.block_on(serve(&data, options, limits, stopped));
        let socket = data.join("api.sock");
        Self { api, data, kubeconfig, socket, runtime: Some(runtime), stop }
    }
}

async fn serve(
    data: &Path,
    options: EngineOptions,
    limits: ApiLimits,
    stopped: watch::Receiver<bool>,
) -> (Api, PathBuf) {
    let engine = Engine::open(&data.join("store"), options).unwrap();
    let api = Api::new(Arc::new(engine), ServiceRanges::without_flags(), limits);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listen = listener.local_addr().unwrap();
    let service_cidrs = vec!["10.96.0.0/16".parse().unwrap(), "fd00:10:96::/112".parse().unwrap()];
    bootstrap(&api, BootstrapOptions { service_cidrs, listen }).await.unwrap();
    let credentials = Credentials::open(data).unwrap();
    api.open_signing_keys(data).unwrap();
    let config = credentials.server_config(&[listen.ip()]).unwrap();
    let kubeconfig = credentials.write_kubeconfigs(listen).unwrap();
    let server = ApiServer::new(api.clone(), Arc::new(credentials), stopped.clone());
    tokio::spawn(server.clone().serve_unix(UnixListener::bind(data.join("api.sock")).unwrap()));
    tokio::spawn(server.serve_tls(listener, config));
    tokio::spawn(keep_api_service(api.clone(), listen, stopped.clone()));
    tokio::spawn(store::rbac_controller::run(api.clone(), stopped.clone()));
    tokio::spawn(store::garbage_collector::run(api.clone(), stopped));
    (api, kubeconfig)
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(3));
        }
        let _ = std::fs::remove_dir_all(&self.data);
    }
}
