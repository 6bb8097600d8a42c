//! What may enter the dependency tree: licences, banned crates, sources. Read from `cargo tree`, which needs nothing that
//! is not there already. Advisories are left out: their database is not in a registry that CI can reach.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Stop, report, shell};

/// The licences that are really there; a new one is a decision, and one that no crate has any more leaves the list.
const LICENCES: &[&str] = &["Apache-2.0", "BSD-3-Clause", "ISC", "MIT", "NCSA", "Unicode-3.0", "Zlib"];

/// A crate that must not come in, except below the crates that are named.
struct Ban {
    name: &'static str,
    except_below: &'static [&'static str],
    why: &'static str,
}

const BANS: &[Ban] = &[
    Ban {
        name: "aws-lc-rs",
        except_below: &[],
        why: "rustls uses ring: aws-lc-rs needs cmake and minutes to build",
    },
    Ban {
        name: "chrono",
        // The CEL interpreter has its timestamps by it; nothing of ours may use it.
        except_below: &["cel", "kube-cel"],
        why: "jiff tells the time; one calendar is enough",
    },
    Ban { name: "native-tls", except_below: &[], why: "TLS is rustls, the same on every machine" },
    Ban { name: "openssl-sys", except_below: &[], why: "TLS is rustls: no C library to match on the target" },
    Ban { name: "serde_yaml", except_below: &[], why: "unmaintained: YAML is serde-saphyr" },
];

/// Zoneward runs on Linux only; what other systems would pull in does not count.
const TARGETS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// Checks the whole tree, dependencies of tests and build scripts included.
pub(crate) fn run() -> Result<(), Stop> {
    let mut packages = BTreeMap::new();
    for target in TARGETS {
        packages.extend(parse_tree(&tree(target)?));
    }
    let root = shell::root().display().to_string();
    let mut violations = violations(&packages, &root);
    violations.extend(wildcards()?);
    if violations.is_empty() {
        report::say(&format!("{} packages: licences, bans and sources are in order", packages.len()));
        return Ok(());
    }
    report::complain(&violations.join("\n"));
    Err(Stop::Failed("dependencies violate the policy in crates/xtask/src/deny.rs".to_string()))
}

/// One line per package and its place in the tree: depth, name and version and source, licence.
fn tree(target: &str) -> Result<String, Stop> {
    let mut command = shell::cargo(&["tree", "--workspace", "--all-features", "--locked"]);
    command.args([
        "--edges",
        "normal,build,dev",
        "--prefix",
        "depth",
        "--format",
        "\t{p}\t{l}",
        "--target",
        target,
    ]);
    shell::capture(&mut command, "cargo tree", "see the errors of cargo above")
}

#[derive(Debug, Default, PartialEq)]
struct Package {
    licence: String,
    /// Names of the packages that depend on it.
    used_by: BTreeSet<String>,
}

/// Packages by what `cargo tree` prints of them: `name v1.2.3`, with the source behind it unless it is crates.io.
fn parse_tree(text: &str) -> BTreeMap<String, Package> {
    let mut packages: BTreeMap<String, Package> = BTreeMap::new();
    let mut above: Vec<String> = Vec::new();
    for line in text.lines() {
        let mut cells = line.split('\t');
        let (Some(depth), Some(name)) = (cells.next(), cells.next()) else { continue };
        let Ok(depth) = depth.parse::<usize>() else { continue };
        let licence = cells.next().unwrap_or_default().trim_end_matches(" (*)").to_string();
        above.truncate(depth);
        let package = packages.entry(name.to_string()).or_default();
        package.licence = licence;
        package.used_by.extend(above.last().map(|user| first_word(user).to_string()));
        above.push(name.to_string());
    }
    packages
}

fn first_word(text: &str) -> &str {
    text.split(' ').next().unwrap_or(text)
}

fn violations(packages: &BTreeMap<String, Package>, root: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (package, facts) in packages {
        let source = package.split_once('(').map_or("", |(_, source)| source.trim_end_matches(')'));
        if !source.is_empty() && source != "proc-macro" && !source.starts_with(root) {
            found.push(format!("{package}: comes from {source}; only crates.io is allowed"));
        }
        if !is_allowed(&facts.licence) {
            let licence = if facts.licence.is_empty() { "no licence" } else { &facts.licence };
            found.push(format!("{package}: has {licence}, which is not among {}", LICENCES.join(", ")));
        }
        for ban in BANS.iter().filter(|ban| ban.name == first_word(package)) {
            let wrong = facts.used_by.iter().filter(|user| !ban.except_below.contains(&user.as_str()));
            found.extend(wrong.map(|user| format!("{user} uses {}: {}", ban.name, ban.why)));
        }
    }
    let names = |licence: &str| packages.values().any(|facts| words(&facts.licence).contains(&licence));
    let unused = LICENCES.iter().filter(|licence| !names(licence));
    found.extend(unused.map(|licence| format!("no package has the licence {licence} any more")));
    found
}

