//! Facts about this machine: kernel, variables, interfaces, our rules, connection tracking, and logs.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::{Collected, DumpPart};
use crate::commands::cleanup::program;

/// Bytes at the end of a log file.
const LOG_TAIL: u64 = 4 << 20;

const FILES: [&str; 11] = [
    "/proc/version",
    "/etc/os-release",
    "/proc/meminfo",
    "/proc/loadavg",
    "/proc/cmdline",
    "/proc/modules",
    "/proc/net/dev",
    "/proc/net/snmp",
    "/proc/net/netstat",
    "/proc/net/stat/nf_conntrack",
    "/proc/self/status",
];

/// Folders of kernel variables that forwarding depends on.
const VARIABLES: [&str; 5] = [
    "/proc/sys/net/netfilter",
    "/proc/sys/net/bridge",
    "/proc/sys/net/ipv4/conf/all",
    "/proc/sys/net/ipv6/conf/all",
    "/proc/sys/net/core",
];

/// Commands of the distribution; each only lists.
const COMMANDS: [(&str, &str, &[&str]); 9] = [
    ("nftables/ip-zoneward.nft", "nft", &["list", "table", "ip", "zoneward"]),
    ("nftables/ip6-zoneward.nft", "nft", &["list", "table", "ip6", "zoneward"]),
    ("nftables/ip-zoneward-mesh.nft", "nft", &["list", "table", "ip", "zoneward-mesh"]),
    ("nftables/ip6-zoneward-mesh.nft", "nft", &["list", "table", "ip6", "zoneward-mesh"]),
    ("nftables/tables.txt", "nft", &["list", "tables"]),
    ("machine/addresses.txt", "ip", &["-o", "address", "show"]),
    ("machine/routes.txt", "ip", &["route", "show", "table", "all"]),
    ("conntrack/stats.txt", "conntrack", &["-S"]),
    ("conntrack/count.txt", "conntrack", &["-C"]),
];

pub(super) fn collect(collected: &mut Collected) {
    for path in FILES {
        let name = path.trim_start_matches('/').replace('/', "-");
        match std::fs::read_to_string(path) {
            Ok(text) => collected.add(DumpPart::new(format!("machine/{name}.txt"), path, text)),
            Err(error) => collected.miss(path, error),
        }
    }
    let mut variables = String::new();
    for folder in VARIABLES {
        variables += &variables_in(Path::new(folder));
    }
    variables += &one_variable(Path::new("/proc/sys/net/ipv4/ip_forward")).unwrap_or_default();
    collected.add(DumpPart::new("machine/sysctls.txt", VARIABLES.join(", "), variables));
    for (file, command, words) in COMMANDS {
        let source = format!("{command} {}", words.join(" "));
        match program::run(command, words, "") {
            Ok(Some(text)) => collected.add(DumpPart::new(file, source, text)),
            Ok(None) => collected.miss(file, format!("{command} is not installed")),
            Err(error) => collected.miss(file, format!("{error:#}")),
        }
    }
}

fn one_variable(path: &Path) -> Option<String> {
    let value = std::fs::read_to_string(path).ok()?;
    Some(format!("{} = {}\n", path.display(), value.trim()))
}

/// The variables of a folder, without folders in it.
fn variables_in(folder: &Path) -> String {
    let Ok(entries) = std::fs::read_dir(folder) else { return String::new() };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    // Reading a key would be the only value here that is a secret.
    paths.retain(|path| path.is_file() && !path.ends_with("stable_secret"));
    paths.iter().filter_map(|path| one_variable(path)).collect()
}

/// Logs of units, and of the files that the user names.
pub(super) fn logs(files: &[PathBuf], collected: &mut Collected) {
    for unit in ["zoneward-up", "zoneward-join", "zoneward-node", "zoneward-controller"] {
        let words = ["--no-pager", "--output=short-iso", "--lines=5000", "--unit", unit];
        let file = format!("logs/{unit}.log");
        match program::run("journalctl", &words, "") {
            Ok(Some(text)) => collected.add(DumpPart::log(file, format!("journalctl --unit {unit}"), text)),
            Ok(None) => collected.miss(file, "journalctl is not installed"),
            Err(error) => collected.miss(file, format!("{error:#}")),
        }
    }
    for (number, path) in files.iter().enumerate() {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match tail(path) {
            Ok(text) => {
                collected.add(DumpPart::log(
                    format!("logs/{number}-{name}"),
                    path.display().to_string(),
                    text,
                ));
            }
            Err(error) => collected.miss(format!("logs/{number}-{name}"), error),
        }
    }
}

fn tail(path: &Path) -> std::io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL)))?;
    let mut bytes = Vec::new();
    file.take(LOG_TAIL).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    // Half a line may be half a secret.
    let is_cut = length > LOG_TAIL;
    Ok(if is_cut { text.split_once('\n').map_or(String::new(), |(_, rest)| rest.to_owned()) } else { text })
}
