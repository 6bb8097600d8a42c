//! Supervision of child processes: start, restart with backoff, stop, and forward their log lines under their name.
//!
//! A child's standard input is a pipe without data. The kernel closes it when this process exits for any reason, and
//! [`exit_with_parent`] then stops the child.

mod privileges;

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clock::Clock;
use jiff::Timestamp;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Map, Value};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::log::LogFormat;
use crate::systemd;
use privileges::{SAME_USER, USER_ENV};
pub use privileges::{can_change_user, drop_privileges};

/// Environment variable of children: standard input is a pipe from the parent.
pub const PARENT_PIPE_ENV: &str = "ZONEWARD_STDIN_IS_PARENT";
/// Interval between polls of a child's exit status.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time between SIGTERM and SIGKILL.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// A longer line is forwarded in parts.
const MAX_LINE: u64 = 64 * 1024;

/// A program to supervise.
#[derive(Clone, Debug)]
pub struct ChildProgram {
    /// Prefix of its log lines.
    pub name: String,
    pub path: PathBuf,
    pub args: Vec<OsString>,
    pub log: LogFormat,
    pub privileges: ChildPrivileges,
}

/// The privileges of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildPrivileges {
    /// Those of this process.
    Inherited,
    /// None but binding low ports, as this user and group, or as that of this process.
    Dropped { user: Option<u32> },
}

/// Delay before a restart.
#[derive(Clone, Copy, Debug)]
pub struct RestartBackoff {
    pub first: Duration,
    /// The delay doubles up to this.
    pub max: Duration,
    /// A run of this length resets the delay.
    pub reset_after: Duration,
}

impl Default for RestartBackoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(500),
            max: Duration::from_secs(30),
            reset_after: Duration::from_secs(60),
        }
    }
}

impl RestartBackoff {
    /// The next delay, after the previous one and a run of length `ran`.
    fn next(&self, previous: Option<Duration>, ran: Duration) -> Duration {
        match previous {
            Some(previous) if ran < self.reset_after => (previous * 2).min(self.max),
            _ => self.first,
        }
    }
}

/// Keeps a program running until `stop` is true, then sends SIGTERM and, after a timeout, SIGKILL.
pub async fn supervise(
    program: ChildProgram,
    backoff: RestartBackoff,
    clock: Clock,
    mut stop: watch::Receiver<bool>,
) {
    let mut delay = None;
    while !*stop.borrow() {
        let started = clock.now();
        match start(&program, &clock) {
            Ok(child) => {
                let ended = wait_or_stop(KillOnDrop(child), &clock, &mut stop).await;
                if *stop.borrow() {
                    info!(child = program.name, "child stopped");
                    return;
                }
                warn!(child = program.name, status = ended, "child exited; restarting");
            }
            Err(error) => {
                warn!(child = program.name, path = %program.path.display(), %error, "cannot start child; retrying")
            }
        }
        let wait = backoff.next(delay, clock.since(started));
        delay = Some(wait);
        let _ = tokio::time::timeout(wait, stop.wait_for(|stop| *stop)).await;
    }
}

struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

fn start(program: &ChildProgram, clock: &Clock) -> io::Result<Child> {
    let mut command = Command::new(&program.path);
    if let ChildPrivileges::Dropped { user } = program.privileges {
        command.env(USER_ENV, user.map_or(SAME_USER.to_owned(), |user| user.to_string()));
    }
    let mut child = command
        .args(&program.args)
        .env(PARENT_PIPE_ENV, "1")
        .env_remove(systemd::NOTIFY_SOCKET)
        // Ctrl-C reaches this process only, which then stops its children.
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(out) = child.stdout.take() {
        forward_lines(program, clock, out);
    }
    if let Some(err) = child.stderr.take() {
        forward_lines(program, clock, err);
    }
    info!(child = program.name, process = child.id(), "child started");
    Ok(child)
}

/// Copies lines of a child to standard error, until the pipe closes.
#[allow(clippy::disallowed_methods, reason = "reads a blocking pipe; it decides nothing")]
fn forward_lines(program: &ChildProgram, clock: &Clock, pipe: impl Read + Send + 'static) {
    let (name, format, clock) = (program.name.clone(), program.log, clock.clone());
    std::thread::spawn(move || {
        let mut reader = BufReader::new(pipe);
        let mut line = Vec::new();
        loop {
            line.clear();
            match (&mut reader).take(MAX_LINE).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let text = String::from_utf8_lossy(&line);
            let line = forwarded(&name, format, text.trim_end(), clock.timestamp());
            let _ = writeln!(io::stderr().lock(), "{line}");
        }
    });
}

/// A child's line with its name. With `--logging-format json`, a line that is not JSON becomes the message of an object.
fn forwarded(name: &str, format: LogFormat, line: &str, now: Timestamp) -> String {
    if format == LogFormat::Text {
        return format!("{name}: {line}");
    }
    let mut object: Map<String, Value> = serde_json::from_str(line).unwrap_or_else(|_| {
        let time = now.to_string();
        [("timestamp", time.as_str()), ("level", "INFO"), ("message", line)]
            .map(|(key, value)| (key.to_owned(), value.into()))
            .into_iter()
            .collect()
    });
    object.insert("child".to_owned(), name.into());
    Value::Object(object).to_string()
}

/// Waits until a child exits; on `stop`, stops it. Returns its exit status as text.
async fn wait_or_stop(mut child: KillOnDrop, clock: &Clock, stop: &mut watch::Receiver<bool>) -> String {
    loop {
        match child.0.try_wait() {
            Ok(Some(status)) => return status.to_string(),
            Ok(None) => {}
            Err(error) => return format!("waiting failed: {error}"),
        }
        if tokio::time::timeout(POLL_INTERVAL, stop.wait_for(|stop| *stop)).await.is_ok() {
            break;
        }
    }
    // The child has not been reaped, so no other process has its id.
    if let Ok(id) = i32::try_from(child.0.id()) {
        let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
    }
    let deadline = clock.now() + STOP_TIMEOUT;
    while clock.now() < deadline {
        if let Ok(Some(status)) = child.0.try_wait() {
            return status.to_string();
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    // Dropping it sends SIGKILL.
    "killed: it did not stop in time".to_owned()
}

/// In a process with [`PARENT_PIPE_ENV`]: sends it SIGTERM when the parent exits. Elsewhere this does nothing.
#[allow(clippy::disallowed_methods, reason = "reads a blocking pipe until the parent exits")]
pub fn exit_with_parent() {
    if !is_child() {
        return;
    }
    std::thread::spawn(|| {
        let mut buffer = [0; 64];
        while matches!(io::stdin().lock().read(&mut buffer), Ok(n) if n > 0) {}
        let _ = kill(Pid::this(), Signal::SIGTERM);
    });
}

/// Whether this process was started by [`supervise`] or in the same way.
pub fn is_child() -> bool {
    std::env::var_os(PARENT_PIPE_ENV).is_some()
}

#[cfg(test)]
mod tests;
