//! Builds the program: static, stripped, and without paths or times of this machine.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::source_date::SourceDate;
use crate::target::Target;

/// How the program is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// What is published.
    Dist,
    /// Unoptimised; for tests of the packages.
    Quick,
    Release,
}

impl Profile {
    pub const ALL: [Profile; 3] = [Profile::Dist, Profile::Quick, Profile::Release];

    pub fn name(self) -> &'static str {
        match self {
            Profile::Dist => "dist",
            Profile::Quick => "quick",
            Profile::Release => "release",
        }
    }

    /// How long the first build takes on two cores.
    pub fn duration(self) -> &'static str {
        match self {
            Profile::Dist => "about 15 minutes",
            Profile::Quick => "about 4 minutes",
            Profile::Release => "about 9 minutes",
        }
    }
}

/// Where a build reads and writes.
#[derive(Debug, Clone)]
pub struct BuildFolders {
    /// Root of the repository.
    pub root: PathBuf,
    /// Target directory of cargo.
    pub target: PathBuf,
}

impl BuildFolders {
    /// Where cargo builds the program: profile dist would otherwise leave its folders among the packages in target/dist.
    fn builds(&self) -> PathBuf {
        self.target.join("dist-build")
    }
}

/// The commit of HEAD; `-dirty` follows where files differ from it.
fn commit(root: &Path) -> Option<String> {
    let words = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"];
    let output = Command::new("git").args(words).current_dir(root).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

/// Builds for a target; answers with the file of the program.
pub fn build(
    folders: &BuildFolders,
    profile: Profile,
    target: &Target,
    date: SourceDate,
) -> anyhow::Result<PathBuf> {
    let prefixes = prefixes(folders)?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--locked", "--package=zoneward", "--profile", profile.name()]);
    // With --target, flags reach only what is linked into the program, not build scripts and macros, which cannot be static.
    cargo
        .args(["--target", target.triple()])
        .arg("--target-dir")
        .arg(folders.builds())
        .current_dir(&folders.root);
    for name in ["RUSTFLAGS", "CFLAGS", "CPPFLAGS", "LDFLAGS", "RUSTC_WRAPPER"] {
        cargo.env_remove(name);
    }
    cargo.env("CARGO_ENCODED_RUSTFLAGS", rust_flags(&prefixes));
    cargo.env(format!("CFLAGS_{}", target.triple().replace('-', "_")), c_flags(&prefixes));
    cargo.env(format!("CARGO_TARGET_{}_LINKER", target.variable()), target.linker());
    let variable = profile.name().to_uppercase();
    cargo.env(format!("CARGO_PROFILE_{variable}_STRIP"), "symbols");
    cargo.env(format!("CARGO_PROFILE_{variable}_DEBUG"), "none");
    cargo.env("SOURCE_DATE_EPOCH", date.epoch().to_string());
    // `zoneward version` shows it; a source without git has none.
    if let Some(commit) = commit(&folders.root) {
        cargo.env("ZONEWARD_COMMIT", commit);
    }
    let status = cargo.status().context("failed to run cargo")?;
    ensure!(status.success(), "the build failed: see the compiler errors above");
    let program = folders.builds().join(target.triple()).join(profile.name()).join("zoneward");
    let bytes = std::fs::read(&program).with_context(|| format!("reading {}", program.display()))?;
    check_static(&bytes).with_context(|| format!("{}", program.display()))?;
    Ok(program)
}

/// Paths of this machine, and what stands for them in the program; where several match, the last one counts.
fn prefixes(folders: &BuildFolders) -> anyhow::Result<Vec<(PathBuf, &'static str)>> {
    let mut prefixes =
        vec![(folders.root.clone(), "/zoneward"), (folders.target.clone(), "/zoneward/target")];
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home
        .or_else(|| std::env::home_dir().map(|home| home.join(".cargo")))
        .context("where is CARGO_HOME?")?;
    prefixes.push((home.clone(), "/cargo"));
    // One folder per registry, with the registry's address in its name: a mirror must give the same bytes.
    let sources = std::fs::read_dir(home.join("registry/src")).into_iter().flatten().flatten();
    let mut sources: Vec<PathBuf> = sources.map(|entry| entry.path()).collect();
    sources.sort();
    prefixes.extend(sources.into_iter().map(|folder| (folder, "/cargo")));
    Ok(prefixes)
}

/// Flags of rustc, separated as cargo wants them.
fn rust_flags(prefixes: &[(PathBuf, &str)]) -> OsString {
    let mut flags = OsString::from("-Ctarget-feature=+crt-static");
    for (from, to) in prefixes {
        flags.push("\u{1f}--remap-path-prefix=");
        flags.push(from);
        flags.push(format!("={to}"));
    }
    flags
}

fn c_flags(prefixes: &[(PathBuf, &str)]) -> OsString {
    let mut flags = OsString::new();
    // gcc takes the last match as well.
    for (from, to) in prefixes.iter().filter(|(from, _)| !from.to_string_lossy().contains(' ')) {
        flags.push("-ffile-prefix-map=");
        flags.push(from);
        flags.push(format!("={to} "));
    }
    flags
}

const PROGRAM_HEADERS_AT: usize = 32;
const HEADER_SIZE_AT: usize = 54;
const HEADER_COUNT_AT: usize = 56;
const INTERPRETER: u32 = 3;

/// A program that asks for a loader is not static.
fn check_static(elf: &[u8]) -> anyhow::Result<()> {
    ensure!(elf.starts_with(b"\x7fELF\x02\x01"), "expected a 64-bit little-endian ELF program");
    let number = |at: usize, size: usize| -> Option<usize> {
        let bytes = elf.get(at..at + size)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    };
    let headers = (number(PROGRAM_HEADERS_AT, 8), number(HEADER_SIZE_AT, 2), number(HEADER_COUNT_AT, 2));
    let (Some(start), Some(size), Some(count)) = headers else { bail!("the ELF header is cut off") };
    for index in 0..count {
        let kind = number(start + index * size, 4).context("a program header is cut off")?;
        ensure!(kind != INTERPRETER as usize, "the program is linked dynamically");
    }
    Ok(())
}

/// Whether the folder has changes that no commit holds: its date says nothing about them.
pub fn has_uncommitted_changes(root: &Path) -> bool {
    let status = Command::new("git")
        .args(["status", "--porcelain", "--untracked-files=no"])
        .current_dir(root)
        .output();
    status.is_ok_and(|output| !output.stdout.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dynamic_program_is_refused() {
        let own = std::fs::read("/proc/self/exe").expect("own program");
        let error = check_static(&own).expect_err("tests are linked dynamically");
        assert!(error.to_string().contains("dynamically"), "{error}");
        assert!(check_static(b"#!/bin/sh").is_err());
        assert!(check_static(&own[..40]).is_err());
    }

    #[test]
    fn flags_name_every_prefix() {
        let prefixes = [(PathBuf::from("/src"), "/zoneward"), (PathBuf::from("/a b"), "/cargo")];
        let flags = rust_flags(&prefixes).into_string().expect("text");
        let flags: Vec<&str> = flags.split('\u{1f}').collect();
        assert_eq!(
            flags,
            [
                "-Ctarget-feature=+crt-static",
                "--remap-path-prefix=/src=/zoneward",
                "--remap-path-prefix=/a b=/cargo"
            ]
        );
        assert_eq!(c_flags(&prefixes), "-ffile-prefix-map=/src=/zoneward ");
    }
}
