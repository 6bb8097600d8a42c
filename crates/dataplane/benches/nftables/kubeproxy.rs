//! What kube-proxy feeds to `nft -f -` at its start, as text, for either of its layouts: each chain is added and flushed,
//! all base chains and maps are there for both families, and each family is an `nft` of its own.
//!
//! Left out, in its favour: the listings of what is there, by which it begins, and its removal of base chains that might
//! be there with other priorities.

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::process::Stdio;

use crate::usage::{Cost, cost_of_children};
use crate::world::{CLUSTER_IPS, ENDPOINTS, PODS, PORT, TARGET_PORT, cluster_ip, is_local, pod};

/// How a Service leads to its endpoints.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Layout {
    /// A chain for each Service and each endpoint, and in each Service's chain a map without a name from number to
    /// chain: since 1.29, and still with session affinity.
    Chains,
    /// No chains for endpoints: the map without a name in each Service's chain answers with address and port. Newer
    /// versions have that.
    Maps,
}

impl Layout {
    pub(crate) const ALL: [Layout; 2] = [Layout::Chains, Layout::Maps];

    /// The measurement of this layout.
    pub(crate) fn measurement(self) -> &'static str {
        match self {
            Layout::Chains => "kube-proxy",
            Layout::Maps => "kube-proxy-newer",
        }
    }
}

/// What differs between the families.
struct Family {
    table: &'static str,
    ip: &'static str,
    address: &'static str,
    service_cidr: &'static str,
    pods: &'static str,
    node_ip: &'static str,
}

const IPV4: Family = Family {
    table: "ip kube-proxy",
    ip: "ip",
    address: "ipv4_addr",
    service_cidr: CLUSTER_IPS,
    pods: PODS,
    node_ip: "192.0.2.1",
};
const IPV6: Family = Family {
    table: "ip6 kube-proxy",
    ip: "ip6",
    address: "ipv6_addr",
    service_cidr: "fd00:10:96::/112",
    pods: "fd00:10:128::/64",
    node_ip: "2001:db8::1",
};

/// Chains at hooks: name, type, hook, priority.
const BASE_CHAINS: [(&str, &str, &str, i32); 8] = [
    ("filter-prerouting-pre-dnat", "filter", "prerouting", -110),
    ("filter-output-pre-dnat", "filter", "output", -110),
    ("filter-input", "filter", "input", 0),
    ("filter-forward", "filter", "forward", 0),
    ("filter-output", "filter", "output", 0),
    ("nat-prerouting", "nat", "prerouting", -100),
    ("nat-output", "nat", "output", -100),
    ("nat-postrouting", "nat", "postrouting", 100),
];

/// Where they jump to: to, from, for which packets.
const JUMPS: [(&str, &str, &str); 11] = [
    ("nodeport-endpoints-check", "filter-input", "ct state new "),
    ("service-endpoints-check", "filter-input", "ct state new "),
    ("service-endpoints-check", "filter-forward", "ct state new "),
    ("service-endpoints-check", "filter-output", "ct state new "),
    ("firewall-check", "filter-prerouting-pre-dnat", "ct state new "),
    ("firewall-check", "filter-output-pre-dnat", "ct state new "),
    ("services", "nat-output", ""),
    ("services", "nat-prerouting", ""),
    ("masquerading", "nat-postrouting", ""),
    ("cluster-ips-check", "filter-forward", "ct state new "),
    ("cluster-ips-check", "filter-output", "ct state new "),
];

/// Feeds nft the rules of this many Services, so many in one transaction, and those of a family without Services.
pub(crate) fn load(layout: Layout, services: usize, at_once: usize) -> Cost {
    let numbers: Vec<usize> = (0..services).collect();
    let mut texts: Vec<String> = numbers.chunks(at_once).map(|numbers| ruleset(layout, numbers)).collect();
    let mut other = String::new();
    skeleton(&mut other, layout, &IPV6).expect("text grows");
    texts.push(other);
    let (_, cost) = cost_of_children(|| texts.iter().for_each(|text| feed(text)));
    cost
}

fn feed(text: &str) {
    let mut child = toolbox::command("nft")
        .args(["-f", "-"])
        .env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()))
        .stdin(Stdio::piped())
        .spawn()
        .expect("nft is there; `cargo xtask test` installs it");
    let mut stdin = child.stdin.take().expect("it was asked for");
    stdin.write_all(text.as_bytes()).expect("nft reads its input");
    drop(stdin);
    assert!(child.wait().expect("nft ends").success(), "nft did not take the rules");
}

