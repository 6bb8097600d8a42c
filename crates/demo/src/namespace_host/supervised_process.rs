//! A supervised process in a namespace: restarted with exponential backoff when it exits.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clock::Clock;
use nix::errno::Errno;

use super::network_namespace::NetworkNamespace;

/// Initial backoff, doubled up to the maximum.
const INITIAL_BACKOFF: Duration = Duration::from_millis(500);
const MAX_BACKOFF: Duration = Duration::from_secs(8);
/// Uptime after which the backoff is reset.
const BACKOFF_RESET: Duration = Duration::from_secs(10);

pub(super) struct SupervisedProcess {
    program: PathBuf,
    arguments: Vec<String>,
    log: PathBuf,
    child: Child,
    started: Instant,
    backoff: Duration,
    /// Exit status and time of the restart.
    exited: Option<(ExitStatus, Instant)>,
    clock: Clock,
}

impl SupervisedProcess {
    /// Starts a process of this program, or of another one, and truncates its log.
    pub(super) fn start(
        namespace: &NetworkNamespace,
        program: Option<PathBuf>,
        arguments: Vec<String>,
        log: PathBuf,
    ) -> Result<Self> {
        File::create(&log).with_context(|| format!("{}", log.display()))?;
        let program = match program {
            Some(program) => program,
            None => std::env::current_exe().context("finding our own program")?,
        };
        let child = spawn(namespace, &program, &arguments, &log)?;
        let clock = Clock::system();
        let started = clock.now();
        Ok(Self { program, arguments, log, child, started, backoff: INITIAL_BACKOFF, exited: None, clock })
    }

    pub(super) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Whether the process has exited and its backoff is over.
    pub(super) fn is_restart_due(&mut self) -> bool {
        if self.exited.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            if self.clock.since(self.started) >= BACKOFF_RESET {
                self.backoff = INITIAL_BACKOFF;
            }
            self.exited = Some((status, self.clock.now() + self.backoff));
            self.backoff = (self.backoff * 2).min(MAX_BACKOFF);
        }
        self.exited.is_some_and(|(_, due)| due <= self.clock.now())
    }

    /// Restarts the process and returns the exit status of the previous one. If this fails, it is retried later.
    pub(super) fn restart(&mut self, namespace: &NetworkNamespace) -> Result<String> {
        let status = self.exited.map(|(status, _)| status.to_string()).unwrap_or_default();
        self.exited = self.exited.map(|(status, _)| (status, self.clock.now() + self.backoff));
        self.child = spawn(namespace, &self.program, &self.arguments, &self.log)?;
        (self.started, self.exited) = (self.clock.now(), None);
        Ok(status)
    }

    /// Sends SIGTERM, and SIGKILL after five seconds.
    pub(super) fn stop(&mut self) {
        // Already reaped: its pid may belong to another process.
        if self.exited.is_some() {
            return;
        }
        let pid = nix::unistd::Pid::from_raw(self.pid());
        match nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(_) => drop(self.child.kill()),
        }
        for _ in 0..100 {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            self.clock.sleep_blocking(Duration::from_millis(50));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(namespace: &NetworkNamespace, program: &Path, arguments: &[String], log: &PathBuf) -> Result<Child> {
    let log = File::options().append(true).open(log).with_context(|| format!("{}", log.display()))?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    namespace.within(move || command.spawn())?.context("starting a process")
}
