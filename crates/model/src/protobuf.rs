//! Objects of the Kubernetes API on the wire in protobuf: the envelopes around a message, which are the same for all kinds.
//!
//! ```text
//! response:  "k8s\0" + Unknown { typeMeta { apiVersion, kind }, raw } -> raw is the message of an object, list or Status
//! watch:     length (4 bytes, big-endian) + WatchEvent { type, object { raw } }, and so on; raw is a response as above
//! ```
//!
//! The messages of objects are parsed by [`crate::parse::message`].

pub mod wire;

use wire::{FieldValue, WireError, WireFields};

/// The content type of responses; a watch adds [`STREAM`].
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
/// The parameter of the content type of a watch.
pub const STREAM: &str = ";stream=watch";
/// The first bytes of every response.
pub const MAGIC: &[u8] = b"k8s\0";

/// Longest frame of a watch. An object has at most 1.5 MB in etcd.
pub const MAX_FRAME: usize = 16 << 20;
/// Bytes of the length in front of a frame.
pub const FRAME_HEADER: usize = 4;

/// An object with its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    pub api_version: &'a str,
    pub kind: &'a str,
    /// The message.
    pub raw: &'a [u8],
}

/// Opens the envelope of a response or of the object of an event.
pub fn envelope(content: &[u8]) -> Result<Envelope<'_>, WireError> {
    let unknown = content.strip_prefix(MAGIC).ok_or(WireError("the prefix k8s\\0 is missing"))?;
    let mut envelope = Envelope { api_version: "", kind: "", raw: &[] };
    for field in WireFields::of(unknown) {
        match field? {
            (1, FieldValue::Bytes(meta)) => (envelope.api_version, envelope.kind) = type_meta(meta)?,
            (2, FieldValue::Bytes(bytes)) => envelope.raw = bytes,
            (3, FieldValue::Bytes(encoding)) if !encoding.is_empty() => {
                return Err(WireError("contentEncoding is not supported"));
            }
            _ => {}
        }
    }
    Ok(envelope)
}

fn type_meta(bytes: &[u8]) -> Result<(&str, &str), WireError> {
    let (mut api_version, mut kind) = ("", "");
    for field in WireFields::of(bytes) {
        match field? {
            (1, value) => api_version = value.text()?,
            (2, value) => kind = value.text()?,
            _ => {}
        }
    }
    Ok((api_version, kind))
}

/// The length of the first frame of a watch without its header; `None` if the header is not complete.
pub fn frame_length(bytes: &[u8]) -> Result<Option<usize>, WireError> {
    let Some(header) = bytes.first_chunk::<FRAME_HEADER>() else { return Ok(None) };
    match usize::try_from(u32::from_be_bytes(*header)) {
        Ok(length) if length <= MAX_FRAME => Ok(Some(length)),
        _ => Err(WireError("a frame is too long")),
    }
}

/// The type of a watch event, and its object in an envelope.
pub fn watch_event(frame: &[u8]) -> Result<(&str, &[u8]), WireError> {
    let (mut word, mut object) = ("", &[][..]);
    for field in WireFields::of(frame) {
        match field? {
            (1, value) => word = value.text()?,
            (2, value) => object = only_field(value.bytes()?)?,
            _ => {}
        }
    }
    Ok((word, object))
}

/// The bytes of the first field of a message.
fn only_field(bytes: &[u8]) -> Result<&[u8], WireError> {
    let mut found = &[][..];
    for field in WireFields::of(bytes) {
        if let (1, value) = field? {
            found = value.bytes()?;
        }
    }
    Ok(found)
}

/// The metadata of a list, and the messages of its items.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListMessage<'a> {
    pub resource_version: &'a str,
    pub continue_token: &'a str,
    pub items: Vec<&'a [u8]>,
}

/// Opens the message of a list.
pub fn list(raw: &[u8]) -> Result<ListMessage<'_>, WireError> {
    let mut list = ListMessage::default();
    for field in WireFields::of(raw) {
        match field? {
            (1, value) => {
                for field in WireFields::of(value.bytes()?) {
                    match field? {
                        (2, value) => list.resource_version = value.text()?,
                        (3, value) => list.continue_token = value.text()?,
                        _ => {}
                    }
                }
            }
            (2, value) => list.items.push(value.bytes()?),
            _ => {}
        }
    }
    Ok(list)
}

/// The metadata of an object that a watch needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageHead<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub resource_version: &'a str,
    /// Of a bookmark: all objects that existed when the watch began were sent.
    pub ends_initial_events: bool,
}

/// The metadata of the message of any kind.
pub fn head(raw: &[u8]) -> Result<MessageHead<'_>, WireError> {
    let mut head = MessageHead::default();
    for field in WireFields::of(raw) {
        let (1, metadata) = field? else { continue };
        head = MessageHead::default();
        for field in WireFields::of(metadata.bytes()?) {
            match field? {
                (1, value) => head.name = value.text()?,
                (3, value) => head.namespace = value.text()?,
                (6, value) => head.resource_version = value.text()?,
                (12, value) => {
                    let key = only_field(value.bytes()?)?;
                    head.ends_initial_events |= key == b"k8s.io/initial-events-end";
                }
                _ => {}
            }
        }
    }
    Ok(head)
}

/// A failure that the API reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatusMessage<'a> {
    pub message: &'a str,
    pub reason: &'a str,
    pub code: u16,
}

/// The message of a Status.
pub fn status(raw: &[u8]) -> Result<StatusMessage<'_>, WireError> {
    let mut status = StatusMessage::default();
    for field in WireFields::of(raw) {
        match field? {
            (3, value) => status.message = value.text()?,
            (4, value) => status.reason = value.text()?,
            (6, value) => status.code = u16::try_from(value.number()?).unwrap_or_default(),
            _ => {}
        }
    }
    Ok(status)
}
