//! The patch strategies and merge keys of lists, for strategic merge. The generated schemas lack them; these are the rows
//! of Kubernetes for the served kinds.

use serde_json::{Value, json};

/// The patch strategy of a list.
enum Strategy {
    /// A list of maps, merged by a key.
    ByKey(&'static str),
    /// The same with `$retainKeys`.
    ByKeyRetaining(&'static str),
    /// A list of plain values, merged as a set.
    Set,
}

use Strategy::{ByKey, ByKeyRetaining, Set};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// (definition, field, strategy)
const ROWS: &[(&str, &str, Strategy)] = &[
    (META, "finalizers", Set),
    (META, "ownerReferences", ByKey("uid")),
    ("io.k8s.api.core.v1.ServiceSpec", "ports", ByKey("port")),
    ("io.k8s.api.core.v1.ServiceStatus", "conditions", ByKey("type")),
    ("io.k8s.api.core.v1.NamespaceStatus", "conditions", ByKey("type")),
    ("io.k8s.api.core.v1.NodeSpec", "podCIDRs", Set),
    ("io.k8s.api.core.v1.NodeStatus", "addresses", ByKey("type")),
    ("io.k8s.api.core.v1.NodeStatus", "conditions", ByKey("type")),
    ("io.k8s.api.core.v1.PodStatus", "conditions", ByKey("type")),
    ("io.k8s.api.core.v1.PodStatus", "hostIPs", ByKey("ip")),
    ("io.k8s.api.core.v1.PodStatus", "podIPs", ByKey("ip")),
    ("io.k8s.api.core.v1.PodStatus", "resourceClaimStatuses", ByKeyRetaining("name")),
    ("io.k8s.api.core.v1.PodSpec", "containers", ByKey("name")),
    ("io.k8s.api.core.v1.PodSpec", "ephemeralContainers", ByKey("name")),
    ("io.k8s.api.core.v1.PodSpec", "hostAliases", ByKey("ip")),
    ("io.k8s.api.core.v1.PodSpec", "imagePullSecrets", ByKey("name")),
    ("io.k8s.api.core.v1.PodSpec", "initContainers", ByKey("name")),
    ("io.k8s.api.core.v1.PodSpec", "resourceClaims", ByKeyRetaining("name")),
    ("io.k8s.api.core.v1.PodSpec", "schedulingGates", ByKey("name")),
    ("io.k8s.api.core.v1.PodSpec", "topologySpreadConstraints", ByKey("topologyKey")),
    ("io.k8s.api.core.v1.PodSpec", "volumes", ByKeyRetaining("name")),
    ("io.k8s.api.core.v1.Container", "env", ByKey("name")),
    ("io.k8s.api.core.v1.Container", "ports", ByKey("containerPort")),
    ("io.k8s.api.core.v1.Container", "volumeDevices", ByKey("devicePath")),
    ("io.k8s.api.core.v1.Container", "volumeMounts", ByKey("mountPath")),
    ("io.k8s.api.core.v1.EphemeralContainer", "env", ByKey("name")),
    ("io.k8s.api.core.v1.EphemeralContainer", "ports", ByKey("containerPort")),
    ("io.k8s.api.core.v1.EphemeralContainer", "volumeDevices", ByKey("devicePath")),
    ("io.k8s.api.core.v1.EphemeralContainer", "volumeMounts", ByKey("mountPath")),
    ("io.k8s.api.core.v1.ServiceAccount", "secrets", ByKey("name")),
    ("io.k8s.api.core.v1.ServiceAccount", "imagePullSecrets", ByKey("name")),
    ("io.k8s.api.networking.v1.ServiceCIDRStatus", "conditions", ByKey("type")),
    (POLICY_SPEC, "matchConditions", ByKey("name")),
    (POLICY_SPEC, "variables", ByKey("name")),
];

const POLICY_SPEC: &str = "io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicySpec";

/// Adds the merge keys to a definition.
pub(super) fn put_in(name: &str, definition: &mut Value) {
    for (_, field, strategy) in ROWS.iter().filter(|(definition, ..)| *definition == name) {
        let property = &mut definition["properties"][*field];
        if !property.is_object() {
            continue;
        }
        let (key, word) = match strategy {
            ByKey(key) => (Some(key), "merge"),
            ByKeyRetaining(key) => (Some(key), "merge,retainKeys"),
            Set => (None, "merge"),
        };
        property["x-kubernetes-patch-strategy"] = json!(word);
        if let Some(key) = key {
            property["x-kubernetes-patch-merge-key"] = json!(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::definition;

    #[test]
    fn every_row_names_a_list_that_exists() {
        for (name, field, _) in ROWS {
            let schema = definition(name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(schema["properties"][*field]["type"], "array", "{name}.{field}");
        }
    }
}
