//! The way back to kube-controller-manager: what only Zoneward writes goes, once, and only while no other controller leads.

use std::path::PathBuf;
use std::sync::Arc;

use fixtures::eventually_async;
use serde_json::{Value, json};
use store::credentials::Credentials;
use store::server::ApiServer;
use tokio::sync::watch;

use crate::controller::world::{World, items, slices_path};
use crate::controller::{settled, shop};

/// The embedded API on a socket, for the command as an operator runs it.
struct Served {
    folder: PathBuf,
    _stop: watch::Sender<bool>,
}

impl Served {
    fn new(world: &World, name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("zoneward-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let listener = tokio::net::UnixListener::bind(folder.join("api.sock")).unwrap();
        let credentials = Credentials::open(&folder).unwrap();
        let (stop, stopped) = watch::channel(false);
        let server = ApiServer::new(world.store.clone(), Arc::new(credentials), stopped);
        tokio::spawn(server.serve_unix(listener));
        Self { folder, _stop: stop }
    }

    /// Exit code, standard output and standard error of `zoneward controller --hand-back`.
    async fn hand_back(&self) -> (Option<i32>, String, String) {
        self.hand_back_with(&[]).await
    }

    async fn hand_back_with(&self, more: &[&str]) -> (Option<i32>, String, String) {
        let socket = self.folder.join("api.sock");
        let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_zoneward"))
            .args(["controller", "--hand-back", "--leader-elect-lease-duration=2s"])
            .args(["--leader-elect-renew-deadline=1s", "--leader-elect-retry-period=200ms", "--api-socket"])
            .arg(&socket)
            .args(more)
            .output()
            .await
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Annotations and conditions that are ours, of all slices and Services.
async fn traces(world: &World) -> Vec<String> {
    let mut found = Vec::new();
    for slice in world.slices("default").await {
        let annotations = slice["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
        found.extend(annotations.into_iter().map(|(key, value)| format!("{key}={value}")));
    }
    for service in items(&world.get("/api/v1/services").await["items"]) {
        let conditions = items(&service["status"]["conditions"]);
        found.extend(conditions.iter().map(|c| c["type"].as_str().unwrap_or_default().to_owned()));
    }
    found.retain(|text| text.contains("zoneward.dev/"));
    found.sort();
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_back_removes_what_only_we_write_and_leaves_the_rest() {
    let mut world = shop(json!({})).await;
    world.namespace("kube-system").await;
    let default =
        json!({"metadata": {"annotations": {"zoneward.dev/default-traffic-distribution": "RequireZone"}}});
    world.merge("/api/v1/namespaces/default", &default).await;
    let running = &world;
    eventually_async("slices and Service say Require, by a default", || async {
        let found = traces(running).await;
        let annotations = found.iter().filter(|t| t.starts_with("zoneward.dev/mechanism")).cloned();
        let annotations: Vec<String> = annotations.collect();
        let wanted =
            ["zoneward.dev/mechanism-source=\"namespace\"", "zoneward.dev/mechanism=\"RequireZone\""];
        if annotations == wanted && found.len() == 5 { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
    world.stop().await;
    let before = settled(&world, &[1, 2, 3, 4]).await;
    let theirs = json!({"metadata": {"annotations": {"example.com/theirs": "stays"}}});
    let name = before[0]["metadata"]["name"].as_str().unwrap().to_owned();
    world.merge(&format!("{}/{name}", slices_path("default")), &theirs).await;
    let mut beside = before[0].clone();
    beside["metadata"] = json!({"name": "beside", "namespace": "default", "labels": {
        "zoneward.dev/service-name": "web", "endpointslice.kubernetes.io/managed-by": "zoneward.dev"}});
    world.put(&beside).await;

    let served = Served::new(&world, "hand-back");
    let (code, out, err) = served.hand_back().await;
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(
        out.contains(&format!("EndpointSlice default/{name}: removed zoneward.dev/mechanism: RequireZone")),
        "{out}"
    );
    assert!(out.contains("EndpointSlice default/beside: deleted"), "{out}");
    assert!(out.contains("Service default/web: removed Zoneward's conditions"), "{out}");
    assert!(out.contains("Now enable kube-controller-manager's EndpointSlice controller"), "{out}");
    assert_eq!(traces(&world).await, [""; 0]);
    let after = world.slices_of("default", "web").await;
    let expected = |slice: &Value| {
        let mut slice = slice.clone();
        slice["metadata"] = json!({"name": slice["metadata"]["name"], "labels": slice["metadata"]["labels"]});
        slice
    };
    assert_eq!(
        after.iter().map(expected).collect::<Vec<_>>(),
        before.iter().map(expected).collect::<Vec<_>>()
    );
    assert_eq!(after[0]["metadata"]["annotations"]["example.com/theirs"], "stays");
    // A second run finds nothing.
    let (code, out, _) = served.hand_back().await;
    assert_eq!((code, out.starts_with("Handed back: 0 EndpointSlices")), (Some(0), true), "{out}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_back_of_coexist_does_not_ask_to_enable_what_was_never_disabled() {
    let mut world = shop(json!({})).await;
    world.namespace("kube-system").await;
    world.stop().await;
    let mut beside = settled(&world, &[1, 2, 3, 4]).await[0].clone();
    beside["metadata"] = json!({"name": "beside", "namespace": "default", "labels": {
        "zoneward.dev/service-name": "web", "endpointslice.kubernetes.io/managed-by": "zoneward.dev"}});
    world.put(&beside).await;
    let served = Served::new(&world, "hand-back-coexist");
    // The slices tell that it was coexist; without slices, the flag does.
    for (words, deleted) in [(&[][..], 1), (&["--coexist"][..], 0)] {
        let (code, out, err) = served.hand_back_with(words).await;
        assert_eq!(code, Some(0), "{out}{err}");
        assert!(out.contains(&format!(" {deleted} deleted, ")), "{out}");
        assert!(out.ends_with("its EndpointSlice controller stays enabled.\n"), "{out}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_back_takes_the_hints_off_slices_of_expose() {
    let world = World::new().await;
    world.namespace("kube-system").await;
    let before = crate::controller::exposed::exposed(&world).await;
    let path = format!("{}/web-80-tcp-ipv4-8080", slices_path("default"));
    let mut hinted = before.clone();
    for endpoint in hinted["endpoints"].as_array_mut().unwrap() {
        endpoint["hints"] = json!({"forZones": [{"name": endpoint["zone"]}]});
    }
    let annotations = json!({"zoneward.dev/mechanism": "PreferSameZone"});
    let change = json!({"metadata": {"annotations": annotations}, "endpoints": hinted["endpoints"]});
    world.merge(&path, &change).await;

    let served = Served::new(&world, "hand-back-exposed");
    let (code, out, err) = served.hand_back().await;
    assert_eq!(code, Some(0), "{out}{err}");
    let line = "EndpointSlice default/web-80-tcp-ipv4-8080: removed zoneward.dev/mechanism: PreferSameZone, hints of 2 endpoints";
    assert!(out.contains(line), "{out}");
    let after = world.get(&path).await;
    assert_eq!(after["endpoints"], before["endpoints"]);
    assert_eq!(after["metadata"]["labels"], before["metadata"]["labels"]);
    assert_eq!(traces(&world).await, [""; 0]);
    let (code, out, _) = served.hand_back().await;
    assert_eq!((code, out.starts_with("Handed back: 0 EndpointSlices")), (Some(0), true), "{out}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_back_is_refused_while_another_controller_leads() {
    let world = shop(json!({"trafficDistribution": "PreferSameZone"})).await;
    world.namespace("kube-system").await;
    let served = Served::new(&world, "hand-back-refused");
    let settings = cluster::leader_election::LeaderElectionConfig {
        namespace: "kube-system".to_owned(),
        name: "zoneward-controller".to_owned(),
        identity: "another".to_owned(),
        annotations: Default::default(),
        timing: cluster::leader_election::election::ElectionTiming::default(),
        clock: clock::Clock::system(),
        random: model::random::Random::seeded(1),
        ledger_address: Default::default(),
    };
    let elector = cluster::leader_election::LeaderElector::start(world.client.clone(), Some(settings));
    elector.leading().wait_for(|leading| *leading).await.unwrap();
    eventually_async("the slices say it", || async {
        let found = traces(&world).await;
        if found.is_empty() { Err("nothing".to_owned()) } else { Ok(()) }
    })
    .await;
    let (code, out, err) = served.hand_back().await;
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(err.contains("another Zoneward controller leads"), "{err}");
    assert!(!traces(&world).await.is_empty());
    elector.release().await;
}
