//! Backups of the store on a schedule: each is complete and verified before it gets its name, then the oldest are deleted.

mod schedule;

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clock::Clock;
use cluster::events::{self, BACKUPS};
use kube::Client;
use model::{Notice, ObjectRef, Timestamp};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use store::api::Api;
use store::engine::{EncryptionKeys, Engine};
use tokio::sync::watch;
use tracing::{error, info};

use crate::cli::BackupArgs;

/// Longest sleep: the clock of the machine may be set.
const MAX_SLEEP: Duration = Duration::from_secs(60);
/// Shortest sleep.
const MIN_SLEEP: Duration = Duration::from_millis(100);

/// Metrics of backups.
#[derive(Clone, Debug, Default)]
pub(super) struct BackupMetrics {
    last_success: Gauge<f64, AtomicU64>,
    size: Gauge,
    successes: Counter,
    failures: Counter,
}

impl BackupMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "zoneward_backup_last_success_timestamp_seconds",
            "Time of the newest backup; 0 without one",
            self.last_success.clone(),
        );
        registry.register("zoneward_backup_size_bytes", "Size of the newest backup", self.size.clone());
        registry.register("zoneward_backups", "Backups written", self.successes.clone());
        registry.register("zoneward_backup_failures", "Backups that failed", self.failures.clone());
    }
}

/// The schedule of the flags.
#[derive(Clone, Debug)]
pub(super) struct BackupSchedule {
    every: Duration,
    folder: PathBuf,
    keep: usize,
}

impl BackupSchedule {
    /// `None` without flags. Creates the folder, so that a wrong path is an error at startup.
    pub(super) fn open(args: &BackupArgs) -> Result<Option<Self>> {
        let (Some(every), Some(folder)) = (args.backup_every, &args.backup_to) else { return Ok(None) };
        let at = || format!("--backup-to {}", folder.display());
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).with_context(at)?;
        let schedule = Self { every, folder: folder.clone(), keep: args.backup_keep as usize };
        for name in schedule.names().with_context(at)?.iter().filter(|name| schedule::is_partial(name)) {
            fs::remove_file(folder.join(name)).with_context(at)?;
        }
        Ok(Some(schedule))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(&self.folder)?;
        let names = entries.map(|entry| entry.map(|entry| entry.file_name().into_string().ok()));
        names.filter_map(Result::transpose).collect()
    }

    fn newest(&self, now: Timestamp) -> Option<Timestamp> {
        schedule::newest(self.names().unwrap_or_default().iter().map(String::as_str), now)
    }

    /// The size of the backup of a time.
    fn size(&self, time: Timestamp) -> i64 {
        let metadata = fs::metadata(self.folder.join(schedule::name(time)));
        metadata.map_or(0, |metadata| i64::try_from(metadata.len()).unwrap_or(i64::MAX))
    }

    /// Deletes the oldest backups.
    fn rotate(&self, now: Timestamp) -> Result<()> {
        let names = self.names().with_context(|| format!("reading {}", self.folder.display()))?;
        for name in schedule::expired(names.iter().map(String::as_str), self.keep, now) {
            let path = self.folder.join(name);
            fs::remove_file(&path).with_context(|| format!("deleting {}", path.display()))?;
            info!(file = %path.display(), "expired backup deleted");
        }
        Ok(())
    }
}

/// Writes and verifies a backup.
fn write(engine: &Engine, file: &Path) -> Result<()> {
    engine.backup(file)?;
    let report = Engine::check_backup(file, &EncryptionKeys::default());
    match report {
        Ok(report) if report.is_sound() => {}
        // What cannot be restored must not push out older ones.
        damaged => {
            let _ = fs::remove_file(file);
            bail!(
                "{} is damaged: {}",
                file.display(),
                damaged.map_or_else(|e| e.to_string(), |r| r.to_string())
            );
        }
    }
    Ok(())
}

/// Backs up until `stop` turns true.
pub(super) async fn run(
    api: Api,
    client: Client,
    schedule: BackupSchedule,
    clock: Clock,
    metrics: BackupMetrics,
    mut stop: watch::Receiver<bool>,
) {
    let mut failed: Option<Timestamp> = None;
    loop {
        let now = Timestamp::from(clock.timestamp());
        let newest = schedule.newest(now);
        metrics.last_success.set(newest.map_or(0.0, |time| time.unix_seconds() as f64));
        metrics.size.set(newest.map_or(0, |time| schedule.size(time)));
        let wait = schedule::until_next(newest, failed, schedule.every, now);
        if !wait.is_zero() {
            let wait = wait.clamp(MIN_SLEEP, MAX_SLEEP);
            if tokio::time::timeout(wait, stop.wait_for(|stop| *stop)).await.is_ok() {
                return;
            }
            continue;
        }
        failed = match once(&api, &schedule, now).await {
            Ok(()) => {
                metrics.successes.inc();
                None
            }
            Err(why) => {
                metrics.failures.inc();
                report(&client, &schedule, &clock, &schedule::name(now), &why).await;
                Some(now)
            }
        };
        if *stop.borrow() {
            return;
        }
    }
}

async fn once(api: &Api, schedule: &BackupSchedule, now: Timestamp) -> Result<()> {
    let (api, schedule) = (api.clone(), schedule.clone());
    let file = schedule.folder.join(schedule::name(now));
    let work = tokio::task::spawn_blocking(move || {
        write(api.engine(), &file)?;
        info!(file = %file.display(), "backup written");
        schedule.rotate(now)
    });
    work.await.context("the backup panicked")?
}

/// A log line, and an Event on the Service of the API. Its message names no time, so that a repeated failure is one Event.
async fn report(client: &Client, schedule: &BackupSchedule, clock: &Clock, name: &str, why: &anyhow::Error) {
    let why = format!("{why:#}").replace(name, "zoneward-TIME.backup");
    error!(folder = %schedule.folder.display(), error = why, "backup failed");
    let message = format!(
        "The backup to {} failed: {why}. Check space and permissions there; it is repeated within 5 minutes",
        schedule.folder.display()
    );
    let notice = Notice::new(ObjectRef::new("Service", "default", "kubernetes"), "BackupFailed", message);
    let event = events::event(BACKUPS, &notice, None, clock.timestamp());
    if let Err(error) = events::record(client, &event).await {
        error!(%error, "failed to record an Event");
    }
}
