//! Every rule that a comment, a document, an example or a vector cites ("semantics D2", "pitfall 13") exists in
//! docs/spec, with an anchor. docs/spec/README.md says how to cite. Each failure names the place and the way out.

use crate::architecture::tree;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use tree::{assert_none, read, root};

/// Files in which people write sentences.
const TEXT: &[&str] = &[".rs", ".md", ".yaml", ".yml", ".json", ".toml", ".py", ".sh"];

/// Working papers that are not part of the repository, in two halves so that this file does not name them.
const ELSEWHERE: &[(&str, &str)] = &[("shar", "ed/"), ("design", ".md"), ("style", ".md")];

/// How one word cites rules, and the document that has them.
struct Form {
    word: &'static str,
    document: &'static str,
    /// The anchor of what follows the word, or `None` if that is not a rule of this form.
    anchor: fn(&str) -> Option<String>,
}

/// In this order; the first whose word and rule fit counts.
const FORMS: &[Form] = &[
    Form { word: "semantics", document: "mechanisms.md", anchor: mechanism },
    Form { word: "semantics", document: "kubernetes-semantics.md", anchor: letter_and_number },
    Form { word: "semantics", document: "l7-semantics.md", anchor: |rule| numbered("l7-", rule) },
    Form { word: "xds", document: "l7-semantics.md", anchor: |rule| whole_number("xds-", rule) },
    Form {
        word: "pitfall",
        document: "kubernetes-pitfalls.md",
        anchor: |rule| whole_number("pitfall-", rule),
    },
    Form {
        word: "pitfalls",
        document: "kubernetes-pitfalls.md",
        anchor: |rule| whole_number("pitfall-", rule),
    },
    Form { word: "simulator", document: "simulator.md", anchor: |rule| whole_number("simulator-", rule) },
    Form { word: "fact", document: "dataplane-facts.md", anchor: letter_and_number },
    Form { word: "seed", document: "sources.md", anchor: seed },
    Form { word: "seeds", document: "sources.md", anchor: seed },
];

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `M3`.
fn mechanism(rule: &str) -> Option<String> {
    letter_and_number(rule).filter(|anchor| anchor.starts_with('m'))
}

/// `D2`, and `C` for a whole chapter.
fn letter_and_number(rule: &str) -> Option<String> {
    let (letter, number) = rule.split_at_checked(1)?;
    let fits =
        letter.bytes().all(|byte| byte.is_ascii_uppercase()) && (number.is_empty() || is_digits(number));
    fits.then(|| rule.to_ascii_lowercase())
}

/// `1.6`; a whole number too, which is then not found.
fn numbered(prefix: &str, rule: &str) -> Option<String> {
    let fits = rule.split('.').all(is_digits);
    fits.then(|| format!("{prefix}{rule}"))
}

fn whole_number(prefix: &str, rule: &str) -> Option<String> {
    is_digits(rule).then(|| format!("{prefix}{rule}"))
}

/// `003`. Other numbers are seeds of random sources.
fn seed(rule: &str) -> Option<String> {
    let first = rule.split('-').next().unwrap_or(rule);
    (is_digits(first) && first.len() == 3).then(|| format!("seed-{first}"))
}

/// The text files below a folder that have one of these endings, by their paths from the root.
fn text_files(folder: &str, endings: &[&str]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let Ok(entries) = fs::read_dir(root().join(folder)) else { return found };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        if entry.path().is_dir() {
            // Builds and git's own files are not ours.
            if ![".git", "target", "__pycache__"].contains(&name.as_str()) {
                found.append(&mut text_files(&path, endings));
            }
        } else if endings.iter().any(|ending| path.ends_with(ending)) {
            let text = read(&path);
            found.insert(path, text);
        }
    }
    found
}

/// What stands in backticks outside of code blocks.
fn backticked(markdown: &str) -> Vec<&str> {
    let prose = markdown.split("```").step_by(2);
    prose.flat_map(|text| text.split('`').skip(1).step_by(2)).collect()
}

