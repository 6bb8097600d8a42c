//! What the node tells the cluster: events about what is wrong, and one Lease that says what is programmed.
//!
//! Both are written by tasks of their own: an API that is away or slow never holds up the rules.

use std::collections::VecDeque;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use model::{Notice, ObjectRef, annotation};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use crate::cluster::{Kind, failure, outage};

/// Events that wait; more are logged only.
const WAITING: usize = 64;
/// Events that are remembered so that they are not said again.
const REMEMBERED: usize = 1024;
/// How long the uid of an object may take; without it the event is written all the same.
const PATIENCE: Duration = Duration::from_secs(5);
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
        let about = About::of(&notice, &node);
        let uid = about.uid(&client).await;
        let event = event(&notice, kind, &node, number, uid.as_deref());
        let namespace = event["metadata"]["namespace"].as_str().unwrap_or("default").to_owned();
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        let made = match serde_json::from_value(event) {
            Ok(event) => api.create(&PostParams::default(), &event).await,
            Err(error) => Err(Error::SerdeError(error)),
        };
        if let Err(error) = made {
            tracing::debug!(error = failure::cause(&error), "failed to write an Event");
        }
    }
}

/// The API object that an event is about.
struct About<'n> {
    kind: Kind,
    namespace: &'n str,
    name: &'n str,
}

impl<'n> About<'n> {
    /// What is no API object, as the node's configuration or its kernel, is about the Node.
    fn of(notice: &'n Notice, node: &'n str) -> Self {
        let ObjectRef { kind, namespace, name } = &notice.object;
        let kind = match kind.as_str() {
            "Service" => Kind::Service,
            "EndpointSlice" => Kind::Slice,
            "ServiceCIDR" => Kind::ServiceCidr,
            "Node" => Kind::Node,
            _ => return Self { kind: Kind::Node, namespace: "", name: node },
        };
        Self { kind, namespace, name }
    }

    /// `kubectl describe` finds events by it. Asked for by a list, which every service proxy may do.
    async fn uid(&self, client: &Client) -> Option<String> {
        let resource = self.kind.resource();
        let api: Api<DynamicObject> = match self.kind.is_namespaced() {
            true => Api::namespaced_with(client.clone(), self.namespace, &resource),
            false => Api::all_with(client.clone(), &resource),
        };
        let named = ListParams::default().fields(&format!("metadata.name={}", self.name)).limit(1);
        match tokio::time::timeout(PATIENCE, api.list(&named)).await {
            Ok(Ok(found)) => found.items.into_iter().next()?.metadata.uid,
            _ => None,
        }
    }
}

fn event(notice: &Notice, kind: &str, node: &str, number: u32, uid: Option<&str>) -> Value {
    let now = jiff::Timestamp::now();
    let About { kind: about, namespace, name } = About::of(notice, node);
    // Nodes' events are in the namespace `default`, as kube-proxy's are.
    let within = if namespace.is_empty() { "default" } else { namespace };
    let resource = about.resource();
    let mut involved = json!({"kind": resource.kind, "name": name, "apiVersion": resource.api_version});
    if !namespace.is_empty() {
        involved["namespace"] = namespace.into();
    }
    if let Some(uid) = uid {
        involved["uid"] = uid.into();
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use store::admission::service::ServiceRanges;
    use store::api::{Api as Store, ApiLimits};
    use store::engine::{Engine, EngineOptions};

    use super::*;

    fn notice(kind: &str, namespace: &str, name: &str) -> Notice {
        Notice::new(ObjectRef::new(kind, namespace, name), "Because", "words")
    }

    #[test]
    fn what_is_no_api_object_is_about_the_node() {
        for (kind, name) in [("Kernel", "sysctl"), ("KubeProxyConfiguration", "kube-proxy"), ("Node", "n1")] {
            let event = event(&notice(kind, "", name), "Warning", "n1", 1, Some("uid-1"));
            let involved = json!({"kind": "Node", "name": "n1", "apiVersion": "v1", "uid": "uid-1"});
            assert_eq!(event["involvedObject"], involved, "{kind}");
            assert_eq!(event["metadata"]["namespace"], "default");
        }
        let wish = crate::node::sysctl::set_oom_score(100_000).expect("no such score");
        assert_eq!(About::of(&wish, "n1").name, "n1", "no Node is called kernel");
    }

    #[tokio::test]
    async fn an_event_carries_the_uid_of_its_object() {
        let folder = std::env::temp_dir().join(format!("zoneward-report-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let engine = Engine::open(&folder, EngineOptions::default()).expect("a store");
        // Open files live on; nothing is left behind.
        std::fs::remove_dir_all(&folder).expect("removing the folder");
        let store = Store::new(Arc::new(engine), ServiceRanges::default(), ApiLimits::default());
        let client = crate::cluster::in_process(store);
        let nodes: Api<DynamicObject> = Api::all_with(client.clone(), &Kind::Node.resource());
        let node = DynamicObject::new("n1", &Kind::Node.resource());
        let made = nodes.create(&PostParams::default(), &node).await.expect("a Node");
        let about = notice("Kernel", "", "sysctl");
        assert!(made.metadata.uid.is_some());
        assert_eq!(About::of(&about, "n1").uid(&client).await, made.metadata.uid);
        assert_eq!(About::of(&about, "n2").uid(&client).await, None);
    }
}
