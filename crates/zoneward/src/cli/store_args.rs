//! The commands on a store.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use store::engine::{EncryptionKeys, KeyFileError};

use super::OutputArgs;

/// `zoneward store ...`
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Back up the store to a new file
    ///
    /// The backup is synced to disk before it is renamed into place, and is readable only by its owner because it
    /// contains Secrets. It can be taken while the API runs, and does not block requests.
    #[command(after_help = "Examples:\n  zoneward store backup --data-dir ./zoneward-data monday.backup")]
    Backup(StoreFile),
    /// Create a data directory from a backup
    ///
    /// Existing data is never overwritten: move it away first. Resource versions continue far above those of the
    /// backup, so that clients with newer versions relist instead of missing changes. A backup with encrypted Secrets
    /// needs the file with their key; the new store is encrypted with the first key of that file.
    #[command(after_help = "Examples:\n  zoneward store restore --data-dir ./zoneward-data monday.backup")]
    Restore(StoreRestore),
    /// Check the integrity of a store or of a backup
    ///
    /// The exit code is 1 if any problem is found. A data directory can only be checked while the API is stopped; a
    /// backup at any time. Encrypted Secrets are counted by the id of their key; with the key file they are decrypted, too.
    #[command(after_help = "\
Examples:
  zoneward store check --data-dir ./zoneward-data
  zoneward store check --backup monday.backup")]
    Check(StoreCheck),
    /// Migrate a store to the format of this program, after a backup
    ///
    /// `zoneward up` does this at startup. The backup is written into the store's folder first and keeps the old
    /// format: restore it with the older program to go back. A store in a newer format is refused and not changed. The
    /// API has to be stopped.
    #[command(after_help = "\
Examples:
  zoneward store migrate --data-dir ./zoneward-data --dry-run
  zoneward store migrate --data-dir ./zoneward-data")]
    Migrate(StoreMigrate),
}

/// The flag of commands that read encrypted Secrets.
#[derive(Debug, Args)]
pub struct EncryptionArgs {
    /// Keys that encrypt Secrets at rest, one per line, 32 bytes in base64; the first encrypts, all decrypt
    #[arg(long, value_name = "FILE")]
    pub encryption_key_file: Option<PathBuf>,
}

impl EncryptionArgs {
    pub fn keys(&self) -> Result<EncryptionKeys, KeyFileError> {
        match &self.encryption_key_file {
            Some(file) => EncryptionKeys::read(file, &store::kinds::encrypted()),
            None => Ok(EncryptionKeys::default()),
        }
    }
}

/// `zoneward store restore`
#[derive(Debug, Args)]
pub struct StoreRestore {
    #[command(flatten)]
    pub file: StoreFile,
    #[command(flatten)]
    pub encryption: EncryptionArgs,
}

/// `zoneward store backup`
#[derive(Debug, Args)]
pub struct StoreFile {
    /// Data directory of `zoneward up`
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Backup file
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// `zoneward store check`
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("checked").required(true).args(["data_dir", "backup"]))]
pub struct StoreCheck {
    /// Data directory of `zoneward up`
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Backup file to check instead of a data directory
    #[arg(long, value_name = "FILE")]
    pub backup: Option<PathBuf>,
    #[command(flatten)]
    pub encryption: EncryptionArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `zoneward store migrate`
#[derive(Debug, Args)]
pub struct StoreMigrate {
    /// Data directory of `zoneward up`
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Show what would change, and write nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}
