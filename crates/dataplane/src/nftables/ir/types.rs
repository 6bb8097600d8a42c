//! The types of key fields and data, and how keys are built. nft lists elements by these types; the kernel only knows
//! lengths.

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
    /// The result of `Numgen`: a 32-bit number in host byte order, printed in decimal. nft can load its own listing only
    /// if a field that is looked up with a result of `Numgen` has this type, and one looked up with a mark `Mark`.
    Index,
    /// `ifname`: the name of an interface, sixteen bytes
    IfName,
    /// `fib_addrtype`: local, unicast, ... as `fib` answers
    FibAddrType,
    /// `ct_state`: new, established, ...
    CtState,
    /// A type that we do not use, by nft's number; only in foreign objects.
    Other { id: u8, width: u8 },
}

impl FieldType {
    /// Length in bytes, without padding.
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

    /// Length in a concatenation, which pads each field to four bytes.
    pub fn padded_width(self) -> usize {
        self.width().next_multiple_of(4)
    }
}

/// The length of a key: a single field is not padded, the fields of a concatenation are.
pub(super) fn fields_width(fields: &[FieldType]) -> usize {
    match fields {
        [one] => one.width(),
        many => many.iter().map(|field| field.padded_width()).sum(),
    }
}

/// The data type of a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataType {
    Fields(Vec<FieldType>),
    Verdict,
}

impl DataType {
    /// Length in bytes.
    pub fn width(&self) -> usize {
        match self {
            DataType::Fields(fields) => fields_width(fields),
            DataType::Verdict => 16,
        }
    }
}

/// The kernel's limit of keys and data.
const LONGEST: usize = 64;

/// Builds a key (or data) field by field, with padding. On the stack: a load builds hundreds of thousands.
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

    #[inline]
    pub fn address(self, address: IpAddr) -> KeyBuilder {
        match address {
            IpAddr::V4(address) => self.field(&address.octets()),
            IpAddr::V6(address) => self.field(&address.octets()),
        }
    }

    pub fn protocol(self, number: u8) -> KeyBuilder {
        self.field(&[number])
    }

    #[inline]
    pub fn port(self, port: u16) -> KeyBuilder {
        self.field(&port.to_be_bytes())
    }

    /// Appends a result of `Numgen`.
    pub fn index(self, value: u32) -> KeyBuilder {
        self.mark(value)
    }

    #[inline]
    pub fn mark(self, value: u32) -> KeyBuilder {
        self.field(&value.to_ne_bytes())
    }

    /// Appends an interface name, cut at fifteen bytes like the kernel's.
    pub fn interface(self, name: &str) -> KeyBuilder {
        let mut bytes = [0; 16];
        let len = name.len().min(15);
        bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
        self.field(&bytes)
    }

    /// Overwrites the field that starts at a byte.
    #[inline]
    pub fn put<const LEN: usize>(&mut self, at: usize, bytes: [u8; LEN]) {
        self.bytes[at..at + LEN].copy_from_slice(&bytes);
    }

    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        let len = if self.fields == 1 { self.last_len } else { self.len };
        &self.bytes[..len]
    }

    pub fn bytes(self) -> Bytes {
        Bytes::from(self.as_slice())
    }
}
