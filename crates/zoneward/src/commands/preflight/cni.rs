//! The CNI plugin of this machine: which one runs, and whether it can work beside the node proxy.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Check, read_trimmed};

const AREA: &str = "cni";
const FOLDER: &str = "/etc/cni/net.d";
const BRIDGE_SWITCH: &str = "/proc/sys/net/bridge/bridge-nf-call-iptables";

pub(super) fn check(is_expected: bool) -> Vec<Check> {
    let Some((file, types)) = configured(Path::new(FOLDER)) else {
        let message = format!("no configuration in {FOLDER}");
        return match is_expected {
            true => vec![
                Check::warn(AREA, "plugin", message + ": pods of this node get no network from Kubernetes")
                    .fix(format!("ls -l {FOLDER}")),
            ],
            false => vec![Check::ok(AREA, "plugin", message)],
        };
    };
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut checks = vec![plugin(&name, &types)];
    if types.iter().any(|kind| kind == "bridge") {
        checks.push(bridge(read_trimmed(BRIDGE_SWITCH).as_deref()));
    }
    checks
}

/// The configuration that the container runtime uses, the first by name, and the types of its plugins.
fn configured(folder: &Path) -> Option<(PathBuf, Vec<String>)> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| {
        file.extension().is_some_and(|ending| ["conf", "conflist", "json"].iter().any(|e| ending == *e))
    });
    files.sort();
    files.into_iter().find_map(|file| {
        let text = std::fs::read_to_string(&file).ok()?;
        let config: Value = serde_json::from_str(&text).ok()?;
        Some((file, types(&config)))
    })
}

fn types(config: &Value) -> Vec<String> {
    let list = config["plugins"].as_array();
    let plugins: Vec<&Value> = list.map_or_else(|| vec![config], |list| list.iter().collect());
    plugins.iter().filter_map(|plugin| plugin["type"].as_str()).map(str::to_owned).collect()
}

fn plugin(file: &str, types: &[String]) -> Check {
    let named = format!("{} ({file})", types.join(", "));
    match types.iter().any(|kind| kind == "cilium-cni") {
        // Whether it replaces kube-proxy is in its configuration, which is checked with the proxies and the API.
        true => Check::warn(
            AREA,
            "plugin",
            format!("{named}: works only without its replacement of kube-proxy"),
        )
        .fix(
            "kubectl -n kube-system get configmap cilium-config -o jsonpath='{.data.kube-proxy-replacement}'",
        ),
        false => Check::ok(AREA, "plugin", named),
    }
}

/// Pods on one bridge reach each other through netfilter only with this switch.
fn bridge(held: Option<&str>) -> Check {
    let name = "bridge-nf-call-iptables";
    match held {
        Some("1") => Check::ok(AREA, name, "1"),
        Some(held) => Check::warn(
            AREA,
            name,
            format!("{held}: pods on the same bridge cannot reach each other through a Service"),
        )
        .fix("sudo sysctl -w net.bridge.bridge-nf-call-iptables=1"),
        None => Check::warn(
            AREA,
            name,
            "br_netfilter is not loaded: pods on the same bridge cannot reach each other through a Service",
        )
        .fix("sudo modprobe br_netfilter"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::preflight::CheckStatus;
    use serde_json::json;

    #[test]
    fn plugins_of_lists_and_of_single_configurations_are_found() {
        assert_eq!(types(&json!({"type": "bridge"})), ["bridge"]);
        assert_eq!(
            types(&json!({"plugins": [{"type": "flannel"}, {"type": "portmap"}]})),
            ["flannel", "portmap"]
        );
        assert_eq!(plugin("05-cilium.conflist", &["cilium-cni".to_owned()]).status, CheckStatus::Warn);
    }

    #[test]
    fn a_bridge_without_netfilter_is_a_warning_with_the_command() {
        assert_eq!(bridge(Some("1")).status, CheckStatus::Ok);
        assert_eq!(bridge(None).fix.as_deref(), Some("sudo modprobe br_netfilter"));
    }
}
