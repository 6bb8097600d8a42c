//! What ARCHITECTURE.md, CONTRIBUTING.md and docs/dependencies.md promise, checked against the tree.
//! Documents rot and layers leak when nothing looks; these tests look. Each failure names the place and the way out.

pub(crate) mod source;
pub(crate) mod tree;

use std::collections::{BTreeMap, BTreeSet};

use tree::{assert_none, crates, is_test_file, read, root, sources};

/// Which of our crates each crate may use. A new arrow is a decision: change it here, with the reason in the commit.
const MAY_USE: &[(&str, &[&str])] = &[
    ("clock", &[]),
    ("listener", &[]),
    ("model", &[]),
    ("plan", &["model"]),
    ("apimachinery", &["model", "plan"]),
    ("dataplane", &["model"]),
    ("proxy", &["clock", "listener", "model"]),
    ("xds", &["listener", "model"]),
    ("store", &["apimachinery", "clock", "listener", "model", "plan"]),
    ("sim", &["insight", "model", "plan"]),
    ("output", &["model"]),
    ("cluster", &["clock", "listener", "model", "plan"]),
    ("insight", &["clock", "cluster", "model", "output", "plan"]),
    ("node", &["clock", "cluster", "dataplane", "insight", "listener", "model", "plan"]),
    ("controller", &["apimachinery", "clock", "cluster", "insight", "mesh", "model", "output", "plan"]),
    ("mesh", &["clock", "cluster", "dataplane", "insight", "model", "output", "plan", "proxy", "xds"]),
    ("demo", &["clock", "cluster", "model", "output", "plan"]),
    (
        "zoneward",
        &[
            "apimachinery",
            "clock",
            "cluster",
            "controller",
            "dataplane",
            "demo",
            "insight",
            "mesh",
            "model",
            "node",
            "output",
            "plan",
            "proxy",
            "sim",
            "store",
            "xds",
        ],
    ),
    ("fuzz", &["dataplane", "model", "plan", "proxy", "store"]),
    (
        "fleet",
        &[
            "clock",
            "cluster",
            "controller",
            "dataplane",
            "fixtures",
            "insight",
            "mesh",
            "model",
            "node",
            "plan",
            "store",
            "xds",
        ],
    ),
    ("toolbox", &[]),
    ("fixtures", &["model", "store"]),
    ("xtask", &["toolbox"]),
    ("dist", &["toolbox"]),
];

/// Crates that decide and therefore touch nothing.
const PURE: &[&str] = &["apimachinery", "model", "plan"];

/// Modules that decide, in crates with effects.
const PURE_MODULES: &[&str] = &[
    "crates/insight/src/ledger",
    "crates/insight/src/pages",
    "crates/insight/src/status",
    "crates/insight/src/what_if",
    "crates/node/src/offline_start",
    "crates/zoneward/src/commands/up/backups/schedule",
    "crates/zoneward/src/health_checks/readiness",
];

/// Libraries whose callers tell errors apart, each by a type of its own. Those of the other crates end in the text of a
/// command, in a log line or in an Event, with what was being done, for which `anyhow` is made.
const OWN_ERRORS: &[&str] = &[
    "apimachinery",
    "clock",
    "dataplane",
    "fuzz",
    "listener",
    "model",
    "plan",
    "proxy",
    "sim",
    "store",
    "toolbox",
    "xds",
];

/// What would let the world, time or chance into a decision.
const IMPURE_CRATES: &[&str] = &["tokio", "kube", "rand", "hyper", "reqwest", "chrono"];

/// The same in std: clocks, and maps whose order differs from run to run.
const IMPURE_NAMES: &[&str] = &["SystemTime::now", "Instant::now", "HashMap", "HashSet"];

/// The interner looks names up and never walks its map, so the order cannot show.
const INTERNER: &str = "crates/model/src/name.rs";

const LONGEST_FILE: usize = 800;
const LONGEST_ARCHITECTURE: usize = 1_200;
/// Rows of its table of files: the tree answers the rest.
const MOST_PLACES: usize = 25;

/// Places where `needle` stands in code, as `path:line`.
fn places_of(path: &str, code: &str, needle: &str) -> Vec<String> {
    let lines = code.lines().enumerate().filter(|(_, line)| line.contains(needle));
    lines.map(|(index, _)| format!("{path}:{}", index + 1)).collect()
}

