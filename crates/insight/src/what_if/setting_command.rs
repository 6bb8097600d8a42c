//! The kubectl command that sets a mechanism, for `simulate what-if`, `status` and the dashboard.

use model::{Service, annotation};
use serde_json::{Value, json};

use plan::hints::Mechanism;

/// Value of the annotation for a mechanism.
pub fn setting_value(mechanism: Mechanism) -> &'static str {
    match mechanism {
        Mechanism::None => "Balanced",
        other => other.as_str(),
    }
}

/// Whether the field trafficDistribution can select it; annotations override the field.
pub fn is_set_by_field(service: &Service, mechanism: Mechanism) -> bool {
    matches!(mechanism, Mechanism::PreferSameZone | Mechanism::PreferSameNode)
        && service.annotations.is_empty()
}

/// The command that sets a mechanism, by field if possible, else by annotation: its words, and the change.
pub fn setting_command(service: &Service, mechanism: Mechanism) -> [String; 2] {
    let [name, namespace] = [&service.key.name, &service.key.namespace].map(|name| quoted(name));
    match is_set_by_field(service, mechanism) {
        true => {
            let patch = json!({"spec": {"trafficDistribution": mechanism.as_str()}});
            [format!("kubectl patch service {name} -n {namespace} --type merge"), format!("-p '{patch}'")]
        }
        false => [
            format!("kubectl annotate service {name} -n {namespace} --overwrite"),
            format!("{}={}", annotation::TRAFFIC_DISTRIBUTION, setting_value(mechanism)),
        ],
    }
}

/// The same change as a merge patch.
pub fn setting_patch(service: &Service, mechanism: Mechanism) -> Value {
    match is_set_by_field(service, mechanism) {
        true => json!({"spec": {"trafficDistribution": mechanism.as_str()}}),
        false => {
            let value = setting_value(mechanism);
            json!({"metadata": {"annotations": {annotation::TRAFFIC_DISTRIBUTION: value}}})
        }
    }
}

/// Quotes a word for a shell: names may come from untrusted files.
pub fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-._/=:".contains(letter);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}
