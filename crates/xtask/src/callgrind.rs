//! Reads what `valgrind --tool=callgrind` writes: how many instructions each `phase_` function took, with
//! everything it called.
//!
//! ```text
//! fn=plan::main                 <- the caller
//! cfn=plan::phase_slices        <- the callee
//! calls=1 40                    <- how often, and where it lies
//! 21 806970                     <- line of the call, and its inclusive cost
//! ```
//!
//! The inclusive cost of the call is exact even if closures inside the phase bear its name; with
//! `--toggle-collect='*phase_*'` such a closure would switch the counting off in the middle, and
//! `--dump-after` leaves out the dump where the next function is a phase too.

use std::collections::BTreeMap;

/// The options with which callgrind writes names and positions out in full, as `phases` expects.
pub(crate) const PLAIN_OUTPUT: &[&str] = &["--compress-strings=no", "--compress-pos=no"];

/// Instructions per phase, by name without the `phase_` in front.
pub(crate) fn phases(output: &str) -> BTreeMap<String, u64> {
    let mut instructions_by_phase = BTreeMap::new();
    let mut caller_is_phase = false;
    let mut callee = None;
    let mut cost_follows = false;
    for line in output.lines() {
        if cost_follows {
            cost_follows = false;
            // A phase that calls itself or another is already in the cost of the outer one.
            if let (Some(phase), false) = (&callee, caller_is_phase) {
                *instructions_by_phase.entry(String::from(*phase)).or_insert(0) += cost_of(line);
            }
            callee = None;
        } else if let Some(name) = line.strip_prefix("fn=") {
            caller_is_phase = phase_name(name).is_some();
        } else if let Some(name) = line.strip_prefix("cfn=") {
            callee = phase_name(name);
        } else if line.starts_with("calls=") {
            cost_follows = true;
        }
    }
    instructions_by_phase
}

/// `plan::bench::phase_slices::<u64>` is `slices`; a closure inside it is no phase of its own.
fn phase_name(function: &str) -> Option<&str> {
    let path = function.split_once("::<").map_or(function, |(path, _generics)| path);
    path.rsplit("::").next()?.strip_prefix("phase_")
}

/// The second number of a cost line: instructions are the only event that is counted.
fn cost_of(line: &str) -> u64 {
    line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Number of endpoints in the output of a bench: the number before the word `endpoints`.
pub(crate) fn endpoints(bench_output: &str) -> Option<u64> {
    let words: Vec<&str> = bench_output.split_whitespace().collect();
    words.windows(2).find_map(|pair| {
        let is_word = pair[1].trim_end_matches([',', '.', ';', ')']) == "endpoints";
        let digits: String = pair[0].chars().filter(|letter| !",_(".contains(*letter)).collect();
        digits.parse().ok().filter(|_| is_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
# callgrind format
events: Ir
fl=bench.rs
fn=plan::main
20 1
cfn=plan::phase_slices
calls=1 5
21 7007
21 1
cob=libc.so.6
cfi=malloc.c
cfn=malloc
calls=1 5
22 90
cfn=plan::bench::phase_hints::<u64>
calls=1 9
22 806970
cfn=plan::phase_slices
calls=2 5
23 14014

fn=plan::bench::phase_hints::<u64>
9 4
cfn=plan::bench::phase_hints::{{closure}}
calls=1000 9
12 500000
cfn=plan::phase_slices
calls=1 5
13 100

totals: 835084
";

    #[test]
    fn inclusive_costs_are_summed_per_phase() {
        let expected = [("hints", 806_970), ("slices", 21_021)];
        assert_eq!(phases(OUTPUT), expected.map(|(name, cost)| (name.to_string(), cost)).into());
    }

    #[test]
    fn closures_and_lookalikes_are_no_phases() {
        assert_eq!(phase_name("plan::phase_slices"), Some("slices"));
        assert_eq!(phase_name("phase_slices"), Some("slices"));
        assert_eq!(phase_name("plan::phase_slices::<plan::phase_other>"), Some("slices"));
        assert_eq!(phase_name("plan::phase_slices::{{closure}}"), None);
        assert_eq!(phase_name("plan::two_phase_commit"), None);
    }

    #[test]
    fn cut_off_output_is_no_panic() {
        assert!(phases("").is_empty());
        assert!(phases("fn=main\ncfn=phase_a\ncalls=1 2").is_empty());
        assert_eq!(phases("fn=main\ncfn=phase_a\ncalls=1 2\nnonsense").get("a"), Some(&0));
    }

    #[test]
    fn endpoints_are_read_from_the_sentence_that_the_bench_prints() {
        assert_eq!(endpoints("world: 200 services, 10,000 endpoints, 3 zones"), Some(10_000));
        assert_eq!(endpoints("(500 endpoints)"), Some(500));
        assert_eq!(endpoints("endpoints are many"), None);
        assert_eq!(endpoints(""), None);
    }
}
