//! The entries of the program's maps, byte by byte as `bpf/accelerator.c` has them. Numbers are little endian, as in the
//! object that is loaded.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Slots in one entry of the map `slots`.
pub(crate) const CHUNK: usize = 8;
pub(super) const ADDRESS: usize = 20;

pub(super) type AddressBytes = [u8; ADDRESS];
pub(super) type FrontendBytes = [u8; 12];
pub(super) type ChunkKeyBytes = [u8; 8];
pub(super) type ChunkBytes = [u8; ADDRESS * CHUNK];
pub(super) type PairBytes = [u8; ADDRESS * 2];
pub(super) type SettingsBytes = [u8; 24];

/// Sockets of pods are left to the rules: an endpoint is on this node and may be the client itself.
pub(crate) const NOT_FROM_PODS: u32 = 1;
/// Sockets of the node's own network namespace are left to the rules, which masquerade them.
pub(crate) const NOT_FROM_NODE: u32 = 2;
/// Only sockets of the node's own network namespace are rewritten.
pub(super) const NODE_ONLY: u64 = 1;

/// An entry of the map `frontends`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontendEntry {
    /// Of its slots.
    pub id: u32,
    pub slots: u32,
    pub flags: u32,
}

/// A key of the map `slots`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChunkKey {
    pub id: u32,
    pub number: u32,
}

/// An entry of the map `slots`: up to `CHUNK` endpoints.
pub type Chunk = Vec<SocketAddr>;

/// The only entry of the map `settings`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcceleratorSettings {
    /// Nanoseconds of the monotonic clock; afterwards every socket is left to the rules.
    pub valid_until: u64,
    /// The cookie of the node's own network namespace.
    pub node_netns: u64,
    pub is_node_only: bool,
}

/// IPv4 addresses are mapped into IPv6: a socket of IPv6 may use either form.
pub(super) fn address(address: SocketAddr) -> AddressBytes {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut bytes = [0; ADDRESS];
    bytes[..16].copy_from_slice(&ip.octets());
    bytes[16..18].copy_from_slice(&address.port().to_be_bytes());
    bytes
}

/// `None` where the port is 0: an unused slot.
pub(super) fn read_address(bytes: &[u8]) -> Option<SocketAddr> {
    let ip: [u8; 16] = bytes.get(..16)?.try_into().ok()?;
    let port = u16::from_be_bytes(bytes.get(16..18)?.try_into().ok()?);
    let ip = Ipv6Addr::from(ip).to_canonical();
    (port != 0).then(|| SocketAddr::new(ip, port))
}

fn number(bytes: &[u8], index: usize) -> u32 {
    let at = index * 4;
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

impl FrontendEntry {
    pub(super) fn bytes(self) -> FrontendBytes {
        let mut bytes = [0; 12];
        for (place, number) in bytes.chunks_exact_mut(4).zip([self.id, self.slots, self.flags]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    pub(super) fn read(bytes: &FrontendBytes) -> Self {
        Self { id: number(bytes, 0), slots: number(bytes, 1), flags: number(bytes, 2) }
    }

    /// The keys of its slots.
    pub fn chunks(self) -> impl Iterator<Item = ChunkKey> {
        (0..self.slots.div_ceil(CHUNK as u32)).map(move |number| ChunkKey { id: self.id, number })
    }
}

impl ChunkKey {
    pub(super) fn bytes(self) -> ChunkKeyBytes {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&self.id.to_le_bytes());
        bytes[4..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    pub(super) fn read(bytes: &ChunkKeyBytes) -> Self {
        Self { id: number(bytes, 0), number: number(bytes, 1) }
    }
}

pub(super) fn chunk(slots: &[SocketAddr]) -> ChunkBytes {
    let mut bytes = [0; ADDRESS * CHUNK];
    for (place, slot) in bytes.chunks_exact_mut(ADDRESS).zip(slots) {
        place.copy_from_slice(&address(*slot));
    }
    bytes
}

pub(super) fn read_chunk(bytes: &ChunkBytes) -> Chunk {
    bytes.chunks_exact(ADDRESS).map_while(read_address).collect()
}

pub(super) fn pair(frontend: SocketAddr, endpoint: SocketAddr) -> PairBytes {
    let mut bytes = [0; ADDRESS * 2];
    bytes[..ADDRESS].copy_from_slice(&address(frontend));
    bytes[ADDRESS..].copy_from_slice(&address(endpoint));
    bytes
}

/// Frontend and endpoint.
pub(super) fn read_pair(bytes: &PairBytes) -> Option<(SocketAddr, SocketAddr)> {
    Some((read_address(&bytes[..ADDRESS])?, read_address(&bytes[ADDRESS..])?))
}

impl AcceleratorSettings {
    pub(super) fn bytes(self) -> SettingsBytes {
        let mut bytes = [0; 24];
        let flags = if self.is_node_only { NODE_ONLY } else { 0 };
        for (place, number) in bytes.chunks_exact_mut(8).zip([self.valid_until, self.node_netns, flags]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    pub(super) fn read(bytes: &SettingsBytes) -> Self {
        let number = |index: usize| {
            u64::from(number(bytes, 2 * index)) | u64::from(number(bytes, 2 * index + 1)) << 32
        };
        Self { valid_until: number(0), node_netns: number(1), is_node_only: number(2) & NODE_ONLY != 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_as_they_were_written() {
        for text in ["10.96.0.1:80", "[fd00::1]:443"] {
            let one: SocketAddr = text.parse().expect("an address");
            assert_eq!(read_address(&address(one)), Some(one));
            assert_eq!(read_chunk(&chunk(&[one; 3])), [one; 3]);
            assert_eq!(read_pair(&pair(one, one)), Some((one, one)));
        }
        let entry = FrontendEntry { id: 7, slots: 17, flags: NOT_FROM_PODS | NOT_FROM_NODE };
        assert_eq!(FrontendEntry::read(&entry.bytes()), entry);
        assert_eq!(entry.chunks().map(|key| key.number).collect::<Vec<_>>(), [0, 1, 2]);
        let key = ChunkKey { id: 0x01020304, number: 9 };
        assert_eq!(ChunkKey::read(&key.bytes()), key);
        let settings =
            AcceleratorSettings { valid_until: 1 << 40 | 5, node_netns: 1 << 33 | 6, is_node_only: true };
        assert_eq!(AcceleratorSettings::read(&settings.bytes()), settings);
    }

    #[test]
    fn ports_are_in_network_order_and_ipv4_is_mapped() {
        let bytes = address("1.2.3.4:258".parse().expect("an address"));
        assert_eq!(bytes[10..], [0xff, 0xff, 1, 2, 3, 4, 1, 2, 0, 0]);
    }
}
