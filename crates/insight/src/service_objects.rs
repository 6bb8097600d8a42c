//! Events and routes of one Service as the API has them: the report of the controller lacks them.

use cluster::ObjectKind;
use k8s_openapi::api::core::v1::Event;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams};
use serde_json::Value;

use crate::status::StatusEvent;

/// Events that are shown.
const MAX_EVENTS: usize = 10;

/// The newest Events of a Service.
pub async fn events(client: &Client, namespace: &str, name: &str) -> kube::Result<Vec<StatusEvent>> {
    let api: Api<Event> = Api::namespaced(client.clone(), namespace);
    let fields = format!("involvedObject.kind=Service,involvedObject.name={name}");
    let mut found = api.list(&ListParams::default().fields(&fields)).await?.items;
    let time = |event: &Event| {
        let last = event.last_timestamp.as_ref().map(|time| time.0);
        last.or(event.event_time.as_ref().map(|time| time.0)).or(event.first_timestamp.as_ref().map(|t| t.0))
    };
    found.sort_by_key(|event| std::cmp::Reverse(time(event)));
    let event = |event: &Event| StatusEvent {
        kind: event.type_.clone().unwrap_or_default(),
        reason: event.reason.clone().unwrap_or_default(),
        message: event.message.clone().unwrap_or_default(),
        time: time(event).map(|time| time.to_string()).unwrap_or_default(),
        count: event.count.and_then(|count| u64::try_from(count).ok()).unwrap_or(1),
    };
    Ok(found.iter().take(MAX_EVENTS).map(event).collect())
}

/// A route, and the backends of one of its rules: namespace, name and weight.
pub type RuleBackends = (String, Vec<(String, String, u64)>);

/// Rules of MeshHTTPRoutes to this Service that split traffic over several backends.
pub async fn rules(client: &Client, namespace: &str, service: &str) -> kube::Result<Vec<RuleBackends>> {
    let resource = ObjectKind::MeshHttpRoute.resource();
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let mut rules = Vec::new();
    for route in api.list(&ListParams::default()).await?.items {
        let name = route.metadata.name.clone().unwrap_or_default();
        for to in list(&route.data["spec"]["to"]) {
            if to["targetRef"]["name"].as_str() != Some(service) {
                continue;
            }
            for rule in list(&to["rules"]) {
                let refs = match &rule["default"]["backendRefs"] {
                    Value::Null => &rule["backendRefs"],
                    refs => refs,
                };
                let backend = |backend: &Value| {
                    let name = backend["name"].as_str()?.to_owned();
                    Some((namespace.to_owned(), name, backend["weight"].as_u64().unwrap_or(1)))
                };
                let backends: Vec<_> = list(refs).iter().filter_map(backend).collect();
                if backends.len() > 1 {
                    rules.push((name.clone(), backends));
                }
            }
        }
    }
    Ok(rules)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
