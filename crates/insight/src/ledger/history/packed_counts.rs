//! The sums of one reporter, packed: about 12 bytes for each pair of Service and zones instead of 24. There are up to ten
//! million of them, and each is read once per report.

use super::{CellKey, Counts};

/// Sorted by key. Numbers are written in groups of seven bits, owners as the difference to the one before.
#[derive(Debug, Default)]
pub(super) struct PackedCounts(Box<[u8]>);

impl PackedCounts {
    /// `counts` are sorted.
    pub(super) fn new(counts: &[(CellKey, Counts)]) -> Self {
        let mut bytes = Vec::with_capacity(counts.len() * 12);
        let mut owner = 0;
        for (key, counts) in counts {
            write(&mut bytes, u64::from(key.owner.saturating_sub(owner)));
            bytes.extend([key.from, key.to]);
            write(&mut bytes, counts.connections);
            write(&mut bytes, counts.bytes);
            owner = key.owner;
        }
        Self(bytes.into())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (CellKey, Counts)> + '_ {
        let (mut rest, mut owner) = (&*self.0, 0_u16);
        std::iter::from_fn(move || {
            owner = owner.saturating_add(u16::try_from(read(&mut rest)?).ok()?);
            let (from, to) = (byte(&mut rest)?, byte(&mut rest)?);
            let counts = Counts { connections: read(&mut rest)?, bytes: read(&mut rest)? };
            Some((CellKey { owner, from, to }, counts))
        })
    }
}

fn write(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn byte(bytes: &mut &[u8]) -> Option<u8> {
    let (first, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(*first)
}

fn read(bytes: &mut &[u8]) -> Option<u64> {
    let (mut number, mut shift) = (0, 0);
    loop {
        let next = byte(bytes)?;
        number |= u64::from(next & 0x7f) << shift;
        if next < 0x80 {
            return Some(number);
        }
        shift = (shift + 7).min(63);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_as_they_were_written() {
        let count = |owner: u16, number: u64| {
            let key = CellKey { owner, from: owner as u8, to: 7 };
            (key, Counts { connections: number, bytes: u64::MAX - number })
        };
        let counts =
            [count(0, 0), count(1, 127), count(1, 128), count(300, u64::MAX), count(u16::MAX, 1 << 63)];
        assert_eq!(PackedCounts::new(&counts).iter().collect::<Vec<_>>(), counts);
        assert_eq!(PackedCounts::new(&[]).iter().count(), 0);
    }
}
