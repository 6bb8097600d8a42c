//! Lint: kinds that do not exist. Every reader of a manifest skips a misspelled kind.
//!
//! Only groups whose kinds are all known are checked.

use model::parse::route;
use model::suggestion;
use serde_json::Value;

use super::group_and_version;
use model::field::FieldErrors;

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
    ("rbac.authorization.k8s.io", &["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]),
    ("kubeproxy.config.k8s.io", &["KubeProxyConfiguration"]),
    (route::GROUP, &OWN_KINDS),
];

const OWN_KINDS: [&str; 7] = {
    let [http_route, gateway_http_route, tcp_route, gateway, load_balancing, route_filter] = route::KINDS;
    [http_route, gateway_http_route, tcp_route, gateway, load_balancing, route_filter, "ZoneDrain"]
};

pub(super) fn check(object: &Value, errors: &mut FieldErrors) {
    let (group, _) = group_and_version(object);
    let kind = object["kind"].as_str().unwrap_or_default();
    let Some((_, kinds)) = GROUPS.iter().find(|(known, _)| *known == group) else {
        return misspelled_group(group, kind, errors);
    };
    if kinds.contains(&kind) {
        return;
    }
    let shown = if group.is_empty() { "the core group" } else { group };
    if let Some((home, _)) = GROUPS.iter().find(|(_, kinds)| kinds.contains(&kind)) {
        let home = if home.is_empty() { "v1".to_owned() } else { format!("{home}/...") };
        errors
            .invalid_at("apiVersion", format!("{shown} has no kind {kind}; did you mean apiVersion {home}?"));
        return;
    }
    let suggestion = suggestion::did_you_mean(kind, kinds.iter().copied());
    let hint = if suggestion.is_empty() { format!("; it has {}", kinds.join(", ")) } else { suggestion };
    errors.invalid_at("kind", format!("{shown} has no kind {kind}{hint}"));
}

/// `zonward.dev/v1alpha1` with a kind of zoneward.dev.
fn misspelled_group(group: &str, kind: &str, errors: &mut FieldErrors) {
    let homes = GROUPS.iter().filter(|(name, kinds)| !name.is_empty() && kinds.contains(&kind));
    if let Some(group_name) = suggestion::nearest(group, homes.map(|(name, _)| *name)) {
        errors.invalid_at("apiVersion", format!("there is no group {group}; did you mean {group_name}?"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::validate::lint;

    #[test]
    fn unknown_kinds_get_a_suggestion() {
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
            ("zoneward.dev/v1alpha1", "ZoneDrain", "", ""),
            ("zoneward.dev/v1alpha1", "ZoneDrian", "kind", "did you mean \"ZoneDrain\"?"),
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
