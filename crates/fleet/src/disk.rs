//! The disk of the API: until a sync, writes are promises in no order. After a power loss each sector has any content
//! that it got since the last sync, or the one before; after a crash of the process alone, all of them.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::random::Random;
use store::engine::{StorageBackend, StoreFiles};

const SECTOR: usize = 512;

#[derive(Clone, Default)]
struct DiskFile {
    /// What programs see.
    seen: Vec<u8>,
    /// What a power loss leaves for certain.
    durable: Vec<u8>,
    /// Sectors that were written since the last sync, with every content that they had.
    promised: BTreeMap<usize, Vec<Vec<u8>>>,
}

/// `resize` with zeroes, without a step for each byte where nothing is optimised.
fn set_length(bytes: &mut Vec<u8>, length: usize) {
    bytes.truncate(length);
    bytes.extend(vec![0; length - bytes.len()]);
}

impl DiskFile {
    fn write(&mut self, offset: usize, data: &[u8]) {
        self.seen[offset..offset + data.len()].copy_from_slice(data);
        for sector in offset / SECTOR..(offset + data.len()).div_ceil(SECTOR) {
            let end = ((sector + 1) * SECTOR).min(self.seen.len());
            let content = self.seen[sector * SECTOR..end].to_vec();
            self.promised.entry(sector).or_default().push(content);
        }
    }

    fn sync(&mut self) {
        set_length(&mut self.durable, self.seen.len());
        for (sector, mut contents) in std::mem::take(&mut self.promised) {
            self.keep(sector, &contents.pop().unwrap_or_default());
        }
    }

    fn keep(&mut self, sector: usize, content: &[u8]) {
        let start = sector * SECTOR;
        let end = (start + content.len()).min(self.seen.len()).min(self.durable.len());
        if start < end {
            self.durable[start..end].copy_from_slice(&content[..end - start]);
        }
    }

    fn lose_power(&mut self, random: &mut Random) {
        // The new length may have reached the disk or not.
        if random.below(2) == 0 {
            set_length(&mut self.durable, self.seen.len());
        }
        let odds = 1 + random.below(4);
        for (sector, contents) in std::mem::take(&mut self.promised) {
            if random.below(4) < odds
                && let Some(content) = random.pick(&contents)
            {
                self.keep(sector, content);
            }
        }
        self.seen.clone_from(&self.durable);
    }
}

struct DiskState {
    files: [DiskFile; 2],
    random: Random,
    /// After so many writes and syncs every operation fails, because the machine stopped.
    operations_left: u64,
}

/// The files as they were at one time.
pub struct DiskImage([DiskFile; 2]);

/// The files of a store in memory; clones are the same disk.
#[derive(Clone)]
pub struct SimulatedDisk(Arc<Mutex<DiskState>>);

impl SimulatedDisk {
    pub fn new(random: Random) -> Self {
        let files = Default::default();
        Self(Arc::new(Mutex::new(DiskState { files, random, operations_left: u64::MAX })))
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The machine stops after so many writes and syncs.
    pub fn stop_after(&self, operations: u64) {
        self.state().operations_left = operations;
    }

    pub fn has_stopped(&self) -> bool {
        self.state().operations_left == 0
    }

    /// Works again after a stop. Without power, what was not synced is lost, torn or reordered.
    pub fn restart(&self, lost_power: bool) {
        let mut state = self.state();
        let DiskState { files, random, .. } = &mut *state;
        if lost_power {
            files.iter_mut().for_each(|file| file.lose_power(random));
        }
        state.operations_left = u64::MAX;
    }
}

/// A disk that forgets what it has synced, which no store survives: for proof that this is found.
impl SimulatedDisk {
    pub fn image(&self) -> DiskImage {
        DiskImage(self.state().files.clone())
    }

    pub fn restore(&self, image: DiskImage) {
        self.state().files = image.0;
    }
}

impl DiskState {
    fn operate(&mut self) -> io::Result<()> {
        self.operations_left = self.operations_left.saturating_sub(1);
        if self.operations_left == 0 { Err(io::Error::other("the machine stopped")) } else { Ok(()) }
    }
}

impl StoreFiles for SimulatedDisk {
    fn data(&self) -> io::Result<Box<dyn StorageBackend>> {
        Ok(Box::new(OpenFile { disk: self.clone(), file: 0 }))
    }

    fn journal(&self) -> io::Result<Box<dyn StorageBackend>> {
        Ok(Box::new(OpenFile { disk: self.clone(), file: 1 }))
    }

    fn place(&self) -> String {
        "the simulated disk".to_owned()
    }

    fn reserve(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn free(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}

struct OpenFile {
    disk: SimulatedDisk,
    file: usize,
}

impl std::fmt::Debug for OpenFile {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "file {} of the simulated disk", self.file)
    }
}

impl StorageBackend for OpenFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.state().files[self.file].seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.disk.state();
        if state.operations_left == 0 {
            return Err(io::Error::other("the machine stopped"));
        }
        let start = offset as usize;
        let found = state.files[self.file].seen.get(start..start + out.len());
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        state.operate()?;
        set_length(&mut state.files[self.file].seen, len as usize);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        state.operate()?;
        state.files[self.file].sync();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.disk.state();
        let start = offset as usize;
        if start + data.len() > state.files[self.file].seen.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if state.operate().is_err() {
            // Some of it reached the device.
            let len = state.random.below(data.len() + 1);
            state.files[self.file].write(start, &data[..len]);
            return Err(io::Error::other("the machine stopped"));
        }
        state.files[self.file].write(start, data);
        Ok(())
    }
}
