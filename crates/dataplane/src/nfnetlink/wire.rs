//! Framing of nfnetlink messages: header, nfgenmsg, attributes. Writing does not copy; reading never panics.

/// Length of a message header including nfgenmsg.
pub const HEADER: usize = 20;
const NESTED: u16 = 0x8000;
const TYPE_MASK: u16 = 0x3fff;

/// A buffer that messages are appended to.
#[derive(Debug, Clone, Default)]
pub struct MessageWriter {
    bytes: Vec<u8>,
}

/// Netlink header and nfgenmsg of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageHeader {
    /// Subsystem and message type.
    pub kind: u16,
    pub flags: u16,
    /// Sequence number, repeated in replies.
    pub seq: u32,
    pub family: u8,
    /// nfgenmsg version: 1 in a conntrack delete that filters by family, else 0.
    pub version: u8,
    /// nfgenmsg res_id.
    pub resource: u16,
}

impl MessageWriter {
    pub fn new() -> MessageWriter {
        MessageWriter::default()
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Reserves exactly this many more bytes; touching a page costs.
    pub fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve_exact(bytes);
    }

    pub fn position(&self) -> usize {
        self.bytes.len()
    }

    pub fn truncate(&mut self, position: usize) {
        self.bytes.truncate(position);
    }

    /// Appends a message.
    pub fn message(&mut self, header: MessageHeader, body: impl FnOnce(&mut MessageWriter)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&header.kind.to_ne_bytes());
        self.bytes.extend_from_slice(&header.flags.to_ne_bytes());
        self.bytes.extend_from_slice(&header.seq.to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&[header.family, header.version]);
        self.bytes.extend_from_slice(&header.resource.to_be_bytes());
        body(self);
        let len = u32::try_from(self.bytes.len() - start).unwrap_or(u32::MAX);
        self.bytes[start..start + 4].copy_from_slice(&len.to_ne_bytes());
    }

    /// Sets flags on the message that starts at a position.
    pub fn add_flags(&mut self, start: usize, flags: u16) {
        if let Some(place) = self.bytes.get_mut(start + 6..start + 8) {
            let old = u16::from_ne_bytes([place[0], place[1]]);
            place.copy_from_slice(&(old | flags).to_ne_bytes());
        }
    }

    fn attr_header(&mut self, kind: u16, len: usize) {
        // Every payload is far below 64 KiB: element lists are split before.
        let len = u16::try_from(len + 4).unwrap_or(u16::MAX);
        self.bytes.extend_from_slice(&len.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    pub fn attr(&mut self, kind: u16, value: &[u8]) {
        self.attr_header(kind, value.len());
        self.bytes.extend_from_slice(value);
        self.pad();
    }

    /// Appends encoded attributes.
    pub fn attributes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub fn attr_u8(&mut self, kind: u16, value: u8) {
        self.attr(kind, &[value]);
    }

    /// In network byte order.
    pub fn attr_u32(&mut self, kind: u16, value: u32) {
        self.attr(kind, &value.to_be_bytes());
    }

    /// In network byte order.
    pub fn attr_u64(&mut self, kind: u16, value: u64) {
        self.attr(kind, &value.to_be_bytes());
    }

    /// NUL-terminated.
    pub fn attr_str(&mut self, kind: u16, value: &str) {
        self.attr_header(kind, value.len() + 1);
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
        self.pad();
    }

    pub fn nested(&mut self, kind: u16, body: impl FnOnce(&mut MessageWriter)) {
        let start = self.bytes.len();
        self.attr_header(kind | NESTED, 0);
        body(self);
        let len = u16::try_from(self.bytes.len() - start).unwrap_or(u16::MAX);
        self.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes());
    }
}

/// One received message.
#[derive(Debug, Clone, Copy)]
pub struct RawMessage<'a> {
    /// Family and resource are zero if the message is too short for nfgenmsg.
    pub header: MessageHeader,
    /// Everything after the netlink header.
    pub payload: &'a [u8],
    /// The whole message, padding included.
    pub bytes: &'a [u8],
}

impl<'a> RawMessage<'a> {
    /// The attributes after nfgenmsg.
    pub fn attrs(&self) -> Attrs<'a> {
        Attrs::new(self.payload.get(4..).unwrap_or_default())
    }
}

/// The messages of a buffer, up to the first that is cut off.
pub fn messages(buffer: &[u8]) -> impl Iterator<Item = RawMessage<'_>> {
    let mut rest = buffer;
    std::iter::from_fn(move || {
        let len = usize::try_from(u32::from_ne_bytes(rest.get(..4)?.try_into().ok()?)).ok()?;
        let message = rest.get(..len).filter(|message| message.len() >= 16)?;
        let padded = len.next_multiple_of(4).min(rest.len());
        let bytes = &rest[..padded];
        rest = &rest[padded..];
        let half = |at: usize| u16::from_ne_bytes([message[at], message[at + 1]]);
        let payload = &message[16..];
        let resource = payload.get(2..4).map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
        let header = MessageHeader {
            kind: half(4),
            flags: half(6),
            seq: u32::from_ne_bytes([message[8], message[9], message[10], message[11]]),
            family: payload.first().copied().unwrap_or(0),
            version: payload.get(1).copied().unwrap_or(0),
            resource,
        };
        Some(RawMessage { header, payload, bytes })
    })
}

/// Whether a buffer ends at a message boundary.
pub fn whole(buffer: &[u8]) -> bool {
    messages(buffer).map(|raw| raw.bytes.len()).sum::<usize>() == buffer.len()
}

/// A sequence of attributes.
#[derive(Debug, Clone, Copy)]
pub struct Attrs<'a> {
    bytes: &'a [u8],
}

impl<'a> Attrs<'a> {
    pub fn new(bytes: &'a [u8]) -> Attrs<'a> {
        Attrs { bytes }
    }

    /// Each attribute with its type, up to the first that is cut off.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &'a [u8])> + use<'a> {
        let mut rest = self.bytes;
        std::iter::from_fn(move || {
            let head = rest.get(..4)?;
            let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
            let kind = u16::from_ne_bytes([head[2], head[3]]) & TYPE_MASK;
            let value = rest.get(4..len)?;
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
            Some((kind, value))
        })
    }

    pub fn find(&self, kind: u16) -> Option<&'a [u8]> {
        self.iter().find(|(number, _)| *number == kind).map(|(_, value)| value)
    }

    pub fn nested(&self, kind: u16) -> Option<Attrs<'a>> {
        self.find(kind).map(Attrs::new)
    }

    pub fn u8(&self, kind: u16) -> Option<u8> {
        self.find(kind)?.first().copied()
    }

    /// In network byte order.
    pub fn u32(&self, kind: u16) -> Option<u32> {
        Some(u32::from_be_bytes(self.find(kind)?.get(..4)?.try_into().ok()?))
    }

    /// In network byte order.
    pub fn u64(&self, kind: u16) -> Option<u64> {
        Some(u64::from_be_bytes(self.find(kind)?.get(..8)?.try_into().ok()?))
    }

    /// Text up to the terminating NUL.
    pub fn text(&self, kind: u16) -> Option<String> {
        let bytes = self.find(kind)?;
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        Some(String::from_utf8_lossy(text).into_owned())
    }
}
