//! The traffic of one minute by row and zones: sorted, 16 bytes each, because there are millions of them.

use super::{CellKey, Counts, OTHER, UNKNOWN};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MinuteCell {
    key: CellKey,
    /// More than fit do not begin in a minute.
    connections: u32,
    bytes: u64,
}

impl MinuteCell {
    fn counts(&self) -> Counts {
        Counts { connections: u64::from(self.connections), bytes: self.bytes }
    }

    fn add(&mut self, more: Counts) {
        let connections = u32::try_from(more.connections).unwrap_or(u32::MAX);
        self.connections = self.connections.saturating_add(connections);
        self.bytes = self.bytes.saturating_add(more.bytes);
    }
}

/// Cells in the order of their keys.
#[derive(Debug, Default)]
pub(super) struct MinuteCells(Vec<MinuteCell>);

impl MinuteCells {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    fn place(&self, key: CellKey) -> Result<usize, usize> {
        self.0.binary_search_by_key(&key, |cell| cell.key)
    }

    pub(super) fn contains(&self, key: CellKey) -> bool {
        self.place(key).is_ok()
    }

    pub(super) fn add(&mut self, key: CellKey, more: Counts) {
        let at = self.place(key).unwrap_or_else(|at| {
            self.0.insert(at, MinuteCell { key, connections: 0, bytes: 0 });
            at
        });
        self.0[at].add(more);
    }

    /// With unknown zones if there is no room for another pair.
    pub(super) fn add_within(&mut self, most: usize, key: CellKey, more: Counts) {
        let has_room = self.len() < most || self.contains(key);
        let key = if has_room { key } else { CellKey { from: UNKNOWN, to: UNKNOWN, ..key } };
        self.add(key, more);
    }

    /// Gives back memory that a full minute does not need.
    pub(super) fn close(&mut self) {
        self.0.shrink_to_fit();
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (CellKey, Counts)> + '_ {
        self.0.iter().map(|cell| (cell.key, cell.counts()))
    }

    pub(super) fn of_owner(&self, owner: u16) -> impl Iterator<Item = (CellKey, Counts)> + '_ {
        let first = self.0.partition_point(|cell| cell.key.owner < owner);
        let cells = self.0[first..].iter().take_while(move |cell| cell.key.owner == owner);
        cells.map(|cell| (cell.key, cell.counts()))
    }

    /// Moves the cells of some owners to the row of other Services.
    pub(super) fn move_to_others(&mut self, is_moved: impl Fn(u16) -> bool) {
        let moved: Vec<MinuteCell> = self.0.iter().filter(|cell| is_moved(cell.key.owner)).copied().collect();
        if moved.is_empty() {
            return;
        }
        self.0.retain(|cell| !is_moved(cell.key.owner));
        for cell in moved {
            self.add(CellKey { owner: OTHER, ..cell.key }, cell.counts());
        }
        self.close();
    }
}

/// Sums of several minutes, in the order of their keys.
#[derive(Debug, Default)]
pub(super) struct CellSums(Vec<(CellKey, Counts)>);

impl CellSums {
    /// Costs a comparison for each cell: the keys of minutes are mostly the same.
    pub(super) fn add(&mut self, cells: &MinuteCells) {
        let (mut at, mut new) = (0, Vec::new());
        for (key, counts) in cells.iter() {
            while self.0.get(at).is_some_and(|(known, _)| *known < key) {
                at += 1;
            }
            match self.0.get_mut(at) {
                Some((known, sum)) if *known == key => sum.add(counts),
                _ => new.push((key, counts)),
            }
        }
        if !new.is_empty() {
            self.0.append(&mut new);
            self.0.sort_unstable_by_key(|(key, _)| *key);
        }
    }

    pub(super) fn into_iter(self) -> impl Iterator<Item = (CellKey, Counts)> {
        self.0.into_iter()
    }
}
