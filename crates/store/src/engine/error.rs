//! Errors of the engine, worded for the operator. A storage error is cloned to every caller of the same group commit, so
//! it carries text and not its source.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use super::encryption::EncryptionKeyId;
use super::key::Revision;

/// The store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has locked it.
    #[error("{place} is in use by another process: stop that `zoneward up` first")]
    InUse {
        /// The folder.
        place: String,
    },
    /// The disk is full.
    #[error("{place}: the disk is full ({cause}): free space and start again; no data is lost")]
    Full {
        /// The folder.
        place: String,
        /// The error of the system.
        cause: String,
    },
    /// The content is inconsistent.
    #[error(
        "{place} is damaged: {cause}. Keep a copy of the folder, and restore the last backup with `zoneward store \
         restore`",
        cause = cause.trim_end_matches('.')
    )]
    Damaged {
        /// The folder.
        place: String,
        /// What was found.
        cause: String,
    },
    /// The content of a backup is inconsistent.
    #[error(
        "{place} is not a backup, or is incomplete or damaged: {cause}. Use another backup",
        cause = cause.trim_end_matches('.')
    )]
    DamagedBackup {
        /// The file.
        place: String,
        /// What was found.
        cause: String,
    },
    /// The file of a new backup exists.
    #[error("{place} exists already: choose another name")]
    BackupExists {
        /// The file.
        place: String,
    },
    /// The target exists.
    #[error("{place} exists already: move it away first, nothing is overwritten")]
    Exists {
        /// The file or folder.
        place: String,
    },
    /// There is no store.
    #[error("{place} does not hold a store: pass the folder that was passed to `zoneward up --data-dir`")]
    Missing {
        /// The folder.
        place: String,
    },
    /// Written by a newer version of the program.
    #[error(
        "{place} is in format {found}{}, this program reads formats up to {known}: use the newer program, or restore a \
         backup in format {known} into a new folder with `zoneward store restore`",
        program.as_ref().map(|version| format!(" of zoneward {version}")).unwrap_or_default()
    )]
    Format {
        /// The folder or backup.
        place: String,
        /// The format on disk.
        found: u64,
        /// The version of the program that wrote it, where that is known.
        program: Option<String>,
        /// The format of this program.
        known: u64,
    },
    /// Written by an older version of the program, and not migrated yet.
    #[error(
        "{place} is in format {found}, this program writes format {known}: migrate it with `zoneward store migrate`, \
         which takes a backup first"
    )]
    OldFormat {
        /// The folder.
        place: String,
        /// The format on disk.
        found: u64,
        /// The format of this program.
        known: u64,
    },
    /// A key that the content needs was not passed.
    #[error(
        "{place}: {cause}: add this key to the file that is passed as `--encryption-key-file`; nothing was changed"
    )]
    Key {
        /// The folder or backup.
        place: String,
        /// Which object needs which key.
        cause: String,
    },
    /// It is encrypted with another key than the one that it was opened with.
    #[error(
        "{place} is {}: pass the file with the key as `--encryption-key-file`",
        key.map_or("not encrypted".to_owned(), |key| format!("encrypted with key {key}"))
    )]
    Encrypted {
        /// The folder or backup.
        place: String,
        /// Its key.
        key: Option<EncryptionKeyId>,
    },
    /// Any other error of the system.
    #[error("{place} cannot be opened: {cause}")]
    Io {
        /// The folder.
        place: String,
        /// The error of the system.
        cause: String,
    },
}

impl OpenError {
    /// The error of opening `place`.
    pub(super) fn at(place: &str, error: StorageError) -> OpenError {
        let (place, cause) = (place.to_owned(), error.cause.to_string());
        match error.kind {
            StorageErrorKind::Full => OpenError::Full { place, cause },
            StorageErrorKind::Damaged => OpenError::Damaged { place, cause },
            StorageErrorKind::InUse => OpenError::InUse { place },
            StorageErrorKind::Key => OpenError::Key { place, cause },
            StorageErrorKind::Io | StorageErrorKind::Closed => OpenError::Io { place, cause },
        }
    }
}