/// A cited rule: where, as it is written, and where it should be.
#[derive(Debug, PartialEq, Eq)]
struct Citation {
    line: usize,
    text: String,
    document: &'static str,
    anchor: String,
}

/// The words of a text with their lines, without the marks that make a line a comment.
fn words(text: &str) -> Vec<(usize, &str)> {
    let lines = text.lines().enumerate();
    let marks = ["///", "//!", "//", "#", "*"];
    let without_mark = |line: &'_ str| -> usize {
        let start = line.len() - line.trim_start().len();
        let mark = marks.iter().find(|mark| line[start..].starts_with(**mark));
        start + mark.map_or(0, |mark| mark.len())
    };
    lines
        .flat_map(|(index, line)| {
            line[without_mark(line)..].split_whitespace().map(move |word| (index + 1, word))
        })
        .collect()
}

/// A word without the punctuation around it.
fn bare(word: &str) -> &str {
    word.trim_matches(|letter: char| !letter.is_alphanumeric())
}

/// Everything that a text cites.
fn citations(text: &str) -> Vec<Citation> {
    let words = words(text);
    let mut found = Vec::new();
    for (at, (line, word)) in words.iter().enumerate() {
        let plain = bare(word);
        if let Some(number) = plain.strip_prefix("KEP-").filter(|number| is_digits(number)) {
            let anchor = format!("kep-{number}");
            found.push(Citation { line: *line, text: plain.to_string(), document: "sources.md", anchor });
            continue;
        }
        // What ends a sentence or a string does not cite what comes after it.
        if !word.ends_with(plain) {
            continue;
        }
        let name = plain.to_ascii_lowercase();
        for form in FORMS.iter().filter(|form| form.word == name) {
            found.extend(rules_after(form, &words[at + 1..], plain));
        }
    }
    found
}

/// The rules behind a word: one, or several joined by commas, `and`, `or` and `to`.
fn rules_after(form: &Form, words: &[(usize, &str)], cited_by: &str) -> Vec<Citation> {
    let mut found: Vec<Citation> = Vec::new();
    let mut words = words.iter();
    while let Some((line, word)) = words.next() {
        if !found.is_empty() && ["and", "or", "to"].contains(word) {
            continue;
        }
        let rule = bare(word);
        let Some(anchor) = (form.anchor)(rule).filter(|_| claimed(form, rule)) else { break };
        found.push(Citation {
            line: *line,
            text: format!("{cited_by} {rule}"),
            document: form.document,
            anchor,
        });
        let joined = word.ends_with(',') || words.clone().next().is_some_and(|(_, next)| is_joint(next));
        if !joined {
            break;
        }
    }
    found
}

fn is_joint(word: &str) -> bool {
    ["and", "or", "to"].contains(&word)
}

/// Whether this form is the first of its word that takes the rule.
fn claimed(form: &Form, rule: &str) -> bool {
    let mut same_word = FORMS.iter().filter(|other| other.word == form.word);
    same_word
        .find(|other| (other.anchor)(rule).is_some())
        .is_some_and(|first| first.document == form.document)
}

/// An anchor of a document: its line, its name, and the text that it stands before.
fn anchors(markdown: &str) -> Vec<(usize, String, String)> {
    let lines: Vec<&str> = markdown.lines().collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate().filter(|(_, line)| !line.contains("`<a ")) {
        for rest in line.split("<a ").skip(1) {
            let (name, after) =
                rest.strip_prefix("id=\"").and_then(|rest| rest.split_once("\"></a>")).unwrap_or(("", rest));
            let next = lines.get(index + 1).copied().unwrap_or_default();
            let marked = if after.is_empty() { next.trim_start_matches('#').trim_start() } else { after };
            found.push((index + 1, name.to_string(), marked.to_string()));
        }
    }
    found
}

/// What a rule's heading or cell begins with: `D2` for `d2`, `13` for `pitfall-13`.
fn label(anchor: &str) -> String {
    if anchor.starts_with("kep-") {
        return anchor.to_ascii_uppercase();
    }
    anchor.rsplit('-').next().unwrap_or(anchor).to_ascii_uppercase()
}

