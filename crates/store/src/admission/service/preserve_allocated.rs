//! Updates of Services: allocated fields that the client leaves out are kept, and fields that only the old type has are
//! dropped unless the client changed them.

use serde_json::{Map, Value};

type Spec = Map<String, Value>;

/// Keeps allocated values and drops fields of the old type.
pub(crate) fn preserve_allocated(old: &Value, new: &mut Value) {
    let Some(old) = old["spec"].as_object() else { return };
    let Some(new) = new.get_mut("spec").and_then(Value::as_object_mut) else { return };
    keep_allocated(old, new);
    drop_dependents(old, new);
}

fn kind(spec: &Spec) -> &str {
    spec.get("type").and_then(Value::as_str).unwrap_or("ClusterIP")
}

fn is(spec: &Spec, kinds: &[&str]) -> bool {
    kinds.contains(&kind(spec))
}

fn needs_health_check(spec: &Spec) -> bool {
    is(spec, &["LoadBalancer"]) && spec.get("externalTrafficPolicy").is_some_and(|policy| policy == "Local")
}

fn is_external(spec: &Spec) -> bool {
    let by_address = spec.get("externalIPs").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    is(spec, &["NodePort", "LoadBalancer"]) || is(spec, &["ClusterIP"]) && by_address
}

fn is_empty(spec: &Spec, name: &str) -> bool {
    match spec.get(name) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(list)) => list.is_empty(),
        Some(Value::Number(number)) => number.as_u64() == Some(0),
        Some(_) => false,
    }
}

fn copy(old: &Spec, new: &mut Spec, name: &str) {
    if let Some(value) = old.get(name) {
        new.insert(name.to_owned(), value.clone());
    }
}

fn keep_allocated(old: &Spec, new: &mut Spec) {
    let addressed = !is(old, &["ExternalName"]) && !is(new, &["ExternalName"]);
    if addressed && is_empty(new, "clusterIP") && is_empty(new, "clusterIPs") {
        copy(old, new, "clusterIP");
        copy(old, new, "clusterIPs");
    } else if addressed && is_empty(new, "clusterIPs") && new.get("clusterIP") == old.get("clusterIP") {
        copy(old, new, "clusterIPs");
    }
    if is(old, &["NodePort", "LoadBalancer"]) && is(new, &["NodePort", "LoadBalancer"]) {
        keep_node_ports(old, new);
    }
    if needs_health_check(old) && needs_health_check(new) && is_empty(new, "healthCheckNodePort") {
        copy(old, new, "healthCheckNodePort");
    }
}

fn ports(spec: &Spec) -> &[Value] {
    spec.get("ports").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn node_port(port: &Value) -> Option<u64> {
    port["nodePort"].as_u64().filter(|number| *number != 0)
}

fn keep_node_ports(old: &Spec, new: &mut Spec) {
    let mut used: Vec<u64> = ports(new).iter().filter_map(node_port).collect();
    for port in new.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if node_port(port).is_some() || !port.is_object() {
            continue;
        }
        let same = |before: &&Value| before["port"] == port["port"] && before["protocol"] == port["protocol"];
        let kept = ports(old).iter().find(same).and_then(node_port).filter(|number| !used.contains(number));
        if let Some(number) = kept {
            used.push(number);
            port["nodePort"] = number.into();
        }
    }
}

/// Drops a field that the new type does not have, unless the client changed it.
fn drop_unchanged(old: &Spec, new: &mut Spec, name: &str) {
    if new.get(name) == old.get(name) {
        new.shift_remove(name);
    }
}

fn drop_dependents(old: &Spec, new: &mut Spec) {
    if !is(old, &["ExternalName"]) && is(new, &["ExternalName"]) {
        for name in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"] {
            drop_unchanged(old, new, name);
        }
    }
    if is(old, &["NodePort", "LoadBalancer"]) && !is(new, &["NodePort", "LoadBalancer"]) {
        let before: Vec<u64> = ports(old).iter().filter_map(node_port).collect();
        for port in new.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
            if node_port(port).is_some_and(|number| before.contains(&number))
                && let Some(port) = port.as_object_mut()
            {
                port.shift_remove("nodePort");
            }
        }
    }
    if needs_health_check(old) && !needs_health_check(new) {
        drop_unchanged(old, new, "healthCheckNodePort");
    }
    if is(old, &["LoadBalancer"]) && !is(new, &["LoadBalancer"]) {
        drop_unchanged(old, new, "allocateLoadBalancerNodePorts");
        drop_unchanged(old, new, "loadBalancerClass");
    }
    if is_external(old) && !is_external(new) {
        drop_unchanged(old, new, "externalTrafficPolicy");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn allocated_fields_that_a_client_leaves_out_are_kept() {
        let old = json!({"spec": {"type": "NodePort", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"],
            "ports": [{"port": 80, "protocol": "TCP", "nodePort": 30080}]}});
        let mut new = json!({"spec": {"type": "NodePort", "ports": [{"port": 80, "protocol": "TCP"}]}});
        preserve_allocated(&old, &mut new);
        assert_eq!(new, old);
    }

    #[test]
    fn node_ports_go_with_the_type_that_had_them() {
        let old = json!({"spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 30001, "allocateLoadBalancerNodePorts": true,
            "ports": [{"port": 80, "nodePort": 30080}]}});
        let mut new = old.clone();
        new["spec"]["type"] = "ClusterIP".into();
        preserve_allocated(&old, &mut new);
        assert_eq!(new, json!({"spec": {"type": "ClusterIP", "ports": [{"port": 80}]}}));
    }

    #[test]
    fn a_field_that_the_client_changed_is_left_for_validation() {
        let old = json!({"spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]}});
        let mut new = json!({"spec": {"type": "ClusterIP", "ports": [{"port": 80, "nodePort": 30099}]}});
        preserve_allocated(&old, &mut new);
        assert_eq!(new["spec"]["ports"][0]["nodePort"], 30099);
    }
}
