//! `zoneward demo exec`: runs a command in the network namespace of a node or pod.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, setns};
use serde_json::Value;

use super::demo_cluster::inner_kubeconfig;

/// Enters the namespace and replaces this process with the command. The process must be single-threaded.
pub fn run(folder: &Path, target: &str, command: &[String]) -> Result<bool> {
    check_owner(folder)?;
    if !is_running(folder) {
        bail!(not_running(folder));
    }
    let state = state(folder)?;
    let pid = state["pid"].as_u64().context("namespaces.json has no pid")?;
    let Some(thread) = state["threads"][target].as_i64() else {
        let known = state["threads"].as_object().map(|threads| threads.keys().cloned().collect::<Vec<_>>());
        bail!("there is no node or pod {target}; there are {}", known.unwrap_or_default().join(", "));
    };
    let enter = |name: &str, kind: CloneFlags| -> Result<()> {
        let path = format!("/proc/{pid}/task/{thread}/ns/{name}");
        let file = File::open(&path).with_context(|| path.clone())?;
        setns(file, kind).with_context(|| format!("entering {path}"))
    };
    // As root, the demo may run in the same user namespace, which cannot be entered again.
    let own_user = std::fs::read_link("/proc/self/ns/user").ok();
    if std::fs::read_link(format!("/proc/{pid}/ns/user")).ok() != own_user {
        enter("user", CloneFlags::CLONE_NEWUSER)?;
    }
    enter("net", CloneFlags::CLONE_NEWNET)?;
    let (program, words) = command.split_first().context("no command given")?;
    let mut command = Command::new(program);
    command.args(words).env("PATH", search_path()).env("KUBECONFIG", inner_kubeconfig(folder));
    if let Some(node) = state["nodes"][target].as_str() {
        command.env("NODE_NAME", node);
        if node != target {
            command.env("POD_NAME", target);
        }
    }
    Err(command.exec()).with_context(|| format!("running {program}"))
}

/// The directory of this program first, so that `zoneward` is this one; sbin last, where Debian has nft and ip.
fn search_path() -> OsString {
    let own = std::env::current_exe().ok().and_then(|path| path.parent().map(Path::to_owned));
    let given = std::env::var_os("PATH").unwrap_or_default();
    let last = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let all = own.into_iter().chain(std::env::split_paths(&given)).chain(last);
    std::env::join_paths(all).unwrap_or(given)
}

pub fn not_running(folder: &Path) -> String {
    format!("no demo is running in {}: start one with zoneward demo --keep", folder.display())
}

/// Whether the demo of this data directory is running.
pub fn is_running(folder: &Path) -> bool {
    let pid = state(folder).ok().and_then(|state| state["pid"].as_u64());
    pid.is_some_and(|pid| Path::new(&format!("/proc/{pid}/ns/net")).exists())
}

/// The directory is trusted (processes to enter, a kubeconfig), so only this user may write to it.
pub fn check_owner(folder: &Path) -> Result<()> {
    let found = match std::fs::symlink_metadata(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        found => found.with_context(|| format!("{}", folder.display()))?,
    };
    let is_own = found.uid() == nix::unistd::Uid::effective().as_raw();
    let writable_by_all = found.mode() & 0o002 != 0;
    if !found.is_dir() || !is_own || writable_by_all {
        bail!(
            "{}: not a directory that only you can write to; remove it, or use another with --data-dir",
            folder.display()
        );
    }
    Ok(())
}

fn state(folder: &Path) -> Result<Value> {
    let path = folder.join("namespaces.json");
    let text = std::fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_directory_that_others_can_write_to_is_rejected() {
        let folder = std::env::temp_dir().join(format!("zoneward-demo-owner-{}", std::process::id()));
        assert!(check_owner(&folder).is_ok(), "a missing directory will be created");
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        assert!(check_owner(&folder).is_ok());
        std::fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        assert!(check_owner(&folder).is_err());
        std::fs::remove_dir(&folder).unwrap();
        std::os::unix::fs::symlink("/tmp", &folder).unwrap();
        assert!(check_owner(&folder).is_err(), "a link may lead to the directory of another user");
        std::fs::remove_file(&folder).unwrap();
    }
}