/// The text of these Services, the first piece with what all of them need.
fn ruleset(layout: Layout, services: &[usize]) -> String {
    let mut text = String::new();
    if services.first() == Some(&0) {
        skeleton(&mut text, layout, &IPV4).expect("text grows");
    }
    services.iter().try_for_each(|service| rules_of(&mut text, layout, *service)).expect("text grows");
    text
}

/// Everything that is there without any Service.
fn skeleton(text: &mut String, layout: Layout, family: &Family) -> fmt::Result {
    let table = family.table;
    writeln!(text, "add table {table} {{ comment \"kube-proxy's own rules\" ; }}")?;
    for (name, kind, hook, priority) in BASE_CHAINS {
        let base = format!("{{ type {kind} hook {hook} priority {priority} ; }}");
        writeln!(text, "add chain {table} {name} {base}\nflush chain {table} {name}")?;
    }
    let mut made = Vec::new();
    for (to, from, packets) in JUMPS {
        if !made.contains(&to) {
            ensure_chain(text, table, to)?;
            made.push(to);
        }
        writeln!(text, "add rule {table} {from} {packets}jump {to}")?;
    }
    ensure_chain(text, table, "reject-chain")?;
    containers(text, layout, family)?;
    fixed_rules(text, layout, family)
}

fn ensure_chain(text: &mut String, table: &str, name: &str) -> fmt::Result {
    writeln!(text, "add chain {table} {name}\nflush chain {table} {name}")
}

fn containers(text: &mut String, layout: Layout, family: &Family) -> fmt::Result {
    let Family { table, address, node_ip, .. } = family;
    let mut sets = vec![
        ("cluster-ips", (*address).to_owned(), "cluster IPs in use"),
        ("nodeport-ips", (*address).to_owned(), "addresses that take node ports"),
    ];
    if layout == Layout::Maps {
        let key = format!("{address} . {address} . inet_proto . inet_service");
        sets.push(("hairpin-connections", key, "pods that reach themselves"));
    }
    for (name, key, comment) in sets {
        writeln!(text, "add set {table} {name} {{ type {key} ; comment \"{comment}\" ; }}")?;
    }
    for (name, of_address, comment) in [
        ("no-endpoint-services", true, "Services without an endpoint: drop or reject their packets"),
        ("no-endpoint-nodeports", false, "node ports without an endpoint: drop or reject their packets"),
        ("firewall-ips", true, "addresses that loadBalancerSourceRanges guard"),
        ("service-ips", true, "traffic to addresses of Services of all kinds"),
        ("service-nodeports", false, "to node ports"),
    ] {
        let key = if of_address { format!("{address} . ") } else { String::new() };
        let kind = format!("type {key}inet_proto . inet_service : verdict ;");
        writeln!(text, "add map {table} {name} {{ {kind} comment \"{comment}\" ; }}")?;
    }
    writeln!(text, "add element {table} nodeport-ips {{ {node_ip} }}")
}

/// The rules that no Service changes.
fn fixed_rules(text: &mut String, layout: Layout, family: &Family) -> fmt::Result {
    let Family { table, ip, service_cidr, pods, .. } = family;
    let place = format!("{ip} daddr . meta l4proto . th dport");
    let node_port = format!("{ip} daddr @nodeport-ips meta l4proto . th dport");
    let mut rules = vec![
        ("reject-chain", "reject".to_owned()),
        ("cluster-ips-check", format!("{ip} daddr @cluster-ips reject")),
        ("cluster-ips-check", format!("{ip} daddr {{ {service_cidr} }} drop")),
        ("service-endpoints-check", format!("{place} vmap @no-endpoint-services")),
        ("nodeport-endpoints-check", format!("{node_port} vmap @no-endpoint-nodeports")),
        ("firewall-check", format!("{place} vmap @firewall-ips")),
    ];
    match layout {
        Layout::Chains => {
            ensure_chain(text, table, "mark-for-masquerade")?;
            rules.push(("mark-for-masquerade", "mark set mark or 0x4000".to_owned()));
            rules.push(("masquerading", "mark and 0x4000 == 0 return".to_owned()));
            rules.push(("masquerading", "mark set mark xor 0x4000".to_owned()));
            rules.push(("masquerading", "masquerade fully-random".to_owned()));
        }
        Layout::Maps => {
            let marked = "mark and 0x4000 != 0 mark set mark xor 0x4000 masquerade fully-random";
            rules.push(("masquerading", marked.to_owned()));
            let pair = format!("{ip} saddr . {ip} daddr . meta l4proto . th dport @hairpin-connections");
            rules.push(("masquerading", format!("ct status dnat {pair} masquerade fully-random")));
            let stranger = format!("{ip} daddr @cluster-ips {ip} saddr != {pods}");
            rules.push(("services", format!("{stranger} mark set mark or 0x4000")));
        }
    }
    rules.push(("services", format!("{place} vmap @service-ips")));
    rules.push(("services", format!("{node_port} vmap @service-nodeports")));
    rules.iter().try_for_each(|(chain, rule)| writeln!(text, "add rule {table} {chain} {rule}"))
}

