//! Validation of Leases, ConfigMaps and Secrets, with the rules of kube-apiserver.

use apimachinery::validate::FieldErrorType;
use serde_json::{Map, Value};

use super::schema_validation::FieldFinding;
use crate::kinds::ResourceKind;
use crate::schema::bytes;

/// All values of a ConfigMap or Secret together.
const MAX_BYTES: usize = 1024 * 1024;
const MAX_KEY: usize = 253;

/// Validates a Lease, a ConfigMap or a Secret.
pub(super) fn check(kind: &ResourceKind, old: Option<&Value>, new: &Value) -> Vec<FieldFinding> {
    let mut findings = Vec::new();
    match (kind.group, kind.kind) {
        ("coordination.k8s.io", "Lease") => lease(&new["spec"], &mut findings),
        ("", "ConfigMap") => config_map(old, new, &mut findings),
        ("", "Secret") => secret(old, new, &mut findings),
        _ => {}
    }
    findings
}

fn finding(field: impl Into<String>, fault: FieldErrorType, reason: impl Into<String>) -> FieldFinding {
    (field.into(), fault, reason.into())
}

fn lease(spec: &Value, findings: &mut Vec<FieldFinding>) {
    if let Some(seconds) = spec["leaseDurationSeconds"].as_i64().filter(|seconds| *seconds <= 0) {
        let reason = format!("{seconds}: must be greater than 0");
        findings.push(finding("spec.leaseDurationSeconds", FieldErrorType::Invalid, reason));
    }
    if let Some(count) = spec["leaseTransitions"].as_i64().filter(|count| *count < 0) {
        findings.push(finding(
            "spec.leaseTransitions",
            FieldErrorType::Invalid,
            format!("{count}: must be greater than or equal to 0"),
        ));
    }
}

fn config_map(old: Option<&Value>, new: &Value, findings: &mut Vec<FieldFinding>) {
    for (list, other) in [("data", Some("binaryData")), ("binaryData", None)] {
        for key in members(&new[list]).map(|(key, _)| key) {
            keys(list, key, findings);
            if other.is_some_and(|other| !new[other][key].is_null()) {
                let reason = format!("{key:?} duplicate of key in binaryData");
                findings.push(finding(format!("{list}[{key}]"), FieldErrorType::Invalid, reason));
            }
        }
    }
    let texts: usize = members(&new["data"]).map(|(_, value)| value.as_str().map_or(0, str::len)).sum();
    let bytes: usize = members(&new["binaryData"]).map(|(_, value)| decoded_length(value)).sum();
    if texts.saturating_add(bytes) > MAX_BYTES {
        // The whole object is too long; it has no path.
        findings.push(finding(
            "[]",
            FieldErrorType::TooLong,
            format!("may not be more than {MAX_BYTES} bytes"),
        ));
    }
    check_immutable(old, new, &["data", "binaryData"], findings);
}

fn secret(old: Option<&Value>, new: &Value, findings: &mut Vec<FieldFinding>) {
    for key in members(&new["data"]).map(|(key, _)| key) {
        keys("data", key, findings);
    }
    let bytes: usize = members(&new["data"]).map(|(_, value)| decoded_length(value)).sum();
    if bytes > MAX_BYTES {
        findings.push(finding(
            "data",
            FieldErrorType::TooLong,
            format!("may not be more than {MAX_BYTES} bytes"),
        ));
    }
    match new["type"].as_str() {
        Some("kubernetes.io/tls") => has_keys(new, &["tls.crt", "tls.key"], findings),
        Some("kubernetes.io/dockercfg") => has_keys(new, &[".dockercfg"], findings),
        Some("kubernetes.io/dockerconfigjson") => has_keys(new, &[".dockerconfigjson"], findings),
        Some("kubernetes.io/ssh-auth") => has_keys(new, &["ssh-privatekey"], findings),
        Some("kubernetes.io/service-account-token") => {
            let name = "kubernetes.io/service-account.name";
            if new["metadata"]["annotations"][name].as_str().is_none_or(str::is_empty) {
                let field = format!("metadata.annotations[{name}]");
                findings.push(finding(field, FieldErrorType::Required, ""));
            }
        }
        _ => {}
    }
    if let Some(old) = old.filter(|old| old["type"] != new["type"]) {
        let reason = format!("field is immutable: keep {}", old["type"]);
        findings.push(finding("type", FieldErrorType::Invalid, reason));
    }
    check_immutable(old, new, &["data"], findings);
}

