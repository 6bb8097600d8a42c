//! A node for `plan node` and `trace`: the running node proxy of this network namespace, or a node from files, a
//! KubeProxyConfiguration and addresses in flags.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use model::forward::ForwardingMode;
use model::{ForwardingTable, Node, Notice, ObjectKey, ObjectRef};
use plan::feature_gates::FeatureGates;
use plan::forward::{Forwarder, NodeConfig, NodePortRange, ProxySettings};
use plan::subsetting::SliceView;

use super::config::{
    self, Configuration, Mode, file,
    flags::{GateList, parse_gates},
};
use super::kernelspace_preview::{KernelspaceArgs, KernelspaceChoice, KernelspacePreview};
use super::local_addresses;
use super::running_config::{self, RunningConfig};
use cluster::input::{InputArgs, LoadedObjects};

#[derive(Debug, Args)]
pub struct NodeArgs {
    /// Node to evaluate [default with --live: that of the running node proxy]
    #[arg(long, value_name = "NAME", required_unless_present = "live")]
    pub node: Option<String>,
    /// KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1) [default with --live: that of the running node
    /// proxy]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Feature gates, such as PreferSameTrafficDistribution=false; override those of the configuration
    #[arg(long, value_name = "NAME=BOOL,...", value_parser = parse_gates)]
    pub feature_gates: Option<GateList>,
    /// Proxy mode [default: that of the configuration; nftables without one]
    #[arg(long, value_name = "MODE")]
    pub proxy_mode: Option<ProxyMode>,
    /// Node ports and health check ports that the node may serve [default: 1024-65535, or with --live that of the running
    /// node proxy]
    #[arg(long, value_name = "FIRST-LAST")]
    pub service_node_port_range: Option<NodePortRange>,
    /// Only the EndpointSlices that a node with --watch-own-zone receives [default with --live: as the running node proxy]
    #[arg(long)]
    pub watch_own_zone: bool,
    /// Address of the node in addition to those of its Node object; repeatable
    #[arg(long = "local-address", value_name = "IP")]
    pub local_addresses: Vec<IpAddr>,
    #[command(flatten)]
    pub kernelspace: KernelspaceArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProxyMode {
    /// nftables
    Nftables,
    /// iptables
    Iptables,
    /// IPVS, with the scheduler of the configuration
    Ipvs,
    /// Windows: a preview, which the node proxy refuses
    Kernelspace,
}

impl ProxyMode {
    fn as_str(self) -> &'static str {
        match self {
            Self::Nftables => Mode::Nftables.as_str(),
            Self::Iptables => Mode::Iptables.as_str(),
            Self::Ipvs => Mode::Ipvs.as_str(),
            Self::Kernelspace => ForwardingMode::Kernelspace.as_str(),
        }
    }
}

/// A node and its configuration.
pub struct NodeChoice {
    pub name: String,
    settings: ProxySettings,
    /// In mode kernelspace.
    kernelspace: Option<KernelspaceChoice>,
    addresses: Vec<IpAddr>,
    watches_own_zone: bool,
    /// The running node proxy, if it is that of this node.
    running: Option<RunningConfig>,
    /// One line about the configuration, if it is that of the running node proxy.
    source: Option<String>,
    notices: Vec<Notice>,
}

impl NodeChoice {
    /// The node of the arguments. With `live`, the node whose proxy runs in this network namespace with its configuration,
    /// unless an argument overrides it.
    pub fn new(args: &NodeArgs, live: bool) -> Result<Self> {
        let mut notices = Vec::new();
        let running = if live { running(args, running_config::ask(), &mut notices) } else { None };
        let Some(name) = args.node.clone().or_else(|| running.as_ref().map(|r| r.node.clone())) else {
            let why: Vec<&str> = notices.iter().map(|notice| notice.message.as_str()).collect();
            bail!("name the node with --node: {}", why.join("; "));
        };
        let source = running.as_ref().filter(|_| args.config.is_none());
        let source = source.map(|running| source_text(running, args.feature_gates.as_ref()));
        let base = running.as_ref().map(|running| running.configuration.clone());
        let (mut settings, kernelspace) = settings_of_mode(args, base, &mut notices)?;
        if kernelspace.is_some() && live {
            bail!("--live: mode kernelspace is a preview without a running node proxy; leave out --live");
        }
        let in_force = running.as_ref().map(|running| running.node_port_range);
        settings.node_port_range = args.service_node_port_range.or(in_force).unwrap_or_default();
        let mut addresses = args.local_addresses.clone();
        if running.is_some() {
            addresses.extend(local_addresses::local());
        }
        let watches_own_zone =
            args.watch_own_zone || running.as_ref().is_some_and(|running| running.watch_own_zone);
        Ok(Self { name, settings, kernelspace, addresses, watches_own_zone, running, source, notices })
    }

    /// A node with these settings.
    pub fn of(name: &str, settings: ProxySettings, addresses: Vec<IpAddr>) -> Self {
        Self {
            name: name.to_owned(),
            settings,
            kernelspace: None,
            addresses,
            watches_own_zone: false,
            running: None,
            source: None,
            notices: Vec::new(),
        }
    }

