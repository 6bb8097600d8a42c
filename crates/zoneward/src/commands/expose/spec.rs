//! The validated flags: a port and the addresses of processes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use crate::health_checks::readiness::EndpointCheck;
use anyhow::{Result, bail};
use model::{Family, Protocol};

/// `--port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExposePort {
    pub number: u16,
    /// Empty for a Service with one port.
    pub name: String,
}

impl FromStr for ExposePort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, name) = text.split_once(':').unwrap_or((text, ""));
        match number.parse() {
            Ok(number) if number > 0 => Ok(Self { number, name: name.to_owned() }),
            _ => Err("expected a port from 1 to 65535, such as 80 or 80:http".to_owned()),
        }
    }
}

/// `--to`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExposeTarget {
    pub address: SocketAddr,
    pub zone: Option<String>,
    /// Labels, by which routes select subsets.
    pub tags: Vec<(String, String)>,
}

impl FromStr for ExposeTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (text, tags) =
            text.split_once(',').map_or((text, ""), |(address_text, tags)| (address_text, tags));
        let tags = read_tags(tags)?;
        let (address_text, zone) = match text.rsplit_once('@') {
            Some((_, "")) => return Err("missing zone after @, expected 10.0.0.7:8080@zone-a".to_owned()),
            Some((address_text, zone)) => (address_text, Some(zone.to_owned())),
            None => (text, None),
        };
        let address: SocketAddr = address_text.parse().map_err(|_| not_an_address(address_text))?;
        if address.port() == 0 {
            return Err("the port must be from 1 to 65535".to_owned());
        }
        // IPv4-mapped addresses become IPv4.
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        match unreachable(address.ip()) {
            Some(why) => Err(why),
            None => Ok(Self { address, zone, tags }),
        }
    }
}

/// `TAG=VALUE,...`, sorted. They become labels of a slice.
fn read_tags(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut tags = BTreeMap::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (key, value) = part
            .split_once('=')
            .filter(|(key, _)| !key.is_empty())
            .ok_or_else(|| format!("{part:?} is not a tag: expected TAG=VALUE, such as version=v2"))?;
        let is_taken = |owner: &&str| key.split_once('/').is_some_and(|(prefix, _)| prefix.ends_with(*owner));
        if let Some(owner) = ["kubernetes.io", "k8s.io", "zoneward.dev"].into_iter().find(is_taken) {
            return Err(format!("the tag {key} is reserved for {owner}: use another name"));
        }
        tags.insert(key.to_owned(), value.to_owned());
    }
    Ok(tags.into_iter().collect())
}

fn not_an_address(address_text: &str) -> String {
    let host = address_text.rsplit_once(':').map_or(address_text, |(host, _)| host);
    if host == "localhost" {
        return loopback();
    }
    if host.contains(':') && !host.starts_with('[') {
        return format!("write an IPv6 address in brackets, such as [{host}]:8080");
    }
    "expected an IP address and a port, such as 10.0.0.7:8080: EndpointSlices take no host names".to_owned()
}

fn loopback() -> String {
    "Kubernetes rejects loopback endpoints, because they are local to each node: use another address of this machine \
     that the process listens on (see `ip address`)"
        .to_owned()
}

/// Why nodes cannot reach this address.
fn unreachable(ip: IpAddr) -> Option<String> {
    let link_local = match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if ip.is_loopback() {
        return Some(loopback());
    }
    if ip.is_unspecified() || ip.is_multicast() || link_local {
        return Some(format!(
            "{ip} is not a unicast address that nodes can reach: use the address that the process listens on"
        ));
    }
    None
}

#[derive(Clone, Debug)]
pub(super) struct ExposeSpec {
    pub namespace: String,
    pub name: String,
    pub port: Option<ExposePort>,
    pub protocol: Protocol,
    /// Sorted, each once.
    pub targets: Vec<ExposeTarget>,
    pub traffic_distribution: Option<String>,
    pub check: Option<EndpointCheck>,
}

impl ExposeSpec {
    pub(super) fn new(
        namespace: &str,
        name: &str,
        port: Option<ExposePort>,
        protocol: Protocol,
        targets: &[ExposeTarget],
    ) -> Result<Self> {
        let targets: BTreeSet<ExposeTarget> = targets.iter().cloned().collect();
        let targets: Vec<ExposeTarget> = targets.into_iter().collect();
        if let Some(pair) = targets.windows(2).find(|pair| pair[0].address == pair[1].address) {
            bail!("--to {}: given twice, with different zones or tags", pair[0].address);
        }
        Ok(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            port,
            protocol,
            targets,
            traffic_distribution: None,
            check: None,
        })
    }

    /// The families of the targets, IPv4 first.
    pub(super) fn families(&self) -> Vec<Family> {
        let has = |family: &Family| self.targets.iter().any(|t| Family::of(t.address.ip()) == *family);
        [Family::V4, Family::V6].into_iter().filter(has).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        text.parse::<ExposeTarget>().expect_err("it is refused")
    }

    #[test]
    fn targets_are_read_with_and_without_a_zone() {
        let zoned: ExposeTarget = "10.0.0.7:8080@zone-a".parse().expect("a target");
        assert_eq!(
            (zoned.address.to_string().as_str(), zoned.zone.as_deref()),
            ("10.0.0.7:8080", Some("zone-a"))
        );
        let plain: ExposeTarget = "[fd00::7]:80".parse().expect("a target");
        assert_eq!((plain.address.to_string().as_str(), plain.zone), ("[fd00::7]:80", None));
        let tagged: ExposeTarget = "10.0.0.7:80@zone-a,version=v2,app=x".parse().expect("a target");
        assert_eq!(tagged.zone.as_deref(), Some("zone-a"));
        assert_eq!(tagged.tags, [("app", "x"), ("version", "v2")].map(|(k, v)| (k.to_owned(), v.to_owned())));
        let mapped: ExposeTarget = "[::ffff:10.0.0.1]:80".parse().expect("a target");
        assert_eq!(mapped.address.to_string(), "10.0.0.1:80");
    }

    #[test]
    fn unreachable_addresses_are_rejected_with_advice() {
        for loopback in ["127.0.0.1:80", "[::1]:80", "localhost:80"] {
            assert!(refusal(loopback).contains("loopback"), "{loopback}");
        }
        assert!(refusal("web.example:80").contains("no host names"));
        assert!(refusal("fd00::7:80").contains("[fd00::7]:8080"));
        assert!(refusal("0.0.0.0:80").contains("listens on"));
        assert!(refusal("169.254.0.1:80").contains("listens on"));
        assert!(refusal("10.0.0.1:0").contains("1 to 65535"));
        assert!(refusal("10.0.0.1:80@").contains("zone"));
        assert!(refusal("10.0.0.1:80,version").contains("version=v2"));
        assert!(refusal("10.0.0.1:80,topology.kubernetes.io/zone=a").contains("is reserved for"));
    }

    #[test]
    fn ports_have_a_number_and_perhaps_a_name() {
        let named: ExposePort = "80:http".parse().expect("a port");
        assert_eq!((named.number, named.name.as_str()), (80, "http"));
        assert!("0".parse::<ExposePort>().is_err() && "http".parse::<ExposePort>().is_err());
    }
}
