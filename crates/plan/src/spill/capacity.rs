//! The capacity of a zone: its endpoints, weighed by their own capacity and warmth.

use std::ops::AddAssign;

use crate::capacity::WHOLE;

/// In thousandths of one endpoint of capacity 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ZoneCapacity(u64);

impl ZoneCapacity {
    /// One endpoint of this capacity, in thousandths.
    pub fn of_endpoint(thousandths: u32) -> Self {
        Self(thousandths.into())
    }

    pub fn from_thousandths(thousandths: u64) -> Self {
        Self(thousandths)
    }

    pub fn thousandths(self) -> u64 {
        self.0
    }

    /// The number of endpoints of capacity 1 that carry as much.
    pub fn endpoints(self) -> f64 {
        self.0 as f64 / f64::from(WHOLE)
    }
}

impl From<usize> for ZoneCapacity {
    /// So many endpoints of capacity 1.
    fn from(endpoints: usize) -> Self {
        Self(endpoints as u64 * u64::from(WHOLE))
    }
}

impl AddAssign for ZoneCapacity {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl std::iter::Sum for ZoneCapacity {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        Self(all.map(|capacity| capacity.0).sum())
    }
}
