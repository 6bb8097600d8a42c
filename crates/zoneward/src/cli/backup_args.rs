//! Flags of backups on a schedule.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

/// Backups of `zoneward up`.
#[derive(Debug, Args)]
pub struct BackupArgs {
    /// Interval of backups of the store, such as 6h, from 1s [default: no backups]
    #[arg(long, value_name = "DURATION", requires = "backup_to", value_parser = interval)]
    pub backup_every: Option<Duration>,
    /// Directory of the backups; created if missing. Use another disk than that of the data
    #[arg(long, value_name = "DIR", requires = "backup_every")]
    pub backup_to: Option<PathBuf>,
    /// Backups to keep; older ones are deleted
    #[arg(long, value_name = "N", default_value_t = 7, requires = "backup_every")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub backup_keep: u32,
}

fn interval(text: &str) -> Result<Duration, String> {
    let every = model::duration::parse(text)?;
    match every >= Duration::from_secs(1) {
        true => Ok(every),
        false => Err("the interval must be 1s or longer".to_owned()),
    }
}
