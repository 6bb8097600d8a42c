//! `zoneward demo exec`: a command in the namespace of a node or pod.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, setns};
use serde_json::Value;

/// Replaces this process by the command, there. The process must have one thread only.
pub fn run(folder: &Path, place: &str, command: &[String]) -> Result<bool> {
    let places = places(folder).with_context(|| {
        format!(
            "no demo keeps running with its data in {}: start one with zoneward demo --keep",
            folder.display()
        )
    })?;
    let pid = places["pid"].as_u64().context("places.json names no process")?;
    let Some(thread) = places["threads"][place].as_i64() else {
        let known = places["threads"].as_object().map(|threads| threads.keys().cloned().collect::<Vec<_>>());
        bail!("there is no {place}; there are {}", known.unwrap_or_default().join(", "));
    };
    let enter = |name: &str, kind: CloneFlags| -> Result<()> {
        let path = format!("/proc/{pid}/task/{thread}/ns/{name}");
        let file = File::open(&path).with_context(|| path.clone())?;
        setns(file, kind).with_context(|| format!("entering {path}"))
    };
    // Root may be in the same user namespace as the stage, and one cannot enter the own one.
    let own_user = std::fs::read_link("/proc/self/ns/user").ok();
    if std::fs::read_link(format!("/proc/{pid}/ns/user")).ok() != own_user {
        enter("user", CloneFlags::CLONE_NEWUSER)?;
    }
    enter("net", CloneFlags::CLONE_NEWNET)?;
    let (program, words) = command.split_first().context("a command is needed")?;
    // Debian keeps nft and ip where users without root do not look.
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let error = Command::new(program).args(words).env("PATH", path).exec();
    Err(error).with_context(|| format!("running {program}"))
}

/// Whether the demo that wrote the folder is alive.
pub fn is_running(folder: &Path) -> bool {
    let pid = places(folder).ok().and_then(|places| places["pid"].as_u64());
    pid.is_some_and(|pid| Path::new(&format!("/proc/{pid}/ns/net")).exists())
}

fn places(folder: &Path) -> Result<Value> {
    let path = folder.join("places.json");
    let text = std::fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{}", path.display()))
}
