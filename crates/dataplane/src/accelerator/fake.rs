//! The program's maps in memory, evaluated as the program does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::connect::{ConnectOutcome, ConnectingSocket, MapEntries};
use super::diff::MapChange;
use super::entries::AcceleratorSettings;
use super::kernel::{AcceleratorKernel, MapCapacity};
use crate::backend::BackendError;
use crate::nftables::apply::ConnectionCount;

/// The network namespace of the fake node.
const NODE_NETNS: u64 = 1;

/// A kernel of the accelerator. Clones share it, as pinned maps outlive a process.
#[derive(Clone, Default)]
pub struct FakeAccelerator {
    state: Arc<Mutex<FakeState>>,
}

#[derive(Default)]
struct FakeState {
    capacity: Option<MapCapacity>,
    entries: MapEntries,
    is_attached: bool,
    /// Nanoseconds.
    now: u64,
    /// Changes until one fails.
    changes_left: Option<usize>,
    is_refused: bool,
}

impl FakeAccelerator {
    fn state(&self) -> MutexGuard<'_, FakeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets time pass.
    pub fn advance(&self, nanoseconds: u64) {
        self.state().now += nanoseconds;
    }

    /// Fails after this many changes, as when a process is killed.
    pub fn fail_after(&self, changes: Option<usize>) {
        self.state().changes_left = changes;
    }

    /// Refuses to open, as where bpf() is not permitted.
    pub fn refuse(&self, is_refused: bool) {
        self.state().is_refused = is_refused;
    }

    /// What the program does with a socket, if it is attached.
    pub fn connect(&self, socket: &ConnectingSocket) -> Option<ConnectOutcome> {
        let state = self.state();
        state.is_attached.then(|| state.entries.connect(socket, state.now))
    }
}

impl AcceleratorKernel for FakeAccelerator {
    fn open(&mut self, capacity: MapCapacity) -> Result<MapCapacity, BackendError> {
        let mut state = self.state();
        if state.is_refused {
            return Err(BackendError::failed("bpf() is not permitted"));
        }
        let left =
            state.capacity.filter(|held| held.holds(capacity.frontends as usize, capacity.chunks as usize));
        if left.is_none() {
            let now = state.now;
            *state = FakeState { now, changes_left: state.changes_left, ..FakeState::default() };
        }
        Ok(*state.capacity.insert(left.unwrap_or(capacity)))
    }

    fn entries(&mut self) -> Result<MapEntries, BackendError> {
        Ok(self.state().entries.clone())
    }

    fn apply(&mut self, change: &MapChange) -> Result<(), BackendError> {
        let mut state = self.state();
        if let Some(left) = &mut state.changes_left {
            *left = left.checked_sub(1).ok_or_else(|| BackendError::failed("the process was killed"))?;
        }
        let FakeState { entries, capacity, .. } = &mut *state;
        match change {
            MapChange::PutChunk(key, chunk) => drop(entries.chunks.insert(*key, chunk.clone())),
            MapChange::PutFrontend(address, entry) => drop(entries.frontends.insert(*address, *entry)),
            MapChange::DeleteFrontend(address) => drop(entries.frontends.remove(address)),
            MapChange::DeleteChunk(key) => drop(entries.chunks.remove(key)),
        }
        let fits = capacity.is_some_and(|held| held.holds(entries.frontends.len(), entries.chunks.len()));
        if fits { Ok(()) } else { Err(BackendError::failed("a map is full")) }
    }

    fn set(&mut self, settings: AcceleratorSettings) -> Result<(), BackendError> {
        self.state().entries.settings = settings;
        Ok(())
    }

    fn attach(&mut self) -> Result<(), BackendError> {
        self.state().is_attached = true;
        Ok(())
    }

    fn is_attached(&mut self) -> bool {
        self.state().is_attached
    }

    fn remove(&mut self) -> Result<(), BackendError> {
        let mut state = self.state();
        let (now, is_refused) = (state.now, state.is_refused);
        *state = FakeState { now, is_refused, ..FakeState::default() };
        Ok(())
    }

    /// It chooses no endpoint, and so counts none.
    fn counts(&mut self) -> Result<Vec<ConnectionCount>, BackendError> {
        Ok(Vec::new())
    }

    fn now(&mut self) -> u64 {
        self.state().now
    }

    fn node_netns(&mut self) -> Result<u64, BackendError> {
        Ok(NODE_NETNS)
    }
}
