//! What the node tells the cluster: events about what is wrong, and one Lease that says what is programmed.
//!
//! Both are written by tasks of their own: an API that is away or slow never holds up the rules.

use std::collections::VecDeque;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use model::{Notice, ObjectRef, annotation};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use crate::cluster::outage;

/// Events that wait; more are logged only.
const WAITING: usize = 64;
/// Events that are remembered so that they are not said again.
const REMEMBERED: usize = 1024;
/// A Lease is written no more often than this.
const LEAST_BETWEEN: Duration = Duration::from_secs(10);
/// And at least so often, to show that the node lives.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// How long what it says may be trusted.
const TRUSTED_SECONDS: i64 = 90;

/// The request in log lines.
const WRITE_LEASE: &str = "write the node's Lease";

/// What a Lease says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The highest resourceVersion of an EndpointSlice that is in the kernel; none before the first.
    pub programmed: Option<u64>,
    /// Services whose last change is not.
    pub failed: Vec<String>,
}

/// Passes Notices on as events, each once.
pub struct Reporter {
    sender: mpsc::Sender<(Notice, &'static str)>,
    said: VecDeque<Notice>,
    node: String,
}

impl Reporter {
    /// Starts the task that writes.
    pub fn start(client: Client, node: &str) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        tokio::spawn(write_events(client, node.to_owned(), receiver));
        Self { sender, said: VecDeque::new(), node: node.to_owned() }
    }

    /// A warning: logged, and an event, unless it was said before.
    pub fn warn(&mut self, notice: Notice) {
        self.say(notice, "Warning");
    }

    /// A warning about this node.
    pub fn warn_of_node(&mut self, reason: &'static str, message: impl Into<String>) {
        let node = ObjectRef::new("Node", "", &self.node);
        self.warn(Notice::new(node, reason, message));
    }

    fn say(&mut self, notice: Notice, kind: &'static str) {
        if self.said.contains(&notice) {
            return;
        }
        crate::log::notice(&notice);
        if self.said.len() == REMEMBERED {
            self.said.pop_front();
        }
        self.said.push_back(notice.clone());
        // A full queue means that the API is away or that there is too much to say: the log has it.
        let _ = self.sender.try_send((notice, kind));
    }
}

async fn write_events(client: Client, node: String, mut notices: mpsc::Receiver<(Notice, &'static str)>) {
    let mut number = 0_u32;
    while let Some((notice, kind)) = notices.recv().await {
        number += 1;
        let event = event(&notice, kind, &node, number);
        let namespace = event["metadata"]["namespace"].as_str().unwrap_or("default").to_owned();
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        let made = match serde_json::from_value(event) {
            Ok(event) => api.create(&PostParams::default(), &event).await,
            Err(error) => Err(Error::SerdeError(error)),
        };
        if let Err(error) = made {
            tracing::debug!(%error, "failed to write an Event");
        }
    }
}

fn event(notice: &Notice, kind: &str, node: &str, number: u32) -> Value {
    let now = jiff::Timestamp::now();
    let ObjectRef { kind: about, namespace, name } = &notice.object;
    // Nodes' events are in the namespace `default`, as kube-proxy's are; what is no object is about the node.
    let is_object = matches!(about.as_str(), "Service" | "EndpointSlice" | "Node" | "ServiceCIDR");
    let (about, name) = if is_object { (about.as_str(), name.as_str()) } else { ("Node", node) };
    let within = if namespace.is_empty() { "default" } else { namespace.as_str() };
    let mut involved = json!({"kind": about, "name": name, "apiVersion": "v1"});
    if about == "EndpointSlice" {
        involved["apiVersion"] = "discovery.k8s.io/v1".into();
    } else if about == "ServiceCIDR" {
        involved["apiVersion"] = "networking.k8s.io/v1".into();
    }
    if !namespace.is_empty() {
        involved["namespace"] = namespace.as_str().into();
    }
    // The API takes no longer message.
    let message: String = notice.message.chars().take(1000).collect();
    let own = format!("{name}.{:x}.{number:x}", now.as_nanosecond() as u64);
    json!({
        "metadata": {"name": own, "namespace": within},
        "involvedObject": involved, "reason": notice.reason, "message": message, "type": kind,
        "source": {"component": "zoneward-node", "host": node}, "count": 1,
        "reportingComponent": "zoneward-node", "reportingInstance": node,
        "firstTimestamp": seconds(now), "lastTimestamp": seconds(now),
    })
}

fn seconds(now: jiff::Timestamp) -> String {
    now.round(jiff::Unit::Second).unwrap_or(now).to_string()
}

/// Keeps the Lease of a node until the sender is gone.
pub async fn keep_lease(
    client: Client,
    namespace: String,
    node: String,
    mut progress: watch::Receiver<Progress>,
) {
    let api: Api<Lease> = Api::namespaced(client, &namespace);
    loop {
        let now = progress.borrow_and_update().clone();
        if now.programmed.is_some() {
            match write_lease(&api, &node, &now).await {
                Ok(()) => outage::request_worked(WRITE_LEASE),
                Err(error) => {
                    report_lease(&error);
                    progress.mark_changed();
                }
            }
            tokio::time::sleep(LEAST_BETWEEN).await;
        }
        let heartbeat = HEARTBEAT - LEAST_BETWEEN;
        if let Ok(Err(_)) = tokio::time::timeout(heartbeat, progress.changed()).await {
            return;
        }
    }
}

/// Logs a refusal; that the API is away is logged by its client.
fn report_lease(error: &Error) {
    if let Error::Api(status) = error
        && !outage::means_away(status.code)
    {
        outage::request_failed(WRITE_LEASE, &status.message);
    }
}

async fn write_lease(api: &Api<Lease>, node: &str, progress: &Progress) -> kube::Result<()> {
    let name = format!("{}{node}", annotation::NODE_LEASE_PREFIX);
    let lease = lease(&name, node, progress, jiff::Timestamp::now());
    match api.patch(&name, &PatchParams::default(), &Patch::Merge(&lease)).await {
        Ok(_) => Ok(()),
        Err(Error::Api(status)) if status.code == 404 => {
            let lease = serde_json::from_value(lease).map_err(Error::SerdeError)?;
            api.create(&PostParams::default(), &lease).await.map(|_| ())
        }
        Err(error) => Err(error),
    }
}

fn lease(name: &str, node: &str, progress: &Progress, now: jiff::Timestamp) -> Value {
    let micros = now.round(jiff::Unit::Microsecond).unwrap_or(now);
    let programmed = progress.programmed.unwrap_or(0).to_string();
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {
            "name": name,
            "labels": {annotation::COMPONENT: annotation::NODE_PROXY},
            "annotations": {annotation::PROGRAMMED_REVISION: programmed, annotation::FAILED_SERVICES: progress.failed.join(",")},
        },
        "spec": {
            "holderIdentity": node, "leaseDurationSeconds": TRUSTED_SECONDS,
            "renewTime": format!("{micros:.6}"),
        },
    })
}
