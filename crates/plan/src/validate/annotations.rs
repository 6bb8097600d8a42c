//! Lint: annotations that select a traffic distribution, with misspelled keys or ignored values.
//!
//! API servers accept them, and the controller's Notice comes after they are applied. Values are checked with [`choose`]
//! itself, so that there is no second list.

use model::backend::ProxyProtocol;
use model::{Name, Object, Service, annotation, parse, suggestion};
use serde_json::{Map, Value, json};

use super::group_and_version;
use crate::FeatureGates;
use crate::hints::{Mechanism, TrafficDistributionDefaults, choose, event_reason};
use model::field::FieldErrors;

const OWN_PREFIX: &str = "zoneward.dev/";
const READ_FROM_NAMESPACES: &[&str] = &[annotation::DEFAULT_TRAFFIC_DISTRIBUTION];
const ANY_PORT: u16 = 80;

pub(super) fn check(object: &Value, errors: &mut FieldErrors) {
    let (group, _) = group_and_version(object);
    let (keys, others) = match object["kind"].as_str().filter(|_| group.is_empty()) {
        Some("Service") => (annotation::READ_FROM_SERVICES, READ_FROM_NAMESPACES),
        Some("Namespace") => (READ_FROM_NAMESPACES, annotation::READ_FROM_SERVICES),
        _ => return,
    };
    let nothing = Map::new();
    let annotations = object["metadata"]["annotations"].as_object().unwrap_or(&nothing);
    for (key, value) in annotations {
        let message = match keys.contains(&key.as_str()) {
            true => value.as_str().and_then(|value| wrong_value(key, value)),
            false => wrong_key(key, keys, others),
        };
        if let Some(reason) = message {
            errors.invalid_at(&format!("metadata.annotations[{key}]"), reason);
        }
    }
    let labels = object["metadata"]["labels"].as_object().unwrap_or(&nothing);
    for key in labels.keys().filter(|key| keys.contains(&key.as_str())) {
        let reason = "is an annotation: as a label it has no effect".to_owned();
        errors.invalid_at(&format!("metadata.labels[{key}]"), reason);
    }
}

/// A key that resembles a known one. Keys of other domains are not checked.
fn wrong_key(key: &str, keys: &[&str], others: &[&str]) -> Option<String> {
    if others.contains(&key) && key.starts_with(OWN_PREFIX) {
        let place = if key == annotation::DEFAULT_TRAFFIC_DISTRIBUTION { "Namespace" } else { "Service" };
        return Some(format!("has no effect here: it is an annotation of a {place}"));
    }
    match suggestion::nearest(key, keys.iter().copied()) {
        Some(near) => Some(format!("unknown annotation; did you mean {near}?")),
        None if key.starts_with(OWN_PREFIX) => {
            Some(format!("unknown annotation; known ones are {}", keys.join(", ")))
        }
        None => None,
    }
}

/// The error for a value that is ignored.
fn wrong_value(key: &str, value: &str) -> Option<String> {
    if value.is_empty() || is_effective(key, value) {
        return None;
    }
    let values = values(key);
    let known = match values.is_empty() {
        true => "use an integer from 1".to_owned(),
        false => format!("use one of {}", values.join(", ")),
    };
    let suggestion = suggestion::did_you_mean(value, values);
    let advice = if suggestion.is_empty() { format!("; {known}") } else { suggestion };
    Some(format!("{value:?} has no effect{advice}"))
}

fn is_effective(key: &str, value: &str) -> bool {
    let gates = FeatureGates::default();
    if key == annotation::PROXY_PROTOCOL {
        return ProxyProtocol::parse(value).is_some();
    }
    if key == annotation::DEFAULT_TRAFFIC_DISTRIBUTION {
        let defaults = TrafficDistributionDefaults { namespace: Some(Name::new(value)), cluster: None };
        let choice = service_with(&[]).map(|service| choose(&service, &defaults, &gates));
        return choice
            .is_some_and(|choice| choice.notices.iter().all(|(why, _)| *why != event_reason::INVALID_VALUE));
    }
    // The threshold counts only beside Prefer.
    let beside = match key == annotation::SAME_ZONE_STARTING_THRESHOLD {
        true => Some((annotation::SAME_ZONE, "Prefer")),
        false => None,
    };
    let settings: Vec<(&str, &str)> = [(key, value)].into_iter().chain(beside).collect();
    let choice = service_with(&settings)
        .map(|service| choose(&service, &TrafficDistributionDefaults::default(), &gates));
    choice.is_some_and(|choice| choice.accepted.is_ok() && choice.refused.is_none())
}

