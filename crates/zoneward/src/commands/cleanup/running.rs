//! Node proxies that run in this network namespace: they would restore their rules.

use std::fs;
use std::path::{Path, PathBuf};

/// A running node proxy, and how to stop it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::commands) struct RunningProxy {
    /// `zoneward node` or `kube-proxy`.
    program: &'static str,
    process: u32,
    advice: String,
}

impl RunningProxy {
    pub(in crate::commands) fn program(&self) -> &'static str {
        self.program
    }

    pub(in crate::commands) fn process(&self) -> u32 {
        self.process
    }

    pub(in crate::commands) fn is_zoneward(&self) -> bool {
        self.program != KUBE_PROXY
    }

    /// A command that stops it on this node.
    pub(in crate::commands) fn command(&self) -> String {
        match self.advice.split('`').rfind(|part| part.starts_with("systemctl") || part.starts_with("kill")) {
            Some(command) => format!("sudo {command}"),
            None => "kubectl -n kube-system patch daemonset kube-proxy --type merge -p \
                     '{\"spec\":{\"template\":{\"spec\":{\"nodeSelector\":{\"zoneward.dev/proxy\":\"kube-proxy\"}}}}}'"
                .to_owned(),
        }
    }
}

/// A process of another program that forwards Services, or may.
pub(in crate::commands) struct OtherProxy {
    pub(in crate::commands) program: &'static str,
    pub(in crate::commands) process: u32,
    /// Whether its flags say that it forwards Services.
    pub(in crate::commands) conflicts: bool,
    pub(in crate::commands) reason: &'static str,
    pub(in crate::commands) fix: &'static str,
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

fn namespace(proc: &Path, process: &str) -> Option<PathBuf> {
    fs::read_link(proc.join(process).join("ns/net")).ok()
}

/// Whether a process is in the network namespace of this one.
fn is_here(proc: &Path, process: u32) -> bool {
    let own = namespace(proc, "self");
    own.is_some() && namespace(proc, &process.to_string()) == own
}

/// All other processes, by number.
fn processes(proc: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(proc) else { return Vec::new() };
    let mut processes: Vec<u32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    processes.sort_unstable();
    processes.retain(|process| *process != std::process::id());
    processes
}

/// Whether a daemon of ours runs in this network namespace.
pub(in crate::commands) fn zoneward_daemons(proc: &Path) -> bool {
    let daemons = ["node", "controller", "up", "mesh"];
    processes(proc).into_iter().any(|process| {
        let words = words(proc, process);
        daemons.iter().any(|command| is_zoneward(&words, command)) && is_here(proc, process)
    })
}

/// Command lines of our processes on this machine, in any network namespace.
pub(in crate::commands) fn zoneward_command_lines(proc: &Path) -> Vec<(u32, Vec<String>)> {
    let all = processes(proc).into_iter().map(|process| (process, words(proc, process)));
    all.filter(|(_, words)| file_name(words).is_some_and(|name| name.starts_with("zoneward"))).collect()
}

/// Processes of programs other than kube-proxy that forward Services in this network namespace.
pub(in crate::commands) fn other_proxies(proc: &Path) -> Vec<OtherProxy> {
    let found = processes(proc).into_iter().filter_map(|process| {
        let (program, conflicts, reason, fix) = other_program(&words(proc, process))?;
        is_here(proc, process).then_some(OtherProxy { program, process, conflicts, reason, fix })
    });
    found.collect()
}

/// The program of a command line, whether it forwards Services, why, and how to end that.
fn other_program(words: &[String]) -> Option<(&'static str, bool, &'static str, &'static str)> {
    let has = |flags: &[&str]| words.iter().any(|word| flags.contains(&word.as_str()));
    match file_name(words)? {
        "kube-router" if !has(&["--run-service-proxy=false"]) => Some((
            "kube-router",
            true,
            "it forwards Services unless --run-service-proxy=false",
            "kubectl -n kube-system edit daemonset kube-router",
        )),
        "cilium-agent" => {
            let on = ["--kube-proxy-replacement=true", "--kube-proxy-replacement=strict"];
            let reason = match has(&on) {
                true => "it replaces kube-proxy",
                false => "it forwards Services if its kube-proxy-replacement is true",
            };
            let fix = "helm upgrade cilium cilium/cilium -n kube-system --reuse-values --set kubeProxyReplacement=false";
            Some(("cilium-agent", has(&on), reason, fix))
        }
        "k3s"
            if has(&["server", "agent"]) && !has(&["--disable-kube-proxy", "--disable-kube-proxy=true"]) =>
        {
            let fix = "echo 'disable-kube-proxy: true' | sudo tee -a /etc/rancher/k3s/config.yaml && sudo systemctl restart k3s";
            Some(("k3s", false, "it runs kube-proxy inside of itself unless --disable-kube-proxy", fix))
        }
        _ => None,
    }
}

/// The node proxies that `proc` lists in the network namespace of this process. kube-proxy is left out if its rules are.
pub(in crate::commands) fn find(proc: &Path, only_zoneward: bool) -> Vec<RunningProxy> {
    let proxy = |process: u32| {
        let program = proxy_program(&words(proc, process))?;
        if only_zoneward && program == KUBE_PROXY || !is_here(proc, process) {
            return None;
        }
        let cgroup = fs::read_to_string(proc.join(process.to_string()).join("cgroup")).unwrap_or_default();
        let parent = parent(proc, process);
        let up = parent.filter(|parent| is_zoneward(&words(proc, *parent), "up"));
        Some(RunningProxy { program, process, advice: advice(program, process, &cgroup, up) })
    };
    processes(proc).into_iter().filter_map(proxy).collect()
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
    fn other_proxies_conflict_by_their_flags() {
        let read = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            other_program(&words).map(|(program, conflicts, _, _)| (program, conflicts))
        };
        assert_eq!(read("/usr/local/bin/kube-router --run-router=true"), Some(("kube-router", true)));
        assert_eq!(read("kube-router --run-service-proxy=false"), None);
        assert_eq!(read("cilium-agent --kube-proxy-replacement=true"), Some(("cilium-agent", true)));
        assert_eq!(read("cilium-agent --config-dir=/tmp/x"), Some(("cilium-agent", false)));
        assert_eq!(read("/usr/local/bin/k3s agent"), Some(("k3s", false)));
        assert_eq!(read("/usr/local/bin/k3s agent --disable-kube-proxy"), None);
        assert_eq!(read("k3s kubectl get nodes"), None);
    }

    #[test]
    fn the_command_that_stops_a_proxy_can_be_typed() {
        let proxy =
            |advice: &str| RunningProxy { program: KUBE_PROXY, process: 7, advice: advice.to_owned() };
        assert_eq!(
            proxy("stop it with `systemctl stop kube-proxy`").command(),
            "sudo systemctl stop kube-proxy"
        );
        assert_eq!(proxy("stop `zoneward up`, which started it, with `kill 5`").command(), "sudo kill 5");
        assert!(
            proxy("delete DaemonSet kube-proxy, or exclude this node from it")
                .command()
                .starts_with("kubectl")
        );
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
