//! Programs of the distribution, run to their end.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs a program and gives what it printed; `None` if it is not installed.
pub(in crate::commands) fn run(program: &str, words: &[&str], input: &str) -> Result<Option<String>> {
    // Where distributions keep them, and where users without root do not look.
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let spawned = Command::new(program)
        .args(words)
        .env("PATH", path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("starting {program}")),
    };
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends without reading tells why on its own.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().with_context(|| format!("waiting for {program}"))?;
    if !output.status.success() {
        bail!("{program} {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()))
}
