//! What the program is made of: the crates that are compiled into it, as cargo resolves them for a target, the standard
//! library and the C library.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

use crate::target::Target;

/// One library that is part of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkedLibrary {
    pub name: String,
    pub version: String,
    /// As package URL: `pkg:cargo/serde@1.0.1`.
    pub purl: String,
    /// SPDX expression.
    pub licence: Option<String>,
    pub description: Option<String>,
    pub repository: Option<String>,
    /// SHA-256 of the package in the registry, in hexadecimal.
    pub checksum: Option<String>,
    /// Files with the text of the licence.
    pub licence_files: Vec<PathBuf>,
    /// Package URLs of what it uses itself.
    pub uses: BTreeSet<String>,
}

/// The program and its libraries, sorted by name and version.
#[derive(Debug, Clone)]
pub struct BillOfMaterials {
    pub version: String,
    pub libraries: Vec<LinkedLibrary>,
    /// Package URLs of what our own crates use.
    pub direct: BTreeSet<String>,
}

impl BillOfMaterials {
    /// Adds what is shipped beside the program.
    pub fn add(&mut self, components: Vec<LinkedLibrary>) {
        self.direct.extend(components.iter().map(|component| component.purl.clone()));
        self.libraries.extend(components);
        self.libraries.sort_by(|one, other| (&one.name, &one.version).cmp(&(&other.name, &other.version)));
    }
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<MetadataPackage>,
    workspace_members: BTreeSet<String>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct MetadataPackage {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    license_file: Option<PathBuf>,
    description: Option<String>,
    repository: Option<String>,
    manifest_path: PathBuf,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<ResolveNode>,
}

#[derive(Deserialize)]
struct ResolveNode {
    id: String,
    dependencies: Vec<String>,
}

/// Asks cargo and the compilers.
pub fn read(root: &Path, target: &Target) -> anyhow::Result<BillOfMaterials> {
    let mut metadata = cargo(root, &["metadata", "--format-version=1", "--locked", "--filter-platform"]);
    let metadata = stdout(metadata.arg(target.triple()))?;
    let metadata: Metadata =
        serde_json::from_str(&metadata).context("reading the answer of cargo metadata")?;
    // cargo metadata knows the graph of the whole workspace, tests included; cargo tree knows what is compiled in.
    let mut tree = cargo(root, &["tree", "--locked", "--package=zoneward", "--edges=normal,no-proc-macro"]);
    let tree = stdout(tree.args(["--prefix=none", "--format={p}", "--target", target.triple()]))?;
    let lock = std::fs::read_to_string(root.join("Cargo.lock")).context("reading Cargo.lock")?;
    let mut bill = assemble(&metadata, &parse_tree(&tree), &parse_checksums(&lock))?;
    bill.add(vec![standard_library(root, target)?, c_library(target)?]);
    Ok(bill)
}

fn assemble(
    metadata: &Metadata,
    compiled: &BTreeSet<(String, String)>,
    checksums: &BTreeMap<(String, String), String>,
) -> anyhow::Result<BillOfMaterials> {
    let is_compiled =
        |package: &&MetadataPackage| compiled.contains(&(package.name.clone(), package.version.clone()));
    let by_id: BTreeMap<&str, &MetadataPackage> =
        metadata.packages.iter().filter(is_compiled).map(|package| (package.id.as_str(), package)).collect();
    let nodes: BTreeMap<&str, &ResolveNode> =
        metadata.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
    let is_ours = |id: &str| metadata.workspace_members.contains(id);
    let uses = |id: &str| -> BTreeSet<String> {
        let ids = nodes.get(id).into_iter().flat_map(|node| &node.dependencies);
        ids.filter(|id| !is_ours(id))
            .filter_map(|id| by_id.get(id.as_str()))
            .map(|package| purl(package))
            .collect()
    };
    let program =
        by_id.values().find(|package| package.name == "zoneward").context("cargo knows no zoneward")?;
    let mut bill =
        BillOfMaterials { version: program.version.clone(), libraries: Vec::new(), direct: BTreeSet::new() };
    for (id, package) in &by_id {
        if is_ours(id) {
            bill.direct.extend(uses(id));
            continue;
        }
        bill.libraries.push(LinkedLibrary {
            name: package.name.clone(),
            version: package.version.clone(),
            purl: purl(package),
            licence: package.license.as_ref().map(|text| text.replace(" / ", "/").replace('/', " OR ")),
            description: package
                .description
                .as_ref()
                .map(|text| text.split_whitespace().collect::<Vec<_>>().join(" ")),
            repository: package.repository.clone(),
            checksum: checksums.get(&(package.name.clone(), package.version.clone())).cloned(),
            licence_files: licence_files(package)?,
            uses: uses(id),
        });
    }
    Ok(bill)
}

fn purl(package: &MetadataPackage) -> String {
    format!("pkg:cargo/{}@{}", package.name, package.version.replace('+', "%2B"))
}

/// Lines `name v1.2.3 (source) (*)` as names and versions.
fn parse_tree(text: &str) -> BTreeSet<(String, String)> {
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split(' ');
        Some((words.next()?.to_owned(), words.next()?.strip_prefix('v')?.to_owned()))
    });
    lines.collect()
}

/// Checksums of Cargo.lock by name and version.
fn parse_checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let packages = lock.split("[[package]]").skip(1).filter_map(|package| {
        let field = |name: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(&format!("{name} = \"")))?;
            Some(line.trim_end_matches('"').to_owned())
        };
        Some(((field("name")?, field("version")?), field("checksum")?))
    });
    packages.collect()
}

