//! What the API server tells: its version, the rights of this account, definitions, zones of nodes, and other
//! controllers and proxies.

use std::collections::BTreeMap;
use std::time::Duration;

use clock::Clock;
use cluster::{Connection, failure};
use http::{Method, Request};
use kube::Client;
use serde_json::{Value, json};
use store::kubernetes_version;

use super::manifest_rights::{self, AccessRight, GrantedRole};
use super::{Check, Component};

const AREA: &str = "api";
const RIGHTS: &str = "rights";
/// Timeout of one request.
const PATIENCE: Duration = Duration::from_secs(10);
/// The oldest Kubernetes with `discovery.k8s.io/v1`, by minor version.
const OLDEST_MINOR: u32 = 21;

/// Why a request has no answer.
enum Unanswered {
    /// The API refused or failed, with this status.
    Status(u16, String),
    /// No response.
    Unreachable(String),
}

impl Unanswered {
    fn text(&self) -> &str {
        match self {
            Self::Status(_, text) | Self::Unreachable(text) => text,
        }
    }
}

pub(super) async fn check(connection: &Connection, components: &[Component]) -> Vec<Check> {
    let (client, address) = match cluster::open(connection, &Clock::system()).await {
        Ok(opened) => opened,
        Err(error) => return vec![unreachable(&failure::text(&error))],
    };
    let version = match get(&client, "/version").await {
        Ok(version) => version,
        Err(error) => return vec![unreachable(&format!("{address}: {}", error.text()))],
    };
    let mut checks = vec![Check::ok(AREA, "reachable", address), server_version(&version)];
    let user = user(&client).await;
    for component in components {
        checks.extend(rights(&client, *component, &user).await);
    }
    checks.extend(definitions(&client).await);
    if components.iter().any(|component| matches!(component, Component::Controller | Component::Mesh)) {
        checks.extend(gateway_api(&client).await);
    }
    checks.extend(zones(&client).await);
    if components.contains(&Component::Controller) {
        checks.extend(other_controller(&client).await);
    }
    if components.contains(&Component::Node) {
        checks.extend(other_proxies(&client).await);
    }
    checks
}

fn unreachable(text: &str) -> Check {
    Check::fail(AREA, "reachable", text).fix("kubectl cluster-info")
}

async fn get(client: &Client, path: &str) -> Result<Value, Unanswered> {
    ask(client, Method::GET, path, Vec::new()).await
}

async fn ask(client: &Client, method: Method, path: &str, body: Vec<u8>) -> Result<Value, Unanswered> {
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    let request = request.body(body).map_err(|error| Unanswered::Unreachable(error.to_string()))?;
    match tokio::time::timeout(PATIENCE, client.request::<Value>(request)).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(kube::Error::Api(status))) => {
            let text = failure::cause(&kube::Error::Api(status.clone()));
            Err(Unanswered::Status(status.code, text))
        }
        Ok(Err(error)) => Err(Unanswered::Unreachable(failure::api_text(&error))),
        Err(_) => Err(Unanswered::Unreachable(format!("no response within {} s", PATIENCE.as_secs()))),
    }
}

fn server_version(version: &Value) -> Check {
    let named = version["gitVersion"].as_str().unwrap_or("unknown");
    let digits = |field: &str| -> Option<u32> {
        let text = version[field].as_str()?;
        text.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok()
    };
    let tested = kubernetes_version()["minor"].as_str().and_then(|minor| minor.parse().ok()).unwrap_or(0);
    let name = "Kubernetes version";
    match (digits("major"), digits("minor")) {
        (Some(1), Some(minor)) if minor < OLDEST_MINOR => Check::fail(
            AREA,
            name,
            format!("{named}: 1.{OLDEST_MINOR} or later is needed, for discovery.k8s.io/v1"),
        )
        .fix("kubeadm upgrade plan"),
        (Some(1), Some(minor)) if minor > tested => {
            Check::ok(AREA, name, format!("{named}; newer than the tested 1.{tested}"))
        }
        (Some(_), Some(_)) => Check::ok(AREA, name, named),
        _ => Check::warn(AREA, name, format!("{named}: cannot be compared")).fix("kubectl version"),
    }
}

/// The name that the API knows this account by.
async fn user(client: &Client) -> String {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let answer = ask(client, Method::POST, path, review.to_string().into_bytes()).await;
    answer
        .ok()
        .and_then(|review| review["status"]["userInfo"]["username"].as_str().map(str::to_owned))
        .unwrap_or_default()
}

