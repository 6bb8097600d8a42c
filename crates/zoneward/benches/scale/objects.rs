//! Nodes in three zones, Services and their pods; and the requests that change them.

use http::Request;
use kube::Client;
use serde_json::{Value, json};

pub(crate) const PODS: usize = 10;
pub(crate) const ZONES: usize = 3;
/// Node objects, whatever the number of watch clients.
pub(crate) const NODES: usize = 300;
pub(crate) const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";

pub(crate) fn zone(node: usize) -> String {
    format!("zone-{}", node % ZONES)
}

/// The node of a pod: its zone goes by the pod's number.
fn node_of(service: usize, pod: usize) -> usize {
    (service * ZONES + pod) % NODES
}

pub(crate) fn is_in_first_zone(pod: usize) -> bool {
    pod.is_multiple_of(ZONES)
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

pub(crate) fn pod_name(service: usize, pod: usize, generation: usize) -> String {
    format!("{}-{pod}-{generation}", name(service))
}

/// A pod of a generation: a rolling update replaces it by the next.
pub(crate) fn pod(service: usize, pod: usize, generation: usize) -> Value {
    let id = generation * 10_000_000 + service * PODS + pod;
    let labels = json!({"app": name(service), "pod-template-hash": "6d4cf56db6"});
    let mut object = stored("Pod", &pod_name(service, pod, generation), id, &labels);
    object["spec"] = json!({"nodeName": format!("node-{}", node_of(service, pod)), "containers": [{
        "name": "app", "image": "registry.example/app:1.2.3", "ports": [{"name": "http", "containerPort": 8080}]}]});
    object["status"] = pod_status(service, pod, generation, true);
    object
}

pub(crate) fn pod_status(service: usize, pod: usize, generation: usize, ready: bool) -> Value {
    let number = generation * 1_500_000 + service * PODS + pod;
    let address = format!("10.{}.{}.{}", 128 + number / 62_500, number / 250 % 250, number % 250 + 1);
    let ready = if ready { "True" } else { "False" };
    json!({"phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-11-15T10:00:00Z"}]})
}

pub(crate) async fn set_ready(client: &Client, service: usize, pod: usize, is_ready: bool) {
    let path = format!("/api/v1/namespaces/default/pods/{}/status", pod_name(service, pod, 0));
    let status = json!({"status": pod_status(service, pod, 0, is_ready)});
    send(client, "PATCH", &path, "application/merge-patch+json", &status).await;
}

/// Deletes a pod and creates its successor, ready at once.
pub(crate) async fn replace(client: &Client, service: usize, number: usize) {
    let path = "/api/v1/namespaces/default/pods";
    let old = format!("{path}/{}", pod_name(service, number, 0));
    send(client, "DELETE", &old, "application/json", &json!({"gracePeriodSeconds": 0})).await;
    let mut new = pod(service, number, 1);
    let status = json!({"status": new.as_object_mut().unwrap().remove("status")});
    let metadata = new["metadata"].as_object_mut().unwrap();
    metadata.retain(|field, _| matches!(field.as_str(), "name" | "namespace" | "labels"));
    send(client, "POST", path, "application/json", &new).await;
    let path = format!("{path}/{}/status", pod_name(service, number, 1));
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
