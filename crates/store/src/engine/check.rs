//! `zoneward store check`, and what opening makes sure of: every object can be read and is where it belongs.
//! Answers in sentences, because a person decides what to do about it.

use std::fmt;
use std::path::Path;

use redb::{ReadableTable, ReadableTableMetadata};

use super::Options;
use super::disk::{Disk, newest};
use super::failure::{Failure, OpenError, ReadError};
use super::key::Revision;
use super::list::Lister;
use super::medium::{Folder, Medium, holds_store};
use super::overlay::pages_are_sound;
use super::row::Row;
use super::tables::{Meta, ReadTables};

/// Memory for pages during a check.
const CACHE: usize = 64 << 20;

/// How many problems are listed; the rest is counted.
const LISTED: usize = 20;

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The newest revision.
    pub revision: Revision,
    /// The oldest revision that can be read.
    pub compacted: Revision,
    /// How many objects there are.
    pub objects: u64,
    /// How many versions of objects and marks of deletions there are.
    pub versions: u64,
    /// What is wrong, one sentence each; not all of them if there are very many.
    pub problems: Vec<String>,
    /// How many problems there are.
    pub problem_count: u64,
}

impl Report {
    /// Whether everything is as it should be.
    pub fn is_sound(&self) -> bool {
        self.problem_count == 0
    }

    /// All problems in one sentence, if there are any.
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

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{} objects in {} versions", self.objects, self.versions)?;
        writeln!(out, "newest revision {}, oldest that can be read {}", self.revision, self.compacted)?;
        for problem in &self.problems {
            writeln!(out, "problem: {problem}")?;
        }
        match self.problem_count {
            0 => write!(out, "everything can be read and is where it belongs"),
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

pub(super) fn folder(path: &Path) -> Result<Report, OpenError> {
    require(path)?;
    let place = path.display().to_string();
    let failed = |failure: Failure| OpenError::at(&place, failure);
    let folder = Folder::new(path).map_err(|error| failed(error.into()))?;
    let pages = folder.data().map_err(Failure::from).and_then(|data| pages_are_sound(data, CACHE));
    let sound = pages.map_err(failed)?;
    let disk = Disk::open(Box::new(folder), unverified())?;
    let mut report = disk.check().map_err(failed)?;
    if !sound {
        report.problem("pages of the tables do not have the content that was written".to_owned());
    }
    Ok(report)
}

fn unverified() -> Options {
    Options { verify: false, ..Options::default() }
}

pub(super) fn peek<T>(
    path: &Path,
    body: impl FnOnce(&Lister<'_>) -> Result<T, ReadError>,
) -> Result<T, OpenError> {
    require(path)?;
    let place = path.display().to_string();
    let folder = Folder::new(path).map_err(|error| OpenError::at(&place, error.into()))?;
    let disk = Disk::open(Box::new(folder), unverified())?;
    disk.read(|tables| body(&|query| tables.list(query)))
        .map_err(|error| OpenError::at(&place, newest(error)))
}

impl ReadTables {
    pub(super) fn check(&self) -> Result<Report, Failure> {
        let meta = self.meta()?;
        let (revision, compacted) = (Revision(meta.revision), Revision(meta.compacted));
        let mut report = Report { revision, compacted, ..Report::default() };
        let expiring = self.check_versions(&meta, &mut report)?;
        let entries = self.expiry.len()?;
        if entries != expiring {
            report.problem(format!("{expiring} objects shall expire, {entries} are noted for it"));
        }
        Ok(report)
    }

    /// Goes over all versions; the result is how many living objects expire.
    fn check_versions(&self, meta: &Meta, report: &mut Report) -> Result<u64, Failure> {
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
                Err(failure) => {
                    report.problem(failure.cause.to_string());
                    continue;
                }
            };
            if self.check_version(meta, revision, &row, report)? {
                heads += 1;
                report.objects += u64::from(!row.deleted);
                expiring += u64::from(!row.deleted && row.expires.is_some());
            }
        }
        let keys = self.index.len()?;
        if keys != heads {
            report.problem(format!("the index names {keys} objects, of which {heads} are there"));
        }
        let window = meta.revision.saturating_sub(meta.compacted);
        if in_window != window {
            report.problem(format!("the log should have {window} revisions and has {in_window}"));
        } else if log_bytes != meta.log_bytes {
            report.problem(format!("the log should weigh {} bytes and has {log_bytes}", meta.log_bytes));
        }
        Ok(expiring)
    }

    /// Whether this version is the newest of its object.
    fn check_version(
        &self,
        meta: &Meta,
        revision: u64,
        row: &Row,
        report: &mut Report,
    ) -> Result<bool, Failure> {
        let key = &row.key;
        if revision > meta.revision {
            report.problem(format!("{key} is at revision {revision}, the store only at {}", meta.revision));
        }
        if row.previous >= revision {
            report.problem(format!("{key}: revision {revision} follows {}", row.previous));
        }
        match self.head(key)? {
            Some(head) if head.revision == revision => {
                if head.alive == row.deleted {
                    report.problem(format!("{key}: index and revision {revision} disagree on its life"));
                }
                Ok(true)
            }
            Some(head) if head.revision > revision => Ok(false),
            _ => {
                report.problem(format!("{key} was written at revision {revision} and is not in the index"));
                Ok(false)
            }
        }
    }
}
