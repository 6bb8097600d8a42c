//! List and map types of the built-in kinds: facts of the Kubernetes API, in the words of its OpenAPI extensions. The
//! generated schemas lack them. A list without a row is atomic, a map or struct without one is merged field by field.

use serde_json::{Map, Value, json};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const CONTAINER: &str = "io.k8s.api.core.v1.Container";
const EPHEMERAL: &str = "io.k8s.api.core.v1.EphemeralContainer";
const POD_SPEC: &str = "io.k8s.api.core.v1.PodSpec";
const POD_STATUS: &str = "io.k8s.api.core.v1.PodStatus";
const NODE_CLAIM: &str = "io.k8s.api.core.v1.NodeAllocatableResourceClaimStatus";
const POLICY_SPEC: &str = "io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicySpec";

/// (definition, field, keys): lists of maps, by these keys.
const KEYED: &[(&str, &str, &[&str])] = &[
    (META, "ownerReferences", &["uid"]),
    (POLICY_SPEC, "matchConditions", &["name"]),
    (POLICY_SPEC, "variables", &["name"]),
    ("io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicyStatus", "conditions", &["type"]),
    (CONTAINER, "env", &["name"]),
    (CONTAINER, "ports", &["containerPort", "protocol"]),
    (CONTAINER, "volumeDevices", &["devicePath"]),
    (CONTAINER, "volumeMounts", &["mountPath"]),
    ("io.k8s.api.core.v1.ContainerStatus", "allocatedResourcesStatus", &["name"]),
    ("io.k8s.api.core.v1.ContainerStatus", "volumeMounts", &["mountPath"]),
    (EPHEMERAL, "env", &["name"]),
    (EPHEMERAL, "ports", &["containerPort", "protocol"]),
    (EPHEMERAL, "volumeDevices", &["devicePath"]),
    (EPHEMERAL, "volumeMounts", &["mountPath"]),
    ("io.k8s.api.core.v1.NamespaceStatus", "conditions", &["type"]),
    (NODE_CLAIM, "mapping", &["name"]),
    (NODE_CLAIM, "overhead", &["name"]),
    ("io.k8s.api.core.v1.NodeStatus", "addresses", &["type"]),
    ("io.k8s.api.core.v1.NodeStatus", "conditions", &["type"]),
    (POD_SPEC, "containers", &["name"]),
    (POD_SPEC, "ephemeralContainers", &["name"]),
    (POD_SPEC, "evictionResponders", &["name"]),
    (POD_SPEC, "hostAliases", &["ip"]),
    (POD_SPEC, "imagePullSecrets", &["name"]),
    (POD_SPEC, "initContainers", &["name"]),
    (POD_SPEC, "resourceClaims", &["name"]),
    (POD_SPEC, "schedulingGates", &["name"]),
    (POD_SPEC, "topologySpreadConstraints", &["topologyKey", "whenUnsatisfiable"]),
    (POD_SPEC, "volumes", &["name"]),
    (POD_STATUS, "conditions", &["type"]),
    (POD_STATUS, "nodeAllocatableResourceClaimStatuses", &["resourceClaimName"]),
    (POD_STATUS, "podIPs", &["ip"]),
    (POD_STATUS, "resourceClaimStatuses", &["name"]),
    (POD_STATUS, "volumeHealth", &["name"]),
    ("io.k8s.api.core.v1.PodVolumeHealth", "healthConditions", &["status", "reason"]),
    ("io.k8s.api.core.v1.ResourceRequirements", "claims", &["name"]),
    ("io.k8s.api.core.v1.ResourceStatus", "resources", &["resourceID"]),
    ("io.k8s.api.core.v1.ServiceAccount", "secrets", &["name"]),
    ("io.k8s.api.core.v1.ServiceSpec", "ports", &["port", "protocol"]),
    ("io.k8s.api.core.v1.ServiceStatus", "conditions", &["type"]),
    ("io.k8s.api.networking.v1.ServiceCIDRStatus", "conditions", &["type"]),
];

/// (definition, field): lists of scalars without duplicates.
const SETS: &[(&str, &str)] = &[
    (META, "finalizers"),
    ("io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicyBindingSpec", "validationActions"),
    ("io.k8s.api.core.v1.ContainerRestartRuleOnExitCodes", "values"),
    (NODE_CLAIM, "containers"),
    ("io.k8s.api.core.v1.NodePodPreemptionPolicy", "disableResizePreemption"),
    ("io.k8s.api.core.v1.NodeSpec", "podCIDRs"),
    ("io.k8s.api.core.v1.VolumeMount", "bindMountOptions"),
    ("io.k8s.api.discovery.v1.Endpoint", "addresses"),
];

/// (definition, field): maps that are replaced as a whole.
const ATOMIC_MAPS: &[(&str, &str)] =
    &[(POD_SPEC, "nodeSelector"), ("io.k8s.api.core.v1.ServiceSpec", "selector")];

