//! Objects that Zoneward reads and writes, and the logs of its pods.

use std::time::Duration;

use clock::Clock;
use cluster::{Connection, ObjectKind, failure};
use http::Request;
use kube::Client;
use serde_json::Value;

use super::redact::Redactor;
use super::{Collected, DumpPart, objects};

/// Timeout of one request.
const PATIENCE: Duration = Duration::from_secs(20);
/// Objects per page.
const PAGE: u32 = 500;
/// Objects of one kind.
const MOST_OBJECTS: usize = 50_000;
/// Pods whose logs are read, and lines of each.
const MOST_PODS: usize = 40;
const LOG_LINES: u32 = 5_000;

/// File and path of each list besides the Gateway API's. Secrets come first: what they hold is removed from everything else.
const LISTS: [(&str, &str); 20] = [
    ("secrets", "/api/v1/secrets"),
    ("namespaces", "/api/v1/namespaces"),
    ("nodes", "/api/v1/nodes"),
    ("services", "/api/v1/services"),
    ("endpointslices", "/apis/discovery.k8s.io/v1/endpointslices"),
    ("pods", "/api/v1/pods"),
    ("servicecidrs", "/apis/networking.k8s.io/v1/servicecidrs"),
    ("ipaddresses", "/apis/networking.k8s.io/v1/ipaddresses"),
    ("meshhttproutes", "/apis/zoneward.dev/v1alpha1/meshhttproutes"),
    ("meshgatewayhttproutes", "/apis/zoneward.dev/v1alpha1/meshgatewayhttproutes"),
    ("meshloadbalancings", "/apis/zoneward.dev/v1alpha1/meshloadbalancings"),
    ("meshroutefilters", "/apis/zoneward.dev/v1alpha1/meshroutefilters"),
    ("meshtcproutes", "/apis/zoneward.dev/v1alpha1/meshtcproutes"),
    ("zonedrains", "/apis/zoneward.dev/v1alpha1/zonedrains"),
    ("meshgateways", "/apis/zoneward.dev/v1alpha1/meshgateways"),
    ("node-leases", "/apis/coordination.k8s.io/v1/namespaces/zoneward-node-lease/leases"),
    ("leases", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"),
    ("events", "/api/v1/events"),
    ("daemonsets", "/apis/apps/v1/daemonsets?labelSelector=app.kubernetes.io%2Fpart-of%3Dzoneward"),
    ("deployments", "/apis/apps/v1/deployments?labelSelector=app.kubernetes.io%2Fpart-of%3Dzoneward"),
];

pub(super) async fn collect(
    connection: &Connection,
    clock: &Clock,
    redactor: &mut Redactor,
    collected: &mut Collected,
) {
    let (client, _) = match cluster::open(connection, clock).await {
        Ok(opened) => opened,
        Err(error) => return collected.miss("objects", failure::text(&error)),
    };
    match get_text(&client, "/version").await {
        Ok(text) => collected.add(DumpPart::new("api/version.json", "/version", text)),
        // Every other request would wait as long.
        Err(error) => return collected.miss("objects", error),
    }
    let mut pods = Vec::new();
    let lists = LISTS.map(|(name, path)| (name.to_owned(), path.to_owned()));
    for (name, path) in lists.into_iter().chain(gateway_api_lists()) {
        match list(&client, &path, &name, redactor).await {
            Ok(objects) => {
                if name == "pods" {
                    pods = objects.iter().filter(|pod| is_zonewards(pod)).cloned().collect();
                }
                let documents: Vec<String> = objects.iter().filter_map(document).collect();
                collected.add(DumpPart::new(format!("objects/{name}.yaml"), path, documents.join("---\n")));
            }
            Err(error) => collected.miss(format!("objects/{name}.yaml"), error),
        }
    }
    configuration(&client, collected).await;
    for pod in pods.iter().take(MOST_PODS) {
        logs(&client, pod, collected).await;
    }
    if pods.len() > MOST_PODS {
        collected.miss("logs of pods", format!("only the first {MOST_PODS} of {}", pods.len()));
    }
}

/// File and path of each list of the Gateway API, in the versions that Zoneward reads.
fn gateway_api_lists() -> impl Iterator<Item = (String, String)> {
    ObjectKind::GATEWAY_API.into_iter().map(|kind| {
        let resource = kind.resource();
        let path = format!("/apis/{}/{}", resource.api_version, resource.plural);
        (resource.plural, path)
    })
}

fn document(object: &Value) -> Option<String> {
    serde_saphyr::to_string(object).ok()
}

fn is_zonewards(pod: &Value) -> bool {
    pod["metadata"]["labels"]["app.kubernetes.io/part-of"] == "zoneward"
}

async fn get_text(client: &Client, path: &str) -> Result<String, String> {
    let request = Request::get(path).body(Vec::new()).map_err(|error| error.to_string())?;
    match tokio::time::timeout(PATIENCE, client.request_text(request)).await {
        Ok(answer) => answer.map_err(|error| failure::cause(&error)),
        Err(_) => Err(format!("no response within {} s", PATIENCE.as_secs())),
    }
}

/// The objects of a list, without secrets.
async fn list(
    client: &Client,
    path: &str,
    name: &str,
    redactor: &mut Redactor,
) -> Result<Vec<Value>, String> {
    let mut all = Vec::new();
    let mut more = String::new();
    loop {
        let and = if path.contains('?') { '&' } else { '?' };
        let page: Value =
            serde_json::from_str(&get_text(client, &format!("{path}{and}limit={PAGE}{more}")).await?)
                .map_err(|error| error.to_string())?;
        let kind = page["kind"].as_str().and_then(|kind| kind.strip_suffix("List")).unwrap_or_default();
        for object in page["items"].as_array().into_iter().flatten() {
            // Of other Leases and Events there are many.
            let is_wanted = match name {
                "leases" => object["metadata"]["name"].as_str().is_some_and(|name| name.contains("zoneward")),
                "events" => is_relevant(object),
                _ => true,
            };
            if is_wanted {
                let mut object = object.clone();
                object["apiVersion"] = page["apiVersion"].clone();
                object["kind"] = kind.into();
                all.push(objects::clean(object, redactor));
            }
        }
        let token = page["metadata"]["continue"].as_str().unwrap_or_default();
        if token.is_empty() || all.len() >= MOST_OBJECTS {
            return Ok(all);
        }
        more = format!("&continue={token}");
    }
}

/// Events about Services, Nodes, slices and our own kinds.
fn is_relevant(event: &Value) -> bool {
    let kind = event["involvedObject"]["kind"].as_str().unwrap_or_default();
    ["Service", "Node", "EndpointSlice", "IPAddress", "ServiceCIDR", "ZoneDrain"].contains(&kind)
        || kind.starts_with("Mesh")
        || ObjectKind::GATEWAY_API.iter().any(|of_gateway_api| of_gateway_api.as_str() == kind)
}

/// The configuration of the node proxy.
async fn configuration(client: &Client, collected: &mut Collected) {
    let path = "/api/v1/namespaces/kube-system/configmaps/zoneward-node";
    match get_text(client, path).await {
        Ok(text) => {
            let config: Value = serde_json::from_str(&text).unwrap_or_default();
            let text = config["data"]["config.yaml"].as_str().unwrap_or_default().to_owned();
            collected.add(DumpPart::new("node-configuration.yaml", path, text));
        }
        Err(error) => collected.miss("node-configuration.yaml", error),
    }
}

async fn logs(client: &Client, pod: &Value, collected: &mut Collected) {
    let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default().to_owned();
    let (namespace, name) = (text("namespace"), text("name"));
    for container in pod["spec"]["containers"].as_array().into_iter().flatten() {
        let container = container["name"].as_str().unwrap_or_default();
        let path = format!(
            "/api/v1/namespaces/{namespace}/pods/{name}/log?container={container}&tailLines={LOG_LINES}&timestamps=true"
        );
        let file = format!("logs/{namespace}-{name}-{container}.log");
        match get_text(client, &path).await {
            Ok(text) => collected.add(DumpPart::log(file, path, text)),
            Err(error) => collected.miss(file, error),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_kind_of_the_gateway_api_has_a_file_and_its_events() {
        let lists: Vec<(String, String)> = gateway_api_lists().collect();
        assert_eq!(lists.len(), ObjectKind::GATEWAY_API.len());
        let httproutes =
            ("httproutes".to_owned(), "/apis/gateway.networking.k8s.io/v1/httproutes".to_owned());
        assert!(lists.contains(&httproutes), "{lists:?}");
        assert!(lists.iter().all(|(name, _)| LISTS.iter().all(|(other, _)| other != name)), "{lists:?}");
        for (kind, expected) in [("Gateway", true), ("HTTPRoute", true), ("ZoneDrain", true), ("Job", false)]
        {
            assert_eq!(is_relevant(&json!({"involvedObject": {"kind": kind}})), expected, "{kind}");
        }
    }
}