/// How files with licences are named in packages of crates.
const LICENCE_NAMES: [&str; 6] = ["licen", "copying", "notice", "copyright", "unlicense", "authors"];

fn licence_files(package: &MetadataPackage) -> anyhow::Result<Vec<PathBuf>> {
    let folder = package.manifest_path.parent().context("a manifest is in a folder")?;
    let mut files = Vec::new();
    for place in [folder.to_owned(), folder.join("LICENSES"), folder.join("licenses")] {
        let listed = match std::fs::read_dir(&place) {
            Ok(listed) => listed,
            Err(_) if place != folder => continue,
            Err(error) => return Err(error).with_context(|| format!("reading {}", place.display())),
        };
        for entry in listed {
            let file = entry.with_context(|| format!("reading {}", place.display()))?.path();
            let name = file.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
            let is_named = place != folder || LICENCE_NAMES.iter().any(|start| name.starts_with(start));
            if file.is_file() && is_named && !name.ends_with(".rs") {
                files.push(file);
            }
        }
    }
    files.extend(package.license_file.iter().map(|file| folder.join(file)).filter(|file| file.is_file()));
    files.sort();
    files.dedup();
    Ok(files)
}

/// The standard library of Rust, which every program contains.
fn standard_library(root: &Path, target: &Target) -> anyhow::Result<LinkedLibrary> {
    let mut rustc = Command::new("rustc");
    let version = stdout(rustc.arg("--version").current_dir(root))?;
    let version = version.split(' ').nth(1).context("rustc --version has no version")?.to_owned();
    let texts =
        PathBuf::from(stdout(Command::new("rustc").args(["--print", "sysroot"]).current_dir(root))?.trim())
            .join("share/doc/rust");
    let texts = ["licenses/MIT.txt", "licenses/Apache-2.0.txt", "COPYRIGHT-library.html"]
        .map(|name| texts.join(name));
    Ok(LinkedLibrary {
        name: "rust-std".to_owned(),
        purl: format!("pkg:generic/rust-std@{version}"),
        version,
        licence: Some("MIT OR Apache-2.0".to_owned()),
        description: Some(format!("Standard library of Rust for {}", target.triple())),
        repository: Some("https://github.com/rust-lang/rust".to_owned()),
        checksum: None,
        // The page of copyrights is HTML for browsers; the two texts are what it leads to.
        licence_files: texts
            .into_iter()
            .filter(|file| file.is_file() && file.extension().is_none_or(|end| end != "html"))
            .collect(),
        uses: BTreeSet::new(),
    })
}

/// The C library that is linked statically.
fn c_library(target: &Target) -> anyhow::Result<LinkedLibrary> {
    let version = glibc_version(&target.linker())?;
    let texts =
        ["/usr/share/common-licenses/LGPL-2.1", "/usr/share/doc/libc6-dev/copyright"].map(PathBuf::from);
    Ok(LinkedLibrary {
        name: "glibc".to_owned(),
        purl: format!("pkg:generic/glibc@{version}"),
        version,
        licence: Some("LGPL-2.1-or-later".to_owned()),
        description: Some("C library of GNU, linked statically".to_owned()),
        repository: Some("https://sourceware.org/git/glibc.git".to_owned()),
        checksum: None,
        licence_files: texts.into_iter().filter(|file| file.is_file()).collect(),
        uses: BTreeSet::new(),
    })
}

/// Asked of the preprocessor, since the C library of another architecture cannot be run.
fn glibc_version(compiler: &str) -> anyhow::Result<String> {
    let mut preprocess = Command::new(compiler);
    preprocess.args(["-E", "-P", "-x", "c", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child =
        preprocess.spawn().with_context(|| format!("failed to run {compiler}: is it installed?"))?;
    let mut stdin = child.stdin.take().context("the pipe to the preprocessor")?;
    stdin
        .write_all(b"#include <features.h>\n__GLIBC__ __GLIBC_MINOR__\n")
        .context("writing to the preprocessor")?;
    drop(stdin);
    let output = child.wait_with_output().context("reading from the preprocessor")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<&str> = text.split_whitespace().rev().take(2).collect();
    match numbers[..] {
        [minor, major] if output.status.success() => Ok(format!("{major}.{minor}")),
        _ => bail!("{compiler} does not know the version of glibc: install libc6-dev for the target"),
    }
}

fn cargo(root: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(words).current_dir(root);
    command
}

fn stdout(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output =
        command.stderr(Stdio::inherit()).output().with_context(|| format!("failed to run {name}"))?;
    ensure!(output.status.success(), "{name} failed: its message is above");
    String::from_utf8(output.stdout).with_context(|| format!("reading the answer of {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_and_lock_are_read_by_name_and_version() {
        let tree = parse_tree("zoneward v0.1.0 (/src/zoneward)\nserde v1.0.229\nserde v1.0.229 (*)\n\n");
        let expected = [("serde", "1.0.229"), ("zoneward", "0.1.0")];
        assert_eq!(tree, expected.map(|(name, version)| (name.to_owned(), version.to_owned())).into());
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"r\"\nchecksum = \"ab\"\n\n\
                    [[package]]\nname = \"own\"\nversion = \"0.1.0\"\n";
        let expected = [(("a".to_owned(), "1.0.0".to_owned()), "ab".to_owned())];
        assert_eq!(parse_checksums(lock), expected.into());
    }
}