/// Names of the dependencies of a manifest, build dependencies included, dev-dependencies not.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut counts = false;
    for line in manifest.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            let last = section.rsplit("dependencies.").next().unwrap_or(section);
            counts = section.contains("dependencies") && !section.contains("dev-dependencies");
            // [dependencies.NAME] is a dependency written as a section, whose lines are its own fields.
            if counts && last != section {
                names.insert(last.to_string());
                counts = false;
            }
        } else if counts && !line.is_empty() && !line.starts_with('#') {
            let name = line.split(['.', '=', ' ']).next().unwrap_or(line);
            names.insert(name.trim_matches('"').to_string());
            // A renamed dependency counts by its real name as well.
            if let Some((_, package)) = line.split_once("package = \"") {
                names.insert(package.split('"').next().unwrap_or(package).to_string());
            }
        }
    }
    names
}

fn dependencies_of(name: &str) -> BTreeSet<String> {
    dependencies(&read(&format!("crates/{name}/Cargo.toml")))
}

/// What stands in backticks outside of code blocks.
fn backticked(markdown: &str) -> Vec<&str> {
    let prose = markdown.split("```").step_by(2);
    prose.flat_map(|text| text.split('`').skip(1).step_by(2)).collect()
}

/// The names in backticks that begin the rows of a table.
fn first_cells(markdown: &str) -> BTreeSet<String> {
    let rows = markdown.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split('`').next()).map(str::to_string).collect()
}

/// Whether a word is meant as a file or folder of this repository: `zoneward.dev/mechanism` is not.
fn is_path(word: &str) -> bool {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "_-./".contains(letter);
    let places = ["crates/", "docs/", "vectors/", "examples/", ".ci/", ".config/", ".cargo/"];
    let endings = [".rs", ".md", ".toml", ".json", ".yaml"];
    word.chars().all(plain)
        && (places.iter().any(|place| word.starts_with(place))
            || endings.iter().any(|ending| word.ends_with(ending)))
}

#[test]
fn architecture_names_only_files_that_exist() {
    let architecture = read("ARCHITECTURE.md");
    let missing = backticked(&architecture).into_iter().filter(|word| is_path(word));
    let missing = missing.filter(|path| !root().join(path).exists());
    assert_none(
        missing.map(|path| format!("ARCHITECTURE.md names `{path}`, which does not exist")).collect(),
    );
}

#[test]
fn architecture_names_every_crate_and_no_other() {
    let architecture = read("ARCHITECTURE.md");
    let section = architecture.split("\n## ").find(|section| section.starts_with("Crates"));
    let named = first_cells(section.expect("ARCHITECTURE.md has a section `## Crates`"));
    let mut violations = Vec::new();
    for name in named.difference(&crates()) {
        violations.push(format!("ARCHITECTURE.md has a row for the crate `{name}`, which does not exist"));
    }
    for name in crates().difference(&named) {
        violations.push(format!("ARCHITECTURE.md has no row for the crate `{name}`"));
    }
    assert_none(violations);
}

#[test]
fn architecture_can_be_read_in_five_minutes() {
    let words = read("ARCHITECTURE.md").split_whitespace().count();
    assert!(
        words <= LONGEST_ARCHITECTURE,
        "ARCHITECTURE.md has {words} words, the limit is {LONGEST_ARCHITECTURE}"
    );
    let architecture = read("ARCHITECTURE.md");
    let section = architecture.split("\n## ").find(|section| section.starts_with("Where things are"));
    let section = section.expect("ARCHITECTURE.md has a section `## Where things are`");
    let rows = section.lines().filter(|line| line.starts_with("| ")).count() - 1;
    assert!(rows <= MOST_PLACES, "ARCHITECTURE.md names {rows} places, the limit is {MOST_PLACES}");
}

#[test]
fn crates_use_only_the_crates_below_them() {
    let table: BTreeMap<&str, &[&str]> = MAY_USE.iter().copied().collect();
    let mut violations = Vec::new();
    for name in crates() {
        let Some(allowed) = table.get(name.as_str()) else {
            violations.push(format!("crates/{name} is in no row of MAY_USE: add it"));
            continue;
        };
        let ours = dependencies_of(&name).into_iter().filter(|used| table.contains_key(used.as_str()));
        let wrong = ours.filter(|used| !allowed.contains(&used.as_str()));
        violations.extend(wrong.map(|used| format!("crates/{name} must not depend on {used}")));
    }
    assert_none(violations);
}

