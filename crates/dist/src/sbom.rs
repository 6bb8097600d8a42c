//! The software bill of materials in the JSON of CycloneDX 1.6, the same bytes for the same Cargo.lock and toolchain.

use ring::digest::{SHA256, digest};
use serde_json::{Map, Value, json};

use crate::checksums::hexadecimal;
use crate::dependencies::{BillOfMaterials, LinkedLibrary};
use crate::source_date::SourceDate;

/// The document, indented for people.
pub fn render(bill: &BillOfMaterials, date: SourceDate) -> anyhow::Result<String> {
    let program = format!("pkg:generic/zoneward@{}", bill.version);
    let components: Vec<Value> = bill.libraries.iter().map(component).collect();
    let own = json!({"ref": program, "dependsOn": bill.direct});
    let uses = bill.libraries.iter().map(|library| json!({"ref": library.purl, "dependsOn": library.uses}));
    let dependencies: Vec<Value> = std::iter::once(own).chain(uses).collect();
    let contents = serde_json::to_vec(&(&components, &dependencies, date.epoch()))?;
    let document = json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": format!("urn:uuid:{}", uuid(&contents)),
        "version": 1,
        "metadata": {
            "timestamp": date.rfc3339(),
            "component": {
                "type": "application",
                "bom-ref": program,
                "name": "zoneward",
                "version": bill.version,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "purl": program,
            },
        },
        "components": components,
        "dependencies": dependencies,
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn component(library: &LinkedLibrary) -> Value {
    let mut fields = Map::new();
    fields.insert("type".to_owned(), json!("library"));
    fields.insert("bom-ref".to_owned(), json!(library.purl));
    fields.insert("name".to_owned(), json!(library.name));
    fields.insert("version".to_owned(), json!(library.version));
    if let Some(description) = &library.description {
        fields.insert("description".to_owned(), json!(description));
    }
    if let Some(checksum) = &library.checksum {
        fields.insert("hashes".to_owned(), json!([{"alg": "SHA-256", "content": checksum}]));
    }
    if let Some(licence) = &library.licence {
        fields.insert("licenses".to_owned(), json!([{"expression": licence}]));
    }
    fields.insert("purl".to_owned(), json!(library.purl));
    if let Some(repository) = &library.repository {
        fields.insert("externalReferences".to_owned(), json!([{"type": "vcs", "url": repository}]));
    }
    Value::Object(fields)
}

/// A UUID made of a digest (version 8 of RFC 9562), because a random one would differ from build to build.
fn uuid(contents: &[u8]) -> String {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest(&SHA256, contents).as_ref()[..16]);
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let text = hexadecimal(&bytes);
    [&text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_number_is_a_uuid_of_the_contents() {
        assert_eq!(uuid(b"one"), uuid(b"one"));
        assert_ne!(uuid(b"one"), uuid(b"two"));
        let text = uuid(b"");
        assert_eq!((text.len(), &text[14..15]), (36, "8"), "{text}");
    }
}
