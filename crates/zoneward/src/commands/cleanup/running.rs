//! Node proxies that run in this network namespace: they would restore their rules.

use std::fs;
use std::path::Path;

/// A running node proxy, and how to stop it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RunningProxy {
    /// `zoneward node` or `kube-proxy`.
    program: &'static str,
    process: u32,
    advice: String,
}

impl std::fmt::Display for RunningProxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let RunningProxy { program, process, advice } = self;
        write!(
            f,
            "{program} runs here as process {process} and restores its rules: {advice}, then run this again"
        )
    }
}

/// The node proxies that `proc` lists in the network namespace of this process. kube-proxy is left out if its rules are.
pub(super) fn find(proc: &Path, only_zoneward: bool) -> Vec<RunningProxy> {
    let namespace = |process: &str| fs::read_link(proc.join(process).join("ns/net")).ok();
    let (Some(own), Ok(entries)) = (namespace("self"), fs::read_dir(proc)) else { return Vec::new() };
    let mut processes: Vec<u32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    processes.sort_unstable();
    let others = processes.into_iter().filter(|process| *process != std::process::id());
    let proxy = |process: u32| {
        let program = proxy_program(&words(proc, process))?;
        if only_zoneward && program == KUBE_PROXY || namespace(&process.to_string())? != own {
            return None;
        }
        let cgroup = fs::read_to_string(proc.join(process.to_string()).join("cgroup")).unwrap_or_default();
        let parent = parent(proc, process);
        let up = parent.filter(|parent| is_zoneward(&words(proc, *parent), "up"));
        Some(RunningProxy { program, process, advice: advice(program, process, &cgroup, up) })
    };
    others.filter_map(proxy).collect()
}

const KUBE_PROXY: &str = "kube-proxy";

fn words(proc: &Path, process: u32) -> Vec<String> {
    let line = fs::read(proc.join(process.to_string()).join("cmdline")).unwrap_or_default();
    let words = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

fn parent(proc: &Path, process: u32) -> Option<u32> {
    let status = fs::read_to_string(proc.join(process.to_string()).join("status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

fn file_name(words: &[String]) -> Option<&str> {
    Path::new(words.first()?).file_name()?.to_str()
}

fn is_zoneward(words: &[String], command: &str) -> bool {
    file_name(words).is_some_and(|name| name.starts_with("zoneward"))
        && words.get(1).is_some_and(|word| word == command)
}

/// The node proxy that a command line starts, if it is one that keeps running.
fn proxy_program(words: &[String]) -> Option<&'static str> {
    let ends = |word: &String| ["--cleanup", "--init-only", "--help", "--version"].contains(&word.as_str());
    if words.iter().any(ends) {
        return None;
    }
    match file_name(words)? {
        KUBE_PROXY => Some(KUBE_PROXY),
        _ => is_zoneward(words, "node").then_some("zoneward node"),
    }
}

/// How to stop a proxy, from its cgroup and from the `zoneward up` that started it.
fn advice(program: &str, process: u32, cgroup: &str, up: Option<u32>) -> String {
    if cgroup.contains("kubepods") {
        let daemon_set = if program == KUBE_PROXY { "kube-proxy" } else { "zoneward-node" };
        return format!("delete DaemonSet {daemon_set}, or exclude this node from it");
    }
    let unit = cgroup.split(['/', '\n']).find_map(|part| part.strip_suffix(".service"));
    if let Some(unit) = unit.filter(|unit| !unit.starts_with("user@")) {
        return format!("stop it with `systemctl stop {unit}`");
    }
    match up {
        Some(up) => format!("stop `zoneward up`, which started it, with `kill {up}`"),
        None => format!("stop it with `kill {process}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(line: &str) -> Option<&'static str> {
        proxy_program(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn only_node_proxies_that_keep_running_count() {
        for line in ["/usr/bin/zoneward node --api-socket x", "./zoneward-0.1.0-linux-amd64 node"] {
            assert_eq!(program(line), Some("zoneward node"), "{line}");
        }
        assert_eq!(program("/usr/local/bin/kube-proxy --config=/x"), Some("kube-proxy"));
        for line in [
            "zoneward node --cleanup",
            "zoneward node --init-only",
            "zoneward up",
            "kube-proxy --cleanup",
            "sh zoneward node",
            "zoneward plan node",
        ] {
            assert_eq!(program(line), None, "{line}");
        }
    }

    #[test]
    fn advice_fits_what_started_the_proxy() {
        let unit = advice("zoneward node", 7, "0::/system.slice/zoneward-node.service\n", None);
        assert_eq!(unit, "stop it with `systemctl stop zoneward-node`");
        let pod = "0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-1.scope\n";
        assert!(advice("kube-proxy", 7, pod, None).contains("DaemonSet kube-proxy"));
        let pod_of_systemd = "0::/system.slice/containerd.service/kubepods-burstable-1:cri-containerd:2\n";
        assert!(advice("zoneward node", 7, pod_of_systemd, None).contains("DaemonSet zoneward-node"));
        let session = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/term.scope\n";
        assert!(advice("zoneward node", 7, session, Some(5)).contains("`kill 5`"));
        assert_eq!(advice("kube-proxy", 7, "", None), "stop it with `kill 7`");
    }
}
