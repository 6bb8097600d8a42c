//! The addresses of Gateways: which one a Gateway gets, or why it gets none.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::gateway_api::{Gateway, GatewayAddress};
use model::{Name, ObjectKey, ServiceType, Snapshot};

use super::Problem;
use super::listeners::{EffectiveGateway, is_ours};

/// The label of a Service whose addresses are those of the Gateway of that name, in the Service's namespace.
pub const GATEWAY_NAME_LABEL: &str = "gateway.networking.k8s.io/gateway-name";

/// Where the addresses of Gateways come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssignedAddresses {
    /// Every Gateway may have these; the first is that of Gateways without `spec.addresses`.
    Any(Vec<IpAddr>),
    /// Addresses of one machine, where an address and port is that of one Gateway.
    Machine(MachineAddresses),
    /// Those of Services with [`GATEWAY_NAME_LABEL`].
    Services,
}

/// The addresses of one machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineAddresses {
    pub usable: Vec<IpAddr>,
    /// Where MeshGateways listen, which have their ports first; empty: on all addresses.
    pub mesh: Vec<IpAddr>,
}

/// The addresses of a Gateway, and what is wrong with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GatewayAssignment {
    pub(super) addresses: Vec<IpAddr>,
    pub(super) problem: Option<Problem>,
}

impl GatewayAssignment {
    fn failed(reason: &'static str, message: impl Into<String>) -> Self {
        Self { addresses: Vec::new(), problem: Some(Problem::new(reason, message)) }
    }
}

/// The addresses that proxies of this machine listen on, by Gateway. Older Gateways have the first choice.
pub fn machine_addresses(
    snapshot: &Snapshot,
    controller: &str,
    machine: &MachineAddresses,
) -> BTreeMap<ObjectKey, Vec<IpAddr>> {
    let all = assign(snapshot, controller, machine).into_iter();
    all.filter(|(_, own)| !own.addresses.is_empty()).map(|(key, own)| (key, own.addresses)).collect()
}

/// A port of an address, TCP or UDP.
type TakenPort = (IpAddr, bool, u16);

pub(super) fn assign(
    snapshot: &Snapshot,
    controller: &str,
    machine: &MachineAddresses,
) -> BTreeMap<ObjectKey, GatewayAssignment> {
    let mut taken: BTreeMap<TakenPort, String> = BTreeMap::new();
    let is_everywhere = machine.mesh.is_empty() || machine.mesh.iter().any(IpAddr::is_unspecified);
    let mesh = if is_everywhere { &machine.usable } else { &machine.mesh };
    for gateway in snapshot.mesh_gateways() {
        for port in gateway.listeners.iter().map(|listener| listener.port) {
            let owner = format!("MeshGateway {}", gateway.key);
            taken.extend(mesh.iter().map(|ip| ((*ip, false, port), owner.clone())));
        }
    }
    let mut gateways: Vec<&Gateway> =
        snapshot.gateways().filter(|gateway| is_ours(snapshot, gateway, controller)).collect();
    gateways.sort_by_cached_key(|gateway| gateway.identity.age_order());
    let mut assigned = BTreeMap::new();
    for gateway in gateways {
        let own = assign_one(snapshot, gateway, machine, &taken);
        for ip in &own.addresses {
            let ports = ports(snapshot, gateway).into_iter();
            let owner = format!("Gateway {}", gateway.identity.key);
            taken.extend(ports.map(|(is_udp, port)| ((*ip, is_udp, port), owner.clone())));
        }
        assigned.insert(gateway.identity.key.clone(), own);
    }
    assigned
}

fn ports(snapshot: &Snapshot, gateway: &Gateway) -> BTreeSet<(bool, u16)> {
    let effective = EffectiveGateway::new(snapshot, gateway);
    let good = effective.listeners.iter().filter(|listener| listener.accepted.is_ok());
    good.map(|own| (own.listener.protocol == "UDP", own.listener.port)).collect()
}

