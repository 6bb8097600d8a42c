//! Users, a model scheduler and model kubelets: they create, change and delete Services, Pods and Nodes through the same
//! network as all parties, and retry until the API has what they want.

mod policies;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::BodyExt;
use model::random::Random;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::confluence::UserObject;
use crate::link::{Link, LinkResponse};
use crate::options::Options;
use policies::PolicyUsers;

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
/// The UDP port of Services that have one.
pub(crate) const UDP_PORT: u16 = 53;
const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// A change that is retried until it is done.
#[derive(Clone, Debug)]
enum UserAction {
    Create {
        collection: &'static str,
        body: Value,
    },
    Patch {
        content_type: &'static str,
        subresource: &'static str,
        body: Value,
    },
    /// A deleted Pod frees its address.
    Delete {
        frees: Option<String>,
    },
    /// Reads the object, counts an annotation up, and writes it back with its resourceVersion.
    Edit {
        read: Option<Value>,
    },
}

/// The changes of one object, in order.
#[derive(Default)]
struct ObjectActions {
    queue: VecDeque<UserAction>,
    reply: Option<oneshot::Receiver<LinkResponse>>,
    retry_at: u64,
}

#[derive(Clone, Debug)]
struct ModelPod {
    address: String,
    is_ready: bool,
}

pub(crate) struct Workload {
    random: Random,
    link: Link,
    objects: BTreeMap<String, ObjectActions>,
    pods: BTreeMap<String, ModelPod>,
    services: BTreeMap<String, usize>,
    nodes: Vec<String>,
    zones: usize,
    /// Names of Services, and labels that they select.
    names: usize,
    apps: usize,
    free_addresses: Vec<String>,
    next_name: usize,
    next_at: u64,
    action_ms: u64,
    policies: PolicyUsers,
    pub is_active: bool,
    pub actions: u64,
    /// Requests that the API refused for what they say: mistakes of the workload.
    pub refused: Vec<String>,
}

impl Workload {
    pub(crate) fn new(options: &Options, link: Link, nodes: Vec<(String, String)>, random: Random) -> Self {
        let mut workload = Self::without_objects(options, link, &nodes, random);
        workload.create_nodes(options, &nodes);
        (0..options.services).for_each(|number| workload.create_service(number));
        (0..options.pods).for_each(|_| workload.create_pod());
        workload
    }

    /// Users who create these objects and change nothing.
    pub(crate) fn of_objects(options: &Options, link: Link, objects: Vec<UserObject>) -> Self {
        let mut workload = Self::without_objects(options, link, &[], Random::seeded(options.seed));
        for UserObject { collection, body, status } in objects {
            let path = format!("{collection}/{}", body["metadata"]["name"].as_str().unwrap_or_default());
            workload.push(&path, UserAction::Create { collection, body });
            if let Some(body) = status {
                let patch = UserAction::Patch { content_type: MERGE, subresource: "/status", body };
                workload.push(&path, patch);
            }
        }
        workload.is_active = false;
        workload
    }

    fn without_objects(
        options: &Options,
        link: Link,
        nodes: &[(String, String)],
        mut random: Random,
    ) -> Self {
        Self {
            link,
            objects: BTreeMap::new(),
            pods: BTreeMap::new(),
            services: BTreeMap::new(),
            nodes: nodes.iter().map(|(name, _)| name.clone()).collect(),
            zones: options.zones,
            names: options.services.max(8),
            apps: (options.services / 2).max(4),
            free_addresses: Vec::new(),
            next_name: 0,
            next_at: 0,
            action_ms: options.action_ms,
            policies: PolicyUsers::new(options),
            is_active: true,
            actions: 0,
            refused: Vec::new(),
            random: random.split(),
        }
    }

    fn create_nodes(&mut self, options: &Options, nodes: &[(String, String)]) {
        for (number, (name, address)) in nodes.iter().enumerate() {
            let labels = json!({"topology.kubernetes.io/zone": format!("zone-{}", number % options.zones),
                "kubernetes.io/hostname": name});
            let status = json!({"addresses": [{"type": "InternalIP", "address": address}],
                "conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "4"}});
            let body = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
                "status": status});
            self.push(
                &format!("/api/v1/nodes/{name}"),
                UserAction::Create { collection: "/api/v1/nodes", body },
            );
            let body = json!({ "status": status });
            let patch = UserAction::Patch { content_type: MERGE, subresource: "/status", body };
            self.push(&format!("/api/v1/nodes/{name}"), patch);
        }
    }

