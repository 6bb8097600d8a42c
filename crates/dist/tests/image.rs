//! The image of a real build, read by skopeo, umoci and containerd, and run by runc with the rights that the manifests in
//! deploy/ give to each role. The build takes minutes, so these are not part of the ordinary run:
//! `cargo xtask test --extended --only packages`. They need root, as a container runtime does.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that cannot go on ends here")]

#[path = "image/container.rs"]
mod container;
#[path = "image/containerd.rs"]
mod containerd;
#[path = "image/manifests.rs"]
mod manifests;
#[path = "image/node.rs"]
mod node;
#[path = "image/readers.rs"]
mod readers;
#[path = "image/roles.rs"]
mod roles;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// A machine under load is slow, not wrong.
const PATIENCE: Duration = Duration::from_secs(60);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The image of the build.
fn image() -> PathBuf {
    let folder = std::env::var_os("ZONEWARD_DIST").filter(|folder| !folder.is_empty());
    let folder = folder.expect("ZONEWARD_DIST: run `cargo xtask test --extended --only packages`");
    Path::new(&folder).join(dist::image::file_name(env!("CARGO_PKG_VERSION")))
}

/// A folder of its own for each test, removed at the end. Its path is short, since sockets are in it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("zoneward-image-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn folder(&self, name: &str) -> PathBuf {
        fs::create_dir_all(self.path(name)).unwrap();
        self.path(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn text(output: &Output) -> String {
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{said}{errors}")
}

/// Runs to the end, which must be a success; what it wrote to standard output.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{what} did not come");
        std::thread::sleep(Duration::from_millis(50));
    }
}