#[test]
fn deciding_crates_depend_on_nothing_that_touches_the_world() {
    let mut violations = Vec::new();
    for name in PURE {
        let wrong = dependencies_of(name).into_iter().filter(|used| IMPURE_CRATES.contains(&used.as_str()));
        violations.extend(wrong.map(|used| format!("crates/{name} must not depend on {used}")));
    }
    assert_none(violations);
}

#[test]
fn libraries_have_errors_of_their_own() {
    let with_anyhow = OWN_ERRORS.iter().filter(|name| dependencies_of(name).contains("anyhow"));
    assert_none(
        with_anyhow.map(|name| format!("crates/{name} must not depend on anyhow: use thiserror")).collect(),
    );
}

#[test]
fn deciding_crates_have_no_clock_and_no_hash_order() {
    let mut violations = Vec::new();
    for (path, text) in sources() {
        if !PURE.iter().any(|name| path.starts_with(&format!("crates/{name}/"))) && !is_pure_module(&path) {
            continue;
        }
        let code = source::code_only(&text);
        for name in IMPURE_NAMES {
            if path == INTERNER && name.starts_with("Hash") {
                continue;
            }
            let advice = "take time as an argument, use BTreeMap or a sorted Vec";
            violations
                .extend(places_of(&path, &code, name).iter().map(|at| format!("{at}: {name}: {advice}")));
        }
    }
    assert_none(violations);
}

fn is_pure_module(path: &str) -> bool {
    PURE_MODULES
        .iter()
        .any(|module| path.strip_prefix(module).is_some_and(|rest| rest == ".rs" || rest.starts_with('/')))
}

#[test]
fn deciding_modules_use_nothing_that_touches_the_world() {
    let mut violations = Vec::new();
    let mut found: BTreeSet<&str> = BTreeSet::new();
    for (path, text) in sources().into_iter().filter(|(path, _)| is_pure_module(path)) {
        found.extend(PURE_MODULES.iter().filter(|module| path == format!("{module}.rs")));
        let code = source::code_only(&text);
        for used in IMPURE_CRATES.iter().chain(&["clock", "cluster", "std::fs", "std::net::Tcp"]) {
            let wrong = places_of(&path, &code, &format!("{used}::"));
            violations.extend(wrong.iter().map(|at| format!("{at}: a deciding module must not use {used}")));
        }
    }
    for module in PURE_MODULES.iter().filter(|module| !found.contains(*module)) {
        violations.push(format!("{module}.rs does not exist: change PURE_MODULES"));
    }
    assert_none(violations);
}

#[test]
fn every_dependency_has_its_reason() {
    let names = dependencies(&read("Cargo.toml").replace("[workspace.dependencies]", "[dependencies]"));
    let reasons = read("docs/dependencies.md");
    let rows = first_cells(&reasons);
    let ours = crates();
    let mut violations = Vec::new();
    for name in names.iter().filter(|name| !ours.contains(*name) && !rows.contains(*name)) {
        violations.push(format!("docs/dependencies.md has no row for `{name}`: say why it is here"));
    }
    for name in rows.iter().filter(|name| !names.contains(*name)) {
        violations
            .push(format!("docs/dependencies.md has a row for `{name}`, which is no dependency any more"));
    }
    assert_none(violations);
}

#[test]
fn source_files_are_short() {
    let mut violations = Vec::new();
    for (path, text) in sources().into_iter().filter(|(path, _)| !is_test_file(path)) {
        let lines = source::lines_outside_tests(&source::code_only(&text));
        if lines > LONGEST_FILE {
            violations.push(format!(
                "{path} has {lines} lines without tests, the limit is {LONGEST_FILE}: split it"
            ));
        }
    }
    assert_none(violations);
}

#[test]
fn every_source_file_says_what_it_is() {
    let silent = sources().into_iter().filter(|(_, text)| !text.starts_with("//!"));
    assert_none(
        silent
            .map(|(path, _)| format!("{path} does not begin with //! lines: what is it, and why?"))
            .collect(),
    );
}

#[test]
fn production_code_does_not_unwrap() {
    let mut violations = Vec::new();
    for (path, text) in sources().into_iter().filter(|(path, _)| !is_test_file(path)) {
        let code = source::without_test_parts(&source::code_only(&text));
        let places = places_of(&path, &code, ".unwrap()");
        violations.extend(
            places.iter().map(|at| format!("{at}: unwrap(): handle it, or expect(\"why it cannot fail\")")),
        );
    }
    assert_none(violations);
}

