//! Renders a ForwardingTable as HCN objects: one load balancer for each frontend with endpoints.
//!
//! Endpoints of this node are the network plugin's, found by address. For others an endpoint is made, unless another
//! program has made one.

use std::collections::BTreeMap;
use std::net::IpAddr;

use model::forward::{
    ForwardedEndpoint, ForwardingTable, Frontend, FrontendAction, FrontendAddress, FrontendHost,
    FrontendKind, NodeRules,
};
use model::{Family, ServiceKey, TrafficPolicy};

use super::object::{
    BY_CLIENT, BY_CONNECTION, DSR, Guid, HcnEndpoint, IPV6, LOCAL_ROUTED_VIP, LoadBalancer, Network,
    PortMapping, RemoteSubnet, VIP_EXTERNAL_IP,
};
use crate::nftables::render::protocol_number;

/// Settings of mode kernelspace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelspaceSettings {
    /// `winkernel.networkName`.
    pub network_name: String,
    /// `winkernel.sourceVip`: the source of connections that a load balancer sends on without DSR.
    pub source_vip: Option<IpAddr>,
    /// `winkernel.enableDSR`: answers go to the client directly.
    pub enable_dsr: bool,
}

/// What HNS should hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HcnObjects {
    pub load_balancers: BTreeMap<Guid, WantedLoadBalancer>,
    /// Those that we make.
    pub endpoints: BTreeMap<Guid, HcnEndpoint>,
    /// Endpoints that are left out.
    pub problems: Vec<String>,
}

/// A load balancer as it should be.
#[derive(Clone, Debug, PartialEq)]
pub struct WantedLoadBalancer {
    pub service: ServiceKey,
    pub address: FrontendAddress,
    /// In the order of the ForwardingTable.
    pub endpoints: Vec<IpAddr>,
    pub object: LoadBalancer,
}

/// `found` are the endpoints that HNS holds.
pub fn render(
    table: &ForwardingTable,
    settings: &KernelspaceSettings,
    network: &Network,
    found: &BTreeMap<Guid, HcnEndpoint>,
) -> HcnObjects {
    let mut renderer = Renderer {
        node: &table.node,
        settings,
        network,
        subnets: network.remote_subnets(),
        found: by_address(network, found),
        rendered: HcnObjects::default(),
    };
    for frontend in table.services().flat_map(|(_, frontends)| frontends) {
        renderer.add(frontend);
    }
    renderer.rendered
}

/// The endpoints of other programs on the network; of two with an address that of this node.
fn by_address<'a>(
    network: &Network,
    found: &'a BTreeMap<Guid, HcnEndpoint>,
) -> BTreeMap<IpAddr, &'a HcnEndpoint> {
    let mut found: Vec<&HcnEndpoint> = found
        .values()
        .filter(|endpoint| !endpoint.id.is_ours() && endpoint.host_compute_network == network.id)
        .collect();
    found.sort_by_key(|endpoint| !endpoint.is_remote());
    found
        .into_iter()
        .flat_map(|endpoint| endpoint.addresses().map(move |address| (address, endpoint)))
        .collect()
}

struct Renderer<'a> {
    node: &'a NodeRules,
    settings: &'a KernelspaceSettings,
    network: &'a Network,
    subnets: Vec<RemoteSubnet>,
    found: BTreeMap<IpAddr, &'a HcnEndpoint>,
    rendered: HcnObjects,
}

