//! IP addresses, IP families and protocols with the semantics of Kubernetes.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IP family.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    pub fn other(self) -> Self {
        match self {
            Self::V4 => Self::V6,
            Self::V6 => Self::V4,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// `addressType` of an EndpointSlice.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub enum AddressType {
    Ip(Family),
    /// DNS names, which service proxies ignore.
    Fqdn,
}

impl AddressType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ip(family) => family.as_str(),
            Self::Fqdn => "FQDN",
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The addresses of an endpoint or a pod. A single one, the usual case, is stored inline.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct Addresses(List);

#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
enum List {
    V4(Ipv4Addr),
    V6(Ipv6Addr),
    Many(Box<[IpAddr]>),
}

impl Addresses {
    pub fn one(address: IpAddr) -> Self {
        Self(match address {
            IpAddr::V4(v4) => List::V4(v4),
            IpAddr::V6(v6) => List::V6(v6),
        })
    }

    /// `None` if empty.
    pub fn from_slice(addresses: &[IpAddr]) -> Option<Self> {
        match addresses {
            [] => None,
            [one] => Some(Self::one(*one)),
            many => Some(Self(List::Many(many.into()))),
        }
    }

    /// The address that service proxies use (semantics B8: the others are ignored).
    pub fn first(&self) -> IpAddr {
        match &self.0 {
            List::V4(v4) => IpAddr::V4(*v4),
            List::V6(v6) => IpAddr::V6(*v6),
            List::Many(many) => many[0],
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let more = match &self.0 {
            List::Many(many) => &many[1..],
            List::V4(_) | List::V6(_) => &[],
        };
        std::iter::once(self.first()).chain(more.iter().copied())
    }
}

/// Why an address cannot be an endpoint: other nodes cannot reach it. API servers refuse these, except multicast addresses
/// beyond the link.
pub fn unreachable_range(address: IpAddr) -> Option<&'static str> {
    let is_link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if address.is_unspecified() {
        Some("the unspecified address")
    } else if address.is_loopback() {
        Some("a loopback address (127.0.0.0/8, ::1)")
    } else if is_link_local {
        Some("a link-local address (169.254.0.0/16, fe80::/10)")
    } else if address.is_multicast() {
        Some("a multicast address (224.0.0.0/4, ff00::/8)")
    } else {
        None
    }
}

/// Parses an address as Kubernetes does: leading zeros of IPv4 octets are ignored, and an IPv4-mapped IPv6 address
/// (`::ffff:10.0.0.1`) is an IPv4 address.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    let address = text.parse().ok().or_else(|| parse_ipv4_with_leading_zeros(text))?;
    Some(match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    })
}

fn parse_ipv4_with_leading_zeros(text: &str) -> Option<IpAddr> {
    let mut octets = [0u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        *octet = part.parse().ok()?;
    }
    parts.next().is_none().then(|| IpAddr::from(octets))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse_as_in_kubernetes() {
        for (text, read) in [
            ("10.0.0.1", Some("10.0.0.1")),
            ("010.000.0.01", Some("10.0.0.1")),
            ("::ffff:10.0.0.1", Some("10.0.0.1")),
            ("1234::5678:0000:0000:9abc:def0", Some("1234::5678:0:0:9abc:def0")),
            ("10.0.0", None),
            ("10.0.0.256", None),
            ("10.0.0.+1", None),
            ("", None),
        ] {
            assert_eq!(parse_ip(text).map(|a| a.to_string()).as_deref(), read, "{text}");
        }
    }

    #[test]
    fn a_single_address_is_stored_inline() {
        assert_eq!(size_of::<Addresses>(), 24);
        assert_eq!(size_of::<Option<Addresses>>(), 24);
        let two = Addresses::from_slice(&["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()]).unwrap();
        assert_eq!(two.iter().count(), 2);
        assert_eq!(Addresses::from_slice(&[]), None);
    }
}
