//! How a static program without paths of this machine is built: the flags and variables of cargo, for packages and for
//! CI, which builds its tests in the same way so that packages are made of the program that was tested.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A build for one target.
#[derive(Debug, Clone)]
pub struct StaticBuild {
    /// Root of the repository.
    root: PathBuf,
    /// Such as `x86_64-unknown-linux-gnu`.
    triple: String,
    /// Paths of this machine, and what stands for them in the program; where several match, the last one counts.
    prefixes: Vec<(PathBuf, &'static str)>,
}

impl StaticBuild {
    /// `target` is the target directory of the repository.
    pub fn new(root: &Path, target: &Path, triple: &str) -> io::Result<Self> {
        let mut prefixes = vec![(root.to_owned(), "/zoneward"), (target.to_owned(), "/zoneward/target")];
        let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
        let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
        let home =
            home.ok_or_else(|| io::Error::other("neither CARGO_HOME nor a home directory is known"))?;
        prefixes.push((home.clone(), "/cargo"));
        // One folder per registry, with the registry's address in its name: a mirror must give the same bytes.
        let sources = std::fs::read_dir(home.join("registry/src")).into_iter().flatten().flatten();
        let mut sources: Vec<PathBuf> = sources.map(|entry| entry.path()).collect();
        sources.sort();
        prefixes.extend(sources.into_iter().map(|folder| (folder, "/cargo")));
        Ok(Self { root: root.to_owned(), triple: triple.to_owned(), prefixes })
    }

    /// Sets target and variables of a `cargo build` or of what builds like it, in place of those of the caller.
    pub fn apply(&self, cargo: &mut Command) {
        // With --target, flags reach only what is linked into the program, not build scripts and macros, which cannot be
        // static.
        cargo.args(["--target", &self.triple]);
        for name in ["RUSTFLAGS", "CFLAGS", "CPPFLAGS", "LDFLAGS", "RUSTC_WRAPPER"] {
            cargo.env_remove(name);
        }
        cargo.env("CARGO_ENCODED_RUSTFLAGS", self.rust_flags());
        cargo.env(format!("CFLAGS_{}", self.triple.replace('-', "_")), self.c_flags());
        // `zoneward version` shows it; a source without git has none.
        if let Some(commit) = commit(&self.root) {
            cargo.env("ZONEWARD_COMMIT", commit);
        }
    }

    /// Flags of rustc, separated as cargo wants them.
    fn rust_flags(&self) -> OsString {
        let mut flags = OsString::from("-Ctarget-feature=+crt-static");
        for (from, to) in &self.prefixes {
            flags.push("\u{1f}--remap-path-prefix=");
            flags.push(from);
            flags.push(format!("={to}"));
        }
        flags
    }

    fn c_flags(&self) -> OsString {
        let mut flags = OsString::new();
        // gcc takes the last match as well.
        for (from, to) in self.prefixes.iter().filter(|(from, _)| !from.to_string_lossy().contains(' ')) {
            flags.push("-ffile-prefix-map=");
            flags.push(from);
            flags.push(format!("={to} "));
        }
        flags
    }
}

/// The commit of HEAD; `-dirty` follows where files differ from it.
fn commit(root: &Path) -> Option<String> {
    let words = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"];
    let output = Command::new("git").args(words).current_dir(root).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

/// The target of this machine's compiler.
pub fn host_triple(root: &Path) -> io::Result<String> {
    let output = Command::new("rustc").arg("-vV").current_dir(root).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| io::Error::other("rustc -vV names no host"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_name_every_prefix() {
        let prefixes = vec![(PathBuf::from("/src"), "/zoneward"), (PathBuf::from("/a b"), "/cargo")];
        let build = StaticBuild { root: "/src".into(), triple: "x".into(), prefixes };
        let flags = build.rust_flags().into_string().expect("text");
        let flags: Vec<&str> = flags.split('\u{1f}').collect();
        assert_eq!(
            flags,
            [
                "-Ctarget-feature=+crt-static",
                "--remap-path-prefix=/src=/zoneward",
                "--remap-path-prefix=/a b=/cargo"
            ]
        );
        assert_eq!(build.c_flags(), "-ffile-prefix-map=/src=/zoneward ");
    }
}