    /// Where its objects come from; by default from the API of the running node proxy.
    pub fn input(&self, input: &InputArgs) -> InputArgs {
        let mut input = input.for_node();
        let connection = &input.connection;
        let said = connection.kubeconfig.is_some()
            || connection.context.is_some()
            || connection.api_socket.is_some()
            || !input.files.is_empty();
        let known = self.running.as_ref().and_then(|running| running.connection.as_ref());
        if let (Some(known), false) = (known, said) {
            input.connection = known.clone();
        }
        input
    }

    /// Removes the slices that the node does not receive.
    pub fn apply_view(&self, world: &mut LoadedObjects) {
        apply_view(self.watches_own_zone, &self.name, self.settings.gates.select, world);
    }

    /// The scheduler of mode ipvs.
    pub fn ipvs_scheduler(&self) -> &str {
        &self.settings.ipvs_scheduler
    }

    /// One line about the configuration, if it is that of the running node proxy.
    pub fn source(&self) -> Option<String> {
        self.source.clone()
    }
}

/// The running proxy's configuration, and the gates of the command line over its own.
fn source_text(running: &RunningConfig, over: Option<&GateList>) -> String {
    let list = |gates: &BTreeMap<String, bool>| {
        let gates: Vec<String> = gates.iter().map(|(name, on)| format!("{name}={on}")).collect();
        gates.join(",")
    };
    let configuration = &running.configuration;
    let mut line = format!("Configuration of the running node proxy: node {}", running.node);
    if !configuration.cluster_cidr.is_empty() {
        line += &format!(", clusterCIDR {}", configuration.cluster_cidr);
    }
    if !configuration.feature_gates.is_empty() {
        line += &format!(", featureGates {}", list(&configuration.feature_gates));
    }
    if let Some(over) = over {
        line += &format!("; overridden by --feature-gates {}", list(&over.0));
    }
    line + "\n"
}

/// The running node proxy, unless it is that of another node. One that is not trusted or cannot be read is ignored: any
/// process can bind the socket's name, and must not break the commands.
fn running(
    args: &NodeArgs,
    asked: Result<Option<RunningConfig>>,
    notices: &mut Vec<Notice>,
) -> Option<RunningConfig> {
    let message = match asked {
        Ok(Some(running)) if args.node.as_ref().is_none_or(|name| *name == running.node) => {
            return Some(running);
        }
        Ok(Some(running)) => format!(
            "the node proxy in this network namespace is that of node {}, so its configuration is not used",
            running.node
        ),
        Ok(None) => "no node proxy runs in this network namespace, so defaults and --config apply; run this command on the node".to_owned(),
        Err(error) => format!(
            "the configuration of the node proxy in this network namespace is not used, so defaults and --config apply: {error:#}"
        ),
    };
    let node = ObjectRef::new("Node", "", args.node.as_deref().unwrap_or("(this one)"));
    notices.push(Notice::new(node, "ConfigurationUnknown", message));
    None
}

/// The forwarding table of a node, with warnings.
pub struct NodeWorld {
    pub config: NodeConfig,
    pub table: ForwardingTable,
    /// Warnings about the configuration and Services.
    pub notices: Vec<Notice>,
    /// In mode kernelspace.
    pub kernelspace: Option<KernelspacePreview>,
}

impl NodeWorld {
    /// The node with the objects that were read.
    pub fn new(choice: &NodeChoice, world: &LoadedObjects) -> Result<Self> {
        let mut notices = choice.notices.clone();
        let node = node(choice, world, &mut notices)?;
        let cidrs: Vec<_> = world.snapshot.service_cidrs().flat_map(|c| c.cidrs.iter().copied()).collect();
        let (config, remarks) = NodeConfig::new(&choice.settings, &node, &cidrs, &choice.addresses);
        notices.extend(remarks);
        let (table, remarks) = Forwarder::of(&world.snapshot, config.clone()).into_table();
        notices.extend(remarks);
        let nodes = || world.snapshot.nodes().values();
        let kernelspace =
            choice.kernelspace.as_ref().map(|kernelspace| kernelspace.preview(nodes(), &choice.name, &table));
        Ok(Self { config, table, notices, kernelspace })
    }
}

/// The Node object; without one, a node with only a name and the addresses of the flags.
fn node(choice: &NodeChoice, world: &LoadedObjects, notices: &mut Vec<Notice>) -> Result<Node> {
    let mut node = world.node(&choice.name)?.cloned().unwrap_or_else(|| {
        let message = "the Node is not in the input: it has no zone and no pod CIDRs, and only the addresses of --local-address";
        notices.push(Notice::new(ObjectRef::new("Node", "", &choice.name), "NodeUnknown", message));
        Node::named(choice.name.as_str())
    });
    if node.addresses.is_empty() && choice.running.is_none() {
        node.addresses = choice.addresses.clone().into();
    }
    if node.addresses.is_empty() {
        let message = "the node has no known address, so no packet matches a node port or comes from the node itself; set --local-address";
        notices.push(Notice::new(ObjectRef::new("Node", "", &choice.name), "NoAddress", message));
    }
    Ok(node)
}

