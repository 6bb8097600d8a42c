//! Kinds that do not exist: a misspelled kind is passed over by everything that reads the file, so it is told here.
//!
//! Only groups of which all kinds are known are held against their list; objects of other groups belong to others.

use model::near;
use model::parse::route;
use serde_json::Value;

use super::field::Findings;
use super::group_and_version;

/// The groups of which all kinds are known.
const GROUPS: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "Binding",
            "ComponentStatus",
            "ConfigMap",
            "Endpoints",
            "Event",
            "LimitRange",
            "Namespace",
            "Node",
            "PersistentVolume",
            "PersistentVolumeClaim",
            "Pod",
            "PodTemplate",
            "ReplicationController",
            "ResourceQuota",
            "Secret",
            "Service",
            "ServiceAccount",
        ],
    ),
    ("apps", &["ControllerRevision", "DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"]),
    ("coordination.k8s.io", &["Lease", "LeaseCandidate"]),
    ("discovery.k8s.io", &["EndpointSlice"]),
    ("networking.k8s.io", &["IPAddress", "Ingress", "IngressClass", "NetworkPolicy", "ServiceCIDR"]),
    ("kubeproxy.config.k8s.io", &["KubeProxyConfiguration"]),
    (route::GROUP, &route::KINDS),
];

/// Adds that there is no such kind, if so.
pub(super) fn check(object: &Value, findings: &mut Findings) {
    let (group, _) = group_and_version(object);
    let kind = object["kind"].as_str().unwrap_or_default();
    let Some((_, kinds)) = GROUPS.iter().find(|(known, _)| *known == group) else {
        return misspelled_group(group, kind, findings);
    };
    if kinds.contains(&kind) {
        return;
    }
    let shown = if group.is_empty() { "the core group" } else { group };
    if let Some((home, _)) = GROUPS.iter().find(|(_, kinds)| kinds.contains(&kind)) {
        let home = if home.is_empty() { "v1".to_owned() } else { format!("{home}/...") };
        findings
            .refuse_at("apiVersion", format!("{shown} has no kind {kind}; did you mean apiVersion {home}?"));
        return;
    }
    let near = near::did_you_mean(kind, kinds.iter().copied());
    let known = if near.is_empty() { format!("; it has {}", kinds.join(", ")) } else { near };
    findings.refuse_at("kind", format!("{shown} has no kind {kind}{known}"));
}

/// `zonward.dev/v1alpha1` is nearly a group of ours, and the kind is one of its kinds.
fn misspelled_group(group: &str, kind: &str, findings: &mut Findings) {
    let homes = GROUPS.iter().filter(|(name, kinds)| !name.is_empty() && kinds.contains(&kind));
    if let Some(near) = near::nearest(group, homes.map(|(name, _)| *name)) {
        findings.refuse_at("apiVersion", format!("there is no group {group}; did you mean {near}?"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::validate::lint;

    #[test]
    fn a_kind_that_does_not_exist_is_told_with_the_nearest_one() {
        for (api_version, kind, field, wanted) in [
            ("v1", "Service", "", ""),
            ("apps/v1", "Deployment", "", ""),
            ("example.com/v1", "Servcie", "", ""),
            ("serving.knative.dev/v1", "Service", "", ""),
            ("v1", "Servcie", "kind", "the core group has no kind Servcie; did you mean \"Service\"?"),
            ("v1", "service", "kind", "did you mean \"Service\"?"),
            ("discovery.k8s.io/v1", "EndpointSlices", "kind", "did you mean \"EndpointSlice\"?"),
            ("zoneward.dev/v1alpha1", "MeshHTTPRuote", "kind", "did you mean \"MeshHTTPRoute\"?"),
            ("zoneward.dev/v1alpha1", "Nonsense", "kind", "it has MeshHTTPRoute, MeshGatewayHTTPRoute"),
            ("zonward.dev/v1alpha1", "MeshHTTPRoute", "apiVersion", "did you mean zoneward.dev?"),
            ("v1", "Deployment", "apiVersion", "did you mean apiVersion apps/...?"),
            ("v1", "EndpointSlice", "apiVersion", "did you mean apiVersion discovery.k8s.io/...?"),
            ("discovery.k8s.io/v1", "Service", "apiVersion", "did you mean apiVersion v1?"),
        ] {
            let found = lint(&json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "a"}}));
            match wanted {
                "" => assert!(found.is_empty(), "{api_version} {kind}: {found:?}"),
                wanted => {
                    assert_eq!(found.len(), 1, "{api_version} {kind}: {found:?}");
                    assert_eq!(found[0].field, field, "{found:?}");
                    assert!(found[0].reason.contains(wanted), "{found:?}");
                }
            }
        }
    }
}
