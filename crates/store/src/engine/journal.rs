//! The journal, a write-ahead log: makes a write durable with one sync instead of the two of a commit to the tables.
//!
//! ```text
//!  |record|record|record|...................|mark|    records start at sectors, the file never grows
//!  ^ epoch E             ^ tail
//! ```
//!
//! A record holds the rows of one group commit. The tables get the same rows at once, in memory; they become durable at a
//! checkpoint, after which the journal restarts at the front under the next epoch. Records of another epoch than the
//! tables' are leftovers. A record is written only after the one before is durable, so a broken record followed by a good
//! one is damage, and a broken last record was never acknowledged.
//!
//! The mark says how far records are durable. It is written after their sync and before they are acknowledged, and has no
//! sync of its own: it is in the page cache at once, and on the disk with the next record. A journal that ends before its
//! mark, or has zeros in its place, has lost acknowledged writes. After a power loss the mark may be that of an earlier
//! record, which is true as well; only a loss of the records after it would not be noticed. Earlier versions ignore the
//! mark, and may write a record over it.

use model::plant::{PlantedBug, is_planted};
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
/// Begins the mark.
const MARK_MAGIC: [u8; 4] = [0xff, b'Z', b'M', 0xfe];
/// Magic, checksum, epoch, tail, last revision.
const MARK: usize = 4 + 4 + 8 + 8 + 8;
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

/// A record while it is built: space for the header, then the rows; and their number.
#[derive(Debug)]
pub(super) struct RecordBuffer(Vec<u8>, u64);

impl RecordBuffer {
    pub(super) fn new() -> RecordBuffer {
        RecordBuffer(vec![0; HEADER], 0)
    }

    /// Removes the rows.
    pub(super) fn clear(&mut self) {
        self.0.truncate(HEADER);
        self.1 = 0;
        self.0.shrink_to(KEPT);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.len() == HEADER
    }

    /// Size of the rows.
    pub(super) fn len(&self) -> usize {
        self.0.len() - HEADER
    }

    /// Number of rows.
    fn rows(&self) -> u64 {
        self.1
    }

    /// Adds a row and returns its encoding.
    pub(super) fn add(&mut self, revision: u64, row: &Row) -> &[u8] {
        self.1 += 1;
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

/// How far the records of an epoch are durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    epoch: u64,
    tail: u64,
    revision: u64,
}

impl Mark {
    fn encode(self) -> [u8; SECTOR] {
        let mut sector = [0; SECTOR];
        sector[..4].copy_from_slice(&MARK_MAGIC);
        sector[8..16].copy_from_slice(&self.epoch.to_le_bytes());
        sector[16..24].copy_from_slice(&self.tail.to_le_bytes());
        sector[24..MARK].copy_from_slice(&self.revision.to_le_bytes());
        let sum = crc32fast::hash(&sector[8..MARK]);
        sector[4..8].copy_from_slice(&sum.to_le_bytes());
        sector
    }

    /// The mark at the end of a journal, if there is one.
    fn at_end(content: &[u8]) -> Option<Mark> {
        let mut sector = content.last_chunk::<SECTOR>()?.as_slice();
        let sum_of = crc32fast::hash(&sector[8..MARK]);
        if take::<4>(&mut sector)? != MARK_MAGIC || u32::from_le_bytes(take(&mut sector)?) != sum_of {
            return None;
        }
        let epoch = u64::from_le_bytes(take(&mut sector)?);
        let tail = u64::from_le_bytes(take(&mut sector)?);
        Some(Mark { epoch, tail, revision: u64::from_le_bytes(take(&mut sector)?) })
    }

    /// Fails if the records that were found are not all that were durable.
    fn check(self, epoch: u64, tail: u64) -> Result<(), StorageError> {
        if self.epoch > epoch {
            return Err(newer());
        }
        if self.epoch == epoch && self.tail > tail {
            return Err(StorageError::damaged(format!(
                "the journal was cut short: writes up to revision {} were acknowledged and are missing",
                self.revision
            )));
        }
        Ok(())
    }
}

/// Fails if the journal is shorter than it was, or was cut and then grew again.
fn check_length(content: &[u8], marked: u64) -> Result<(), StorageError> {
    let marked = usize::try_from(marked).unwrap_or(usize::MAX);
    let cut =
        |to: String| StorageError::damaged(format!("the journal was cut {to}: its last writes may be lost"));
    let Some(before) = content.get(..marked) else {
        return Err(cut(format!("to {} bytes of {marked}", content.len())));
    };
    match before.last_chunk::<SECTOR>() {
        Some(sector) if *sector == [0; SECTOR] => Err(cut("short".to_owned())),
        _ => Ok(()),
    }
}

fn newer() -> StorageError {
    StorageError::damaged("the journal is newer than the tables: one of the files was replaced")
}

impl Journal {
    /// Whether the file was never used.
    pub(super) fn is_new(file: &GuardedFile) -> Result<bool, StorageError> {
        Ok(file.len()? == 0)
    }

