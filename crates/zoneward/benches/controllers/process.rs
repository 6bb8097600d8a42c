//! What processes use, as Linux tells it.

use std::time::Duration;

/// CPU time so far, of all threads.
pub fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // The name in parentheses may hold spaces; the fields after it do not.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = [11, 12].iter().map(|at| fields[*at].parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

/// Memory in use, in MB.
pub fn memory() -> u64 {
    field("self", "VmRSS:")
}

/// The memory of another process, in MB.
pub fn memory_of(process: u32) -> u64 {
    field(&process.to_string(), "VmRSS:")
}

/// The most memory that was ever in use, in MB.
pub fn most_memory() -> u64 {
    field("self", "VmHWM:")
}

fn field(process: &str, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1_000
}
