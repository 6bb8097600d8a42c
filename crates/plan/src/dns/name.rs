//! Domain names: labels in lower case, because names are compared without case (RFC 4343).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Longest label, and longest name with its dots (RFC 1035, 2.3.4).
const MAX_LABEL: usize = 63;
const MAX_NAME: usize = 253;

/// A domain name without the root label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DnsName {
    labels: Vec<Box<str>>,
}

impl DnsName {
    /// From the labels of a message. Bytes that are not UTF-8 match no name of ours.
    pub fn from_labels<'a>(labels: impl Iterator<Item = &'a [u8]>) -> Self {
        let lower = |label: &[u8]| String::from_utf8_lossy(label).to_ascii_lowercase().into();
        Self { labels: labels.map(lower).collect() }
    }

    /// From text, with or without the final dot.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let text = text.strip_suffix('.').unwrap_or(text);
        if text.is_empty() {
            return Ok(Self::default());
        }
        if text.len() > MAX_NAME {
            return Err("longer than 253 characters");
        }
        if text.split('.').any(|label| label.is_empty() || label.len() > MAX_LABEL) {
            return Err("a label is empty or longer than 63 characters");
        }
        Ok(Self::from_labels(text.split('.').map(str::as_bytes)))
    }

    pub fn labels(&self) -> &[Box<str>] {
        &self.labels
    }

    /// The labels left of `domain`; `None` outside of it.
    pub fn below<'a>(&'a self, domain: &DnsName) -> Option<&'a [Box<str>]> {
        self.labels.strip_suffix(domain.labels.as_slice())
    }

    /// This name with labels in front.
    pub fn child(&self, labels: &[&str]) -> Self {
        let front = labels.iter().map(|label| Box::from(label.to_ascii_lowercase()));
        Self { labels: front.chain(self.labels.iter().cloned()).collect() }
    }

    /// The addresses below a name in in-addr.arpa or ip6.arpa, if it is one.
    pub fn reverse_net(&self) -> Option<IpNet> {
        let labels: Vec<&str> = self.labels.iter().rev().map(|label| &**label).collect();
        match labels.as_slice() {
            ["arpa", "in-addr", rest @ ..] if rest.len() <= 4 => {
                let mut octets = [0; 4];
                for (octet, label) in octets.iter_mut().zip(rest) {
                    *octet = label.parse().ok().filter(|n: &u8| n.to_string() == *label)?;
                }
                let prefix = 8 * rest.len() as u8;
                Some(Ipv4Net::new(Ipv4Addr::from(octets), prefix).ok()?.into())
            }
            ["arpa", "ip6", rest @ ..] if rest.len() <= 32 => {
                let mut bits = 0u128;
                for (at, label) in rest.iter().enumerate() {
                    let nibble = u128::from_str_radix(label, 16).ok().filter(|_| label.len() == 1)?;
                    bits |= nibble << (124 - 4 * at);
                }
                let prefix = 4 * rest.len() as u8;
                Some(Ipv6Net::new(Ipv6Addr::from_bits(bits), prefix).ok()?.into())
            }
            _ => None,
        }
    }

    /// The name of an address in in-addr.arpa or ip6.arpa.
    pub fn reverse(address: IpAddr) -> Self {
        Self::reverse_zone(address, if address.is_ipv4() { 32 } else { 128 })
    }

    /// The name of the addresses that share a prefix, whose length is rounded up to a whole label.
    fn reverse_zone(address: IpAddr, prefix: u8) -> Self {
        let (parts, suffix): (Vec<String>, [&str; 2]) = match address {
            IpAddr::V4(v4) => {
                let octets = v4.octets().into_iter().take(usize::from(prefix).div_ceil(8));
                (octets.map(|octet| octet.to_string()).collect(), ["in-addr", "arpa"])
            }
            IpAddr::V6(v6) => {
                let nibble = |at: usize| format!("{:x}", (v6.to_bits() >> (124 - 4 * at)) & 0xf);
                ((0..usize::from(prefix).div_ceil(4)).map(nibble).collect(), ["ip6", "arpa"])
            }
        };
        let labels = parts.iter().rev().map(String::as_str).chain(suffix);
        Self { labels: labels.map(Box::from).collect() }
    }

    /// The zone in which an address of a range is, at a label boundary: for 10.96.0.0/12, that of 10.97.0.1 is
    /// 97.10.in-addr.arpa.
    pub fn reverse_zone_of(address: IpAddr, range: &IpNet) -> Self {
        Self::reverse_zone(address, range.prefix_len())
    }

    /// The zones of a range, at label boundaries: at most 128.
    pub fn reverse_zones(range: &IpNet) -> Vec<Self> {
        let step = if range.addr().is_ipv4() { 8 } else { 4 };
        let prefix = range.prefix_len().div_ceil(step) * step;
        let nets: Vec<IpAddr> = match range {
            IpNet::V4(net) => net.subnets(prefix).into_iter().flatten().map(|n| n.network().into()).collect(),
            IpNet::V6(net) => net.subnets(prefix).into_iter().flatten().map(|n| n.network().into()).collect(),
        };
        nets.into_iter().map(|network| Self::reverse_zone(network, prefix)).collect()
    }
}

/// With the final dot.
impl fmt::Display for DnsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.labels.iter().try_for_each(|label| write!(f, "{label}."))?;
        if self.labels.is_empty() { f.write_str(".") } else { Ok(()) }
    }
}
