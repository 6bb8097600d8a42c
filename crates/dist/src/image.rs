//! The container image, as one tar that every runtime loads: an OCI image layout and the `manifest.json` of
//! `docker save`, over the same blobs.
//!
//! ```text
//! index.json ---> image index ---> manifest linux/amd64 ---> config, layer
//!   (one entry:      |         --> manifest linux/arm64 ---> config, layer
//!    the name)       |
//!                    `-----------> SBOM of each: manifest with `subject`, one blob
//! ```
//!
//! `index.json` has one entry, so that readers need no name to choose by, and `ctr images import --digests`, which is
//! what kind does, sees nothing at the top that is not an image. The SBOMs are in the image index, for a platform that no
//! machine has (`unknown`), as BuildKit does: runtimes pass over them, `skopeo copy --all` takes them along, and a
//! registry lists them as referrers of their image.

mod layer;
mod layout;

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::source_date::SourceDate;
use layout::Layout;

/// Name of the image without registry and tag, as the manifests in deploy/ have it.
const NAME: &str = "zoneward";

/// User and group of the image, `nonroot`: by number, since `runAsNonRoot` cannot verify a name.
const USER: u32 = 65532;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const CYCLONEDX: &str = "application/vnd.cyclonedx+json";

/// The static program for one architecture.
#[derive(Debug, Clone, Copy)]
pub struct Binary<'a> {
    /// In the words of OCI: `amd64`, `arm64`.
    pub architecture: &'a str,
    /// The program.
    pub file: &'a Path,
}

/// The architecture of a Rust target in the words of OCI.
pub fn architecture(target: &str) -> anyhow::Result<&'static str> {
    match target.split('-').next() {
        Some("x86_64") => Ok("amd64"),
        Some("aarch64") => Ok("arm64"),
        _ => anyhow::bail!("target {target}: expected x86_64 or aarch64"),
    }
}

/// Writes the image to the file `out`: these programs, one per architecture, and the documents (licences) in
/// /usr/share/doc/zoneward. The first program is the one that `docker load` of old Docker versions takes.
pub fn build(
    binaries: &[Binary<'_>],
    documents: &[&Path],
    created: SourceDate,
    version: &str,
    sbom: &Path,
    out: &Path,
) -> anyhow::Result<()> {
    ensure!(!binaries.is_empty(), "an image needs a program of at least one architecture");
    let mut layout = Layout::default();
    let sbom = layout.add(CYCLONEDX, read(sbom)?);
    let (mut images, mut attached) = (Vec::new(), Vec::new());
    let mut docker = Value::Null;
    for binary in binaries {
        let image = Image { architecture: binary.architecture, created, version };
        let (mut manifest, entry) = image.add(&mut layout, &layer::tar(binary.file, documents, created)?)?;
        attached.push(image.attach(&mut layout, &manifest, &sbom)?);
        manifest["platform"] = json!({"architecture": binary.architecture, "os": "linux"});
        images.push(manifest);
        if docker.is_null() {
            docker = json!([entry]);
        }
    }
    images.append(&mut attached);
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": images,
        "annotations": labels(created, version)});
    let mut index = layout.add_json(INDEX, &index)?;
    index["annotations"] = json!({
        // The whole name, for containerd; without it `ctr` makes one up from the date.
        "io.containerd.image.name": format!("docker.io/library/{NAME}:{version}"),
        "org.opencontainers.image.ref.name": version,
    });
    layout.write(&index, &docker, created, out).with_context(|| format!("writing {}", out.display()))
}

/// What the OCI image of one architecture says about itself.
struct Image<'a> {
    architecture: &'a str,
    created: SourceDate,
    version: &'a str,
}

impl Image<'_> {
    /// Adds layer, configuration and manifest; answers with the descriptor of the manifest, and with Docker's entry.
    fn add(&self, layout: &mut Layout, tar: &[u8]) -> anyhow::Result<(Value, Value)> {
        let layer = layout.add(LAYER, layer::gzip(tar)?);
        let config = layout.add_json(CONFIG, &self.config(&layout::digest(tar)))?;
        let docker = json!({"Config": layout::path_of(&config), "Layers": [layout::path_of(&layer)],
            "RepoTags": [format!("{NAME}:{}", self.version)]});
        let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer],
            "annotations": labels(self.created, self.version)});
        Ok((layout.add_json(MANIFEST, &manifest)?, docker))
    }

    fn config(&self, diff_id: &str) -> Value {
        let created = self.created.rfc3339();
        json!({
            "architecture": self.architecture,
            "os": "linux",
            "created": created,
            "config": {
                "User": format!("{USER}:{USER}"),
                "Env": ["PATH=/usr/bin"],
                "Entrypoint": ["/usr/bin/zoneward"],
                "WorkingDir": "/",
                "Labels": labels(self.created, self.version),
            },
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
            "history": [{"created": created, "created_by": "cargo xtask dist"}],
        })
    }

    /// Adds a manifest that attaches the SBOM to an image; answers with its descriptor.
    fn attach(&self, layout: &mut Layout, image: &Value, sbom: &Value) -> anyhow::Result<Value> {
        // OCI image-spec, guidelines for artifact usage: an empty configuration, and the type beside it.
        let empty = layout.add("application/vnd.oci.empty.v1+json", b"{}".to_vec());
        let created = json!({"org.opencontainers.image.created": self.created.rfc3339()});
        let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "artifactType": CYCLONEDX,
            "config": empty, "layers": [sbom], "subject": image, "annotations": created});
        let mut manifest = layout.add_json(MANIFEST, &manifest)?;
        manifest["artifactType"] = json!(CYCLONEDX);
        manifest["platform"] = json!({"architecture": "unknown", "os": "unknown"});
        Ok(manifest)
    }
}

/// OCI's own names for what an image is; as annotations of manifests and as labels for `docker inspect` alike.
fn labels(created: SourceDate, version: &str) -> Value {
    json!({
        "org.opencontainers.image.title": "Zoneward",
        "org.opencontainers.image.description": "Topology-aware service networking for Kubernetes and single machines",
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.created": created.rfc3339(),
        "org.opencontainers.image.licenses": env!("CARGO_PKG_LICENSE"),
    })
}

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("reading {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_have_the_names_of_oci() {
        assert_eq!(architecture("x86_64-unknown-linux-gnu").ok(), Some("amd64"));
        assert_eq!(architecture("aarch64-unknown-linux-gnu").ok(), Some("arm64"));
        let error = architecture("riscv64gc-unknown-linux-gnu").expect_err("not packaged");
        assert!(error.to_string().contains("riscv64gc"), "{error}");
    }
}
