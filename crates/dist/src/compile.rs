//! Builds the program: static, stripped, and without paths or times of this machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use toolbox::static_build::StaticBuild;

use crate::source_date::SourceDate;
use crate::target::Target;

/// How the program is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// What is published.
    Dist,
    /// Unoptimised; for manual pages.
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

/// Builds for a target; answers with the file of the program.
pub fn build(
    folders: &BuildFolders,
    profile: Profile,
    target: &Target,
    date: SourceDate,
) -> anyhow::Result<PathBuf> {
    let static_build = StaticBuild::new(&folders.root, &folders.target, target.triple())?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--locked", "--package=zoneward", "--profile", profile.name()]);
    cargo.arg("--target-dir").arg(folders.builds()).current_dir(&folders.root);
    static_build.apply(&mut cargo);
    cargo.env(format!("CARGO_TARGET_{}_LINKER", target.variable()), target.linker());
    let variable = profile.name().to_uppercase();
    cargo.env(format!("CARGO_PROFILE_{variable}_STRIP"), "symbols");
    cargo.env(format!("CARGO_PROFILE_{variable}_DEBUG"), "none");
    cargo.env("SOURCE_DATE_EPOCH", date.epoch().to_string());
    let status = cargo.status().context("failed to run cargo")?;
    ensure!(status.success(), "the build failed: see the compiler errors above");
    let program = folders.builds().join(target.triple()).join(profile.name()).join("zoneward");
    check_program(&program)?;
    Ok(program)
}

/// Fails unless the file is a static program.
pub fn check_program(program: &Path) -> anyhow::Result<()> {
    let bytes = std::fs::read(program).with_context(|| format!("reading {}", program.display()))?;
    check_static(&bytes).with_context(|| format!("{}", program.display()))
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
        let own = std::fs::read("/bin/sh").expect("the shell");
        let error = check_static(&own).expect_err("the shell is linked dynamically");
        assert!(error.to_string().contains("dynamically"), "{error}");
        assert!(check_static(b"#!/bin/sh").is_err());
        assert!(check_static(&own[..40]).is_err());
    }
}
