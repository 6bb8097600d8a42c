//! Connections for real: clients next door, servers next door, the node in between with the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::case::{self, Flow, Scenario};
use super::connect::{Hope, Seen, send, serve};
use super::net::{Neighbour, be_a_router};

/// The neighbours of a node: whoever is no endpoint is a client.
struct Site {
    clients: Neighbour,
    servers: Neighbour,
    served: BTreeSet<SocketAddr>,
    /// Connections for each endpoint, at least.
    least: usize,
}

impl Site {
    fn new(own: &[IpAddr], least: usize) -> Site {
        be_a_router(own);
        let (clients, servers) = (Neighbour::new(1, "clients"), Neighbour::new(2, "servers"));
        clients.be_the_way_out();
        Site { clients, servers, served: BTreeSet::new(), least }
    }

    fn prepare(&mut self, scenario: &Scenario, own: &[IpAddr]) {
        for flow in &scenario.flows {
            if !own.contains(&flow.packet.src.ip()) {
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

    /// Connects until every expected endpoint was seen, but not for ever.
    fn try_flow(&self, flow: &Flow, own: &[IpAddr]) -> BTreeMap<Seen, usize> {
        let mut seen = BTreeMap::new();
        let attempts = if flow.endpoints.len() > 1 { 40 * flow.endpoints.len() } else { 1 };
        for attempt in 0..attempts {
            let all_seen = seen.len() >= flow.endpoints.len() && attempt >= self.least * flow.endpoints.len();
            if attempt > 0 && all_seen {
                break;
            }
            let packet = flow.packet.clone();
            let hope = if flow.verdict == "DROP" { Hope::Silence } else { Hope::Answer };
            let one = if own.contains(&packet.src.ip()) {
                send(&packet, hope)
            } else {
                self.clients.within(move || send(&packet, hope))
            };
            *seen.entry(one).or_default() += 1;
        }
        seen
    }
}

fn check(scenario: &Scenario, flow: &Flow, seen: &BTreeMap<Seen, usize>) {
    let whose = format!("{} flow {}: {seen:?}", scenario.id, flow.n);
    match flow.verdict.as_str() {
        "REJECT" => assert_eq!(seen.keys().collect::<Vec<_>>(), [&Seen::Refused], "{whose}"),
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

/// Programs the kernel with each case and connects for each flow, so often for each endpoint at least.
pub(crate) fn packets_fare_as_the_cases_say(least: usize, mut program: impl FnMut(&Scenario)) {
    let scenarios = case::scenarios();
    let own: Vec<IpAddr> = case::texts(&scenarios[0].value["config"]["nodeLocalAddresses"])
        .iter()
        .map(|text| text.parse().unwrap())
        .collect();
    let mut site = Site::new(&own, least);
    for scenario in &scenarios {
        site.prepare(scenario, &own);
        program(scenario);
        for flow in &scenario.flows {
            check(scenario, flow, &site.try_flow(flow, &own));
        }
    }
}
