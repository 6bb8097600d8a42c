//! Packages of Debian with the programs of iptables, for the image that has them. Version and digest are pinned in debian-packages.txt, so that a commit
//! gives the same bytes; what is downloaded stays in the target directory.
//!
//! ```text
//! debian-packages.txt --> apt-get download --> SHA-256 --> dpkg-deb --> files --> layer, SBOM
//! ```

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use ring::digest::{SHA256, digest};
use tar::{Archive, EntryType};

use crate::archive::Packed;
use crate::checksums::hexadecimal;
use crate::dependencies::LinkedLibrary;

/// The file with the pins, below the root of the repository.
pub const PINS: &str = "crates/dist/debian-packages.txt";

/// The release that the versions are of, as in package URLs.
const RELEASE: &str = "debian-12";

/// A line of the pins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedPackage {
    pub name: String,
    pub version: String,
    /// In the words of Debian: `amd64`, `arm64`.
    pub architecture: String,
    /// SHA-256 of the .deb, in hexadecimal.
    pub checksum: String,
    /// SPDX expression for the files that are taken.
    pub licence: String,
}

/// A package and all of its files and links.
#[derive(Debug, Clone)]
pub struct UnpackedPackage {
    pub pin: PinnedPackage,
    pub files: Vec<Packed>,
}

impl PinnedPackage {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(5, ' ').map(str::to_owned);
        let (name, version, architecture, checksum) =
            (words.next()?, words.next()?, words.next()?, words.next()?);
        let licence = words.next().filter(|licence| !licence.is_empty())?;
        (checksum.len() == 64).then_some(Self { name, version, architecture, checksum, licence })
    }

    fn line(&self) -> String {
        let Self { name, version, architecture, checksum, licence } = self;
        format!("{name} {version} {architecture} {checksum} {licence}")
    }

    /// As apt names the file: an epoch's colon is escaped.
    pub fn file_name(&self) -> String {
        format!("{}_{}_{}.deb", self.name, self.version.replace(':', "%3a"), self.architecture)
    }

    fn purl(&self) -> String {
        let version = self.version.replace('+', "%2B").replace(':', "%3A");
        format!("pkg:deb/debian/{}@{version}?arch={}&distro={RELEASE}", self.name, self.architecture)
    }
}

/// The packages of an architecture that a text of pins lists.
pub fn parse_pins(text: &str, architecture: &str) -> anyhow::Result<Vec<PinnedPackage>> {
    let mut pins = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let pin = PinnedPackage::parse(line).with_context(|| {
            format!("{PINS}: expected name, version, architecture, SHA-256 and licence, got `{line}`")
        })?;
        pins.extend(Some(pin).filter(|pin| pin.architecture == architecture));
    }
    ensure!(!pins.is_empty(), "{PINS} lists no package for {architecture}");
    Ok(pins)
}

/// The components of the SBOM: each package, and what the first uses of the others.
pub fn components(packages: &[UnpackedPackage]) -> Vec<LinkedLibrary> {
    let purls: BTreeSet<String> = packages.iter().map(|package| package.pin.purl()).collect();
    let component = |package: &UnpackedPackage| {
        let pin = &package.pin;
        let is_program = pin.name == "iptables";
        LinkedLibrary {
            name: pin.name.clone(),
            version: pin.version.clone(),
            purl: pin.purl(),
            licence: Some(pin.licence.clone()),
            description: Some(format!("Package of Debian for {}", pin.architecture)),
            repository: None,
            checksum: Some(pin.checksum.clone()),
            licence_files: Vec::new(),
            uses: purls.iter().filter(|purl| is_program && **purl != pin.purl()).cloned().collect(),
        }
    };
    packages.iter().map(component).collect()
}

/// The pinned packages of an architecture, from `folder` or else from Debian.
pub fn read(root: &Path, folder: &Path, architecture: &str) -> anyhow::Result<Vec<UnpackedPackage>> {
    let file = root.join(PINS);
    let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let pins = parse_pins(&text, architecture)?;
    let missing: Vec<&PinnedPackage> =
        pins.iter().filter(|pin| !folder.join(pin.file_name()).is_file()).collect();
    if !missing.is_empty() {
        Apt::new(folder, architecture)?.download(&missing)?;
    }
    pins.into_iter().map(|pin| unpack(folder, pin)).collect()
}

