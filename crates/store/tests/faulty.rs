//! A disk that fails as disks do. Until a sync, writes are only promises, and in no order: after a power loss each sector
//! has any of the contents that it got since the last sync, or the one before. Reads and writes can fail, writes can be cut
//! short, space can run out, syncs can fail.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use store::engine::{StorageBackend, StoreFiles};

use super::dice::Dice;

const SECTOR: usize = 512;

/// How often something fails: once in so many times, 0 for never.
#[derive(Clone, Copy, Default, Debug)]
pub struct Faults {
    pub read: u64,
    pub write: u64,
    pub sync: u64,
    /// No byte may be written where none was before, but for what is reserved.
    pub full: bool,
}

#[derive(Default)]
struct File {
    /// What programs see.
    seen: Vec<u8>,
    /// What a power loss leaves for certain.
    durable: Vec<u8>,
    /// Sectors that were written since the last sync, with every content that they had.
    promised: std::collections::BTreeMap<usize, Vec<Vec<u8>>>,
    /// How far bytes were ever written or reserved: the space that is really taken.
    taken: usize,
}

/// `resize` with zeroes, without a step for each byte where nothing is optimised.
fn set_length(bytes: &mut Vec<u8>, length: usize) {
    bytes.truncate(length);
    bytes.extend(vec![0; length - bytes.len()]);
}

impl File {
    fn write(&mut self, offset: usize, data: &[u8]) {
        self.seen[offset..offset + data.len()].copy_from_slice(data);
        for sector in offset / SECTOR..(offset + data.len()).div_ceil(SECTOR) {
            let end = ((sector + 1) * SECTOR).min(self.seen.len());
            let content = self.seen[sector * SECTOR..end].to_vec();
            self.promised.entry(sector).or_default().push(content);
        }
        self.taken = self.taken.max(offset + data.len());
    }

    fn sync(&mut self) {
        set_length(&mut self.durable, self.seen.len());
        for (sector, mut contents) in std::mem::take(&mut self.promised) {
            self.keep(sector, &contents.pop().unwrap_or_default());
        }
    }

    /// A sector reaches the disk, as far as the file has it.
    fn keep(&mut self, sector: usize, content: &[u8]) {
        let start = sector * SECTOR;
        let end = (start + content.len()).min(self.seen.len()).min(self.durable.len());
        if start < end {
            self.durable[start..end].copy_from_slice(&content[..end - start]);
        }
    }

    fn lose_power(&mut self, dice: &mut Dice) {
        // The new length may have reached the disk or not.
        if dice.once_in(2) {
            set_length(&mut self.durable, self.seen.len());
        }
        let odds = 1 + dice.below(4);
        for (sector, contents) in std::mem::take(&mut self.promised) {
            if dice.below(4) < odds {
                self.keep(sector, &contents[dice.below(contents.len() as u64) as usize]);
            }
        }
        self.seen = self.durable.clone();
        self.taken = self.taken.min(self.seen.len());
    }
}

struct Disk {
    files: [File; 2],
    dice: Dice,
    faults: Faults,
    /// After so many writes and syncs the power is gone.
    power: u64,
}

/// The disk; clones are the same one.
#[derive(Clone)]
pub struct FaultyDisk(Arc<Mutex<Disk>>);