/// The kind of a [`StorageError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageErrorKind {
    /// No space, or the quota is used up: reads continue, writes work again once there is space.
    Full,
    /// The content is inconsistent.
    Damaged,
    /// Another process has locked the file.
    InUse,
    /// A key to decrypt the content is missing.
    Key,
    /// The device failed.
    Io,
    /// The engine is closed: it was dropped, or a sync failed.
    Closed,
}

/// The disk or its content failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {cause}", self.advice())]
pub struct StorageError {
    /// The kind.
    pub kind: StorageErrorKind,
    /// The error of the system.
    pub cause: Arc<str>,
}

impl StorageError {
    pub(super) fn new(kind: StorageErrorKind, cause: impl Into<Arc<str>>) -> StorageError {
        StorageError { kind, cause: cause.into() }
    }

    pub(super) fn damaged(cause: impl Into<Arc<str>>) -> StorageError {
        StorageError::new(StorageErrorKind::Damaged, cause)
    }

    pub(super) fn full() -> StorageError {
        StorageError::new(StorageErrorKind::Full, "until there is space, only deletes are accepted")
    }

    pub(super) fn closed() -> StorageError {
        StorageError::new(StorageErrorKind::Closed, "the engine was stopped")
    }

    fn advice(&self) -> &'static str {
        match self.kind {
            StorageErrorKind::Full => "the store's disk is full, free some space",
            StorageErrorKind::Damaged => "the store's file is damaged, restore a backup",
            StorageErrorKind::InUse => "the store is in use by another process",
            StorageErrorKind::Key => "a key of the store is missing, see --encryption-key-file",
            StorageErrorKind::Io => "the store's disk failed, check the kernel log",
            StorageErrorKind::Closed => "the store is closed",
        }
    }
}

impl From<io::Error> for StorageError {
    fn from(error: io::Error) -> StorageError {
        let kind = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                StorageErrorKind::Full
            }
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => StorageErrorKind::Damaged,
            _ => StorageErrorKind::Io,
        };
        StorageError::new(kind, error.to_string())
    }
}

impl From<redb::Error> for StorageError {
    fn from(error: redb::Error) -> StorageError {
        match error {
            redb::Error::Io(error) => error.into(),
            redb::Error::DatabaseAlreadyOpen => {
                StorageError::new(StorageErrorKind::InUse, "the file is locked")
            }
            redb::Error::PreviousIo => {
                StorageError::new(StorageErrorKind::Io, "reopening after an earlier error failed")
            }
            redb::Error::DatabaseClosed => StorageError::closed(),
            other => StorageError::damaged(other.to_string()),
        }
    }
}

macro_rules! failure_from {
    ($($error:ty),*) => {$(
        impl From<$error> for StorageError {
            fn from(error: $error) -> StorageError {
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

/// A read failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreReadError {
    /// The revision is compacted: list again. Kubernetes answers 410.
    #[error("revision {asked} is compacted, the oldest is {oldest}: list again")]
    Gone {
        /// The requested revision.
        asked: Revision,
        /// The oldest readable revision.
        oldest: Revision,
    },
    /// The revision is in the future; clients may have one from before a restore.
    #[error("revision {asked} is in the future, the store is at {current}")]
    Ahead {
        /// The requested revision.
        asked: Revision,
        /// The newest revision.
        current: Revision,
    },
    /// The disk failed, or the engine is closed.
    #[error(transparent)]
    Failed(#[from] StorageError),
}

/// A write failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError<E = Infallible> {
    /// The closure refused; nothing was written.
    #[error("{0}")]
    Refused(E),
    /// The queue is full; nothing was written, try again.
    #[error("too many writes are queued: try again")]
    Busy,
    /// The closure panicked; nothing was written.
    #[error("the transaction panicked: {0}")]
    Panicked(Arc<str>),
    /// The disk failed; whether the write happened is unknown.
    #[error(transparent)]
    Failed(StorageError),
}

/// A step of a transaction failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TxnError {
    /// The object is not at the expected revision.
    #[error("the object is at revision {}", found.map_or("none".to_owned(), |found| found.to_string()))]
    Conflict {
        /// Its revision; `None` if it does not exist.
        found: Option<Revision>,
    },
    /// The disk failed.
    #[error(transparent)]
    Failed(#[from] StorageError),
}
