//! The annotations by which users ask for a traffic distribution: misspelled keys, and values that ask for nothing.
//!
//! No API server refuses them, and the controller's Notice comes only after the fact, so `plan validate` says it before.
//! Values are held against [`choose`] itself: there is no second list of what works.

use model::{Name, Object, Service, annotation, near, parse};
use serde_json::{Map, Value, json};

use super::field::Findings;
use super::group_and_version;
use crate::FeatureGates;
use crate::hints::{Mechanism, TrafficDistributionDefaults, choose, event_reason};

/// What our own keys begin with.
const OURS: &str = "zoneward.dev/";
/// The annotations of a Namespace that decide something.
const READ_FROM_NAMESPACES: &[&str] = &[annotation::DEFAULT_TRAFFIC_DISTRIBUTION];
/// Where a Service is asked for, any port will do.
const ANY_PORT: u16 = 80;

/// Adds what is wrong with the settings of a Service or Namespace.
pub(super) fn check(object: &Value, findings: &mut Findings) {
    let (group, _) = group_and_version(object);
    let (keys, others) = match object["kind"].as_str().filter(|_| group.is_empty()) {
        Some("Service") => (annotation::READ_FROM_SERVICES, READ_FROM_NAMESPACES),
        Some("Namespace") => (READ_FROM_NAMESPACES, annotation::READ_FROM_SERVICES),
        _ => return,
    };
    let nothing = Map::new();
    let annotations = object["metadata"]["annotations"].as_object().unwrap_or(&nothing);
    for (key, value) in annotations {
        let said = match keys.contains(&key.as_str()) {
            true => value.as_str().and_then(|value| wrong_value(key, value)),
            false => wrong_key(key, keys, others),
        };
        if let Some(reason) = said {
            findings.refuse_at(&format!("metadata.annotations[{key}]"), reason);
        }
    }
    let labels = object["metadata"]["labels"].as_object().unwrap_or(&nothing);
    for key in labels.keys().filter(|key| keys.contains(&key.as_str())) {
        let reason = "it is an annotation: as a label it has no effect".to_owned();
        findings.refuse_at(&format!("metadata.labels[{key}]"), reason);
    }
}

/// A key that is none of those that are read, though it looks like one. Keys of other domains are their own.
fn wrong_key(key: &str, keys: &[&str], others: &[&str]) -> Option<String> {
    if others.contains(&key) && key.starts_with(OURS) {
        let place = if key == annotation::DEFAULT_TRAFFIC_DISTRIBUTION { "Namespace" } else { "Service" };
        return Some(format!("it is read on a {place}, and has no effect here"));
    }
    match near::nearest(key, keys.iter().copied()) {
        Some(near) => Some(format!("nothing reads this annotation; did you mean {near}?")),
        None if key.starts_with(OURS) => {
            Some(format!("nothing reads this annotation; those that are read here are {}", keys.join(", ")))
        }
        None => None,
    }
}

/// Why a value of a known key asks for nothing.
fn wrong_value(key: &str, value: &str) -> Option<String> {
    if value.is_empty() || asks_for_something(key, value) {
        return None;
    }
    let words = words(key);
    let known = match words.is_empty() {
        true => "write a whole number from 1 on".to_owned(),
        false => format!("write one of {}", words.join(", ")),
    };
    let near = near::did_you_mean(value, words);
    let advice = if near.is_empty() { format!("; {known}") } else { near };
    Some(format!("{value:?} has no effect{advice}"))
}

fn asks_for_something(key: &str, value: &str) -> bool {
    let gates = FeatureGates::default();
    if key == annotation::DEFAULT_TRAFFIC_DISTRIBUTION {
        let defaults = TrafficDistributionDefaults { namespace: Some(Name::new(value)), cluster: None };
        let choice = asking(&[]).map(|service| choose(&service, &defaults, &gates));
        return choice
            .is_some_and(|choice| choice.notices.iter().all(|(why, _)| *why != event_reason::INVALID_VALUE));
    }
    // The threshold counts only beside Prefer.
    let beside = match key == annotation::SAME_ZONE_STARTING_THRESHOLD {
        true => Some((annotation::SAME_ZONE, "Prefer")),
        false => None,
    };
    let settings: Vec<(&str, &str)> = [(key, value)].into_iter().chain(beside).collect();
    let choice =
        asking(&settings).map(|service| choose(&service, &TrafficDistributionDefaults::default(), &gates));
    choice.is_some_and(|choice| choice.accepted.is_ok() && choice.refused.is_none())
}