/// A Service with these annotations.
fn service_with(settings: &[(&str, &str)]) -> Option<Service> {
    let annotations: Map<String, Value> =
        settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
    let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "any", "annotations": annotations},
        "spec": {"ports": [{"port": ANY_PORT}]}});
    match parse::object(&object, &mut model::Interner::default()).0 {
        Some(Object::Service(service)) => Some(*service),
        _ => None,
    }
}

/// The values of a key, for suggestions.
fn values(key: &str) -> Vec<&'static str> {
    match key {
        annotation::SAME_ZONE_STARTING_THRESHOLD => Vec::new(),
        annotation::PROXY_PROTOCOL => ProxyProtocol::ALL.to_vec(),
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

    fn lints(kind: &str, metadata: Value) -> Vec<(String, String)> {
        let mut metadata = metadata;
        metadata["name"] = "web".into();
        let object = json!({"apiVersion": "v1", "kind": kind, "metadata": metadata});
        lint(&object).into_iter().map(|violation| (violation.field, violation.reason)).collect()
    }

    fn check(kind: &str, key: &str, value: &str, wanted: &str) {
        let found = lints(kind, json!({"annotations": {key: value}}));
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
    fn misspelled_values_get_a_suggestion() {
        for (key, value, wanted) in [
            ("zoneward.dev/traffic-distribution", "Spill", ""),
            ("zoneward.dev/traffic-distribution", "Balanced", ""),
            ("zoneward.dev/traffic-distribution", "Spil", "did you mean \"Spill\"?"),
            ("zoneward.dev/traffic-distribution", "prefersamezone", "did you mean \"PreferSameZone\"?"),
            ("zoneward.dev/traffic-distribution", "Nonsense", "use one of None, Auto, PreferSameZone"),
            ("endpointslice.kubernetes.io/same-zone", "Require", ""),
            ("endpointslice.kubernetes.io/same-zone", "Requires", "did you mean \"Require\"?"),
            ("endpointslice.kubernetes.io/same-node", "yes", "use one of Balanced, Prefer, Require"),
            ("endpointslice.kubernetes.io/same-zone-starting-threshold", "9", ""),
            ("endpointslice.kubernetes.io/same-zone-starting-threshold", "0", "an integer from 1"),
            ("service.kubernetes.io/topology-mode", "auto", ""),
            ("service.kubernetes.io/topology-mode", "Disabled", ""),
            ("service.kubernetes.io/topology-mode", "Atuo", "did you mean \"Auto\"?"),
            ("service.kubernetes.io/topology-aware-hints", "on", "use one of Auto, Disabled"),
        ] {
            check("Service", key, value, wanted);
        }
        check("Namespace", "zoneward.dev/default-traffic-distribution", "Spill", "");
        check("Namespace", "zoneward.dev/default-traffic-distribution", "Spil", "did you mean \"Spill\"?");
    }

    #[test]
    fn misspelled_keys_get_a_suggestion_and_keys_of_others_do_not() {
        for (key, wanted) in [
            ("zoneward.dev/trafic-distribution", "did you mean zoneward.dev/traffic-distribution?"),
            ("zonward.dev/traffic-distribution", "did you mean zoneward.dev/traffic-distribution?"),
            ("service.kubernetes.io/topology-mod", "did you mean service.kubernetes.io/topology-mode?"),
            ("endpointslice.kubernetes.io/same-zones", "did you mean endpointslice.kubernetes.io/same-zone?"),
            ("zoneward.dev/weight", "known ones are"),
            ("zoneward.dev/default-traffic-distribution", "it is an annotation of a Namespace"),
            ("service.beta.kubernetes.io/aws-load-balancer-type", ""),
            ("example.com/traffic-distribution", ""),
        ] {
            check("Service", key, "Auto", wanted);
        }
        let found = lints("Service", json!({"labels": {"zoneward.dev/traffic-distribution": "Spill"}}));
        assert_eq!(found[0].0, "metadata.labels[zoneward.dev/traffic-distribution]");
    }
}