fn unpack(folder: &Path, pin: PinnedPackage) -> anyhow::Result<UnpackedPackage> {
    let file = folder.join(pin.file_name());
    let bytes = std::fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
    let checksum = hexadecimal(digest(&SHA256, &bytes).as_ref());
    ensure!(
        checksum == pin.checksum,
        "{} has SHA-256 {checksum}, not {} of {PINS}: delete it to download it again",
        file.display(),
        pin.checksum
    );
    let mut command = Command::new("dpkg-deb");
    let output = command.arg("--fsys-tarfile").arg(&file).stderr(Stdio::inherit()).output();
    let output = output.context("failed to run dpkg-deb, which unpacks the packages of iptables")?;
    ensure!(output.status.success(), "dpkg-deb cannot read {}", file.display());
    let files = files(&output.stdout).with_context(|| format!("reading {}", file.display()))?;
    Ok(UnpackedPackage { pin, files })
}

/// Files and links of a tar file.
fn files(archive: &[u8]) -> anyhow::Result<Vec<Packed>> {
    let mut files = Vec::new();
    for entry in Archive::new(archive).entries()? {
        let mut entry = entry?;
        let path = String::from_utf8_lossy(&entry.path_bytes()).trim_start_matches("./").to_owned();
        match entry.header().entry_type() {
            EntryType::Regular => {
                let is_program = entry.header().mode()? & 0o111 != 0;
                let mut bytes = Vec::new();
                entry.read_to_end(&mut bytes)?;
                files.push(if is_program { Packed::program(path, bytes) } else { Packed::file(path, bytes) });
            }
            EntryType::Symlink => {
                let to = entry.link_name_bytes().context("a link without a target")?;
                files.push(Packed::link(path, String::from_utf8_lossy(&to)));
            }
            EntryType::Directory => {}
            other => bail!("{path} is neither file nor link but {other:?}"),
        }
    }
    Ok(files)
}

/// apt with the machine's package sources and lists of its own: for any architecture, and without root.
struct Apt {
    folder: PathBuf,
    architecture: String,
}

impl Apt {
    fn new(folder: &Path, architecture: &str) -> anyhow::Result<Self> {
        let apt = Self { folder: folder.to_owned(), architecture: architecture.to_owned() };
        for place in ["lists/partial", "cache/archives/partial"] {
            let place = apt.state().join(place);
            std::fs::create_dir_all(&place).with_context(|| format!("creating {}", place.display()))?;
        }
        Ok(apt)
    }

    fn state(&self) -> PathBuf {
        self.folder.join(format!("apt-{}", self.architecture))
    }

    fn command(&self, program: &str) -> Command {
        let state = self.state();
        let mut command = Command::new(program);
        for option in [
            format!("APT::Architecture={}", self.architecture),
            format!("APT::Architectures={}", self.architecture),
            format!("Dir::State={}", state.display()),
            format!("Dir::Cache={}", state.join("cache").display()),
            "Dir::State::status=/dev/null".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "APT::Sandbox::User=root".to_owned(),
        ] {
            command.arg("-o").arg(option);
        }
        command.current_dir(&self.folder);
        command
    }

    fn download(&self, pins: &[&PinnedPackage]) -> anyhow::Result<()> {
        let wanted: Vec<String> = pins.iter().map(|pin| format!("{}={}", pin.name, pin.version)).collect();
        let advice = || {
            let files: Vec<String> = pins.iter().map(|pin| pin.file_name()).collect();
            format!(
                "the image of mode iptables needs packages of Debian 12: put {} from snapshot.debian.org into {}",
                files.join(", "),
                self.folder.display()
            )
        };
        for words in [vec!["update".to_owned()], [vec!["download".to_owned()], wanted.clone()].concat()] {
            let status = self.command("apt-get").arg("-qq").args(&words).status();
            let is_done = status.with_context(|| format!("failed to run apt-get; {}", advice()))?.success();
            ensure!(is_done, "apt-get {} failed; {}{}", words.join(" "), advice(), self.newer(pins));
        }
        Ok(())
    }

