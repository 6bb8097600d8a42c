//! Which virtual servers are ours. IPVS has no field for an owner; our nftables table records each of our frontends, and
//! lives as long: it is read before the first change.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::{Family, Protocol};

use super::message::VirtualServerKey;
use crate::nftables::ir::{Data, Ruleset};
use crate::nftables::render::{ChainClass, ClientScope, FrontendLookup, SetName, protocol_of, table_id};

/// The frontends that our table passes to IPVS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordedFrontends {
    by_address: BTreeSet<VirtualServerKey>,
    node_ports: BTreeSet<(Family, Protocol, u16)>,
    /// First and last addresses of ServiceCIDRs.
    ranges: Vec<(IpAddr, IpAddr)>,
}

impl RecordedFrontends {
    /// Those of the tables that the kernel holds.
    pub(super) fn read(held: &Ruleset) -> Self {
        let mut recorded = Self::default();
        for family in [Family::V4, Family::V6] {
            let Some(table) = held.tables.get(&table_id(family)) else { continue };
            for (name, set) in &table.sets {
                if SetName::parse(name) == Some(SetName::ServiceCidrs) {
                    let ends = set.elements.iter().map(|(key, value)| (key.clone(), value.last(key).clone()));
                    recorded.ranges.extend(ends.filter_map(|(a, b)| Some((address(&a)?, address(&b)?))));
                }
                let Some(SetName::Frontends(lookup, ClientScope::All)) = SetName::parse(name) else {
                    continue;
                };
                let passed = set.elements.iter().filter(|(_, value)| is_passed(value.data.as_ref()));
                for (key, _) in passed {
                    recorded.add(family, lookup, key);
                }
            }
        }
        recorded
    }

    fn add(&mut self, family: Family, lookup: FrontendLookup, key: &[u8]) -> Option<()> {
        let width = match (lookup, family) {
            (FrontendLookup::NodePort, _) => 0,
            (FrontendLookup::Address, Family::V4) => 4,
            (FrontendLookup::Address, Family::V6) => 16,
        };
        let (host, rest) = key.split_at_checked(width)?;
        let protocol = protocol_of(*rest.first()?)?;
        let port = u16::from_be_bytes(rest.get(4..6)?.try_into().ok()?);
        match lookup {
            FrontendLookup::NodePort => drop(self.node_ports.insert((family, protocol, port))),
            FrontendLookup::Address => {
                let address = address(host)?;
                self.by_address.insert(VirtualServerKey { address, protocol, port });
            }
        }
        Some(())
    }

    /// Whether it is in a ServiceCIDR.
    pub(super) fn has_range_of(&self, key: &VirtualServerKey) -> bool {
        let is_same_family = |address: &IpAddr| address.is_ipv4() == key.address.is_ipv4();
        let mut of_family = self.ranges.iter().filter(|(first, _)| is_same_family(first));
        of_family.any(|(first, last)| (first..=last).contains(&&key.address))
    }

    /// `addresses` are the node's: a virtual server on another address with the port of a node port is not ours.
    pub(super) fn has(&self, key: &VirtualServerKey, addresses: &[IpAddr]) -> bool {
        let node_port = (Family::of(key.address), key.protocol, key.port);
        self.by_address.contains(key)
            || (self.node_ports.contains(&node_port) && addresses.contains(&key.address))
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

fn is_passed(data: Option<&Data>) -> bool {
    let Some(Data::Value(value)) = data else { return false };
    <[u8; 4]>::try_from(value.as_slice()).is_ok_and(|value| ChainClass::is_ipvs(u32::from_ne_bytes(value)))
}
