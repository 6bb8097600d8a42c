//! Data directories of demos: one of its own for a demo that starts, and that of the running demo which a command is for.
//!
//! ```text
//!   /tmp/zoneward-demo-1000      a demo of user 1000
//!   /tmp/zoneward-demo-1000-2    one that was started beside it
//! ```
//! A demo locks its directory, and its child processes inherit the lock: a directory is free when all of them have
//! exited, however they ended.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, bail};
use jiff::Timestamp;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use serde_json::Value;

/// Default directories of one user: demos that can run at the same time without `--data-dir`.
const MAX_DEMOS: usize = 32;
/// Attempts to lock a directory that other demos remove meanwhile.
const LOCK_ATTEMPTS: usize = 10;

/// The data directory of a demo that starts. No other demo uses it.
pub(crate) struct DataDir {
    pub path: PathBuf,
    /// The value of `--data-dir` that commands need to find this demo; `None` while it is the only one.
    pub flag: Option<PathBuf>,
    /// Whether the directory was chosen by this process, which then removes it at the end.
    is_default: bool,
    /// Held until this process and its children have exited.
    _lock: File,
}

impl DataDir {
    /// Claims the given directory, or else the first default one that no other demo uses.
    pub(crate) fn claim(given: Option<&Path>) -> Result<Self> {
        if let Some(path) = given {
            let Some(lock) = claim(path, Remains::Refuse)? else {
                bail!("another demo is running in {}: stop it with Ctrl-C first", path.display());
            };
            let path = path.to_owned();
            return Ok(Self { flag: Some(path.clone()), path, is_default: false, _lock: lock });
        }
        let mut all = default_paths();
        let (index, lock) = first_free(&all, |path| claim(path, Remains::Replace))?;
        let path = all.swap_remove(index);
        let flag = Some(path.clone()).filter(|_| index > 0);
        Ok(Self { path, flag, is_default: true, _lock: lock })
    }

    /// Whether it is not the first default directory because other demos run.
    pub(crate) fn is_beside_another(&self) -> bool {
        self.is_default && self.flag.is_some()
    }

    /// Removes a directory that this process chose; a given one stays.
    pub(crate) fn remove(self) -> Result<()> {
        match self.is_default {
            true => {
                fs::remove_dir_all(&self.path).with_context(|| format!("removing {}", self.path.display()))
            }
            false => Ok(()),
        }
    }
}

/// What to do with files in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remains {
    Refuse,
    /// Those of a demo that has ended are replaced.
    Replace,
}

/// The default directories of this user, in the order in which they are tried.
fn default_paths() -> Vec<PathBuf> {
    let name = format!("zoneward-demo-{}", nix::unistd::Uid::current());
    let first = std::env::temp_dir().join(&name);
    let others = (2..=MAX_DEMOS).map(|number| first.with_file_name(format!("{name}-{number}")));
    std::iter::once(first.clone()).chain(others).collect()
}

/// The first directory that can be claimed. Those of running demos and of other users are passed over.
fn first_free<T>(paths: &[PathBuf], claim: impl Fn(&Path) -> Result<Option<T>>) -> Result<(usize, T)> {
    let mut first_error: Option<Error> = None;
    for (index, path) in paths.iter().enumerate() {
        match claim(path) {
            Ok(Some(claimed)) => return Ok((index, claimed)),
            Ok(None) => {}
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    match first_error {
        Some(error) => Err(error),
        None => bail!("{} demos are running: stop one with Ctrl-C, or use --data-dir", paths.len()),
    }
}

/// Creates, locks and empties a directory; `None` if a demo is running in it.
fn claim(path: &Path, remains: Remains) -> Result<Option<File>> {
    for _ in 0..LOCK_ATTEMPTS {
        let created = DirBuilder::new().recursive(true).mode(0o700).create(path);
        created.with_context(|| format!("creating {}", path.display()))?;
        check_owner(path)?;
        let lock = match File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            opened => opened.with_context(|| format!("opening {}", path.display()))?,
        };
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("locking {}", path.display()));
            }
        }
        // A demo that ends removes its directory: the lock is worth nothing then.
        if !is_at(&lock, path)? {
            continue;
        }
        // Earlier versions do not lock their directory.
        if running_in(path).is_some() {
            return Ok(None);
        }
        clear(path, remains)?;
        fcntl(&lock, FcntlArg::F_SETFD(FdFlag::empty())).context("passing the lock on to child processes")?;
        return Ok(Some(lock));
    }
    bail!("{}: other processes keep removing it; use another directory with --data-dir", path.display())
}

