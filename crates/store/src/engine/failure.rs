//! What can go wrong, in words for the operator. A failure of the disk is cloned to every caller whose
//! write was in the same commit, so it carries text and not the error itself.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use super::key::Revision;

/// The store's file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("{place} is in use by another process: stop that `zoneward up` first")]
    InUse {
        /// The folder.
        place: String,
    },
    /// The disk is full.
    #[error("{place}: the disk is full ({cause}): free some space and start again; nothing is lost")]
    Full {
        /// The folder.
        place: String,
        /// What the system said.
        cause: String,
    },
    /// The content contradicts itself.
    #[error(
        "{place} is damaged: {cause}. Keep a copy of the folder, look with `zoneward store check`, and bring \
         back the last backup with `zoneward store restore`"
    )]
    Damaged {
        /// The folder.
        place: String,
        /// What was found.
        cause: String,
    },
    /// There is something where something new shall be written.
    #[error("{place} exists already: move it away first, nothing is overwritten")]
    Exists {
        /// The file or folder.
        place: String,
    },
    /// There is nothing to look at.
    #[error("{place} does not hold a store: give the folder that `zoneward up --data-dir` was given")]
    Missing {
        /// The folder.
        place: String,
    },
    /// A newer version of the program wrote it.
    #[error("{place} was written in format {found}, this program knows {known}: use the newer program")]
    Format {
        /// The folder.
        place: String,
        /// The format on disk.
        found: u64,
        /// The format of this program.
        known: u64,
    },
    /// Anything else that the system said.
    #[error("{place} cannot be opened: {cause}")]
    Io {
        /// The folder.
        place: String,
        /// What the system said.
        cause: String,
    },
}

impl OpenError {
    /// The error for a failure that was met while opening.
    pub(super) fn at(place: &str, failure: Failure) -> OpenError {
        let (place, cause) = (place.to_owned(), failure.cause.to_string());
        match failure.kind {
            FailureKind::Full => OpenError::Full { place, cause },
            FailureKind::Damaged => OpenError::Damaged { place, cause },
            FailureKind::InUse => OpenError::InUse { place },
            FailureKind::Io | FailureKind::Closed => OpenError::Io { place, cause },
        }
    }
}

/// What kind of failure the disk had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// No space, or the quota is used up: reads go on, writes work again once there is space.
    Full,
    /// The content contradicts itself.
    Damaged,
    /// Another process has the file.
    InUse,
    /// The device failed.
    Io,
    /// The engine has ended, by itself after a failed sync or because it was dropped.
    Closed,
}

/// The disk did not do what it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {cause}", self.advice())]
pub struct Failure {
    /// What kind of failure.
    pub kind: FailureKind,
    /// What the system said.
    pub cause: Arc<str>,
}

impl Failure {
    pub(super) fn new(kind: FailureKind, cause: impl Into<Arc<str>>) -> Failure {
        Failure { kind, cause: cause.into() }
    }

    pub(super) fn damaged(cause: impl Into<Arc<str>>) -> Failure {
        Failure::new(FailureKind::Damaged, cause)
    }

    pub(super) fn closed() -> Failure {
        Failure::new(FailureKind::Closed, "it was stopped")
    }

    fn advice(&self) -> &'static str {
        match self.kind {
            FailureKind::Full => "the store's disk is full, free some space",
            FailureKind::Damaged => "the store's file is damaged, restore a backup",
            FailureKind::InUse => "the store is in use by another process",
            FailureKind::Io => "the store's disk failed, look at the system's log",
            FailureKind::Closed => "the store has ended",
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        let kind = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                FailureKind::Full
            }
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => FailureKind::Damaged,
            _ => FailureKind::Io,
        };
        Failure::new(kind, error.to_string())
    }
}

impl From<redb::Error> for Failure {
    fn from(error: redb::Error) -> Failure {
        match error {
            redb::Error::Io(error) => error.into(),
            redb::Error::DatabaseAlreadyOpen => Failure::new(FailureKind::InUse, "the file is locked"),
            redb::Error::PreviousIo => Failure::new(FailureKind::Io, "an earlier error has not healed yet"),
            redb::Error::DatabaseClosed => Failure::closed(),
            other => Failure::damaged(other.to_string()),
        }
    }
}

macro_rules! failure_from {
    ($($error:ty),*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Failure {
                redb::Error::from(error).into()
            }
        }
    )*};
}

failure_from!(
    redb::StorageError,
    redb::TableError,
    redb::TransactionError,
    redb::CommitError,
    redb::DatabaseError,
    redb::SetDurabilityError
);

/// A read that could not be answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// That point in history is compacted: list again. Kubernetes answers 410.
    #[error("revision {asked} is too old, the oldest that is known is {oldest}: list again")]
    Gone {
        /// The revision that was asked for.
        asked: Revision,
        /// The oldest one that can be answered.
        oldest: Revision,
    },
    /// That point has not been reached; clients bring such numbers from before a restore.
    #[error("revision {asked} is in the future, the store is at {current}")]
    Ahead {
        /// The revision that was asked for.
        asked: Revision,
        /// The newest one.
        current: Revision,
    },
    /// The disk failed, or the engine has ended.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// A write that did not happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError<E = Infallible> {
    /// The closure refused; nothing was written.
    #[error("{0}")]
    Refused(E),
    /// Too many writes are waiting; nothing was written, try again.
    #[error("too many writes are waiting: try again")]
    Busy,
    /// The closure panicked; nothing was written.
    #[error("the write ended with a bug: {0}")]
    Panicked(Arc<str>),
    /// The disk failed; the write must not be taken for done, and not for undone either.
    #[error(transparent)]
    Failed(Failure),
}

/// A step inside of a transaction that did not happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TxnError {
    /// The object is not at the revision that was expected.
    #[error("the object is at revision {}", found.map_or("none".to_owned(), |found| found.to_string()))]
    Conflict {
        /// The revision that it has; `None` if it does not exist.
        found: Option<Revision>,
    },
    /// The disk failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}
