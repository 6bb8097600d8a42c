//! The journal of the store. The first byte of the input is a mode, the rest is the file.
//!
//! Random bytes do not pass a checksum, so in mode `r` checksums are repaired first, by this file's own reading of the
//! format: an attacker, or a bug in the writer, could do the same.

use store::fuzzing::{ParsedRecord, parse_journal};

const SECTOR: usize = 512;
const MAGIC: [u8; 4] = [0xff, b'Z', b'J', 0xfe];
const HEADER: usize = 28;
const EPOCH: u64 = 3;

pub(crate) fn run(input: &[u8]) {
    let Some((mode, file)) = input.split_first() else { return };
    let mut file = file.to_vec();
    if *mode == b'r' {
        repair(&mut file);
    }
    let Ok((records, tail)) = parse_journal(&file, EPOCH) else { return };
    assert_eq!(tail % SECTOR as u64, 0, "the next record would not start at a sector");
    let encoded: Vec<u8> = records.iter().flat_map(|record| record.encoded.clone()).collect();
    assert_eq!(encoded.len() as u64, tail, "records and tail disagree");
    assert_eq!(
        parse_journal(&encoded, EPOCH),
        Ok((records.clone(), tail)),
        "records do not survive encoding"
    );
    // A torn record behind them is not an error, and changes nothing.
    let torn = [encoded.as_slice(), &MAGIC, &[0; 40]].concat();
    assert_eq!(parse_journal(&torn, EPOCH), Ok((records.clone(), tail)), "a torn record hides others");
    cut_short(&encoded, &records);
}

/// A prefix that ends with a record has the records up to there.
fn cut_short(encoded: &[u8], records: &[ParsedRecord]) {
    let Some((last, others)) = records.split_last() else { return };
    let before = encoded.len() - last.encoded.len();
    let expected = Ok((others.to_vec(), before as u64));
    assert_eq!(parse_journal(&encoded[..before], EPOCH), expected, "a prefix reads differently");
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let four: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    usize::try_from(u32::from_le_bytes(four)).ok()
}

/// Recomputes the checksums of rows and records.
fn repair(file: &mut [u8]) {
    for start in (0..file.len()).step_by(SECTOR) {
        let record = &mut file[start..];
        if record.get(..4) == Some(&MAGIC) {
            repair_record(record);
        }
    }
}

fn repair_record(record: &mut [u8]) -> Option<()> {
    let end = HEADER.checked_add(number(record, 24)?)?;
    let first = u64::from_le_bytes(record.get(16..24)?.try_into().ok()?);
    let payload = record.get_mut(HEADER..end)?;
    let (mut at, mut revision) = (0, first);
    while let Some(len) = number(payload, at) {
        let Some(row) = payload.get_mut(at + 4..at + 4 + len) else { break };
        if let Some(content) = len.checked_sub(4) {
            let mut sum = crc32fast::Hasher::new();
            sum.update(&revision.to_le_bytes());
            sum.update(&row[..content]);
            row[content..].copy_from_slice(&sum.finalize().to_le_bytes());
        }
        at += 4 + len;
        revision = revision.wrapping_add(1);
    }
    let sum = crc32fast::hash(&record[8..end]);
    record[4..8].copy_from_slice(&sum.to_le_bytes());
    Some(())
}
