//! Fields of disabled features, as API servers treat them: a disabled field is dropped and a disabled value rejected,
//! unless the stored object has it. Turning a gate off loses no data.

use serde_json::Value;

use super::FieldErrorType;
use plan::feature_gates::FeatureGates;

/// Drops disabled fields from a new object or from an update of `old` (KEP-4444; seed 002 for hints).
pub fn drop_disabled(gates: &FeatureGates, old: Option<&Value>, new: &mut Value) {
    match new["kind"].as_str() {
        Some("Service") if !gates.service_traffic_distribution => drop_distribution(old, new),
        Some("EndpointSlice") if !gates.prefer_same_traffic_distribution => drop_node_hints(old, new),
        _ => {}
    }
}

fn drop_distribution(old: Option<&Value>, new: &mut Value) {
    let in_use = old.is_some_and(|old| !old["spec"]["trafficDistribution"].is_null());
    if let (false, Some(spec)) = (in_use, new.get_mut("spec").and_then(Value::as_object_mut)) {
        spec.shift_remove("trafficDistribution");
    }
}

/// The error for a value whose feature gate is off.
pub fn refuse_disabled(
    gates: &FeatureGates,
    old: Option<&Value>,
    new: &Value,
) -> Option<(&'static str, FieldErrorType, String)> {
    const FIELD: &str = "spec.trafficDistribution";
    let value = new["spec"]["trafficDistribution"].as_str().filter(|_| new["kind"] == "Service")?;
    let gated = matches!(value, "PreferSameZone" | "PreferSameNode");
    let stored = old.is_some_and(|old| old["spec"]["trafficDistribution"] == value);
    (gated && !stored && !gates.prefer_same_traffic_distribution).then(|| {
        let reason = format!(
            "{value:?} requires the feature gate PreferSameTrafficDistribution, which is off: use PreferClose, or \
             enable the gate"
        );
        (FIELD, FieldErrorType::NotSupported, reason)
    })
}

fn endpoints(slice: &Value) -> &[Value] {
    slice["endpoints"].as_array().map_or(&[], Vec::as_slice)
}

fn has_node_hints(slice: &Value) -> bool {
    endpoints(slice)
        .iter()
        .any(|endpoint| endpoint["hints"]["forNodes"].as_array().is_some_and(|l| !l.is_empty()))
}

fn drop_node_hints(old: Option<&Value>, new: &mut Value) {
    if old.is_some_and(has_node_hints) {
        return;
    }
    for endpoint in new.get_mut("endpoints").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(hints) = endpoint.get_mut("hints").and_then(Value::as_object_mut) {
            hints.shift_remove("forNodes");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn service(value: &str) -> Value {
        json!({"kind": "Service", "spec": {"trafficDistribution": value, "type": "ClusterIP"}})
    }

    #[test]
    fn the_field_is_dropped_while_its_gate_is_off_unless_it_is_in_use() {
        let gates: FeatureGates = "ServiceTrafficDistribution=false".parse().unwrap();
        let dropped = |gates: &FeatureGates, old: Option<&Value>| {
            let mut new = service("PreferClose");
            drop_disabled(gates, old, &mut new);
            new["spec"].get("trafficDistribution").is_none()
        };
        let bare = json!({"kind": "Service", "spec": {"type": "ClusterIP"}});
        assert!(dropped(&gates, None) && dropped(&gates, Some(&bare)));
        assert!(!dropped(&gates, Some(&service("PreferSameZone"))));
        assert!(!dropped(&FeatureGates::ALL, None));
    }

    #[test]
    fn the_newer_values_are_refused_while_their_gate_is_off_unless_they_are_stored() {
        let gates: FeatureGates = "PreferSameTrafficDistribution=false".parse().unwrap();
        let refused =
            |old: Option<&Value>, value: &str| refuse_disabled(&gates, old, &service(value)).is_some();
        assert!(refused(None, "PreferSameZone") && refused(Some(&service("PreferClose")), "PreferSameNode"));
        assert!(!refused(Some(&service("PreferSameNode")), "PreferSameNode"));
        assert!(!refused(None, "PreferClose") && !refused(None, "zoneward.dev/Spill"));
        assert_eq!(refuse_disabled(&FeatureGates::ALL, None, &service("PreferSameZone")), None);
    }

    #[test]
    fn hints_for_nodes_are_dropped_while_their_gate_is_off_unless_they_are_in_use() {
        let gates: FeatureGates = "PreferSameTrafficDistribution=false".parse().unwrap();
        let hints = json!({"forZones": [{"name": "a"}], "forNodes": [{"name": "n"}]});
        let slice = json!({"kind": "EndpointSlice", "endpoints": [{"hints": hints}, {}]});
        let mut new = slice.clone();
        drop_disabled(&gates, None, &mut new);
        assert_eq!(new["endpoints"][0]["hints"], json!({"forZones": [{"name": "a"}]}));
        let mut new = slice.clone();
        drop_disabled(&gates, Some(&slice), &mut new);
        assert_eq!(new, slice);
    }
}
