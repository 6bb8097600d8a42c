//! `cargo xtask demo`: builds the binary and walks through what it can do, one command at a time.
//! The tour is the table `STEPS`: to show something new, add a row. Paths are from the repository's root.

use crate::{Stop, report, shell};

/// One stop of the tour.
struct Step {
    /// What the reader is about to see, and why it matters.
    say: &'static str,
    /// The words after `zoneward`.
    args: &'static [&'static str],
    /// What to notice in the output.
    after: &'static str,
}

const STEPS: &[Step] = &[
    Step {
        say: "Which EndpointSlices would the controller write for these Services, Pods and Nodes?\n\
              Nothing is written: the plan is a pure function of the files.",
        args: &["plan", "slices", "-f", "examples/shop"],
        after: "Each change has its reason. The notice says what PreferSameZone does for `cart`, with numbers.",
    },
    Step {
        say: "What if zones have unequal shares? Spill keeps as much in each zone as its endpoints can take.",
        args: &["plan", "slices", "-f", "examples/seeds/traffic-distribution-spill.yaml"],
        after: "The notice says who keeps how much, by which numbers, and what would help.",
    },
    Step {
        say: "Given those slices, which endpoints would one node send each Service's traffic to?",
        args: &["trace", "select", "-f", "examples/shop", "--node", "node-a1"],
        after: "`same-zone` and `same-node` sets stay close; a set that fell back says why.",
    },
    Step {
        say: "And one packet, through the very bytes that the node's kernel would get, decoded again?",
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
        after: "The reasons go from the Service's policy down to the nftables rule and map element.",
    },
    Step {
        say: "Which cluster addresses would Services get? The seed makes the random choice repeatable.",
        args: &["plan", "addresses", "-f", "examples/addresses", "--seed", "1"],
        after: "The low band of each range is kept for addresses that people choose by hand.",
    },
    Step {
        say: "Is everything in these files valid? One bad object never hides the others.",
        args: &["plan", "validate", "-R", "-f", "examples"],
        after: "Each violation names the object, the field and what to do.",
    },
    Step {
        say: "Now for real: three zones, six nodes and thirty pods as network namespaces on this machine, without root.\n\
              Clients connect under every traffic distribution, a zone loses its pods, pods are replaced under load.",
        args: &["demo"],
        after: "`zoneward demo --keep` leaves it running for kubectl and `zoneward demo exec`.",
    },
];

/// Builds the binary in release mode and runs the tour.
pub(crate) fn run() -> Result<(), Stop> {
    report::heading("build zoneward in release mode");
    let mut build = shell::cargo(&["build", "--release", "--package", "zoneward"]);
    shell::run(&mut build, "the build", "the compiler says above what is wrong")?;
    let binary = shell::target_dir().join("release").join("zoneward");
    for (index, step) in STEPS.iter().enumerate() {
        report::heading(&format!("{} of {}", index + 1, STEPS.len()));
        report::say(step.say);
        let line = shell::typed("zoneward", step.args);
        report::say(&format!("\n$ {line}\n"));
        let advice = "the tour stops here; the command's own words are above";
        shell::run(shell::program(&binary).args(step.args), &format!("`{line}`"), advice)?;
        report::say(&format!("\n{}", step.after));
    }
    report::say(&format!("\nTry more of it yourself: {} --help", binary.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_explains_itself() {
        for step in STEPS {
            assert!(
                !step.say.is_empty() && !step.after.is_empty() && !step.args.is_empty(),
                "{:?}",
                step.args
            );
        }
    }
}
