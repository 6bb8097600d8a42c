//! What the accelerator needs of a kernel, so that a fake can take its place.

use super::connect::MapEntries;
use super::diff::MapChange;
use super::entries::AcceleratorSettings;
use crate::backend::BackendError;
use crate::nftables::apply::ConnectionCount;

/// Entries that the maps can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapCapacity {
    pub frontends: u32,
    pub chunks: u32,
}

impl MapCapacity {
    /// The least number of buckets of a map: 64 KiB.
    const MIN: u32 = 4096;

    /// Room for twice as many entries, and for a change of all of them.
    pub fn of(frontends: usize, chunks: usize) -> Self {
        let room = |count: usize| u32::try_from(count.saturating_mul(2)).unwrap_or(u32::MAX / 2);
        let size = |count: usize| room(count).clamp(Self::MIN, 1 << 30).next_power_of_two();
        Self { frontends: size(frontends), chunks: size(chunks) }
    }

    /// Whether this many entries fit.
    pub fn holds(self, frontends: usize, chunks: usize) -> bool {
        frontends <= self.frontends as usize && chunks <= self.chunks as usize
    }
}

/// The program with its maps in a kernel.
pub trait AcceleratorKernel {
    /// Opens maps of this capacity, or larger ones that an earlier process left. Returns their capacity.
    fn open(&mut self, capacity: MapCapacity) -> Result<MapCapacity, BackendError>;

    /// The entries of the open maps.
    fn entries(&mut self) -> Result<MapEntries, BackendError>;

    fn apply(&mut self, change: &MapChange) -> Result<(), BackendError>;

    fn set(&mut self, settings: AcceleratorSettings) -> Result<(), BackendError>;

    /// Attaches the program of the open maps, unless it is, and removes others that earlier processes left.
    fn attach(&mut self) -> Result<(), BackendError>;

    /// Whether the program of the open maps is attached.
    fn is_attached(&mut self) -> bool;

    /// Detaches the program and removes everything.
    fn remove(&mut self) -> Result<(), BackendError>;

    /// Connections so far, by frontend and endpoint.
    fn counts(&mut self) -> Result<Vec<ConnectionCount>, BackendError>;

    /// Nanoseconds of the clock that the program reads.
    fn now(&mut self) -> u64;

    /// The cookie of the node's own network namespace.
    fn node_netns(&mut self) -> Result<u64, BackendError>;
}
