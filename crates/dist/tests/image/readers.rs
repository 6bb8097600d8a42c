//! What users load the image with.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use dist::image::ImageVariant;
use serde_json::{Value, json};

use super::containerd::{Containerd, name};
use super::{Scratch, image, run};

/// skopeo without a policy about signatures.
fn skopeo() -> Command {
    let mut command = toolbox::command("skopeo");
    command.arg("--insecure-policy");
    command
}

/// An image as skopeo names it: `oci-archive:FILE`.
fn source(transport: &str, variant: ImageVariant) -> String {
    format!("{transport}:{}", image(variant).display())
}

fn inspect(words: &[&str]) -> Value {
    serde_json::from_str(&run(skopeo()
        .arg("inspect")
        .args(words)
        .arg(source("oci-archive", ImageVariant::Plain))))
    .unwrap()
}

#[test]
fn skopeo_reads_labels_user_and_entrypoint() {
    let shown = inspect(&[]);
    assert_eq!((shown["Os"].as_str(), shown["Architecture"].as_str()), (Some("linux"), Some("amd64")));
    let labels = &shown["Labels"];
    assert_eq!(labels["org.opencontainers.image.version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(labels["org.opencontainers.image.licenses"], "Apache-2.0");
    let config = &inspect(&["--config"])["config"];
    assert_eq!(config["User"], "65532:65532");
    assert_eq!(config["Entrypoint"], json!(["/usr/bin/zoneward"]));
    let index = inspect(&["--raw"]);
    assert_eq!(index["annotations"]["org.opencontainers.image.title"], "Zoneward");
}

#[test]
fn skopeo_copies_one_platform_or_all_with_the_sbom_and_docker_archives() {
    for variant in ImageVariant::ALL {
        let sbom = copied_sbom(variant);
        assert_eq!(sbom["bomFormat"], "CycloneDX");
        match variant {
            ImageVariant::Plain => assert!(!sbom.to_string().contains("pkg:deb/")),
            ImageVariant::Iptables => super::iptables::assert_named(&sbom),
        }
    }
}

/// Copies an image in every way; answers with its SBOM.
fn copied_sbom(variant: ImageVariant) -> Value {
    let tag = variant.tag(env!("CARGO_PKG_VERSION"));
    let scratch = Scratch::new(&format!("skopeo-{tag}"));
    let copy = |from: &str, words: &[&str], to: &str| {
        let to = format!("dir:{}", scratch.path(to).display());
        run(skopeo().arg("copy").args(words).arg(source(from, variant)).arg(to));
    };
    copy("oci-archive", &[], "one");
    let manifest: Value =
        serde_json::from_slice(&fs::read(scratch.path("one/manifest.json")).unwrap()).unwrap();
    for (name, layer) in ["zoneward", "iptables"].iter().zip(manifest["layers"].as_array().unwrap()) {
        println!("layer of {name}: {:.2} MB", blob(&scratch.path("one"), layer).len() as f64 / 1e6);
    }
    // By its second name, and with every manifest.
    run(skopeo()
        .args(["copy", "--all"])
        .arg(format!("{}:{tag}", source("oci-archive", variant)))
        .arg(format!("dir:{}", scratch.path("all").display())));
    let index: Value = serde_json::from_slice(&fs::read(scratch.path("all/manifest.json")).unwrap()).unwrap();
    // By the platform: old versions of skopeo drop `artifactType` of an entry, not of the manifest that it leads to.
    let kind = |one: &&Value| one["platform"]["architecture"] == "unknown";
    let sboms: Vec<&Value> = index["manifests"].as_array().unwrap().iter().filter(kind).collect();
    let images = index["manifests"].as_array().unwrap().len() - sboms.len();
    assert_eq!(sboms.len(), images, "each image has its SBOM: {index}");
    let digest = sboms[0]["digest"].as_str().unwrap().trim_start_matches("sha256:");
    let attached: Value =
        serde_json::from_slice(&fs::read(scratch.path(&format!("all/{digest}.manifest.json"))).unwrap())
            .unwrap();
    assert_eq!(attached["artifactType"], "application/vnd.cyclonedx+json");
    assert_eq!(attached["subject"]["digest"], index["manifests"][0]["digest"]);
    let sbom: Value = serde_json::from_slice(&blob(&scratch.path("all"), &attached["layers"][0])).unwrap();

    // `docker load` reads manifest.json: the same configuration.
    copy("docker-archive", &[], "docker");
    let docker: Value =
        serde_json::from_slice(&fs::read(scratch.path("docker/manifest.json")).unwrap()).unwrap();
    assert_eq!(docker["config"]["digest"], manifest["config"]["digest"]);
    let tags = run(skopeo().arg("list-tags").arg(source("docker-archive", variant)));
    assert!(tags.contains(&format!("\"zoneward:{tag}\"")), "{tags}");
    sbom
}

fn blob(folder: &Path, descriptor: &Value) -> Vec<u8> {
    let digest = descriptor["digest"].as_str().unwrap().trim_start_matches("sha256:");
    fs::read(folder.join(digest)).unwrap()
}

/// An image as a bundle for runc, by umoci. It knows no platforms, so skopeo copies the one of this machine out.
pub(crate) fn unpack(scratch: &Scratch, variant: ImageVariant) -> std::path::PathBuf {
    let layout = scratch.path("layout");
    run(skopeo()
        .arg("copy")
        .arg(source("oci-archive", variant))
        .arg(format!("oci:{}:zoneward", layout.display())));
    let bundle = scratch.path("bundle");
    run(toolbox::command("umoci")
        .args(["unpack", "--image"])
        .arg(format!("{}:zoneward", layout.display()))
        .arg(&bundle));
    bundle
}

fn list(folder: &Path, below: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            list(&path, below, found);
        } else {
            found.insert(path.strip_prefix(below).unwrap().display().to_string());
        }
    }
}

