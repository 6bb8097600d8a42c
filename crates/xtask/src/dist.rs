//! `cargo xtask dist` runs crate dist, which needs libraries that xtask does without. `cargo xtask soak dist` builds the
//! packages twice in different folders, compares their bytes, and runs the tests of packages and image with them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{Stop, report, shell, suite, tools};

/// The profiles of `--profile`; the first is the one of published packages.
pub(crate) const PROFILES: [&str; 3] = ["dist", "quick", "release"];

/// Bytes of the published image of one architecture, whose layer is compressed.
const MAX_IMAGE_SIZE: u64 = 20_000_000;
/// Bytes of the layer of iptables, and of what describes it.
const MAX_IPTABLES_SIZE: u64 = 2_500_000;

/// Passes the words on; crate dist says itself what is wrong with them.
pub(crate) fn run(words: &[String]) -> Result<(), Stop> {
    let mut dist = shell::cargo(&["run", "--quiet", "--package", "dist", "--"]);
    // The target directory as xtask has it, from wherever the command was typed.
    dist.args(words).env("CARGO_TARGET_DIR", shell::target_dir());
    let status = dist
        .status()
        .map_err(|error| Stop::Failed(format!("failed to run cargo ({error}): is it on PATH?")))?;
    match status.code() {
        Some(2) => Err(Stop::Usage("dist: usage error, see above".to_owned())),
        _ => shell::check(status, "dist", "its message is above"),
    }
}

/// Packages of a program in a folder, for their tests.
pub(crate) fn pack(program: &Path, out: &Path) -> Result<(), Stop> {
    let [program, out] = [program, out].map(|path| path.display().to_string());
    run(&["--program".to_owned(), program, "--out".to_owned(), out])
}

/// Builds clones of HEAD in two folders, compares, and tests the packages of the first, which are kept.
pub(crate) fn soak(profile: &str) -> Result<(), Stop> {
    for needed in [&tools::TESTS[..], &tools::PACKAGES, &tools::IMAGE] {
        tools::ensure(needed, true)?;
    }
    let folder = shell::target_dir().join("soak-dist");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| failed("removing", &folder, &error))?;
    }
    // One after the other: each uses all cores. Paths of different lengths.
    let [one, other] = ["a", "another/folder"].map(|name| folder.join(name));
    let (one, other) = (build_clone(&one, profile)?, build_clone(&other, profile)?);
    report::heading("the same bytes from both folders");
    let count = compare(&one, &other)?;
    report::say(&format!("{count} files are the same in {} and {}", one.display(), other.display()));
    if profile == PROFILES[0] {
        check_image_size(&one)?;
    }
    report::heading(&format!("packages and image of profile {profile}: they are complete, install and run"));
    suite::test_packages(&one).map(|_| ())?;
    report::say(&format!("the packages are in {}", one.display()));
    Ok(())
}

/// Clones the repository into the folder and builds its packages; answers with their folder.
fn build_clone(folder: &Path, profile: &str) -> Result<PathBuf, Stop> {
    report::heading(&format!("packages of profile {profile} in {}", folder.display()));
    let (source, target, out) = (folder.join("source"), folder.join("target"), folder.join("out"));
    fs::create_dir_all(folder).map_err(|error| failed("creating", folder, &error))?;
    let mut clone = shell::program("git");
    clone.args(["clone", "--quiet"]).arg(shell::root()).arg(&source);
    shell::run(&mut clone, "git clone", "the soak builds a clone of this repository")?;
    let mut dist =
        shell::cargo(&["run", "--quiet", "--package", "dist", "--", "--profile", profile, "--out"]);
    dist.arg(&out).current_dir(&source).env("CARGO_TARGET_DIR", &target);
    shell::run(&mut dist, "dist", "its message is above")?;
    // A build of profile dist takes gigabytes.
    fs::remove_dir_all(&target).map_err(|error| failed("removing", &target, &error))?;
    Ok(out)
}

/// Digests of the packages in a folder by file name, from SHA256SUMS.
fn checksums(folder: &Path) -> Result<BTreeMap<String, String>, Stop> {
    let file = folder.join("SHA256SUMS");
    let text = fs::read_to_string(&file).map_err(|error| failed("reading", &file, &error))?;
    let lines = text.lines().filter_map(|line| line.split_once("  "));
    Ok(lines.map(|(digest, name)| (name.to_owned(), digest.to_owned())).collect())
}

