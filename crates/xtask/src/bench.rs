//! `cargo xtask bench NAME`: runs a bench for time, and under callgrind for instruction counts, which are stable enough
//! to show changes of one percent.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use crate::args::BenchOptions;
use crate::{Stop, callgrind, report, shell, tools};

/// A bench target of one of our crates. With ZONEWARD_BENCH_COUNT=1 it runs each phase once, in a function
/// that is never inlined and whose name starts with `phase_`, and prints `N endpoints` for its cluster.
struct Bench {
    name: &'static str,
    package: &'static str,
    description: &'static str,
    /// Tools of the timed run.
    needs: &'static [tools::Tool],
    /// Whether it has phases to count.
    counted: bool,
}

const BENCHES: &[Bench] = &[
    Bench {
        name: "controllers",
        package: "zoneward",
        description: "the slice controller on the embedded API: initial sync, one pod change, CPU, memory",
        needs: &[],
        counted: true,
    },
    Bench {
        name: "dashboard",
        package: "zoneward",
        description: "the dashboard with 10,000 Services: time and size of pages, 50 viewers at rest",
        needs: &[],
        counted: false,
    },
    Bench {
        name: "iptables",
        package: "dataplane",
        description: "mode iptables in both flavours beside kube-proxy's layout: load, one change, connections",
        needs: &tools::TESTS,
        counted: false,
    },
    Bench {
        name: "l7",
        package: "zoneward",
        description: "the embedded proxy, Envoy, nginx and haproxy: CPU per request, memory, many routes, latency, TLS handshakes",
        needs: &tools::L7,
        counted: false,
    },
    Bench {
        name: "mesh",
        package: "zoneward",
        description: "one of 10,000 routes changed: from the write to the embedded API until the proxy uses it",
        needs: &[],
        counted: false,
    },
    Bench {
        name: "node",
        package: "zoneward",
        description: "the node proxy on the embedded API: start, one slice change, burst of changes, CPU, memory",
        needs: &tools::TESTS,
        counted: true,
    },
    Bench {
        name: "node-growth",
        package: "zoneward",
        description: "the node proxy at 1,000 to 100,000 Services beside bare netlink: start, memory, one change",
        needs: &tools::TESTS,
        counted: false,
    },
    Bench {
        name: "plan",
        package: "plan",
        description: "planning: slices, hints, selection, addresses, on a generated cluster",
        needs: &[],
        counted: true,
    },
    Bench {
        name: "nftables",
        package: "dataplane",
        description: "the nftables data plane: full sync, one change, memory, connections, in network namespaces",
        needs: &tools::TESTS,
        counted: true,
    },
    Bench {
        name: "scale",
        package: "zoneward",
        description: "a fleet of simulated nodes, the embedded API and the controllers: bytes, CPU and time of changes",
        needs: &[],
        counted: false,
    },
    Bench {
        name: "simulate",
        package: "sim",
        description: "simulator scores and those of the KEP, over all 39 million inputs",
        needs: &[],
        counted: true,
    },
    Bench {
        name: "spill",
        package: "sim",
        description: "Spill on measured demand and seven other ways to split traffic, over five traces and eight scenarios",
        needs: &[],
        counted: false,
    },
    Bench {
        name: "spill-live",
        package: "zoneward",
        description: "Spill on measured demand beside Envoy's zone-aware routing and load_aware_locality: real connections",
        needs: &[tools::ENVOY],
        counted: false,
    },
    Bench {
        name: "store",
        package: "store",
        description: "the embedded API and etcd: durable writes, watchers, memory; and the storage engine",
        needs: &[tools::ETCD],
        counted: true,
    },
    Bench {
        name: "xds",
        package: "xds",
        description: "10,000 routes and clusters in Envoy: initial sync, one change, memory per stream",
        needs: &[tools::ENVOY],
        counted: false,
    },
];

/// The profile of packages.
const PROFILE: &str = "dist";

/// Small enough for callgrind, which is some fifty times slower.
const COUNTED_SERVICES: &str = "2000";

/// Lists the benches, or runs one.
pub(crate) fn run(options: &BenchOptions) -> Result<(), Stop> {
    let Some(name) = &options.name else {
        report::say(&list());
        return Ok(());
    };
    let Some(bench) = BENCHES.iter().find(|bench| bench.name == name) else {
        return Err(Stop::Usage(format!("bench: unknown bench `{name}`\n{}", list())));
    };
    tools::ensure(bench.needs, true)?;
    report::heading(&format!("bench {}: time", bench.name));
    let profile = options.profile.as_deref().unwrap_or(PROFILE);
    time(bench, profile, &options.pass_on)?;
    if !bench.counted {
        return Ok(());
    }
    report::heading(&format!("bench {}: instructions", bench.name));
    tools::ensure(&[tools::VALGRIND], true)?;
    count(bench, profile, &options.pass_on)
}

fn list() -> String {
    format!("The benches are:\n{}", rows())
}

fn rows() -> String {
    let lines = BENCHES.iter().map(|bench| format!("    {:<11} {}", bench.name, bench.description));
    lines.collect::<Vec<_>>().join("\n")
}

/// `cargo bench` of one bench.
fn cargo_bench(bench: &Bench, profile: &str) -> Command {
    let words = ["bench", "--profile", profile, "--package", bench.package, "--bench", bench.name];
    shell::cargo(&words)
}