impl Renderer<'_> {
    /// A frontend without endpoints has no load balancer: HNS cannot refuse.
    fn add(&mut self, frontend: &Frontend) {
        let FrontendAction::Send(policy) = frontend.outside else { return };
        let port = &frontend.port;
        let set = port.endpoints(policy);
        let Some(internal_port) = set.main_port() else { return };
        let of_port = set.endpoints.iter().filter(|endpoint| endpoint.address().port() == internal_port);
        let placed: Vec<(IpAddr, Guid)> = of_port
            .filter_map(|endpoint| Some((endpoint.address().ip(), self.place(endpoint, &port.service)?)))
            .collect();
        if placed.is_empty() {
            return;
        }
        let (endpoints, mut ids): (Vec<IpAddr>, Vec<Guid>) = placed.into_iter().unzip();
        ids.sort();
        ids.dedup();
        let family = frontend.address.family();
        let mapping = PortMapping {
            protocol: u32::from(protocol_number(frontend.address.protocol)),
            internal_port,
            external_port: frontend.address.port,
            distribution_type: if port.affinity_seconds.is_some() { BY_CLIENT } else { BY_CONNECTION },
            flags: port_flags(frontend.kind),
        };
        let object = LoadBalancer {
            id: Guid::ours(&format!("load balancer {}", frontend.address)),
            host_compute_endpoints: ids,
            source_vip: self.source_vip(family, &endpoints),
            frontend_vips: match frontend.address.host {
                FrontendHost::Address(address) => vec![address],
                FrontendHost::Node(_) => Vec::new(),
            },
            port_mappings: vec![mapping],
            flags: self.flags(frontend.kind, policy, family),
            ..LoadBalancer::default()
        };
        let (service, address) = (port.service.clone(), frontend.address);
        let wanted = WantedLoadBalancer { service, address, endpoints, object };
        self.rendered.load_balancers.insert(wanted.object.id.clone(), wanted);
    }

    /// The HNS endpoint of an endpoint.
    fn place(&mut self, endpoint: &ForwardedEndpoint, service: &ServiceKey) -> Option<Guid> {
        let address = endpoint.address().ip();
        if let Some(found) = self.found.get(&address) {
            return Some(found.id.clone());
        }
        // A pod in the host network has the node's address and no endpoint.
        if endpoint.is_local && !self.node.is_own(address) {
            let name = &self.network.name;
            self.rendered.problems.push(format!(
                "Service {service}: HNS network {name} has no endpoint with the address {address} of a pod on this node; the network plugin has to create it"
            ));
            return None;
        }
        let outside = || self.primary(Family::of(address));
        let provider = match self.network.is_overlay() {
            true => self.provider(address).or_else(outside),
            false => None,
        };
        let made = HcnEndpoint::remote(address, &self.network.id, provider);
        let id = made.id.clone();
        self.rendered.endpoints.insert(id.clone(), made);
        Some(id)
    }

    /// The node that has an address, or is it.
    fn provider(&self, address: IpAddr) -> Option<IpAddr> {
        let is_there = |subnet: &&RemoteSubnet| subnet.range.contains(&address) || subnet.provider == address;
        self.subnets.iter().find(is_there).map(|subnet| subnet.provider)
    }

    fn primary(&self, family: Family) -> Option<IpAddr> {
        self.node.primary.iter().copied().find(|address| Family::of(*address) == family)
    }

    /// In an overlay network, nodes and addresses outside of it answer only to an address of the node.
    fn source_vip(&self, family: Family, endpoints: &[IpAddr]) -> Option<IpAddr> {
        let is_remote = |address: &IpAddr| self.found.get(address).is_none_or(|found| found.is_remote());
        let is_pod = |address: IpAddr| self.provider(address).is_some_and(|provider| provider != address);
        let needs_node = |address: &IpAddr| is_remote(address) && !is_pod(*address);
        if self.network.is_overlay() && endpoints.iter().any(needs_node) {
            return self.primary(family);
        }
        self.settings.source_vip.filter(|address| Family::of(*address) == family)
    }

    /// DSR keeps the client's address, which externalTrafficPolicy Local promises.
    fn flags(&self, kind: FrontendKind, policy: TrafficPolicy, family: Family) -> u32 {
        let is_dsr = match kind {
            FrontendKind::ClusterIp => self.settings.enable_dsr,
            _ => policy == TrafficPolicy::Local,
        };
        let dsr = if is_dsr { DSR } else { 0 };
        dsr | if family == Family::V6 { IPV6 } else { 0 }
    }
}

fn port_flags(kind: FrontendKind) -> u32 {
    match kind {
        FrontendKind::ClusterIp => 0,
        FrontendKind::NodePort => LOCAL_ROUTED_VIP | VIP_EXTERNAL_IP,
        FrontendKind::ExternalIp | FrontendKind::LoadBalancer => VIP_EXTERNAL_IP,
    }
}