/// All of one Service, in kube-proxy's order.
fn rules_of(text: &mut String, layout: Layout, service: usize) -> fmt::Result {
    let (table, vip, chain) = (IPV4.table, cluster_ip(service), service_chain(service));
    for number in 0..ENDPOINTS {
        let ip = pod(service * ENDPOINTS + number);
        match layout {
            Layout::Chains => ensure_chain(text, table, &endpoint_chain(service, number))?,
            Layout::Maps if is_local(service, number) => {
                let pair = format!("{ip} . {ip} . tcp . {TARGET_PORT}");
                writeln!(text, "add element {table} hairpin-connections {{ {pair} }}")?;
            }
            Layout::Maps => {}
        }
    }
    ensure_chain(text, table, &chain)?;
    writeln!(text, "add element {table} cluster-ips {{ {vip} }}")?;
    writeln!(text, "add element {table} service-ips {{ {vip} . tcp . {PORT} : goto {chain} }}")?;
    match layout {
        Layout::Chains => by_chains(text, service, &chain),
        Layout::Maps => {
            let answer = |number| format!("{} . {TARGET_PORT}", pod(service * ENDPOINTS + number));
            let to = format!("numgen random mod {ENDPOINTS} map {{ {} }}", numbered(answer));
            writeln!(text, "add rule {table} {chain} meta l4proto tcp dnat ip addr . port to {to}")
        }
    }
}

fn by_chains(text: &mut String, service: usize, chain: &str) -> fmt::Result {
    let (table, vip) = (IPV4.table, cluster_ip(service));
    let to_vip = format!("ip daddr {vip} tcp dport {PORT}");
    writeln!(text, "add rule {table} {chain} {to_vip} ip saddr != {PODS} jump mark-for-masquerade")?;
    let answers = numbered(|number| format!("goto {}", endpoint_chain(service, number)));
    writeln!(text, "add rule {table} {chain} numgen random mod {ENDPOINTS} vmap {{ {answers} }}")?;
    for number in 0..ENDPOINTS {
        let (ip, chain) = (pod(service * ENDPOINTS + number), endpoint_chain(service, number));
        writeln!(text, "add rule {table} {chain} ip saddr {ip} jump mark-for-masquerade")?;
        writeln!(text, "add rule {table} {chain} meta l4proto tcp dnat to {ip}:{TARGET_PORT}")?;
    }
    Ok(())
}

/// The elements of a map from the number of an endpoint.
fn numbered(answer: impl Fn(usize) -> String) -> String {
    let each: Vec<String> = (0..ENDPOINTS).map(|number| format!("{number} : {}", answer(number))).collect();
    each.join(" , ")
}

fn service_chain(service: usize) -> String {
    format!("service-{:08x}-team-{}/app-{service}/tcp/http", tag(service), service / 100)
}

fn endpoint_chain(service: usize, endpoint: usize) -> String {
    let number = service * ENDPOINTS + endpoint;
    let (tag, ip) = (tag(number), pod(number));
    format!("endpoint-{tag:08x}-team-{}/app-{service}/tcp/http__{ip}/{TARGET_PORT}", service / 100)
}

/// As long as the piece of a hash that such names carry.
fn tag(number: usize) -> u32 {
    (number as u32).wrapping_mul(0x85eb_ca6b)
}
