//! Processes of the bench, and what they use as Linux tells it.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A process that ends with the bench.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Ends it at once: a leader does not release its Lease.
    pub(crate) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// `zoneward controller` as it is shipped.
pub(crate) fn controller(socket: &Path, flags: &[String]) -> Running {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zoneward"));
    command.args(["controller", "--bind-address", "127.0.0.1:0", "--api-socket"]).arg(socket).args(flags);
    Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

/// This program in another role.
pub(crate) fn role(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(super::ROLE, name).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// CPU time so far; that of a process that has ended counts as zero.
pub(crate) fn cpu(process: u32) -> Duration {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{process}/stat")) else { return Duration::ZERO };
    // The name in parentheses may hold spaces; the fields after it do not.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = [11, 12].iter().map(|at| fields[*at].parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

/// In MB.
pub(crate) fn private_memory(process: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1e3
}
