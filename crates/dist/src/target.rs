//! The machine that a package is for, and what must be installed here to build for it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// A target of rustc that packages can be made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    triple: String,
    architecture: &'static str,
}

impl Target {
    /// Parses a triple such as `x86_64-unknown-linux-gnu`.
    pub fn parse(triple: &str) -> anyhow::Result<Self> {
        let architecture = match triple {
            "x86_64-unknown-linux-gnu" => "amd64",
            "aarch64-unknown-linux-gnu" => "arm64",
            _ => bail!(
                "--target {triple}: expected x86_64-unknown-linux-gnu or aarch64-unknown-linux-gnu; packages are for Linux with glibc, linked statically"
            ),
        };
        Ok(Self { triple: triple.to_owned(), architecture })
    }

    /// The target of this machine's compiler.
    pub fn host(root: &Path) -> anyhow::Result<Self> {
        let host = toolbox::static_build::host_triple(root).context("failed to ask rustc for its target")?;
        Self::parse(&host)
    }

    pub fn triple(&self) -> &str {
        &self.triple
    }

    /// As Debian, OCI and Kubernetes name it: `amd64`, `arm64`.
    pub fn architecture(&self) -> &'static str {
        self.architecture
    }

    /// Whether this process could run a program of that target.
    pub fn runs_here(&self) -> bool {
        self.triple.starts_with(std::env::consts::ARCH)
    }

    /// The name in variables of cargo: `X86_64_UNKNOWN_LINUX_GNU`.
    pub fn variable(&self) -> String {
        self.triple.to_uppercase().replace('-', "_")
    }

    /// The C compiler that links for it: the variable of cargo for it, or GNU's name of it.
    pub fn linker(&self) -> String {
        let given = std::env::var(format!("CARGO_TARGET_{}_LINKER", self.variable()));
        given.unwrap_or_else(|_| match self.runs_here() {
            true => "cc".to_owned(),
            false => format!("{}-linux-gnu-gcc", self.triple.split('-').next().unwrap_or_default()),
        })
    }

    /// Fails unless the standard library and a linker for it are installed, and says how to get them.
    pub fn check_installed(&self, root: &Path) -> anyhow::Result<()> {
        let mut rustc = Command::new("rustc");
        rustc.args(["--print", "target-libdir", "--target", &self.triple]).current_dir(root);
        let output = rustc.output().context("failed to run rustc")?;
        let folder = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        if !holds_standard_library(&folder) {
            bail!(
                "the standard library for {0} is not installed: run `rustup target add {0}`{1}",
                self.triple,
                self.linker_advice()
            );
        }
        if Command::new(self.linker()).arg("--version").output().is_err() {
            bail!("no linker for {}: {} is not on PATH{}", self.triple, self.linker(), self.linker_advice());
        }
        Ok(())
    }

    fn linker_advice(&self) -> String {
        if self.runs_here() {
            return "; a C compiler and libc6-dev are needed as well".to_owned();
        }
        let gnu = self.triple.split('-').next().unwrap_or_default().replace('_', "-");
        format!(
            "; a linker and a C library are needed as well: on Debian `apt-get install gcc-{gnu}-linux-gnu libc6-dev-{}-cross`",
            self.architecture
        )
    }
}

fn holds_standard_library(folder: &Path) -> bool {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.into_iter().any(|file| file.file_name().to_string_lossy().starts_with("libstd-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_have_the_names_of_debian() {
        let target = Target::parse("aarch64-unknown-linux-gnu").expect("known");
        assert_eq!(
            (target.architecture(), target.variable().as_str()),
            ("arm64", "AARCH64_UNKNOWN_LINUX_GNU")
        );
        let error = Target::parse("x86_64-unknown-linux-musl").expect_err("not supported");
        assert!(error.to_string().contains("x86_64-unknown-linux-gnu"), "{error}");
    }

    #[test]
    fn what_is_missing_for_another_architecture_is_named_with_the_way_to_get_it() {
        let other = if cfg!(target_arch = "x86_64") { "aarch64" } else { "x86_64" };
        let target = Target::parse(&format!("{other}-unknown-linux-gnu")).expect("known");
        let advice = target.linker_advice();
        assert!(advice.contains(&format!("gcc-{}-linux-gnu", other.replace('_', "-"))), "{advice}");
        if let Err(error) = target.check_installed(Path::new(".")) {
            let text = error.to_string();
            assert!(text.contains("rustup target add") || text.contains("apt-get install"), "{text}");
        }
    }
}
