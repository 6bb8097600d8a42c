//! Compressed watches. The events of a batch are deflated on their own and end at a byte boundary: they refer to nothing
//! before them, so that equal watches share the bytes, and each response is one ordinary gzip stream.
//!
//! ```text
//! header | batch | batch | ... | empty last block, checksum and length of all batches
//! ```

use bytes::{BufMut, Bytes, BytesMut};
use crc32fast::Hasher;
use flate2::{Compress, Compression, FlushCompress};

/// Of RFC 1952: deflate, without name and time.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
/// A block that is the last and has nothing.
const LAST_BLOCK: [u8; 2] = [3, 0];

/// Events as they are sent.
#[derive(Clone, Debug, Default)]
pub(super) struct EncodedEvents {
    pub(super) bytes: Bytes,
    /// Of the events before they were compressed.
    checksum: Option<Hasher>,
    length: u32,
}

impl EncodedEvents {
    pub(super) fn plain(bytes: Bytes) -> Self {
        Self { bytes, checksum: None, length: 0 }
    }

    pub(super) fn deflated(plain: &[u8], level: Compression) -> Self {
        let mut checksum = Hasher::new();
        checksum.update(plain);
        let bytes = if plain.is_empty() { Bytes::new() } else { deflate(plain, level) };
        Self { bytes, checksum: Some(checksum), length: plain.len() as u32 }
    }
}

/// Up to a byte boundary, without an end.
fn deflate(plain: &[u8], level: Compression) -> Bytes {
    let mut compress = Compress::new(level, false);
    let mut out = Vec::with_capacity(plain.len() / 4 + 64);
    loop {
        let rest = plain.get(compress.total_in() as usize..).unwrap_or_default();
        // In memory, with room to write, it cannot fail.
        let status = compress.compress_vec(rest, &mut out, FlushCompress::Sync);
        if status.is_err() || rest.is_empty() && out.len() < out.capacity() {
            return out.into();
        }
        if compress.total_in() as usize == plain.len() && out.len() < out.capacity() {
            return out.into();
        }
        out.reserve(out.len().max(1_024));
    }
}

/// The gzip stream of one response.
#[derive(Debug, Default)]
pub(super) struct GzipStream {
    checksum: Hasher,
    /// Modulo 2^32, as the format has it.
    length: u32,
    has_begun: bool,
    has_ended: bool,
}

impl GzipStream {
    /// The bytes of the next events.
    pub(super) fn next(&mut self, events: EncodedEvents) -> Bytes {
        if let Some(checksum) = &events.checksum {
            self.checksum.combine(checksum);
        }
        self.length = self.length.wrapping_add(events.length);
        if self.has_begun || events.bytes.is_empty() {
            return events.bytes;
        }
        self.has_begun = true;
        let mut first = BytesMut::with_capacity(HEADER.len() + events.bytes.len());
        first.put_slice(&HEADER);
        first.put_slice(&events.bytes);
        first.freeze()
    }

    /// The end, once.
    pub(super) fn end(&mut self) -> Option<Bytes> {
        if std::mem::replace(&mut self.has_ended, true) {
            return None;
        }
        let mut end = BytesMut::new();
        if !self.has_begun {
            end.put_slice(&HEADER);
        }
        end.put_slice(&LAST_BLOCK);
        end.put_u32_le(self.checksum.clone().finalize());
        end.put_u32_le(self.length);
        Some(end.freeze())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;

    fn read(stream: &[u8]) -> String {
        let mut text = String::new();
        GzDecoder::new(stream).read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn shared_batches_make_one_gzip_stream_per_watch() {
        let text = |number: usize| format!("{{\"event\":{number}}}\n").repeat(number * 300);
        let batches: Vec<EncodedEvents> = (0..4)
            .map(|number| EncodedEvents::deflated(text(number).as_bytes(), Compression::default()))
            .collect();
        // The second watch begins later.
        for from in 0..4 {
            let mut stream = GzipStream::default();
            let mut sent = Vec::new();
            batches[from..].iter().for_each(|batch| sent.extend(stream.next(batch.clone())));
            sent.extend(stream.end().unwrap());
            assert_eq!(stream.end(), None);
            let plain: String = (from..4).map(text).collect();
            assert_eq!(read(&sent), plain);
            assert!(sent.len() < plain.len() / 10);
        }
    }

    #[test]
    fn every_batch_can_be_read_when_it_arrives() {
        let mut stream = GzipStream::default();
        let mut reader = flate2::write::GzDecoder::new(Vec::new());
        for number in 0..3 {
            let line = format!("line {number}\n");
            let bytes = stream.next(EncodedEvents::deflated(line.as_bytes(), Compression::fast()));
            std::io::Write::write_all(&mut reader, &bytes).unwrap();
            std::io::Write::flush(&mut reader).unwrap();
            assert_eq!(std::mem::take(reader.get_mut()), line.as_bytes());
        }
        assert_eq!(read(&GzipStream::default().end().unwrap()), "");
    }
}
