//! What operators read: the sentences in each crate's source, held in one file per crate that a reviewer can read.
//!
//! `UPDATE_STRINGS=1 cargo test -p xtask strings::` writes the files anew. Help texts are in
//! `crates/zoneward/tests/help.txt`.

use crate::architecture::source;
use crate::architecture::tree;
use std::fs;

use tree::{assert_none, crates, is_test_file, root, sources};

const FOLDER: &str = "crates/xtask/tests/strings";

/// Texts for developers: why something cannot fail, and reasons of lints.
const FOR_DEVELOPERS: [&str; 6] = ["expect(", "unreachable!(", "assert!(", "reason = ", "panic!(", "doc = "];

/// Two words or more.
fn is_sentence(text: &str) -> bool {
    let is_word = |word: &&str| {
        word.len() > 1 && word.chars().all(|letter| letter.is_alphabetic() || "-'.,:;".contains(letter))
    };
    text.split_whitespace().filter(is_word).count() >= 2
}

/// The sentences of a crate, by file.
fn sentences(name: &str) -> String {
    let mut text = String::new();
    let folder = format!("crates/{name}/src/");
    let files = sources().into_iter().filter(|(path, _)| path.starts_with(&folder) && !is_test_file(path));
    for (path, source) in files {
        let found = source::strings(&source).into_iter();
        let found = found.filter(|(before, _)| {
            !FOR_DEVELOPERS.iter().any(|mark| before.trim_end().ends_with(mark.trim_end()))
        });
        let found: Vec<String> = found.map(|(_, text)| text).filter(|text| is_sentence(text)).collect();
        if !found.is_empty() {
            let lines = found.iter().map(|text| format!("  {}\n", text.replace('\n', "\n  ")));
            text += &format!("{}\n{}", &path[folder.len()..], lines.collect::<String>());
        }
    }
    text
}

#[test]
fn sentences_for_operators_are_those_that_were_reviewed() {
    let mut violations = Vec::new();
    for name in crates().iter().filter(|name| !["dist", "toolbox", "xtask"].contains(&name.as_str())) {
        let path = root().join(FOLDER).join(format!("{name}.txt"));
        let now = sentences(name);
        if std::env::var_os("UPDATE_STRINGS").is_some() {
            fs::write(&path, &now).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        } else if fs::read_to_string(&path).unwrap_or_default() != now {
            violations.push(format!(
                "{FOLDER}/{name}.txt is not what crates/{name} says: run \
                 UPDATE_STRINGS=1 cargo test -p xtask strings::, and read the difference"
            ));
        }
    }
    assert_none(violations);
}
