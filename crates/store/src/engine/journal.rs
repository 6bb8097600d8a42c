//! The journal, a write-ahead log: makes a write durable with one sync instead of the two of a commit to the tables.
//!
//! ```text
//!  |record|record|record|.......................|    records start at sectors, the file never grows
//!  ^ epoch E                ^ tail
//! ```
//!
//! A record holds the rows of one group commit. The tables get the same rows at once, in memory; they become durable at a
//! checkpoint, after which the journal restarts at the front under the next epoch. Records of another epoch than the
//! tables' are leftovers. A record is written only after the one before is durable, so a broken record followed by a good
//! one is damage, and a broken last record was never acknowledged.

use redb::StorageBackend;

use super::error::StorageError;
use super::files::GuardedFile;
use super::row::{Row, take};

/// The unit that a disk writes atomically.
const SECTOR: usize = 512;
/// Begins each record. No UTF-8 text has these bytes, so no object can look like one.
const MAGIC: [u8; 4] = [0xff, b'Z', b'J', 0xfe];
/// Magic, checksum, epoch, first revision, length of the payload.
const HEADER: usize = 4 + 4 + 8 + 8 + 4;
/// Above this length an idle checkpoint is worth its syncs: it reaches a disk within milliseconds.
const LONG: u64 = 2 << 20;
/// Zeros written at a time.
const FILL: usize = 1 << 20;

/// Memory that a buffer keeps for the next record.
const KEPT: usize = 1 << 20;

pub(super) struct Journal {
    file: GuardedFile,
    capacity: u64,
    tail: u64,
    epoch: u64,
    /// Reused for the next record.
    buffer: RecordBuffer,
}

/// A record while it is built: space for the header, then the rows.
#[derive(Debug)]
pub(super) struct RecordBuffer(Vec<u8>);

impl RecordBuffer {
    pub fn new() -> RecordBuffer {
        RecordBuffer(vec![0; HEADER])
    }

    /// Removes the rows.
    pub fn clear(&mut self) {
        self.0.truncate(HEADER);
        self.0.shrink_to(KEPT);
    }

    pub fn is_empty(&self) -> bool {
        self.0.len() == HEADER
    }

    /// Size of the rows.
    pub fn len(&self) -> usize {
        self.0.len() - HEADER
    }

    /// Adds a row and returns its encoding.
    pub fn add(&mut self, revision: u64, row: &Row) -> &[u8] {
        let start = self.0.len() + 4;
        self.0.extend([0; 4]);
        row.encode(revision, &mut self.0);
        let len = (self.0.len() - start) as u32;
        self.0[start - 4..start].copy_from_slice(&len.to_le_bytes());
        &self.0[start..]
    }

    /// Fills in the header, and zeros up to the next sector.
    pub(super) fn seal(&mut self, epoch: u64, first: u64) -> Result<&[u8], StorageError> {
        let len = u32::try_from(self.len()).map_err(|_| StorageError::damaged("a write is too large"))?;
        let record = &mut self.0;
        record[..4].copy_from_slice(&MAGIC);
        record[8..16].copy_from_slice(&epoch.to_le_bytes());
        record[16..24].copy_from_slice(&first.to_le_bytes());
        record[24..HEADER].copy_from_slice(&len.to_le_bytes());
        let sum = crc32fast::hash(&record[8..]);
        record[4..8].copy_from_slice(&sum.to_le_bytes());
        record.resize(record.len().next_multiple_of(SECTOR), 0);
        Ok(record)
    }
}

/// The rows of one group commit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct JournalRecord {
    pub epoch: u64,
    pub first: u64,
    pub rows: Vec<Row>,
}

impl Journal {
    /// Whether the file was never used.
    pub fn is_new(file: &GuardedFile) -> Result<bool, StorageError> {
        Ok(file.len()? == 0)
    }

