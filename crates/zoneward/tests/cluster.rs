//! The way to the API on the embedded one: in process and by socket, a mirror follows what is written.

use std::sync::Arc;
use std::time::Duration;

use clock::Clock;
use cluster::{self, Connection, Informer, ObjectKind, WatchCache, WatchSpec};
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, PostParams};
use model::random::Random;
use serde_json::json;
use store::admission::service::ServiceRanges;
use store::api::{Api as Store, ApiLimits};
use store::engine::{Engine, EngineOptions};

/// A store in a folder of its own.
fn store(name: &str) -> Store {
    let folder = std::env::temp_dir().join(format!("zoneward-cluster-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let engine = Engine::open(&folder.join("store"), EngineOptions::default()).expect("a store");
    // Open files live on; nothing is left behind.
    std::fs::remove_dir_all(&folder).expect("removing the folder");
    Store::new(Arc::new(engine), ServiceRanges::without_flags(), ApiLimits::default())
}

async fn put_node(client: &Client, name: &str) {
    let resource = ObjectKind::Node.resource();
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let node = DynamicObject::new(name, &resource).data(json!({}));
    api.create(&PostParams::default(), &node).await.expect("the node is created");
}

async fn until(feed: &mut Informer, mirror: &mut WatchCache, what: &str, done: impl Fn(&WatchCache) -> bool) {
    let waiting = async {
        while !done(mirror) {
            for change in mirror.read(feed.next().await) {
                mirror.apply(change);
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap_or_else(|_| panic!("{what}"));
}

async fn follows(client: Client) {
    put_node(&client, "early").await;
    let (mut feed, mut mirror) = (
        Informer::start(&client, Random::seeded(1), [WatchSpec::all(ObjectKind::Node)]),
        WatchCache::default(),
    );
    until(&mut feed, &mut mirror, "the list comes", |m| m.has_listed(&[ObjectKind::Node])).await;
    assert!(mirror.snapshot().node("early").is_some());
    put_node(&client, "late").await;
    until(&mut feed, &mut mirror, "what is new comes", |m| m.snapshot().node("late").is_some()).await;
    let api: Api<DynamicObject> = Api::all_with(client, &ObjectKind::Node.resource());
    api.delete("early", &DeleteParams::default()).await.expect("the node is deleted");
    until(&mut feed, &mut mirror, "what is gone goes", |m| m.snapshot().node("early").is_none()).await;
}

#[tokio::test]
async fn a_mirror_follows_the_api_in_the_same_process() {
    follows(cluster::in_process(store("process").local(), &Clock::system())).await;
}

#[tokio::test]
async fn a_mirror_follows_the_api_by_its_socket() {
    let folder = std::env::temp_dir().join(format!("zoneward-socket-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("api.sock");
    let listener = tokio::net::UnixListener::bind(&path).expect("a socket");
    let credentials = store::credentials::Credentials::open(&folder).expect("credentials");
    let (_stop, stopped) = tokio::sync::watch::channel(false);
    let server = store::server::ApiServer::new(store("socket"), Arc::new(credentials), stopped);
    tokio::spawn(server.serve_unix(listener));
    let connection = Connection { api_socket: Some(path), ..Connection::default() };
    follows(cluster::connect(&connection, &Clock::system()).await.expect("a client")).await;
    std::fs::remove_dir_all(&folder).expect("removing the folder");
}

/// The API as a kube-apiserver over an old etcd is: it begins to answer a watch that should bring the list, and then
/// sends an error in the place of the first event.
fn without_streaming(client: Client) -> Client {
    let refusal = json!({"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1", "status": "Failure",
        "reason": "InternalError", "code": 500, "metadata": {}, "message": "a watch stream was requested by the client \
        but the required storage feature RequestWatchProgress is disabled"}});
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (client, refusal) = (client.clone(), refusal.to_string());
        async move {
            match request.uri().query() {
                Some(query) if query.contains("sendInitialEvents=true") => {
                    Ok(http::Response::new(kube::client::Body::from(refusal.into_bytes())))
                }
                _ => client.send(request).await,
            }
        }
    });
    Client::new(service, "default")
}

#[tokio::test]
async fn where_a_watch_cannot_bring_the_list_it_is_asked_for_by_pages() {
    follows(without_streaming(cluster::in_process(store("pages").local(), &Clock::system()))).await;
}

#[tokio::test]
async fn a_missing_kubeconfig_is_named() {
    let connection = Connection { kubeconfig: Some("no/such/file".into()), ..Connection::default() };
    let error = cluster::connect(&connection, &Clock::system()).await.err().expect("an error");
    assert!(format!("{error:#}").contains("no/such/file"), "{error:#}");
}
