//! The rights of each component, read from the manifests that grant them: what is checked here cannot differ from what an
//! installation grants.

use anyhow::{Context, Result};
use serde_json::Value;

use super::Component;

const CONTROLLER: &str = include_str!("../../../../../deploy/controller/rbac.yaml");
const NODE: &str = include_str!("../../../../../deploy/node/rbac.yaml");
const MESH: &str = include_str!("../../../../../deploy/mesh/rbac.yaml");

/// A Role or ClusterRole with the rights that it grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GrantedRole {
    pub(super) name: String,
    /// Of a Role; none for a ClusterRole.
    pub(super) namespace: Option<String>,
    pub(super) rights: Vec<AccessRight>,
}

/// One verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AccessRight {
    pub(super) verb: String,
    pub(super) group: String,
    pub(super) resource: String,
    pub(super) subresource: String,
    pub(super) name: String,
}

impl AccessRight {
    /// Whether the component works without it, with less.
    pub(super) fn is_optional(&self) -> bool {
        // Metrics off loopback; an owner reference that some clusters restrict; routes and the Gateway API without their
        // definitions, and its version; Events in the dashboard.
        ["tokenreviews", "subjectaccessreviews"].contains(&self.resource.as_str())
            || self.subresource == "finalizers"
            || self.resource == "servicecidrs"
            || ["zoneward.dev", "gateway.networking.k8s.io"].contains(&self.group.as_str())
            || self.resource == "customresourcedefinitions"
            || (self.resource == "events" && self.verb == "list")
    }

    /// `services/status`, with its group where that is not the core.
    pub(super) fn object(&self) -> String {
        let mut text = self.resource.clone();
        if !self.subresource.is_empty() {
            text += &format!("/{}", self.subresource);
        }
        if !self.group.is_empty() {
            text += &format!(".{}", self.group);
        }
        if !self.name.is_empty() {
            text += &format!(" {}", self.name);
        }
        text
    }
}

/// The manifest of a component, by its path in the repository, and its roles.
pub(super) fn of(component: Component) -> Option<(&'static str, Result<Vec<GrantedRole>>)> {
    let (path, text) = match component {
        Component::Controller => ("deploy/controller/rbac.yaml", CONTROLLER),
        Component::Node => ("deploy/node/rbac.yaml", NODE),
        Component::Mesh => ("deploy/mesh/rbac.yaml", MESH),
        Component::Up => return None,
    };
    Some((path, roles(text)))
}

fn roles(text: &str) -> Result<Vec<GrantedRole>> {
    let mut roles = Vec::new();
    for document in text.split("\n---\n") {
        let value: Value = serde_saphyr::from_str(document).context("parsing the embedded manifest")?;
        let name = value["metadata"]["name"].as_str().unwrap_or_default();
        let is_role = matches!(value["kind"].as_str(), Some("Role" | "ClusterRole"));
        // The role of Prometheus is not one of the component.
        if !is_role || name.ends_with("-metrics-reader") {
            continue;
        }
        let rules = value["rules"].as_array().into_iter().flatten();
        roles.push(GrantedRole {
            name: name.to_owned(),
            namespace: value["metadata"]["namespace"].as_str().map(str::to_owned),
            rights: rules.flat_map(rights).collect(),
        });
    }
    Ok(roles)
}

fn rights(rule: &Value) -> Vec<AccessRight> {
    let list = |field: &str| -> Vec<String> {
        let values = rule[field].as_array().into_iter().flatten();
        values.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut names = list("resourceNames");
    if names.is_empty() {
        names.push(String::new());
    }
    let mut rights = Vec::new();
    for group in list("apiGroups") {
        for full in list("resources") {
            let (resource, subresource) = full.split_once('/').unwrap_or((&full, ""));
            for name in &names {
                rights.extend(list("verbs").into_iter().map(|verb| AccessRight {
                    verb,
                    group: group.clone(),
                    resource: resource.to_owned(),
                    subresource: subresource.to_owned(),
                    name: name.clone(),
                }));
            }
        }
    }
    rights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_component_has_its_rights() {
        for (component, name, object) in [
            (Component::Controller, "zoneward-controller", "endpointslices.discovery.k8s.io"),
            (Component::Node, "zoneward-node", "services"),
            (Component::Mesh, "zoneward-mesh", "meshhttproutes.zoneward.dev"),
        ] {
            let roles = of(component).unwrap().1.unwrap();
            let role = roles.iter().find(|role| role.name == name && role.namespace.is_none()).unwrap();
            assert!(role.rights.iter().any(|right| right.object() == object), "{role:?}");
        }
        let roles = of(Component::Controller).unwrap().1.unwrap();
        let leases = roles.iter().find(|role| role.namespace.as_deref() == Some("kube-system")).unwrap();
        let named = leases.rights.iter().find(|right| right.verb == "update").unwrap();
        assert_eq!(named.object(), "leases.coordination.k8s.io zoneward-controller");
        assert!(roles.iter().all(|role| role.name != "zoneward-metrics-reader"));
        for component in [Component::Controller, Component::Mesh] {
            let roles = of(component).unwrap().1.unwrap();
            let rights = roles.iter().flat_map(|role| &role.rights);
            let of_gateways: Vec<&AccessRight> =
                rights.filter(|right| right.object() == "gateways.gateway.networking.k8s.io").collect();
            assert_eq!(of_gateways.len(), 2, "list and watch: {component:?}");
            assert!(of_gateways.iter().all(|right| right.is_optional()), "{component:?}");
        }
    }
}
