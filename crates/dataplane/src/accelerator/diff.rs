//! From held to wanted entries, in an order in which no socket sees a part of a change: new slots under a new id, then one
//! update of the frontend, then the old slots go.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::connect::MapEntries;
use super::entries::{CHUNK, Chunk, ChunkKey, FrontendEntry};
use super::render::{RenderedFrontend, RenderedFrontends};

/// One update of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapChange {
    PutChunk(ChunkKey, Chunk),
    PutFrontend(SocketAddr, FrontendEntry),
    DeleteFrontend(SocketAddr),
    DeleteChunk(ChunkKey),
}

/// What the maps hold, as far as later changes need it.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldFrontends {
    entries: BTreeMap<SocketAddr, FrontendEntry>,
    ids: BTreeSet<u32>,
    chunks: usize,
    last_id: u32,
}

impl HeldFrontends {
    pub(super) fn frontends(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn chunks(&self) -> usize {
        self.chunks
    }

    pub(super) fn holds(&self, frontend: &SocketAddr) -> bool {
        self.entries.contains_key(frontend)
    }

    /// After a wrap, ids may be in use.
    fn next_id(&mut self) -> u32 {
        loop {
            self.last_id = self.last_id.wrapping_add(1);
            if self.ids.insert(self.last_id) {
                return self.last_id;
            }
        }
    }

    /// The changes that replace frontends; `None` removes one.
    pub(super) fn replace<'r>(
        &mut self,
        wanted: impl IntoIterator<Item = (SocketAddr, Option<&'r RenderedFrontend>)>,
    ) -> Vec<MapChange> {
        let (mut first, mut flips, mut last) = (Vec::new(), Vec::new(), Vec::new());
        for (address, frontend) in wanted {
            let old = self.entries.remove(&address);
            match frontend {
                Some(frontend) => {
                    let entry = FrontendEntry {
                        id: self.next_id(),
                        slots: u32::try_from(frontend.slots.len()).unwrap_or(u32::MAX),
                        flags: frontend.flags,
                    };
                    let chunks = entry.chunks().zip(frontend.slots.chunks(CHUNK));
                    first.extend(chunks.map(|(key, slots)| MapChange::PutChunk(key, slots.to_vec())));
                    flips.push(MapChange::PutFrontend(address, entry));
                    self.entries.insert(address, entry);
                    self.chunks += entry.chunks().count();
                }
                None if old.is_some() => flips.push(MapChange::DeleteFrontend(address)),
                None => {}
            }
            if let Some(old) = old {
                self.ids.remove(&old.id);
                self.chunks -= old.chunks().count();
                last.extend(old.chunks().map(MapChange::DeleteChunk));
            }
        }
        [first, flips, last].concat()
    }

    /// Takes over what maps hold, and the changes that make it what is wanted.
    pub(super) fn adopt(held: &MapEntries, wanted: &RenderedFrontends) -> (Self, Vec<MapChange>) {
        let mut adopted = Self::default();
        let mut used = BTreeSet::new();
        for (address, entry) in &held.frontends {
            adopted.entries.insert(*address, *entry);
            adopted.ids.insert(entry.id);
            adopted.chunks += entry.chunks().count();
            used.extend(entry.chunks());
        }
        // Slots of no frontend: their writer ended within a change.
        let orphans = held.chunks.keys().filter(|key| !used.contains(key)).copied();
        let mut changes: Vec<MapChange> = orphans.map(MapChange::DeleteChunk).collect();
        adopted.last_id =
            held.chunks.keys().map(|key| key.id).chain(adopted.ids.iter().copied()).max().unwrap_or(0);
        let gone = held.frontends.keys().filter(|address| !wanted.contains_key(address)).map(|a| (*a, None));
        let other =
            wanted.iter().filter(|(address, frontend)| held.rendered(address).as_ref() != Some(frontend));
        let replaced: Vec<_> =
            gone.chain(other.map(|(address, frontend)| (*address, Some(frontend)))).collect();
        changes.extend(adopted.replace(replaced));
        (adopted, changes)
    }
}

impl MapEntries {
    /// A frontend with its slots; `None` if slots are missing.
    fn rendered(&self, address: &SocketAddr) -> Option<RenderedFrontend> {
        let entry = self.frontends.get(address)?;
        let mut slots = Vec::new();
        for key in entry.chunks() {
            slots.extend(self.chunks.get(&key)?);
        }
        (slots.len() == entry.slots as usize).then_some(RenderedFrontend { flags: entry.flags, slots })
    }
}

/// How many entries of each map are needed.
pub(super) fn size(wanted: &RenderedFrontends) -> (usize, usize) {
    (wanted.len(), wanted.values().map(chunks_of).sum())
}

pub(super) fn chunks_of(frontend: &RenderedFrontend) -> usize {
    frontend.slots.len().div_ceil(CHUNK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 96, 0, 1], port))
    }

    fn rendered(slots: usize) -> RenderedFrontend {
        let slots = (0..slots).map(|i| SocketAddr::from(([10, 1, 0, i as u8], 80))).collect();
        RenderedFrontend { flags: 0, slots }
    }

    #[test]
    fn new_slots_come_before_the_flip_and_old_ones_go_after() {
        let mut held = HeldFrontends::default();
        held.replace([(at(1), Some(&rendered(3)))]);
        let changes = held.replace([(at(1), Some(&rendered(9))), (at(2), None)]);
        let key = |id, number| ChunkKey { id, number };
        assert_eq!(
            changes,
            [
                MapChange::PutChunk(key(2, 0), rendered(9).slots[..8].to_vec()),
                MapChange::PutChunk(key(2, 1), rendered(9).slots[8..].to_vec()),
                MapChange::PutFrontend(at(1), FrontendEntry { id: 2, slots: 9, flags: 0 }),
                MapChange::DeleteChunk(key(1, 0)),
            ]
        );
        assert_eq!((held.frontends(), held.chunks()), (1, 2));
        assert_eq!(
            held.replace([(at(1), None)]),
            [
                MapChange::DeleteFrontend(at(1)),
                MapChange::DeleteChunk(key(2, 0)),
                MapChange::DeleteChunk(key(2, 1))
            ]
        );
    }

    #[test]
    fn ids_in_use_are_passed_over_after_a_wrap() {
        let mut held = HeldFrontends { last_id: u32::MAX, ids: [0, 1].into(), ..HeldFrontends::default() };
        assert_eq!(held.next_id(), 2);
    }
}
