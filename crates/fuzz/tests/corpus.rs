//! Replays the corpus, regression inputs included, and changes of it, without a fuzzer: the same ones in every run.
//! PROPTEST_RNG_SEED chooses others, as for property tests.

use std::fs;
use std::path::{Path, PathBuf};

use fuzz::{TARGETS, target};
use model::random::Random;

/// All of it is cloned by everyone.
const MAX_CORPUS: u64 = 64 << 10;

fn files(name: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a folder can be read").path()).collect();
    files.sort();
    files
}

/// Runs every file of a target's folder; the output of a failing test names the file.
fn replay(name: &str) {
    let target = target(name).expect("a target of this name");
    let files = files(name);
    assert!(!files.is_empty(), "corpus/{name} is empty");
    for file in files {
        println!("replaying {}", file.display());
        let input = fs::read(&file).expect("a file of the corpus");
        assert!(input.len() <= target.max_len, "longer than {} bytes", target.max_len);
        (target.run)(&input);
    }
}

/// Changed inputs of each target. An input of `http` is an exchange over loopback, with a pause at its end.
const CHANGED: usize = 3_000;
const CHANGED_HTTP: usize = 300;

/// Runs inputs of the corpus with one to four changes each.
fn replay_changed(name: &str) {
    let target = target(name).expect("a target of this name");
    let inputs: Vec<Vec<u8>> =
        files(name).iter().map(|file| fs::read(file).expect("a file of the corpus")).collect();
    let seed = std::env::var("PROPTEST_RNG_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut random = Random::seeded(seed);
    if target.catches_panics {
        std::panic::set_hook(Box::new(|_| {}));
    }
    for number in 0..if name == "http" { CHANGED_HTTP } else { CHANGED } {
        let input = changed(&inputs, target.max_len, &mut random);
        let outcome = std::panic::catch_unwind(|| (target.run)(&input));
        if outcome.is_err() {
            let file = std::env::temp_dir().join(format!("zoneward-fuzz-{name}-{seed}-{number}"));
            fs::write(&file, &input).expect("the temporary folder takes a file");
            panic!("input {number} of seed {seed} fails; it is in {}", file.display());
        }
    }
}

fn changed(inputs: &[Vec<u8>], max_len: usize, random: &mut Random) -> Vec<u8> {
    let mut input = random.pick(inputs).cloned().unwrap_or_default();
    for _ in 0..=random.below(4) {
        let at = random.below(input.len() + 1);
        match random.below(6) {
            0 => input.truncate(at),
            1 => input.insert(at, random.below(256) as u8),
            2 if at < input.len() => drop(input.remove(at)),
            3 if at < input.len() => input[at] ^= 1 << random.below(8),
            4 if at < input.len() => input[at] = *random.pick(&[0, 0x7f, 0x80, 0xff]).unwrap_or(&0),
            _ => splice(&mut input, at, random.pick(inputs).map_or(&[][..], Vec::as_slice), random),
        }
    }
    input.truncate(max_len);
    input
}

/// Puts a piece of another input there.
fn splice(input: &mut Vec<u8>, at: usize, other: &[u8], random: &mut Random) {
    let start = random.below(other.len());
    let end = other.len().min(start + 1 + random.below(64));
    input.splice(at..at, other.get(start..end).unwrap_or_default().iter().copied());
}

macro_rules! replays {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            replay(stringify!($name));
        })*

        mod changed_inputs {
            $(#[test]
            fn $name() {
                super::replay_changed(stringify!($name));
            })*
        }

        #[test]
        fn every_target_is_replayed() {
            let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

replays! { cel http journal netlink objects patches protobuf requests watches }

#[test]
fn the_corpus_is_small() {
    let sizes = TARGETS
        .iter()
        .flat_map(|target| files(target.name))
        .map(|file| fs::metadata(file).expect("a file of the corpus").len());
    assert!(sizes.sum::<u64>() <= MAX_CORPUS);
}
