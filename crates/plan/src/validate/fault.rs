//! In which way a field is wrong. Programs go by this and people by the sentence beside it, so it is said where the
//! fault is found and not guessed from words afterwards.

/// The ways in which an API server calls a field wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The value cannot stand there.
    #[default]
    Invalid,
    /// Nothing stands there, and something must.
    Required,
    /// Another entry has the value already.
    Duplicate,
    /// The value is none of the words that are known.
    NotSupported,
    /// Nothing may stand there, given what stands elsewhere, or it may not change.
    Forbidden,
    /// The value is longer than allowed.
    TooLong,
    /// The list has more entries than allowed.
    TooMany,
}

impl Fault {
    /// The word for programs, as `FieldValueRequired`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Invalid => "FieldValueInvalid",
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
        }
    }

    /// The words that clients of Kubernetes look for at the head of the sentence.
    pub fn words(self) -> &'static str {
        match self {
            Self::Invalid => "Invalid value",
            Self::Required => "Required value",
            Self::Duplicate => "Duplicate value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::Fault;
    use crate::validate::table::changed;
    use crate::validate::validate;

    fn faults(object: &Value) -> Vec<(String, Fault)> {
        validate(object).into_iter().map(|violation| (violation.field, violation.fault)).collect()
    }

    fn check(base: &Value, cases: &[(Value, &str, Fault)]) {
        for (change, field, fault) in cases {
            assert_eq!(faults(&changed(base, change)), [((*field).to_owned(), *fault)], "{change}");
        }
    }

    #[test]
    fn a_field_of_a_service_is_wrong_in_its_own_way() {
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
            "spec": {"ports": [{"port": 80}]}});
        let spec = |spec: Value| json!({"spec": spec});
        let two = |a: Value, b: Value| json!({"spec": {"ports": [a, b]}});
        check(
            &service,
            &[
                (json!({"metadata": {"name": ""}}), "metadata.name", Fault::Required),
                (json!({"metadata": {"name": "Web"}}), "metadata.name", Fault::Invalid),
                (spec(json!({"ports": []})), "spec.ports", Fault::Required),
                (spec(json!({"type": "Odd"})), "spec.type", Fault::NotSupported),
                (
                    spec(json!({"trafficDistribution": "Odd"})),
                    "spec.trafficDistribution",
                    Fault::NotSupported,
                ),
                (spec(json!({"loadBalancerClass": "a/b"})), "spec.loadBalancerClass", Fault::Forbidden),
                (
                    spec(json!({"ports": [{"port": 80, "nodePort": 30_001}]})),
                    "spec.ports[0].nodePort",
                    Fault::Forbidden,
                ),
                (
                    two(json!({"port": 80, "name": "a"}), json!({"port": 81, "name": "a"})),
                    "spec.ports[1].name",
                    Fault::Duplicate,
                ),
                (
                    two(json!({"port": 80, "name": "a"}), json!({"port": 80, "name": "b"})),
                    "spec.ports[1]",
                    Fault::Duplicate,
                ),
                (
                    two(json!({"port": 80, "name": "a"}), json!({"port": 81})),
                    "spec.ports[1].name",
                    Fault::Required,
                ),
            ],
        );
    }

    #[test]
    fn lists_that_are_too_long_say_so() {
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "web-x"}, "addressType": "IPv4"});
        let addresses: Vec<String> = (0..101).map(|i| format!("10.0.0.{i}")).collect();
        let notes = json!({"metadata": {"annotations": {"a": "x".repeat(300_000)}}});
        check(
            &slice,
            &[
                (json!({"endpoints": [{"addresses": addresses}]}), "endpoints[0].addresses", Fault::TooMany),
                (json!({"endpoints": [{"addresses": []}]}), "endpoints[0].addresses", Fault::Required),
                (notes, "metadata.annotations", Fault::TooLong),
                (json!({"addressType": null}), "addressType", Fault::Required),
            ],
        );
    }
}
