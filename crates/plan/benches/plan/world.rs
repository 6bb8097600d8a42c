//! A made-up cluster as an API server would send it: JSON, one object at a time.

use serde_json::{Value, json};

/// Endpoints of each Service.
const ENDPOINTS: usize = 10;
const NODES: usize = 1_000;
const ZONES: usize = 3;
/// Services of each namespace.
const PER_NAMESPACE: usize = 100;

/// The objects, each as JSON.
pub(crate) struct Manifests {
    pub(crate) nodes: Vec<Vec<u8>>,
    pub(crate) services: Vec<Vec<u8>>,
    pub(crate) slices: Vec<Vec<u8>>,
    pub(crate) pods: Vec<Vec<u8>>,
}

impl Manifests {
    pub(crate) fn new(services: usize) -> Self {
        let bytes = |value: Value| serde_json::to_vec(&value).expect("JSON");
        let pods = (0..services).flat_map(|s| (0..ENDPOINTS).map(move |e| (s, e)));
        Self {
            nodes: (0..NODES).map(|n| bytes(node(n))).collect(),
            services: (0..services).map(|s| bytes(service(s))).collect(),
            slices: (0..services).map(|s| bytes(slice(s))).collect(),
            pods: pods.map(|(s, e)| bytes(pod(s, e))).collect(),
        }
    }

    /// What a node proxy reads.
    pub(crate) fn routed(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.nodes.iter().chain(&self.services).chain(&self.slices)
    }

    pub(crate) fn endpoints(&self) -> usize {
        self.services.len() * ENDPOINTS
    }

    pub(crate) fn routed_bytes(&self) -> usize {
        self.routed().map(Vec::len).sum()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.routed_bytes() + self.pods.iter().map(Vec::len).sum::<usize>()
    }
}

fn namespace(service: usize) -> String {
    format!("team-{}", service / PER_NAMESPACE)
}

fn uid(kind: u64, number: usize) -> String {
    let mixed = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("{:08x}-{kind:04x}-4000-8000-{:012x}", mixed >> 32, mixed & 0xffff_ffff_ffff)
}

fn node_of(service: usize, endpoint: usize) -> usize {
    (service * 7 + endpoint * 101) % NODES
}

fn pod_name(service: usize, endpoint: usize) -> String {
    format!("app-{service}-6d4cf56db6-{endpoint:05}")
}

fn address(service: usize, endpoint: usize) -> String {
    let n = service * ENDPOINTS + endpoint;
    format!("10.{}.{}.{}", 64 + (n >> 16), (n >> 8) & 255, n & 255)
}

fn node(n: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": format!("node-{n}"), "uid": uid(1, n), "resourceVersion": n.to_string(),
            "labels": {"topology.kubernetes.io/zone": format!("zone-{}", n % ZONES),
                "topology.kubernetes.io/region": "region-1", "kubernetes.io/hostname": format!("node-{n}")}},
        "spec": {"podCIDR": format!("10.{}.{}.0/24", 64 + n / 256, n % 256)},
        "status": {"allocatable": {"cpu": "3920m", "memory": "12Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "addresses": [{"type": "InternalIP", "address": format!("192.168.{}.{}", n / 256, n % 256)}]},
    })
}

fn service(s: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": format!("app-{s}"), "namespace": namespace(s), "uid": uid(2, s),
            "resourceVersion": s.to_string(), "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": format!("app-{s}"), "team": format!("team-{}", s / PER_NAMESPACE)}},
        "spec": {"type": "ClusterIP", "clusterIP": format!("10.96.{}.{}", s >> 8, s & 255),
            "clusterIPs": [format!("10.96.{}.{}", s >> 8, s & 255)], "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster", "sessionAffinity": "None",
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}],
            "selector": {"app": format!("app-{s}")}},
        "status": {"loadBalancer": {}},
    })
}

fn slice(s: usize) -> Value {
    let endpoints: Vec<Value> = (0..ENDPOINTS).map(|e| endpoint(s, e)).collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": format!("app-{s}-x7k2p"), "generateName": format!("app-{s}-"),
            "namespace": namespace(s), "uid": uid(3, s), "resourceVersion": s.to_string(), "generation": 3,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": format!("app-{s}"), "team": format!("team-{}", s / PER_NAMESPACE),
                "kubernetes.io/service-name": format!("app-{s}"),
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": format!("app-{s}"),
                "uid": uid(2, s), "controller": true, "blockOwnerDeletion": true}]},
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": endpoints,
    })
}

fn endpoint(s: usize, e: usize) -> Value {
    let node = node_of(s, e);
    json!({
        "addresses": [address(s, e)],
        "conditions": {"ready": true, "serving": true, "terminating": false},
        "nodeName": format!("node-{node}"), "zone": format!("zone-{}", node % ZONES),
        "targetRef": {"kind": "Pod", "namespace": namespace(s), "name": pod_name(s, e),
            "uid": uid(4, s * ENDPOINTS + e)},
    })
}

fn pod(s: usize, e: usize) -> Value {
    let address = address(s, e);
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": pod_name(s, e), "namespace": namespace(s), "uid": uid(4, s * ENDPOINTS + e),
            "resourceVersion": (s * ENDPOINTS + e).to_string(), "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": format!("app-{s}"), "team": format!("team-{}", s / PER_NAMESPACE),
                "pod-template-hash": "6d4cf56db6"}},
        "spec": {"nodeName": format!("node-{}", node_of(s, e)), "containers": [{"name": "main",
            "image": "registry.example/app:1", "ports": [{"name": "http", "containerPort": 8080}]}]},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"}]},
    })
}
