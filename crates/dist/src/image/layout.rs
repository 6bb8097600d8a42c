//! An OCI image layout: blobs by digest, and the files that lead to them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::archive::{FolderEntries, Packed, tar};
use crate::source_date::SourceDate;

/// The blobs so far. A blob that two descriptors name is there once.
#[derive(Default)]
pub(super) struct Layout {
    blobs_by_path: BTreeMap<String, Vec<u8>>,
}

impl Layout {
    /// Adds a blob; answers with its descriptor.
    pub(super) fn add(&mut self, media_type: &str, content: Vec<u8>) -> Value {
        let descriptor = json!({"mediaType": media_type, "digest": digest(&content), "size": content.len()});
        self.blobs_by_path.insert(path(&descriptor), content);
        descriptor
    }

    pub(super) fn add_json(&mut self, media_type: &str, content: &Value) -> anyhow::Result<Value> {
        Ok(self.add(media_type, serde_json::to_vec(content)?))
    }

    /// The layout with one image in its index, and Docker's manifest, which needs no blobs of its own.
    pub(super) fn pack(self, image: &Value, docker: &Value, date: SourceDate) -> anyhow::Result<Vec<u8>> {
        let index = json!({"schemaVersion": 2, "mediaType": super::INDEX, "manifests": [image]});
        let mut files = vec![
            Packed::file("oci-layout", serde_json::to_vec(&json!({"imageLayoutVersion": "1.0.0"}))?),
            Packed::file("index.json", serde_json::to_vec(&index)?),
            Packed::file("manifest.json", serde_json::to_vec(docker)?),
        ];
        files.extend(self.blobs_by_path.into_iter().map(|(path, content)| Packed::file(path, content)));
        tar("", &files, FolderEntries::Listed, date)
    }
}

/// `sha256:` and the digest of a blob.
pub(super) fn digest(content: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, content);
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// Where the blob of a descriptor is in the archive.
pub(super) fn path(descriptor: &Value) -> String {
    format!("blobs/{}", descriptor["digest"].as_str().unwrap_or_default().replace(':', "/"))
}
