//! KubeProxyConfiguration: what `zoneward node --config` would reject or ignore.
//!
//! kube-proxy decodes the file strictly and, if that fails, leniently. An ignored field is a warning there and a
//! violation here.

use apimachinery::validate::{FieldErrorType, Violation};
use model::ObjectRef;
use serde_json::Value;

use node::config::{self, fields, file};

/// Violations and warnings; `None` for other kinds.
pub(super) fn check(object: &Value) -> Option<(Vec<Violation>, Vec<Violation>)> {
    if object["kind"] != file::KIND {
        return None;
    }
    let (configuration, unknown) = match file::from_value(object.clone()) {
        Ok(read) => read,
        Err(error) => return Some((vec![line(&format!("{error:#}"))], Vec::new())),
    };
    let ignored = unknown.into_iter().map(|path| {
        let near = fields::did_you_mean(&path);
        violation(&path, &format!("unknown field{near}"))
    });
    let mut violations: Vec<Violation> = ignored.collect();
    match config::resolve(configuration, false) {
        Ok((_, notices)) => Some((violations, notices.iter().map(|notice| line(&notice.message)).collect())),
        Err(error) => {
            let text = error.to_string();
            // The first line is a summary; each other line has a field and a reason.
            violations.extend(text.lines().skip(1).map(|text| line(text.trim())));
            Some((violations, Vec::new()))
        }
    }
}

/// `field: reason`.
fn line(text: &str) -> Violation {
    match text.split_once(": ").filter(|(field, _)| !field.contains(' ')) {
        Some((field, reason)) => violation(field, reason),
        None => violation("", text),
    }
}

fn violation(field: &str, reason: &str) -> Violation {
    Violation {
        object: ObjectRef::new(file::KIND, "", "config"),
        field: field.to_owned(),
        reason: reason.to_owned(),
        error_type: FieldErrorType::Invalid,
    }
}
