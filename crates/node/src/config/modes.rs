//! Proxy modes, and how nftables differs from the mode that kube-proxy would run where none is set.

use model::forward::ForwardingMode;
use model::{Service, Snapshot};

use super::Configuration;

/// The configured mode. `Default` runs nftables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Nftables,
    /// Not set: kube-proxy would run iptables.
    Default,
    Iptables,
    Ipvs,
}

impl Mode {
    /// The value in the configuration; kube-proxy's default where it is not set.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Default | Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
        }
    }

    /// The mode that runs.
    pub fn forwarding(self) -> ForwardingMode {
        match self {
            Self::Nftables | Self::Default => ForwardingMode::Nftables,
            Self::Iptables => ForwardingMode::Iptables,
            Self::Ipvs => ForwardingMode::Ipvs,
        }
    }
}

/// Parses a mode.
pub fn mode(text: &str, strict: bool) -> Result<Mode, String> {
    match text {
        "nftables" => Ok(Mode::Nftables),
        "iptables" => Ok(Mode::Iptables),
        "ipvs" => Ok(Mode::Ipvs),
        "" if strict => Err(
            "mode: none is set, kube-proxy would run iptables, and --strict-mode forbids running nftables instead; set mode to nftables or iptables"
                .to_owned(),
        ),
        "" => Ok(Mode::Default),
        "kernelspace" | "winkernel" => Err(format!(
            "mode: {text} is for Windows nodes, which the node proxy does not run on; `zoneward plan node` and `zoneward trace packet` with --proxy-mode kernelspace show what such a node would get; see docs/design/windows.md"
        )),
        other => Err(format!("mode: {other:?} is not nftables, iptables or ipvs")),
    }
}

/// Most Services that a line names.
const NAMED: usize = 5;

/// How nftables differs from kube-proxy's default mode, iptables, for the Services of this node.
pub fn differences(config: &Configuration, snapshot: &Snapshot) -> Vec<String> {
    let mut lines = Vec::new();
    let of = |wanted: &dyn Fn(&Service) -> bool| {
        let names = snapshot.services().map(|(service, _)| service).filter(|s| wanted(s));
        names.map(|s| s.key.to_string()).collect::<Vec<String>>()
    };
    let mut say = |what: &str, services: Vec<String>| {
        if !services.is_empty() {
            lines.push(format!("{what}: {}", listed(&services)));
        }
    };
    let has_node_port = |s: &Service| s.ports.iter().any(|port| port.node_port.is_some());
    let has_ranges = |s: &Service| !s.source_ranges.is_empty();
    if config.iptables.localhost_node_ports != Some(false) {
        say("node ports are not served on 127.0.0.1", of(&has_node_port));
    }
    say(
        "no rule lets forwarded node port traffic and health check ports through a local firewall; open them there",
        of(&has_node_port),
    );
    say(
        "clients outside of loadBalancerSourceRanges are dropped, not refused, while there is no endpoint",
        of(&has_ranges),
    );
    if !config.conntrack.tcp_be_liberal {
        lines.push("packets that belong to no connection are not dropped; on kernels before 6.1 set conntrack.tcpBeLiberal".to_owned());
    }
    lines.push("ports that a Service does not have are refused on its cluster IP, and unassigned addresses of ServiceCIDRs are dropped".to_owned());
    lines
}

fn listed(services: &[String]) -> String {
    let named = services.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match services.len().checked_sub(NAMED) {
        Some(more @ 1..) => format!("{named} and {more} more"),
        _ => named,
    }
}
