//! A look at the tables that changes nothing: reads go to the file, writes stay in memory and are forgotten.
//! redb's own check repairs what it finds, which may mean to go back to an older state. We want to know, and to refuse.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard};

use redb::{BackendError, Database, StorageBackend};

use super::disk::no_panic;
use super::failure::Failure;
use super::hub::lock;
use super::medium::lets_inner_lock;

const BLOCK: usize = 4_096;

/// Whether all pages carry the checksums that redb gave them, and its account of free pages is right. Trusting a
/// wrong account would overwrite living pages.
pub(super) fn pages_are_sound(data: Box<dyn StorageBackend>, cache_bytes: usize) -> Result<bool, Failure> {
    if data.len()? == 0 {
        return Ok(true);
    }
    no_panic(|| {
        let mut builder = Database::builder();
        builder.set_cache_size(cache_bytes);
        let mut database = builder.create_with_backend(Overlay::new(data)?)?;
        Ok(database.check_integrity()?)
    })
}

#[derive(Debug)]
struct Overlay {
    inner: Box<dyn StorageBackend>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    len: u64,
    /// Up to here the file shows through.
    shown: u64,
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl Overlay {
    fn new(inner: Box<dyn StorageBackend>) -> io::Result<Overlay> {
        let len = inner.len()?;
        Ok(Overlay { inner, state: Mutex::new(State { len, shown: len, blocks: BTreeMap::new() }) })
    }

    /// The state, if so many bytes from an offset are inside of the storage.
    fn inside(&self, offset: u64, len: usize) -> io::Result<MutexGuard<'_, State>> {
        let state = lock(&self.state);
        match offset.checked_add(len as u64) {
            Some(end) if end <= state.len => Ok(state),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn load(&self, state: &State, block: u64) -> io::Result<Vec<u8>> {
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

/// The parts of blocks that a range covers: the block, where in it, and where in the range.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
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

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(lock(&self.state).len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.inside(offset, out.len())?;
        for (block, within, range) in pieces(offset, out.len()) {
            let bytes = self.load(&state, block)?;
            out[range.clone()].copy_from_slice(&bytes[within..within + range.len()]);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = lock(&self.state);
        // What is cut off comes back as zeros if the storage grows again, also inside of the last block.
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
        for (block, within, range) in pieces(offset, data.len()) {
            let mut bytes = self.load(&state, block)?;
            bytes[within..within + range.len()].copy_from_slice(&data[range]);
            state.blocks.insert(block, bytes);
        }
        Ok(())
    }

    lets_inner_lock!();
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
        fn an_overlay_shows_what_was_written_and_leaves_the_file_alone(
            content in prop::collection::vec(any::<u8>(), 0..12_000),
            steps in prop::collection::vec(step(), 0..12),
        ) {
            let file = InMemoryBackend::new();
            file.set_len(content.len() as u64).unwrap();
            file.write(0, &content).unwrap();
            let overlay = Overlay::new(Box::new(file)).unwrap();
            let mut model = content.clone();
            for step in steps {
                match step {
                    Step::SetLen(len) => {
                        overlay.set_len(u64::from(len)).unwrap();
                        model.resize(usize::from(len), 0);
                    }
                    Step::Write(offset, data) => {
                        let written = overlay.write(u64::from(offset), &data);
                        let place = model.get_mut(usize::from(offset)..usize::from(offset) + data.len());
                        prop_assert_eq!(written.is_ok(), place.is_some());
                        place.into_iter().for_each(|place| place.copy_from_slice(&data));
                    }
                }
                let mut shown = vec![0; model.len()];
                overlay.read(0, &mut shown).unwrap();
                prop_assert!(shown == model);
            }
            let mut below = vec![0; content.len()];
            overlay.inner.read(0, &mut below).unwrap();
            prop_assert!(below == content);
        }
    }
}