/// The number of files that are the same; files that differ are a failure that names them.
fn compare(one: &Path, other: &Path) -> Result<usize, Stop> {
    let (sums, others) = (checksums(one)?, checksums(other)?);
    let names = sums.keys().chain(others.keys().filter(|name| !sums.contains_key(*name)));
    let differing: Vec<&str> =
        names.filter(|name| sums.get(*name) != others.get(*name)).map(String::as_str).collect();
    match (differing.is_empty(), sums.is_empty()) {
        (true, false) => Ok(sums.len()),
        (true, true) => Err(Stop::Failed(format!("{}: SHA256SUMS lists no file", one.display()))),
        (false, _) => Err(Stop::Failed(format!(
            "two builds of one commit differ in {}: compare {} with {}",
            differing.join(", "),
            one.display(),
            other.display()
        ))),
    }
}

/// Names the size of each image, and fails if one is too large.
fn check_image_size(folder: &Path) -> Result<(), Stop> {
    let sums = checksums(folder)?;
    let images: Vec<&String> = sums.keys().filter(|name| name.starts_with("zoneward-image-")).collect();
    if images.is_empty() {
        return Err(Stop::Failed(format!("no image in {}", folder.display())));
    }
    for image in images {
        let limit = MAX_IMAGE_SIZE + if image.contains("-iptables.") { MAX_IPTABLES_SIZE } else { 0 };
        let file = folder.join(image);
        let size = fs::metadata(&file).map_err(|error| failed("reading", &file, &error))?.len();
        report::say(&format!("{image}: {:.2} MB", size as f64 / 1e6));
        if size >= limit {
            return Err(Stop::Failed(format!("{image} has {size} bytes; the limit is {limit}")));
        }
    }
    Ok(())
}

fn failed(what: &str, path: &Path, error: &std::io::Error) -> Stop {
    Stop::Failed(format!("{what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two folders of packages with these checksums, compared.
    fn compared(name: &str, one: &str, other: &str) -> Result<usize, Stop> {
        let folder = std::env::temp_dir().join(format!("zoneward-soak-dist-{name}-{}", std::process::id()));
        let folders = [("a", one), ("b", other)].map(|(side, sums)| {
            let folder = folder.join(side);
            fs::create_dir_all(&folder).expect("a folder");
            fs::write(folder.join("SHA256SUMS"), sums).expect("a file");
            folder
        });
        let outcome = compare(&folders[0], &folders[1]);
        fs::remove_dir_all(folder).expect("the folder is removed");
        outcome
    }

    #[test]
    fn builds_that_differ_name_the_files() {
        assert_eq!(compared("same", "1  a.deb\n2  b.tar\n", "2  b.tar\n1  a.deb\n"), Ok(2));
        for (name, other, named) in [
            ("digest", "1  a.deb\n3  b.tar\n", "b.tar"),
            ("missing", "1  a.deb\n", "b.tar"),
            ("more", "1  a.deb\n2  b.tar\n4  c.tgz\n", "c.tgz"),
        ] {
            let Err(Stop::Failed(why)) = compared(name, "1  a.deb\n2  b.tar\n", other) else {
                panic!("{name}: should fail")
            };
            assert!(why.contains(&format!("differ in {named}:")), "{why}");
        }
        assert!(compared("empty", "", "").is_err());
    }

    #[test]
    fn image_over_the_limit_is_refused() {
        let folder = std::env::temp_dir().join(format!("zoneward-soak-dist-size-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        for (name, limit) in [
            ("zoneward-image-0.1.0.tar", MAX_IMAGE_SIZE),
            ("zoneward-image-0.1.0-iptables.tar", MAX_IMAGE_SIZE + MAX_IPTABLES_SIZE),
        ] {
            fs::write(folder.join("SHA256SUMS"), format!("1  {name}\n")).expect("a file");
            let image = fs::File::create(folder.join(name)).expect("a file");
            image.set_len(limit - 1).expect("a size");
            assert_eq!(check_image_size(&folder), Ok(()));
            image.set_len(limit).expect("a size");
            assert!(check_image_size(&folder).is_err(), "{name}");
        }
        fs::remove_dir_all(folder).expect("the folder is removed");
    }
}
