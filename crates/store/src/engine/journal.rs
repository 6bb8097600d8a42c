//! The journal: what makes a write durable with one sync instead of the two of a commit to the tables.
//!
//! ```text
//!  |record|record|record|.......................|    records begin at sectors, the file never grows
//!  ^ epoch E                ^ tail
//! ```
//!
//! A record holds the rows of one group of writes. The tables get the same rows at once, in memory; they become
//! durable at a checkpoint, after which the journal is filled from the front again under the next epoch. Records of
//! another epoch than the tables' are leftovers. The next record is only written after the one before is durable,
//! so a broken record with a good one behind it is damage, and one with nothing behind it was never acknowledged.

use redb::StorageBackend;

use super::failure::Failure;
use super::medium::Guarded;
use super::row::{Row, take};

/// What a disk writes as a whole.
const SECTOR: usize = 512;
/// Begins each record. No UTF-8 text has these bytes, so no object can look like one.
const MAGIC: [u8; 4] = [0xff, b'Z', b'J', 0xfe];
/// Magic, checksum, epoch, first revision, length of the payload.
const HEADER: usize = 4 + 4 + 8 + 8 + 4;
/// From here on a checkpoint in a quiet moment is worth its syncs: so much reaches a disk within some milliseconds.
const LONG: u64 = 2 << 20;
/// How much is filled with zeros at a time.
const FILL: usize = 1 << 20;

/// A sheet that has grown beyond this is not kept for the next record.
const KEPT: usize = 1 << 20;

pub(super) struct Journal {
    file: Guarded,
    capacity: u64,
    tail: u64,
    epoch: u64,
    /// For the next record: its memory serves again.
    sheet: Sheet,
}

/// A record while it is written: room for its head, then row after row.
#[derive(Debug)]
pub(super) struct Sheet(Vec<u8>);

impl Sheet {
    pub fn new() -> Sheet {
        Sheet(vec![0; HEADER])
    }

    /// Forgets the rows.
    pub fn clear(&mut self) {
        self.0.truncate(HEADER);
        self.0.shrink_to(KEPT);
    }

    pub fn is_empty(&self) -> bool {
        self.0.len() == HEADER
    }

    /// How many bytes the rows take.
    pub fn len(&self) -> usize {
        self.0.len() - HEADER
    }

    /// Adds a row; the result is how it was written.
    pub fn add(&mut self, revision: u64, row: &Row) -> &[u8] {
        let start = self.0.len() + 4;
        self.0.extend([0; 4]);
        row.encode(revision, &mut self.0);
        let len = (self.0.len() - start) as u32;
        self.0[start - 4..start].copy_from_slice(&len.to_le_bytes());
        &self.0[start..]
    }

    /// Fills in the head, and zeros up to the next sector.
    fn seal(&mut self, epoch: u64, first: u64) -> Result<&[u8], Failure> {
        let len = u32::try_from(self.len()).map_err(|_| Failure::damaged("a write is too large"))?;
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

/// A group of rows that was made durable together.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub epoch: u64,
    pub first: u64,
    pub rows: Vec<Row>,
}

impl Journal {
    /// Whether the file was never used.
    pub fn is_new(file: &Guarded) -> Result<bool, Failure> {
        Ok(file.len()? == 0)
    }

    /// Opens the journal of the tables' epoch and reads what it holds.
    ///
    /// Space is taken now, so that a full disk shows at the start and not in the middle of a write.
    pub fn open(file: Guarded, capacity: u64, epoch: u64) -> Result<(Journal, Vec<Record>), Failure> {
        let content = read_all(&file)?;
        let (records, tail) = parse(&content, epoch)?;
        let mut journal = Journal { file, capacity: content.len() as u64, tail, epoch, sheet: Sheet::new() };
        journal.grow(capacity.next_multiple_of(SECTOR as u64))?;
        // What was read may so far lie in the system's memory only.
        journal.file.sync_data()?;
        Ok((journal, records))
    }

    fn grow(&mut self, capacity: u64) -> Result<(), Failure> {
        let zeros = vec![0; FILL];
        // A file that was cut may end inside of a sector; zeros from there on are right as well. The length grows with
        // what is really there, so that a start that a full disk cut short is taken up again.
        while self.capacity < capacity {
            let len = FILL.min((capacity - self.capacity) as usize);
            self.file.set_len(self.capacity + len as u64)?;
            self.file.write(self.capacity, &zeros[..len])?;
            self.capacity += len as u64;
        }
        Ok(())
    }

