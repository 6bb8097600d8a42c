//! Entry for the fuzz target of the journal.

use super::journal::{RecordBuffer, parse};

/// A record of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedRecord {
    pub first: u64,
    /// Namespace, name and JSON of each row.
    pub rows: Vec<(String, String, Vec<u8>)>,
    /// The record as the journal writes it, up to the end of its last sector.
    pub encoded: Vec<u8>,
}

/// The records of an epoch, and the offset where the next one is written.
pub fn parse_journal(content: &[u8], epoch: u64) -> Result<(Vec<ParsedRecord>, u64), String> {
    let (records, tail) = parse(content, epoch).map_err(|error| error.to_string())?;
    let records = records.into_iter().map(|record| {
        let mut buffer = RecordBuffer::new();
        let mut rows = Vec::new();
        for (index, row) in record.rows.iter().enumerate() {
            buffer.add(record.first + index as u64, row);
            rows.push((row.key.namespace.to_string(), row.key.name.to_string(), row.json.to_vec()));
        }
        let encoded = buffer.seal(record.epoch, record.first).map_err(|error| error.to_string())?.to_vec();
        Ok(ParsedRecord { first: record.first, rows, encoded })
    });
    Ok((records.collect::<Result<_, String>>()?, tail))
}
