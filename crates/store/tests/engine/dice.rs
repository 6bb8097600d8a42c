//! Chance that can be replayed: everything random in a test comes from one printed seed.

/// Splitmix64: short, and good enough to choose where disks fail.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.roll() % end.max(1)
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// The seed of this run: ZONEWARD_SEED to replay one, else a new one.
#[allow(dead_code)]
pub fn seed() -> u64 {
    let given = std::env::var("ZONEWARD_SEED").ok().and_then(|text| text.parse().ok());
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let seed = given.unwrap_or_else(|| now().as_nanos() as u64);
    println!("ZONEWARD_SEED={seed}");
    seed
}
