//! Replayable random numbers: everything random in a test comes from one printed seed.

use model::random::Random;

pub struct Dice(Random);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(Random::seeded(seed))
    }

    pub fn roll(&mut self) -> u64 {
        self.0.next_u64()
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

/// The seed of this run: ZONEWARD_SEED to replay one, otherwise a new one.
#[allow(dead_code)]
pub fn seed() -> u64 {
    let given = std::env::var("ZONEWARD_SEED").ok().and_then(|text| text.parse().ok());
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let seed = given.unwrap_or_else(|| now().as_nanos() as u64);
    println!("ZONEWARD_SEED={seed}");
    seed
}
