//! Mode kernelspace for `plan node` and `trace packet`: the HNS of a Windows node, as files and flags describe it.
//!
//! The node proxy itself refuses the mode: docs/design/windows.md.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use dataplane::kernelspace::fake::FakeHcn;
use dataplane::kernelspace::{
    Guid, HcnEndpoint, HcnKind, HcnObjects, KernelspaceBackend, KernelspaceSettings, Network, RemoteSubnet,
    render,
};
use model::{Family, ForwardingTable, Name, Node, Notice, ObjectRef};

use super::config::file::{KIND, Winkernel};
use super::config::{Configuration, Mode};

/// The network of a node without `winkernel.networkName`.
const NETWORK_NAME: &str = "pods";

/// Flags of kube-proxy that apply to Windows nodes only.
#[derive(Clone, Debug, Default, Args)]
pub struct KernelspaceArgs {
    /// Mode kernelspace: type of the HNS network; an overlay network needs --source-vip [default: l2bridge]
    #[arg(long, value_name = "TYPE")]
    pub hns_network: Option<NetworkType>,
    /// Mode kernelspace: source address of connections that HNS forwards without DSR; overrides winkernel.sourceVip
    #[arg(long, value_name = "IP")]
    pub source_vip: Option<IpAddr>,
    /// Mode kernelspace: direct server return for cluster IPs; overrides winkernel.enableDSR
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub enable_dsr: Option<bool>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum NetworkType {
    /// Pods are in the network of the nodes
    #[default]
    L2bridge,
    /// Pods have a network of their own, by VXLAN
    Overlay,
}

/// The settings of a node in mode kernelspace.
#[derive(Clone, Debug)]
pub struct KernelspaceChoice {
    settings: KernelspaceSettings,
    network: NetworkType,
}

impl KernelspaceChoice {
    /// Takes the fields of Windows nodes out of a configuration of mode kernelspace; the rest is resolved as for other modes.
    /// None for another mode.
    pub(crate) fn take(
        config: &mut Configuration,
        args: &KernelspaceArgs,
        notices: &mut Vec<Notice>,
    ) -> Result<Option<Self>> {
        if !matches!(config.mode.as_str(), "kernelspace" | "winkernel") {
            if args.hns_network.is_some() || args.source_vip.is_some() || args.enable_dsr.is_some() {
                bail!("--hns-network, --source-vip and --enable-dsr need --proxy-mode kernelspace");
            }
            return Ok(None);
        }
        let mut gate = |name: &str| config.feature_gates.remove(name).unwrap_or(true);
        let (dsr_gate, overlay_gate) = (gate("WinDSR"), gate("WinOverlay"));
        let winkernel = std::mem::take(&mut config.winkernel);
        without_effect(config, &winkernel, notices);
        config.mode = Mode::Nftables.as_str().to_owned();
        config.windows_run_as_service = false;
        config.node_port_addresses = vec!["all".to_owned()];
        (config.nftables.masquerade_all, config.iptables.masquerade_all) = (false, false);
        let network = args.hns_network.unwrap_or_default();
        let source_vip =
            args.source_vip.map_or_else(|| source_vip(&winkernel), |address| Ok(Some(address)))?;
        let enable_dsr = args.enable_dsr.unwrap_or(winkernel.enable_dsr);
        if enable_dsr && !dsr_gate {
            bail!("winkernel.enableDSR needs the feature gate WinDSR, which is off: remove one of them");
        }
        if network == NetworkType::Overlay && !overlay_gate {
            bail!(
                "an overlay network needs the feature gate WinOverlay, which is off: remove WinOverlay=false"
            );
        }
        if network == NetworkType::Overlay && source_vip.is_none() {
            bail!("an overlay network needs winkernel.sourceVip or --source-vip");
        }
        let network_name = match winkernel.network_name.is_empty() {
            true => NETWORK_NAME.to_owned(),
            false => winkernel.network_name,
        };
        Ok(Some(Self { settings: KernelspaceSettings { network_name, source_vip, enable_dsr }, network }))
    }

    /// HNS of a node: the network plugin has made the endpoints of its pods, and routes to the pods of other nodes.
    pub fn preview<'n>(
        &self,
        nodes: impl Iterator<Item = &'n Node>,
        name: &str,
        table: &ForwardingTable,
    ) -> KernelspacePreview {
        let others = nodes.filter(|node| node.name != Name::new(name));
        let subnets: Vec<RemoteSubnet> = others.flat_map(remote_subnets).collect();
        let network = match self.network {
            NetworkType::Overlay => Network::overlay(&self.settings.network_name, &subnets),
            NetworkType::L2bridge => Network::l2bridge(&self.settings.network_name),
        };
        let fake = FakeHcn::with_pods(&network, table);
        KernelspacePreview { settings: self.settings.clone(), network, fake }
    }
}

fn source_vip(winkernel: &Winkernel) -> Result<Option<IpAddr>> {
    let text = winkernel.source_vip.as_str();
    if text.is_empty() {
        return Ok(None);
    }
    text.parse::<IpAddr>()
        .map(Some)
        .with_context(|| format!("winkernel.sourceVip: {text:?} is not an IP address"))
}

/// What kube-proxy ignores on Windows, and what the preview does.
fn without_effect(config: &Configuration, winkernel: &Winkernel, notices: &mut Vec<Notice>) {
    let set = [
        ("winkernel.rootHnsEndpointName", !winkernel.root_hns_endpoint_name.is_empty()),
        ("winkernel.forwardHealthCheckVip", winkernel.forward_health_check_vip),
        ("windowsRunAsService", config.windows_run_as_service),
        ("nodePortAddresses", !config.node_port_addresses.is_empty()),
        ("nftables.masqueradeAll", config.nftables.masquerade_all),
        ("iptables.masqueradeAll", config.iptables.masquerade_all),
    ];
    for (field, _) in set.iter().filter(|(_, is_set)| *is_set) {
        let message = format!("{field}: no effect in the preview of mode kernelspace");
        notices.push(Notice::new(ObjectRef::new(KIND, "", "config"), "NoEffect", message));
    }
}

/// The pod ranges of a node, each with the node's address of the family.
fn remote_subnets(node: &Node) -> impl Iterator<Item = RemoteSubnet> {
    node.pod_cidrs.iter().filter_map(move |range| {
        let of_family = |address: &&IpAddr| Family::of(**address) == Family::of(range.addr());
        let provider = node.addresses.iter().find(of_family)?;
        Some(RemoteSubnet { range: *range, provider: *provider })
    })
}

/// HNS of a node before the service proxy starts.
pub struct KernelspacePreview {
    settings: KernelspaceSettings,
    network: Network,
    fake: FakeHcn,
}

impl KernelspacePreview {
    /// What HNS should hold.
    pub fn render(&self, table: &ForwardingTable) -> HcnObjects {
        let pods = self.fake.objects(HcnKind::Endpoint, false);
        let read = |(id, value)| Some((id, serde_json::from_value(value).ok()?));
        let pods: BTreeMap<Guid, HcnEndpoint> = pods.into_iter().filter_map(read).collect();
        render(table, &self.settings, &self.network, &pods)
    }

    pub fn backend(&self) -> KernelspaceBackend {
        KernelspaceBackend::new(Box::new(self.fake.clone()), self.settings.clone())
    }
}
