//! The same bytes from the same contents. `cargo xtask soak dist` builds twice in different folders and compares.

use std::fs;
use std::path::{Path, PathBuf};

use dist::archive::Packed;
use dist::contents::{PackageContents, Pages, SystemdFiles};
use dist::debian::UnpackedPackage;
use dist::image::ImageVariant;
use dist::source_date::SourceDate;
use dist::{archive, deb, debian, image};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the repository").to_owned()
}

/// A package with the names of the programs.
fn debian(reversed: bool) -> UnpackedPackage {
    let pins = debian::parse_pins(include_str!("../debian-packages.txt"), "amd64").expect("pins");
    let pin = pins.into_iter().find(|pin| pin.name == "iptables").expect("a pin");
    let names = toolbox::iptables::FLAVOURS.into_iter().flat_map(toolbox::iptables::names);
    let mut files: Vec<Packed> =
        names.map(|name| Packed::link(format!("usr/sbin/{name}"), "xtables")).collect();
    if reversed {
        files.reverse();
    }
    UnpackedPackage { pin, files }
}

fn contents(reversed: bool) -> PackageContents {
    let mut program = fs::read("/proc/self/exe").expect("own program");
    program.truncate(1 << 20);
    let mut manual = ["zoneward.1", "zoneward-up.1"].map(|name| (name.to_owned(), b".TH".to_vec())).to_vec();
    if reversed {
        manual.reverse();
    }
    PackageContents {
        version: "0.1.0".to_owned(),
        architecture: "amd64".to_owned(),
        date: SourceDate::new(1_700_000_000),
        program,
        pages: Pages { manual, bash: b"bash".to_vec(), zsh: b"zsh".to_vec(), fish: b"fish".to_vec() },
        licence: b"Apache".to_vec(),
        third_party: "licences".to_owned(),
        sbom: "{}".to_owned(),
        iptables_sbom: "{}".to_owned(),
        debian: vec![debian(reversed)],
        systemd: SystemdFiles::read(&root()).expect("the units"),
    }
}

#[test]
fn packing_gives_the_same_bytes() {
    let (one, other) = (contents(false), contents(true));
    assert_eq!(one.tarball().expect("packs"), other.tarball().expect("packs"));
    assert_eq!(deb::pack(&one).expect("packs"), deb::pack(&other).expect("packs"));
    for variant in ImageVariant::ALL {
        let pack = |contents: &PackageContents| image::pack(std::slice::from_ref(contents), variant);
        assert_eq!(pack(&one).expect("packs"), pack(&other).expect("packs"));
    }
    assert_eq!(archive::gzip(&one.program).expect("packs"), archive::gzip(&one.program).expect("packs"));
}
