//! Running other programs: where the repository and its target directory are, which cargo to call, and how a
//! failure is put into words. Every command of xtask starts its children here.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use toolbox::Toolbox;

use crate::Stop;

/// The root of the repository, wherever in it the command was typed.
pub(crate) fn root() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    // crates/xtask -> crates -> the root.
    manifest.ancestors().nth(2).map_or_else(|| manifest.clone(), Path::to_path_buf)
}

/// Where builds go: CARGO_TARGET_DIR if set (made absolute, since children run from the root), else `target`.
pub(crate) fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR").filter(|dir| !dir.is_empty()) {
        Some(dir) => std::path::absolute(&dir).unwrap_or_else(|_| PathBuf::from(dir)),
        None => root().join("target"),
    }
}

/// The tools that xtask installs.
pub(crate) fn tools() -> Toolbox {
    Toolbox::below(&target_dir())
}

/// Every file of that name on PATH, and where Debian keeps network tools, in order.
pub(crate) fn on_path(name: &str) -> impl Iterator<Item = PathBuf> {
    let mut places: Vec<PathBuf> = std::env::var_os("PATH").iter().flat_map(std::env::split_paths).collect();
    places.extend(["/usr/bin", "/usr/sbin", "/sbin"].map(PathBuf::from));
    let name = name.to_string();
    places.into_iter().map(move |place| place.join(&name)).filter(|file| file.is_file())
}

/// A program that will run from the root, with our tools first on its PATH.
pub(crate) fn program(name: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(name);
    command.current_dir(root()).env("PATH", tools().search_path()).env("CARGO_TARGET_DIR", target_dir());
    command.stdin(Stdio::null());
    command
}

/// The cargo that runs us, else the one on PATH.
pub(crate) fn cargo(words: &[&str]) -> Command {
    let mut command = program(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(words);
    command
}

/// The test runner itself: `cargo nextest` would search CARGO_HOME and PATH for it.
pub(crate) fn nextest(words: &[&str]) -> Command {
    let mut command = program(tools().bin().join("cargo-nextest"));
    command.arg("nextest").args(words);
    command
}

/// Runs to the end with output passed through; anything but success is a `Stop` that ends with the advice.
pub(crate) fn run(command: &mut Command, what: &str, advice: &str) -> Result<(), Stop> {
    let status = command.status().map_err(|error| cannot_start(command, &error))?;
    check(status, what, advice)
}

/// Runs to the end and keeps stdout; stderr is passed through.
pub(crate) fn capture(command: &mut Command, what: &str, advice: &str) -> Result<String, Stop> {
    let output = command
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| cannot_start(command, &error))?;
    check(output.status, what, advice)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Passes stderr through line by line and hands each line to `see` as well.
pub(crate) fn run_watching_stderr(
    command: &mut Command,
    mut see: impl FnMut(&str),
) -> Result<ExitStatus, Stop> {
    run_filtering_stderr(command, |line| {
        see(line);
        true
    })
}

/// Hands each line of stderr to `passes` and passes those through for which it is true.
pub(crate) fn run_filtering_stderr(
    command: &mut Command,
    mut passes: impl FnMut(&str) -> bool,
) -> Result<ExitStatus, Stop> {
    let mut child = command.stderr(Stdio::piped()).spawn().map_err(|error| cannot_start(command, &error))?;
    if let Some(pipe) = child.stderr.take() {
        for line in BufReader::new(pipe).split(b'\n') {
            let Ok(line) = line else { break };
            if passes(&String::from_utf8_lossy(&line)) {
                let _ = std::io::stderr().write_all(&[&line[..], b"\n"].concat());
            }
        }
    }
    child.wait().map_err(|error| cannot_start(command, &error))
}

/// Turns an exit status into success or a sentence.
pub(crate) fn check(status: ExitStatus, what: &str, advice: &str) -> Result<(), Stop> {
    if status.success() {
        return Ok(());
    }
    let how = match status.code() {
        Some(code) => format!("exit code {code}"),
        None => "ended by a signal".to_string(),
    };
    Err(Stop::Failed(format!("{what} failed ({how}): {advice}")))
}

fn cannot_start(command: &Command, error: &std::io::Error) -> Stop {
    let name = command.get_program().to_string_lossy().into_owned();
    Stop::Failed(format!("{name} could not be run ({error}): is it installed and on PATH?"))
}

/// A command as a user would type it: words with anything special in them are quoted.
pub(crate) fn typed(program: &str, words: &[&str]) -> String {
    let mut line = program.to_string();
    for word in words {
        line.push(' ');
        line.push_str(&quoted(word));
    }
    line
}

fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=:,@%+".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_string();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_shown_as_a_user_would_type_them() {
        let words = ["trace", "packet", "--packet", "tcp 10.0.0.2:40000 -> 172.30.0.41:80", "-o", "json"];
        assert_eq!(
            typed("zoneward", &words),
            "zoneward trace packet --packet 'tcp 10.0.0.2:40000 -> 172.30.0.41:80' -o json"
        );
        assert_eq!(typed("zoneward", &["", "it's"]), r"zoneward '' 'it'\''s'");
    }

    #[test]
    fn the_root_holds_the_workspace() {
        assert!(root().join("Cargo.lock").is_file());
    }

    #[test]
    fn failure_says_what_and_what_to_do() {
        let failed = run(&mut program("false"), "the step", "try again");
        assert_eq!(failed, Err(Stop::Failed("the step failed (exit code 1): try again".to_string())));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let Err(Stop::Failed(why)) = run(&mut program("no-such-program-here"), "it", "") else {
            panic!("should fail")
        };
        assert!(why.contains("no-such-program-here"), "{why}");
    }

    #[test]
    fn stderr_is_seen_line_by_line() {
        let mut seen = Vec::new();
        let mut command = program("sh");
        command.args(["-c", "echo one >&2; echo two >&2; exit 3"]);
        let status = run_watching_stderr(&mut command, |line| seen.push(line.to_string()));
        assert_eq!(status.expect("sh runs").code(), Some(3));
        assert_eq!(seen, ["one", "two"]);
    }
}