/// The rights of one component: a check for what it needs, and one for what it can do without.
async fn rights(client: &Client, component: Component, user: &str) -> Vec<Check> {
    let Some((manifest, roles)) = manifest_rights::of(component) else { return Vec::new() };
    let roles = match roles {
        Ok(roles) => roles,
        Err(error) => return vec![Check::warn(RIGHTS, component.as_str(), format!("{error:#}"))],
    };
    let mut missing: Vec<(&GrantedRole, &AccessRight)> = Vec::new();
    for role in &roles {
        for right in &role.rights {
            match is_allowed(client, role, right).await {
                Ok(true) => {}
                Ok(false) => missing.push((role, right)),
                Err(error) => {
                    let message = format!("cannot be asked: {}", error.text());
                    return vec![
                        Check::warn(RIGHTS, component.as_str(), message).fix("kubectl auth can-i --list"),
                    ];
                }
            }
        }
    }
    let who = if user.is_empty() { "this account".to_owned() } else { user.to_owned() };
    if missing.is_empty() {
        return vec![Check::ok(RIGHTS, component.as_str(), format!("{who} has them all"))];
    }
    let mut checks = Vec::new();
    for optional in [false, true] {
        let some: Vec<_> = missing.iter().filter(|(_, right)| right.is_optional() == optional).collect();
        let Some((role, _)) = some.first() else { continue };
        let message = format!("{who} lacks: {}", listed(&some));
        let check = match optional {
            false => Check::fail(RIGHTS, component.as_str(), message),
            true => Check::warn(RIGHTS, format!("{} (optional)", component.as_str()), message),
        };
        checks.push(check.fix(grant(role, manifest, user)));
    }
    checks
}

async fn is_allowed(client: &Client, role: &GrantedRole, right: &AccessRight) -> Result<bool, Unanswered> {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {
            "namespace": role.namespace.as_deref().unwrap_or_default(), "verb": right.verb, "group": right.group,
            "resource": right.resource, "subresource": right.subresource, "name": right.name,
        }},
    });
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let answer = ask(client, Method::POST, path, review.to_string().into_bytes()).await?;
    Ok(answer["status"]["allowed"] == true)
}

/// `list, watch pods; update leases.coordination.k8s.io zoneward-controller in kube-system`
fn listed(rights: &[&(&GrantedRole, &AccessRight)]) -> String {
    let mut verbs: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (role, right) in rights {
        let place = role.namespace.as_ref().map(|name| format!(" in {name}")).unwrap_or_default();
        verbs.entry(right.object() + &place).or_default().push(&right.verb);
    }
    let parts: Vec<String> =
        verbs.iter().map(|(object, verbs)| format!("{} {object}", verbs.join(", "))).collect();
    parts.join("; ")
}

/// A command that grants a role to this account.
fn grant(role: &GrantedRole, manifest: &str, user: &str) -> String {
    let subject = match user.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':')) {
        // The manifest binds it.
        Some((_, name)) if role.name.starts_with(name) => return format!("kubectl apply -f {manifest}"),
        Some((namespace, name)) => format!("--serviceaccount={namespace}:{name}"),
        None if user.is_empty() => return format!("kubectl apply -f {manifest}"),
        None => format!("--user={user}"),
    };
    let binding = match &role.namespace {
        None => format!("clusterrolebinding {0}-preflight --clusterrole={0}", role.name),
        Some(namespace) => format!("rolebinding {0}-preflight -n {namespace} --role={0}", role.name),
    };
    format!("kubectl apply -f {manifest} && kubectl create {binding} {subject}")
}

/// The definitions of routes and gateways.
async fn definitions(client: &Client) -> Option<Check> {
    let name = "zoneward.dev/v1alpha1";
    match get(client, "/apis/zoneward.dev/v1alpha1").await {
        Ok(_) => Some(Check::ok(AREA, name, "served")),
        Err(Unanswered::Status(404, _)) => Some(
            Check::warn(
                AREA,
                name,
                "not installed: MeshHTTPRoute, MeshGateway and other routes cannot be used",
            )
            .fix("kubectl apply -f deploy/crds"),
        ),
        Err(_) => None,
    }
}

/// The definitions of the Gateway API. A cluster without them lacks nothing.
async fn gateway_api(client: &Client) -> Option<Check> {
    let name = "gateway.networking.k8s.io/v1";
    match get(client, "/apis/gateway.networking.k8s.io/v1").await {
        Ok(_) => Some(Check::ok(AREA, name, "served")),
        Err(Unanswered::Status(404, _)) => {
            Some(Check::ok(AREA, name, "not installed: needed for Gateways and HTTPRoutes only"))
        }
        Err(_) => None,
    }
}

