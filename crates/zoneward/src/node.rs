//! A node as its proxy would see it: its Node object, a KubeProxyConfiguration, addresses given by hand.

use std::net::IpAddr;

use anyhow::{Context, Result, bail};
use model::{ForwardingTable, Name, Node, Notice, ObjectRef};
use plan::FeatureGates;
use plan::forward::{NodeConfig, ProxySettings, table};
use serde::Deserialize;
use serde_json::Value;

use crate::cli::NodeArgs;
use crate::input::World;

/// The fields of a KubeProxyConfiguration that decide where packets go. Others are another part's business.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Configuration {
    kind: String,
    api_version: String,
    mode: String,
    bind_address: String,
    #[serde(rename = "clusterCIDR")]
    cluster_cidr: String,
    detect_local_mode: String,
    detect_local: DetectLocal,
    node_port_addresses: Option<Vec<String>>,
    nftables: Nftables,
    feature_gates: Option<std::collections::BTreeMap<String, bool>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DetectLocal {
    bridge_interface: String,
    interface_name_prefix: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Nftables {
    masquerade_all: bool,
    masquerade_bit: Option<i64>,
}

/// What a node forwards, with what there is to say about it.
pub struct NodeWorld {
    /// What the node knows of itself.
    pub config: NodeConfig,
    /// What it forwards.
    pub table: ForwardingTable,
    /// What is wrong with the configuration or with Services.
    pub notices: Vec<Notice>,
}

impl NodeWorld {
    /// The node that the arguments name, in the world that was read.
    pub fn new(args: &NodeArgs, world: &World) -> Result<Self> {
        let mut notices = Vec::new();
        let settings = settings(args, &mut notices)?;
        let node = node(args, world, &mut notices);
        let cidrs: Vec<_> = world.snapshot.service_cidrs().flat_map(|c| c.cidrs.iter().copied()).collect();
        let (config, remarks) = NodeConfig::new(&settings, &node, &cidrs, &args.local_addresses);
        notices.extend(remarks);
        let (table, _, remarks) = table(&world.snapshot, &config);
        notices.extend(remarks);
        Ok(Self { config, table, notices })
    }
}

fn settings(args: &NodeArgs, notices: &mut Vec<Notice>) -> Result<ProxySettings> {
    let Some(path) = &args.config else { return Ok(ProxySettings::default()) };
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let value: Value =
        serde_saphyr::from_str(&text).with_context(|| format!("{} is no YAML or JSON", path.display()))?;
    let config: Configuration = serde_json::from_value(value)
        .with_context(|| format!("{} is no KubeProxyConfiguration", path.display()))?;
    if config.kind != "KubeProxyConfiguration" || config.api_version != "kubeproxy.config.k8s.io/v1alpha1" {
        bail!(
            "{}: kind and apiVersion must be KubeProxyConfiguration and kubeproxy.config.k8s.io/v1alpha1, not {:?} and {:?}",
            path.display(),
            config.kind,
            config.api_version
        );
    }
    let mut say = |reason, message| {
        notices.push(Notice::new(ObjectRef::new("KubeProxyConfiguration", "", "config"), reason, message));
    };
    if config.mode != "nftables" {
        say(
            "OtherMode",
            format!("mode: {:?}; the answer is for nftables, its settings are those used", config.mode),
        );
    }
    let mut gates = FeatureGates::default();
    for (name, on) in config.feature_gates.into_iter().flatten() {
        // Kubernetes has many gates; those that decide nothing here are none of ours.
        gates = match format!("{name}={on}").parse::<FeatureGates>() {
            Ok(parsed) => merge(gates, parsed),
            Err(_) => gates,
        };
    }
    Ok(ProxySettings {
        bind_address: config.bind_address,
        cluster_cidr: config.cluster_cidr,
        detect_local_mode: config.detect_local_mode,
        bridge_interface: config.detect_local.bridge_interface,
        interface_name_prefix: config.detect_local.interface_name_prefix,
        node_port_addresses: config.node_port_addresses.unwrap_or_default(),
        masquerade_all: config.nftables.masquerade_all,
        masquerade_bit: config.nftables.masquerade_bit,
        gates,
    })
}

/// All gates are on unless switched off, so what is off in either is off.
fn merge(a: FeatureGates, b: FeatureGates) -> FeatureGates {
    FeatureGates {
        service_traffic_distribution: a.service_traffic_distribution && b.service_traffic_distribution,
        prefer_same_traffic_distribution: a.prefer_same_traffic_distribution
            && b.prefer_same_traffic_distribution,
        topology_aware_hints: a.topology_aware_hints && b.topology_aware_hints,
    }
}

/// The Node object; without one, a node that has only its name and the addresses given by hand.
fn node(args: &NodeArgs, world: &World, notices: &mut Vec<Notice>) -> Node {
    let mut node = world.snapshot.node(&args.node).cloned().unwrap_or_else(|| {
        let message = "no such Node: it counts as one without a zone and without pod ranges, with the addresses of --local-address";
        notices.push(Notice::new(ObjectRef::new("Node", "", &args.node), "NodeUnknown", message));
        unknown(&args.node)
    });
    if node.addresses.is_empty() {
        node.addresses = args.local_addresses.clone().into();
    }
    if node.addresses.is_empty() {
        let message = "no address is known of it, so no packet can be for a node port or from the node itself; give --local-address";
        notices.push(Notice::new(ObjectRef::new("Node", "", &args.node), "NoAddress", message));
    }
    node
}

fn unknown(name: &str) -> Node {
    Node {
        name: Name::new(name),
        zone: None,
        region: None,
        ready: true,
        control_plane: false,
        cpu_millis: None,
        deleting: false,
        to_be_deleted: false,
        addresses: Box::<[IpAddr]>::default(),
        pod_cidrs: Box::default(),
    }
}
