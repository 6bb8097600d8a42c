//! Discovery: the served groups, versions and kinds.

use serde_json::{Value, json};

use crate::api::negotiation::Accept;
use crate::kinds::{BINDING, EVICTION, KINDS, ResourceKind, TOKEN_REQUEST};
use crate::status::StatusError;

/// Verbs of a subresource that is a part of its object.
const PART_VERBS: &[&str] = &["get", "patch", "update"];
const CREATE_VERBS: &[&str] = &["create"];

/// The subresources of a kind: name, kind of the body, and verbs.
fn subresources(
    kind: &ResourceKind,
) -> impl Iterator<Item = (&'static str, &ResourceKind, &'static [&'static str])> {
    let status = kind.status.then_some(("status", kind, PART_VERBS));
    let binding = kind.binds.then_some(("binding", &BINDING, CREATE_VERBS));
    let token = kind.issues_tokens.then_some(("token", &TOKEN_REQUEST, CREATE_VERBS));
    let eviction = kind.binds.then_some(("eviction", &EVICTION, CREATE_VERBS));
    binding.into_iter().chain(eviction).chain(status).chain(token)
}

/// The version of Kubernetes that this API follows.
pub fn version() -> Value {
    json!({
        "major": "1", "minor": "37", "gitVersion": concat!("v1.37.0+zoneward-", env!("CARGO_PKG_VERSION")),
        "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "", "compiler": "rustc", "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

/// The document of a path: empty, `api`, `apis`, `apis/GROUP`, `api/v1` or `apis/GROUP/VERSION`.
pub(crate) fn document(path: &str, accept: &Accept) -> Result<Value, StatusError> {
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        [""] => Ok(json!({"paths": paths()})),
        ["api"] if accept.aggregated => Ok(aggregated(|group| group.is_empty())),
        ["apis"] if accept.aggregated => Ok(aggregated(|group| !group.is_empty())),
        ["api"] => Ok(json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})),
        ["apis"] => {
            let groups: Vec<Value> =
                groups().filter(|(group, _)| !group.is_empty()).map(group_entry).collect();
            Ok(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        ["api", version] => resources("", version),
        ["apis", group] => {
            let found = groups().find(|(name, _)| name == group && !group.is_empty());
            let mut entry = found.map(group_entry).ok_or_else(StatusError::no_such_path)?;
            entry["kind"] = "APIGroup".into();
            entry["apiVersion"] = "v1".into();
            Ok(entry)
        }
        ["apis", group, version] => resources(group, version),
        _ => Err(StatusError::no_such_path()),
    }
}

/// Each group with its versions, in the order of the table; the first is preferred.
fn groups() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    for kind in KINDS {
        match found.iter_mut().find(|(group, _)| *group == kind.group) {
            Some((_, versions)) if versions.contains(&kind.version) => {}
            Some((_, versions)) => versions.push(kind.version),
            None => found.push((kind.group, vec![kind.version])),
        }
    }
    found.into_iter()
}

/// The paths of all groups, as `/api/v1` and `/apis/discovery.k8s.io/v1`.
pub(crate) fn group_paths() -> Vec<String> {
    let path = |(group, version): (&str, &str)| match group {
        "" => format!("api/{version}"),
        group => format!("apis/{group}/{version}"),
    };
    groups().flat_map(|(group, versions)| versions.into_iter().map(move |v| path((group, v)))).collect()
}

fn paths() -> Vec<String> {
    let mut paths: Vec<String> = vec!["/api".to_owned(), "/apis".to_owned()];
    paths.extend(group_paths().into_iter().map(|path| format!("/{path}")));
    paths.extend(
        ["/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]
            .map(str::to_owned),
    );
    paths
}

fn group_entry((group, versions): (&str, Vec<&str>)) -> Value {
    let entry = |version: &str| json!({"groupVersion": format!("{group}/{version}"), "version": version});
    let versions: Vec<Value> = versions.into_iter().map(entry).collect();
    json!({"name": group, "versions": versions, "preferredVersion": versions.first()})
}

fn of(group: &str, version: &str) -> Vec<&'static ResourceKind> {
    KINDS.iter().filter(|kind| kind.group == group && kind.version == version).collect()
}

fn resources(group: &str, version: &str) -> Result<Value, StatusError> {
    let kinds = of(group, version);
    let first = kinds.first().ok_or_else(StatusError::no_such_path)?;
    let mut list = Vec::new();
    for kind in &kinds {
        let mut entry = json!({
            "name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced,
            "kind": kind.kind, "verbs": kind.verbs,
        });
        if !kind.short.is_empty() {
            entry["shortNames"] = json!(kind.short);
        }
        if !kind.categories.is_empty() {
            entry["categories"] = json!(kind.categories);
        }
        list.push(entry);
        for (part, written, verbs) in subresources(kind) {
            let mut entry = json!({
                "name": format!("{}/{part}", kind.plural), "singularName": "", "namespaced": kind.namespaced,
                "kind": written.kind, "verbs": verbs,
            });
            if written.group != kind.group {
                entry["group"] = written.group.into();
                entry["version"] = written.version.into();
            }
            list.push(entry);
        }
    }
    Ok(
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": first.api_version(), "resources": list}),
    )
}

fn aggregated(wanted: impl Fn(&str) -> bool) -> Value {
    let entry = |group: &str, version: &str| {
        let resources: Vec<Value> = of(group, version).into_iter().map(aggregated_kind).collect();
        json!({"version": version, "resources": resources, "freshness": "Current"})
    };
    let item = |(group, versions): (&str, Vec<&str>)| {
        let versions: Vec<Value> = versions.into_iter().map(|version| entry(group, version)).collect();
        json!({"metadata": {"name": group, "creationTimestamp": null}, "versions": versions})
    };
    let items: Vec<Value> = groups().filter(|(group, _)| wanted(group)).map(item).collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}

fn aggregated_kind(kind: &ResourceKind) -> Value {
    let response = json!({"group": kind.group, "version": kind.version, "kind": kind.kind});
    let mut entry = json!({
        "resource": kind.plural, "responseKind": response, "singularResource": kind.singular, "verbs": kind.verbs,
        "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
    });
    if !kind.short.is_empty() {
        entry["shortNames"] = json!(kind.short);
    }
    if !kind.categories.is_empty() {
        entry["categories"] = json!(kind.categories);
    }
    let part = |(part, written, verbs): (&str, &ResourceKind, &[&str])| {
        let response = json!({"group": written.group, "version": written.version, "kind": written.kind});
        json!({"subresource": part, "responseKind": response, "verbs": verbs})
    };
    let parts: Vec<Value> = subresources(kind).map(part).collect();
    if !parts.is_empty() {
        entry["subresources"] = parts.into();
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_lists_its_kinds() {
        for path in group_paths() {
            let list = document(&path, &Accept::default()).unwrap();
            assert!(!list["resources"].as_array().unwrap().is_empty(), "{path}");
        }
        assert_eq!(document("apis/apps", &Accept::default()).unwrap_err().code, 404);
        assert_eq!(document("api/v2", &Accept::default()).unwrap_err().code, 404);
    }

    #[test]
    fn both_kinds_of_discovery_list_the_same_groups() {
        let accept = Accept { aggregated: true, ..Accept::default() };
        let aggregated = document("apis", &accept).unwrap()["items"].as_array().unwrap().len();
        let plain = document("apis", &Accept::default()).unwrap()["groups"].as_array().unwrap().len();
        assert_eq!(aggregated, plain);
    }

    #[test]
    fn both_kinds_of_discovery_list_the_subresources_of_pods() {
        let plain = document("api/v1", &Accept::default()).unwrap();
        let entry =
            plain["resources"].as_array().unwrap().iter().find(|entry| entry["name"] == "pods/binding");
        assert_eq!(
            entry.map(|entry| (&entry["kind"], &entry["verbs"])),
            Some((&json!("Binding"), &json!(["create"])))
        );
        let accept = Accept { aggregated: true, ..Accept::default() };
        let list = document("api", &accept).unwrap();
        let resources = list["items"][0]["versions"][0]["resources"].as_array().unwrap().clone();
        let pods = resources.iter().find(|entry| entry["resource"] == "pods").unwrap();
        let parts: Vec<&Value> =
            pods["subresources"].as_array().unwrap().iter().map(|part| &part["subresource"]).collect();
        assert_eq!(parts, ["binding", "eviction", "status"]);
    }
}
