//! Event recorder of every daemon: Notices as Events on the object that they are about. The name of an Event is a hash of its
//! content, so a restarted controller updates the existing Event instead of creating another.

use http::Method;
use jiff::Timestamp;
use kube::{Client, Error};
use model::hash::{BASIS_64, fnv1a_64};
use model::{Notice, ObjectRef};
use plan::hints::event_reason;
use serde_json::{Value, json};

use crate::write::{JSON, MERGE_PATCH, send};

/// The API rejects longer messages.
const MAX_MESSAGE: usize = 1_000;

/// The component that records an Event.
#[derive(Clone, Copy, Debug)]
pub struct EventSource<'a> {
    component: &'static str,
    controller: &'static str,
    action: &'static str,
    host: Option<&'a str>,
}

pub const SLICE_CONTROLLER: EventSource<'static> = EventSource {
    component: "zoneward-controller",
    controller: "zoneward.dev/controller",
    action: "Plan",
    host: None,
};
pub const ADDRESS_CONTROLLER: EventSource<'static> = EventSource {
    component: "zoneward-addresses",
    controller: "zoneward.dev/addresses",
    action: "Repair",
    host: None,
};
pub const BACKUPS: EventSource<'static> = EventSource {
    component: "zoneward-backups",
    controller: "zoneward.dev/backups",
    action: "Backup",
    host: None,
};

impl<'a> EventSource<'a> {
    /// The node proxy of a node.
    pub fn node(name: &'a str) -> Self {
        Self { component: "zoneward-node", controller: "zoneward-node", action: "Sync", host: Some(name) }
    }
}

/// An Event about an object, as `core/v1`.
pub fn event(source: EventSource<'_>, notice: &Notice, uid: Option<&str>, now: Timestamp) -> Value {
    let object = &notice.object;
    let time = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let namespace = if object.namespace.is_empty() { "default" } else { object.namespace.as_str() };
    let kind = if event_reason::is_warning(notice.reason) { "Warning" } else { "Normal" };
    let mut involved = json!({"apiVersion": api_version(object), "kind": object.kind.as_str(), "name": object.name.as_str()});
    if !object.namespace.is_empty() {
        involved["namespace"] = object.namespace.as_str().into();
    }
    if let Some(uid) = uid {
        involved["uid"] = uid.into();
    }
    let mut reporter = json!({"component": source.component});
    if let Some(host) = source.host {
        reporter["host"] = host.into();
    }
    json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"namespace": namespace, "name": name(source, notice, uid)},
        "involvedObject": involved,
        "type": kind, "reason": notice.reason, "message": truncated(&notice.message), "action": source.action,
        "count": 1, "firstTimestamp": time, "lastTimestamp": time,
        "source": reporter,
        "reportingComponent": source.controller, "reportingInstance": source.host.unwrap_or(source.component),
    })
}

/// Creates an Event; an existing one gets a new lastTimestamp.
pub async fn record(client: &Client, event: &Value) -> Result<(), Error> {
    let namespace = event["metadata"]["namespace"].as_str().unwrap_or("default");
    let path = format!("/api/v1/namespaces/{namespace}/events");
    match send::<Value>(client, Method::POST, &path, JSON, event).await {
        Err(Error::Api(status)) if status.code == 409 => {
            let name = event["metadata"]["name"].as_str().unwrap_or_default();
            let patch = json!({"lastTimestamp": event["lastTimestamp"]});
            let path = format!("{path}/{name}");
            send::<Value>(client, Method::PATCH, &path, MERGE_PATCH, &patch).await.map(drop)
        }
        other => other.map(drop),
    }
}

fn api_version(object: &ObjectRef) -> &'static str {
    match object.kind.as_str() {
        "EndpointSlice" => "discovery.k8s.io/v1",
        "ServiceCIDR" | "IPAddress" => "networking.k8s.io/v1",
        kind if model::parse::route::KINDS.contains(&kind) => "zoneward.dev/v1alpha1",
        _ => "v1",
    }
}

fn truncated(message: &str) -> &str {
    let mut end = message.len().min(MAX_MESSAGE);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message[..end]
}

fn name(source: EventSource<'_>, notice: &Notice, uid: Option<&str>) -> String {
    let texts = [uid.unwrap_or_default(), notice.object.kind.as_str(), notice.reason, &notice.message];
    // Nodes that report the same have Events of their own.
    let texts = texts.into_iter().chain(source.host);
    let hash = texts.fold(BASIS_64, |hash, text| fnv1a_64(fnv1a_64(hash, text.as_bytes()), &[0xff]));
    // Names of Events must not contain the colons of IPv6 addresses.
    let plain = |c| if c == ':' { '-' } else { c };
    let object: String = notice.object.name.chars().take(200).map(plain).collect();
    format!("{}.{hash:016x}", object.trim_end_matches(['-', '.']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_notices_are_the_same_event() {
        let say = |message: &str| {
            let notice =
                Notice::new(ObjectRef::new("Service", "shop", "web"), event_reason::PROGRAMMED, message);
            event(SLICE_CONTROLLER, &notice, Some("u"), Timestamp::UNIX_EPOCH)
        };
        let (one, same, other) = (say("a"), say("a"), say("b"));
        assert_eq!(one["metadata"]["name"], same["metadata"]["name"]);
        assert_ne!(one["metadata"]["name"], other["metadata"]["name"]);
        assert_eq!(one["type"], "Normal");
        let of_node = |node| {
            let notice = Notice::new(ObjectRef::new("Service", "shop", "web"), "NotProgrammed", "refused");
            event(EventSource::node(node), &notice, Some("u"), Timestamp::UNIX_EPOCH)["metadata"]["name"]
                .clone()
        };
        assert_ne!(of_node("n1"), of_node("n2"), "each node has its own");
        assert_eq!(of_node("n1"), of_node("n1"));
        assert_eq!(say(&"ä".repeat(900))["message"].as_str().map(str::len), Some(MAX_MESSAGE));
    }

    #[test]
    fn an_ipv6_address_makes_a_valid_event_name() {
        let notice = Notice::new(ObjectRef::new("IPAddress", "", "fd00::"), "IPAddressNotAllocated", "m");
        let event = event(ADDRESS_CONTROLLER, &notice, None, Timestamp::UNIX_EPOCH);
        let name = event["metadata"]["name"].as_str().unwrap_or_default();
        assert!(name.starts_with("fd00.") && !name.contains(':'), "{name}");
        assert_eq!(event["involvedObject"]["apiVersion"], "networking.k8s.io/v1");
        assert_eq!((event["type"].as_str(), event["action"].as_str()), (Some("Warning"), Some("Repair")));
    }
}
