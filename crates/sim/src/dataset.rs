//! The built-in data sets, generated on the fly.
//!
//! A ranged set pairs every sorted triple of nodes with every sorted triple of endpoints, position by position
//! (simulator 2), so the smallest number of nodes always meets the smallest number of endpoints.

use std::str::FromStr;

use model::Name;

use crate::input::{SimulationInput, Zone};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dataset {
    /// 390,080 inputs with up to 20 endpoints per zone, and some with 100 to 198.
    Small,
    /// 5,187,720 inputs with up to 50 endpoints per zone, and some with 100 to 499. Ours: the KEP defines none.
    Medium,
    /// 39,273,145 inputs with up to 100 endpoints per zone, and some with 100 to 996.
    Large,
    /// The 19 inputs of the public tool's example.
    Representative,
}

/// Nodes and endpoints of three zones.
pub type ZoneTriple = ([u32; 3], [u32; 3]);

/// Every node triple out of `nodes` with every endpoint triple out of `endpoints`.
#[derive(Clone, Copy, Debug)]
struct Range {
    nodes: Steps,
    endpoints: Steps,
}

/// `first`, `first + step`, ..., `count` of them.
#[derive(Clone, Copy, Debug)]
struct Steps {
    first: u32,
    step: u32,
    count: u32,
}

const ONE_TO_TEN: Steps = Steps { first: 1, step: 1, count: 10 };
const THIRTY: Steps = Steps { first: 30, step: 1, count: 1 };

const fn low(count: u32) -> Range {
    Range { nodes: ONE_TO_TEN, endpoints: Steps { first: 0, step: 1, count } }
}

const fn high(count: u32) -> Range {
    Range { nodes: THIRTY, endpoints: Steps { first: 100, step: 7, count } }
}

const SMALL: [Range; 2] = [low(21), high(15)];
const MEDIUM: [Range; 2] = [low(51), high(58)];
const LARGE: [Range; 2] = [low(101), high(129)];

/// Nodes and endpoints of the public tool's example, in its order.
const REPRESENTATIVE: [ZoneTriple; 19] = [
    ([30, 30, 30], [100, 0, 0]),
    ([30, 30, 30], [100, 100, 0]),
    ([30, 30, 30], [100, 10, 10]),
    ([30, 30, 30], [1, 1, 1]),
    ([30, 30, 30], [2, 1, 0]),
    ([30, 30, 30], [1, 0, 0]),
    ([30, 30, 30], [2, 0, 0]),
    ([30, 30, 30], [3, 2, 2]),
    ([30, 30, 30], [10, 9, 12]),
    ([30, 30, 30], [60, 65, 55]),
    ([300, 300, 300], [654, 704, 555]),
    ([40, 30, 20], [40, 30, 20]),
    ([40, 30, 20], [70, 25, 15]),
    ([1, 2, 2], [3, 2, 2]),
    ([15, 20, 12], [10, 18, 10]),
    ([54, 58, 74], [80, 90, 105]),
    ([3, 2, 1], [3, 2, 1]),
    ([10, 11, 12], [20, 22, 24]),
    ([50, 60, 70], [100, 120, 140]),
];

impl FromStr for Dataset {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "small" => Ok(Self::Small),
            "medium" => Ok(Self::Medium),
            "large" => Ok(Self::Large),
            "representative" => Ok(Self::Representative),
            _ => Err(()),
        }
    }
}

impl Dataset {
    pub fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Medium => "medium",
            Self::Large => "large",
            Self::Representative => "representative",
        }
    }

    fn ranges(self) -> &'static [Range] {
        match self {
            Self::Small => &SMALL,
            Self::Medium => &MEDIUM,
            Self::Large => &LARGE,
            Self::Representative => &[],
        }
    }

    pub fn len(self) -> u64 {
        match self {
            Self::Representative => REPRESENTATIVE.len() as u64,
            ranged => ranged.ranges().iter().map(Range::len).sum(),
        }
    }

    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Calls `each` with number and zones of up to `count` inputs from `start`, in order.
    pub fn for_each(self, start: u64, count: u64, mut each: impl FnMut(u64, ZoneTriple)) {
        let end = start.saturating_add(count).min(self.len());
        if self == Self::Representative {
            (start..end).for_each(|at| each(at, REPRESENTATIVE[at as usize]));
            return;
        }
        let mut before = 0;
        for range in self.ranges() {
            let (from, to) = (start.max(before), end.min(before + range.len()));
            if from < to {
                range.for_each(from - before, to - from, |at, triple| each(before + at, triple));
            }
            before += range.len();
        }
    }

    /// Up to `count` inputs from `start`, in order.
    pub fn inputs(self, start: u64, count: u64) -> Vec<SimulationInput> {
        let mut inputs = Vec::new();
        self.for_each(start, count, |at, triple| {
            let id = format!("{}-{}", self.name(), at + 1);
            let input = SimulationInput::new(&id, zones(triple).to_vec());
            inputs.push(input.expect("three small zones of different names"));
        });
        inputs
    }
}

