//! What is in a package, before it has a format: the program, and what is generated from it or read from the repository.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::archive::{FolderEntries, Packed, gzip, tar};
use crate::debian::UnpackedPackage;
use crate::source_date::SourceDate;

/// The units of systemd, each with a file of flags.
pub const UNITS: [&str; 4] = ["zoneward-up", "zoneward-join", "zoneward-node", "zoneward-controller"];

/// The contents of the packages of one architecture.
#[derive(Debug, Clone)]
pub struct PackageContents {
    pub version: String,
    /// In the words of Debian: `amd64`, `arm64`.
    pub architecture: String,
    pub date: SourceDate,
    pub program: Vec<u8>,
    pub pages: Pages,
    /// Licence of Zoneward.
    pub licence: Vec<u8>,
    /// Licences of all libraries.
    pub third_party: String,
    pub sbom: String,
    /// The same with the packages of Debian, for the image that has them.
    pub iptables_sbom: String,
    /// Packages of Debian with the programs of iptables.
    pub debian: Vec<UnpackedPackage>,
    pub systemd: SystemdFiles,
}

/// Manual pages and completions: texts of the command line, the same on every architecture.
#[derive(Debug, Clone)]
pub struct Pages {
    /// File names (`zoneward-up.1`) and pages.
    pub manual: Vec<(String, Vec<u8>)>,
    pub bash: Vec<u8>,
    pub zsh: Vec<u8>,
    pub fish: Vec<u8>,
}

impl Pages {
    /// Asks a program that runs on this machine; `scratch` is a folder for the pages.
    pub fn of(program: &Path, scratch: &Path) -> anyhow::Result<Self> {
        if scratch.exists() {
            std::fs::remove_dir_all(scratch).with_context(|| format!("removing {}", scratch.display()))?;
        }
        ask(program, &["man", &scratch.display().to_string()])?;
        let manual = read_folder(scratch)?;
        ensure!(!manual.is_empty(), "{} wrote no manual page", program.display());
        let completion = |shell: &str| ask(program, &["completion", shell]);
        Ok(Self { manual, bash: completion("bash")?, zsh: completion("zsh")?, fish: completion("fish")? })
    }
}

fn ask(program: &Path, words: &[&str]) -> anyhow::Result<Vec<u8>> {
    let output = Command::new(program).args(words).output();
    let output = output.with_context(|| format!("failed to run {}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} {} failed: {said}", program.display(), words.join(" "));
    Ok(output.stdout)
}

/// Files of a folder by name, sorted.
fn read_folder(folder: &Path) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let file = entry.with_context(|| format!("reading {}", folder.display()))?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        files.push((name, std::fs::read(&file).with_context(|| format!("reading {}", file.display()))?));
    }
    files.sort();
    Ok(files)
}

/// The files of deploy/systemd.
#[derive(Debug, Clone, Default)]
pub struct SystemdFiles(Vec<(String, Vec<u8>)>);

impl SystemdFiles {
    pub fn read(root: &Path) -> anyhow::Result<Self> {
        let files = Self(read_folder(&root.join("deploy/systemd"))?);
        for unit in UNITS {
            files.file(&format!("{unit}.service"))?;
            files.file(&format!("{unit}.default"))?;
        }
        Ok(files)
    }

    pub fn file(&self, name: &str) -> anyhow::Result<&[u8]> {
        let found = self.0.iter().find(|(other, _)| other == name);
        found.map(|(_, bytes)| &bytes[..]).with_context(|| format!("deploy/systemd/{name} is missing"))
    }
}

impl PackageContents {
    /// Name of the tar file without its ending, and of the folder in it.
    pub fn name(&self) -> String {
        format!("zoneward-{}-linux-{}", self.version, self.architecture)
    }

    /// The `.tar.gz`: one folder, to be unpacked anywhere.
    pub fn tarball(&self) -> anyhow::Result<Vec<u8>> {
        let mut files = vec![
            Packed::program("zoneward", self.program.clone()),
            Packed::link("kubectl-zoneward", "zoneward"),
            Packed::file("LICENSE", self.licence.clone()),
            Packed::file("THIRD-PARTY-LICENSES.txt", self.third_party.as_bytes()),
            Packed::file("zoneward.cdx.json", self.sbom.as_bytes()),
            Packed::file("completions/zoneward.bash", self.pages.bash.clone()),
            Packed::file("completions/_zoneward", self.pages.zsh.clone()),
            Packed::file("completions/zoneward.fish", self.pages.fish.clone()),
        ];
        let pages = self.pages.manual.iter();
        files.extend(pages.map(|(name, page)| Packed::file(format!("man/man1/{name}"), page.clone())));
        let units = self.systemd.0.iter();
        files.extend(units.map(|(name, bytes)| Packed::file(format!("systemd/{name}"), bytes.clone())));
        gzip(&tar(&format!("{}/", self.name()), &files, FolderEntries::Listed, self.date)?)
    }
}
