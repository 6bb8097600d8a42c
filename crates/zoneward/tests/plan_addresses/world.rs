//! An embedded API in a folder that is gone already, and a keeper of its addresses.

use std::collections::BTreeSet;
use std::sync::Arc;

use cluster::ObjectKind;
use controller::addresses;
use fixtures::eventually_async;
use ipnet::IpNet;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use store::admission::service::ServiceRanges;
use store::api::{Api as Store, ApiLimits};
use store::engine::{Engine, EngineOptions};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub struct World {
    client: Client,
}

pub struct Keeper {
    task: JoinHandle<()>,
    _stop: watch::Sender<bool>,
}

impl Keeper {
    pub fn abort(self) {
        self.task.abort();
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An IPAddress as the allocator makes it.
pub fn ip_address(ip: &str, namespace: &str, service: &str) -> Value {
    let family = if ip.contains(':') { "IPv6" } else { "IPv4" };
    json!({
        "metadata": {"name": ip, "labels": {"ipaddress.kubernetes.io/ip-family": family,
            "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"}},
        "spec": {"parentRef": {"group": "", "resource": "services", "namespace": namespace, "name": service}},
    })
}

impl World {
    pub async fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("zoneward-addresses-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let engine = Engine::open(&folder.join("store"), EngineOptions::default()).expect("a store");
        // Open files live on; nothing is left behind.
        std::fs::remove_dir_all(&folder).expect("removing the folder");
        let api = Store::new(Arc::new(engine), ServiceRanges::without_flags(), ApiLimits::default());
        let world = Self { client: cluster::in_process(api.local(), &clock::Clock::system()) };
        world.create(ObjectKind::Namespace, json!({"metadata": {"name": "default"}})).await;
        world
    }

    pub fn keep(&self, ranges: &[&str]) -> Keeper {
        let ranges: Vec<IpNet> = ranges.iter().map(|range| range.parse().expect("a range")).collect();
        let (stop, stopped) = watch::channel(false);
        Keeper {
            task: tokio::spawn(addresses::run(
                self.client.clone(),
                ranges,
                clock::Clock::system(),
                model::random::Random::seeded(1),
                stopped,
            )),
            _stop: stop,
        }
    }

    fn api(&self, kind: ObjectKind, namespace: &str) -> Api<DynamicObject> {
        match kind {
            ObjectKind::Service => Api::namespaced_with(self.client.clone(), namespace, &kind.resource()),
            _ => Api::all_with(self.client.clone(), &kind.resource()),
        }
    }

    pub async fn create(&self, kind: ObjectKind, object: Value) {
        let made = self.try_create(kind, object.clone()).await;
        made.unwrap_or_else(|error| panic!("{object}: {error}"));
    }

    pub async fn merge(&self, kind: ObjectKind, name: &str, patch: &Value) -> kube::Result<()> {
        let patch = Patch::Merge(patch);
        self.api(kind, "default").patch(name, &PatchParams::default(), &patch).await.map(drop)
    }

    pub async fn try_create(&self, kind: ObjectKind, mut object: Value) -> kube::Result<()> {
        let resource = kind.resource();
        object["apiVersion"] = json!(resource.api_version);
        object["kind"] = json!(resource.kind);
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default").to_owned();
        let typed = serde_json::from_value(object).expect("an object");
        self.api(kind, &namespace).create(&PostParams::default(), &typed).await.map(drop)
    }

    pub async fn delete(&self, kind: ObjectKind, name: &str) {
        self.delete_in("default", kind, name).await;
    }

    pub async fn delete_in(&self, namespace: &str, kind: ObjectKind, name: &str) {
        let deleted = self.api(kind, namespace).delete(name, &DeleteParams::default()).await;
        deleted.unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    pub async fn find(&self, kind: ObjectKind, name: &str) -> Option<Value> {
        let found = self.api(kind, "default").get_opt(name).await.expect("an answer");
        found.map(|object| serde_json::to_value(object).expect("JSON"))
    }

    pub async fn names(&self, kind: ObjectKind) -> BTreeSet<String> {
        let list = self.api(kind, "default").list(&ListParams::default()).await.expect("a list");
        list.items.into_iter().filter_map(|object| object.metadata.name).collect()
    }

    /// The reasons of all Events.
    pub async fn reasons(&self) -> BTreeSet<String> {
        let events: Api<k8s_openapi::api::core::v1::Event> = Api::all(self.client.clone());
        let list = events.list(&ListParams::default()).await.expect("a list");
        list.items.into_iter().filter_map(|event| event.reason).collect()
    }

    pub async fn reasons_become(&self, wanted: &[&str]) {
        let wanted: BTreeSet<String> = wanted.iter().map(|reason| (*reason).to_owned()).collect();
        eventually_async(&format!("Events {wanted:?}"), async || {
            let found = self.reasons().await;
            if found == wanted { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
    }

    pub async fn until(
        &self,
        what: &str,
        kind: ObjectKind,
        name: &str,
        done: impl Fn(&Value) -> bool,
    ) -> Value {
        eventually_async(what, async || {
            let found = self.find(kind, name).await.ok_or(Value::Null)?;
            if done(&found) { Ok(found) } else { Err(found) }
        })
        .await
    }

    pub async fn until_gone(&self, what: &str, kind: ObjectKind, name: &str) {
        eventually_async(what, async || self.find(kind, name).await.map_or(Ok(()), Err)).await;
    }
}
