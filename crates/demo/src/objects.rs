//! The demo's objects: what a cluster's API would hold of these nodes and pods, and the Services to compare.

use jiff::Timestamp;
use model::{Family, annotation};
use serde_json::{Value, json};

use super::layout::{self, Node, POD_PORT};

/// The namespace of everything.
pub const NAMESPACE: &str = "default";
/// The container of every pod, which is a thread of the stage.
const CONTAINER: &str = "echo";
const IMAGE: &str = "built-in";
/// The port of every Service.
pub const SERVICE_PORT: u16 = 80;

/// A pod of the demo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// What it belongs to; Services select by it.
    pub app: &'static str,
    /// Its version, where there are several.
    pub version: Option<&'static str>,
    /// Where it is.
    pub node: Node,
    /// Its number on that node.
    pub number: u8,
}

/// One way to distribute traffic, and how a Service asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mechanism {
    /// Its name in the table.
    pub name: &'static str,
    /// What it does, for newcomers, in a narrow column.
    pub says: &'static str,
    annotation: Option<(&'static str, &'static str)>,
    field: Option<&'static str>,
}

/// What is compared, in this order.
pub const MECHANISMS: [Mechanism; 7] = [
    Mechanism { name: "default", says: "any pod", annotation: None, field: None },
    Mechanism {
        name: "PreferSameZone",
        says: "own zone, if it has pods",
        annotation: None,
        field: Some("PreferSameZone"),
    },
    Mechanism {
        name: "PreferSameNode",
        says: "own node, else own zone",
        annotation: None,
        field: Some("PreferSameNode"),
    },
    Mechanism {
        name: "Auto",
        says: "pods lent to zones by CPU",
        annotation: Some(("service.kubernetes.io/topology-mode", "Auto")),
        field: None,
    },
    Mechanism {
        name: "Prefer",
        says: "own zone, some pods lent",
        annotation: Some(("endpointslice.kubernetes.io/same-zone", "Prefer")),
        field: None,
    },
    Mechanism {
        name: "Require",
        says: "own zone or nothing",
        annotation: Some(("endpointslice.kubernetes.io/same-zone", "Require")),
        field: None,
    },
    Mechanism {
        name: "Spill",
        says: "own zone up to fair load",
        annotation: Some((annotation::TRAFFIC_DISTRIBUTION, "Spill")),
        field: None,
    },
];

impl Mechanism {
    /// The name of its Service.
    pub fn service(&self) -> String {
        format!("web-{}", self.name.to_lowercase())
    }

    /// Its Service: all of them select the same pods.
    pub fn object(&self) -> Value {
        let mut service = service(&self.service(), "web");
        if let Some((key, value)) = self.annotation {
            service["metadata"]["annotations"] = json!({key: value});
        }
        if let Some(value) = self.field {
            service["spec"]["trafficDistribution"] = value.into();
        }
        service
    }
}

/// A Service of both families for the pods of an app.
pub fn service(name: &str, app: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "selector": {"app": app},
            "ipFamilyPolicy": "RequireDualStack",
            "ports": [{"name": "http", "port": SERVICE_PORT, "targetPort": POD_PORT}],
        },
    })
}

/// A node that is ready and has four cores.
pub fn node(node: &Node) -> Value {
    let addresses = [Family::V4, Family::V6].map(|family| node.address(family).to_string());
    let ranges = [Family::V4, Family::V6].map(|family| node.pod_range(family));
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": node.name, "labels": {
            "kubernetes.io/hostname": node.name,
            "topology.kubernetes.io/zone": node.zone,
            "topology.kubernetes.io/region": "demo",
        }},
        "spec": {"podCIDR": ranges[0], "podCIDRs": ranges},
        "status": {
            "addresses": addresses.map(|address| json!({"type": "InternalIP", "address": address})),
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
            "capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"},
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "ZonewardDemo",
                "message": "a network namespace of zoneward demo",
                "lastHeartbeatTime": now(), "lastTransitionTime": now(),
            }],
        },
    })
}

fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A pod that runs and is ready.
pub fn pod(pod: &Pod) -> Value {
    let addresses = [Family::V4, Family::V6].map(|family| layout::pod(pod.node.number, pod.number, family));
    let hosts = [Family::V4, Family::V6].map(|family| pod.node.address(family));
    let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"]
        .map(|kind| json!({"type": kind, "status": "True", "lastTransitionTime": now()}));
    let mut labels = json!({"app": pod.app});
    if let Some(version) = pod.version {
        labels["version"] = version.into();
    }
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": pod.name, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "nodeName": pod.node.name,
            "containers": [{"name": CONTAINER, "image": IMAGE, "ports": [{"containerPort": POD_PORT}]}],
        },
        "status": {
            "phase": "Running",
            "podIP": addresses[0],
            "podIPs": addresses.map(|address| json!({"ip": address})),
            "hostIP": hosts[0],
            "hostIPs": hosts.map(|address| json!({"ip": address})),
            "startTime": now(),
            "conditions": conditions,
            "containerStatuses": [{
                "name": CONTAINER, "image": IMAGE, "imageID": IMAGE, "restartCount": 0,
                "ready": true, "started": true, "state": {"running": {"startedAt": now()}},
            }],
        },
    })
}

/// The pods at the start: web servers, more of them in the first zone than in the last; a shop with one pod on each
/// node; and a client on each node.
pub fn pods() -> Vec<Pod> {
    let mut pods = Vec::new();
    for node in layout::nodes() {
        let letter = node.name.trim_start_matches("node-").to_owned();
        let servers = match node.zone {
            "zone-a" => 4,
            "zone-b" => 3,
            _ => 2,
        };
        for i in 0..servers {
            pods.push(Pod {
                name: format!("web-{letter}-{i}"),
                app: "web",
                version: None,
                node: node.clone(),
                number: 10 + i,
            });
        }
        let one = |app: &'static str, number: u8| {
            let (name, node) = (format!("{app}-{letter}"), node.clone());
            Pod { name, app, version: None, node, number }
        };
        pods.extend([one("shop", 30), one("client", 2)]);
    }
    pods
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_thirty_pods_and_no_address_twice() {
        let pods = pods();
        assert_eq!(pods.len(), 30);
        let mut places: Vec<(u8, u8)> = pods.iter().map(|p| (p.node.number, p.number)).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 30);
    }

    #[test]
    fn every_object_would_be_accepted() {
        let mut interner = model::Interner::default();
        let (pods, nodes) = (pods(), layout::nodes());
        let objects = MECHANISMS.iter().map(Mechanism::object).chain(pods.iter().map(pod));
        for object in objects.chain(nodes.iter().map(node)) {
            let (parsed, notices) = model::parse::object(&object, &mut interner);
            assert!(parsed.is_some() && notices.is_empty(), "{object}: {notices:?}");
        }
    }
}
