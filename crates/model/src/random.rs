//! The random source of the workspace: splitmix64 from a seed, so that every run can be replayed.
//!
//! It is not for secrets: tokens and keys come from the operating system.

/// A seeded generator. Equal seeds give equal numbers on every machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Random(u64);

/// The odd number nearest to 2^64 divided by the golden ratio: steps of it visit every number once.
pub const GOLDEN_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    /// A generator with this seed.
    pub const fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN_STEP);
        mix(self.0)
    }

    /// A number from 0 up to, but without, `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next_u64() % (end.max(1) as u64)) as usize
    }

    /// A fraction from 0 up to, but without, 1.
    pub fn fraction(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// One of these, unless there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.below(items.len()))
    }

    /// A generator of its own for another component, seeded by this one.
    pub const fn split(&mut self) -> Self {
        Self(self.next_u64())
    }
}

/// The output function of splitmix64: spreads near numbers over the whole range.
pub const fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_splitmix64() {
        let mut random = Random::seeded(1_234_567);
        let numbers = [random.next_u64(), random.next_u64(), random.next_u64()];
        assert_eq!(
            numbers,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn bounds_hold() {
        let mut random = Random::seeded(7);
        assert_eq!(random.below(0), 0);
        assert!((0..1_000).all(|_| random.below(3) < 3));
        assert!((0..1_000).all(|_| (0.0..1.0).contains(&random.fraction())));
        assert_eq!(random.pick::<u8>(&[]), None);
    }
}