#[test]
fn umoci_unpacks_the_program_users_and_licences_and_nothing_else() {
    let scratch = Scratch::new("umoci");
    let bundle = unpack(&scratch, ImageVariant::Plain);
    let rootfs = bundle.join("rootfs");
    let mut files = BTreeSet::new();
    list(&rootfs, &rootfs, &mut files);
    let expected = [
        "etc/group",
        "etc/passwd",
        "usr/bin/zoneward",
        "usr/share/doc/zoneward/LICENSE",
        "usr/share/doc/zoneward/THIRD-PARTY-LICENSES.txt",
    ];
    assert_eq!(files, expected.map(str::to_owned).into());
    let version = run(Command::new(rootfs.join("usr/bin/zoneward")).arg("--version"));
    assert_eq!(version.trim(), concat!("zoneward ", env!("CARGO_PKG_VERSION")));
    let spec: Value = serde_json::from_slice(&fs::read(bundle.join("config.json")).unwrap()).unwrap();
    assert_eq!(
        (spec["process"]["user"]["uid"].as_u64(), spec["process"]["user"]["gid"].as_u64()),
        (Some(65532), Some(65532))
    );
}

#[test]
fn containerd_imports_it_as_kind_does_and_finds_it_complete() {
    let scratch = Scratch::new("ctr");
    let containerd = Containerd::start(&scratch);
    for (variant, blobs) in [(ImageVariant::Plain, "2/2"), (ImageVariant::Iptables, "3/3")] {
        let name = name(variant);
        let said = containerd.import(variant);
        assert!(said.contains(&format!("unpacking {name}")), "{said}");
        let checked =
            containerd.ctr(&["images", "check", "--snapshotter", "native", &format!("name=={name}")]);
        let line = checked
            .lines()
            .find(|line| line.starts_with(&format!("{name} ")))
            .unwrap_or_else(|| panic!("{checked}"));
        assert!(line.contains(&format!("complete ({blobs})")) && line.trim_end().ends_with("true"), "{line}");
        let spec = containerd.spec(variant, &[]);
        assert_eq!(spec["process"]["args"], json!(["/usr/bin/zoneward"]));
        assert_eq!(
            (spec["process"]["user"]["uid"].as_u64(), spec["process"]["user"]["gid"].as_u64()),
            (Some(65532), Some(65532))
        );
    }
}