/// Removes the slices that a node does not receive.
pub fn apply_view(watches_own_zone: bool, node: &str, gates: FeatureGates, world: &mut LoadedObjects) {
    let zone = world.snapshot.node(node).and_then(|node| node.zone.clone());
    let view = SliceView::of(watches_own_zone, zone.as_deref(), gates);
    let is_hidden =
        |key: &&ObjectKey| world.snapshot.slice(key).is_some_and(|slice| !view.sees(&slice.content));
    let hidden: Vec<ObjectKey> = world.snapshot.slice_keys().filter(is_hidden).cloned().collect();
    hidden.iter().for_each(|key| world.snapshot.remove_slice(key));
}

/// Settings from a file, from `base`, or the defaults of mode nftables; feature gates of the command line override them.
pub fn settings(
    path: Option<&Path>,
    gates: Option<&GateList>,
    base: Option<Configuration>,
    notices: &mut Vec<Notice>,
) -> Result<ProxySettings> {
    resolve(configuration(path, gates, base, notices)?, notices)
}

/// The same, in another mode where one is given.
fn settings_of_mode(
    args: &NodeArgs,
    base: Option<Configuration>,
    notices: &mut Vec<Notice>,
) -> Result<(ProxySettings, Option<KernelspaceChoice>)> {
    let mut configuration =
        configuration(args.config.as_deref(), args.feature_gates.as_ref(), base, notices)?;
    if let Some(mode) = args.proxy_mode {
        configuration.mode = mode.as_str().to_owned();
    }
    let kernelspace = KernelspaceChoice::take(&mut configuration, &args.kernelspace, notices)?;
    let mut settings = resolve(configuration, notices)?;
    if kernelspace.is_some() {
        settings.mode = ForwardingMode::Kernelspace;
    }
    Ok((settings, kernelspace))
}

fn configuration(
    path: Option<&Path>,
    gates: Option<&GateList>,
    base: Option<Configuration>,
    notices: &mut Vec<Notice>,
) -> Result<Configuration> {
    let mut configuration = match (path, base) {
        (Some(path), _) => {
            let (configuration, remarks) = config::file::read(path)?;
            notices.extend(remarks);
            configuration
        }
        (None, Some(base)) => base,
        (None, None) => {
            Configuration { mode: Mode::Nftables.as_str().to_owned(), ..Configuration::default() }
        }
    };
    configuration.feature_gates.extend(gates.iter().flat_map(|gates| gates.0.clone()));
    Ok(configuration)
}

fn resolve(configuration: Configuration, notices: &mut Vec<Notice>) -> Result<ProxySettings> {
    let (settings, remarks) = config::resolve(configuration, false)?;
    notices.extend(remarks);
    if settings.mode == Mode::Default {
        let message = format!(
            "mode: {}; the result is for nftables, which the node proxy runs instead",
            settings.mode.as_str()
        );
        notices.push(Notice::new(ObjectRef::new(file::KIND, "", "config"), "OtherMode", message));
    }
    Ok(settings.proxy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(node: Option<&str>) -> NodeArgs {
        NodeArgs {
            node: node.map(str::to_owned),
            config: None,
            feature_gates: None,
            proxy_mode: None,
            service_node_port_range: None,
            watch_own_zone: false,
            local_addresses: Vec::new(),
            kernelspace: KernelspaceArgs::default(),
        }
    }

    fn effective(node: &str) -> RunningConfig {
        let configuration = Configuration { cluster_cidr: "10.1.0.0/16".into(), ..Configuration::default() };
        RunningConfig {
            node: node.to_owned(),
            configuration,
            node_port_range: NodePortRange::default(),
            watch_own_zone: false,
            connection: None,
            objects: Default::default(),
        }
    }

    #[test]
    fn an_answer_that_cannot_be_used_is_a_notice_and_no_failure() {
        let untrusted = || Err(anyhow::anyhow!("process 7 of user 1001 is not trusted"));
        let mut notices = Vec::new();
        assert!(running(&args(Some("n1")), untrusted(), &mut notices).is_none());
        assert!(running(&args(Some("n1")), Ok(Some(effective("n2"))), &mut notices).is_none());
        assert!(running(&args(Some("n1")), Ok(None), &mut notices).is_none());
        assert!(notices.iter().all(|notice| notice.reason == "ConfigurationUnknown"));
        assert!(notices[0].message.contains("process 7 of user 1001"), "{}", notices[0]);
        assert!(notices[1].message.contains("node n2"), "{}", notices[1]);
        assert!(running(&args(Some("n1")), Ok(Some(effective("n1"))), &mut notices).is_some());
        assert_eq!(notices.len(), 3);
    }

    #[test]
    fn gates_of_the_command_line_are_shown_over_the_running_proxys_configuration() {
        let gates = GateList([("AllowServiceExternalIPs".to_owned(), false)].into());
        let line = source_text(&effective("n1"), Some(&gates));
        let wanted = "Configuration of the running node proxy: node n1, clusterCIDR 10.1.0.0/16; \
                      overridden by --feature-gates AllowServiceExternalIPs=false\n";
        assert_eq!(line, wanted);
    }
}