fn assign_one(
    snapshot: &Snapshot,
    gateway: &Gateway,
    machine: &MachineAddresses,
    taken: &BTreeMap<TakenPort, String>,
) -> GatewayAssignment {
    let key = &gateway.identity.key;
    if snapshot.mesh_gateway(key).is_some() {
        let message = "a MeshGateway has the same name, and is served instead: rename one of them";
        return GatewayAssignment::failed("AddressNotAssigned", message);
    }
    let ports = ports(snapshot, gateway);
    let owner_at = |ip: IpAddr| {
        let mut owners =
            ports.iter().filter_map(|(is_udp, port)| Some((port, taken.get(&(ip, *is_udp, *port))?)));
        owners.next()
    };
    let asked = asked(gateway);
    if asked.is_empty() {
        if let Some(free) = machine.usable.iter().find(|ip| owner_at(**ip).is_none()) {
            return GatewayAssignment { addresses: vec![*free], problem: None };
        }
        let message = match machine.usable.iter().find_map(|ip| owner_at(*ip)) {
            Some((port, owner)) => {
                format!("port {port} is that of {owner} on every address: add one with --gateway-address")
            }
            None => "no address is available".to_owned(),
        };
        return GatewayAssignment::failed("AddressNotAssigned", message);
    }
    let mut own = GatewayAssignment { addresses: Vec::new(), problem: None };
    for address in asked {
        let problem = match usable(address, &machine.usable) {
            None => format!("spec.addresses: {} cannot be used here", address.value),
            Some(ip) => match owner_at(ip) {
                None => {
                    own.addresses.push(ip);
                    continue;
                }
                Some((port, owner)) => format!("spec.addresses: port {port} of {ip} is that of {owner}"),
            },
        };
        own.problem.get_or_insert(Problem::new("AddressNotUsable", problem));
    }
    own
}

/// An address without a value asks for any.
fn asked(gateway: &Gateway) -> Vec<&GatewayAddress> {
    gateway.addresses.iter().filter(|address| !address.value.is_empty()).collect()
}

fn usable(address: &GatewayAddress, usable: &[IpAddr]) -> Option<IpAddr> {
    let ip = address.value.parse().ok().filter(|ip| usable.contains(ip))?;
    (address.kind == "IPAddress").then_some(ip)
}

/// Of [`AssignedAddresses::Any`].
pub(super) fn any(gateway: &Gateway, all: &[IpAddr]) -> GatewayAssignment {
    let asked = asked(gateway);
    if asked.is_empty() {
        let first: Vec<IpAddr> = all.first().copied().into_iter().collect();
        let problem = first.is_empty().then(|| Problem::new("AddressNotAssigned", "no address is available"));
        return GatewayAssignment { addresses: first, problem };
    }
    check_asked(&asked, all)
}

fn check_asked(asked: &[&GatewayAddress], all: &[IpAddr]) -> GatewayAssignment {
    let wrong = asked.iter().find(|address| usable(address, all).is_none()).map(|address| {
        let message = format!("spec.addresses: {} cannot be used here", address.value);
        Problem::new("AddressNotUsable", message)
    });
    let addresses = asked.iter().filter_map(|address| usable(address, all)).collect();
    GatewayAssignment { addresses, problem: wrong }
}

/// Of [`AssignedAddresses::Services`].
pub(super) fn of_services(snapshot: &Snapshot, gateway: &Gateway) -> GatewayAssignment {
    let key = &gateway.identity.key;
    let own = snapshot.services_within(&key.namespace);
    let own = own.filter(|service| service.labels.value(GATEWAY_NAME_LABEL) == Some(&key.name));
    let (mut found, mut addresses): (Vec<Name>, Vec<IpAddr>) = (Vec::new(), Vec::new());
    for service in own {
        found.push(service.key.name.clone());
        match service.kind {
            ServiceType::LoadBalancer => addresses.extend(service.load_balancer.iter().map(|own| own.ip)),
            _ => addresses.extend(service.cluster_ips.addresses()),
        }
    }
    let asked = asked(gateway);
    if !asked.is_empty() {
        return check_asked(&asked, &addresses);
    }
    let problem = match (addresses.is_empty(), &found[..]) {
        (false, _) => None,
        (true, []) => Some(format!(
            "no Service of namespace {} has label {GATEWAY_NAME_LABEL}={}: deploy proxies, as by the chart's value \
             mesh.gateways",
            key.namespace, key.name
        )),
        (true, [first, ..]) => Some(format!("Service {first} has no address yet")),
    };
    GatewayAssignment { addresses, problem: problem.map(|text| Problem::new("AddressNotAssigned", text)) }
}
