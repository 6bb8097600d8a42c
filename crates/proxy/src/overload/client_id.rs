//! Who a client is, as far as a socket shows it.

use std::net::{IpAddr, Ipv6Addr};

/// The source of connections that share one share: an IPv4 address, or the /64 of an IPv6 address, which one host has
/// to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClientId(IpAddr);

impl ClientId {
    pub(crate) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(v6) => {
                let network = u128::from(v6) & !u128::from(u64::MAX);
                Self(Ipv6Addr::from(network).into())
            }
            v4 => Self(v4),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_one_ipv6_network_are_one_client() {
        let id = |text: &str| ClientId::of(text.parse().unwrap());
        assert_eq!(id("2001:db8:1:2:3::4"), id("2001:db8:1:2::9"));
        assert_ne!(id("2001:db8:1:2::1"), id("2001:db8:1:3::1"));
        assert_eq!(id("::ffff:10.0.0.1"), id("10.0.0.1"));
        assert_ne!(id("10.0.0.1"), id("10.0.0.2"));
    }
}