    /// Opens the journal and reads the records of the tables' epoch.
    ///
    /// Allocates all space, so that a full disk shows at the start and not during a write.
    pub fn open(
        file: GuardedFile,
        capacity: u64,
        epoch: u64,
    ) -> Result<(Journal, Vec<JournalRecord>), StorageError> {
        let content = read_all(&file)?;
        let (records, tail) = parse(&content, epoch)?;
        let mut journal =
            Journal { file, capacity: content.len() as u64, tail, epoch, buffer: RecordBuffer::new() };
        journal.grow(capacity.next_multiple_of(SECTOR as u64))?;
        // The records that were read may be in the page cache only.
        journal.file.sync_data()?;
        Ok((journal, records))
    }

    fn grow(&mut self, capacity: u64) -> Result<(), StorageError> {
        let zeros = vec![0; FILL];
        // A truncated file may end inside a sector; zeros are right from there on. The length grows with the allocated
        // space, so that a start that failed on a full disk continues.
        while self.capacity < capacity {
            let len = FILL.min((capacity - self.capacity) as usize);
            self.file.set_len(self.capacity + len as u64)?;
            self.file.write(self.capacity, &zeros[..len])?;
            self.capacity += len as u64;
        }
        Ok(())
    }

    /// Whether a checkpoint is due, before a group does not fit.
    pub fn is_half_full(&self) -> bool {
        self.tail > self.capacity / 2
    }

    /// Whether an idle checkpoint is worth its syncs.
    pub fn is_long(&self) -> bool {
        self.tail > LONG
    }

    /// Takes the empty buffer for the next group.
    pub fn buffer(&mut self) -> RecordBuffer {
        std::mem::replace(&mut self.buffer, RecordBuffer::new())
    }

    /// Returns a buffer for reuse.
    pub fn keep(&mut self, mut buffer: RecordBuffer) {
        buffer.clear();
        self.buffer = buffer;
    }

    /// Makes a group durable. `Ok(false)`: it does not fit, and nothing was written.
    pub fn append(&mut self, first: u64, buffer: &mut RecordBuffer) -> Result<bool, StorageError> {
        let record = buffer.seal(self.epoch, first)?;
        if self.tail + record.len() as u64 > self.capacity {
            return Ok(false);
        }
        self.file.write(self.tail, record)?;
        self.file.sync_data()?;
        self.tail += record.len() as u64;
        Ok(true)
    }

    /// Restarts at the front: the tables are durable and have the new epoch.
    pub fn restart(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.tail = 0;
    }
}

fn read_all(file: &GuardedFile) -> Result<Vec<u8>, StorageError> {
    let len = usize::try_from(file.len()?).map_err(|_| StorageError::damaged("the journal is too long"))?;
    let mut content = vec![0; len];
    file.read(0, &mut content)?;
    Ok(content)
}

/// The records of an epoch, and their end.
pub(super) fn parse(content: &[u8], epoch: u64) -> Result<(Vec<JournalRecord>, u64), StorageError> {
    let mut records: Vec<JournalRecord> = Vec::new();
    let mut tail = 0;
    while let Some((record, len)) = record_at(content, tail).filter(|(record, _)| record.epoch == epoch) {
        let follows =
            |before: &JournalRecord| before.first.checked_add(before.rows.len() as u64) == Some(record.first);
        if !records.last().is_none_or(follows) {
            return Err(StorageError::damaged("the journal's records do not follow each other"));
        }
        records.push(record);
        tail += len;
    }
    for start in (tail..content.len()).step_by(SECTOR) {
        match record_at(content, start) {
            Some((record, _)) if record.epoch > epoch => {
                return Err(StorageError::damaged(
                    "the journal is newer than the tables: one of the files was replaced",
                ));
            }
            Some((record, _)) if record.epoch == epoch => {
                return Err(StorageError::damaged(format!(
                    "the journal is broken before revision {}",
                    record.first
                )));
            }
            _ => {}
        }
    }
    Ok((records, tail as u64))
}

/// The complete record at an offset, and its length on disk.
fn record_at(content: &[u8], start: usize) -> Option<(JournalRecord, usize)> {
    let content = content.get(start..)?;
    let mut header = content;
    if take::<4>(&mut header)? != MAGIC {
        return None;
    }
    let sum = u32::from_le_bytes(take(&mut header)?);
    let epoch = u64::from_le_bytes(take(&mut header)?);
    let first = u64::from_le_bytes(take(&mut header)?);
    let len = u32::from_le_bytes(take(&mut header)?) as usize;
    let end = HEADER.checked_add(len)?;
    if crc32fast::hash(content.get(8..end)?) != sum {
        return None;
    }
    let rows = rows(first, &content[HEADER..end])?;
    Some((JournalRecord { epoch, first, rows }, end.next_multiple_of(SECTOR)))
}