/// Whether a heading is that of a rule: `### D2: ...`.
fn is_rule_heading(line: &str) -> bool {
    let Some((marks, title)) = line.split_once(' ') else { return false };
    let Some((label, _)) = title.split_once(':') else { return false };
    !marks.is_empty()
        && marks.bytes().all(|mark| mark == b'#')
        && (letter_and_number(label).is_some() || numbered("", label).is_some())
}

fn specifications() -> BTreeMap<String, String> {
    text_files("docs/spec", &[".md"])
}

#[test]
fn every_citation_leads_to_a_rule() {
    let documents: BTreeMap<String, BTreeSet<String>> = specifications()
        .into_iter()
        .map(|(path, text)| (path, anchors(&text).into_iter().map(|(_, name, _)| name).collect()))
        .collect();
    let mut violations = Vec::new();
    let mut resolved = 0;
    for (path, text) in text_files("", TEXT) {
        for Citation { line, text, document, anchor } in citations(&text) {
            let document = format!("docs/spec/{document}");
            if documents.get(&document).is_some_and(|anchors| anchors.contains(&anchor)) {
                resolved += 1;
            } else {
                violations.push(format!(
                    "{path}:{line}: `{text}`: {document} has no anchor `{anchor}`; docs/spec/README.md lists the rules"
                ));
            }
        }
    }
    assert_none(violations);
    assert!(resolved > 200, "only {resolved} citations were found: does this test still read the code?");
}

#[test]
fn the_word_semantics_is_followed_by_a_rule() {
    let mut violations = Vec::new();
    for (path, text) in text_files("crates", &[".rs"]) {
        let bad = words(&text).into_iter().filter(|(_, word)| {
            let word = word.trim_start_matches(|letter: char| !letter.is_alphanumeric());
            word.eq_ignore_ascii_case("semantics:")
        });
        violations.extend(bad.map(|(line, word)| format!("{path}:{line}: `{word}` cites no rule: name it")));
    }
    assert_none(violations);
}

#[test]
fn every_rule_has_one_anchor_and_every_anchor_a_rule() {
    let mut violations = Vec::new();
    for (path, text) in specifications() {
        let mut seen = BTreeSet::new();
        for (line, name, marked) in anchors(&text) {
            let label = label(&name);
            let rest = marked.strip_prefix(label.as_str());
            if name.is_empty() || name.contains(char::is_whitespace) || name.contains(char::is_uppercase) {
                violations
                    .push(format!("{path}:{line}: write an anchor as <a id=\"d2\"></a>, in lower case"));
            } else if !rest.is_some_and(|rest| rest.starts_with([':', ' '])) {
                violations.push(format!(
                    "{path}:{line}: the anchor `{name}` stands before `{marked}`, which should begin with `{label}`"
                ));
            }
            if !seen.insert(name.clone()) {
                violations.push(format!("{path}:{line}: the anchor `{name}` is there twice"));
            }
        }
        let lines: Vec<&str> = text.lines().collect();
        for (index, heading) in lines.iter().enumerate().filter(|(_, line)| is_rule_heading(line)) {
            if index == 0 || !lines[index - 1].starts_with("<a id=") {
                violations.push(format!(
                    "{path}:{}: `{heading}` has no anchor: put <a id=\"...\"></a> on the line above",
                    index + 1
                ));
            }
        }
    }
    assert_none(violations);
}

#[test]
fn no_file_names_a_document_that_is_not_here() {
    let mut violations = Vec::new();
    for (path, text) in text_files("", TEXT) {
        for (index, line) in text.lines().enumerate() {
            let here = |what: &str| format!("{path}:{}: {what}", index + 1);
            for (first, second) in ELSEWHERE {
                let name = format!("{first}{second}");
                let named = line.split(&name).collect::<Vec<_>>();
                let continues = |before: &str| {
                    before.ends_with(|letter: char| letter.is_alphanumeric() || "_-".contains(letter))
                };
                if named.windows(2).any(|pair| !continues(pair[0])) {
                    violations
                        .push(here(&format!("`{name}` is not in this repository: cite docs/spec instead")));
                }
            }
            for page in pages(line).filter(|page| !root().join(page).is_file()) {
                violations.push(here(&format!("`{page}` does not exist")));
            }
        }
    }
    assert_none(violations);
}