/// Zones `zone1` to `zone3` with these counts.
pub fn zones((nodes, endpoints): ZoneTriple) -> [Zone; 3] {
    [("zone1", 0), ("zone2", 1), ("zone3", 2)].map(|(name, z)| Zone {
        name: Name::new(name),
        nodes: nodes[z].into(),
        endpoints: endpoints[z].into(),
    })
}

impl Range {
    /// Without the triple of no endpoints at all.
    fn endpoint_triples(&self) -> u64 {
        self.endpoints.triples() - u64::from(self.endpoints.first == 0)
    }

    fn len(&self) -> u64 {
        self.nodes.triples() * self.endpoint_triples()
    }

    fn for_each(&self, start: u64, count: u64, mut each: impl FnMut(u64, ZoneTriple)) {
        let skipped = u64::from(self.endpoints.first == 0);
        let per_nodes = self.endpoint_triples();
        let mut nodes = self.nodes.triple(start / per_nodes);
        let mut endpoints = self.endpoints.triple(start % per_nodes + skipped);
        for at in start..start + count {
            each(at, (self.nodes.values(nodes), self.endpoints.values(endpoints)));
            if !self.endpoints.advance(&mut endpoints) {
                self.nodes.advance(&mut nodes);
                endpoints = self.endpoints.triple(skipped);
            }
        }
    }
}

impl Steps {
    /// Sorted triples with repetition: C(count + 2, 3).
    fn triples(&self) -> u64 {
        let n = u64::from(self.count);
        n * (n + 1) * (n + 2) / 6
    }

    /// The triple at a position, as indices; the last one counts fastest.
    fn triple(&self, position: u64) -> [u32; 3] {
        let mut left = position;
        let mut first = 0;
        loop {
            let rest = u64::from(self.count - first);
            let with_first = rest * (rest + 1) / 2;
            if left < with_first || first + 1 >= self.count {
                break;
            }
            left -= with_first;
            first += 1;
        }
        let mut second = first;
        while left >= u64::from(self.count - second) && second + 1 < self.count {
            left -= u64::from(self.count - second);
            second += 1;
        }
        [first, second, second + left as u32]
    }

    /// Goes to the next triple; `false` after the last one.
    fn advance(&self, [first, second, third]: &mut [u32; 3]) -> bool {
        let last = self.count - 1;
        if *third < last {
            *third += 1;
        } else if *second < last {
            (*second, *third) = (*second + 1, *second + 1);
        } else if *first < last {
            (*first, *second, *third) = (*first + 1, *first + 1, *first + 1);
        } else {
            return false;
        }
        true
    }

    fn values(&self, indices: [u32; 3]) -> [u32; 3] {
        indices.map(|at| self.first + self.step * at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_published_sets() {
        assert_eq!(Dataset::Large.len(), 39_273_145);
        assert_eq!(Dataset::Small.len(), 390_080);
        assert_eq!(Dataset::Representative.len(), 19);
        assert_eq!(Dataset::Medium.len(), 220 * 23_425 + 34_220);
    }

    #[test]
    fn any_part_of_a_set_is_the_same_as_in_the_whole() {
        let mut all = Vec::new();
        Dataset::Small.for_each(0, u64::MAX, |at, triple| all.push((at, triple)));
        assert_eq!(all.len(), 390_080);
        assert_eq!(all[0].1, ([1, 1, 1], [0, 0, 1]));
        assert_eq!(all[390_079].1, ([30, 30, 30], [198, 198, 198]));
        for start in [0, 1, 1_769, 1_770, 1_771, 200_003, 389_399, 389_400, 390_079] {
            let mut part = Vec::new();
            Dataset::Small.for_each(start, 2_000, |at, triple| part.push((at, triple)));
            let wanted: Vec<_> = all.iter().skip(start as usize).take(2_000).copied().collect();
            assert_eq!(part, wanted, "{start}");
        }
    }
}
