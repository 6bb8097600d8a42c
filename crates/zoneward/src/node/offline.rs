//! A node as its proxy would see it: the proxy that runs here, or one out of files, a KubeProxyConfiguration and addresses
//! given by hand.

use std::net::IpAddr;
use std::path::Path;

use anyhow::{Result, bail};
use model::{ForwardingTable, Node, Notice, ObjectRef};
use plan::forward::{Forwarder, NodeConfig, ProxySettings};

use super::config::{self, Configuration, Mode, file, flags::GateList};
use super::effective::{self, Effective};
use super::{addresses, unknown};
use crate::cli::{Input, NodeArgs};
use crate::input::World;

/// Which node, and what it goes by.
pub struct NodeChoice {
    /// Its name.
    pub name: String,
    settings: ProxySettings,
    addresses: Vec<IpAddr>,
    /// The proxy that runs here, if it is the one.
    running: Option<Effective>,
    notices: Vec<Notice>,
}

impl NodeChoice {
    /// The node that the arguments name. With `live` it is the one whose proxy runs in this network namespace, with its
    /// configuration, as far as no argument says otherwise.
    pub fn new(args: &NodeArgs, live: bool) -> Result<Self> {
        let mut notices = Vec::new();
        let running = if live { running(args, &mut notices)? } else { None };
        let Some(name) = args.node.clone().or_else(|| running.as_ref().map(|r| r.node.clone())) else {
            bail!("no node proxy answers in this network namespace: name the node with --node");
        };
        let base = running.as_ref().map(|running| running.configuration.clone());
        let settings = settings(args.config.as_deref(), args.feature_gates.as_ref(), base, &mut notices)?;
        let mut addresses = args.local_addresses.clone();
        if running.is_some() {
            addresses.extend(addresses::local());
        }
        Ok(Self { name, settings, addresses, running, notices })
    }

    /// A node that goes by these settings.
    #[cfg(test)]
    pub(crate) fn of(name: &str, settings: ProxySettings, addresses: Vec<IpAddr>) -> Self {
        Self { name: name.to_owned(), settings, addresses, running: None, notices: Vec::new() }
    }

    /// Where its objects come from: without a word about that, from where the running proxy has them.
    pub fn input(&self, input: &Input) -> Input {
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

    /// What its configuration is, in a line for people.
    pub fn source(&self) -> Option<String> {
        let running = self.running.as_ref()?;
        let configuration = &running.configuration;
        let mut line = format!("Configuration of the running node proxy: node {}", running.node);
        if !configuration.cluster_cidr.is_empty() {
            line += &format!(", clusterCIDR {}", configuration.cluster_cidr);
        }
        if !configuration.feature_gates.is_empty() {
            let gates = configuration.feature_gates.iter().map(|(name, on)| format!("{name}={on}"));
            line += &format!(", featureGates {}", gates.collect::<Vec<_>>().join(","));
        }
        Some(line + "\n")
    }
}

/// The proxy that runs here, unless it is another node's.
fn running(args: &NodeArgs, notices: &mut Vec<Notice>) -> Result<Option<Effective>> {
    let about = |message: String| {
        Notice::new(
            ObjectRef::new("Node", "", args.node.as_deref().unwrap_or("(this one)")),
            "ConfigurationUnknown",
            message,
        )
    };
    let Some(running) = effective::ask()? else {
        notices.push(about(
            "no node proxy answers in this network namespace, so defaults and --config explain the rules; run this where the node proxy runs".to_owned(),
        ));
        return Ok(None);
    };
    if args.node.as_ref().is_some_and(|name| *name != running.node) {
        notices.push(about(format!(
            "the node proxy of this network namespace is that of node {}, so its configuration is not used",
            running.node
        )));
        return Ok(None);
    }
    Ok(Some(running))
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
    /// The node in the world that was read.
    pub fn new(choice: &NodeChoice, world: &World) -> Result<Self> {
        let mut notices = choice.notices.clone();
        let node = node(choice, world, &mut notices)?;
        let cidrs: Vec<_> = world.snapshot.service_cidrs().flat_map(|c| c.cidrs.iter().copied()).collect();
        let (config, remarks) = NodeConfig::new(&choice.settings, &node, &cidrs, &choice.addresses);
        notices.extend(remarks);
        let (table, remarks) = Forwarder::of(&world.snapshot, config.clone()).into_table();
        notices.extend(remarks);
        Ok(Self { config, table, notices })
    }
}

/// The Node object; without one, a node that has only its name and the addresses given by hand.
fn node(choice: &NodeChoice, world: &World, notices: &mut Vec<Notice>) -> Result<Node> {
    let mut node = world.node(&choice.name)?.cloned().unwrap_or_else(|| {
        let message = "no Node is in the input: it counts as one without a zone and without pod ranges, with the addresses of --local-address";
        notices.push(Notice::new(ObjectRef::new("Node", "", &choice.name), "NodeUnknown", message));
        unknown(&choice.name)
    });
    if node.addresses.is_empty() && choice.running.is_none() {
        node.addresses = choice.addresses.clone().into();
    }
    if node.addresses.is_empty() {
        let message = "no address is known of it, so no packet can be for a node port or from the node itself; give --local-address";
        notices.push(Notice::new(ObjectRef::new("Node", "", &choice.name), "NoAddress", message));
    }
    Ok(node)
}

/// What decides where packets go: a file, or `base`, or the defaults of mode nftables; gates of the command line go first.
pub fn settings(
    path: Option<&Path>,
    gates: Option<&GateList>,
    base: Option<Configuration>,
    notices: &mut Vec<Notice>,
) -> Result<ProxySettings> {
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
    let (settings, remarks) = config::resolve(configuration, false)?;
    notices.extend(remarks);
    if settings.mode != Mode::Nftables {
        let message = format!(
            "mode: {}; the answer is for nftables, which the node proxy runs in its place",
            settings.mode.as_str()
        );
        notices.push(Notice::new(ObjectRef::new(file::KIND, "", "config"), "OtherMode", message));
    }
    Ok(settings.proxy)
}