/// Where settings of decisions begin: from flags and files, or, in simulations, as those of a cluster without flags. All other
/// code takes them as arguments, so that what explains and predicts has those of what decides.
const SETTINGS_BEGIN: &[&str] = &[
    "crates/plan/src/config.rs",
    "crates/plan/src/feature_gates",
    "crates/plan/src/forward/node_config.rs",
    "crates/plan/src/slices.rs",
    // What an API server has whose flags are not known.
    "crates/apimachinery/src/cluster_ips/assign.rs",
    "crates/apimachinery/src/validate.rs",
    // Whether a value of an annotation is one at all does not depend on gates.
    "crates/apimachinery/src/validate/annotations.rs",
    // The API without a command line, in tests of others.
    "crates/store/src/admission/service.rs",
    "crates/zoneward/src/cli.rs",
    "crates/zoneward/src/commands/planning.rs",
    // Sample objects for a kernel, before there is a node.
    "crates/zoneward/src/commands/preflight/kernel.rs",
    "crates/zoneward/src/commands/trace/dns.rs",
    // The gates of other machines are not known.
    "crates/zoneward/src/commands/observe/directory.rs",
    // A joined machine does not reach the controller's settings; the controller repeats the decision.
    "crates/zoneward/src/commands/expose/writes.rs",
    "crates/demo/src/demo_cluster.rs",
    "crates/fleet/src",
    "crates/sim/src",
];

#[test]
fn settings_of_decisions_begin_at_the_edge() {
    let begins = |path: &str| SETTINGS_BEGIN.iter().any(|place| path.starts_with(place));
    let mut violations = Vec::new();
    for (path, text) in sources().into_iter().filter(|(path, _)| !is_test_file(path) && !begins(path)) {
        let code = source::without_test_parts(&source::code_only(&text));
        for word in ["without_flags", "WITHOUT_FLAGS", "FeatureGates::ALL"] {
            let places = places_of(&path, &code, word);
            violations
                .extend(places.iter().map(|at| format!("{at}: {word}: take the settings as an argument")));
        }
    }
    assert_none(violations);
}

/// There is no run of documentation tests: compiling each crate once more for none took minutes.
#[test]
fn no_example_in_a_doc_comment_goes_unrun() {
    let mut violations = Vec::new();
    for (path, text) in sources() {
        let mut inside = false;
        for (index, line) in text.lines().enumerate() {
            let line = line.trim_start();
            let Some(comment) = line.strip_prefix("///").or(line.strip_prefix("//!")) else {
                inside = false;
                continue;
            };
            let Some(kind) = comment.trim_start().strip_prefix("```") else { continue };
            inside = !inside;
            let is_rust =
                kind.is_empty() || ["rust", "no_run", "should_panic"].iter().any(|k| kind.contains(k));
            if inside && is_rust {
                let advice = "mark it `text`, or make it a test";
                violations.push(format!("{path}:{}: an example that nothing runs: {advice}", index + 1));
            }
        }
    }
    assert_none(violations);
}

#[test]
fn dependencies_are_read_from_every_way_to_write_them() {
    let manifest = concat!(
        "[package]\nname = \"x\"\n[dependencies]\n# why\nmodel.workspace = true\nclap = { workspace = true }\n",
        "clock = { package = \"chrono\", version = \"1\" }\n[dependencies.serde]\nfeatures = []\n",
        "[target.'cfg(unix)'.dependencies]\nnix = \"1\"\n[build-dependencies]\ncc = \"1\"\n",
        "[dev-dependencies]\nproptest.workspace = true\n[lints]\nworkspace = true\n",
    );
    let expected = ["cc", "chrono", "clap", "clock", "model", "nix", "serde"];
    assert_eq!(dependencies(manifest), expected.map(str::to_string).into());
}

#[test]
fn only_words_with_the_shape_of_a_path_are_looked_up() {
    for path in ["crates/plan", "crates/model/src/name.rs", "ARCHITECTURE.md", ".ci/run", "docs/"] {
        assert!(is_path(path), "{path}");
    }
    for word in ["zoneward.dev/mechanism", "plan", "crates/<name>", "cargo xtask test", "-o json"] {
        assert!(!is_path(word), "{word}");
    }
}
