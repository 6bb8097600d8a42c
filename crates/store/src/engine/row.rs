//! The encoding of one version of an object, in the table of versions and in the journal.
//! Numbers are little endian. Each row ends with a checksum over revision and content, verified on every read. The JSON of
//! a sealed row is what [`super::encryption`] made of it; encoding and decoding need no key.

use bytes::Bytes;

use super::error::StorageError;
use super::key::{ResourceId, Revision, StoreKey, StoredObject};

const PUT: u8 = 1;
const DELETE: u8 = 2;
/// Of a store in the format for encryption, which older programs refuse.
const SEALED_PUT: u8 = 3;
const SEALED_DELETE: u8 = 4;

/// Size of a row without its texts: kind, previous, expiry, resource, two lengths, checksum.
const FIXED: usize = 1 + 8 + 8 + 2 + 4 + 4 + 4;

/// One version of an object, or a tombstone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub key: StoreKey,
    pub deleted: bool,
    /// The revision of the row before, also if that is a tombstone; 0 if there was none.
    pub previous: u64,
    pub expires: Option<u64>,
    /// Whether the JSON is encrypted.
    pub sealed: bool,
    pub json: Bytes,
}

impl Row {
    pub(super) fn into_stored(self, revision: u64) -> Option<StoredObject> {
        let Row { key, deleted, expires, json, .. } = self;
        (!deleted).then_some(StoredObject { key, revision: Revision(revision), expires, json })
    }

    /// Appends the row.
    pub(super) fn encode(&self, revision: u64, out: &mut Vec<u8>) {
        let names = self.key.namespace.len() + self.key.name.len();
        out.reserve(FIXED + names + self.json.len());
        let start = out.len();
        out.push(match (self.sealed, self.deleted) {
            (false, false) => PUT,
            (false, true) => DELETE,
            (true, false) => SEALED_PUT,
            (true, true) => SEALED_DELETE,
        });
        out.extend(self.previous.to_le_bytes());
        // Zero means never, so an expiry at 1970 moves by a second.
        out.extend(self.expires.map_or(0, |at| at.max(1)).to_le_bytes());
        out.extend(self.key.resource.0.to_le_bytes());
        for text in [&self.key.namespace, &self.key.name] {
            out.extend((text.len() as u32).to_le_bytes());
            out.extend(text.as_bytes());
        }
        out.extend(&self.json[..]);
        let sum = checksum(revision, &out[start..]);
        out.extend(sum.to_le_bytes());
    }

    pub(super) fn decode(revision: u64, bytes: &[u8]) -> Result<Row, StorageError> {
        let row = verified(revision, bytes).and_then(decode);
        row.ok_or_else(|| {
            StorageError::damaged(format!("the object written at revision {revision} cannot be read"))
        })
    }

    /// Decodes the field `previous` alone.
    pub(super) fn previous_of(bytes: &[u8]) -> Result<u64, StorageError> {
        let field = bytes.get(1..9).and_then(|field| field.try_into().ok());
        field
            .map(u64::from_le_bytes)
            .ok_or_else(|| StorageError::damaged("a version of an object is truncated"))
    }
}

/// Includes the revision, so that a row in the wrong place does not verify.
fn checksum(revision: u64, content: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&revision.to_le_bytes());
    sum.update(content);
    sum.finalize()
}

fn verified(revision: u64, bytes: &[u8]) -> Option<&[u8]> {
    let (content, sum) = bytes.split_last_chunk::<4>()?;
    (checksum(revision, content) == u32::from_le_bytes(*sum)).then_some(content)
}

fn decode(mut bytes: &[u8]) -> Option<Row> {
    let (sealed, deleted) = match take::<1>(&mut bytes)? {
        [PUT] => (false, false),
        [DELETE] => (false, true),
        [SEALED_PUT] => (true, false),
        [SEALED_DELETE] => (true, true),
        _ => return None,
    };
    let previous = u64::from_le_bytes(take(&mut bytes)?);
    let expires = u64::from_le_bytes(take(&mut bytes)?);
    let resource = ResourceId(u16::from_le_bytes(take(&mut bytes)?));
    let namespace = take_text(&mut bytes)?;
    let name = take_text(&mut bytes)?;
    let key = StoreKey { resource, namespace, name };
    let expires = (expires != 0).then_some(expires);
    Some(Row { key, deleted, previous, expires, sealed, json: Bytes::copy_from_slice(bytes) })
}

/// Takes bytes off the front.
pub(super) fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*head)
}

fn take_text(bytes: &mut &[u8]) -> Option<Box<str>> {
    let len = u32::from_le_bytes(take(bytes)?) as usize;
    let (head, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    std::str::from_utf8(head).ok().map(Box::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(row: &Row, revision: u64) -> Vec<u8> {
        let mut out = b"before".to_vec();
        row.encode(revision, &mut out);
        out.split_off("before".len())
    }

    proptest! {
        #[test]
        fn a_row_reads_back_as_it_was_written(
            deleted: bool, sealed: bool, previous: u64, expires in proptest::option::of(1..u64::MAX), resource: u16,
            namespace: String, name: String, json: Vec<u8>, revision: u64,
        ) {
            let key = StoreKey::new(ResourceId(resource), &namespace, &name);
            let row = Row { key, deleted, previous, expires, sealed, json: json.into() };
            let bytes = encoded(&row, revision);
            prop_assert_eq!(Row::previous_of(&bytes).unwrap(), previous);
            prop_assert_eq!(Row::decode(revision, &bytes).unwrap(), row);
            prop_assert!(Row::decode(revision ^ 1, &bytes).is_err());
        }

        #[test]
        fn a_flipped_bit_is_seen(json: Vec<u8>, at: prop::sample::Index, bit in 0..8u8) {
            let key = StoreKey::new(ResourceId(1), "default", "web");
            let row = Row { key, deleted: false, previous: 1, expires: None, sealed: false, json: json.into() };
            let mut bytes = encoded(&row, 7);
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert!(Row::decode(7, &bytes).is_err());
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>) {
            let _ = Row::decode(1, &bytes);
            let _ = decode(&bytes);
            let _ = Row::previous_of(&bytes);
        }
    }
}
