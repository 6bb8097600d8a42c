//! The container image, as one tar file that every runtime loads: an OCI image layout and the `manifest.json` of
//! `docker save`, over the same blobs.
//!
//! ```text
//! index.json ---> image index ---> manifest linux/amd64 ---> config, layers: zoneward, in variant iptables also iptables
//!   (one entry:      |         --> manifest linux/arm64 ---> config, layers
//!    the name)       |
//!                    `-----------> SBOM of each: manifest with `subject`, one blob
//! ```
//!
//! `index.json` has one entry: readers need no name to choose by, and `ctr images import --digests`, which is what kind
//! runs, finds nothing at the top that it cannot unpack. The SBOMs are in the image index under the platform `unknown`, as
//! BuildKit does it: runtimes pass over them, `skopeo copy --all` takes them along, and a registry lists them as referrers
//! of their image. umoci cannot choose a platform: skopeo extracts one first.

mod iptables;
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

/// What is in an image (docs/decisions/014).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageVariant {
    /// The program alone.
    Plain,
    /// Also the programs of iptables, for mode iptables.
    Iptables,
}

impl ImageVariant {
    pub const ALL: [ImageVariant; 2] = [ImageVariant::Plain, ImageVariant::Iptables];

    /// The tag of a version: `0.1.0`, `0.1.0-iptables`.
    pub fn tag(self, version: &str) -> String {
        match self {
            ImageVariant::Plain => version.to_owned(),
            ImageVariant::Iptables => format!("{version}-iptables"),
        }
    }

    /// The file of a version.
    pub fn file_name(self, version: &str) -> String {
        format!("zoneward-image-{}.tar", self.tag(version))
    }
}

/// The image of all architectures. The first one is what `docker load` of Docker before version 25 takes.
pub fn pack(contents: &[PackageContents], variant: ImageVariant) -> anyhow::Result<Vec<u8>> {
    let first = contents.first().context("an image needs at least one architecture")?;
    let (version, date) = (&first.version, first.date);
    let mut layout = Layout::default();
    let (mut images, mut attached, mut docker) = (Vec::new(), Vec::new(), Vec::new());
    for one in contents {
        ensure!(one.version == *version, "versions {version} and {} in one image", one.version);
        let (manifest, entry) = add_image(&mut layout, one, variant)?;
        attached.push(attach_sbom(&mut layout, &manifest, one, variant)?);
        images.push(with(manifest, "platform", json!({"architecture": one.architecture, "os": "linux"})));
        docker.push(entry);
    }
    docker.truncate(1);
    images.append(&mut attached);
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": images,
        "annotations": labels(version, date)});
    let tag = variant.tag(version);
    let names = json!({
        // The whole name, for containerd: without it `ctr` makes one up from the date.
        "io.containerd.image.name": format!("docker.io/library/{NAME}:{tag}"),
        "org.opencontainers.image.ref.name": tag,
    });
    let index = with(layout.add_json(INDEX, &index)?, "annotations", names);
    layout.pack(&index, &json!(docker), date)
}

/// Adds layers, configuration and manifest; answers with the descriptor of the manifest, and with Docker's entry.
fn add_image(
    layout: &mut Layout,
    contents: &PackageContents,
    variant: ImageVariant,
) -> anyhow::Result<(Value, Value)> {
    let mut filesystems = vec![tar("", &root_filesystem(contents), FolderEntries::Listed, contents.date)?];
    // Above the other, so that a node which has the plain image needs only this one.
    if variant == ImageVariant::Iptables {
        filesystems.push(iptables::layer(&contents.debian)?);
    }
    let mut layers = Vec::new();
    for filesystem in &filesystems {
        layers.push(layout.add(LAYER, gzip(filesystem)?));
    }
    let digests: Vec<String> = filesystems.iter().map(|filesystem| layout::digest(filesystem)).collect();
    let config = layout.add_json(CONFIG, &config(contents, &digests))?;
    let tags = [format!("{NAME}:{}", variant.tag(&contents.version))];
    let paths: Vec<String> = layers.iter().map(layout::path).collect();
    let docker = json!({"Config": layout::path(&config), "Layers": paths, "RepoTags": tags});
    let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers,
        "annotations": labels(&contents.version, contents.date)});
    Ok((layout.add_json(MANIFEST, &manifest)?, docker))
}

/// The layer of the program. No certificates: the authority of the API comes with the service account or the kubeconfig, and nothing
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

fn config(contents: &PackageContents, diff_ids: &[String]) -> Value {
    let created = contents.date.rfc3339();
    json!({
        "architecture": contents.architecture,
        "os": "linux",
        "created": created,
        "config": {
            "User": format!("{USER}:{USER}"),
            "Env": ["PATH=/usr/bin:/usr/sbin"],
            "Entrypoint": ["/usr/bin/zoneward"],
            "WorkingDir": "/",
            "Labels": labels(&contents.version, contents.date),
        },
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
        "history": vec![json!({"created": created, "created_by": "cargo xtask dist"}); diff_ids.len()],
    })
}

/// Adds a manifest that attaches the SBOM to an image; answers with its descriptor.
fn attach_sbom(
    layout: &mut Layout,
    image: &Value,
    contents: &PackageContents,
    variant: ImageVariant,
) -> anyhow::Result<Value> {
    let sbom = match variant {
        ImageVariant::Plain => &contents.sbom,
        ImageVariant::Iptables => &contents.iptables_sbom,
    };
    let sbom = layout.add(CYCLONEDX, sbom.clone().into_bytes());
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
