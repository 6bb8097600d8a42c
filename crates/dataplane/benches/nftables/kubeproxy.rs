//! The layout that kube-proxy has, as text for `nft -f -`: a chain for each Service, a chain for each endpoint, one
//! verdict map from addresses to chains, and in each Service's chain a map without a name from number to chain.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::usage::{Cost, cost_of_children};
use crate::world::{CLUSTER_IPS, ENDPOINTS, PODS, PORT, TARGET_PORT, cluster_ip, pod};

const TABLE: &str = "ip kube-proxy";

/// Feeds nft the rules of this many Services, so many in one transaction.
pub(crate) fn load(services: usize, at_once: usize) -> Cost {
    let numbers: Vec<usize> = (0..services).collect();
    let texts: Vec<String> = numbers.chunks(at_once).map(ruleset).collect();
    let (_, cost) = cost_of_children(|| texts.iter().for_each(|text| feed(text)));
    cost
}

fn feed(text: &str) {
    let mut child = Command::new("nft")
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
fn ruleset(services: &[usize]) -> String {
    let mut text = String::new();
    if services.first() == Some(&0) {
        skeleton(&mut text).expect("text grows");
    }
    services.iter().try_for_each(|service| chains(&mut text, *service)).expect("text grows");
    services.iter().try_for_each(|service| rules(&mut text, *service)).expect("text grows");
    text
}

fn skeleton(text: &mut String) -> std::fmt::Result {
    writeln!(text, "add table {TABLE}")?;
    for (name, hook) in [
        ("nat-prerouting", "{ type nat hook prerouting priority -100 ; }"),
        ("nat-output", "{ type nat hook output priority -100 ; }"),
        ("nat-postrouting", "{ type nat hook postrouting priority 100 ; }"),
        ("services", ""),
        ("masquerading", ""),
        ("mark-for-masquerade", ""),
    ] {
        writeln!(text, "add chain {TABLE} {name} {hook}")?;
    }
    writeln!(text, "add set {TABLE} cluster-ips {{ type ipv4_addr ; }}")?;
    let key = "type ipv4_addr . inet_proto . inet_service : verdict ;";
    writeln!(text, "add map {TABLE} service-ips {{ {key} }}")?;
    for (chain, rule) in [
        ("mark-for-masquerade", "meta mark set meta mark or 0x4000"),
        ("masquerading", "meta mark and 0x4000 == 0 return"),
        ("masquerading", "meta mark set meta mark xor 0x4000"),
        ("masquerading", "masquerade fully-random"),
        ("services", "ip daddr . meta l4proto . th dport vmap @service-ips"),
        ("nat-prerouting", "jump services"),
        ("nat-output", "jump services"),
        ("nat-postrouting", "jump masquerading"),
    ] {
        writeln!(text, "add rule {TABLE} {chain} {rule}")?;
    }
    writeln!(text, "add rule {TABLE} services ip daddr {CLUSTER_IPS} ip daddr != @cluster-ips drop")
}

/// Chains first: rules and elements lead to them.
fn chains(text: &mut String, service: usize) -> std::fmt::Result {
    writeln!(text, "add chain {TABLE} {}", service_chain(service))?;
    (0..ENDPOINTS).try_for_each(|e| writeln!(text, "add chain {TABLE} {}", endpoint_chain(service, e)))
}

fn rules(text: &mut String, service: usize) -> std::fmt::Result {
    let (vip, chain) = (cluster_ip(service), service_chain(service));
    writeln!(text, "add element {TABLE} cluster-ips {{ {vip} }}")?;
    writeln!(text, "add element {TABLE} service-ips {{ {vip} . tcp . {PORT} : goto {chain} }}")?;
    let to_vip = format!("ip daddr {vip} tcp dport {PORT}");
    writeln!(text, "add rule {TABLE} {chain} {to_vip} ip saddr != {PODS} jump mark-for-masquerade")?;
    write!(text, "add rule {TABLE} {chain} numgen random mod {ENDPOINTS} vmap {{ ")?;
    for endpoint in 0..ENDPOINTS {
        let comma = if endpoint == 0 { "" } else { " , " };
        write!(text, "{comma}{endpoint} : goto {}", endpoint_chain(service, endpoint))?;
    }
    writeln!(text, " }}")?;
    for endpoint in 0..ENDPOINTS {
        let (ip, chain) = (pod(service * ENDPOINTS + endpoint), endpoint_chain(service, endpoint));
        writeln!(text, "add rule {TABLE} {chain} ip saddr {ip} jump mark-for-masquerade")?;
        writeln!(text, "add rule {TABLE} {chain} meta l4proto tcp dnat to {ip}:{TARGET_PORT}")?;
    }
    Ok(())
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