/// A Service with these annotations and nothing else that decides.
fn asking(settings: &[(&str, &str)]) -> Option<Service> {
    let annotations: Map<String, Value> =
        settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
    let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "any", "annotations": annotations},
        "spec": {"ports": [{"port": ANY_PORT}]}});
    match parse::object(&object, &mut model::Interner::default()).0 {
        Some(Object::Service(service)) => Some(*service),
        _ => None,
    }
}

/// The words that a key takes, for advice.
fn words(key: &str) -> Vec<&'static str> {
    match key {
        annotation::SAME_ZONE_STARTING_THRESHOLD => Vec::new(),
        annotation::TOPOLOGY_MODE | annotation::TOPOLOGY_AWARE_HINTS => vec!["Auto", "Disabled"],
        annotation::SAME_NODE | annotation::SAME_ZONE | annotation::SAME_REGION => {
            vec!["Balanced", "Prefer", "Require"]
        }
        _ => {
            let named = Mechanism::ALL.iter().filter(|mechanism| !mechanism.is_resting());
            named.map(|mechanism| mechanism.as_str()).chain(["Balanced"]).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::validate::lint;

    fn said(kind: &str, metadata: Value) -> Vec<(String, String)> {
        let mut metadata = metadata;
        metadata["name"] = "web".into();
        let object = json!({"apiVersion": "v1", "kind": kind, "metadata": metadata});
        lint(&object).into_iter().map(|violation| (violation.field, violation.reason)).collect()
    }

    fn check(kind: &str, key: &str, value: &str, wanted: &str) {
        let found = said(kind, json!({"annotations": {key: value}}));
        match wanted {
            "" => assert!(found.is_empty(), "{key}: {value}: {found:?}"),
            wanted => {
                assert_eq!(found.len(), 1, "{key}: {value}: {found:?}");
                assert_eq!(found[0].0, format!("metadata.annotations[{key}]"));
                assert!(found[0].1.contains(wanted), "{key}: {value}: {found:?}");
            }
        }
    }

    #[test]
    fn a_misspelled_value_is_told_with_the_nearest_word() {
        for (key, value, wanted) in [
            ("zoneward.dev/traffic-distribution", "Spill", ""),
            ("zoneward.dev/traffic-distribution", "Balanced", ""),
            ("zoneward.dev/traffic-distribution", "Spil", "did you mean \"Spill\"?"),
            ("zoneward.dev/traffic-distribution", "prefersamezone", "did you mean \"PreferSameZone\"?"),
            ("zoneward.dev/traffic-distribution", "Nonsense", "write one of None, Auto, PreferSameZone"),
            ("endpointslice.kubernetes.io/same-zone", "Require", ""),
            ("endpointslice.kubernetes.io/same-zone", "Requires", "did you mean \"Require\"?"),
            ("endpointslice.kubernetes.io/same-node", "yes", "write one of Balanced, Prefer, Require"),
            ("endpointslice.kubernetes.io/same-zone-starting-threshold", "9", ""),
            ("endpointslice.kubernetes.io/same-zone-starting-threshold", "0", "whole number from 1 on"),
            ("service.kubernetes.io/topology-mode", "auto", ""),
            ("service.kubernetes.io/topology-mode", "Disabled", ""),
            ("service.kubernetes.io/topology-mode", "Atuo", "did you mean \"Auto\"?"),
            ("service.kubernetes.io/topology-aware-hints", "on", "write one of Auto, Disabled"),
        ] {
            check("Service", key, value, wanted);
        }
        check("Namespace", "zoneward.dev/default-traffic-distribution", "Spill", "");
        check("Namespace", "zoneward.dev/default-traffic-distribution", "Spil", "did you mean \"Spill\"?");
    }

    #[test]
    fn a_key_that_is_nearly_one_of_ours_is_told_and_those_of_others_are_not() {
        for (key, wanted) in [
            ("zoneward.dev/trafic-distribution", "did you mean zoneward.dev/traffic-distribution?"),
            ("zonward.dev/traffic-distribution", "did you mean zoneward.dev/traffic-distribution?"),
            ("service.kubernetes.io/topology-mod", "did you mean service.kubernetes.io/topology-mode?"),
            ("endpointslice.kubernetes.io/same-zones", "did you mean endpointslice.kubernetes.io/same-zone?"),
            ("zoneward.dev/weight", "those that are read here are"),
            ("zoneward.dev/default-traffic-distribution", "it is read on a Namespace"),
            ("service.beta.kubernetes.io/aws-load-balancer-type", ""),
            ("example.com/traffic-distribution", ""),
        ] {
            check("Service", key, "Auto", wanted);
        }
        let found = said("Service", json!({"labels": {"zoneward.dev/traffic-distribution": "Spill"}}));
        assert_eq!(found[0].0, "metadata.labels[zoneward.dev/traffic-distribution]");
    }
}
