//! A node as its proxy would see it: the proxy that runs here, or one out of files, a KubeProxyConfiguration and addresses
//! given by hand.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Result, bail};
use model::{ForwardingTable, Node, Notice, ObjectRef};
use plan::forward::{Forwarder, NodeConfig, ProxySettings};

use super::config::{self, Configuration, Mode, file, flags::GateList};
use super::effective::{self, Effective};
use super::{addresses, unknown};
use crate::cli::{InputArgs, NodeArgs};
use crate::input::LoadedObjects;

/// Which node, and what it goes by.
pub struct NodeChoice {
    /// Its name.
    pub name: String,
    settings: ProxySettings,
    addresses: Vec<IpAddr>,
    /// The proxy that runs here, if it is the one.
    running: Option<Effective>,
    /// What its configuration is, in a line for people, if it is the running proxy's.
    source: Option<String>,
    notices: Vec<Notice>,
}

impl NodeChoice {
    /// The node that the arguments name. With `live` it is the one whose proxy runs in this network namespace, with its
    /// configuration, as far as no argument says otherwise.
    pub fn new(args: &NodeArgs, live: bool) -> Result<Self> {
        let mut notices = Vec::new();
        let running = if live { running(args, effective::ask(), &mut notices) } else { None };
        let Some(name) = args.node.clone().or_else(|| running.as_ref().map(|r| r.node.clone())) else {
            let why: Vec<&str> = notices.iter().map(|notice| notice.message.as_str()).collect();
            bail!("name the node with --node: {}", why.join("; "));
        };
        let source = running.as_ref().filter(|_| args.config.is_none());
        let source = source.map(|running| source_text(running, args.feature_gates.as_ref()));
        let base = running.as_ref().map(|running| running.configuration.clone());
        let settings = settings(args.config.as_deref(), args.feature_gates.as_ref(), base, &mut notices)?;
        let mut addresses = args.local_addresses.clone();
        if running.is_some() {
            addresses.extend(addresses::local());
        }
        Ok(Self { name, settings, addresses, running, source, notices })
    }

    /// A node that goes by these settings.
    #[cfg(test)]
    pub(crate) fn of(name: &str, settings: ProxySettings, addresses: Vec<IpAddr>) -> Self {
        Self { name: name.to_owned(), settings, addresses, running: None, source: None, notices: Vec::new() }
    }

    /// Where its objects come from: without a word about that, from where the running proxy has them.
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

    /// What its configuration is, in a line for people, if it is the running proxy's.
    pub fn source(&self) -> Option<String> {
        self.source.clone()
    }
}

/// The running proxy's configuration, and the gates of the command line over its own.
fn source_text(running: &Effective, over: Option<&GateList>) -> String {
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
        line += &format!("; --feature-gates {} over it", list(&over.0));
    }
    line + "\n"
}

/// The proxy that runs here, unless it is another node's. One that cannot be believed or read is none: any process may
/// take its name, and may not keep the commands from working.
fn running(
    args: &NodeArgs,
    asked: Result<Option<Effective>>,
    notices: &mut Vec<Notice>,
) -> Option<Effective> {
    let message = match asked {
        Ok(Some(running)) if args.node.as_ref().is_none_or(|name| *name == running.node) => {
            return Some(running);
        }
        Ok(Some(running)) => format!(
            "the node proxy of this network namespace is that of node {}, so its configuration is not used",
            running.node
        ),
        Ok(None) => "no node proxy answers in this network namespace, so defaults and --config explain the rules; run this where the node proxy runs".to_owned(),
        Err(error) => format!(
            "the configuration of this network namespace's node proxy is not used, so defaults and --config explain the rules: {error:#}"
        ),
    };
    let node = ObjectRef::new("Node", "", args.node.as_deref().unwrap_or("(this one)"));
    notices.push(Notice::new(node, "ConfigurationUnknown", message));
    None
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
    /// The node in the loaded that was read.
    pub fn new(choice: &NodeChoice, loaded: &LoadedObjects) -> Result<Self> {
        let mut notices = choice.notices.clone();
        let node = node(choice, loaded, &mut notices)?;
        let cidrs: Vec<_> = loaded.snapshot.service_cidrs().flat_map(|c| c.cidrs.iter().copied()).collect();
        let (config, remarks) = NodeConfig::new(&choice.settings, &node, &cidrs, &choice.addresses);
        notices.extend(remarks);
        let (table, remarks) = Forwarder::of(&loaded.snapshot, config.clone()).into_table();
        notices.extend(remarks);
        Ok(Self { config, table, notices })
    }
}

/// The Node object; without one, a node that has only its name and the addresses given by hand.
fn node(choice: &NodeChoice, loaded: &LoadedObjects, notices: &mut Vec<Notice>) -> Result<Node> {
    let mut node = loaded.node(&choice.name)?.cloned().unwrap_or_else(|| {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::ProxyMode;

    fn args(node: Option<&str>) -> NodeArgs {
        NodeArgs {
            node: node.map(str::to_owned),
            config: None,
            feature_gates: None,
            proxy_mode: ProxyMode::Nftables,
            local_addresses: Vec::new(),
        }
    }

    fn effective(node: &str) -> Effective {
        let configuration = Configuration { cluster_cidr: "10.1.0.0/16".into(), ..Configuration::default() };
        Effective { node: node.to_owned(), configuration, connection: None }
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
                      --feature-gates AllowServiceExternalIPs=false over it\n";
        assert_eq!(line, wanted);
    }
}
