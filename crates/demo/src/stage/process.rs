//! A process in a namespace of the stage: started, restarted with a growing delay when it ends, and ended.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;

use super::place::Place;

/// Delay before the first restart; doubled up to the longest for a process that did not live long.
const FIRST_DELAY: Duration = Duration::from_millis(500);
const LONGEST_DELAY: Duration = Duration::from_secs(8);
/// A process that lived this long starts over with the first delay.
const LONG_LIFE: Duration = Duration::from_secs(10);

/// A process that should run.
pub struct Process {
    arguments: Vec<String>,
    log: PathBuf,
    child: Child,
    started: Instant,
    delay: Duration,
    /// How it ended and when it is started again.
    ended: Option<(ExitStatus, Instant)>,
}

impl Process {
    /// Starts it; its log begins anew.
    pub fn start(place: &Place, arguments: Vec<String>, log: PathBuf) -> Result<Self> {
        File::create(&log).with_context(|| format!("{}", log.display()))?;
        let child = spawn(place, &arguments, &log)?;
        Ok(Self { arguments, log, child, started: Instant::now(), delay: FIRST_DELAY, ended: None })
    }

    /// The process id.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Whether it has ended and its delay is over.
    pub fn is_due(&mut self) -> bool {
        if self.ended.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            if self.started.elapsed() >= LONG_LIFE {
                self.delay = FIRST_DELAY;
            }
            self.ended = Some((status, Instant::now() + self.delay));
            self.delay = (self.delay * 2).min(LONGEST_DELAY);
        }
        self.ended.is_some_and(|(_, due)| due <= Instant::now())
    }

    /// Starts it again, and says how it ended. After a failure it is due again later.
    pub fn restart(&mut self, place: &Place) -> Result<String> {
        let how = self.ended.map(|(status, _)| status.to_string()).unwrap_or_default();
        self.ended = self.ended.map(|(status, _)| (status, Instant::now() + self.delay));
        self.child = spawn(place, &self.arguments, &self.log)?;
        (self.started, self.ended) = (Instant::now(), None);
        Ok(how)
    }

    /// Asks it to end, and insists after two seconds.
    pub fn end(&mut self) {
        // It was waited for: its number may be another process's by now.
        if self.ended.is_some() {
            return;
        }
        let pid = nix::unistd::Pid::from_raw(self.pid());
        match nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(_) => drop(self.child.kill()),
        }
        for _ in 0..40 {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(place: &Place, arguments: &[String], log: &PathBuf) -> Result<Child> {
    let log = File::options().append(true).open(log).with_context(|| format!("{}", log.display()))?;
    let program = std::env::current_exe().context("finding our own program")?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    place.within(move || command.spawn())?.context("starting a process")
}