    /// The journal of tables that are not read.
    pub(super) fn unread(file: GuardedFile) -> Journal {
        Journal { file, capacity: 0, tail: 0, epoch: 0, buffer: RecordBuffer::new() }
    }

    /// Opens the journal and reads the records of the tables' epoch. `marked` is the length that it had with a mark at its
    /// end, 0 if unknown.
    ///
    /// Allocates all space, so that a full disk shows at the start and not during a write.
    pub(super) fn open(
        file: GuardedFile,
        capacity: u64,
        epoch: u64,
        marked: u64,
    ) -> Result<(Journal, Vec<JournalRecord>), StorageError> {
        let content = read_all(&file)?;
        check_length(&content, marked)?;
        let (records, tail) = parse(&content, epoch)?;
        let mark = Mark::at_end(&content);
        if let Some(mark) = mark {
            mark.check(epoch, tail)?;
        }
        let len = content.len() as u64;
        let mut journal = Journal { file, capacity: len, tail, epoch, buffer: RecordBuffer::new() };
        journal.grow(capacity.next_multiple_of(SECTOR as u64))?;
        if mark.is_none() || journal.capacity > len {
            // The tables may say that there is a mark once it is durable. It must not name records that are not.
            journal.write_mark(Mark { epoch, tail: 0, revision: 0 })?;
        }
        // The records that were read may be in the page cache only.
        journal.file.sync_data()?;
        if let Some(last) = records.last() {
            journal.mark(last.first + last.rows.len() as u64 - 1);
        }
        Ok((journal, records))
    }

    /// Bytes of the file.
    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Says that everything up to the tail is durable. Not having said so loses nothing, so an error is ignored.
    fn mark(&self, revision: u64) {
        let _ = self.write_mark(Mark { epoch: self.epoch, tail: self.tail, revision });
    }

