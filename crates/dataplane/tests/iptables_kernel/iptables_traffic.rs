//! Connections for real in mode iptables, in both flavours: clients next door, servers next door, the node in between with
//! the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use dataplane::backend::NodeBackend;
use dataplane::iptables::IptablesBackend;
use dataplane::iptables::commands::{IptablesFlavour, IptablesPrograms};
use dataplane::iptables::render::KernelFeatures;

use crate::namespace::run;
use crate::packetflow::case::{self, Flow, Scenario};
use crate::packetflow::connect::{Hope, Seen, send, serve};
use crate::packetflow::net::{Neighbour, be_a_router, set};

/// The real programs of a flavour.
pub(crate) fn programs(flavour: IptablesFlavour) -> IptablesPrograms {
    IptablesPrograms::of(flavour, vec![toolbox::Toolbox::own().bin()]).unwrap()
}

/// The neighbours of a node: whatever is no endpoint is a client.
struct Site {
    clients: Neighbour,
    servers: Neighbour,
    served: BTreeSet<SocketAddr>,
    /// Of clients.
    addresses: BTreeSet<IpAddr>,
}

impl Site {
    fn new(own: &[IpAddr]) -> Site {
        be_a_router(own);
        let (clients, servers) = (Neighbour::new(1, "clients"), Neighbour::new(2, "servers"));
        clients.be_the_way_out();
        Site { clients, servers, served: BTreeSet::new(), addresses: BTreeSet::new() }
    }

    fn prepare(&mut self, scenario: &Scenario, own: &[IpAddr]) {
        // An address that is a client's in one case is a Service's in another.
        for flow in scenario.flows.iter().filter(|flow| self.addresses.remove(&flow.packet.dst.ip())) {
            let net = format!("{}/32", flow.packet.dst.ip());
            self.clients.within(move || run("ip", &["address", "del", &net, "dev", "uplink"]));
        }
        for flow in &scenario.flows {
            if !is_own(own, flow.packet.src.ip()) && self.addresses.insert(flow.packet.src.ip()) {
                self.clients.add_address(flow.packet.src.ip());
            }
        }
        for endpoint in scenario.flows.iter().flat_map(|flow| &flow.endpoints) {
            if self.served.insert(*endpoint) {
                self.servers.add_address(endpoint.ip());
                let endpoint = *endpoint;
                self.servers.within(move || serve(endpoint));
            }
        }
    }

    /// Connects until every expected endpoint was seen, within a bound.
    fn try_flow(&self, flow: &Flow, own: &[IpAddr]) -> BTreeMap<Seen, usize> {
        let mut seen = BTreeMap::new();
        let attempts = if flow.endpoints.len() > 1 { 40 * flow.endpoints.len() } else { 1 };
        for _ in 0..attempts {
            let packet = flow.packet.clone();
            let hope = if flow.verdict == "DROP" { Hope::Silence } else { Hope::Answer };
            let one = match is_own(own, packet.src.ip()) {
                true => send(&packet, hope),
                false => self.clients.within(move || send(&packet, hope)),
            };
            *seen.entry(one).or_default() += 1;
            if seen.len() == flow.endpoints.len() {
                break;
            }
        }
        seen
    }
}

fn is_own(own: &[IpAddr], address: IpAddr) -> bool {
    address.is_loopback() || own.contains(&address)
}

fn check(scenario: &Scenario, flow: &Flow, seen: &BTreeMap<Seen, usize>) {
    let whose = format!("{} flow {}: {seen:?}", scenario.id, flow.n);
    match flow.verdict.as_str() {
        // A health check port has no listener in this test, so the kernel itself refuses what the rules accept.
        "REJECT" | "ACCEPT" => assert_eq!(seen.keys().collect::<Vec<_>>(), [&Seen::Refused], "{whose}"),
        "DROP" => assert_eq!(seen.keys().collect::<Vec<_>>(), [&Seen::Silence], "{whose}"),
        "DNAT" => {
            let mut endpoints = Vec::new();
            for one in seen.keys() {
                let Seen::Answered(endpoint, client) = one else { panic!("{whose}") };
                assert_eq!(*client != flow.packet.src.ip(), flow.masquerade, "{whose}");
                endpoints.push(*endpoint);
            }
            assert_eq!(endpoints, flow.endpoints, "{whose}");
        }
        other => panic!("{whose}: unknown verdict {other}"),
    }
}

pub(crate) fn packets_sent_for_real_fare_as_the_cases_say(flavour: IptablesFlavour) {
    let programs = programs(flavour);
    let scenarios = case::scenarios_of("iptables");
    let own: Vec<IpAddr> = case::texts(&scenarios[0].value["config"]["nodeLocalAddresses"])
        .iter()
        .map(|text| text.parse().unwrap())
        .collect();
    let mut site = Site::new(&own);
    set("net/ipv4/conf/all/route_localnet", "1");
    let mut backend = IptablesBackend::probe(Box::new(programs), KernelFeatures::default());
    for scenario in &scenarios {
        site.prepare(scenario, &own);
        backend.load(&scenario.table).unwrap();
        for flow in &scenario.flows {
            check(scenario, flow, &site.try_flow(flow, &own));
        }
    }
}
