//! `cargo xtask dist`: runs crate dist, which needs libraries that xtask does without.

use std::path::Path;

use crate::{Stop, shell};

/// Passes the words on; crate dist says itself what is wrong with them.
pub(crate) fn run(words: &[String]) -> Result<(), Stop> {
    let mut dist = shell::cargo(&["run", "--quiet", "--package", "dist", "--"]);
    // The target directory as xtask has it, from wherever the command was typed.
    dist.args(words).env("CARGO_TARGET_DIR", shell::target_dir());
    let status = dist
        .status()
        .map_err(|error| Stop::Failed(format!("failed to run cargo ({error}): is it on PATH?")))?;
    match status.code() {
        Some(2) => Err(Stop::Usage("dist: usage error, see above".to_owned())),
        _ => shell::check(status, "dist", "its message is above"),
    }
}

/// Packages of profile `quick` in a folder, for their tests.
pub(crate) fn quick(out: &Path) -> Result<(), Stop> {
    run(&["--profile".to_owned(), "quick".to_owned(), "--out".to_owned(), out.display().to_string()])
}
