//! Conversion of Events between core `v1`, which is stored, and `events.k8s.io/v1`: only names of fields differ.

use serde_json::{Map, Value};

/// (core `v1`, `events.k8s.io/v1`)
pub(super) const EVENT: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

pub(super) const EVENT_FIELDS: &[&str] = &[
    "regarding.kind",
    "regarding.namespace",
    "regarding.name",
    "regarding.uid",
    "regarding.apiVersion",
    "regarding.resourceVersion",
    "regarding.fieldPath",
    "reason",
    "reportingController",
    "type",
];

/// Renames fields from the first name of each pair to the second; keeps their order.
pub(super) fn renamed<'n>(object: &Value, pairs: impl Iterator<Item = (&'n str, &'n str)> + Clone) -> Value {
    let Value::Object(members) = object else { return object.clone() };
    let rename = |(name, value): (&String, &Value)| {
        let other = pairs.clone().find(|(from, _)| from == name).map_or(name.as_str(), |(_, to)| to);
        (other.to_owned(), value.clone())
    };
    Value::Object(members.iter().map(rename).collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use crate::kinds;
    use serde_json::json;

    #[test]
    fn an_event_is_the_same_in_both_groups() {
        let core = json!({"kind": "Event", "apiVersion": "v1", "metadata": {"name": "a"}, "message": "m",
            "involvedObject": {"kind": "Pod"}, "reason": "R", "count": 2});
        let new = kinds::of("events.k8s.io/v1", "Event").unwrap();
        let shown = new.converted(&core).into_owned();
        assert_eq!(shown["apiVersion"], "events.k8s.io/v1");
        assert_eq!((&shown["note"], &shown["regarding"]["kind"]), (&json!("m"), &json!("Pod")));
        assert_eq!((&shown["deprecatedCount"], shown.get("message")), (&json!(2), None));
        assert_eq!(*new.to_stored(&shown), core);
        assert_eq!(new.as_stored().api_version(), "v1");
    }
}
