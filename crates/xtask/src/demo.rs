//! `cargo xtask demo`: builds the binary and runs the steps of the tour, the table `STEPS`. Paths are relative to the
//! repository root.

use std::path::{Path, PathBuf};

use crate::{Stop, report, shell};

struct Step {
    say: &'static str,
    /// The words after `zoneward`.
    args: &'static [&'static str],
    notice: &'static str,
}

const STEPS: &[Step] = &[
    Step {
        say: "A cluster with live traffic on this machine: three zones, six nodes and thirty\n\
              pods, made of network namespaces, without root. It takes about 20 seconds.",
        args: &["demo"],
        notice: "Spill keeps less traffic in zone than PreferSameZone, and overloads no pod.",
    },
    Step {
        say: "The same decisions on files; nothing is written. Which EndpointSlices would the\n\
              controller write for these Services, Pods and Nodes?",
        args: &["plan", "slices", "-f", "examples/shop"],
        notice: "Each change has its reason.",
    },
    Step {
        say: "Which endpoints does a node select for a Service?",
        args: &["trace", "select", "cart", "-n", "shop", "-f", "examples/shop", "--node", "node-a1"],
        notice: "The node is in zone-a and uses the two endpoints there.",
    },
    Step {
        say: "How does a packet pass through the nftables rules of the node?",
        args: &[
            "trace",
            "packet",
            "-f",
            "examples/shop",
            "--node",
            "node-a1",
            "--packet",
            "tcp 10.244.1.9:40000 -> 10.96.1.20:80",
        ],
        notice: "The reasons go from the policy of the Service down to the rule and map element.",
    },
    Step {
        say: "What would another traffic distribution do for a Service?",
        args: &["simulate", "what-if", "-f", "examples/shop", "-n", "shop", "cart"],
        notice: "One row per mechanism: in-zone traffic and overload.",
    },
];

/// What to try next: the words after `zoneward`, and what they are for.
const NEXT: [(&str, &str); 3] = [
    ("demo --keep", "keep the cluster running for experiments"),
    ("simulate what-if -A", "evaluate the cluster of your kubeconfig, read-only"),
    ("--help", "list all commands"),
];

/// Builds the binary unless one is given, and runs the tour. A step that fails does not hide the others.
pub(crate) fn run(binary: Option<&Path>) -> Result<(), Stop> {
    let binary = match binary {
        Some(path) => given(path)?,
        None => build()?,
    };
    let mut failed = Vec::new();
    for (index, step) in STEPS.iter().enumerate() {
        report::heading(&format!("{} of {}", index + 1, STEPS.len()));
        report::say(step.say);
        let line = shell::typed("zoneward", step.args);
        report::say(&format!("\n$ {line}\n"));
        match shell::run(shell::program(&binary).args(step.args), "it", "its own message is above") {
            Ok(()) => report::say(&format!("\nNotice: {}", step.notice)),
            Err(_) => failed.push(line),
        }
    }
    report::heading("try it yourself");
    report::say(&next(&shown(&binary)));
    match failed.as_slice() {
        [] => Ok(()),
        lines => Err(Stop::Failed(format!("failed, see the messages above: {}", lines.join("; ")))),
    }
}

fn given(path: &Path) -> Result<PathBuf, Stop> {
    let binary = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    if binary.is_file() {
        return Ok(binary);
    }
    Err(Stop::Failed(format!("--binary {}: no such file", path.display())))
}

fn build() -> Result<PathBuf, Stop> {
    need_ip()?;
    let binary = shell::target_dir().join("quick").join("zoneward");
    report::heading("build zoneward");
    report::say(&announcement(binary.is_file()));
    let mut build = shell::cargo(&["build", "--profile", "quick", "--package", "zoneward"]);
    shell::run(&mut build, "the build", "see the compiler errors above")?;
    Ok(binary)
}

/// The demo requires `ip`: checked before the build.
fn need_ip() -> Result<(), Stop> {
    if shell::on_path("ip").next().is_some() {
        return Ok(());
    }
    Err(Stop::Failed(
        "the demo needs `ip`: install iproute2, on Debian with `apt-get install iproute2`".to_owned(),
    ))
}

/// What is built, and how long that takes.
fn announcement(built_before: bool) -> String {
    if built_before {
        return "Incremental build: seconds, or a minute or two after changes.".to_owned();
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = if cores == 1 { "1 core".to_owned() } else { format!("{cores} cores") };
    format!(
        "The binary and the libraries that it uses, with little optimisation (profile `quick`).\n\
         The first time this takes about 3 minutes on two cores; this machine has {cores}."
    )
}

/// A path as it is typed from the repository's root.
fn shown(binary: &Path) -> String {
    binary.strip_prefix(shell::root()).unwrap_or(binary).display().to_string()
}

fn next(binary: &str) -> String {
    let width = NEXT.iter().map(|(words, _)| words.len()).max().unwrap_or_default();
    let lines = NEXT.map(|(words, purpose)| format!("  {binary} {words:<width$}  # {purpose}"));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_traffic_comes_first_and_at_most_four_looks_at_files_follow() {
        assert_eq!(STEPS[0].args, ["demo"]);
        assert!(STEPS.len() <= 5);
        assert!(STEPS[1..].iter().all(|step| step.args.contains(&"examples/shop")));
    }

    #[test]
    fn every_step_explains_itself_in_lines_that_fit() {
        for step in STEPS {
            assert!(!step.say.is_empty() && !step.notice.contains('\n'), "{:?}", step.args);
            assert!(step.say.lines().chain([step.notice]).all(|line| line.len() <= 80), "{:?}", step.args);
        }
    }

    #[test]
    fn the_first_build_is_announced_with_its_duration() {
        assert!(announcement(false).contains("3 minutes"));
        assert!(announcement(true).contains("seconds"));
    }

    #[test]
    fn three_commands_to_copy_name_the_binary() {
        let text = next("target/quick/zoneward");
        assert_eq!(text.lines().count(), 3);
        assert!(text.lines().all(|line| line.starts_with("  target/quick/zoneward ")), "{text}");
    }
}
