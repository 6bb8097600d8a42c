//! The files of a store in memory, of which one write may fail.

use std::io;
use std::sync::{Arc, Mutex};

use crate::engine::{StorageBackend, StoreFiles};

#[derive(Default)]
struct DiskState {
    files: [Vec<u8>; 2],
    /// After so many writes one fails; 0 for none.
    fails_after: u64,
}

/// Clones are the same disk.
#[derive(Clone, Default)]
pub struct MemoryDisk(Arc<Mutex<DiskState>>);

impl MemoryDisk {
    pub fn fail_after(&self, writes: u64) {
        self.0.lock().expect("no holder panics").fails_after = writes;
    }
}

impl StoreFiles for MemoryDisk {
    fn data(&self) -> io::Result<Box<dyn StorageBackend>> {
        Ok(Box::new(MemoryFile { disk: self.clone(), file: 0 }))
    }

    fn journal(&self) -> io::Result<Box<dyn StorageBackend>> {
        Ok(Box::new(MemoryFile { disk: self.clone(), file: 1 }))
    }

    fn place(&self) -> String {
        "memory".to_owned()
    }

    fn reserve(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn free(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}

struct MemoryFile {
    disk: MemoryDisk,
    file: usize,
}

impl std::fmt::Debug for MemoryFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "file {} in memory", self.file)
    }
}

impl MemoryFile {
    fn with<T>(&self, body: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        body(&mut self.disk.0.lock().expect("no holder panics").files[self.file])
    }
}

impl StorageBackend for MemoryFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.with(|bytes| bytes.len() as u64))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.with(|bytes| {
            let found = bytes.get(offset as usize..offset as usize + out.len());
            out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(|bytes| bytes.resize(len as usize, 0));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let fails = {
            let mut disk = self.disk.0.lock().expect("no holder panics");
            let is_last = disk.fails_after == 1;
            disk.fails_after = disk.fails_after.saturating_sub(1);
            is_last
        };
        if fails {
            return Err(io::Error::other("the device failed"));
        }
        self.with(|bytes| {
            let place = bytes.get_mut(offset as usize..offset as usize + data.len());
            place.ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(data);
            Ok(())
        })
    }
}
