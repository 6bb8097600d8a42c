//! `zoneward store check`, and the verification on open: every object is readable and every index entry is right.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use redb::{ReadableTable, ReadableTableMetadata};

use super::EngineOptions;
use super::copy_on_write::pages_are_sound;
use super::encryption::{EncryptionKeyId, EncryptionKeys};
use super::error::{OpenError, StorageError, StorageErrorKind, StoreReadError};
use super::files::{StoreFiles, StoreFolder, holds_store};
use super::format::{self, OLDEST};
use super::key::Revision;
use super::list::Lister;
use super::row::Row;
use super::storage::{Storage, newest_error};
use super::tables::{Meta, ReadTables};

/// Memory for pages during a check.
const CACHE: usize = 64 << 20;

/// Problems that are listed; the rest is counted.
const LISTED: usize = 20;

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// The format on disk.
    pub format: u64,
    /// The newest revision.
    pub revision: Revision,
    /// The oldest revision that can be read.
    pub compacted: Revision,
    /// Number of objects.
    pub objects: u64,
    /// Number of versions, including tombstones.
    pub versions: u64,
    /// Number of encrypted objects by key.
    pub encrypted: BTreeMap<EncryptionKeyId, u64>,
    /// The first problems, one sentence each.
    pub problems: Vec<String>,
    /// Number of problems.
    pub problem_count: u64,
}

impl CheckReport {
    /// Whether there are no problems.
    pub fn is_sound(&self) -> bool {
        self.problem_count == 0
    }

    /// The problems in one sentence, if there are any.
    pub fn summary(&self) -> Option<String> {
        let first = self.problems.first()?;
        match self.problem_count {
            0 | 1 => Some(first.clone()),
            more => Some(format!("{first} (and {} more problems)", more - 1)),
        }
    }

    fn problem(&mut self, sentence: String) {
        self.problem_count += 1;
        if self.problems.len() < LISTED {
            self.problems.push(sentence);
        }
    }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{} objects in {} versions", self.objects, self.versions)?;
        writeln!(out, "newest revision {}, oldest that can be read {}", self.revision, self.compacted)?;
        writeln!(out, "format {}", self.format)?;
        for problem in &self.problems {
            writeln!(out, "problem: {problem}")?;
        }
        match self.problem_count {
            0 => write!(out, "no problems found"),
            count => write!(out, "{count} problems: restore a backup"),
        }
    }
}

pub(super) fn require(path: &Path) -> Result<(), OpenError> {
    let place = path.display().to_string();
    match holds_store(path) {
        Ok(true) => Ok(()),
        Ok(false) => Err(OpenError::Missing { place }),
        Err(error) => Err(OpenError::at(&place, error.into())),
    }
}

pub(super) fn folder(path: &Path, keys: &EncryptionKeys) -> Result<CheckReport, OpenError> {
    require(path)?;
    format::refuse_newer(path)?;
    let place = path.display().to_string();
    let failed = |error: StorageError| OpenError::at(&place, error);
    let folder = StoreFolder::new(path).map_err(|error| failed(error.into()))?;
    let pages = folder.data().map_err(StorageError::from).and_then(|data| pages_are_sound(data, CACHE));
    let sound = pages.map_err(failed)?;
    let options = EngineOptions { encryption: keys.clone(), ..unverified() };
    let storage = Storage::open_since(OLDEST, Box::new(folder), options)?;
    let mut report = storage.check().map_err(failed)?;
    if !sound {
        report.problem("checksums of table pages do not match".to_owned());
    }
    Ok(report)
}

fn unverified() -> EngineOptions {
    EngineOptions { verify: false, ..EngineOptions::default() }
}

pub(super) fn peek<T>(
    path: &Path,
    body: impl FnOnce(&Lister<'_>) -> Result<T, StoreReadError>,
) -> Result<T, OpenError> {
    require(path)?;
    format::refuse_newer(path)?;
    let place = path.display().to_string();
    let folder = StoreFolder::new(path).map_err(|error| OpenError::at(&place, error.into()))?;
    let storage = Storage::open_since(OLDEST, Box::new(folder), unverified())?;
    storage
        .read(|tables| body(&|query| tables.list(query)))
        .map_err(|error| OpenError::at(&place, newest_error(error)))
}

impl ReadTables {
    pub(super) fn check(&self) -> Result<CheckReport, StorageError> {
        let meta = self.meta()?;
        let (revision, compacted) = (Revision(meta.revision), Revision(meta.compacted));
        let mut report = CheckReport { format: meta.format, revision, compacted, ..CheckReport::default() };
        let expiring = self.check_versions(&meta, &mut report)?;
        let entries = self.expiry.len()?;
        if entries != expiring {
            report.problem(format!("{expiring} objects expire, the expiry table has {entries} entries"));
        }
        Ok(report)
    }

    /// Checks all versions; returns how many live objects expire.
    fn check_versions(&self, meta: &Meta, report: &mut CheckReport) -> Result<u64, StorageError> {
        let (mut heads, mut in_window, mut log_bytes, mut expiring) = (0, 0, 0, 0);
        for entry in self.versions.iter()? {
            let (revision, bytes) = entry?;
            let (revision, bytes) = (revision.value(), bytes.value());
            report.versions += 1;
            if revision > meta.compacted {
                in_window += 1;
                log_bytes += bytes.len() as u64;
            }
            let row = match Row::decode(revision, bytes) {
                Ok(row) => row,
                Err(error) => {
                    report.problem(error.cause.to_string());
                    continue;
                }
            };
            let sealed_by = row.sealed_by();
            let row = match self.open_checked(meta, revision, row) {
                Ok(row) => row,
                Err(error) if error.kind == StorageErrorKind::Key => return Err(error),
                Err(error) => {
                    report.problem(error.cause.to_string());
                    continue;
                }
            };
            if self.check_version(meta, revision, &row, report)? {
                heads += 1;
                report.objects += u64::from(!row.deleted);
                if let Some(key) = sealed_by.filter(|_| !row.deleted) {
                    *report.encrypted.entry(key).or_default() += 1;
                }
                expiring += u64::from(!row.deleted && row.expires.is_some());
            }
        }
        let keys = self.index.len()?;
        if keys != heads {
            report.problem(format!("the index has {keys} entries, of which {heads} have a version"));
        }
        let window = meta.revision.saturating_sub(meta.compacted);
        if in_window != window {
            report.problem(format!("the log has {in_window} revisions, expected {window}"));
        } else if log_bytes != meta.log_bytes {
            report.problem(format!("the log has {log_bytes} bytes, expected {}", meta.log_bytes));
        }
        Ok(expiring)
    }

    /// Checks one version; true if it is the newest of its object.
    fn check_version(
        &self,
        meta: &Meta,
        revision: u64,
        row: &Row,
        report: &mut CheckReport,
    ) -> Result<bool, StorageError> {
        let key = &row.key;
        if revision > meta.revision {
            report.problem(format!("{key} is at revision {revision}, the store is at {}", meta.revision));
        }
        if row.previous >= revision {
            report.problem(format!("{key}: revision {revision} follows {}", row.previous));
        }
        match self.head(key)? {
            Some(head) if head.revision == revision => {
                if head.alive == row.deleted {
                    report.problem(format!(
                        "{key}: index and revision {revision} disagree on whether it is deleted"
                    ));
                }
                Ok(true)
            }
            Some(head) if head.revision > revision => Ok(false),
            _ => {
                report.problem(format!("{key} at revision {revision} is not in the index"));
                Ok(false)
            }
        }
    }
}