    /// Writes the mark, unless an earlier version has a record there.
    fn write_mark(&self, mark: Mark) -> Result<(), StorageError> {
        if let Some(at) = self.capacity.checked_sub(SECTOR as u64).filter(|at| self.tail <= *at) {
            self.file.write(at, &mark.encode())?;
        }
        Ok(())
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
    pub(super) fn is_half_full(&self) -> bool {
        self.tail > self.capacity / 2
    }

    /// Whether a checkpoint is due on a full disk: small ones need little space.
    pub(super) fn is_due_on_full_disk(&self) -> bool {
        self.tail > self.capacity / 64
    }

    /// Whether an idle checkpoint is worth its syncs.
    pub(super) fn is_long(&self) -> bool {
        self.tail > LONG
    }

    /// Takes the empty buffer for the next group.
    pub(super) fn buffer(&mut self) -> RecordBuffer {
        std::mem::replace(&mut self.buffer, RecordBuffer::new())
    }

    /// Returns a buffer for reuse.
    pub(super) fn keep(&mut self, mut buffer: RecordBuffer) {
        buffer.clear();
        self.buffer = buffer;
    }

    /// Makes a group durable. `Ok(false)`: it does not fit, and nothing was written.
    pub(super) fn append(&mut self, first: u64, buffer: &mut RecordBuffer) -> Result<bool, StorageError> {
        let last = (first + buffer.rows()).saturating_sub(1);
        let record = buffer.seal(self.epoch, first)?;
        if self.tail + (record.len() + SECTOR) as u64 > self.capacity {
            return Ok(false);
        }
        self.file.write(self.tail, record)?;
        if !is_planted(PlantedBug::UnsyncedJournal) {
            self.file.sync_data()?;
        }
        self.tail += record.len() as u64;
        self.mark(last);
        Ok(true)
    }

    /// Overwrites all records: the tables are durable and have all of them.
    pub(super) fn clear(&mut self) -> Result<(), StorageError> {
        let zeros = vec![0; FILL];
        let end = self.capacity.saturating_sub(SECTOR as u64);
        let mut at = 0;
        while at < end {
            let len = FILL.min((end - at) as usize);
            self.file.write(at, &zeros[..len])?;
            at += len as u64;
        }
        self.tail = 0;
        self.write_mark(Mark { epoch: self.epoch, tail: 0, revision: 0 })?;
        Ok(self.file.sync_data()?)
    }

    /// Restarts at the front: the tables are durable and have the new epoch.
    pub(super) fn restart(&mut self, epoch: u64) {
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
                return Err(newer());
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
    use std::sync::Arc;

    use super::*;
    use crate::engine::key::{ResourceId, StoreKey};
    use proptest::prelude::*;

    fn record(epoch: u64, first: u64, sizes: &[usize]) -> Vec<u8> {
        let mut buffer = RecordBuffer::new();
        for (index, size) in sizes.iter().enumerate() {
            let key = StoreKey::new(ResourceId(1), "default", "web");
            let json = vec![b'x'; *size].into();
            let row = Row { key, deleted: false, previous: 0, expires: None, sealed: false, json };
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

    fn open(content: &[u8], capacity: u64, marked: u64) -> Result<(Vec<u8>, Vec<u64>), StorageError> {
        let file = redb::backends::InMemoryBackend::new();
        file.set_len(content.len() as u64)?;
        file.write(0, content)?;
        let file = GuardedFile::new(Box::new(file), Arc::default(), Arc::new(|error| panic!("{error}")));
        let (journal, records) = Journal::open(file, capacity, 3, marked)?;
        Ok((read_all(&journal.file)?, firsts(&records)))
    }

    /// They know no marks: they write over it, and make a journal longer without one.
    #[test]
    fn what_earlier_versions_do_to_the_mark_is_no_loss() {
        let (empty, _) = open(&[], 4_096, 0).unwrap();
        assert_eq!(Mark::at_end(&empty), Some(Mark { epoch: 3, tail: 0, revision: 0 }));
        let over = record(3, 7, &[3_900]);
        assert_eq!(over.len(), 4_096);
        let (after, found) = open(&over, 4_096, 4_096).unwrap();
        assert_eq!((after, found), (over, vec![7]));
        let mut longer = empty.clone();
        longer.resize(8_192, 0);
        let (longer, _) = open(&longer, 8_192, 4_096).unwrap();
        assert!(Mark::at_end(&longer).is_some());
        // Another record, and the mark stays as it is.
        let mut more = [record(3, 7, &[1]), record(3, 8, &[1])].concat();
        more.extend(&empty[more.len()..]);
        assert_eq!(open(&more, 4_096, 4_096).unwrap().1, [7, 8]);
    }

    #[test]
    fn a_journal_that_was_cut_is_told_from_one_that_never_was_longer() {
        let (whole, _) = open(&record(3, 7, &[1]), 4_096, 0).unwrap();
        assert_eq!(Mark::at_end(&whole), Some(Mark { epoch: 3, tail: SECTOR as u64, revision: 7 }));
        let text = |content: &[u8], marked| open(content, 4_096, marked).unwrap_err().to_string();
        assert!(text(&whole[..600], 4_096).contains("cut to 600 bytes of 4096"));
        assert!(text(&[0; 4_096], 4_096).contains("cut short"));
        let mut lost = whole.clone();
        lost[..SECTOR].fill(0);
        assert!(text(&lost, 4_096).contains("up to revision 7 were acknowledged"));
        assert_eq!(open(&whole[..600], 4_096, 0).unwrap().1, [7]);
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
            sealed: false,
            json: json.into(),
        };
        buffer.add(7, &row(vec![b'x'; KEPT]));
        buffer.seal(1, 7).unwrap();
        buffer.clear();
        assert!(buffer.is_empty() && buffer.0.capacity() <= KEPT);
        buffer.add(8, &row(vec![b'x'; 9]));
        assert_eq!(buffer.seal(1, 8).unwrap(), record(1, 8, &[9]));
    }

    #[test]
    fn a_mark_is_read_as_it_was_written_and_in_no_other_way() {
        let mark = Mark { epoch: 3, tail: 1024, revision: 9 };
        let mut content = [vec![0; SECTOR], mark.encode().to_vec()].concat();
        assert_eq!(Mark::at_end(&content), Some(mark));
        assert_eq!(record_at(&content, SECTOR), None);
        content[SECTOR + 9] ^= 1;
        assert_eq!(Mark::at_end(&content), None);
        assert_eq!(Mark::at_end(&[0; 100]), None);
        assert!(mark.check(3, 1024).is_ok() && mark.check(4, 0).is_ok());
        assert!(mark.check(3, 512).unwrap_err().to_string().contains("up to revision 9"));
        assert!(mark.check(2, 4096).unwrap_err().to_string().contains("newer"));
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
