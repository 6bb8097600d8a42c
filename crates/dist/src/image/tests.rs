//! Blobs, descriptors and platforms of small images.

use std::collections::BTreeMap;
use std::io::Read;

use super::ImageVariant::{Iptables, Plain};
use super::*;
use crate::contents::{Pages, SystemdFiles};
use crate::debian::{PinnedPackage, UnpackedPackage};

fn contents(architecture: &str) -> PackageContents {
    PackageContents {
        version: "1.2.3".to_owned(),
        architecture: architecture.to_owned(),
        date: SourceDate::new(1_700_000_000),
        program: format!("program for {architecture}").into_bytes(),
        pages: Pages { manual: Vec::new(), bash: Vec::new(), zsh: Vec::new(), fish: Vec::new() },
        licence: b"Apache".to_vec(),
        third_party: "MIT".to_owned(),
        sbom: r#"{"bomFormat":"CycloneDX"}"#.to_owned(),
        iptables_sbom: r#"{"bomFormat":"CycloneDX","components":[]}"#.to_owned(),
        debian: vec![debian(architecture)],
        systemd: SystemdFiles::default(),
    }
}

/// A package with the names of the programs.
fn debian(architecture: &str) -> UnpackedPackage {
    let names = toolbox::iptables::FLAVOURS.into_iter().flat_map(toolbox::iptables::names);
    UnpackedPackage {
        pin: PinnedPackage {
            name: "iptables".to_owned(),
            version: "1.8.9-2".to_owned(),
            architecture: architecture.to_owned(),
            checksum: String::new(),
            licence: "GPL-2.0-only".to_owned(),
        },
        files: names.map(|name| Packed::link(format!("usr/sbin/{name}"), "xtables")).collect(),
    }
}

fn files(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut archive = tar::Archive::new(archive);
    let entries = archive.entries().expect("a tar file").map(|entry| entry.expect("an entry"));
    let read = |mut entry: tar::Entry<'_, &[u8]>| {
        assert_eq!(entry.header().mtime().ok(), Some(1_700_000_000));
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).expect("a whole entry");
        (path, content)
    };
    entries.map(read).collect()
}

fn json_at(files: &BTreeMap<String, Vec<u8>>, path: &str) -> Value {
    serde_json::from_slice(&files[path]).expect(path)
}

#[test]
fn every_descriptor_leads_to_a_blob_of_its_digest_and_size() {
    let files = files(&pack(&[contents("amd64"), contents("arm64")], Iptables).expect("an image"));
    let mut open = vec![json_at(&files, "index.json")];
    let mut seen = 0;
    while let Some(value) = open.pop() {
        if let (Some(digest), Some(size)) = (value["digest"].as_str(), value["size"].as_u64()) {
            let blob = &files[&layout::path(&value)];
            assert_eq!((layout::digest(blob).as_str(), blob.len() as u64), (digest, size));
            seen += 1;
            if value["mediaType"].as_str().is_some_and(|kind| kind == MANIFEST || kind == INDEX) {
                open.push(serde_json::from_slice(blob).expect("a manifest"));
            }
        }
        let children = value.as_object().into_iter().flat_map(|fields| fields.values());
        open.extend(
            children.flat_map(|child| child.as_array().cloned().unwrap_or_else(|| vec![child.clone()])),
        );
    }
    // The subject of each SBOM leads to an image once more.
    assert!(seen >= 13, "{seen}");
    for path in files.keys().filter(|path| path.starts_with("blobs/sha256/") && !path.ends_with('/')) {
        assert_eq!(layout::digest(&files[path]), path.replacen("blobs/sha256/", "sha256:", 1));
    }
}

#[test]
fn index_holds_each_architecture_and_its_sbom() {
    let files = files(&pack(&[contents("amd64"), contents("arm64")], Iptables).expect("an image"));
    let top = json_at(&files, "index.json");
    assert_eq!(top["manifests"].as_array().map(Vec::len), Some(1), "skopeo asks for a name otherwise");
    assert_eq!(
        top["manifests"][0]["annotations"]["io.containerd.image.name"],
        "docker.io/library/zoneward:1.2.3-iptables"
    );
    let index = json_at(&files, &layout::path(&top["manifests"][0]));
    let manifests = index["manifests"].as_array().expect("a list");
    let platforms: Vec<&str> =
        manifests.iter().filter_map(|one| one["platform"]["architecture"].as_str()).collect();
    assert_eq!(platforms, ["amd64", "arm64", "unknown", "unknown"]);
    for (image, sbom) in [(0, 2), (1, 3)] {
        let sbom = json_at(&files, &layout::path(&manifests[sbom]));
        assert_eq!(sbom["artifactType"], "application/vnd.cyclonedx+json");
        assert_eq!(sbom["subject"]["digest"], manifests[image]["digest"]);
        assert_eq!(json_at(&files, &layout::path(&sbom["layers"][0]))["bomFormat"], "CycloneDX");
    }
}

#[test]
fn docker_reads_the_same_blobs() {
    let files = files(&pack(&[contents("amd64"), contents("arm64")], Iptables).expect("an image"));
    let docker = json_at(&files, "manifest.json");
    assert_eq!(docker.as_array().map(Vec::len), Some(1));
    assert_eq!(docker[0]["RepoTags"], json!(["zoneward:1.2.3-iptables"]));
    let config = json_at(&files, docker[0]["Config"].as_str().expect("a path"));
    assert_eq!(config["architecture"], "amd64");
    let digests = [0, 1].map(|layer| {
        let layer = &files[docker[0]["Layers"][layer].as_str().expect("a path")];
        let mut filesystem = Vec::new();
        flate2::read::GzDecoder::new(&layer[..]).read_to_end(&mut filesystem).expect("gzip");
        layout::digest(&filesystem)
    });
    assert_eq!(config["rootfs"]["diff_ids"], json!(digests));
}

#[test]
fn variants_share_the_layer_of_the_program_and_releases_that_of_iptables() {
    let layers = |version: &str, variant: ImageVariant| {
        let contents =
            PackageContents { version: version.to_owned(), program: version.into(), ..contents("amd64") };
        let files = files(&pack(&[contents], variant).expect("an image"));
        json_at(&files, "manifest.json")[0]["Layers"].as_array().cloned().expect("a list")
    };
    let (plain, one, other) = (layers("1.2.3", Plain), layers("1.2.3", Iptables), layers("1.2.4", Iptables));
    assert_eq!(plain[..], one[..1]);
    assert_ne!(one[0], other[0]);
    assert_eq!(one[1..], other[1..]);
}

#[test]
fn package_without_a_program_is_refused() {
    let mut contents = contents("amd64");
    contents.debian[0].files.retain(|file| file.path() != "usr/sbin/ip6tables-nft-save");
    let error = pack(&[contents], Iptables).expect_err("a program is missing");
    assert!(error.to_string().contains("usr/sbin/ip6tables-nft-save"), "{error}");
}

#[test]
fn same_contents_give_the_same_bytes_and_mixed_versions_are_refused() {
    let both = [contents("amd64"), contents("arm64")];
    for variant in ImageVariant::ALL {
        assert_eq!(pack(&both, variant).expect("an image"), pack(&both.clone(), variant).expect("an image"));
    }
    let [one, mut other] = both;
    other.version = "1.2.4".to_owned();
    let error = pack(&[one, other], Plain).expect_err("two versions");
    assert!(error.to_string().contains("1.2.3 and 1.2.4"), "{error}");
    assert!(pack(&[], Plain).is_err());
}
