//! The conditions of a rule.

use std::net::{IpAddr, SocketAddr};

use super::super::IptablesError;
use super::super::rule::{
    AddrtypeKind, ConntrackStates, IptablesMatch, IptablesRule, Negatable, PacketDirection, PortsOf,
    RecentAction,
};
use super::{ConnectionState, Context, Walker};
use crate::nftables::render::protocol_number;

/// Whether a condition holds.
pub(super) enum Outcome {
    Yes,
    No,
    /// With this probability, in 2^-31.
    Random(u32),
}

impl From<bool> for Outcome {
    fn from(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }
}

fn all<T>(condition: Option<&Negatable<T>>, test: impl FnOnce(&T) -> bool) -> bool {
    condition.is_none_or(|condition| condition.holds(test))
}

/// An unknown interface has no name.
fn fits_interface(pattern: &str, name: Option<&str>) -> bool {
    let name = name.unwrap_or_default();
    match pattern.strip_suffix('+') {
        Some(prefix) => name.starts_with(prefix),
        None => name == pattern,
    }
}

impl<'r> Walker<'r> {
    pub(super) fn matches_header(&self, context: &Context<'r>, rule: &IptablesRule) -> bool {
        let protocol = protocol_number(context.packet.protocol);
        all(rule.protocol.as_ref(), |number| *number == protocol)
            && all(rule.source.as_ref(), |net| net.contains(&self.src.ip()))
            && all(rule.destination.as_ref(), |net| net.contains(&self.dst.ip()))
            && all(rule.in_interface.as_ref(), |pattern| fits_interface(pattern, self.in_interface))
            && all(rule.out_interface.as_ref(), |pattern| fits_interface(pattern, self.out_interface))
    }

    pub(super) fn condition(
        &mut self,
        context: &Context<'r>,
        condition: &'r IptablesMatch,
    ) -> Result<Outcome, IptablesError> {
        let protocol = protocol_number(context.packet.protocol);
        let holds = match condition {
            IptablesMatch::Comment(_) => true,
            IptablesMatch::Ports { protocol: of, source, destination, syn } => {
                *of == protocol
                    && all(source.as_ref(), |range| range.contains(self.src.port()))
                    && all(destination.as_ref(), |range| range.contains(self.dst.port()))
                    && all(syn.as_ref(), |()| context.state == ConnectionState::New)
            }
            IptablesMatch::Multiport { of, ports } => ports.holds(|ranges| {
                let any = |port: u16| ranges.iter().any(|range| range.contains(port));
                match of {
                    PortsOf::Source => any(self.src.port()),
                    PortsOf::Destination => any(self.dst.port()),
                    PortsOf::Either => any(self.src.port()) || any(self.dst.port()),
                }
            }),
            IptablesMatch::Conntrack { states, .. } => {
                states.holds(|states| self.has_state(context.state, *states))
            }
            IptablesMatch::AddressTypes { source, destination } => {
                let is = |address: IpAddr| move |kind: &AddrtypeKind| has_type(context, address, *kind);
                all(source.as_ref(), is(self.src.ip())) && all(destination.as_ref(), is(self.dst.ip()))
            }
            IptablesMatch::Random { probability: Negatable { negated, value } } => {
                let of = if *negated { super::FULL_PROBABILITY - value } else { *value };
                return Ok(Outcome::Random(of));
            }
            IptablesMatch::Recent { action, name, of, .. } => {
                let address = match of {
                    PacketDirection::Source => self.src.ip(),
                    PacketDirection::Destination => self.dst.ip(),
                };
                let is_known = context.node.recent.get(name).is_some_and(|seen| seen.contains(&address));
                action.holds(|action| match action {
                    RecentAction::Set => {
                        self.remembered.push(name.clone());
                        true
                    }
                    RecentAction::Check { .. } | RecentAction::Update { .. } | RecentAction::Remove => {
                        is_known
                    }
                })
            }
            IptablesMatch::Mark(of) => of.holds(|(value, mask)| self.mark & mask == *value),
            // No packet here comes in by a port of a bridge.
            IptablesMatch::FromBridgePort(of) => of.holds(|()| false),
            IptablesMatch::Set { name, of } => {
                let sets = &context.node.sets;
                let is_member = sets.contains(&name.value, of, protocol, self.src, self.dst)?;
                name.holds(|_| is_member)
            }
            IptablesMatch::Bpf(program) => program.matches(&header(protocol, self.src, self.dst))?,
            IptablesMatch::Nfacct(name) => {
                self.counted.push(name.clone());
                true
            }
            IptablesMatch::Ipvs { address, protocol: of, port } => {
                self.virtual_server.is_some_and(|server| {
                    all(address.as_ref(), |net| net.contains(&server.ip()))
                        && all(of.as_ref(), |number| *number == protocol)
                        && all(port.as_ref(), |port| *port == server.port())
                })
            }
            IptablesMatch::Other { module, options } => {
                let options = options.join(" ");
                return Err(IptablesError::new(format!("unknown match \"{module} {options}\"")));
            }
        };
        Ok(holds.into())
    }

    fn has_state(&self, state: ConnectionState, states: ConntrackStates) -> bool {
        let by_state = match state {
            ConnectionState::New => states.new,
            ConnectionState::Established => states.established,
            ConnectionState::Invalid => states.invalid,
        };
        by_state || (states.dnat && self.is_dnat) || (states.snat && self.is_snat)
    }
}

fn has_type(context: &Context<'_>, address: IpAddr, kind: AddrtypeKind) -> bool {
    let is_local = context.node.is_local(address);
    match kind {
        AddrtypeKind::Local => is_local,
        AddrtypeKind::Multicast => address.is_multicast(),
        AddrtypeKind::Unicast => !is_local && !address.is_multicast(),
    }
}

/// The headers that `-m bpf` reads: IP without options, then the ports.
fn header(protocol: u8, src: SocketAddr, dst: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(60);
    match (src.ip(), dst.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            bytes.extend([0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0]);
            bytes.extend(src.octets());
            bytes.extend(dst.octets());
        }
        (src, dst) => {
            bytes.extend([0x60, 0, 0, 0, 0, 20, protocol, 64]);
            bytes.extend(v6(src));
            bytes.extend(v6(dst));
        }
    }
    bytes.extend(src.port().to_be_bytes());
    bytes.extend(dst.port().to_be_bytes());
    bytes.resize(bytes.len() + 16, 0);
    bytes
}

fn v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}
