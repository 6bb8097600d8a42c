//! The schemas of all kinds as OpenAPI definitions, generated from the Kubernetes types, with the merge keys of lists.
//! They serve `kubectl explain`, the check of types and unknown fields ([`check`]), strategic merge, and OpenAPI.

mod check;
mod compiled_check;
mod defaulting;
mod merge_keys;

use std::sync::OnceLock;

use k8s_openapi::api::{
    admissionregistration::v1 as admission, authentication::v1 as authentication,
    authorization::v1 as authorization, coordination::v1 as coordination, core::v1 as core,
    discovery::v1 as discovery, events::v1 as events, networking::v1 as networking, policy::v1 as policy,
    rbac::v1 as rbac,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Status};
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

use crate::kinds::{OPEN_DEFINITION, ResourceKind};

pub(crate) use check::bytes;
pub use check::{Findings, TypeMismatch, check};
pub(crate) use compiled_check::fits;
pub(crate) use defaulting::fill_defaults;

/// The prefix of references in OpenAPI v3.
pub(crate) const PREFIX: &str = "#/components/schemas/";

const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";

/// All definitions by name.
pub(crate) fn definitions() -> &'static Map<String, Value> {
    static DEFINITIONS: OnceLock<Map<String, Value>> = OnceLock::new();
    DEFINITIONS.get_or_init(generate)
}

fn generate() -> Map<String, Value> {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    let mut generator = SchemaGenerator::new(settings);
    add_kinds(&mut generator);
    let mut definitions = generator.take_definitions(false);
    definitions.insert(OPEN_DEFINITION.to_owned(), open_object());
    if let Some(quantity) = definitions.get_mut(QUANTITY).and_then(Value::as_object_mut) {
        // Both `cpu: 4` and `cpu: 500m` are valid.
        quantity.remove("type");
        quantity.insert("oneOf".to_owned(), json!([{"type": "string"}, {"type": "number"}]));
    }
    for (name, definition) in &mut definitions {
        wrap_references(definition);
        merge_keys::put_in(name, definition);
    }
    apimachinery::managed_fields::annotate(&mut definitions);
    definitions.sort_keys();
    definitions
}

fn add_kinds(generator: &mut SchemaGenerator) {
    macro_rules! add {
        ($($kind:ty),* $(,)?) => { $(generator.subschema_for::<$kind>();)* };
    }
    add!(
        core::Binding,
        core::ConfigMap,
        core::Event,
        core::Namespace,
        core::Node,
        core::Pod,
        core::Secret,
        core::Service,
        core::ServiceAccount,
        admission::ValidatingAdmissionPolicy,
        admission::ValidatingAdmissionPolicyBinding,
        authentication::SelfSubjectReview,
        authentication::TokenRequest,
        authentication::TokenReview,
        authorization::LocalSubjectAccessReview,
        authorization::SelfSubjectAccessReview,
        authorization::SelfSubjectRulesReview,
        authorization::SubjectAccessReview,
        coordination::Lease,
        discovery::EndpointSlice,
        events::Event,
        networking::IPAddress,
        networking::ServiceCIDR,
        policy::Eviction,
        rbac::ClusterRole,
        rbac::ClusterRoleBinding,
        rbac::Role,
        rbac::RoleBinding,
        ObjectMeta,
        DeleteOptions,
        Status,
    );
}

/// The common schema of custom resources. `spec` and `status` are open.
fn open_object() -> Value {
    let open = |what: &str| json!({"type": "object", "description": what, "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "description": "An object of Zoneward. docs/reference describes its fields.",
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string", "description": "The group and version of the API."},
            "kind": {"type": "string", "description": "The kind of the object."},
            "metadata": {
                "description": "Standard object metadata.",
                "$ref": format!("{PREFIX}io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"),
            },
            "spec": open("The desired state."),
            "status": open("The observed state."),
        },
    })
}

/// OpenAPI 3.0 allows no siblings of `$ref`: with a description it goes into `allOf`.
fn wrap_references(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            map.values_mut().for_each(wrap_references);
            if map.len() > 1
                && let Some(reference @ Value::String(_)) = map.shift_remove("$ref")
            {
                map.insert("allOf".to_owned(), json!([{"$ref": reference}]));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(wrap_references),
        _ => {}
    }
}

/// The schema of a kind.
pub fn of(kind: &ResourceKind) -> Option<&'static Value> {
    kind.schema.map(|schema| schema()).or_else(|| definition(kind.definition))
}

/// The schema of a version of a CustomResourceDefinition (YAML or JSON), with the common fields added, so that `metadata`
/// is checked and explained as in other kinds.
pub(crate) fn of_crd(crd: &str, version: &str) -> Result<Value, String> {
    let crd: Value = serde_saphyr::from_str(crd).map_err(|error| error.to_string())?;
    let mut versions = crd["spec"]["versions"].as_array().into_iter().flatten();
    let found = versions.find(|entry| entry["name"] == version);
    let found = found.ok_or_else(|| format!("spec.versions: version {version:?} not found"))?;
    let mut schema = found["schema"]["openAPIV3Schema"].clone();
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else {
        return Err(format!("version {version:?} has no schema.openAPIV3Schema.properties"));
    };
    for (name, common) in open_object()["properties"].as_object().into_iter().flatten() {
        if matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
            properties.insert(name.clone(), common.clone());
        }
    }
    wrap_references(&mut schema);
    Ok(schema)
}

/// Follows a reference.
pub fn resolve(schema: &'static Value) -> &'static Value {
    let reference = schema["$ref"].as_str().or_else(|| schema["allOf"][0]["$ref"].as_str());
    let found = reference.and_then(|reference| reference.strip_prefix(PREFIX)).and_then(definition);
    found.unwrap_or(schema)
}

pub(crate) fn definition(name: &str) -> Option<&'static Value> {
    definitions().get(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::KINDS;

    #[test]
    fn every_kind_has_its_schema_and_every_reference_leads_somewhere() {
        for kind in KINDS {
            assert!(of(kind).is_some(), "{}", kind.definition);
        }
        for (name, schema) in definitions() {
            let text = schema.to_string();
            for reference in text.split(PREFIX).skip(1) {
                let target = reference.split('"').next().unwrap();
                assert!(definition(target).is_some(), "{name} refers to {target}");
            }
        }
    }

    #[test]
    fn the_schema_of_a_crd_gets_the_common_fields() {
        let crd = "
spec:
  versions:
  - name: v1alpha1
    schema:
      openAPIV3Schema: {type: object, properties: {metadata: {type: object}, spec: {type: object}}}
";
        let schema: &'static Value = Box::leak(Box::new(of_crd(crd, "v1alpha1").unwrap()));
        let mut object = json!({"metadata": {"name": "a", "nmae": "b"}, "spec": {}, "extra": 1});
        assert_eq!(check(&mut object, None, schema).unknown, ["extra", "metadata.nmae"]);
        assert!(
            of_crd(crd, "v9").is_err() && of_crd("spec: {}", "v1").is_err() && of_crd("[", "v1").is_err()
        );
    }

    #[test]
    fn merge_keys_are_in_the_schema() {
        let ports = &definition("io.k8s.api.core.v1.ServiceSpec").unwrap()["properties"]["ports"];
        assert_eq!(ports["x-kubernetes-patch-merge-key"], "port");
        assert_eq!(ports["x-kubernetes-patch-strategy"], "merge");
    }
}
