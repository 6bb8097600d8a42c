//! Notices -> Events on the object that they are about, for every controller. The name of an Event follows from what it
//! says, so a controller that starts anew finds the one that is there instead of making a second.

use std::time::Duration;

use http::{Method, Request};
use jiff::Timestamp;
use kube::{Client, Error};
use model::{Notice, ObjectRef};
use plan::hints::event_reason;
use serde_json::{Value, json};

/// Longer texts are cut: the API refuses them.
const LONGEST_MESSAGE: usize = 1_000;
/// No answer after this time is a failure.
const PATIENCE: Duration = Duration::from_secs(15);

/// Who says it.
#[derive(Clone, Copy, Debug)]
pub struct Speaker {
    component: &'static str,
    controller: &'static str,
    action: &'static str,
}

/// The controller of EndpointSlices.
pub const SLICES: Speaker =
    Speaker { component: "zoneward-controller", controller: "zoneward.dev/controller", action: "Plan" };
/// The keeper of addresses.
pub const ADDRESSES: Speaker =
    Speaker { component: "zoneward-addresses", controller: "zoneward.dev/addresses", action: "Repair" };

/// An Event about an object, as `core/v1`.
pub fn event(speaker: Speaker, notice: &Notice, uid: Option<&str>, now: Timestamp) -> Value {
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
    json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"namespace": namespace, "name": name(notice, uid)},
        "involvedObject": involved,
        "type": kind, "reason": notice.reason, "message": cut(&notice.message), "action": speaker.action,
        "count": 1, "firstTimestamp": time, "lastTimestamp": time,
        "source": {"component": speaker.component},
        "reportingComponent": speaker.controller, "reportingInstance": speaker.component,
    })
}

/// Writes an Event; one that is there already gets a new time.
pub async fn say(client: &Client, event: &Value) -> Result<(), Error> {
    let namespace = event["metadata"]["namespace"].as_str().unwrap_or("default");
    let path = format!("/api/v1/namespaces/{namespace}/events");
    match send(client, Method::POST, &path, "application/json", event).await {
        Err(Error::Api(status)) if status.code == 409 => {
            let name = event["metadata"]["name"].as_str().unwrap_or_default();
            let again = json!({"lastTimestamp": event["lastTimestamp"]});
            send(client, Method::PATCH, &format!("{path}/{name}"), "application/merge-patch+json", &again)
                .await
        }
        other => other,
    }
}

async fn send(client: &Client, method: Method, path: &str, kind: &str, body: &Value) -> Result<(), Error> {
    let request = Request::builder().method(method).uri(path).header(http::header::CONTENT_TYPE, kind);
    let bytes = serde_json::to_vec(body).map_err(Error::SerdeError)?;
    let request = request.body(bytes).map_err(Error::HttpError)?;
    match tokio::time::timeout(PATIENCE, client.request::<Value>(request)).await {
        Ok(answer) => answer.map(drop),
        Err(_) => Err(Error::Service("the API did not answer in time".into())),
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

fn cut(message: &str) -> &str {
    let mut end = message.len().min(LONGEST_MESSAGE);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message[..end]
}

fn name(notice: &Notice, uid: Option<&str>) -> String {
    let texts = [uid.unwrap_or_default(), notice.object.kind.as_str(), notice.reason, &notice.message];
    let hash = texts.iter().fold(0xcbf2_9ce4_8422_2325, |hash, text| fnv(hash, text));
    // An IPv6 address has colons, a name of an Event may not.
    let plain = |c| if c == ':' { '-' } else { c };
    let object: String = notice.object.name.chars().take(200).map(plain).collect();
    format!("{}.{hash:016x}", object.trim_end_matches(['-', '.']))
}

/// FNV-1a: the same on every machine and in every version, which is all that a name needs.
fn fnv(hash: u64, text: &str) -> u64 {
    let bytes = text.bytes().chain([0xff]);
    bytes.fold(hash, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_words_about_the_same_object_are_the_same_event() {
        let say = |message: &str| {
            let notice =
                Notice::new(ObjectRef::new("Service", "shop", "web"), event_reason::PROGRAMMED, message);
            event(SLICES, &notice, Some("u"), Timestamp::UNIX_EPOCH)
        };
        let (one, same, other) = (say("a"), say("a"), say("b"));
        assert_eq!(one["metadata"]["name"], same["metadata"]["name"]);
        assert_ne!(one["metadata"]["name"], other["metadata"]["name"]);
        assert_eq!(one["type"], "Normal");
        assert_eq!(say(&"ä".repeat(900))["message"].as_str().map(str::len), Some(LONGEST_MESSAGE));
    }

    #[test]
    fn an_ipv6_address_makes_a_name_that_the_api_takes() {
        let notice = Notice::new(ObjectRef::new("IPAddress", "", "fd00::"), "IPAddressNotAllocated", "m");
        let event = event(ADDRESSES, &notice, None, Timestamp::UNIX_EPOCH);
        let name = event["metadata"]["name"].as_str().unwrap_or_default();
        assert!(name.starts_with("fd00.") && !name.contains(':'), "{name}");
        assert_eq!(event["involvedObject"]["apiVersion"], "networking.k8s.io/v1");
        assert_eq!((event["type"].as_str(), event["action"].as_str()), (Some("Warning"), Some("Repair")));
    }
}
