//! Messages as clients write them, and the table held against the schemas of the kinds.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

use super::*;
use crate::schema::{definitions, resolve};
use model::protobuf::MAGIC;
use serde_json::json;

/// A field of bytes.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2, u8::try_from(content.len()).unwrap()];
    bytes.extend_from_slice(content);
    bytes
}

fn varint(number: u8, value: u8) -> Vec<u8> {
    vec![number << 3, value]
}

fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
    [MAGIC.to_vec(), field(1, &meta), field(2, raw), field(3, b""), field(4, b"")].concat()
}

#[test]
fn a_service_is_read_as_its_json_would_be() {
    let port = [
        field(1, b"http"),
        field(2, b""),
        varint(3, 80),
        field(4, &[varint(1, 1), varint(2, 0), field(3, b"web")].concat()),
        varint(5, 0),
    ];
    let label = [field(1, b"app"), field(2, b"web")].concat();
    let spec = [field(1, &port.concat()), field(2, &label), field(3, b""), field(4, b"NodePort")].concat();
    let metadata = [field(1, b"web"), field(2, b""), field(3, b""), field(8, b"")].concat();
    let raw = [field(1, &metadata), field(2, &spec), field(3, &field(1, b""))].concat();
    assert_eq!(
        object(&envelope("v1", "Service", &raw)).unwrap(),
        json!({"kind": "Service", "apiVersion": "v1", "metadata": {"name": "web"},
            "spec": {"ports": [{"name": "http", "port": 80, "targetPort": "web"}],
                "selector": {"app": "web"}, "type": "NodePort"},
            "status": {"loadBalancer": {}}})
    );
}

#[test]
fn special_types_become_what_they_are_in_json() {
    let time = [varint(1, 60), varint(2, 7)].concat();
    let spec = [field(1, b"me"), varint(2, 0), field(4, &time)].concat();
    let raw = [field(1, &field(8, &varint(1, 60))), field(2, &spec)].concat();
    let lease = object(&envelope("coordination.k8s.io/v1", "Lease", &raw)).unwrap();
    assert_eq!(lease["metadata"]["creationTimestamp"], "1970-01-01T00:01:00Z");
    assert_eq!(lease["spec"]["renewTime"], "1970-01-01T00:01:00.000000Z");
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 0, "a pointer to zero says something");
    let data = [field(1, b"k"), field(2, &[0, 255])].concat();
    let secret = object(&envelope("v1", "Secret", &field(2, &data))).unwrap();
    assert_eq!(secret["data"]["k"], "AP8=");
}

#[test]
fn volumes_stand_beside_their_names() {
    let volume = [field(1, b"v"), field(2, &field(2, b""))].concat();
    let pod = object(&envelope("v1", "Pod", &field(2, &field(1, &volume)))).unwrap();
    assert_eq!(pod["spec"]["volumes"][0], json!({"name": "v", "emptyDir": {}}));
}

#[test]
fn what_cannot_be_read_is_an_error_and_no_panic() {
    for bytes in [
        b"".to_vec(),
        b"k8s".to_vec(),
        b"{}".to_vec(),
        envelope("v1", "Deployment", b""),
        envelope("apps/v1", "Service", b""),
        envelope("v1", "Service", &[0x0a, 0x7f]),
        envelope("v1", "Service", &varint(1, 5)),
        envelope("v1", "ConfigMap", &field(1, &field(1, &[0xff]))),
        [MAGIC, &[0xff; 20]].concat(),
    ] {
        assert!(object(&bytes).is_err(), "{bytes:?}");
    }
    let whole = envelope("v1", "Service", &field(2, &field(1, &field(1, b"http"))));
    for end in 0..whole.len() {
        let _ = object(&whole[..end]);
    }
}

proptest::proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..100)) {
        for (api_version, kind) in [("v1", "Pod"), ("v1", "Service"), ("events.k8s.io/v1", "Event")] {
            let _ = object(&envelope(api_version, kind, &bytes));
        }
        let _ = object(&[MAGIC, &bytes].concat());
    }
}

#[test]
fn every_field_of_the_schemas_has_its_number() {
    for (name, rows) in field_table::messages() {
        let definition = definition_of(name);
        let Some(properties) = definition["properties"].as_object() else { continue };
        let mut known: Vec<String> = Vec::new();
        names(rows, &mut known);
        let left_out = match *name {
            // A map of lists: of users only the server writes it, and authorization does not read it.
            "authentication.v1.UserInfo" | "authorization.v1.SubjectAccessReviewSpec" => "extra",
            // A map of lists, which is dropped: nothing is attested.
            "authentication.v1.TokenRequestSpec" => "attestations",
            // Written, and without content.
            "meta.v1.Status" => "metadata",
            _ => "",
        };
        known.push(left_out.to_owned());
        for property in properties.keys().filter(|name| *name != "apiVersion" && *name != "kind") {
            assert!(known.contains(property), "{name} has no number for {property}");
        }
    }
}

fn names(rows: &field_table::Message, known: &mut Vec<String>) {
    for field in rows.values() {
        match &field.of {
            Type::Message(inner) if field.is_inline() => names(field_table::message(inner).unwrap(), known),
            _ => known.push(field.name.clone()),
        }
    }
}

fn definition_of(message: &str) -> &'static Value {
    let meta =
        message.strip_prefix("meta.v1.").map(|kind| format!("io.k8s.apimachinery.pkg.apis.meta.v1.{kind}"));
    let name = meta.unwrap_or_else(|| format!("io.k8s.api.{message}"));
    definitions().get(&name).map_or(&Value::Null, resolve)
}
