//! ipsets, for `-m set`: the types that kube-proxy uses, by their dimensions.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::IptablesError;
use super::parse::words;
use super::rule::{PacketDirection, PortRange, protocol_number};

/// One set, such as `hash:ip,port`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpSet {
    dimensions: Vec<Dimension>,
    members: Vec<Vec<Part>>,
}

/// All sets by name, as `ipset save` lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpSets(pub BTreeMap<String, IpSet>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dimension {
    Address,
    Port,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Network(IpNet),
    /// Without a protocol in a bitmap.
    Port(Option<u8>, PortRange),
}

impl IpSets {
    /// Parses the output of `ipset save`.
    pub fn parse(text: &str) -> Result<Self, IptablesError> {
        let mut sets = BTreeMap::<String, IpSet>::new();
        for (index, line) in text.lines().enumerate() {
            let line_number = index + 1;
            let words = words(line).map_err(|error| error.at(line_number))?;
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            match words.as_slice() {
                [] => {}
                ["create", name, kind, ..] => {
                    let set = IpSet { dimensions: dimensions(kind), members: Vec::new() };
                    sets.insert((*name).to_string(), set);
                }
                ["add", name, member, ..] => {
                    let set = sets.get_mut(*name).ok_or_else(|| unknown(name).at(line_number))?;
                    // Sets of other types are kept without members: a rule that uses one cannot be evaluated.
                    if !set.dimensions.is_empty() {
                        set.members.push(parts(&set.dimensions, member).map_err(|e| e.at(line_number))?);
                    }
                }
                _ => return Err(IptablesError::new(format!("unknown line {line:?}")).at(line_number)),
            }
        }
        Ok(Self(sets))
    }

    /// Whether a packet is in a set.
    pub(super) fn contains(
        &self,
        name: &str,
        of: &[PacketDirection],
        protocol: u8,
        src: SocketAddr,
        dst: SocketAddr,
    ) -> Result<bool, IptablesError> {
        let set = self.0.get(name).ok_or_else(|| unknown(name))?;
        if set.dimensions.is_empty() {
            return Err(IptablesError::new(format!("ipset {name:?} has an unknown type")));
        }
        if of.len() < set.dimensions.len() {
            return Err(IptablesError::new(format!("too few directions for ipset {name:?}")));
        }
        let side = |direction: &PacketDirection| match direction {
            PacketDirection::Source => src,
            PacketDirection::Destination => dst,
        };
        Ok(set.members.iter().any(|member| {
            member.iter().zip(of).all(|(part, direction)| match part {
                Part::Network(net) => net.contains(&side(direction).ip()),
                Part::Port(of_protocol, ports) => {
                    of_protocol.is_none_or(|number| number == protocol)
                        && ports.contains(side(direction).port())
                }
            })
        }))
    }
}

fn unknown(name: &str) -> IptablesError {
    IptablesError::new(format!("unknown ipset {name:?}"))
}

/// Empty for a type that is not known.
fn dimensions(kind: &str) -> Vec<Dimension> {
    let dimension = |name: &str| match name {
        "ip" | "net" => Some(Dimension::Address),
        "port" => Some(Dimension::Port),
        _ => None,
    };
    let known = kind.split_once(':').map(|(_, names)| names.split(',').map(dimension).collect());
    known.flatten().unwrap_or_default()
}

fn parts(dimensions: &[Dimension], member: &str) -> Result<Vec<Part>, IptablesError> {
    let wrong = || IptablesError::new(format!("{member:?} is no member of its ipset"));
    let texts: Vec<&str> = member.split(',').collect();
    if texts.len() != dimensions.len() {
        return Err(wrong());
    }
    let part = |(dimension, text): (&Dimension, &&str)| match dimension {
        Dimension::Address => {
            let net = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).ok()?;
            Some(Part::Network(net))
        }
        Dimension::Port => {
            let (protocol, ports) = match text.split_once(':') {
                Some((protocol, ports)) => (Some(protocol_number(protocol)??), ports),
                None => (None, *text),
            };
            let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
            let range = PortRange { first: first.parse().ok()?, last: last.parse().ok()? };
            Some(Part::Port(protocol, range))
        }
    };
    dimensions.iter().zip(&texts).map(part).collect::<Option<_>>().ok_or_else(wrong)
}
