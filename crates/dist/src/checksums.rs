//! SHA256SUMS, as `sha256sum --check` reads it, and its signature.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use ring::digest::{SHA256, digest};

/// The file that covers all others of a folder, and that is signed.
pub const CHECKSUMS: &str = "SHA256SUMS";

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes the checksums of these files of the folder. Signatures of an earlier list are removed.
pub fn write(folder: &Path, names: &[String]) -> anyhow::Result<PathBuf> {
    for signature in signatures(folder)? {
        std::fs::remove_file(&signature).with_context(|| format!("removing {}", signature.display()))?;
    }
    let mut names: Vec<&String> = names.iter().collect();
    names.sort();
    let mut text = String::new();
    for name in names {
        let bytes = std::fs::read(folder.join(name)).with_context(|| format!("reading {name}"))?;
        text.push_str(&format!("{}  {name}\n", hexadecimal(digest(&SHA256, &bytes).as_ref())));
    }
    let file = folder.join(CHECKSUMS);
    std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
    Ok(file)
}

/// Runs `COMMAND SHA256SUMS` by the shell in the folder; it must leave a file `SHA256SUMS.*` there.
pub fn sign(folder: &Path, command: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("{command} {CHECKSUMS}")).current_dir(folder);
    let status = shell.status().context("failed to run sh")?;
    ensure!(status.success(), "--sign-with: `{command} {CHECKSUMS}` failed ({status})");
    let signatures = signatures(folder)?;
    ensure!(
        !signatures.is_empty(),
        "--sign-with: `{command} {CHECKSUMS}` left no file {CHECKSUMS}.* in {}: let it write a detached signature there",
        folder.display()
    );
    Ok(signatures)
}

fn signatures(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let files = entries.flatten().map(|entry| entry.path());
    let is_signature = |file: &PathBuf| {
        file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&format!("{CHECKSUMS}.")))
    };
    let mut signatures: Vec<PathBuf> = files.filter(is_signature).collect();
    signatures.sort();
    Ok(signatures)
}
