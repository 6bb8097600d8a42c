//! API objects of the nodes and pods, and the Services to compare.

use clock::Clock;
use model::{Family, annotation};
use serde_json::{Value, json};

use super::layout::{self, DemoNode, POD_PORT};

pub(crate) const NAMESPACE: &str = "default";
/// The container of every pod, a thread of the namespace host.
const CONTAINER: &str = "echo";
const IMAGE: &str = "built-in";
pub(crate) const SERVICE_PORT: u16 = 80;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DemoPod {
    pub name: String,
    /// Label `app`.
    pub app: &'static str,
    /// Label `version`.
    pub version: Option<&'static str>,
    pub node: DemoNode,
    /// Number on its node, part of its addresses.
    pub number: u8,
}

/// A traffic distribution, and the field or annotation of a Service that selects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ComparedMechanism {
    pub name: &'static str,
    /// Short explanation in the table.
    pub description: &'static str,
    annotation: Option<(&'static str, &'static str)>,
    field: Option<&'static str>,
}

pub(crate) const MECHANISMS: [ComparedMechanism; 7] = [
    ComparedMechanism { name: "default", description: "any pod", annotation: None, field: None },
    ComparedMechanism {
        name: "PreferSameZone",
        description: "own zone, if it has pods",
        annotation: None,
        field: Some("PreferSameZone"),
    },
    ComparedMechanism {
        name: "PreferSameNode",
        description: "own node, else own zone",
        annotation: None,
        field: Some("PreferSameNode"),
    },
    ComparedMechanism {
        name: "Auto",
        description: "pods assigned to zones by CPU",
        annotation: Some(("service.kubernetes.io/topology-mode", "Auto")),
        field: None,
    },
    ComparedMechanism {
        name: "PreferZone",
        description: "own zone, some pods reassigned",
        annotation: Some(("endpointslice.kubernetes.io/same-zone", "Prefer")),
        field: None,
    },
    ComparedMechanism {
        name: "RequireZone",
        description: "own zone or nothing",
        annotation: Some(("endpointslice.kubernetes.io/same-zone", "Require")),
        field: None,
    },
    ComparedMechanism {
        name: "Spill",
        description: "own zone, up to fair load",
        annotation: Some((annotation::TRAFFIC_DISTRIBUTION, "Spill")),
        field: None,
    },
];

impl ComparedMechanism {
    pub(crate) fn service(&self) -> String {
        format!("web-{}", self.name.to_lowercase())
    }

    /// All of these Services select the same pods.
    pub(crate) fn object(&self) -> Value {
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

/// The Service of `demo closed-loop`.
pub(crate) const MEASURED_SERVICE: &str = "web-measured";

/// Spill on measured demand, over the pods that the compared Services have.
pub(crate) fn measured_service() -> Value {
    let mut service = service(MEASURED_SERVICE, "web");
    service["metadata"]["annotations"] =
        json!({annotation::TRAFFIC_DISTRIBUTION: "Spill", annotation::SPILL_DEMAND: "measured"});
    service
}

/// A dual-stack Service for the pods of an app.
pub(crate) fn service(name: &str, app: &str) -> Value {
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

pub(crate) fn node(node: &DemoNode) -> Value {
    let addresses = [Family::V4, Family::V6].map(|family| node.address(family).to_string());
    let ranges = [Family::V4, Family::V6].map(|family| node.pod_cidr(family));
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
    Clock::system().timestamp().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

pub(crate) fn pod(pod: &DemoPod) -> Value {
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

/// The initial pods: web servers, 8, 6 and 4 by zone; one shop pod and one client per node.
pub(crate) fn pods() -> Vec<DemoPod> {
    let mut pods = Vec::new();
    for node in layout::nodes() {
        let letter = node.name.trim_start_matches("node-").to_owned();
        let servers = match node.zone {
            "zone-a" => 4,
            "zone-b" => 3,
            _ => 2,
        };
        for i in 0..servers {
            pods.push(DemoPod {
                name: format!("web-{letter}-{i}"),
                app: "web",
                version: None,
                node: node.clone(),
                number: 10 + i,
            });
        }
        let one = |app: &'static str, number: u8| {
            let (name, node) = (format!("{app}-{letter}"), node.clone());
            DemoPod { name, app, version: None, node, number }
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
        let mut addresses: Vec<(u8, u8)> = pods.iter().map(|p| (p.node.number, p.number)).collect();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), 30);
    }

    #[test]
    fn every_object_would_be_accepted() {
        let mut interner = model::Interner::default();
        let (pods, nodes) = (pods(), layout::nodes());
        let objects = MECHANISMS.iter().map(ComparedMechanism::object).chain(pods.iter().map(pod));
        let objects = objects.chain([measured_service()]);
        for object in objects.chain(nodes.iter().map(node)) {
            let (parsed, notices) = model::parse::object(&object, &mut interner);
            assert!(parsed.is_some() && notices.is_empty(), "{object}: {notices:?}");
        }
    }
}