/// Whether the expression holds with our licences: `MIT OR Apache-2.0`, `(A OR B) AND C`, and the old form `MIT/Apache-2.0`.
fn is_allowed(expression: &str) -> bool {
    let words = words(expression);
    let mut rest = words.as_slice();
    !words.is_empty() && any(&mut rest) && rest.is_empty()
}

fn words(expression: &str) -> Vec<&str> {
    let mut words = Vec::new();
    for word in expression.split([' ', '/']).filter(|word| !word.is_empty()) {
        let inner = word.trim_start_matches('(');
        words.extend(std::iter::repeat_n("(", word.len() - inner.len()));
        let bare = inner.trim_end_matches(')');
        words.push(bare);
        words.extend(std::iter::repeat_n(")", inner.len() - bare.len()));
    }
    if expression.contains('/') {
        // The old form: `A/B` means A OR B.
        words = words.into_iter().flat_map(|word| ["OR", word]).skip(1).collect();
    }
    words
}

fn any(words: &mut &[&str]) -> bool {
    let mut holds = all(words);
    while let Some(("OR", rest)) = words.split_first().map(|(first, rest)| (*first, rest)) {
        *words = rest;
        holds |= all(words);
    }
    holds
}

fn all(words: &mut &[&str]) -> bool {
    let mut holds = one(words);
    while let Some(("AND", rest)) = words.split_first().map(|(first, rest)| (*first, rest)) {
        *words = rest;
        holds &= one(words);
    }
    holds
}

fn one(words: &mut &[&str]) -> bool {
    let Some((first, rest)) = words.split_first() else { return false };
    *words = rest;
    if *first == "(" {
        let holds = any(words);
        let Some((")", rest)) = words.split_first().map(|(first, rest)| (*first, rest)) else { return false };
        *words = rest;
        return holds;
    }
    if let Some(("WITH", rest)) = words.split_first().map(|(first, rest)| (*first, rest)) {
        // An exception only permits more.
        *words = rest.get(1..).unwrap_or_default();
    }
    LICENCES.contains(first)
}

/// A version of `*` would let anything in.
fn wildcards() -> Result<Vec<String>, Stop> {
    let mut found = Vec::new();
    let mut manifests = vec![shell::root().join("Cargo.toml")];
    let crates = std::fs::read_dir(shell::root().join("crates"));
    manifests.extend(crates.into_iter().flatten().flatten().map(|folder| folder.path().join("Cargo.toml")));
    for manifest in manifests.iter().filter(|manifest| manifest.is_file()) {
        let text = std::fs::read_to_string(manifest)
            .map_err(|error| Stop::Failed(format!("{} cannot be read: {error}", manifest.display())))?;
        let lines = text.lines().filter(|line| line.contains("\"*\"") && !line.starts_with(['#', '[']));
        found.extend(lines.map(|line| format!("{}: `{line}` lets any version in", manifest.display())));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licence_expressions_hold_if_we_can_choose_an_allowed_one() {
        for good in [
            "MIT",
            "MIT OR Apache-2.0",
            "MIT/Apache-2.0",
            "GPL-3.0 OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR MIT",
            "Unlicense/MIT",
        ] {
            assert!(is_allowed(good), "{good}");
        }
        for bad in
            ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT", "MIT Apache-2.0", "(GPL-3.0 OR MPL-2.0) AND MIT", "OR"]
        {
            assert!(!is_allowed(bad), "{bad}");
        }
    }

    #[test]
    fn banned_crates_foreign_sources_and_licences_are_named_with_the_reason() {
        let text = "0\tzoneward v0.1.0 (/src/crates/zoneward)\tApache-2.0\n\
                    1\tgood v1.0.0\tMIT OR GPL-3.0\n\
                    2\tchrono v0.4.0\tMIT\n\
                    1\tcel v1.0.0\tMIT\n\
                    2\tchrono v0.4.0\tMIT (*)\n\
                    1\tfork v1.0.0 (https://example.com/fork#1)\tMIT\n\
                    1\tmacros v1.0.0 (proc-macro)\tZlib AND BSD-3-Clause AND ISC AND NCSA AND Unicode-3.0\n\
                    1\tviral v1.0.0\tGPL-3.0\n";
        let found = violations(&parse_tree(text), "/src");
        assert_eq!(found.len(), 3, "{found:#?}");
        assert!(found[0].starts_with("good uses chrono: jiff"), "{found:#?}");
        assert!(found[1].contains("https://example.com/fork"), "{found:#?}");
        assert!(found[2].starts_with("viral v1.0.0: has GPL-3.0"), "{found:#?}");
    }

    #[test]
    fn a_licence_that_no_package_has_any_more_leaves_the_list() {
        let found = violations(&parse_tree("0\tours v0.1.0 (/src/ours)\tApache-2.0"), "/src");
        assert_eq!(found.len(), LICENCES.len() - 1, "{found:#?}");
    }
}
