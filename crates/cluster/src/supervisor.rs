//! Processes of their own beside this one: started, their output passed on line by line under their name, started
//! anew alone when they fail, and stopped in order.
//!
//! A child's standard input is a pipe that nobody writes into. When this process dies, however that comes about, the
//! pipe ends, and [`end_with_parent`] lets the child stop, too: nobody is left behind.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Map, Value};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::log::LogFormat;

/// Set for children: their standard input, a pipe, says whether the parent lives.
pub const PARENT: &str = "ZONEWARD_STDIN_IS_PARENT";
/// How often a child is looked at: it is no matter of milliseconds whether it is started anew.
const LOOK: Duration = Duration::from_millis(50);
/// How long a child may take to stop before it is killed.
const FAREWELL: Duration = Duration::from_secs(10);
/// A longer line is passed on in parts.
const LONGEST_LINE: u64 = 64 * 1024;

/// A program to keep running.
#[derive(Clone, Debug)]
pub struct Program {
    /// What its lines begin with.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// How its log lines look, and how they are passed on.
    pub log: LogFormat,
}

/// How long to wait before a program is started anew.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The first time.
    pub first: Duration,
    /// At most; it doubles until then.
    pub longest: Duration,
    /// Whoever has run for so long begins again with the first.
    pub steady: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(500),
            longest: Duration::from_secs(30),
            steady: Duration::from_secs(60),
        }
    }
}

impl Backoff {
    /// The next pause, after the one before and a run of this length.
    pub fn after(&self, before: Option<Duration>, ran: Duration) -> Duration {
        match before {
            Some(before) if ran < self.steady => (before * 2).min(self.longest),
            _ => self.first,
        }
    }
}

/// Keeps a program running until `stop` turns true; then it gets SIGTERM, time, and at last SIGKILL.
pub async fn keep(program: Program, backoff: Backoff, mut stop: watch::Receiver<bool>) {
    let mut pause = None;
    while !*stop.borrow() {
        let began = Instant::now();
        match start(&program) {
            Ok(child) => {
                let ended = attend(Running(child), &mut stop).await;
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
        let wait = backoff.after(pause, began.elapsed());
        pause = Some(wait);
        let _ = tokio::time::timeout(wait, stop.wait_for(|stop| *stop)).await;
    }
}

/// A child that does not outlive whoever holds it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

fn start(program: &Program) -> io::Result<Child> {
    let mut child = Command::new(&program.path)
        .args(&program.args)
        .env(PARENT, "1")
        // Ctrl-C is for this process, which then stops its children in order.
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(out) = child.stdout.take() {
        pass_on(program, out);
    }
    if let Some(err) = child.stderr.take() {
        pass_on(program, err);
    }
    info!(child = program.name, process = child.id(), "child started");
    Ok(child)
}

/// Lines of a child, to standard error under its name. The thread ends with the pipe.
fn pass_on(program: &Program, pipe: impl Read + Send + 'static) {
    let (name, format) = (program.name.clone(), program.log);
    std::thread::spawn(move || {
        let mut reader = BufReader::new(pipe);
        let mut line = Vec::new();
        loop {
            line.clear();
            match (&mut reader).take(LONGEST_LINE).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let text = String::from_utf8_lossy(&line);
            let _ = writeln!(io::stderr().lock(), "{}", passed(&name, format, text.trim_end()));
        }
    });
}

/// A line of a child under its name. What is no JSON becomes a message, so that every line of the log is an object.
fn passed(name: &str, format: LogFormat, line: &str) -> String {
    if format == LogFormat::Text {
        return format!("{name}: {line}");
    }
    let mut object: Map<String, Value> = serde_json::from_str(line).unwrap_or_else(|_| {
        let time = jiff::Timestamp::now().to_string();
        [("timestamp", time.as_str()), ("level", "INFO"), ("message", line)]
            .map(|(key, value)| (key.to_owned(), value.into()))
            .into_iter()
            .collect()
    });
    object.insert("child".to_owned(), name.into());
    Value::Object(object).to_string()
}

/// Waits for a child's end, or brings it about when the stop comes.
async fn attend(mut child: Running, stop: &mut watch::Receiver<bool>) -> String {
    loop {
        match child.0.try_wait() {
            Ok(Some(status)) => return describe(status),
            Ok(None) => {}
            Err(error) => return format!("it cannot be waited for: {error}"),
        }
        if tokio::time::timeout(LOOK, stop.wait_for(|stop| *stop)).await.is_ok() {
            break;
        }
    }
    // It has not been waited for, so its number is still its own.
    if let Ok(id) = i32::try_from(child.0.id()) {
        let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
    }
    let until = Instant::now() + FAREWELL;
    while Instant::now() < until {
        if let Ok(Some(status)) = child.0.try_wait() {
            return describe(status);
        }
        tokio::time::sleep(LOOK).await;
    }
    // Dropping it kills it.
    "it did not stop in time and was killed".to_owned()
}

fn describe(status: ExitStatus) -> String {
    status.to_string()
}

/// In a child of [`keep`], or another that was started with [`PARENT`] and a pipe: asks this process to stop when the parent is gone. Elsewhere it does nothing.
pub fn end_with_parent() {
    if !is_child() {
        return;
    }
    std::thread::spawn(|| {
        let mut nothing = [0; 64];
        while matches!(io::stdin().lock().read(&mut nothing), Ok(n) if n > 0) {}
        let _ = kill(Pid::this(), Signal::SIGTERM);
    });
}

/// Whether this process is a child of [`keep`], or was started like one.
pub fn is_child() -> bool {
    std::env::var_os(PARENT).is_some()
}

#[cfg(test)]
mod tests;
