//! What a node may write, within its rights by RBAC: its own Node, Lease and Events, and the slices of processes that it
//! exposes. RBAC names no object by its user, so this is decided here, as NodeRestriction does in Kubernetes.

use model::annotation;
use serde_json::Value;

use super::{NODES, NodeIdentity};
use crate::cluster_ips::kubernetes_service;
use crate::rbac::UserInfo;

/// A write that RBAC allows.
#[derive(Clone, Copy, Debug)]
pub struct NodeWrite<'a> {
    pub kind: &'a str,
    /// The new version; null for a deletion.
    pub new: &'a Value,
    /// The stored version; null for a new object.
    pub old: &'a Value,
    /// The Service of an EndpointSlice.
    pub service: Option<&'a Value>,
}

/// Refuses what a node may not write; users that are no nodes are not restricted here.
pub fn check_node_write(user: &UserInfo, write: &NodeWrite<'_>) -> Result<(), String> {
    if !user.groups.iter().any(|group| group == NODES) {
        return Ok(());
    }
    let Some(node) = NodeIdentity::of(user) else {
        return Err(format!("User {:?} is in group {NODES} and names no node", user.name));
    };
    match write.kind {
        "Node" => own_node(&node.name, write),
        "Lease" => own_lease(&node.name, write),
        "Event" => own_event(&node.name, write),
        "EndpointSlice" => own_slice(&node, write),
        kind => Err(format!("node {} may not write objects of kind {kind}", node.name)),
    }
}

fn versions<'a>(write: &NodeWrite<'a>) -> impl Iterator<Item = &'a Value> {
    [write.old, write.new].into_iter().filter(|object| !object.is_null())
}

fn text<'a>(object: &'a Value, name: &str) -> &'a str {
    object["metadata"][name].as_str().unwrap_or_default()
}

fn own_node(node: &str, write: &NodeWrite<'_>) -> Result<(), String> {
    if write.old.is_null() || write.new.is_null() || text(write.new, "name") != node {
        return Err(format!("node {node} may change only its own Node"));
    }
    // A finalizer would keep the Node, and an owner would delete it.
    for field in ["finalizers", "ownerReferences"] {
        if write.old["metadata"][field] != write.new["metadata"][field] {
            return Err(format!("node {node} may not change metadata.{field} of its Node"));
        }
    }
    // Ranges of pods say whose traffic it is.
    match write.old["spec"] == write.new["spec"] {
        true => Ok(()),
        false => Err(format!("node {node} may not change spec of its Node")),
    }
}

fn own_lease(node: &str, write: &NodeWrite<'_>) -> Result<(), String> {
    let name = format!("{}{node}", annotation::NODE_LEASE_PREFIX);
    let is_own = |lease: &Value| text(lease, "name") == name && text(lease, "namespace") == super::NAMESPACE;
    match versions(write).all(is_own) {
        true => Ok(()),
        false => Err(format!("node {node} may write only its own Lease, {}/{name}", super::NAMESPACE)),
    }
}

fn own_event(node: &str, write: &NodeWrite<'_>) -> Result<(), String> {
    match versions(write).all(|event| event["source"]["host"] == node) {
        true => Ok(()),
        false => Err(format!("node {node} may write only Events with source.host {node}")),
    }
}

fn own_slice(node: &NodeIdentity, write: &NodeWrite<'_>) -> Result<(), String> {
    let name = &node.name;
    let label = |slice: &'_ Value, key: &str| slice["metadata"]["labels"][key].as_str().map(str::to_owned);
    let is_own = |slice: &Value| {
        label(slice, annotation::MANAGED_BY).as_deref() == Some(annotation::EXPOSE_CONTROLLER_NAME)
            && label(slice, annotation::EXPOSE_NODE).as_deref() == Some(name)
    };
    if !versions(write).all(is_own) {
        return Err(format!(
            "node {name} may write only EndpointSlices with the labels {}: {} and {}: {name}",
            annotation::MANAGED_BY,
            annotation::EXPOSE_CONTROLLER_NAME,
            annotation::EXPOSE_NODE,
        ));
    }
    let slice = write.new;
    if slice.is_null() {
        return Ok(());
    }
    let endpoints = slice["endpoints"].as_array().map(Vec::as_slice).unwrap_or_default();
    if let Some(at) = endpoints.iter().position(|endpoint| endpoint["nodeName"] != name.as_str()) {
        return Err(format!("endpoints[{at}].nodeName: node {name} may expose only endpoints of its own"));
    }
    // So that the endpoints end with the Node.
    let owners = slice["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_owner = |owner: &Value| {
        owner["apiVersion"] == "v1" && owner["kind"] == "Node" && owner["uid"] == node.uid.as_str()
    };
    if owners.len() != 1 || !owners.iter().all(is_owner) {
        return Err(format!("metadata.ownerReferences: the owner has to be Node {name}, and no other"));
    }
    if slice["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty()) {
        return Err(format!("metadata.finalizers: node {name} may not keep a slice from being deleted"));
    }
    if label(slice, annotation::COEXIST_SERVICE_NAME).is_some() {
        return Err(format!("label {}: node {name} may not set it", annotation::COEXIST_SERVICE_NAME));
    }
    open_service(name, slice, write.service)
}

