//! The build under test, and how its tests run programs.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "a test that cannot go on ends here; each program of tests uses a part"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder of the packages.
pub(crate) fn packages() -> PathBuf {
    let folder = std::env::var_os("ZONEWARD_DIST").filter(|folder| !folder.is_empty());
    folder.map(PathBuf::from).expect("ZONEWARD_DIST: run `cargo xtask test --extended --only packages`")
}

/// A folder of its own for each test, removed at the end. Its path is short, since sockets are in it.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("zoneward-dist-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        fs::create_dir_all(self.path(name)).unwrap();
        self.path(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Standard output, then standard error.
pub(crate) fn text(output: &Output) -> String {
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{said}{errors}")
}

/// Runs to the end, which must be a success.
pub(crate) fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, text(&output));
    output
}

/// Runs to the end, which must be a success; what it wrote to standard output.
pub(crate) fn run(command: &mut Command) -> String {
    String::from_utf8_lossy(&succeed(command).stdout).into_owned()
}
