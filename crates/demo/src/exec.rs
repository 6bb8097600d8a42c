//! `zoneward demo exec`: runs a command in the network namespace of a node or pod.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, setns};

use super::data_dir;
use super::demo_cluster::inner_kubeconfig;

/// Enters a namespace of the demo in this data directory and replaces this process with the command. The process must be single-threaded.
pub(crate) fn run(folder: &Path, target: &str, command: &[String]) -> Result<bool> {
    let state = data_dir::state(folder)?;
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
    // kubectl remembers what an API serves by its address, which all demos share.
    command.env("KUBECACHEDIR", folder.join("kubectl-cache"));
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
