//! Lint: annotations that traffic follows, with misspelled keys or ignored values: of Services, Namespaces, Pods and Pod
//! templates.
//!
//! API servers accept them, and the controller's Notice comes after they are applied. Values are checked with [`choose`]
//! itself, so that there is no second list.

use model::backend::ProxyProtocol;
use model::{Name, Object, Service, annotation, parse, suggestion};
use serde_json::{Map, Value, json};

use super::group_and_version;
use model::field::FieldErrors;
use plan::FeatureGates;
use plan::capacity::{parse_capacity, parse_slow_start};
use plan::hints::{Mechanism, TrafficDistributionDefaults, choose, event_reason};
use plan::spill::SpillDemandMode;

const OWN_PREFIX: &str = "zoneward.dev/";
const READ_FROM_NAMESPACES: &[&str] = &[annotation::DEFAULT_TRAFFIC_DISTRIBUTION];
const READ_FROM_PODS: &[&str] = &[annotation::CAPACITY];
const ANY_PORT: u16 = 80;

pub(super) fn check(object: &Value, errors: &mut FieldErrors) {
    let (group, _) = group_and_version(object);
    let template = &object["spec"]["template"]["metadata"];
    let (metadata, path, keys) = match (group, object["kind"].as_str().unwrap_or_default()) {
        ("", "Service") => (&object["metadata"], "metadata", annotation::READ_FROM_SERVICES),
        ("", "Namespace") => (&object["metadata"], "metadata", READ_FROM_NAMESPACES),
        ("", "Pod") => (&object["metadata"], "metadata", READ_FROM_PODS),
        ("apps", "DaemonSet" | "Deployment" | "ReplicaSet" | "StatefulSet") => {
            (template, "spec.template.metadata", READ_FROM_PODS)
        }
        _ => return,
    };
    let nothing = Map::new();
    let annotations = metadata["annotations"].as_object().unwrap_or(&nothing);
    for (key, value) in annotations {
        let message = match keys.contains(&key.as_str()) {
            true => value.as_str().and_then(|value| wrong_value(key, value)),
            false => wrong_key(key, keys),
        };
        if let Some(reason) = message {
            errors.invalid_at(&format!("{path}.annotations[{key}]"), reason);
        }
    }
    let labels = metadata["labels"].as_object().unwrap_or(&nothing);
    for key in labels.keys().filter(|key| keys.contains(&key.as_str())) {
        let reason = "is an annotation: as a label it has no effect".to_owned();
        errors.invalid_at(&format!("{path}.labels[{key}]"), reason);
    }
}

/// A key that resembles a known one. Keys of other domains are not checked.
fn wrong_key(key: &str, keys: &[&str]) -> Option<String> {
    let places = [
        ("Service", annotation::READ_FROM_SERVICES),
        ("Namespace", READ_FROM_NAMESPACES),
        ("Pod", READ_FROM_PODS),
    ];
    let mut places = places.iter().filter(|(_, known)| key.starts_with(OWN_PREFIX) && known.contains(&key));
    if let Some((place, _)) = places.next() {
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
    let known = match key {
        annotation::SAME_ZONE_STARTING_THRESHOLD => "use an integer from 1".to_owned(),
        annotation::SLOW_START => "use a duration from 1s to 1h, such as 60s".to_owned(),
        annotation::CAPACITY => {
            "use a number from 0.01 to 100 with up to three decimal places, such as 2".to_owned()
        }
        _ => format!("use one of {}", values.join(", ")),
    };
    let suggestion = suggestion::did_you_mean(value, values);
    let advice = if suggestion.is_empty() { format!("; {known}") } else { suggestion };
    Some(format!("{value:?} has no effect{advice}"))
}

fn is_effective(key: &str, value: &str) -> bool {
    let gates = FeatureGates::ALL;
    let mut defaults = TrafficDistributionDefaults { namespace: None, cluster: None };
    if key == annotation::PROXY_PROTOCOL {
        return ProxyProtocol::parse(value).is_some();
    }
    if key == annotation::SLOW_START {
        return parse_slow_start(value).is_some();
    }
    if key == annotation::CAPACITY {
        return parse_capacity(value).is_some();
    }
    if key == annotation::SPILL_DEMAND {
        return value.parse::<SpillDemandMode>().is_ok();
    }
    if key == annotation::DEFAULT_TRAFFIC_DISTRIBUTION {
        defaults.namespace = Some(Name::new(value));
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
    let choice = service_with(&settings).map(|service| choose(&service, &defaults, &gates));
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
        annotation::SAME_ZONE_STARTING_THRESHOLD | annotation::SLOW_START | annotation::CAPACITY => {
            Vec::new()
        }
        annotation::PROXY_PROTOCOL => ProxyProtocol::ALL.to_vec(),
        annotation::SPILL_DEMAND => SpillDemandMode::ALL.map(SpillDemandMode::as_str).to_vec(),
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
            ("zoneward.dev/spill-demand", "measured", ""),
            ("zoneward.dev/spill-demand", "mesured", "did you mean \"measured\"?"),
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
    fn capacities_and_slow_starts_are_read_as_the_controller_does() {
        for (value, wanted) in
            [("60s", ""), ("1m30s", ""), ("0s", ""), ("60", "such as 60s"), ("2h", "1s to 1h")]
        {
            check("Service", "zoneward.dev/slow-start", value, wanted);
        }
        for (value, wanted) in
            [("2", ""), ("0.5", ""), ("0", "from 0.01 to 100"), ("1000m", "from 0.01 to 100")]
        {
            check("Pod", "zoneward.dev/capacity", value, wanted);
        }
        check("Service", "zoneward.dev/capacity", "2", "it is an annotation of a Pod");
        check("Pod", "zoneward.dev/slow-start", "60s", "it is an annotation of a Service");
        check("Pod", "zoneward.dev/capcity", "2", "did you mean zoneward.dev/capacity?");
        check("Pod", "example.com/capacity", "many", "");
        let template = json!({"metadata": {"annotations": {"zoneward.dev/capacity": "two"}}});
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {"template": template}});
        let found = lint(&deployment);
        assert_eq!(found[0].field, "spec.template.metadata.annotations[zoneward.dev/capacity]", "{found:?}");
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
