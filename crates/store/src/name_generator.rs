//! Names that the server generates: suffixes for generateName, and uids.

use std::sync::{Arc, Mutex, PoisonError};

use model::random::Random;

/// No vowels, so that no words come out, and no letters that look alike.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX: usize = 5;
const MAX_NAME: usize = 63;

/// The random source of an API. Not for secrets: tokens come from the operating system.
#[derive(Clone, Debug)]
pub(crate) struct NameGenerator(Arc<Mutex<Random>>);

impl NameGenerator {
    pub(crate) fn new(random: Random) -> Self {
        Self(Arc::new(Mutex::new(random)))
    }

    fn numbers<const N: usize>(&self) -> [u64; N] {
        let mut random = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::array::from_fn(|_| random.next_u64())
    }

    /// `prefix` with a random suffix, truncated to the length of a name.
    pub(crate) fn generate(&self, prefix: &str) -> String {
        let [number] = self.numbers();
        generated(prefix, number)
    }

    /// A random (version 4) UUID.
    pub(crate) fn uid(&self) -> String {
        let [high, low] = self.numbers();
        let high = high & !0xf000 | 0x4000;
        let low = low & !(0b11 << 62) | 0b10 << 62;
        format!(
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            high >> 32,
            high >> 16 & 0xffff,
            high & 0xffff,
            low >> 48,
            low & 0xffff_ffff_ffff
        )
    }

    /// A random start for a search.
    pub(crate) fn seed(&self) -> u64 {
        let [number] = self.numbers();
        number
    }
}

fn generated(prefix: &str, mut number: u64) -> String {
    let room = MAX_NAME - SUFFIX;
    let cut = prefix.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= room).last();
    let mut name = prefix[..cut.unwrap_or(0)].to_owned();
    let base = LETTERS.len() as u64;
    for _ in 0..SUFFIX {
        name.push(char::from(LETTERS[(number % base) as usize]));
        number /= base;
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_name_keeps_its_prefix_and_fits_a_label() {
        let base = LETTERS.len() as u64;
        assert_eq!(generated("web-", base + 2 * base.pow(2) + 26 * base.pow(4)), "web-bcdb9");
        assert_eq!(generated(&"x".repeat(80), 0).len(), 63);
        assert_eq!(generated("ü".repeat(40).as_str(), 0).chars().filter(|c| *c == 'ü').count(), 29);
    }

    #[test]
    fn uids_are_uuids_of_version_four_and_replay_with_their_seed() {
        let names = NameGenerator::new(Random::seeded(1));
        let (first, second) = (names.uid(), names.uid());
        assert_ne!(first, second);
        assert_eq!(NameGenerator::new(Random::seeded(1)).uid(), first);
        for uid in [first, second] {
            let lengths: Vec<usize> = uid.split('-').map(str::len).collect();
            assert_eq!(lengths, [8, 4, 4, 4, 12], "{uid}");
            assert_eq!(&uid[14..15], "4");
            assert!("89ab".contains(&uid[19..20]), "{uid}");
        }
    }
}