/// A Service with a selector gets its endpoints from Pods, and that of the API from the API.
fn open_service(node: &str, slice: &Value, service: Option<&Value>) -> Result<(), String> {
    let (namespace, name) = (
        text(slice, "namespace"),
        slice["metadata"]["labels"][annotation::SERVICE_NAME].as_str().unwrap_or_default(),
    );
    let Some(service) = service else {
        return Err(format!(
            "Service {namespace}/{name} does not exist, and node {node} may not create it: create a Service without a \
             selector first, as an administrator"
        ));
    };
    let has_selector = service["spec"]["selector"].as_object().is_some_and(|selector| !selector.is_empty());
    let is_api = (namespace, name) == (kubernetes_service::NAMESPACE, kubernetes_service::NAME);
    if has_selector || is_api || namespace == super::NAMESPACE {
        return Err(format!(
            "node {node} may not add endpoints to Service {namespace}/{name}: only to Services without a selector, \
             outside of {}",
            super::NAMESPACE
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node() -> NodeIdentity {
        NodeIdentity { name: "a".to_owned(), uid: "u".to_owned() }
    }

    fn check(kind: &str, old: &Value, new: &Value, service: Option<&Value>) -> Result<(), String> {
        check_node_write(&node().user(), &NodeWrite { kind, new, old, service })
    }

    fn slice() -> Value {
        json!({"metadata": {"name": "s", "namespace": "default",
            "labels": {"kubernetes.io/service-name": "web", "zoneward.dev/expose-node": "a",
                "endpointslice.kubernetes.io/managed-by": annotation::EXPOSE_CONTROLLER_NAME},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "u"}]},
            "endpoints": [{"addresses": ["10.0.0.1"], "nodeName": "a"}]})
    }

    #[test]
    fn users_that_are_no_nodes_are_not_restricted_and_nodes_without_a_name_write_nothing() {
        let write = NodeWrite { kind: "Secret", new: &Value::Null, old: &Value::Null, service: None };
        assert_eq!(check_node_write(&UserInfo::new("admin", &["system:masters"]), &write), Ok(()));
        assert!(check_node_write(&UserInfo::new("x", &[NODES]), &write).is_err());
        assert!(check("Secret", &Value::Null, &json!({}), None).is_err());
    }

    #[test]
    fn a_node_changes_its_own_node_without_finalizers_and_owners() {
        let own = json!({"metadata": {"name": "a"}});
        assert_eq!(
            check("Node", &own, &json!({"metadata": {"name": "a", "labels": {"x": "y"}}}), None),
            Ok(())
        );
        for (old, new) in [
            (json!({"metadata": {"name": "b"}}), json!({"metadata": {"name": "b"}})),
            (Value::Null, own.clone()),
            (own.clone(), Value::Null),
            (own.clone(), json!({"metadata": {"name": "a", "finalizers": ["x/y"]}})),
            (own.clone(), json!({"metadata": {"name": "a", "ownerReferences": [{}]}})),
            (own.clone(), json!({"metadata": {"name": "a"}, "spec": {"podCIDR": "10.0.0.0/8"}})),
        ] {
            assert!(check("Node", &old, &new, None).is_err(), "{old} {new}");
        }
    }

    #[test]
    fn a_node_writes_its_own_lease_and_events() {
        let lease = |name: &str, namespace: &str| json!({"metadata": {"name": name, "namespace": namespace}});
        assert_eq!(check("Lease", &Value::Null, &lease("zoneward-node-a", "kube-system"), None), Ok(()));
        assert!(check("Lease", &Value::Null, &lease("zoneward-node-b", "kube-system"), None).is_err());
        assert!(check("Lease", &Value::Null, &lease("zoneward-node-a", "default"), None).is_err());
        let event = |host: &str| json!({"source": {"host": host}});
        assert_eq!(check("Event", &event("a"), &event("a"), None), Ok(()));
        assert!(check("Event", &event("b"), &event("a"), None).is_err());
        assert!(check("Event", &Value::Null, &json!({}), None).is_err());
    }

    #[test]
    fn a_node_writes_slices_of_its_own_endpoints_for_services_without_a_selector() {
        let (open, selecting) = (json!({"spec": {}}), json!({"spec": {"selector": {"app": "web"}}}));
        let own = slice();
        assert_eq!(check("EndpointSlice", &Value::Null, &own, Some(&open)), Ok(()));
        assert_eq!(check("EndpointSlice", &own, &Value::Null, None), Ok(()), "deleted");
        assert!(check("EndpointSlice", &Value::Null, &own, None).unwrap_err().contains("does not exist"));
        assert!(check("EndpointSlice", &Value::Null, &own, Some(&selecting)).is_err());
        let changes = [
            ("/metadata/labels/zoneward.dev~1expose-node", json!("b")),
            ("/metadata/labels/endpointslice.kubernetes.io~1managed-by", json!("x")),
            ("/metadata/labels/kubernetes.io~1service-name", json!("kubernetes")),
            ("/metadata/namespace", json!("kube-system")),
            ("/metadata/ownerReferences", json!([])),
            ("/metadata/ownerReferences/0/uid", json!("other")),
            ("/endpoints/0/nodeName", json!("b")),
            ("/endpoints/0/nodeName", Value::Null),
        ];
        for (path, value) in changes {
            let mut wrong = own.clone();
            *wrong.pointer_mut(path).unwrap() = value;
            assert!(check("EndpointSlice", &own, &wrong, Some(&open)).is_err(), "{path}");
        }
        let mut coexisting = own.clone();
        coexisting["metadata"]["labels"]["zoneward.dev/service-name"] = "x".into();
        assert!(check("EndpointSlice", &own, &coexisting, Some(&open)).is_err());
        let mut kept = own.clone();
        kept["metadata"]["finalizers"] = json!(["x/y"]);
        assert!(check("EndpointSlice", &own, &kept, Some(&open)).is_err());
        let mut other = own.clone();
        other["metadata"]["labels"]["zoneward.dev/expose-node"] = "b".into();
        assert!(check("EndpointSlice", &other, &Value::Null, None).is_err(), "of another node");
    }
}