// Not every test lets the disk fail in every way.
#[allow(dead_code)]
impl FaultyDisk {
    pub fn new(seed: u64) -> FaultyDisk {
        let disk = Disk {
            files: Default::default(),
            dice: Dice::new(seed),
            faults: Faults::default(),
            power: u64::MAX,
        };
        FaultyDisk(Arc::new(Mutex::new(disk)))
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_faults(&self, faults: Faults) {
        self.disk().faults = faults;
    }

    /// The power goes after so many writes and syncs.
    pub fn cut_power_after(&self, operations: u64) {
        self.disk().power = operations;
    }

    /// Only the process ended: what it wrote is in the page cache, and gets lost if the power goes after so many
    /// operations more.
    pub fn restart_process(&self, operations: u64) {
        self.disk().power = operations;
    }

    /// What is left after the power was gone; the disk works again and has no faults.
    pub fn restart(&self) {
        let mut disk = self.disk();
        let Disk { files, dice, .. } = &mut *disk;
        for file in files {
            file.lose_power(dice);
        }
        disk.power = u64::MAX;
        disk.faults = Faults::default();
    }

    /// Another disk with the same files.
    pub fn copy(&self) -> FaultyDisk {
        let copy = FaultyDisk::new(0);
        copy.disk().files = [self.copy_of(0), self.copy_of(1)];
        copy
    }

    /// Puts another disk's file in the place of this one's.
    pub fn take_file_of(&self, other: &FaultyDisk, file: usize) {
        let taken = other.copy_of(file);
        self.disk().files[file] = taken;
    }

    fn copy_of(&self, file: usize) -> File {
        let content = self.disk().files[file].seen.clone();
        File { taken: content.len(), durable: content.clone(), seen: content, ..File::default() }
    }

    /// Flips a bit of file 0 (the data) or 1 (the journal).
    pub fn flip_bit(&self, file: usize, offset: usize, bit: u8) {
        let file = &mut self.disk().files[file];
        file.durable[offset] ^= 1 << bit;
        file.seen[offset] ^= 1 << bit;
    }

    /// The length of a file.
    pub fn len(&self, file: usize) -> usize {
        self.disk().files[file].seen.len()
    }

    /// Cuts a file.
    pub fn cut(&self, file: usize, len: usize) {
        let file = &mut self.disk().files[file];
        file.durable.truncate(len);
        file.seen.truncate(len);
    }

    /// Overwrites a part of a file with zeros.
    pub fn zero(&self, file: usize, range: std::ops::Range<usize>) {
        let file = &mut self.disk().files[file];
        file.durable[range.clone()].fill(0);
        file.seen[range].fill(0);
    }

    /// Where bytes are that are not zero: the ones worth damaging.
    pub fn used_bytes(&self, file: usize) -> Vec<usize> {
        let disk = self.disk();
        let bytes = disk.files[file].seen.iter().enumerate();
        bytes.filter(|(_, byte)| **byte != 0).map(|(offset, _)| offset).collect()
    }
}

impl StoreFiles for FaultyDisk {
    fn data(&self) -> io::Result<Box<dyn StorageBackend>> {
        Ok(Box::new(Part { disk: self.clone(), file: 0 }))
    }

    fn journal(&self) -> io::Result<Box<dyn StorageBackend>> {
        Ok(Box::new(Part { disk: self.clone(), file: 1 }))
    }

    fn place(&self) -> String {
        "the faulty disk".to_owned()
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        let mut disk = self.disk();
        let is_full = disk.faults.full;
        let tables = &mut disk.files[0];
        let end = tables.seen.len() + bytes as usize;
        if tables.taken < end && is_full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        tables.taken = tables.taken.max(end);
        Ok(())
    }

    fn free(&self) -> io::Result<u64> {
        Ok(if self.disk().faults.full { 0 } else { u64::MAX })
    }
}

struct Part {
    disk: FaultyDisk,
    file: usize,
}

impl std::fmt::Debug for Part {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "file {} of a faulty disk", self.file)
    }
}

fn broken() -> io::Error {
    io::Error::other("the device failed")
}

impl Disk {
    /// Whether an operation fails, which failures happen once in so many times.
    fn fails(&mut self, once_in: u64) -> bool {
        once_in > 0 && self.dice.once_in(once_in)
    }

    fn use_power(&mut self) -> io::Result<()> {
        self.power = self.power.saturating_sub(1);
        if self.power == 0 { Err(io::Error::other("no power")) } else { Ok(()) }
    }
}

impl StorageBackend for Part {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.disk().files[self.file].seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut disk = self.disk.disk();
        let once_in = disk.faults.read;
        if disk.power == 0 || disk.fails(once_in) {
            return Err(broken());
        }
        let start = offset as usize;
        let found = disk.files[self.file].seen.get(start..start + out.len());
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut disk = self.disk.disk();
        disk.use_power()?;
        // As on a real disk: a hole takes no space.
        set_length(&mut disk.files[self.file].seen, len as usize);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.disk.disk();
        disk.use_power()?;
        let once_in = disk.faults.sync;
        if disk.fails(once_in) {
            return Err(broken());
        }
        disk.files[self.file].sync();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut disk = self.disk.disk();
        let start = offset as usize;
        if start + data.len() > disk.files[self.file].seen.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if disk.faults.full && start + data.len() > disk.files[self.file].taken {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let (lost, once_in) = (disk.use_power().is_err(), disk.faults.write);
        if lost || disk.fails(once_in) {
            // A short write: some of it got through.
            let len = disk.dice.below(data.len() as u64 + 1) as usize;
            disk.files[self.file].write(start, &data[..len]);
            return Err(broken());
        }
        disk.files[self.file].write(start, data);
        Ok(())
    }
}