    fn push(&mut self, path: &str, action: UserAction) {
        self.objects.entry(path.to_owned()).or_default().queue.push_back(action);
    }

    /// Whether everything that was wanted is done.
    pub(crate) fn is_done(&self) -> bool {
        self.objects.values().all(|object| object.queue.is_empty())
    }

    /// When the next thing is to be done.
    pub(crate) fn next_at(&self) -> u64 {
        if self.is_active { self.next_at.min(self.policies.next_at()) } else { u64::MAX }
    }

    /// Takes responses, sends what is due, and decides on something new.
    pub(crate) fn step(&mut self, now: u64) {
        if self.is_active && now >= self.next_at {
            self.next_at = now + 1 + self.random.below(2 * self.action_ms as usize) as u64;
            self.act();
        }
        self.step_policies(now);
        let paths: Vec<String> = self.objects.keys().cloned().collect();
        for path in paths {
            let Some(mut object) = self.objects.remove(&path) else { continue };
            self.advance(now, &path, &mut object);
            if !object.queue.is_empty() || object.reply.is_some() {
                self.objects.insert(path, object);
            }
        }
    }

    fn advance(&mut self, now: u64, path: &str, object: &mut ObjectActions) {
        if let Some(reply) = &mut object.reply {
            let response = match reply.try_recv() {
                Ok(response) => response.ok(),
                Err(oneshot::error::TryRecvError::Empty) => return,
                Err(oneshot::error::TryRecvError::Closed) => None,
            };
            object.reply = None;
            object.retry_at = now + self.random.below(1_500) as u64;
            let answer = response.map(|response| {
                let (head, body) = response.into_parts();
                (head.status.as_u16(), whole(body))
            });
            if let Some((status, body)) = answer {
                self.answered(path, object, status, body, now);
            }
        }
        if let Some(action) = object.queue.front()
            && now >= object.retry_at
        {
            object.reply = Some(self.link.send(request(path, action)));
        }
    }

    fn answered(&mut self, path: &str, object: &mut ObjectActions, status: u16, body: Value, now: u64) {
        let Some(action) = object.queue.front_mut() else { return };
        let is_done = match (action, status) {
            (UserAction::Edit { read: read @ None }, 200) => {
                *read = Some(body);
                object.retry_at = now;
                false
            }
            (UserAction::Edit { read }, 409) => {
                *read = None;
                false
            }
            (_, 200..=299) | (UserAction::Create { .. }, 409) => true,
            // Deleted before.
            (UserAction::Patch { .. } | UserAction::Delete { .. } | UserAction::Edit { .. }, 404) => true,
            (_, 408 | 409 | 410 | 429 | 500..) => false,
            (action, code) => {
                self.refused.push(format!("{path}: {code} for {action:?}: {}", body["message"]));
                true
            }
        };
        if is_done {
            if let Some(UserAction::Delete { frees: Some(address) }) = object.queue.pop_front() {
                self.free_addresses.push(address);
            }
            object.retry_at = now;
        }
    }

    /// The last change is often a rare one, with no later change that would repair what it broke.
    pub(crate) fn end(&mut self) {
        self.is_active = false;
        match self.random.below(4) {
            0 => self.move_node(),
            1 => self.delete_service(),
            2 => self.flip_readiness(),
            _ => {}
        }
    }

    fn act(&mut self) {
        self.actions += 1;
        match self.random.below(100) {
            0..20 => self.create_pod(),
            20..38 => self.delete_pod(),
            38..60 => self.flip_readiness(),
            60..68 => {
                let number = self.random.below(self.names);
                self.create_service(number);
            }
            68..73 => self.delete_service(),
            73..85 => self.change_service(),
            85..92 => self.edit_service(),
            92..95 => self.set_condition(),
            95 => self.create_foreign_slice(),
            96..98 => self.move_node(),
            _ => self.replace_node(),
        }
    }

