//! The process of the embedded API: it writes the objects to its engine, then serves its socket.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use store::admission::service::ServiceRanges;
use store::api::{Api, ApiLimits};
use store::bootstrap::{BootstrapOptions, bootstrap};
use store::credentials::Credentials;
use store::engine::{Engine, EngineOptions};
use store::kinds;
use store::server::ApiServer;
use tokio::net::UnixListener;
use tokio::sync::watch;

use super::objects::{NODES, PodOf, node, pod, service};
use super::process::{Running, role};

const FOLDER: &str = "ZONEWARD_BENCH_FOLDER";
const SERVICES: &str = "ZONEWARD_BENCH_SERVICES";
const PODS: &str = "ZONEWARD_BENCH_PODS";
/// Objects of one write.
const BATCH: usize = 1_000;
/// Each watch on the socket is a connection.
const CONNECTIONS: usize = 20_000;

/// Starts the process and waits until it serves.
pub(crate) fn start(folder: &Path, services: usize, pods: usize) -> Running {
    let mut command = role("api");
    command.env(FOLDER, folder).env(SERVICES, services.to_string()).env(PODS, pods.to_string());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line.trim(), "serving");
    Running(child)
}

/// The process itself, until its standard input is closed.
pub(crate) async fn serve() {
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let number = |name| std::env::var(name).unwrap().parse::<usize>().unwrap();
    let (services, of) = (number(SERVICES), number(PODS));
    let engine = Engine::open(&folder.join("store"), EngineOptions::default()).unwrap();
    let limits = ApiLimits {
        watches: CONNECTIONS,
        connections: CONNECTIONS,
        reserved_connections: CONNECTIONS,
        ..ApiLimits::default()
    };
    let api = Api::new(Arc::new(engine), ServiceRanges::without_flags(), limits);
    let service_cidrs = vec!["10.96.0.0/12".parse().unwrap()];
    let listen = "127.0.0.1:6443".parse().unwrap();
    bootstrap(&api, BootstrapOptions { service_cidrs, listen }).await.unwrap();
    let pods = (0..services).flat_map(|service| (0..of).map(move |at| pod(PodOf { service, at, of }, 0)));
    put_all(&api, (0..NODES).map(node).chain((0..services).map(service)).chain(pods)).await;
    let (_stop, stopped) = watch::channel(false);
    let listener = UnixListener::bind(folder.join("api.sock")).unwrap();
    let credentials = Credentials::open(&folder).unwrap();
    tokio::spawn(ApiServer::new(api, Arc::new(credentials), stopped).serve_unix(listener));
    println!("serving");
    tokio::task::spawn_blocking(|| std::io::stdin().lines().count()).await.unwrap();
}

async fn put_all(api: &Api, objects: impl Iterator<Item = Value>) {
    let mut objects = objects.peekable();
    while objects.peek().is_some() {
        let mut some: Vec<Value> = objects.by_ref().take(BATCH).collect();
        let work = move |store: &mut store::object_txn::ObjectTxn<'_, '_>| {
            for object in &mut some {
                let kind = kinds::named(object["kind"].as_str().unwrap_or_default());
                store.put(kind.expect("a kind that the API has"), object)?;
            }
            Ok(())
        };
        api.commit(false, work).await.unwrap();
    }
}
