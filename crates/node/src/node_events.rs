//! Warnings of the node proxy as Events.
//!
//! A task of its own writes them: an API that is unreachable or slow never delays a sync.

use std::collections::VecDeque;
use std::time::Duration;

use clock::Clock;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams};
use model::{Notice, ObjectRef};
use plan::forward::{DEPRECATED_EXTERNAL_IPS, LIMITED_AFFINITY};
use tokio::sync::mpsc;

use cluster::events::{self, EventSource};
use cluster::{ObjectKind, failure};

/// Events that may wait; more are only logged.
const QUEUE: usize = 64;
/// Warnings remembered so that they are not repeated.
const REMEMBERED: usize = 1024;
/// Timeout for the uid of the object; without it the Event is written all the same.
const UID_TIMEOUT: Duration = Duration::from_secs(5);
/// Records Notices as Events, each once.
pub struct EventRecorder {
    sender: mpsc::Sender<Notice>,
    reported: VecDeque<Notice>,
    node: String,
}

impl EventRecorder {
    /// Starts the task that writes.
    pub fn start(client: Client, node: &str, clock: Clock) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        tokio::spawn(write_events(client, node.to_owned(), clock, receiver));
        Self::new(sender, node)
    }

    pub(crate) fn new(sender: mpsc::Sender<Notice>, node: &str) -> Self {
        Self { sender, reported: VecDeque::new(), node: node.to_owned() }
    }

    /// Logs a warning and writes an Event, unless it was reported before.
    pub fn warn(&mut self, notice: Notice) {
        if self.reported.contains(&notice) {
            return;
        }
        cluster::log::notice(&notice);
        if self.reported.len() == REMEMBERED {
            self.reported.pop_front();
        }
        self.reported.push_back(notice.clone());
        if [DEPRECATED_EXTERNAL_IPS, LIMITED_AFFINITY].contains(&notice.reason) {
            // The same on every node: the API server warned the author, and the log has it.
            return;
        }
        // A full queue means that the API is unreachable or that there are too many warnings: they are in the log.
        let _ = self.sender.try_send(notice);
    }

    /// Warns about this node.
    pub fn warn_of_node(&mut self, reason: &'static str, message: impl Into<String>) {
        let node = ObjectRef::new("Node", "", &self.node);
        self.warn(Notice::new(node, reason, message));
    }
}

async fn write_events(client: Client, node: String, clock: Clock, mut notices: mpsc::Receiver<Notice>) {
    let source = EventSource::node(&node);
    while let Some(notice) = notices.recv().await {
        let about = About::of(&notice, &node);
        let uid = about.uid(&client).await;
        let notice = Notice { object: about.object_ref(), ..notice.clone() };
        let event = events::event(source, &notice, uid.as_deref(), clock.timestamp());
        if let Err(error) = events::record(&client, &event).await {
            tracing::debug!(error = failure::cause(&error), "failed to write an Event");
        }
    }
}

/// The API object that an event is about.
struct About<'n> {
    kind: ObjectKind,
    namespace: &'n str,
    name: &'n str,
}

impl<'n> About<'n> {
    /// Notices about no API object, such as the configuration or the kernel, are about the Node.
    fn of(notice: &'n Notice, node: &'n str) -> Self {
        let ObjectRef { kind, namespace, name } = &notice.object;
        let kind = match kind.as_str() {
            "Service" => ObjectKind::Service,
            "EndpointSlice" => ObjectKind::Slice,
            "ServiceCIDR" => ObjectKind::ServiceCidr,
            "Node" => ObjectKind::Node,
            _ => return Self { kind: ObjectKind::Node, namespace: "", name: node },
        };
        Self { kind, namespace, name }
    }

    fn object_ref(&self) -> ObjectRef {
        ObjectRef::new(&self.kind.resource().kind, self.namespace, self.name)
    }

    /// `kubectl describe` finds Events by uid. Read by a list, which every service proxy may do.
    async fn uid(&self, client: &Client) -> Option<String> {
        let resource = self.kind.resource();
        let api: Api<DynamicObject> = match self.kind.is_namespaced() {
            true => Api::namespaced_with(client.clone(), self.namespace, &resource),
            false => Api::all_with(client.clone(), &resource),
        };
        let named = ListParams::default().fields(&format!("metadata.name={}", self.name)).limit(1);
        match tokio::time::timeout(UID_TIMEOUT, api.list(&named)).await {
            Ok(Ok(found)) => found.items.into_iter().next()?.metadata.uid,
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kube::api::PostParams;
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
            let notice = notice(kind, "", name);
            assert_eq!(About::of(&notice, "n1").object_ref(), ObjectRef::new("Node", "", "n1"), "{kind}");
        }
        let wish = crate::sysctl::set_oom_score(100_000).expect("no such score");
        assert_eq!(About::of(&wish, "n1").name, "n1", "no Node is called kernel");
    }

    #[tokio::test]
    async fn an_event_carries_the_uid_of_its_object() {
        let folder = std::env::temp_dir().join(format!("zoneward-report-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let engine = Engine::open(&folder, EngineOptions::default()).expect("a store");
        // Open files live on; nothing is left behind.
        std::fs::remove_dir_all(&folder).expect("removing the folder");
        let store = Store::new(Arc::new(engine), ServiceRanges::without_flags(), ApiLimits::default());
        let client = cluster::in_process(store.local(), &Clock::system());
        let nodes: Api<DynamicObject> = Api::all_with(client.clone(), &ObjectKind::Node.resource());
        let node = DynamicObject::new("n1", &ObjectKind::Node.resource());
        let made = nodes.create(&PostParams::default(), &node).await.expect("a Node");
        let about = notice("Kernel", "", "sysctl");
        assert!(made.metadata.uid.is_some());
        assert_eq!(About::of(&about, "n1").uid(&client).await, made.metadata.uid);
        assert_eq!(About::of(&about, "n2").uid(&client).await, None);
    }
}