/// Structs that are replaced as a whole.
const ATOMIC_STRUCTS: &[&str] = &[
    "io.k8s.api.admissionregistration.v1.MatchResources",
    "io.k8s.api.admissionregistration.v1.NamedRuleWithOperations",
    "io.k8s.api.admissionregistration.v1.ParamKind",
    "io.k8s.api.admissionregistration.v1.ParamRef",
    "io.k8s.api.admissionregistration.v1.Variable",
    "io.k8s.api.core.v1.ConfigMapKeySelector",
    "io.k8s.api.core.v1.EvictionResponder",
    "io.k8s.api.core.v1.FileKeySelector",
    "io.k8s.api.core.v1.LocalObjectReference",
    "io.k8s.api.core.v1.NodeSelector",
    "io.k8s.api.core.v1.NodeSelectorTerm",
    "io.k8s.api.core.v1.ObjectFieldSelector",
    "io.k8s.api.core.v1.ObjectReference",
    "io.k8s.api.core.v1.ResourceFieldSelector",
    "io.k8s.api.core.v1.SecretKeySelector",
    "io.k8s.api.core.v1.TypedLocalObjectReference",
    "io.k8s.api.discovery.v1.EndpointPort",
    "io.k8s.api.rbac.v1.RoleRef",
    "io.k8s.api.rbac.v1.Subject",
    "io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector",
    "io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference",
];

/// (definition, key of its list, value if it is left out)
const KEY_DEFAULTS: &[(&str, &str, &str)] = &[
    ("io.k8s.api.core.v1.ContainerPort", "protocol", "TCP"),
    ("io.k8s.api.core.v1.ServicePort", "protocol", "TCP"),
];

/// Adds the list and map types to the definitions of built-in types, as OpenAPI extensions.
pub fn annotate(definitions: &mut Map<String, Value>) {
    let mut set = |definition: &str, field: &str, name: &str, value: Value| {
        let property = definitions.get_mut(definition).and_then(|schema| schema["properties"].get_mut(field));
        if let Some(property) = property.and_then(Value::as_object_mut) {
            property.insert(name.to_owned(), value);
        }
    };
    for (definition, field, keys) in KEYED {
        set(definition, field, "x-kubernetes-list-type", json!("map"));
        set(definition, field, "x-kubernetes-list-map-keys", json!(keys));
    }
    for (definition, field) in SETS {
        set(definition, field, "x-kubernetes-list-type", json!("set"));
    }
    for (definition, field) in ATOMIC_MAPS {
        set(definition, field, "x-kubernetes-map-type", json!("atomic"));
    }
    for (definition, key, value) in KEY_DEFAULTS {
        set(definition, key, "default", json!(value));
    }
    for name in ATOMIC_STRUCTS {
        if let Some(schema) = definitions.get_mut(*name).and_then(Value::as_object_mut) {
            schema.insert("x-kubernetes-map-type".to_owned(), json!("atomic"));
        }
    }
}

/// The fields of a built-in type that exist in every object: structs that are no pointers, and the one merged list that is
/// written even without items.
pub(super) fn always_present(definition: &str) -> &'static [&'static str] {
    let Some(name) = definition.strip_prefix("io.k8s.api.") else { return &[] };
    match name {
        "core.v1.Namespace"
        | "core.v1.Node"
        | "core.v1.Pod"
        | "core.v1.Service"
        | "networking.v1.ServiceCIDR"
        | "admissionregistration.v1.ValidatingAdmissionPolicy" => &["spec", "status"],
        "coordination.v1.Lease"
        | "networking.v1.IPAddress"
        | "admissionregistration.v1.ValidatingAdmissionPolicyBinding" => &["spec"],
        "core.v1.Container" | "core.v1.EphemeralContainer" => &["resources"],
        "core.v1.PodSpec" => &["containers"],
        "core.v1.ContainerStatus" => &["lastState", "state"],
        "core.v1.NodeStatus" => &["daemonEndpoints", "nodeInfo"],
        "core.v1.NodeDaemonEndpoints" => &["kubeletEndpoint"],
        "core.v1.ServiceStatus" => &["loadBalancer"],
        "core.v1.Event" => &["involvedObject", "source"],
        "events.v1.Event" => &["deprecatedSource", "regarding"],
        "rbac.v1.ClusterRoleBinding" | "rbac.v1.RoleBinding" => &["roleRef"],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors' rows are facts; ours may be more.
    #[test]
    fn the_rows_of_the_vectors_are_here() {
        let rows: Value = serde_json::from_str(include_str!("../../../../vectors/list-types.json")).unwrap();
        for row in rows["lists"].as_array().unwrap() {
            let (definition, field) = (row[0].as_str().unwrap(), row[1].as_str().unwrap());
            let keys = KEYED.iter().find(|row| row.0 == definition && row.1 == field).map(|row| row.2);
            match row[2].as_str().unwrap() {
                "map" => {
                    assert_eq!(keys.map(|keys| json!(keys)), Some(row[3].clone()), "{definition} {field}")
                }
                _ => assert!(SETS.contains(&(definition, field)), "{definition} {field}"),
            }
        }
        for row in rows["atomic_maps"].as_array().unwrap() {
            assert!(ATOMIC_MAPS.contains(&(row[0].as_str().unwrap(), row[1].as_str().unwrap())), "{row}");
        }
        for name in rows["atomic_structs"].as_array().unwrap() {
            assert!(ATOMIC_STRUCTS.contains(&name.as_str().unwrap()), "{name}");
        }
        let defaults: Vec<Value> = KEY_DEFAULTS.iter().map(|row| json!([row.0, row.1, row.2])).collect();
        assert_eq!(rows["key_defaults"].as_array().unwrap(), &defaults);
    }
}
