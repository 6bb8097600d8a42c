//! The leader's Lease as JSON <-> the election's view of it. Other fields of the Lease are preserved.

use std::time::Duration;

use jiff::Timestamp;
use kube::api::DynamicObject;
use serde_json::{Map, Value, json};

use super::election::{LeaseRecord, LeaseState};

/// Malformed fields count as absent.
pub(super) fn parse(lease: &DynamicObject) -> LeaseState {
    let spec = &lease.data["spec"];
    let seconds = spec["leaseDurationSeconds"].as_u64().filter(|seconds| *seconds > 0);
    LeaseState {
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
        holder: spec["holderIdentity"].as_str().unwrap_or_default().to_owned(),
        duration: seconds.map(Duration::from_secs),
        transitions: spec["leaseTransitions"].as_i64().and_then(|n| i32::try_from(n).ok()).unwrap_or(0),
    }
}

/// Writes a record into the JSON of a Lease.
pub(super) fn render(record: &LeaseRecord, wall: Timestamp, lease: &mut Value) {
    let time = wall.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
    if !lease["spec"].is_object() {
        lease["spec"] = Value::Object(Map::new());
    }
    let spec = &mut lease["spec"];
    spec["holderIdentity"] = json!(record.holder);
    spec["leaseDurationSeconds"] = json!(record.duration.as_secs().max(1));
    spec["renewTime"] = json!(time);
    spec["leaseTransitions"] = json!(record.transitions);
    if record.acquires || spec["acquireTime"].is_null() {
        spec["acquireTime"] = json!(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_of_a_lease_are_preserved() {
        let mut data = json!({"spec": {"strategy": "OldestEmulationVersion", "acquireTime": "then"}});
        let record = LeaseRecord {
            holder: "a".to_owned(),
            duration: Duration::from_secs(15),
            transitions: 3,
            acquires: false,
        };
        render(&record, Timestamp::UNIX_EPOCH, &mut data);
        let spec = json!({
            "strategy": "OldestEmulationVersion", "acquireTime": "then", "holderIdentity": "a",
            "leaseDurationSeconds": 15, "renewTime": "1970-01-01T00:00:00.000000Z", "leaseTransitions": 3,
        });
        assert_eq!(data["spec"], spec);
    }
}
