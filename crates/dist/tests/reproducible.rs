//! The same bytes from the same commit. In ten seconds, packing is compared; `cargo xtask soak dist` builds twice in
//! different folders, with profile quick, or with profile dist from `--seconds 600` on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dist::contents::{PackageContents, Pages, SystemdFiles};
use dist::source_date::SourceDate;
use dist::{archive, deb, image};

/// From this many seconds on, the profile of what is published.
const REAL_PROFILE_FROM: u64 = 600;

/// Bytes of the published image of one architecture, whose layer is compressed.
const MAX_IMAGE_SIZE: u64 = 20_000_000;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the repository").to_owned()
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
        systemd: SystemdFiles::read(&root()).expect("the units"),
    }
}

/// Clones the repository into a folder, builds there, and gives the checksums of the packages.
fn build(folder: &Path, profile: &str) -> String {
    let (source, out) = (folder.join("source"), folder.join("out"));
    let mut clone = Command::new("git");
    let status = clone.args(["clone", "--quiet"]).arg(root()).arg(&source).status().expect("git runs");
    assert!(status.success(), "git clone: {status}");
    let mut dist = Command::new(env!("CARGO_BIN_EXE_dist"));
    dist.args(["--profile", profile, "--out"]).arg(&out);
    dist.env("CARGO_MANIFEST_DIR", source.join("crates/dist")).env("CARGO_TARGET_DIR", folder.join("target"));
    let status = dist.status().expect("dist runs");
    assert!(status.success(), "dist in {}: {status}", folder.display());
    let image = out.join(image::file_name(env!("CARGO_PKG_VERSION")));
    let size = fs::metadata(&image).expect("an image").len();
    println!("profile {profile}: image of {:.2} MB", size as f64 / 1e6);
    assert!(profile != "dist" || size < MAX_IMAGE_SIZE, "{}: {size} bytes", image.display());
    fs::read_to_string(out.join("SHA256SUMS")).expect("checksums")
}

#[test]
fn soak_dist_gives_the_same_bytes() {
    let (one, other) = (contents(false), contents(true));
    assert_eq!(one.tarball().expect("packs"), other.tarball().expect("packs"));
    assert_eq!(deb::pack(&one).expect("packs"), deb::pack(&other).expect("packs"));
    let images = [one.clone(), other.clone()].map(|contents| image::pack(&[contents]).expect("packs"));
    assert_eq!(images[0], images[1]);
    assert_eq!(archive::gzip(&one.program).expect("packs"), archive::gzip(&one.program).expect("packs"));

    let Ok(seconds) = std::env::var("ZONEWARD_SOAK_SECONDS") else { return };
    let seconds: u64 = seconds.parse().expect("ZONEWARD_SOAK_SECONDS is a number");
    let profile = if seconds >= REAL_PROFILE_FROM { "dist" } else { "quick" };
    let program = std::env::current_exe().expect("own program");
    let folder = program.ancestors().nth(3).expect("the target directory").join("soak-dist");
    let _ = fs::remove_dir_all(&folder);
    // One after the other: each uses all cores. Paths of different lengths.
    let sums = ["a", "another/folder"].map(|name| {
        let folder = folder.join(name);
        fs::create_dir_all(&folder).expect("a folder");
        let sums = build(&folder, profile);
        fs::remove_dir_all(folder.join("target")).expect("build files are removed");
        sums
    });
    println!("profile {profile}, twice:\n{}", sums[0]);
    assert_eq!(sums[0], sums[1], "compare the files below {}", folder.display());
    fs::remove_dir_all(folder).expect("build files are removed");
}
