//! Notices -> Events on the object that they are about. The name of an Event follows from what it says, so a
//! controller that starts anew finds the one that is there instead of making a second.

use jiff::Timestamp;
use model::Notice;
use model::parse::route;
use plan::hints::reason;
use serde_json::{Value, json};

/// Longer texts are cut: the API refuses them.
const LONGEST_MESSAGE: usize = 1_000;
/// Who says it.
const COMPONENT: &str = "zoneward-controller";

/// An Event about an object, as `core/v1`.
pub fn event(notice: &Notice, uid: Option<&str>, now: Timestamp) -> Value {
    let object = &notice.object;
    let time = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let namespace = if object.namespace.is_empty() { "default" } else { object.namespace.as_str() };
    let kind = if reason::is_warning(notice.reason) { "Warning" } else { "Normal" };
    let api_version = match object.kind.as_str() {
        "EndpointSlice" => "discovery.k8s.io/v1",
        kind if route::KINDS.contains(&kind) => "zoneward.dev/v1alpha1",
        _ => "v1",
    };
    let mut involved =
        json!({"apiVersion": api_version, "kind": object.kind.as_str(), "name": object.name.as_str()});
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
        "type": kind, "reason": notice.reason, "message": cut(&notice.message), "action": "Plan",
        "count": 1, "firstTimestamp": time, "lastTimestamp": time,
        "source": {"component": COMPONENT}, "reportingComponent": "zoneward.dev/controller", "reportingInstance": "",
    })
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
    let object: String = notice.object.name.chars().take(200).collect();
    format!("{object}.{hash:016x}")
}

/// FNV-1a: the same on every machine and in every version, which is all that a name needs.
fn fnv(hash: u64, text: &str) -> u64 {
    let bytes = text.bytes().chain([0xff]);
    bytes.fold(hash, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use model::ObjectRef;

    use super::*;

    #[test]
    fn the_same_words_about_the_same_object_are_the_same_event() {
        let say = |message: &str| {
            let notice = Notice::new(ObjectRef::new("Service", "shop", "web"), reason::PROGRAMMED, message);
            event(&notice, Some("u"), Timestamp::UNIX_EPOCH)
        };
        let (one, same, other) = (say("a"), say("a"), say("b"));
        assert_eq!(one["metadata"]["name"], same["metadata"]["name"]);
        assert_ne!(one["metadata"]["name"], other["metadata"]["name"]);
        assert_eq!(one["type"], "Normal");
        assert_eq!(say(&"ä".repeat(900))["message"].as_str().map(str::len), Some(LONGEST_MESSAGE));
    }
}
