//! The types of key fields and data: how long they are, and how a key is put together. nft prints elements by these
//! types; the kernel only counts bytes.

use std::net::IpAddr;

use super::Bytes;

/// The type of one field of a key or of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FieldType {
    /// `ipv4_addr`
    Ipv4Addr,
    /// `ipv6_addr`
    Ipv6Addr,
    /// `inet_proto`: the transport protocol
    InetProto,
    /// `inet_service`: a port
    InetService,
    /// `mark`: a 32-bit number in host byte order, printed in hex
    Mark,
    /// What `Numgen` makes: a 32-bit number in host byte order, printed in decimal. nft reads a listing back
    /// only if a field that is looked up with a number of `Numgen` has this type, and one that is looked up with a mark
    /// has the type `Mark`.
    Index,
    /// `ifname`: the name of an interface, sixteen bytes
    IfName,
    /// `fib_addrtype`: local, unicast, ... as `fib` answers
    FibAddrType,
    /// `ct_state`: new, established, ...
    CtState,
    /// A type that is not one of ours, by nft's number; only in what others wrote into our tables.
    Other {
        /// nft's number for the type.
        id: u8,
        /// Its length in bytes.
        width: u8,
    },
}

impl FieldType {
    /// Its length in bytes, without padding.
    pub fn width(self) -> usize {
        match self {
            FieldType::InetProto => 1,
            FieldType::InetService => 2,
            FieldType::Ipv4Addr
            | FieldType::Mark
            | FieldType::Index
            | FieldType::FibAddrType
            | FieldType::CtState => 4,
            FieldType::Ipv6Addr | FieldType::IfName => 16,
            FieldType::Other { width, .. } => usize::from(width),
        }
    }

    /// Its length in registers' bytes: a concatenation pads each field to four.
    pub fn padded_width(self) -> usize {
        self.width().next_multiple_of(4)
    }
}

/// The length of fields one after the other. A single field is not padded, several are, each.
pub(super) fn fields_width(fields: &[FieldType]) -> usize {
    match fields {
        [one] => one.width(),
        many => many.iter().map(|field| field.padded_width()).sum(),
    }
}

/// What a map answers with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataType {
    /// Values of these fields.
    Fields(Vec<FieldType>),
    /// A verdict.
    Verdict,
}

impl DataType {
    /// The bytes of an answer; a verdict counts as the kernel counts it.
    pub fn width(&self) -> usize {
        match self {
            DataType::Fields(fields) => fields_width(fields),
            DataType::Verdict => 16,
        }
    }
}

/// The kernel's keys and data end here; the longest of ours is two IPv6 addresses, protocol and port.
const LONGEST: usize = 64;

/// Puts a key (or data) together field by field, padded as the kernel wants it. In place: a load makes hundreds of
/// thousands of them.
#[derive(Debug, Clone, Copy)]
pub struct KeyBuilder {
    bytes: [u8; LONGEST],
    len: usize,
    fields: usize,
    last_len: usize,
}

impl Default for KeyBuilder {
    fn default() -> KeyBuilder {
        KeyBuilder { bytes: [0; LONGEST], len: 0, fields: 0, last_len: 0 }
    }
}

impl KeyBuilder {
    /// Nothing yet.
    pub fn new() -> KeyBuilder {
        KeyBuilder::default()
    }

    #[inline]
    fn field(mut self, bytes: &[u8]) -> KeyBuilder {
        assert!(self.len + bytes.len() <= LONGEST, "no key of ours has so many fields");
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len = (self.len + bytes.len()).next_multiple_of(4);
        self.fields += 1;
        self.last_len = bytes.len();
        self
    }

    /// Appends an address of either family.
    #[inline]
    pub fn address(self, address: IpAddr) -> KeyBuilder {
        match address {
            IpAddr::V4(address) => self.field(&address.octets()),
            IpAddr::V6(address) => self.field(&address.octets()),
        }
    }

    /// Appends a transport protocol by its number.
    pub fn protocol(self, number: u8) -> KeyBuilder {
        self.field(&[number])
    }

    /// Appends a port.
    #[inline]
    pub fn port(self, port: u16) -> KeyBuilder {
        self.field(&port.to_be_bytes())
    }

    /// Appends a number that `Numgen` makes.
    pub fn index(self, value: u32) -> KeyBuilder {
        self.mark(value)
    }

    /// Appends a mark.
    #[inline]
    pub fn mark(self, value: u32) -> KeyBuilder {
        self.field(&value.to_ne_bytes())
    }

    /// Appends the name of an interface, cut at fifteen bytes as the kernel's are.
    pub fn interface(self, name: &str) -> KeyBuilder {
        let mut bytes = [0; 16];
        let len = name.len().min(15);
        bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
        self.field(&bytes)
    }

    /// Puts other bytes where a field begins.
    #[inline]
    pub fn put<const LEN: usize>(&mut self, at: usize, bytes: [u8; LEN]) {
        self.bytes[at..at + LEN].copy_from_slice(&bytes);
    }

    /// The bytes so far.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        let len = if self.fields == 1 { self.last_len } else { self.len };
        &self.bytes[..len]
    }

    /// The key.
    pub fn bytes(self) -> Bytes {
        Bytes::from(self.as_slice())
    }
}
