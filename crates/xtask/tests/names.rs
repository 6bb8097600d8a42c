//! A public type name stands for one thing in the whole workspace: a reader who searches it finds one definition.

use crate::architecture::source;
use crate::architecture::tree;
use std::collections::BTreeMap;

use tree::{assert_none, is_test_file, sources};

/// Names that are still used for several types, and how often. Rename one and lower its number; never add one.
const REUSED: &[(&str, usize)] = &[];

/// The public types of the workspace: name -> places.
fn public_types() -> BTreeMap<String, Vec<String>> {
    let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in sources().into_iter().filter(|(path, _)| !is_test_file(path)) {
        let code = source::without_test_parts(&source::code_only(&text));
        for (index, line) in code.lines().enumerate() {
            let mut words = line.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            let is_public = line.trim_start().starts_with("pub ");
            let kind = words.find(|word| ["struct", "enum", "trait", "type", "union"].contains(word));
            if let (true, Some(_), Some(name)) = (is_public, kind, words.next()) {
                types.entry(name.to_owned()).or_default().push(format!("{path}:{}", index + 1));
            }
        }
    }
    types
}

#[test]
fn a_public_type_name_stands_for_one_thing() {
    let allowed: BTreeMap<&str, usize> = REUSED.iter().copied().collect();
    let types = public_types();
    let mut violations = Vec::new();
    for (name, places) in types.iter().filter(|(_, places)| places.len() > 1) {
        if places.len() > allowed.get(name.as_str()).copied().unwrap_or(1) {
            violations.push(format!("{name} is {} types: {}; rename", places.len(), places.join(", ")));
        }
    }
    for (name, count) in allowed {
        let now = types.get(name).map_or(0, Vec::len);
        if now < count {
            violations.push(format!("{name} is {now} types and may be {count}: lower its number in REUSED"));
        }
    }
    assert_none(violations);
}