fn rows(first: u64, mut payload: &[u8]) -> Option<Vec<Row>> {
    let mut rows = Vec::new();
    while !payload.is_empty() {
        let len = u32::from_le_bytes(take(&mut payload)?) as usize;
        let (bytes, rest) = payload.split_at_checked(len)?;
        let revision = first.checked_add(rows.len() as u64)?;
        rows.push(Row::decode(revision, bytes).ok()?);
        payload = rest;
    }
    Some(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::key::{ResourceId, StoreKey};
    use proptest::prelude::*;

    fn record(epoch: u64, first: u64, sizes: &[usize]) -> Vec<u8> {
        let mut buffer = RecordBuffer::new();
        for (index, size) in sizes.iter().enumerate() {
            let key = StoreKey::new(ResourceId(1), "default", "web");
            let json = vec![b'x'; *size].into();
            let row = Row { key, deleted: false, previous: 0, expires: None, json };
            buffer.add(first + index as u64, &row);
        }
        buffer.seal(epoch, first).unwrap().to_vec()
    }

    fn firsts(records: &[JournalRecord]) -> Vec<u64> {
        records.iter().map(|record| record.first).collect()
    }

    #[test]
    fn records_of_the_epoch_are_read_up_to_the_torn_one() {
        let mut content = [record(3, 10, &[5, 700]), record(3, 12, &[1])].concat();
        let whole = content.len();
        content.extend(&record(3, 13, &[2000])[..600]);
        content.resize(whole + 16 * SECTOR, 0);
        let (records, tail) = parse(&content, 3).unwrap();
        assert_eq!((firsts(&records), tail), (vec![10, 12], whole as u64));
    }

    #[test]
    fn leftovers_of_an_earlier_epoch_are_passed_over() {
        let content = [record(2, 5, &[1]), record(2, 6, &[1])].concat();
        assert_eq!(parse(&content, 3).unwrap(), (Vec::new(), 0));
        let content = [record(3, 7, &[1]), record(2, 6, &[1])].concat();
        assert_eq!(firsts(&parse(&content, 3).unwrap().0), [7]);
    }

    #[test]
    fn damage_is_told_from_a_torn_end() {
        let mut content = [record(3, 10, &[5]), record(3, 11, &[5]), record(3, 12, &[5])].concat();
        content[SECTOR + 40] ^= 1;
        assert!(parse(&content, 3).unwrap_err().to_string().contains("before revision 12"));
        assert!(parse(&record(4, 1, &[1]), 3).unwrap_err().to_string().contains("newer"));
        let gap = [record(3, 10, &[5]), record(3, 12, &[5])].concat();
        assert!(parse(&gap, 3).unwrap_err().to_string().contains("do not follow"));
    }

    #[test]
    fn a_reused_buffer_keeps_nothing_of_the_last_record() {
        let mut buffer = RecordBuffer::new();
        let row = |json: Vec<u8>| Row {
            key: StoreKey::new(ResourceId(1), "default", "web"),
            deleted: false,
            previous: 0,
            expires: None,
            json: json.into(),
        };
        buffer.add(7, &row(vec![b'x'; KEPT]));
        buffer.seal(1, 7).unwrap();
        buffer.clear();
        assert!(buffer.is_empty() && buffer.0.capacity() <= KEPT);
        buffer.add(8, &row(vec![b'x'; 9]));
        assert_eq!(buffer.seal(1, 8).unwrap(), record(1, 8, &[9]));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>, epoch in 0..4u64, cut: prop::sample::Index) {
            let _ = parse(&bytes, epoch);
            let mut content = record(epoch, 1, &[3, 900]);
            content.truncate(cut.index(content.len()));
            content.extend(bytes);
            let _ = parse(&content, epoch);
        }
    }
}
