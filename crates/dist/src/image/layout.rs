//! An OCI image layout: blobs by digest, and the files that lead to them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Context;
use serde_json::{Value, json};
use tar::{Builder, EntryType};

use super::layer::append;
use crate::source_date::SourceDate;

/// The blobs so far. A blob that two descriptors name is there once.
#[derive(Default)]
pub(super) struct Layout {
    blobs_by_digest: BTreeMap<String, Vec<u8>>,
}

impl Layout {
    /// Adds a blob; answers with its descriptor.
    pub(super) fn add(&mut self, media_type: &str, content: Vec<u8>) -> Value {
        let digest = digest(&content);
        let descriptor = json!({"mediaType": media_type, "digest": digest, "size": content.len()});
        self.blobs_by_digest.insert(digest, content);
        descriptor
    }

    pub(super) fn add_json(&mut self, media_type: &str, content: &Value) -> anyhow::Result<Value> {
        Ok(self.add(media_type, serde_json::to_vec(content)?))
    }

    /// Writes the layout with one entry in its index, and Docker's manifest, which needs no blobs of its own.
    pub(super) fn write(
        &self,
        image: &Value,
        docker: &Value,
        created: SourceDate,
        out: &Path,
    ) -> anyhow::Result<()> {
        let file = BufWriter::new(File::create(out)?);
        let mut tar = Builder::new(file);
        let index = json!({"schemaVersion": 2, "mediaType": super::INDEX, "manifests": [image]});
        let files = [
            ("oci-layout", &json!({"imageLayoutVersion": "1.0.0"})),
            ("index.json", &index),
            ("manifest.json", docker),
        ];
        for (path, content) in files {
            append(&mut tar, path, EntryType::Regular, 0o644, &serde_json::to_vec(content)?, created)?;
        }
        for folder in ["blobs/", "blobs/sha256/"] {
            append(&mut tar, folder, EntryType::Directory, 0o755, &[], created)?;
        }
        for (digest, content) in &self.blobs_by_digest {
            append(&mut tar, &path(digest), EntryType::Regular, 0o644, content, created)?;
        }
        tar.into_inner()?.flush().context("the last bytes")
    }
}

/// `sha256:` and the digest of a blob.
pub(super) fn digest(content: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, content);
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// Where the blob of a descriptor is in the archive.
pub(super) fn path_of(descriptor: &Value) -> String {
    path(descriptor["digest"].as_str().unwrap_or_default())
}

fn path(digest: &str) -> String {
    format!("blobs/{}", digest.replace(':', "/"))
}