/// Nodes without a zone are outside of every zone's traffic.
async fn zones(client: &Client) -> Option<Check> {
    let name = "zones of nodes";
    let list = match get(client, "/api/v1/nodes?limit=1000").await {
        Ok(list) => list,
        Err(error) => {
            let message = format!("not checked: {}", error.text());
            return Some(
                Check::warn(AREA, name, message).fix("kubectl get nodes -L topology.kubernetes.io/zone"),
            );
        }
    };
    let nodes = list["items"].as_array()?;
    let zone =
        |node: &Value| node["metadata"]["labels"]["topology.kubernetes.io/zone"].as_str().map(str::to_owned);
    let without: Vec<&str> = nodes
        .iter()
        .filter(|node| zone(node).is_none())
        .filter_map(|node| node["metadata"]["name"].as_str())
        .collect();
    let zones: std::collections::BTreeSet<String> = nodes.iter().filter_map(zone).collect();
    let message = format!("{} in {}", output::count(nodes.len(), "node"), output::count(zones.len(), "zone"));
    let Some(first) = without.first() else { return Some(Check::ok(AREA, name, message)) };
    let more = if without.len() > 1 { format!(" and {} more", without.len() - 1) } else { String::new() };
    Some(
        Check::warn(
            AREA,
            name,
            format!("{message}; {first}{more} without a zone: traffic cannot be kept close there"),
        )
        .fix(format!("kubectl label node {first} topology.kubernetes.io/zone=ZONE")),
    )
}

/// The EndpointSlice controller of kube-controller-manager.
async fn other_controller(client: &Client) -> Option<Check> {
    let name = "EndpointSlice controller";
    let label = "endpointslice.kubernetes.io%2Fmanaged-by%3Dendpointslice-controller.k8s.io";
    let list =
        get(client, &format!("/apis/discovery.k8s.io/v1/endpointslices?limit=1&labelSelector={label}")).await;
    let message = match list {
        Ok(list) if list["items"].as_array().is_some_and(|items| !items.is_empty()) => {
            "slices of kube-controller-manager exist: turn its controller off, or use --coexist"
        }
        Ok(_) => return Some(Check::ok(AREA, name, "no slices of kube-controller-manager")),
        Err(_) => return None,
    };
    Some(Check::warn(AREA, name, message).fix("kubectl apply -f deploy/crds/ -f deploy/controller/"))
}

/// DaemonSets and settings of other proxies.
async fn other_proxies(client: &Client) -> Vec<Check> {
    let mut checks = Vec::new();
    for name in ["kube-proxy", "kube-router"] {
        let path = format!("/apis/apps/v1/namespaces/kube-system/daemonsets/{name}");
        let Ok(set) = get(client, &path).await else { continue };
        let running = set["status"]["numberReady"].as_u64().unwrap_or(0);
        if running > 0 {
            let message = format!(
                "DaemonSet kube-system/{name} runs on {running} nodes: keep it away from nodes with Zoneward"
            );
            checks.push(Check::warn("proxy", format!("{name} in the cluster"), message).fix(format!(
                "kubectl -n kube-system patch daemonset {name} --type merge -p '{{\"spec\":{{\"template\":{{\"spec\":{{\"nodeSelector\":{{\"zoneward.dev/proxy\":\"{name}\"}}}}}}}}}}'"
            )));
        }
    }
    let path = "/api/v1/namespaces/kube-system/configmaps/cilium-config";
    if let Ok(config) = get(client, path).await {
        checks.push(cilium(config["data"]["kube-proxy-replacement"].as_str().unwrap_or("false")));
    }
    checks
}

fn cilium(setting: &str) -> Check {
    let name = "Cilium in the cluster";
    match setting {
        "true" | "strict" => Check::fail("proxy", name, "its kube-proxy-replacement is on: it forwards Services")
            .fix("helm upgrade cilium cilium/cilium -n kube-system --reuse-values --set kubeProxyReplacement=false"),
        other => Check::ok("proxy", name, format!("its kube-proxy-replacement is {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::preflight::CheckStatus;

    #[test]
    fn versions_before_1_21_fail() {
        let of = |minor: &str| {
            server_version(&json!({"major": "1", "minor": minor, "gitVersion": format!("v1.{minor}.0")}))
                .status
        };
        assert_eq!((of("20"), of("21+"), of("99")), (CheckStatus::Fail, CheckStatus::Ok, CheckStatus::Ok));
    }

    #[test]
    fn the_grant_fits_the_account() {
        let role = GrantedRole { name: "zoneward-node".into(), namespace: None, rights: Vec::new() };
        let manifest = "deploy/node/rbac.yaml";
        let own = grant(&role, manifest, "system:serviceaccount:kube-system:zoneward-node");
        assert_eq!(own, "kubectl apply -f deploy/node/rbac.yaml");
        let other = grant(&role, manifest, "system:serviceaccount:default:bot");
        assert!(other.ends_with("--clusterrole=zoneward-node --serviceaccount=default:bot"), "{other}");
        let role = GrantedRole { namespace: Some("x".into()), ..role };
        assert!(
            grant(&role, manifest, "jane")
                .ends_with("rolebinding zoneward-node-preflight -n x --role=zoneward-node --user=jane")
        );
    }

    #[test]
    fn the_replacement_of_cilium_is_a_failure() {
        assert_eq!(cilium("true").status, CheckStatus::Fail);
        assert_eq!(cilium("false").status, CheckStatus::Ok);
    }
}