/// The pages of docs/ that a line names by their paths from the root.
fn pages(line: &str) -> impl Iterator<Item = &str> {
    let is_path = |letter: char| letter.is_ascii_alphanumeric() || "_-./".contains(letter);
    line.split(move |letter| !is_path(letter))
        .map(|word| word.trim_end_matches('.'))
        .filter(|word| word.starts_with("docs/") && word.ends_with(".md"))
}

#[test]
fn documents_name_only_files_that_exist() {
    let places = ["crates/", "docs/", "vectors/", "examples/", "deploy/", ".ci/", ".config/"];
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "_-./".contains(letter);
    let mut violations = Vec::new();
    let pages = text_files("", &[".md"]).into_iter().filter(|(path, _)| path != "CHANGELOG.md");
    for (path, text) in pages {
        let paths = backticked(&text).into_iter().filter(|word| {
            word.chars().all(plain) && places.iter().any(|place| word.starts_with(place) && *word != *place)
        });
        let missing = paths.filter(|named| !root().join(named).exists());
        violations.extend(missing.map(|named| format!("{path} names `{named}`, which does not exist")));
    }
    assert_none(violations);
}

#[test]
fn the_index_names_every_specification() {
    let index = read("docs/spec/README.md");
    let names = specifications().into_keys().map(|path| path.replace("docs/spec/", ""));
    let missing = names.filter(|name| name != "README.md" && !index.contains(&format!("({name}")));
    assert_none(missing.map(|name| format!("docs/spec/README.md has no row for {name}")).collect());
}

#[test]
fn citations_are_read_in_every_form() {
    let cited = |text: &str| {
        let found = citations(text).into_iter().map(|citation| citation.anchor);
        found.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(cited("/// Semantics D2: each way to reach the port."), "d2");
    assert_eq!(cited("// one set of ports (semantics\n//! B2 and B3)."), "b2 b3");
    assert_eq!(cited("(semantics 1.3 to 1.8), and (semantics 1.4, 1.5)."), "l7-1.3 l7-1.8 l7-1.4 l7-1.5");
    assert_eq!(cited("`semantics, xDS 10`: only the first"), "xds-10");
    assert_eq!(cited("Semantics E2, pitfall 44: the network"), "e2 pitfall-44");
    assert_eq!(cited("(seed 003, semantics M3 and M5)"), "seed-003 m3 m5");
    assert_eq!(
        cited("semantics C, seeds 000-003; simulator 4; KEP-4444, a table"),
        "c seed-000 simulator-4 kep-4444"
    );
    assert_eq!(cited("semantics 0 is no rule"), "l7-0");
    assert_eq!(cited("by chance with seed 7; the semantics of it; its semantics. A policy"), "");
}

#[test]
fn anchors_are_read_with_what_they_stand_before() {
    let text = "<a id=\"d2\"></a>\n### D2: Frontends\n\n| <a id=\"pitfall-9\"></a>9 | flush |\n";
    let expected = [(1, "d2", "D2: Frontends"), (4, "pitfall-9", "9 | flush |")];
    let found = anchors(text);
    let found: Vec<_> = found.iter().map(|(line, name, at)| (*line, name.as_str(), at.as_str())).collect();
    assert_eq!(found, expected);
    assert_eq!(anchors("<a name='d2'></a>")[0].1, "", "another form has no name");
    assert!(is_rule_heading("### D2: Frontends") && is_rule_heading("## 1: Input"));
    assert!(!is_rule_heading("## How to cite") && !is_rule_heading("Note: this"));
}
