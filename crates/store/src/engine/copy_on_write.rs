//! Copy on write: reads go to the file, writes stay in memory and are dropped. redb's integrity check repairs what it
//! finds, possibly by going back to an older state; on a copy it only reports.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redb::{BackendError, Database, StorageBackend};

use super::error::StorageError;
use super::files::delegate_locks;
use super::storage::no_panic;

const BLOCK: usize = 4_096;

/// Whether the checksums of all pages are right, and so is redb's list of free pages: a wrong one would overwrite live
/// pages.
pub(super) fn pages_are_sound(
    data: Box<dyn StorageBackend>,
    cache_bytes: usize,
) -> Result<bool, StorageError> {
    if data.len()? == 0 {
        return Ok(true);
    }
    no_panic(|| {
        let mut builder = Database::builder();
        builder.set_cache_size(cache_bytes);
        let mut database = builder.create_with_backend(CopyOnWriteFile::new(data)?)?;
        Ok(database.check_integrity()?)
    })
}

#[derive(Debug)]
struct CopyOnWriteFile {
    inner: Box<dyn StorageBackend>,
    state: Mutex<CopyState>,
}

#[derive(Debug)]
struct CopyState {
    len: u64,
    /// Blocks up to here come from the file unless they were written.
    shown: u64,
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl CopyOnWriteFile {
    fn new(inner: Box<dyn StorageBackend>) -> io::Result<CopyOnWriteFile> {
        let len = inner.len()?;
        Ok(CopyOnWriteFile {
            inner,
            state: Mutex::new(CopyState { len, shown: len, blocks: BTreeMap::new() }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, CopyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, if the range is inside the file.
    fn inside(&self, offset: u64, len: usize) -> io::Result<MutexGuard<'_, CopyState>> {
        let state = self.lock();
        match offset.checked_add(len as u64) {
            Some(end) if end <= state.len => Ok(state),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn load(&self, state: &CopyState, block: u64) -> io::Result<Vec<u8>> {
        if let Some(known) = state.blocks.get(&block) {
            return Ok(known.clone());
        }
        let start = block * BLOCK as u64;
        let mut bytes = vec![0; BLOCK];
        let shown = state.shown.saturating_sub(start).min(BLOCK as u64) as usize;
        if shown > 0 {
            self.inner.read(start, &mut bytes[..shown])?;
        }
        Ok(bytes)
    }
}

/// The blocks of a range: block number, offset in the block, and part of the range.
fn blocks(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let within = (at % BLOCK as u64) as usize;
        let range = done..len.min(done + BLOCK - within);
        done = range.end;
        Some((at / BLOCK as u64, within, range))
    })
}

impl StorageBackend for CopyOnWriteFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lock().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.inside(offset, out.len())?;
        for (block, within, range) in blocks(offset, out.len()) {
            let bytes = self.load(&state, block)?;
            out[range.clone()].copy_from_slice(&bytes[within..within + range.len()]);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.lock();
        // Truncated bytes read as zeros if the file grows again, also inside the last block.
        let last = len / BLOCK as u64;
        if len < state.len && !len.is_multiple_of(BLOCK as u64) {
            let mut bytes = self.load(&state, last)?;
            bytes[(len % BLOCK as u64) as usize..].fill(0);
            state.blocks.insert(last, bytes);
        }
        state.blocks.retain(|block, _| block * (BLOCK as u64) < len);
        state.len = len;
        state.shown = state.shown.min(len);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.inside(offset, data.len())?;
        for (block, within, range) in blocks(offset, data.len()) {
            let mut bytes = self.load(&state, block)?;
            bytes[within..within + range.len()].copy_from_slice(&data[range]);
            state.blocks.insert(block, bytes);
        }
        Ok(())
    }

    delegate_locks!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use redb::backends::InMemoryBackend;

    #[derive(Clone, Debug)]
    enum Step {
        SetLen(u16),
        Write(u16, Vec<u8>),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..20_000u16).prop_map(Step::SetLen),
            (0..20_000u16, prop::collection::vec(any::<u8>(), 0..9_000))
                .prop_map(|(offset, data)| Step::Write(offset, data)),
        ]
    }

    proptest! {
        #[test]
        fn writes_are_read_back_and_leave_the_file_unchanged(
            content in prop::collection::vec(any::<u8>(), 0..12_000),
            steps in prop::collection::vec(step(), 0..12),
        ) {
            let file = InMemoryBackend::new();
            file.set_len(content.len() as u64).unwrap();
            file.write(0, &content).unwrap();
            let copy = CopyOnWriteFile::new(Box::new(file)).unwrap();
            let mut model = content.clone();
            for step in steps {
                match step {
                    Step::SetLen(len) => {
                        copy.set_len(u64::from(len)).unwrap();
                        model.resize(usize::from(len), 0);
                    }
                    Step::Write(offset, data) => {
                        let written = copy.write(u64::from(offset), &data);
                        let place = model.get_mut(usize::from(offset)..usize::from(offset) + data.len());
                        prop_assert_eq!(written.is_ok(), place.is_some());
                        place.into_iter().for_each(|place| place.copy_from_slice(&data));
                    }
                }
                let mut shown = vec![0; model.len()];
                copy.read(0, &mut shown).unwrap();
                prop_assert!(shown == model);
            }
            let mut below = vec![0; content.len()];
            copy.inner.read(0, &mut below).unwrap();
            prop_assert!(below == content);
        }
    }
}
