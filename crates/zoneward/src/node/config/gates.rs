//! Feature gates: those that decide something here, those that decide nothing any more, and those that are refused.

use std::collections::BTreeMap;

use model::near;
use plan::FeatureGates;

/// What the gates of a configuration come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gates {
    /// Those that the plan knows.
    pub plan: FeatureGates,
    /// Whether `spec.externalIPs` are served (AllowServiceExternalIPs).
    pub external_ips: bool,
    /// Whether addresses of ServiceCIDRs without a Service are dropped (MultiCIDRServiceAllocator).
    pub service_cidrs: bool,
}

impl Default for Gates {
    fn default() -> Self {
        Self { plan: FeatureGates::default(), external_ips: true, service_cidrs: true }
    }
}

/// Gates that decide something here, or are refused.
const KNOWN: &[&str] = &[
    "AllowServiceExternalIPs",
    "KubeProxyNFTablesLocalhostNodePorts",
    "MultiCIDRServiceAllocator",
    "PreferSameTrafficDistribution",
    "ServiceTrafficDistribution",
    "TopologyAwareHints",
];

/// Gates of kube-proxy that are part of it by now, are about other modes, or about how it logs.
const DECIDE_NOTHING: &[&str] = &[
    "AllAlpha",
    "AllBeta",
    "CloudDualStackNodeIPs",
    "ComponentFlagz",
    "ComponentSLIs",
    "ComponentStatusz",
    "ContextualLogging",
    "EndpointSliceProxying",
    "InOrderInformers",
    "IPv6DualStack",
    "KubeProxyDrainingTerminatingNodes",
    "KubeProxyIPVS",
    "LoadBalancerIPMode",
    "LoggingAlphaOptions",
    "LoggingBetaOptions",
    "MinimizeIPTablesRestore",
    "NFTablesProxyMode",
    "ProxyTerminatingEndpoints",
    "ServiceInternalTrafficPolicy",
    "WatchListClient",
];

/// Reads gates. The second list says what has no effect, the third what is refused.
pub fn read(listed: &BTreeMap<String, bool>) -> (Gates, Vec<String>, Vec<String>) {
    let (mut gates, mut remarks, mut refusals) = (Gates::default(), Vec::new(), Vec::new());
    for (name, on) in listed {
        match (name.as_str(), *on) {
            ("ServiceTrafficDistribution", on) => gates.plan.service_traffic_distribution = on,
            ("PreferSameTrafficDistribution", on) => gates.plan.prefer_same_traffic_distribution = on,
            ("TopologyAwareHints", on) => gates.plan.topology_aware_hints = on,
            ("AllowServiceExternalIPs", on) => gates.external_ips = on,
            ("MultiCIDRServiceAllocator", on) => gates.service_cidrs = on,
            ("KubeProxyNFTablesLocalhostNodePorts", true) => refusals.push(format!(
                "featureGates.{name}: node ports are not served on loopback addresses; take the gate away and connect to another address of the node"
            )),
            ("WinDSR" | "WinOverlay", true) => refusals.push(format!(
                "featureGates.{name}: it is for Windows nodes, which this program does not run on"
            )),
            ("KubeProxyNFTablesLocalhostNodePorts" | "WinDSR" | "WinOverlay", false) => {}
            (known, on) if DECIDE_NOTHING.contains(&known) => remarks.push(format!(
                "featureGates.{name}: {on} has no effect: what the gate is about is fixed, or of another mode"
            )),
            _ => {
                let known = KNOWN.iter().chain(DECIDE_NOTHING).copied();
                let near = near::did_you_mean(name, known);
                remarks.push(format!("featureGates.{name}: the node proxy has no such gate{near}"));
            }
        }
    }
    (gates, remarks, refusals)
}

/// Reads `Name=true,Other=false`.
pub fn parse(text: &str) -> Result<BTreeMap<String, bool>, String> {
    let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    entries
        .map(|entry| {
            let (name, value) = entry
                .split_once('=')
                .ok_or_else(|| format!("{entry:?}: write it as Name=true or Name=false"))?;
            let on = value.trim().to_ascii_lowercase().parse();
            Ok((name.trim().to_owned(), on.map_err(|_| format!("{entry:?}: true or false, not {value:?}"))?))
        })
        .collect()
}
