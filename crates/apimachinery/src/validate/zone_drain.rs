//! ZoneDrain: the errors of the parser that the controller uses.

use model::field::{Field, FieldErrors};
use model::json;

use super::Admission;
use super::meta::{self, Naming};
use super::syntax::dns_subdomain;
use plan::drain::ZoneDrain;

pub(super) fn check(admission: &Admission, errors: &mut FieldErrors) {
    meta::check(admission, &Naming { rule: dns_subdomain, namespaced: false, generated: true }, errors);
    // Ratcheting, as API servers do for custom resources: an unchanged spec is not validated again.
    let (old, new) = (admission.old.as_ref().map(Field::value), admission.new.value());
    if old.is_some_and(|old| json::same(&old["spec"], &new["spec"])) {
        return;
    }
    for error in ZoneDrain::spec_errors(new) {
        errors.invalid_at(error.field, error.problem);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::validate::{lint, validate, validate_update};

    fn drain(spec: Value) -> Value {
        json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "ZoneDrain", "metadata": {"name": "a"}, "spec": spec})
    }

    fn fields(spec: Value) -> Vec<String> {
        validate(&drain(spec)).into_iter().map(|violation| violation.field).collect()
    }

    #[test]
    fn every_wrong_field_is_named_and_the_kind_is_known() {
        let right =
            json!({"zone": "zone-a", "expiresAt": "2026-11-17T12:00:00Z", "over": "5m", "percent": 5});
        assert_eq!(fields(right.clone()), Vec::<String>::new());
        assert_eq!(lint(&drain(right.clone())), []);
        let wrong = json!({"zone": "", "expiresAt": "noon", "over": "3d", "percent": 0, "force": "yes"});
        let all = ["spec.zone", "spec.expiresAt", "spec.over", "spec.percent", "spec.force"];
        assert_eq!(fields(wrong.clone()), all);
        assert_eq!(fields(json!({})), ["spec.zone", "spec.expiresAt"]);
        let mut namespaced = drain(right);
        namespaced["metadata"]["namespace"] = "shop".into();
        assert_eq!(validate(&namespaced).len(), 1);
        assert_eq!(
            validate_update(&drain(wrong.clone()), &drain(wrong)),
            [],
            "a status can still be written"
        );
    }
}
