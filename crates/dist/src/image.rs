//! The container image, as one tar file that every runtime loads: an OCI image layout and the `manifest.json` of
//! `docker save`, over the same blobs.
//!
//! ```text
//! index.json ---> image index ---> manifest linux/amd64 ---> config, layer
//!   (one entry:      |         --> manifest linux/arm64 ---> config, layer
//!    the name)       |
//!                    `-----------> SBOM of each: manifest with `subject`, one blob
//! ```
//!
//! `index.json` has one entry: readers need no name to choose by, and `ctr images import --digests`, which is what kind
//! runs, finds nothing at the top that it cannot unpack. The SBOMs are in the image index under the platform `unknown`, as
//! BuildKit does it: runtimes pass over them, `skopeo copy --all` takes them along, and a registry lists them as referrers
//! of their image. umoci knows no platforms: skopeo copies one out for it.

mod layout;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::archive::{FolderEntries, Packed, gzip, tar};
use crate::contents::PackageContents;
use crate::source_date::SourceDate;
use layout::Layout;

/// Name of the image without registry and tag, as the manifests in deploy/ have it.
const NAME: &str = "zoneward";

/// User and group of the image, `nonroot`: by number, since the kubelet cannot verify `runAsNonRoot` of a name.
const USER: u32 = 65532;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const CYCLONEDX: &str = "application/vnd.cyclonedx+json";

const PASSWD: &str = "\
root:x:0:0:root:/:/usr/sbin/nologin
nonroot:x:65532:65532:nonroot:/:/usr/sbin/nologin
";

const GROUP: &str = "\
root:x:0:
nonroot:x:65532:
";

/// File name of the image.
pub fn file_name(version: &str) -> String {
    format!("zoneward-image-{version}.tar")
}

/// The image of all architectures. The first one is what `docker load` of Docker before version 25 takes.
pub fn pack(contents: &[PackageContents]) -> anyhow::Result<Vec<u8>> {
    let first = contents.first().context("an image needs at least one architecture")?;
    let (version, date) = (&first.version, first.date);
    let mut layout = Layout::default();
    let (mut images, mut attached, mut docker) = (Vec::new(), Vec::new(), Vec::new());
    for one in contents {
        ensure!(one.version == *version, "versions {version} and {} in one image", one.version);
        let (manifest, entry) = add_image(&mut layout, one)?;
        attached.push(attach_sbom(&mut layout, &manifest, one)?);
        images.push(with(manifest, "platform", json!({"architecture": one.architecture, "os": "linux"})));
        docker.push(entry);
    }
    docker.truncate(1);
    images.append(&mut attached);
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": images,
        "annotations": labels(version, date)});
    let names = json!({
        // The whole name, for containerd: without it `ctr` makes one up from the date.
        "io.containerd.image.name": format!("docker.io/library/{NAME}:{version}"),
        "org.opencontainers.image.ref.name": version,
    });
    let index = with(layout.add_json(INDEX, &index)?, "annotations", names);
    layout.pack(&index, &json!(docker), date)
}

/// Adds layer, configuration and manifest; answers with the descriptor of the manifest, and with Docker's entry.
fn add_image(layout: &mut Layout, contents: &PackageContents) -> anyhow::Result<(Value, Value)> {
    let filesystem = tar("", &root_filesystem(contents), FolderEntries::Listed, contents.date)?;
    let layer = layout.add(LAYER, gzip(&filesystem)?);
    let config = layout.add_json(CONFIG, &config(contents, &layout::digest(&filesystem)))?;
    let tags = [format!("{NAME}:{}", contents.version)];
    let docker = json!({"Config": layout::path(&config), "Layers": [layout::path(&layer)], "RepoTags": tags});
    let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer],
        "annotations": labels(&contents.version, contents.date)});
    Ok((layout.add_json(MANIFEST, &manifest)?, docker))
}

/// From scratch. No certificates: the authority of the API comes with the service account or the kubeconfig, and nothing
/// else is called. No nsswitch.conf: the static program resolves names without it. No shell, no /tmp: every role runs on a
/// read-only root. No kubectl, so no name for its plugin.
fn root_filesystem(contents: &PackageContents) -> Vec<Packed> {
    vec![
        Packed::file("etc/group", GROUP),
        Packed::file("etc/passwd", PASSWD),
        Packed::program("usr/bin/zoneward", contents.program.clone()),
        Packed::file("usr/share/doc/zoneward/LICENSE", contents.licence.clone()),
        Packed::file("usr/share/doc/zoneward/THIRD-PARTY-LICENSES.txt", contents.third_party.as_bytes()),
    ]
}

fn config(contents: &PackageContents, diff_id: &str) -> Value {
    let created = contents.date.rfc3339();
    json!({
        "architecture": contents.architecture,
        "os": "linux",
        "created": created,
        "config": {
            "User": format!("{USER}:{USER}"),
            "Env": ["PATH=/usr/bin"],
            "Entrypoint": ["/usr/bin/zoneward"],
            "WorkingDir": "/",
            "Labels": labels(&contents.version, contents.date),
        },
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        "history": [{"created": created, "created_by": "cargo xtask dist"}],
    })
}

/// Adds a manifest that attaches the SBOM to an image; answers with its descriptor.
fn attach_sbom(layout: &mut Layout, image: &Value, contents: &PackageContents) -> anyhow::Result<Value> {
    let sbom = layout.add(CYCLONEDX, contents.sbom.clone().into_bytes());
    // An artifact has an empty configuration, and its type beside it.
    let empty = layout.add("application/vnd.oci.empty.v1+json", b"{}".to_vec());
    let created = json!({"org.opencontainers.image.created": contents.date.rfc3339()});
    let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "artifactType": CYCLONEDX,
        "config": empty, "layers": [sbom], "subject": image, "annotations": created});
    let manifest = with(layout.add_json(MANIFEST, &manifest)?, "artifactType", json!(CYCLONEDX));
    Ok(with(manifest, "platform", json!({"architecture": "unknown", "os": "unknown"})))
}

/// OCI's own names for what an image is: annotations for registries, labels for `docker inspect`.
fn labels(version: &str, date: SourceDate) -> Value {
    json!({
        "org.opencontainers.image.title": "Zoneward",
        "org.opencontainers.image.description": "Topology-aware Service networking for Kubernetes and single machines",
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.created": date.rfc3339(),
        "org.opencontainers.image.licenses": env!("CARGO_PKG_LICENSE"),
    })
}

/// A descriptor with one more field.
fn with(mut descriptor: Value, field: &str, value: Value) -> Value {
    descriptor[field] = value;
    descriptor
}

#[cfg(test)]
mod tests;
