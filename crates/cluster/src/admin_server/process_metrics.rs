//! Metrics of every daemon: `process_*` with the names of Prometheus' clients, and `zoneward_build_info`.

use std::fmt;
use std::fs;
use std::sync::atomic::Ordering;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::EVICTED;
use crate::request_metrics;

/// USER_HZ, the unit of times in `/proc/PID/stat`: 100 on all supported platforms.
const TICKS: f64 = 100.0;

/// A registry with the metrics of build, process and API requests.
pub fn registry(component: &'static str) -> Registry {
    let mut registry = Registry::default();
    let build = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("component", component),
        ("os", std::env::consts::OS),
        ("arch", std::env::consts::ARCH),
    ];
    registry.register("zoneward_build", "Version of this binary; the value is always 1", Info::new(build));
    registry.register_collector(Box::new(Process));
    registry.register_collector(Box::new(AdminConnections));
    request_metrics::register(&mut registry);
    registry
}

/// The connections of the admin servers.
#[derive(Debug)]
struct AdminConnections;

impl Collector for AdminConnections {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let evicted = ConstCounter::new(EVICTED.load(Ordering::Relaxed));
        let (name, help) = (
            "zoneward_admin_evicted_connections",
            "Idle connections to health and metrics closed for others",
        );
        evicted.encode(encoder.encode_descriptor(name, help, None, evicted.metric_type())?)
    }
}

#[derive(Debug)]
struct Process;

impl Collector for Process {
    /// Values that cannot be read are omitted.
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let read = |name: &str| fs::read_to_string(format!("/proc/{name}")).unwrap_or_default();
        let (stat, status, limits) = (read("self/stat"), read("self/status"), read("self/limits"));
        if let Some(seconds) = cpu_seconds(&stat) {
            let cpu = ConstCounter::new(seconds);
            let help = "CPU time in user and system mode";
            cpu.encode(encoder.encode_descriptor("process_cpu_seconds", help, None, cpu.metric_type())?)?;
        }
        let gauges = [
            (
                "process_start_time_seconds",
                "Start time of the process, in seconds since the Unix epoch",
                start_time(&stat, &read("stat")),
            ),
            ("process_resident_memory_bytes", "Resident memory size", kibibytes(&status, "VmRSS:")),
            ("process_virtual_memory_bytes", "Virtual memory size", kibibytes(&status, "VmSize:")),
            (
                "process_virtual_memory_max_bytes",
                "Limit of virtual memory",
                limit(&limits, "Max address space"),
            ),
            ("process_open_fds", "Open file descriptors", open_files()),
            ("process_max_fds", "Limit of open file descriptors", limit(&limits, "Max open files")),
        ];
        for (name, help, value) in gauges {
            let Some(value) = value else { continue };
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}

/// Field `number` of `/proc/PID/stat`, counted from 1 as in proc(5). The command name may contain spaces and parentheses.
fn field(stat: &str, number: usize) -> Option<f64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    Some((field(stat, 14)? + field(stat, 15)?) / TICKS)
}

fn start_time(stat: &str, system: &str) -> Option<f64> {
    let boot = system.lines().find_map(|line| line.strip_prefix("btime "))?;
    Some(boot.trim().parse::<f64>().ok()? + field(stat, 22)? / TICKS)
}

fn kibibytes(status: &str, name: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()? * 1024.0)
}

/// A soft limit; `unlimited` is the largest number, as in Prometheus' clients.
fn limit(limits: &str, name: &str) -> Option<f64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX as f64),
        number => number.parse().ok(),
    }
}

fn open_files() -> Option<f64> {
    // One is the directory being read.
    Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_parsed_with_any_command_name() {
        let stat = "7 (a ) (b) S 1 7 7 0 -1 4194304 10 0 0 0 250 50 0 0 20 0 3 0 12345 1000 100";
        assert_eq!(cpu_seconds(stat), Some(3.0));
        assert_eq!(start_time(stat, "cpu 1\nbtime 1000\n"), Some(1123.45));
        assert_eq!(kibibytes("Name:\tx\nVmRSS:\t    20 kB\n", "VmRSS:"), Some(20_480.0));
        let limits = "Limit Soft Hard Units\nMax open files            1024       4096      files\n\
                      Max address space         unlimited  unlimited bytes\n";
        assert_eq!(limit(limits, "Max open files"), Some(1024.0));
        assert_eq!(limit(limits, "Max address space"), Some(u64::MAX as f64));
        assert_eq!(cpu_seconds(""), None);
    }
}
