//! An object encoded as JSON except for its resourceVersion, which is known only inside the transaction. The transaction
//! then copies bytes instead of encoding.

use bytes::Bytes;
use serde_json::{Map, Value};

#[derive(Clone, Debug)]
pub(crate) struct EncodedObject {
    json: Vec<u8>,
    /// The offset of the resourceVersion.
    position: usize,
}

impl EncodedObject {
    /// Encodes an object of about `size` bytes; `None` if it has no field for a resourceVersion.
    pub(crate) fn of(object: &Value, size: usize) -> Option<Self> {
        let mut json = Vec::with_capacity(size);
        let mut position = None;
        write_members(object.as_object()?, &mut json, |name, value, json| {
            if name != "metadata" {
                return write(value, json);
            }
            write_members(value.as_object()?, json, |name, value, json| {
                if name != "resourceVersion" {
                    return write(value, json);
                }
                json.extend(b"\"\"");
                position = Some(json.len() - 1);
                Some(())
            })
        })?;
        Some(Self { json, position: position? })
    }

    /// The bytes with the resourceVersion.
    pub(crate) fn finish(self, revision: u64) -> Bytes {
        let version = revision.to_string();
        let mut json = Vec::with_capacity(self.json.len() + version.len());
        let (before, after) = self.json.split_at(self.position);
        json.extend(before);
        json.extend(version.as_bytes());
        json.extend(after);
        Bytes::from(json)
    }
}

fn write(value: &Value, json: &mut Vec<u8>) -> Option<()> {
    serde_json::to_writer(json, value).ok()
}

fn write_members(
    members: &Map<String, Value>,
    json: &mut Vec<u8>,
    mut each: impl FnMut(&str, &Value, &mut Vec<u8>) -> Option<()>,
) -> Option<()> {
    json.push(b'{');
    for (i, (name, value)) in members.iter().enumerate() {
        if i > 0 {
            json.push(b',');
        }
        serde_json::to_writer(&mut *json, name).ok()?;
        json.push(b':');
        each(name, value, json)?;
    }
    json.push(b'}');
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn a_finished_draft_is_the_object_with_its_version() {
        let tricky = json!({"kind": "X", "metadata": {"name": "a\"b", "annotations": {"resourceVersion": "x"},
            "resourceVersion": "4", "labels": {}}, "metadata2": {"resourceVersion": "y"}, "data": [1, null, "ü"]});
        let mut wanted = tricky.clone();
        meta::set_resource_version(&mut wanted, 12_345);
        let encoded = EncodedObject::of(&tricky, 8).unwrap();
        assert_eq!(encoded.finish(12_345), wanted.to_string());
        for none in [json!([]), json!({}), json!({"metadata": 1}), json!({"metadata": {"name": "a"}})] {
            assert!(EncodedObject::of(&none, 0).is_none());
        }
    }

    proptest! {
        #[test]
        fn any_texts_are_written_as_json_has_them(name: String, key: String, value: String, revision: u64) {
            let mut object = json!({"metadata": {"resourceVersion": "", "annotations": {key.clone(): value}}});
            object[&name] = key.into();
            if let Some(encoded) = EncodedObject::of(&object, 0) {
                let bytes = encoded.finish(revision);
                meta::set_resource_version(&mut object, revision);
                prop_assert_eq!(serde_json::from_slice::<Value>(&bytes).unwrap(), object);
            }
        }
    }
}