/// Whether a path still leads to an open directory.
fn is_at(open: &File, path: &Path) -> Result<bool> {
    let what = || format!("{}", path.display());
    let open = open.metadata().with_context(what)?;
    match fs::symlink_metadata(path) {
        Ok(found) => Ok((found.dev(), found.ino()) == (open.dev(), open.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(what),
    }
}

/// Removes what an earlier demo left. The directory itself stays, because it is locked.
fn clear(path: &Path, remains: Remains) -> Result<()> {
    let what = || format!("clearing {}", path.display());
    let is_of_demo = path.join("logs").exists();
    for entry in fs::read_dir(path).with_context(what)? {
        let entry = entry.with_context(what)?;
        if remains == Remains::Refuse || !is_of_demo {
            bail!("--data-dir {}: not empty; use an empty or missing directory", path.display());
        }
        let removed = match entry.file_type().with_context(what)?.is_dir() {
            true => fs::remove_dir_all(entry.path()),
            false => fs::remove_file(entry.path()),
        };
        removed.with_context(what)?;
    }
    Ok(())
}

/// The directory is trusted (processes to enter, a kubeconfig), so only this user may write to it.
fn check_owner(path: &Path) -> Result<()> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found.with_context(|| format!("{}", path.display()))?,
    };
    let is_own = found.uid() == nix::unistd::Uid::effective().as_raw();
    let writable_by_all = found.mode() & 0o002 != 0;
    if !found.is_dir() || !is_own || writable_by_all {
        bail!(
            "{}: not a directory that only you can write to; remove it, or use another with --data-dir",
            path.display()
        );
    }
    Ok(())
}

/// A demo whose cluster is there.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RunningDemo {
    path: PathBuf,
    /// The process that Ctrl-C stops.
    process: u64,
    /// Unknown if an earlier version runs it.
    started: Option<Timestamp>,
    /// Whether it serves commands: it was started with `--keep`, and its steps are done.
    is_kept: bool,
}

/// The data directory of the running demo that a command is for: the given one, or that of the only demo.
pub(crate) fn of_running_demo(given: Option<&Path>, now: Timestamp) -> Result<PathBuf> {
    if let Some(path) = given {
        check_owner(path)?;
        let found = running_in(path).map(|demo| demo.path);
        return found.with_context(|| {
            format!("no demo is running in {}: start one with zoneward demo --keep", path.display())
        });
    }
    let own = default_paths().into_iter().filter(|path| check_owner(path).is_ok());
    choose(own.filter_map(|path| running_in(&path)).collect(), now)
}

/// The only demo. Those without `--keep` do not count beside one with it: they end by themselves.
fn choose(running: Vec<RunningDemo>, now: Timestamp) -> Result<PathBuf> {
    let (kept, others): (Vec<_>, Vec<_>) = running.into_iter().partition(|demo| demo.is_kept);
    let candidates = if kept.is_empty() { others } else { kept };
    match candidates.as_slice() {
        [] => bail!(
            "no demo is running: start one with zoneward demo --keep. If it runs with --data-dir, use the same flag here"
        ),
        [only] => Ok(only.path.clone()),
        several => {
            let lines: String = several.iter().map(|demo| describe(demo, now)).collect();
            bail!("{} demos are running: choose one with its --data-dir{lines}", several.len())
        }
    }
}

/// A line that shows the flag, to copy.
fn describe(demo: &RunningDemo, now: Timestamp) -> String {
    let started = demo.started.map(|started| format!(", started {} ago", age(now.duration_since(started))));
    let started = started.unwrap_or_default();
    format!("\n  --data-dir {}  process {}{started}", demo.path.display(), demo.process)
}

fn age(duration: jiff::SignedDuration) -> String {
    match duration.as_secs() {
        seconds @ ..120 => format!("{} s", seconds.max(0)),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3_600),
    }
}

/// The demo that is running in a directory.
fn running_in(path: &Path) -> Option<RunningDemo> {
    let state = state(path).ok()?;
    let host = state["pid"].as_u64()?;
    // The number may belong to another process by now.
    let command_line = fs::read(format!("/proc/{host}/cmdline")).ok()?;
    command_line.split(|byte| *byte == 0).find(|word| *word == b"namespace-host")?;
    Some(RunningDemo {
        path: path.to_owned(),
        process: state["demo"].as_u64().unwrap_or(host),
        started: state["started"].as_str().and_then(|text| text.parse().ok()),
        is_kept: super::command_socket::path(path).exists(),
    })
}

/// What the demo of a directory wrote for commands.
pub(crate) fn state(path: &Path) -> Result<Value> {
    let path = path.join("namespaces.json");
    let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{}", path.display()))
}

#[cfg(test)]
mod tests;
