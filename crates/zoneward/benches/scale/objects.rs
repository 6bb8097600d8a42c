//! Nodes in three zones, Services and their pods; and the requests that change them.

use http::Request;
use kube::Client;
use serde_json::{Value, json};

pub(crate) const ZONES: usize = 3;
/// Node objects, whatever the number of watch clients.
pub(crate) const NODES: usize = 300;
pub(crate) const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";

pub(crate) fn zone(node: usize) -> String {
    format!("zone-{}", node % ZONES)
}

/// A pod of a Service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PodOf {
    pub(crate) service: usize,
    pub(crate) at: usize,
    /// How many each Service has.
    pub(crate) of: usize,
}

impl PodOf {
    fn number(self) -> usize {
        self.service * self.of + self.at
    }

    /// Its zone goes by its place in the Service.
    fn node(self) -> usize {
        (self.service * ZONES + self.at) % NODES
    }

    pub(crate) fn zone(self) -> usize {
        self.at % ZONES
    }
}

fn name(service: usize) -> String {
    format!("service-{service}")
}

fn stored(kind: &str, name: &str, id: usize, labels: &Value) -> Value {
    let namespace = (kind != "Node").then_some("default");
    json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace,
        "uid": format!("00000000-0000-4000-8{}00-{id:012}", kind.len() % 10),
        "creationTimestamp": "2026-11-01T10:00:00Z", "labels": labels}})
}

pub(crate) fn node(number: usize) -> Value {
    let labels = json!({"topology.kubernetes.io/zone": zone(number)});
    let mut node = stored("Node", &format!("node-{number}"), number, &labels);
    node["metadata"].as_object_mut().unwrap().remove("namespace");
    node["status"] =
        json!({"allocatable": {"cpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]});
    node
}

pub(crate) fn service(number: usize) -> Value {
    let ip = format!("10.{}.{}.{}", 96 + number / 62_500, number / 250 % 250, number % 250 + 2);
    let mut service = stored("Service", &name(number), number, &json!({"app": name(number)}));
    service["spec"] = json!({"type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip], "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster", "sessionAffinity": "None",
        "trafficDistribution": "PreferSameZone", "selector": {"app": name(number)},
        "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}]});
    service
}

fn pod_name(pod: PodOf, generation: usize) -> String {
    format!("{}-{}-{generation}", name(pod.service), pod.at)
}

/// A pod of a generation: a rolling update replaces it by the next.
pub(crate) fn pod(pod: PodOf, generation: usize) -> Value {
    let id = generation * 10_000_000 + pod.number();
    let labels = json!({"app": name(pod.service), "pod-template-hash": "6d4cf56db6"});
    let mut object = stored("Pod", &pod_name(pod, generation), id, &labels);
    object["spec"] = json!({"nodeName": format!("node-{}", pod.node()), "containers": [{
        "name": "app", "image": "registry.example/app:1.2.3", "ports": [{"name": "http", "containerPort": 8080}]}]});
    object["status"] = pod_status(pod, generation, true);
    object
}

fn pod_status(pod: PodOf, generation: usize, ready: bool) -> Value {
    let number = generation * 1_500_000 + pod.number();
    let address = format!("10.{}.{}.{}", 128 + number / 62_500, number / 250 % 250, number % 250 + 1);
    let ready = if ready { "True" } else { "False" };
    json!({"phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-11-15T10:00:00Z"}]})
}

pub(crate) async fn set_ready(client: &Client, pod: PodOf, is_ready: bool) {
    let path = format!("/api/v1/namespaces/default/pods/{}/status", pod_name(pod, 0));
    let status = json!({"status": pod_status(pod, 0, is_ready)});
    send(client, "PATCH", &path, "application/merge-patch+json", &status).await;
}

/// Deletes a pod and creates its successor, ready at once.
pub(crate) async fn replace(client: &Client, old: PodOf) {
    let path = "/api/v1/namespaces/default/pods";
    let deleted = format!("{path}/{}", pod_name(old, 0));
    send(client, "DELETE", &deleted, "application/json", &json!({"gracePeriodSeconds": 0})).await;
    let mut new = pod(old, 1);
    let status = json!({"status": new.as_object_mut().unwrap().remove("status")});
    let metadata = new["metadata"].as_object_mut().unwrap();
    metadata.retain(|field, _| matches!(field.as_str(), "name" | "namespace" | "labels"));
    send(client, "POST", path, "application/json", &new).await;
    let path = format!("{path}/{}/status", pod_name(old, 1));
    send(client, "PATCH", &path, "application/merge-patch+json", &status).await;
}

async fn send(client: &Client, method: &str, path: &str, kind: &str, body: &Value) {
    let request = Request::builder().method(method).uri(path).header("content-type", kind);
    let sent = client.request_text(request.body(serde_json::to_vec(body).unwrap()).unwrap()).await;
    sent.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
}

/// How many slices there are.
pub(crate) async fn slice_count(client: &Client) -> usize {
    let list = slices_head(client).await;
    let rest = list["metadata"]["remainingItemCount"].as_u64().unwrap_or(0) as usize;
    list["items"].as_array().unwrap().len() + rest
}

pub(crate) async fn slice_version(client: &Client) -> String {
    slices_head(client).await["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

async fn slices_head(client: &Client) -> Value {
    let request = Request::builder().uri(format!("{SLICES}?limit=1")).body(Vec::new()).unwrap();
    client.request(request).await.unwrap()
}
