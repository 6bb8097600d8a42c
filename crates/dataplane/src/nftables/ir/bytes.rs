//! Short byte strings without an allocation: keys and data of IPv4 elements have at most 16 bytes, data of IPv6 elements
//! 20, and a node holds hundreds of thousands of them.

use std::fmt;
use std::ops::Deref;

const INLINE: usize = 22;

/// A byte string; up to 22 bytes are stored inline.
#[derive(Clone)]
pub struct Bytes(Store);

#[derive(Clone)]
enum Store {
    Inline { len: u8, buffer: [u8; INLINE] },
    Heap(Box<[u8]>),
}

impl Bytes {
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Store::Inline { len, buffer } => &buffer[..usize::from(*len)],
            Store::Heap(bytes) => bytes,
        }
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Bytes {
        if bytes.len() > INLINE {
            return Bytes(Store::Heap(bytes.into()));
        }
        let mut buffer = [0; INLINE];
        buffer[..bytes.len()].copy_from_slice(bytes);
        // INLINE is far below 256.
        Bytes(Store::Inline { len: bytes.len() as u8, buffer })
    }
}

impl<const N: usize> From<[u8; N]> for Bytes {
    fn from(bytes: [u8; N]) -> Bytes {
        Bytes::from(bytes.as_slice())
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        Bytes::from(bytes.as_slice())
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl std::borrow::Borrow<[u8]> for Bytes {
    fn borrow(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Bytes) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Bytes {}

impl PartialOrd for Bytes {
    fn partial_cmp(&self, other: &Bytes) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Bytes {
    fn cmp(&self, other: &Bytes) -> std::cmp::Ordering {
        self.as_slice().cmp(other.as_slice())
    }
}

impl std::hash::Hash for Bytes {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_slice().hash(state);
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}