    /// Whether it is time for a checkpoint, before a group comes for which there is no room.
    pub fn is_half_full(&self) -> bool {
        self.tail > self.capacity / 2
    }

    /// Whether a checkpoint is worth its syncs, once there is time for it.
    pub fn is_long(&self) -> bool {
        self.tail > LONG
    }

    /// An empty sheet for the next group.
    pub fn sheet(&mut self) -> Sheet {
        std::mem::replace(&mut self.sheet, Sheet::new())
    }

    /// Takes a sheet back that is not needed any more.
    pub fn keep(&mut self, mut sheet: Sheet) {
        sheet.clear();
        self.sheet = sheet;
    }

    /// Makes a group durable. `Ok(false)`: it does not fit, and nothing was done.
    pub fn append(&mut self, first: u64, sheet: &mut Sheet) -> Result<bool, Failure> {
        let record = sheet.seal(self.epoch, first)?;
        if self.tail + record.len() as u64 > self.capacity {
            return Ok(false);
        }
        self.file.write(self.tail, record)?;
        self.file.sync_data()?;
        self.tail += record.len() as u64;
        Ok(true)
    }

    /// Starts at the front again: the tables are durable, and know the new epoch.
    pub fn restart(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.tail = 0;
    }
}

fn read_all(file: &Guarded) -> Result<Vec<u8>, Failure> {
    let len = usize::try_from(file.len()?).map_err(|_| Failure::damaged("the journal is too long"))?;
    let mut content = vec![0; len];
    file.read(0, &mut content)?;
    Ok(content)
}

/// The records of an epoch, and where they end.
fn parse(content: &[u8], epoch: u64) -> Result<(Vec<Record>, u64), Failure> {
    let mut records: Vec<Record> = Vec::new();
    let mut tail = 0;
    while let Some((record, len)) = record_at(content, tail).filter(|(record, _)| record.epoch == epoch) {
        let follows = |before: &Record| before.first + before.rows.len() as u64 == record.first;
        if !records.last().is_none_or(follows) {
            return Err(Failure::damaged("the journal's records do not follow each other"));
        }
        records.push(record);
        tail += len;
    }
    for start in (tail..content.len()).step_by(SECTOR) {
        match record_at(content, start) {
            Some((record, _)) if record.epoch > epoch => {
                return Err(Failure::damaged("the journal is newer than the tables: a file was exchanged"));
            }
            Some((record, _)) if record.epoch == epoch => {
                return Err(Failure::damaged(format!(
                    "the journal is broken before revision {}",
                    record.first
                )));
            }
            _ => {}
        }
    }
    Ok((records, tail as u64))
}

/// The record that begins at an offset, if a whole one does, and how much room it takes.
fn record_at(content: &[u8], start: usize) -> Option<(Record, usize)> {
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
    Some((Record { epoch, first, rows }, end.next_multiple_of(SECTOR)))
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
    use crate::engine::key::{Key, ResourceId};
    use proptest::prelude::*;

    fn record(epoch: u64, first: u64, sizes: &[usize]) -> Vec<u8> {
        let mut sheet = Sheet::new();
        for (index, size) in sizes.iter().enumerate() {
            let key = Key::new(ResourceId(1), "default", "web");
            let json = vec![b'x'; *size].into();
            let row = Row { key, deleted: false, previous: 0, expires: None, json };
            sheet.add(first + index as u64, &row);
        }
        sheet.seal(epoch, first).unwrap().to_vec()
    }

    fn firsts(records: &[Record]) -> Vec<u64> {
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
    fn a_sheet_serves_again_and_keeps_nothing_of_the_last_record() {
        let mut sheet = Sheet::new();
        let row = |json: Vec<u8>| Row {
            key: Key::new(ResourceId(1), "default", "web"),
            deleted: false,
            previous: 0,
            expires: None,
            json: json.into(),
        };
        sheet.add(7, &row(vec![b'x'; KEPT]));
        sheet.seal(1, 7).unwrap();
        sheet.clear();
        assert!(sheet.is_empty() && sheet.0.capacity() <= KEPT);
        sheet.add(8, &row(vec![b'x'; 9]));
        assert_eq!(sheet.seal(1, 8).unwrap(), record(1, 8, &[9]));
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