    /// The lines of the pins for versions that Debian has now, where they differ.
    fn newer(&self, pins: &[&PinnedPackage]) -> String {
        let lines: Vec<String> = pins
            .iter()
            .filter_map(|pin| {
                let output =
                    self.command("apt-cache").args(["show", "--no-all-versions", &pin.name]).output().ok()?;
                current(pin, &String::from_utf8_lossy(&output.stdout))
            })
            .collect();
        match lines.is_empty() {
            true => String::new(),
            false => format!("; or change these lines of {PINS}:\n{}", lines.join("\n")),
        }
    }
}

/// The pin of the version in an answer of apt-cache, unless it is the same.
fn current(pin: &PinnedPackage, shown: &str) -> Option<String> {
    let field = |name: &str| {
        shown.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
    };
    let (version, checksum) = (field("Version:")?, field("SHA256:")?);
    (version != pin.version).then(|| PinnedPackage { version, checksum, ..pin.clone() }.line())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PINS_TEXT: &str = include_str!("../debian-packages.txt");

    #[test]
    fn both_architectures_pin_the_same_versions() {
        let [amd64, arm64] = ["amd64", "arm64"].map(|architecture| {
            let pins = parse_pins(PINS_TEXT, architecture).expect("pins");
            pins.into_iter().map(|pin| (pin.name, pin.version, pin.licence)).collect::<Vec<_>>()
        });
        assert_eq!(amd64, arm64);
        let error = parse_pins("iptables 1.8.9-2 amd64 cut GPL\n", "amd64").expect_err("no digest");
        assert!(error.to_string().contains("got `iptables 1.8.9-2 amd64 cut GPL`"), "{error}");
        assert!(parse_pins(PINS_TEXT, "riscv64").is_err());
    }

    #[test]
    fn a_newer_version_is_offered_as_the_line_to_write() {
        let pin = parse_pins(PINS_TEXT, "amd64").expect("pins").remove(0);
        let digest = "0".repeat(64);
        let shown = |version: &str| format!("Package: iptables\nVersion: {version}\nSHA256: {digest}\n");
        assert_eq!(current(&pin, &shown(&pin.version)), None);
        let line = current(&pin, &shown("1.8.9-3")).expect("another version");
        assert_eq!(PinnedPackage::parse(&line).map(|pin| pin.version).as_deref(), Some("1.8.9-3"));
        assert!(line.starts_with(&format!("iptables 1.8.9-3 amd64 {digest} GPL-2.0-only")), "{line}");
    }

    #[test]
    fn components_name_version_digest_and_licence() {
        let packages: Vec<UnpackedPackage> = parse_pins(PINS_TEXT, "amd64")
            .expect("pins")
            .into_iter()
            .map(|pin| UnpackedPackage { pin, files: Vec::new() })
            .collect();
        let components = components(&packages);
        let libc = components.iter().find(|component| component.name == "libc6").expect("the C library");
        assert!(libc.purl.starts_with("pkg:deb/debian/libc6@2.36-9%2Bdeb12u"), "{}", libc.purl);
        assert!(libc.checksum.is_some() && libc.licence.is_some());
        let program = components.iter().find(|component| component.name == "iptables").expect("iptables");
        assert_eq!(program.uses.len(), components.len() - 1);
    }

    #[test]
    fn another_digest_is_refused() {
        let folder = std::env::temp_dir().join(format!("zoneward-debian-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("temporary folder");
        let pin = parse_pins(PINS_TEXT, "amd64").expect("pins").remove(0);
        std::fs::write(folder.join(pin.file_name()), "altered").expect("temporary file");
        let error = unpack(&folder, pin).expect_err("another digest");
        assert!(error.to_string().contains("SHA-256"), "{error}");
        std::fs::remove_dir_all(folder).expect("temporary folder");
    }
}