fn members(map: &Value) -> impl Iterator<Item = (&str, &Value)> {
    map.as_object().into_iter().flat_map(Map::iter).map(|(key, value)| (key.as_str(), value))
}

/// Keys become file names and must not lead out of the folder.
fn keys(list: &str, key: &str, findings: &mut Vec<FieldFinding>) {
    let spelled = !key.is_empty()
        && key.len() <= MAX_KEY
        && key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    if !spelled || key == "." || key.starts_with("..") {
        let reason = format!(
            "{key:?}: must be at most {MAX_KEY} letters, digits, '-', '_' and '.', and not '.' or start with '..'"
        );
        findings.push(finding(format!("{list}[{key}]"), FieldErrorType::Invalid, reason));
    }
}

fn decoded_length(value: &Value) -> usize {
    value.as_str().and_then(bytes).map_or(0, |bytes| bytes.len())
}

fn has_keys(secret: &Value, keys: &[&str], findings: &mut Vec<FieldFinding>) {
    for key in keys.iter().filter(|key| secret["data"][**key].is_null()) {
        findings.push(finding(format!("data[{key}]"), FieldErrorType::Required, ""));
    }
}

fn check_immutable(old: Option<&Value>, new: &Value, lists: &[&str], findings: &mut Vec<FieldFinding>) {
    let Some(old) = old.filter(|old| old["immutable"] == true) else { return };
    let reason = "field is immutable when `immutable` is set";
    if new["immutable"] != true {
        findings.push(finding("immutable", FieldErrorType::Forbidden, reason));
    }
    for list in lists {
        if !is_same_map(&old[*list], &new[*list]) {
            findings.push(finding(*list, FieldErrorType::Forbidden, reason));
        }
    }
}

fn is_same_map(old: &Value, new: &Value) -> bool {
    members(old).count() == members(new).count() && members(old).all(|(key, value)| new[key] == *value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;
    use serde_json::json;

    fn found(kind: &str, old: Option<Value>, new: &Value) -> Vec<(String, FieldErrorType)> {
        let kind = kinds::named(kind).expect("the table has it");
        check(kind, old.as_ref(), new).into_iter().map(|(field, fault, _)| (field, fault)).collect()
    }

    #[test]
    fn keys_are_valid_file_names() {
        for key in ["a", "A.b_c-1", ".a", "a..b"] {
            assert_eq!(found("ConfigMap", None, &json!({"data": {key: "x"}})), [], "{key}");
        }
        for key in ["", "a b", ".", "..", "..a", "a/b", &"a".repeat(254)] {
            let wanted = (format!("data[{key}]"), FieldErrorType::Invalid);
            assert_eq!(
                found("ConfigMap", None, &json!({"data": {key: "x"}})),
                std::slice::from_ref(&wanted),
                "{key}"
            );
            assert_eq!(found("Secret", None, &json!({"data": {key: "eA=="}})), [wanted], "{key}");
        }
    }

    #[test]
    fn immutable_objects_cannot_change() {
        let map = |data: Value, immutable: bool| json!({"data": data, "immutable": immutable});
        let old = || Some(map(json!({"a": "b", "c": "d"}), true));
        assert_eq!(found("ConfigMap", old(), &map(json!({"c": "d", "a": "b"}), true)), []);
        let data = ("data".to_owned(), FieldErrorType::Forbidden);
        assert_eq!(found("ConfigMap", old(), &map(json!({"a": "x", "c": "d"}), true)), [data]);
        let mark = ("immutable".to_owned(), FieldErrorType::Forbidden);
        assert_eq!(found("ConfigMap", old(), &map(json!({"a": "b", "c": "d"}), false)), [mark]);
    }

    #[test]
    fn values_have_a_maximum_size() {
        let long = "x".repeat(MAX_BYTES);
        assert_eq!(found("ConfigMap", None, &json!({"data": {"a": long}})), []);
        let wanted = [("[]".to_owned(), FieldErrorType::TooLong)];
        assert_eq!(found("ConfigMap", None, &json!({"data": {"a": long, "b": "x"}})), wanted);
    }
}
