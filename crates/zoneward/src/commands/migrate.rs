//! `zoneward migrate check`: what changes for the traffic of a node when Zoneward replaces kube-proxy.
//!
//! Evaluates the rules of kube-proxy and ours with the same packets. Nothing is changed.

mod installed;
mod report;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use cluster::input::LoadedObjects;
use dataplane::migration::{self, HealthCheckPort};
use model::Protocol;
use node::{NodeChoice, NodeWorld};
use output::{Format, OutputArgs, notices_text, notices_value, print_text, print_value};
use plan::forward::localhost_node_ports;

use crate::cli::{InputArgs, NodeArgs, ProxyMode};
use crate::commands::trace::packet::offline;
use report::CheckedNode;

/// `zoneward migrate`
#[derive(Debug, Subcommand)]
pub enum MigrateCommand {
    /// Show which traffic of a node changes when Zoneward replaces kube-proxy
    ///
    /// Evaluates the rules of kube-proxy and those that Zoneward would write, with the same packets: from pods, the node,
    /// localhost and outside to each frontend of each Service, to health check node ports, and forwarded ones in state
    /// INVALID. Only differences are shown, by Service and flow, each with its remedy. Other rules of the node are
    /// evaluated with both: a firewall may drop what a chain of kube-proxy accepts. Changes that counters show as unused
    /// are left out, unless `--all` is set. The exit code is 1 if something changes. Nothing is written.
    ///
    /// With `--live`, reads the rules of this machine: iptables-save, ipset save and the virtual servers of IPVS, or the
    /// nftables tables of kube-proxy; requires NET_ADMIN. With `--rules`, reads the output of iptables-save -c, ip6tables-save -c, ipset
    /// save and ipvsadm -Sn from files.
    #[command(after_help = "\
Examples:
  sudo zoneward migrate check --live --node node-a1 --config config.conf
  zoneward migrate check -f cluster.yaml --node node-a1 --rules iptables.save --config config.conf
  zoneward migrate check --node node-a1 --rules v4.save --rules v6.save --rules ipset.save --rules ipvsadm.save")]
    Check(MigrateCheck),
}

/// `zoneward migrate check`
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("where").required(true).args(["rules", "live"]))]
#[command(mut_arg("proxy_mode", |arg| arg.visible_alias("to").help("Proxy mode of Zoneward: nftables, iptables or ipvs [default: nftables]")))]
#[command(mut_arg("node", |arg| arg.help("Node to evaluate [default with --live: the host name]")))]
#[command(mut_arg("config", |arg| arg.help("KubeProxyConfiguration of kube-proxy and Zoneward (kubeproxy.config.k8s.io/v1alpha1)")))]
#[command(mut_arg("service_node_port_range", |arg| arg.help("Node ports and health check ports that the node may serve [default: 1024-65535]")))]
pub struct MigrateCheck {
    #[command(flatten)]
    pub input: InputArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub node: NodeArgs,
    /// Mode of the kube-proxy whose rules are read [default: the mode whose rules are found]
    #[arg(long, value_name = "MODE")]
    pub from: Option<KubeProxyMode>,
    /// Saved rules of kube-proxy; repeatable
    #[arg(long, value_name = "FILE")]
    pub rules: Vec<PathBuf>,
    /// Read the rules of this machine; requires NET_ADMIN
    #[arg(long)]
    pub live: bool,
    /// Show changes that counters show as unused, too
    #[arg(long)]
    pub all: bool,
}

/// A mode of kube-proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KubeProxyMode {
    /// Chains KUBE-SERVICES and others of iptables, both flavours
    Iptables,
    /// IPVS virtual servers, with chains of iptables and IP sets
    Ipvs,
    /// nftables tables kube-proxy
    Nftables,
}

impl KubeProxyMode {
    fn as_str(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
            Self::Nftables => "nftables",
        }
    }
}

pub fn run(command: MigrateCommand) -> Result<bool> {
    match command {
        MigrateCommand::Check(args) => check(args),
    }
}

fn check(mut args: MigrateCheck) -> Result<bool> {
    // Its configuration is kube-proxy's: the mode there is the one to leave.
    args.node.proxy_mode.get_or_insert(ProxyMode::Nftables);
    if args.node.proxy_mode == Some(ProxyMode::Kernelspace) {
        bail!(
            "--proxy-mode: kernelspace is for Windows nodes; their load balancers cannot be compared, use nftables, iptables or ipvs"
        );
    }
    let (from, installed) = match args.live {
        true => installed::live(args.from)?,
        false => installed::files(&args.rules, args.from)?,
    };
    if args.live {
        args.node.local_addresses.extend(installed::local_addresses(from));
    }
    if args.node.node.is_none() {
        args.node.node = Some(hostname()?);
    }
    let choice = NodeChoice::new(&args.node, false)?;
    let mut loaded = LoadedObjects::read(&choice.input(&args.input))?;
    let mut world = NodeWorld::new(&choice, &loaded)?;
    loaded.notices.append(&mut world.notices);
    let health_checks: Vec<HealthCheckPort> = loaded
        .snapshot
        .services()
        .filter_map(|(service, _)| {
            let port = service.health_check_node_port?;
            Some(HealthCheckPort { service: service.key.clone(), port })
        })
        .collect();
    let mut flows = migration::flows(&world.table, &health_checks);
    if flows.is_empty() {
        bail!("no Service to check: name the objects with -f, or the cluster with --kubeconfig");
    }
    let listened = served_on_localhost(&world);
    flows.retain(|flow| flow.packet.protocol != Protocol::Tcp || !listened.contains(&flow.packet.dst));
    let scheduler = choice.ipvs_scheduler().parse().context("ipvs.scheduler")?;
    let mut backend = offline(&world, scheduler)?;
    let addresses = world.table.node.addresses.to_vec();
    let report = migration::check(&world.table, &flows, &installed, &mut *backend, &addresses, scheduler)
        .context("evaluating the rules of Zoneward")?;
    let to = world.table.node.mode.as_str();
    let checked = CheckedNode { name: &choice.name, from, to, report: &report, all: args.all };
    match args.output.format {
        Format::Table => print_text(&(checked.text() + &notices_text(&loaded.notices)))?,
        format => {
            let mut value = checked.value();
            value["notices"] = notices_value(&loaded.notices);
            print_value(&value, format)?;
        }
    }
    Ok(!loaded.unreadable && checked.is_unchanged())
}

/// Node ports on localhost that the node proxy serves without a rule: nothing changes for their clients.
fn served_on_localhost(world: &NodeWorld) -> BTreeSet<SocketAddr> {
    let ports = |(service, _)| localhost_node_ports(service, &world.table, &world.config).0;
    world.table.services().flat_map(ports).map(|port| port.listen).collect()
}

/// The name under which kube-proxy looks for its Node without `hostnameOverride`.
fn hostname() -> Result<String> {
    let name = cluster::hostname();
    anyhow::ensure!(!name.is_empty(), "this machine has no hostname: set --node");
    Ok(name)
}
