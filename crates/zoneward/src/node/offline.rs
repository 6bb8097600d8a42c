//! A node as its proxy would see it, out of files: its Node object, a KubeProxyConfiguration, addresses given by hand.

use anyhow::Result;
use model::{ForwardingTable, Node, Notice, ObjectRef};
use plan::forward::{NodeConfig, ProxySettings, table};

use super::config::{self, Mode};
use super::unknown;
use crate::cli::NodeArgs;
use crate::input::World;

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
        let node = node(args, world, &mut notices)?;
        let cidrs: Vec<_> = world.snapshot.service_cidrs().flat_map(|c| c.cidrs.iter().copied()).collect();
        let (config, remarks) = NodeConfig::new(&settings, &node, &cidrs, &args.local_addresses);
        notices.extend(remarks);
        let (table, _, remarks) = table(&world.snapshot, &config);
        notices.extend(remarks);
        Ok(Self { config, table, notices })
    }
}

/// The Node object; without one, a node that has only its name and the addresses given by hand.
fn node(args: &NodeArgs, world: &World, notices: &mut Vec<Notice>) -> Result<Node> {
    let mut node = world.node(&args.node)?.cloned().unwrap_or_else(|| {
        let message = "no Node is in the input: it counts as one without a zone and without pod ranges, with the addresses of --local-address";
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
    Ok(node)
}

fn settings(args: &NodeArgs, notices: &mut Vec<Notice>) -> Result<ProxySettings> {
    let Some(path) = &args.config else { return Ok(ProxySettings::default()) };
    let (configuration, remarks) = config::file::read(path)?;
    notices.extend(remarks);
    let (settings, remarks) = config::resolve(configuration, false)?;
    notices.extend(remarks);
    if settings.mode != Mode::Nftables {
        let message = format!(
            "mode: {}; the answer is for nftables, which the node proxy runs in its place",
            settings.mode.as_str()
        );
        notices.push(Notice::new(
            ObjectRef::new("KubeProxyConfiguration", "", "config"),
            "OtherMode",
            message,
        ));
    }
    Ok(settings.proxy)
}