    fn create_service(&mut self, number: usize) {
        let name = format!("s{number}");
        let app = self.random.below(self.apps);
        let mut metadata = json!({"name": name, "annotations": {}});
        if self.random.below(4) == 0 {
            metadata["annotations"]["endpointslice.kubernetes.io/same-zone"] = json!("Require");
        }
        let mut spec = json!({"selector": {"app": format!("a{app}")},
            "ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}]});
        if self.random.below(2) == 0
            && let Some(ports) = spec["ports"].as_array_mut()
        {
            ports.push(json!({"name": "dns", "port": UDP_PORT, "targetPort": 5_353, "protocol": "UDP"}));
        }
        if self.random.below(3) == 0 {
            spec["sessionAffinity"] = json!("ClientIP");
            spec["sessionAffinityConfig"] =
                json!({"clientIP": {"timeoutSeconds": 60 + self.random.below(5_000)}});
        }
        if self.random.below(2) == 0 {
            let value = ["PreferSameZone", "PreferSameNode"][self.random.below(2)];
            spec["trafficDistribution"] = json!(value);
        }
        let body = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec});
        self.services.insert(name.clone(), app);
        let collection = "/api/v1/namespaces/default/services";
        self.push(&format!("{collection}/{name}"), UserAction::Create { collection, body });
    }

    fn pick_service(&mut self) -> Option<String> {
        let names: Vec<&String> = self.services.keys().collect();
        let name = self.random.pick(&names).copied()?.clone();
        Some(format!("/api/v1/namespaces/default/services/{name}"))
    }

    fn delete_service(&mut self) {
        let Some(path) = self.pick_service() else { return };
        self.services.retain(|name, _| !path.ends_with(&format!("/{name}")));
        self.push(&path, UserAction::Delete { frees: None });
    }

    fn change_service(&mut self) {
        let Some(path) = self.pick_service() else { return };
        let body = match self.random.below(4) {
            0 => {
                let value = ["PreferSameZone", "PreferSameNode"][self.random.below(2)];
                json!({"spec": {"trafficDistribution": value}})
            }
            1 => json!({"spec": {"trafficDistribution": null}}),
            2 => json!({"spec": {"selector": {"app": format!("a{}", self.random.below(self.apps))}}}),
            _ => {
                let value = [json!("Require"), json!(null)][self.random.below(2)].clone();
                json!({"metadata": {"annotations": {"endpointslice.kubernetes.io/same-zone": value}}})
            }
        };
        self.push(&path, UserAction::Patch { content_type: MERGE, subresource: "", body });
    }

    fn edit_service(&mut self) {
        if let Some(path) = self.pick_service() {
            self.push(&path, UserAction::Edit { read: None });
        }
    }

    /// Another controller writes a condition of its own.
    fn set_condition(&mut self) {
        let Some(path) = self.pick_service() else { return };
        let status = ["True", "False"][self.random.below(2)];
        let condition = json!({"type": "example.com/Audited", "status": status, "reason": "Audited",
            "message": format!("audit {}", self.actions), "lastTransitionTime": "2027-01-15T08:00:00Z"});
        let body = json!({"status": {"conditions": [condition]}});
        self.push(&path, UserAction::Patch { content_type: STRATEGIC, subresource: "/status", body });
    }

