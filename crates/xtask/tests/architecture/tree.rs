//! The files of the repository, for tests that hold them to rules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).expect("crates/xtask lies two levels below the root").to_path_buf()
}

pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

pub(crate) fn assert_none(violations: Vec<String>) {
    assert!(violations.is_empty(), "\n{}\n", violations.join("\n"));
}

/// The crates that exist, by folder.
pub(crate) fn crates() -> BTreeSet<String> {
    let folders = fs::read_dir(root().join("crates")).expect("crates/ can be read");
    let with_manifest = folders.flatten().filter(|folder| folder.path().join("Cargo.toml").is_file());
    with_manifest.map(|folder| folder.file_name().to_string_lossy().into_owned()).collect()
}

/// Every Rust file below crates/*/src, by its path from the root.
pub(crate) fn sources() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for name in crates() {
        collect_sources(&format!("crates/{name}/src"), &mut found);
    }
    found
}

fn collect_sources(folder: &str, found: &mut BTreeMap<String, String>) {
    let Ok(entries) = fs::read_dir(root().join(folder)) else { return };
    for entry in entries.flatten() {
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            collect_sources(&path, found);
        } else if path.ends_with(".rs") {
            let text = read(&path);
            found.insert(path, text);
        }
    }
}

pub(crate) fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/")
}
