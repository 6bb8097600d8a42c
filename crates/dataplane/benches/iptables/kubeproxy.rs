//! The rules that kube-proxy has for the same Services: a list of all of them, and a chain per endpoint.

use std::fmt::Write;

use dataplane::iptables::commands::IptablesFlavour;
use dataplane::iptables::names::{PortChain, endpoint_name, port_chain};
use model::forward::ForwardedPort;
use model::{ForwardingTable, ServiceKey, TrafficPolicy};

use crate::world::PODS;

/// Services in one input of the nft flavour. kube-proxy itself sends all at once, which does not end.
const PORTION: usize = 150;

const HEAD: &str = "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n:KUBE-POSTROUTING - [0:0]\n\
    -A KUBE-MARK-MASQ -j MARK --or-mark 0x4000\n\
    -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN\n\
    -A KUBE-POSTROUTING -j MARK --xor-mark 0x4000\n\
    -A KUBE-POSTROUTING -j MASQUERADE --random-fully\n\
    -A PREROUTING -j KUBE-SERVICES\n-A OUTPUT -j KUBE-SERVICES\n-A POSTROUTING -j KUBE-POSTROUTING\nCOMMIT\n";

fn ports(table: &ForwardingTable) -> impl Iterator<Item = &ForwardedPort> {
    table.services().flat_map(|(_, frontends)| frontends).map(|frontend| &*frontend.port)
}

fn service_chain(port: &ForwardedPort) -> arcstr::ArcStr {
    port_chain(port, PortChain::Policy(TrafficPolicy::Cluster))
}

/// The inputs that load everything.
pub(crate) fn load(table: &ForwardingTable, flavour: IptablesFlavour) -> Vec<String> {
    let all: Vec<&ForwardedPort> = ports(table).collect();
    let portion = match flavour {
        IptablesFlavour::Legacy => all.len(),
        IptablesFlavour::Nft => PORTION,
    };
    let mut inputs = vec![HEAD.to_owned()];
    inputs.extend(all.chunks(portion).map(|portion| {
        let (mut chains, mut rules) = (String::new(), String::new());
        portion.iter().for_each(|port| add_chains(port, &mut chains, &mut rules));
        portion.iter().for_each(|port| add_portal(port, &mut rules));
        format!("*nat\n{chains}{rules}COMMIT\n")
    }));
    inputs
}

/// The input of a partial sync: all of KUBE-SERVICES, and the chains of the changed Service.
pub(crate) fn change(table: &ForwardingTable, changed: &ServiceKey) -> String {
    let (mut chains, mut rules) = (":KUBE-SERVICES - [0:0]\n".to_owned(), String::new());
    for port in ports(table) {
        if port.service == *changed {
            add_chains(port, &mut chains, &mut rules);
        }
        add_portal(port, &mut rules);
    }
    format!("*nat\n{chains}{rules}COMMIT\n")
}

fn add_portal(port: &ForwardedPort, rules: &mut String) {
    let (ip, number, chain) = (port.cluster_ip, port.number, service_chain(port));
    writeln!(
        rules,
        "-A KUBE-SERVICES -m comment --comment \"{port} cluster IP\" -m tcp -p tcp -d {ip} --dport {number} -j {chain}"
    )
    .expect("a String takes every text");
}

fn add_chains(port: &ForwardedPort, chains: &mut String, rules: &mut String) {
    let (ip, number, chain) = (port.cluster_ip, port.number, service_chain(port));
    let endpoints = &port.cluster.endpoints;
    let add = |text: &mut String, line: String| {
        *text += &line;
        text.push('\n');
    };
    add(chains, format!(":{chain} - [0:0]"));
    // With more than 1,000 endpoints, kube-proxy leaves out the comments of the other rules.
    let comment = format!("-m comment --comment \"{port} cluster IP\"");
    add(
        rules,
        format!("-A {chain} {comment} -m tcp -p tcp -d {ip} --dport {number} ! -s {PODS} -j KUBE-MARK-MASQ"),
    );
    for (index, endpoint) in endpoints.iter().enumerate() {
        let (name, address) = (endpoint_name(port, endpoint.address()), endpoint.address());
        let chance = match endpoints.len() - index {
            1 => String::new(),
            left => format!("-m statistic --mode random --probability {:.10} ", 1.0 / left as f64),
        };
        add(chains, format!(":{name} - [0:0]"));
        add(rules, format!("-A {chain} {chance}-j {name}"));
        add(rules, format!("-A {name} -s {} -j KUBE-MARK-MASQ", address.ip()));
        add(rules, format!("-A {name} -m tcp -p tcp -j DNAT --to-destination {address}"));
    }
}
