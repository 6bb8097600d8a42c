//! The feature gates of a node proxy: those with an effect, those without, and those that are refused.

use std::collections::BTreeMap;

use model::suggestion;

use super::FeatureGates;

/// The effect of a KubeProxyConfiguration's featureGates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeGates {
    /// For endpoint selection.
    pub select: FeatureGates,
    /// Whether `spec.externalIPs` are served (AllowServiceExternalIPs).
    pub external_ips: bool,
    /// Whether addresses of ServiceCIDRs without a Service are dropped (MultiCIDRServiceAllocator).
    pub service_cidrs: bool,
    /// Whether a listener serves TCP node ports on loopback (KubeProxyNFTablesLocalhostNodePorts, KEP-6032).
    pub localhost_node_ports: bool,
}

/// Parsed gates with their problems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadGates {
    pub gates: NodeGates,
    /// Gates without effect: the field and why.
    pub remarks: Vec<String>,
    /// Gates for features that do not exist here.
    pub refusals: Vec<String>,
}

/// Gates with an effect, or that are refused.
const KNOWN: &[&str] = &[
    "AllowServiceExternalIPs",
    "KubeProxyNFTablesLocalhostNodePorts",
    "MultiCIDRServiceAllocator",
    "PreferSameTrafficDistribution",
    "ServiceTrafficDistribution",
    "TopologyAwareHints",
    "WinDSR",
    "WinOverlay",
];

/// Features that graduated: always on.
const ALWAYS_ON: &[&str] = &[
    "EndpointSliceProxying",
    "IPv6DualStack",
    "KubeProxyDrainingTerminatingNodes",
    "LoadBalancerIPMode",
    "MinimizeIPTablesRestore",
    "NFTablesProxyMode",
    "ProxyTerminatingEndpoints",
    "ServiceInternalTrafficPolicy",
];

/// Gates of kube-proxy for other modes, other programs, or logging.
const NOT_OURS: &[&str] = &[
    "AllAlpha",
    "AllBeta",
    "CloudDualStackNodeIPs",
    "ComponentFlagz",
    "ComponentSLIs",
    "ComponentStatusz",
    "ContextualLogging",
    "InOrderInformers",
    "KubeProxyIPVS",
    "LoggingAlphaOptions",
    "LoggingBetaOptions",
    "WatchListClient",
];

impl NodeGates {
    /// Those of kube-proxy without featureGates.
    pub const WITHOUT_FLAGS: Self = Self {
        select: FeatureGates::ALL,
        external_ips: true,
        service_cidrs: true,
        localhost_node_ports: false,
    };

    /// Every gate without effect is reported.
    pub fn read(listed: &BTreeMap<String, bool>) -> ReadGates {
        let mut read = ReadGates::new();
        for (name, on) in listed {
            read.add(name, *on);
        }
        read
    }
}

impl ReadGates {
    fn new() -> Self {
        Self { gates: NodeGates::WITHOUT_FLAGS, remarks: Vec::new(), refusals: Vec::new() }
    }

    fn add(&mut self, name: &str, on: bool) {
        let gates = &mut self.gates;
        match (name, on) {
            ("ServiceTrafficDistribution", on) => gates.select.service_traffic_distribution = on,
            ("PreferSameTrafficDistribution", on) => gates.select.prefer_same_traffic_distribution = on,
            ("TopologyAwareHints", on) => gates.select.topology_aware_hints = on,
            ("AllowServiceExternalIPs", on) => gates.external_ips = on,
            ("MultiCIDRServiceAllocator", on) => gates.service_cidrs = on,
            ("KubeProxyNFTablesLocalhostNodePorts", on) => gates.localhost_node_ports = on,
            ("WinDSR" | "WinOverlay", true) => self
                .refusals
                .push(format!("featureGates.{name}: only for Windows nodes, which are not supported")),
            ("WinDSR" | "WinOverlay", false) => {}
            (known, true) if ALWAYS_ON.contains(&known) => {}
            (known, false) if ALWAYS_ON.contains(&known) => {
                self.remarks.push(format!(
                    "featureGates.{name}: false has no effect, the feature is always on; remove the gate"
                ));
            }
            (known, _) if NOT_OURS.contains(&known) => {
                self.remarks.push(format!("featureGates.{name} has no effect in the node proxy; remove it"));
            }
            _ => {
                let known = KNOWN.iter().chain(ALWAYS_ON).chain(NOT_OURS).copied();
                let near = suggestion::did_you_mean(name, known);
                self.remarks.push(format!("featureGates.{name}: unknown feature gate{near}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> ReadGates {
        NodeGates::read(&super::super::parse_list(text).unwrap())
    }

    #[test]
    fn a_gate_without_an_effect_is_never_silent() {
        assert_eq!(read("ProxyTerminatingEndpoints=true"), ReadGates::new());
        for without_effect in ["ProxyTerminatingEndpoints=false", "ContextualLogging=true", "Nonsense=true"] {
            let read = read(without_effect);
            assert_eq!((read.remarks.len(), read.gates), (1, NodeGates::WITHOUT_FLAGS), "{without_effect}");
        }
    }

    #[test]
    fn gates_that_decide_something_are_taken_without_a_word() {
        let read = read("AllowServiceExternalIPs=false,MultiCIDRServiceAllocator=false,TopologyAwareHints=F");
        assert!(read.remarks.is_empty() && read.refusals.is_empty(), "{read:?}");
        assert!(!read.gates.external_ips && !read.gates.service_cidrs);
        assert!(!read.gates.select.topology_aware_hints && read.gates.select.service_traffic_distribution);
    }
}
