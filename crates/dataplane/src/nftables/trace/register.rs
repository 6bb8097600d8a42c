//! The sixteen registers of 32 bits that a rule computes with.

use crate::nftables::ir::{Bytes, Reg};

/// All registers in bytes.
pub(in crate::nftables) const REGISTER_BYTES: usize = 64;

/// The registers of one rule.
#[derive(Debug, Clone, Copy)]
pub(super) struct Registers([u8; REGISTER_BYTES]);

impl Default for Registers {
    fn default() -> Registers {
        Registers([0; REGISTER_BYTES])
    }
}

impl Registers {
    /// Bytes from a register on; fewer where registers end, which rules that were checked never reach.
    pub(super) fn load(&self, reg: Reg, len: usize) -> &[u8] {
        let start = (usize::from(reg.0) * 4).min(REGISTER_BYTES);
        &self.0[start..(start + len).min(REGISTER_BYTES)]
    }

    /// Stores bytes from a register on, padded with zeros to whole registers as the kernel does.
    pub(super) fn store(&mut self, reg: Reg, value: &[u8]) {
        let start = (usize::from(reg.0) * 4).min(REGISTER_BYTES);
        let end = (start + value.len().next_multiple_of(4)).min(REGISTER_BYTES);
        let place = &mut self.0[start..end];
        place.fill(0);
        let len = value.len().min(place.len());
        place[..len].copy_from_slice(&value[..len]);
    }

    /// A number in host byte order.
    pub(super) fn number(&self, reg: Reg) -> u32 {
        self.load(reg, 4).try_into().map_or(0, u32::from_ne_bytes)
    }
}

/// Shifts as the kernel does: word by word in host byte order, the first word the highest.
pub(super) fn shift(value: &[u8], bits: u32, left: bool) -> Bytes {
    let words: Vec<u32> =
        value.chunks_exact(4).map(|word| word.try_into().map_or(0, u32::from_ne_bytes)).collect();
    let bits = bits & 31;
    let carry_bits = 32 - bits;
    let over = |word: Option<&u32>| word.copied().unwrap_or(0);
    let shifted = words.iter().enumerate().map(|(place, word)| {
        let (moved, neighbour) = match left {
            true => (word << bits, over(words.get(place + 1)).checked_shr(carry_bits)),
            false => {
                let above = place.checked_sub(1).and_then(|above| words.get(above));
                (word >> bits, over(above).checked_shl(carry_bits))
            }
        };
        moved | neighbour.unwrap_or(0)
    });
    Bytes::from(shifted.flat_map(u32::to_ne_bytes).collect::<Vec<u8>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shifts_carry_between_words() {
        let value = [1u32.to_ne_bytes(), 0x8000_0000u32.to_ne_bytes()].concat();
        assert_eq!(*shift(&value, 1, true), *[3u32.to_ne_bytes(), 0u32.to_ne_bytes()].concat());
        assert_eq!(*shift(&value, 1, false), *[0u32.to_ne_bytes(), 0xc000_0000u32.to_ne_bytes()].concat());
        assert_eq!(*shift(&value, 0, true), *value);
    }

    #[test]
    fn registers_past_the_end_do_not_panic() {
        let mut registers = Registers::default();
        registers.store(Reg(15), &[1; 16]);
        registers.store(Reg(200), &[1; 16]);
        assert_eq!(registers.load(Reg(15), 16), [1; 4]);
        assert_eq!(registers.load(Reg(99), 4), [0u8; 0]);
    }
}