    /// Another controller adds endpoints of its own to a Service; it never changes them.
    fn create_foreign_slice(&mut self) {
        let number = self.random.below(self.names);
        self.next_name += 1;
        let name = format!("foreign-{}", self.next_name);
        let labels = json!({"kubernetes.io/service-name": format!("s{number}"),
            "endpointslice.kubernetes.io/managed-by": "example-controller"});
        let address = format!("10.245.{}.{}", self.next_name / 200, 1 + self.next_name % 200);
        let body = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": name, "labels": labels}, "endpoints": [{"addresses": [address]}],
            "ports": [{"name": "http", "port": 8_080, "protocol": "TCP"}]});
        let collection = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
        self.push(&format!("{collection}/{name}"), UserAction::Create { collection, body });
    }

    fn create_pod(&mut self) {
        if self.pods.len() >= 250 {
            return;
        }
        self.next_name += 1;
        let name = format!("p{}", self.next_name);
        let reuse = !self.free_addresses.is_empty() && self.random.below(2) == 0;
        let address = match reuse {
            true => self.free_addresses.swap_remove(self.random.below(self.free_addresses.len())),
            false => format!("10.244.{}.{}", self.next_name / 200, 1 + self.next_name % 200),
        };
        let node = self.random.pick(&self.nodes).cloned().unwrap_or_default();
        let labels = json!({"app": format!("a{}", self.random.below(self.apps))});
        let body = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
            "spec": {"nodeName": node, "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "c", "image": "i"}]}});
        let collection = "/api/v1/namespaces/default/pods";
        let path = format!("{collection}/{name}");
        self.push(&path, UserAction::Create { collection, body });
        let pod = ModelPod { address, is_ready: self.random.below(4) > 0 };
        let status = pod_status(&pod);
        self.push(&path, UserAction::Patch { content_type: STRATEGIC, subresource: "/status", body: status });
        self.pods.insert(name, pod);
    }

    fn pick_pod(&mut self) -> Option<String> {
        let names: Vec<&String> = self.pods.keys().collect();
        self.random.pick(&names).copied().cloned()
    }

    fn delete_pod(&mut self) {
        let Some(name) = self.pick_pod() else { return };
        let frees = self.pods.remove(&name).map(|pod| pod.address);
        self.push(&format!("/api/v1/namespaces/default/pods/{name}"), UserAction::Delete { frees });
    }

    fn flip_readiness(&mut self) {
        let Some(name) = self.pick_pod() else { return };
        let Some(pod) = self.pods.get_mut(&name) else { return };
        pod.is_ready = !pod.is_ready;
        let body = pod_status(pod);
        let path = format!("/api/v1/namespaces/default/pods/{name}");
        self.push(&path, UserAction::Patch { content_type: STRATEGIC, subresource: "/status", body });
    }

    fn move_node(&mut self) {
        let Some(name) = self.random.pick(&self.nodes).cloned() else { return };
        let zone = format!("zone-{}", self.random.below(self.zones));
        let body = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": zone}}});
        self.push(
            &format!("/api/v1/nodes/{name}"),
            UserAction::Patch { content_type: MERGE, subresource: "", body },
        );
    }

    /// The Node object is deleted and registered again, as after a repair.
    fn replace_node(&mut self) {
        let Some(number) = (!self.nodes.is_empty()).then(|| self.random.below(self.nodes.len())) else {
            return;
        };
        let name = self.nodes[number].clone();
        let path = format!("/api/v1/nodes/{name}");
        let zone = format!("zone-{}", self.random.below(self.zones));
        let labels = json!({"topology.kubernetes.io/zone": zone, "kubernetes.io/hostname": name});
        let status = json!({"addresses": [{"type": "InternalIP", "address": format!("192.0.2.{}", 10 + number)}],
            "conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "4"}});
        let body = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
            "status": status});
        self.push(&path, UserAction::Delete { frees: None });
        self.push(&path, UserAction::Create { collection: "/api/v1/nodes", body });
        let body = json!({ "status": status });
        self.push(&path, UserAction::Patch { content_type: MERGE, subresource: "/status", body });
    }
}

fn pod_status(pod: &ModelPod) -> Value {
    let ready = if pod.is_ready { "True" } else { "False" };
    json!({"status": {"phase": "Running", "podIP": pod.address, "podIPs": [{"ip": pod.address}],
        "conditions": [{"type": "Ready", "status": ready}]}})
}

fn request(path: &str, action: &UserAction) -> Request<Bytes> {
    let (method, path, content_type, body) = match action {
        UserAction::Create { collection, body } => {
            (Method::POST, (*collection).to_owned(), JSON, body.clone())
        }
        UserAction::Patch { content_type, subresource, body } => {
            (Method::PATCH, format!("{path}{subresource}"), *content_type, body.clone())
        }
        UserAction::Delete { .. } => (Method::DELETE, path.to_owned(), JSON, Value::Null),
        UserAction::Edit { read: None } => (Method::GET, path.to_owned(), JSON, Value::Null),
        UserAction::Edit { read: Some(object) } => {
            let mut object = object.clone();
            let edits = object["metadata"]["annotations"]["example.com/edits"].as_str();
            let edits = edits.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0) + 1;
            object["metadata"]["annotations"]["example.com/edits"] = json!(edits.to_string());
            (Method::PUT, path.to_owned(), JSON, object)
        }
    };
    let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
    let request = Request::builder().method(method).uri(path).header("content-type", content_type);
    request.header("accept", JSON).body(body).expect("method, path and headers are well formed")
}

/// The body of a response that has arrived as a whole.
fn whole(body: crate::link::LinkBody) -> Value {
    let collected = std::pin::pin!(body.collect());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match collected.poll(&mut context) {
        std::task::Poll::Ready(Ok(body)) => serde_json::from_slice(&body.to_bytes()).unwrap_or_default(),
        _ => Value::Null,
    }
}