fn time(bench: &Bench, profile: &str, pass_on: &[String]) -> Result<(), Stop> {
    let mut command = cargo_bench(bench, profile);
    command.arg("--").args(pass_on).env_remove("ZONEWARD_BENCH_COUNT").env_remove("ZONEWARD_BENCH_SERVICES");
    shell::run(&mut command, "the timed run", "see the output above")
}

fn count(bench: &Bench, profile: &str, pass_on: &[String]) -> Result<(), Stop> {
    let executable = executable(bench, profile)?;
    let file = shell::target_dir().join(format!("callgrind.{}.out", bench.name));
    let mut command = shell::program(shell::tools().bin().join("valgrind"));
    command.arg("--tool=callgrind").arg("--quiet").args(callgrind::PLAIN_OUTPUT);
    command.arg(format!("--callgrind-out-file={}", file.display()));
    // As `cargo bench` calls it.
    command.arg(executable).args(pass_on).arg("--bench").current_dir(package_dir(bench));
    smaller_world(&mut command);
    let said = shell::capture(&mut command, "the counted run", "see the output above")?;
    let output = std::fs::read_to_string(&file)
        .map_err(|error| Stop::Failed(format!("reading {}: {error}", file.display())))?;
    let phases = callgrind::phases(&output);
    if phases.is_empty() {
        return Err(Stop::Failed(format!(
            "the counted run called no function whose name starts with `phase_`: see the contract in {}",
            "crates/xtask/src/bench.rs"
        )));
    }
    report::say(&counted_table(&phases, callgrind::endpoints(&said)));
    report::say(&format!("\nMore: callgrind_annotate {}", file.display()));
    Ok(())
}

fn smaller_world(command: &mut Command) {
    command.env("ZONEWARD_BENCH_COUNT", "1");
    if std::env::var_os("ZONEWARD_BENCH_SERVICES").is_none() {
        command.env("ZONEWARD_BENCH_SERVICES", COUNTED_SERVICES);
    }
}

fn counted_table(phases: &BTreeMap<String, u64>, endpoints: Option<u64>) -> String {
    let per_endpoint = |instructions: u64| match endpoints.filter(|count| *count > 0) {
        Some(count) => report::grouped(instructions.div_ceil(count)),
        None => "-".to_string(),
    };
    let rows = phases.iter().map(|(phase, instructions)| {
        vec![phase.clone(), report::grouped(*instructions), per_endpoint(*instructions)]
    });
    let table = report::table(&["phase", "instructions", "per endpoint"], &rows.collect::<Vec<_>>());
    match endpoints {
        Some(count) => format!("{table}\n{} endpoints", report::grouped(count)),
        None => format!("{table}\nThe bench did not print `N endpoints`."),
    }
}

fn package_dir(bench: &Bench) -> PathBuf {
    shell::root().join("crates").join(bench.package)
}

/// Builds the bench and asks cargo where it put it.
fn executable(bench: &Bench, profile: &str) -> Result<String, Stop> {
    let mut build = cargo_bench(bench, profile);
    build.args(["--no-run", "--quiet"]);
    build.arg("--message-format=json");
    let messages = shell::capture(&mut build, "building the bench", "see the compiler errors above")?;
    bench_executable(&messages).ok_or_else(|| {
        Stop::Failed(format!(
            "cargo reported no executable of the bench `{}`: is it a [[bench]] target?",
            bench.name
        ))
    })
}

/// The path in the message about the bench target. One JSON object per line; no other key has this name.
fn bench_executable(messages: &str) -> Option<String> {
    let message = messages.lines().rfind(|line| line.contains(r#""kind":["bench"]"#))?;
    let (_, value) = message.split_once(r#""executable":""#)?;
    let mut path = String::new();
    let mut letters = value.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => return Some(path),
            // In a path only the quote and the backslash itself come escaped.
            '\\' => path.push(letters.next()?),
            _ => path.push(letter),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_is_that_of_the_bench_and_not_of_its_library() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"kind":["lib"]},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"kind":["bench"]},"executable":"/a \"b\"/deps/plan-1f"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        assert_eq!(bench_executable(messages).as_deref(), Some(r#"/a "b"/deps/plan-1f"#));
        assert_eq!(bench_executable(r#"{"target":{"kind":["bench"]},"executable":null}"#), None);
        assert_eq!(bench_executable(r#"{"target":{"kind":["bench"]},"executable":"/cut"#), None);
        assert_eq!(bench_executable(""), None);
    }

    #[test]
    fn counts_are_shown_per_endpoint_when_their_number_is_known() {
        let phases = BTreeMap::from([("hints".to_string(), 1_000_001), ("slices".to_string(), 2_000)]);
        let expected = "\
phase  | instructions | per endpoint
-------+--------------+-------------
hints  |    1,000,001 |       10,001
slices |        2,000 |           20
100 endpoints";
        assert_eq!(counted_table(&phases, Some(100)), expected);
        assert!(counted_table(&phases, None).contains("|            -\n"));
    }

    #[test]
    fn unknown_bench_lists_the_known_ones() {
        let options = BenchOptions { name: Some("nothing".to_string()), ..BenchOptions::default() };
        let Err(Stop::Usage(why)) = run(&options) else { panic!("should be wrong use") };
        assert!(why.contains("`nothing`") && why.contains("plan"), "{why}");
    }
}
