//! Replays the corpus, regression inputs included, without a fuzzer.

use std::fs;
use std::path::{Path, PathBuf};

use fuzz::{TARGETS, target};

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

macro_rules! replays {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            replay(stringify!($name));
        })*

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
