//! This machine as a Node: nobody else registers it, and its node proxy waits for it and takes its zone from it.

use anyhow::{Context, Result};
use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use model::annotation;
use serde_json::json;

use cluster::ResourceKind;

/// The name that the node proxy looks for.
fn name() -> Result<String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").context("reading the host's name")?;
    let host = host.trim().to_lowercase();
    anyhow::ensure!(!host.is_empty(), "this machine has no host name: give it one, or use --no-node");
    Ok(host)
}

/// Makes the Node if it is missing, sets its zone if one is given, and says that it is ready. What else it says stays.
pub async fn register(client: Client, zone: Option<&str>) -> Result<()> {
    let name = name()?;
    let resource = ResourceKind::Node.resource();
    let nodes: Api<DynamicObject> = Api::all_with(client, &resource);
    let mut labels = json!({"kubernetes.io/hostname": name});
    if let Some(zone) = zone {
        labels[annotation::ZONE] = zone.into();
    }
    let change = json!({"metadata": {"labels": labels}});
    if nodes.get_opt(&name).await.context("reading this machine's Node")?.is_none() {
        let node = DynamicObject::new(&name, &resource);
        nodes.create(&PostParams::default(), &node).await.context("creating this machine's Node")?;
    }
    let merge = PatchParams::default();
    nodes.patch(&name, &merge, &Patch::Merge(&change)).await.context("labelling this machine's Node")?;
    let time = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let ready = json!({"status": {"conditions": [{
        "type": "Ready", "status": "True", "reason": "ZonewardUp", "message": "zoneward up runs on this machine",
        "lastHeartbeatTime": time, "lastTransitionTime": time,
    }]}});
    let told = nodes.patch_status(&name, &merge, &Patch::Strategic(&ready)).await;
    told.map(drop).context("writing the status of this machine's Node")
}
