//! Registers this machine as a Node, for its node proxy.

use anyhow::{Context, Result};
use clock::Clock;
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use model::annotation;
use serde_json::json;

use cluster::ObjectKind;

/// The name that the node proxy of `up` uses.
pub(crate) fn name() -> Result<String> {
    let host = cluster::hostname();
    anyhow::ensure!(!host.is_empty(), "this machine has no hostname: set one, or use --no-node");
    Ok(host)
}

/// Creates the Node if missing, sets its zone, and marks it ready because `command` runs. Other fields are kept.
pub(crate) async fn register(client: Client, name: &str, zone: Option<&str>, command: &str) -> Result<()> {
    let resource = ObjectKind::Node.resource();
    let nodes: Api<DynamicObject> = Api::all_with(client, &resource);
    let mut labels = json!({"kubernetes.io/hostname": name});
    if let Some(zone) = zone {
        labels[annotation::ZONE] = zone.into();
    }
    let patch = json!({"metadata": {"labels": labels}});
    if nodes.get_opt(name).await.context("reading the Node of this machine")?.is_none() {
        let node = DynamicObject::new(name, &resource);
        nodes.create(&PostParams::default(), &node).await.context("creating the Node of this machine")?;
    }
    let merge = PatchParams::default();
    nodes.patch(name, &merge, &Patch::Merge(&patch)).await.context("labelling the Node of this machine")?;
    let time = Clock::system().timestamp().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let ready = json!({"status": {"conditions": [{
        "type": "Ready", "status": "True", "reason": if command == "up" { "ZonewardUp" } else { "ZonewardJoin" },
        "message": format!("zoneward {command} runs on this machine"),
        "lastHeartbeatTime": time, "lastTransitionTime": time,
    }]}});
    let updated = nodes.patch_status(name, &merge, &Patch::Strategic(&ready)).await;
    updated.map(drop).context("updating the status of the Node of this machine")
}
