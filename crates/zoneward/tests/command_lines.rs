//! Every `zoneward COMMAND` that a help text, a message, a condition, an event or a document names can be typed.
//!
//! Whole command lines (examples of the help, fenced blocks) are parsed by the program's own definition; of a mention in a
//! sentence, the commands and flags that it names have to exist.

use std::fs;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{Command, CommandFactory};
use zoneward::cli::Cli;

/// Words that follow the program's name in a sentence that names no command.
const PROSE: &[&str] = &["and", "binary", "builds", "demo's", "in", "is", "takes", "with"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository is there")
}

/// Files with one of the endings below a folder, by their path from the root.
fn files(folder: &str, endings: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(place) = folders.pop() {
        for entry in fs::read_dir(&place).unwrap_or_else(|error| panic!("{folder}: {error}")).flatten() {
            let path = entry.path();
            let is_wanted = path.extension().is_some_and(|ending| endings.iter().any(|e| ending == *e));
            if path.is_dir() {
                folders.push(path);
            } else if is_wanted && let Ok(text) = fs::read_to_string(&path) {
                let name = path.strip_prefix(root()).expect("it is below the root");
                found.push((name.display().to_string(), text));
            }
        }
    }
    found
}

fn sources() -> Vec<(String, String)> {
    let crates = fs::read_dir(root().join("crates")).expect("crates/ is there");
    let folders =
        crates.flatten().map(|folder| format!("crates/{}/src", folder.file_name().to_string_lossy()));
    let all = folders.flat_map(|folder| files(&folder, &["rs"]));
    // What tests feed to the program may be wrong on purpose.
    all.filter(|(path, _)| !path.ends_with("/tests.rs") && !path.contains("/tests/")).collect()
}

fn documents() -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = ["docs", "deploy", "examples", "vectors"]
        .iter()
        .flat_map(|folder| files(folder, &["md", "yaml", "yml"]))
        .collect();
    for name in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"] {
        all.push((name.to_string(), fs::read_to_string(root().join(name)).expect("it is there")));
    }
    all
}

/// The words of a command line as a shell would see them, up to what is the shell's own.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for letter in line.chars() {
        match (quote, letter) {
            (Some(open), letter) if open == letter => quote = None,
            (Some(_), letter) => words.last_mut().expect("never empty").push(letter),
            (None, '\'' | '"') => quote = Some(letter),
            (None, ' ' | '\t') => words.push(String::new()),
            (None, letter) => words.last_mut().expect("never empty").push(letter),
        }
    }
    let of_the_shell = |word: &String| {
        matches!(word.as_str(), "&" | "|" | "||" | "&&" | ";") || word.starts_with(['#', '>', '<'])
    };
    words.retain(|word| !word.is_empty());
    let mut words: Vec<String> = words.into_iter().take_while(|word| !of_the_shell(word)).collect();
    if let Some(last) = words.last_mut() {
        // A sentence goes on behind it.
        *last = last.trim_end_matches([';', ',', ':']).to_string();
    }
    words
}

/// A word that stands for what the reader has to fill in.
fn is_placeholder(word: &str) -> bool {
    word.contains("...") || word.contains('$') || word.contains('{') || {
        let name = word.rsplit(['=', '/', '@']).next().unwrap_or(word);
        name.len() > 1 && name.chars().all(|letter| letter.is_ascii_uppercase() || "-_|.".contains(letter))
    }
}

/// Walks the commands that a line names; the rest of the line follows the last of them.
fn resolve<'w>(
    mut command: &'static Command,
    mut words: &'w [String],
) -> Result<(&'static Command, &'w [String]), String> {
    while let Some((first, rest)) = words.split_first() {
        let bare = first.trim_end_matches(['.', ',', ':', ';', ')', '!', '?']);
        match command.find_subcommand(bare) {
            Some(found) => (command, words) = (found, rest),
            // A list of commands, as `backup|restore`.
            None if bare.contains('|')
                && bare.split('|').all(|name| command.find_subcommand(name).is_some()) =>
            {
                return Ok((command, &[]));
            }
            None if command.has_subcommands() && is_command_like(bare) => {
                return Err(format!("`{}` has no command `{bare}`", command.get_name()));
            }
            None => break,
        }
        // A sentence goes on behind a full stop.
        if bare != first {
            return Ok((command, &[]));
        }
    }
    Ok((command, words))
}

fn is_command_like(word: &str) -> bool {
    word.len() > 1
        && word.chars().all(|letter| letter.is_ascii_lowercase() || letter == '-')
        && !word.starts_with('-')
}

fn has_flag(command: &Command, word: &str) -> bool {
    let name = word.split('=').next().unwrap_or(word);
    let name = name.trim_end_matches(['.', ',', ':', ';', ')', '!', '?']);
    let universal = matches!(name, "--help" | "-h" | "--version" | "-V" | "--" | "-");
    universal
        || command.get_arguments().any(|argument| match name.strip_prefix("--") {
            Some(long) => {
                argument.get_long_and_visible_aliases().unwrap_or_default().contains(&long)
                    || argument.get_all_aliases().unwrap_or_default().contains(&long)
            }
            None => {
                let short = name.trim_start_matches('-').chars().next();
                short.is_some_and(|short| argument.get_short() == Some(short))
            }
        })
}

/// A mention in a sentence: commands and flags that it names exist.
fn check_mention(definition: &'static Command, words: &[String]) -> Result<(), String> {
    let (command, rest) = resolve(definition, words)?;
    for word in rest.iter().take_while(|word| *word != "--") {
        if word.starts_with('-') && word.len() > 1 && !has_flag(command, word) {
            return Err(format!("`{}` has no flag `{word}`", command.get_name()));
        }
    }
    Ok(())
}

/// A whole command line: the program would take it, placeholders aside.
fn check_line(definition: &'static Command, words: &[String]) -> Result<(), String> {
    check_mention(definition, words)?;
    let typed = std::iter::once("zoneward".to_string()).chain(words.iter().cloned());
    match definition.clone().try_get_matches_from(typed) {
        Ok(_) => Ok(()),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => Ok(()),
        Err(error)
            if error.kind() == ErrorKind::ValueValidation
                && words.iter().any(|word| is_placeholder(word)) =>
        {
            Ok(())
        }
        // A synopsis leaves out what goes without saying.
        Err(error)
            if words.iter().any(|word| word.contains("..."))
                && error.kind() != ErrorKind::UnknownArgument =>
        {
            Ok(())
        }
        Err(error) => Err(error.to_string().lines().next().unwrap_or_default().to_string()),
    }
}

/// What is in backticks: the words of each mention, with what stands before the program's name left out.
fn in_backticks(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2).filter_map(|inside| {
        let inside = inside.strip_prefix("sudo ").unwrap_or(inside);
        inside.strip_prefix("zoneward ")
    })
}

/// Every mention outside of backticks has at least a first word that exists.
fn check_prose(definition: &'static Command, text: &str, fault: &mut impl FnMut(String)) {
    for (at, _) in text.match_indices("zoneward ") {
        let before = text[..at].chars().next_back();
        if before.is_some_and(|letter| letter.is_alphanumeric() || "/-_.\"".contains(letter)) {
            continue;
        }
        let after = &text[at + "zoneward ".len()..];
        let word: String =
            after.chars().take_while(|letter| letter.is_ascii_lowercase() || *letter == '-').collect();
        let word = word.trim_end_matches('-');
        if is_command_like(word) && definition.find_subcommand(word).is_none() && !PROSE.contains(&word) {
            fault(format!("`zoneward {word}`: there is no such command"));
        }
    }
}

/// The text of every page of the help.
fn help_pages(command: &Command, name: &str, pages: &mut Vec<(String, String)>) {
    let mut text = String::new();
    let styled = [
        command.get_about(),
        command.get_long_about(),
        command.get_after_help(),
        command.get_after_long_help(),
    ];
    styled.into_iter().flatten().for_each(|part| text += &format!("{part}\n"));
    for argument in command.get_arguments() {
        let parts = [argument.get_help(), argument.get_long_help()];
        parts.into_iter().flatten().for_each(|part| text += &format!("{part}\n"));
    }
    pages.push((format!("{name} --help"), text));
    for sub in command.get_subcommands() {
        help_pages(sub, &format!("{name} {}", sub.get_name()), pages);
    }
}

/// Lines of a page that are commands, with lines that go on joined.
fn command_lines(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let typed = joined.lines().map(str::trim).map(|line| line.strip_prefix("$ ").unwrap_or(line));
    let typed = typed.map(|line| line.strip_prefix("sudo ").unwrap_or(line));
    typed.filter_map(|line| line.strip_prefix("zoneward ")).map(str::to_string).collect()
}

fn definition() -> &'static Command {
    let mut definition = Cli::command();
    definition.build();
    Box::leak(Box::new(definition))
}

fn assert_none(faults: Vec<String>) {
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn commands_that_messages_and_comments_name_exist() {
    let definition = definition();
    let mut faults = Vec::new();
    for (path, text) in sources() {
        // A literal that goes on in the next line of the source is one text.
        let text = text.replace("\\n", "\n").replace("\\\"", "\"");
        for mention in in_backticks(&text) {
            if let Err(why) = check_mention(definition, &words(mention)) {
                faults.push(format!("{path}: `zoneward {mention}`: {why}"));
            }
        }
        check_prose(definition, &text, &mut |why| faults.push(format!("{path}: {why}")));
    }
    assert_none(faults);
}

#[test]
fn examples_of_the_help_can_be_typed() {
    let definition = definition();
    let (mut pages, mut faults, mut count) = (Vec::new(), Vec::new(), 0);
    help_pages(definition, "zoneward", &mut pages);
    for (page, text) in pages {
        for line in command_lines(&text) {
            count += 1;
            if let Err(why) = check_line(definition, &words(&line)) {
                faults.push(format!("{page}: zoneward {line}: {why}"));
            }
        }
        check_prose(definition, &text, &mut |why| faults.push(format!("{page}: {why}")));
    }
    assert!(count > 20, "only {count} examples were found");
    assert_none(faults);
}

#[test]
fn commands_that_documents_name_can_be_typed() {
    let definition = definition();
    let (mut faults, mut count) = (Vec::new(), 0);
    for (path, text) in documents() {
        for (index, part) in text.split("```").enumerate() {
            if index % 2 == 1 {
                for line in command_lines(part) {
                    count += 1;
                    if let Err(why) = check_line(definition, &words(&line)) {
                        faults.push(format!("{path}: zoneward {line}: {why}"));
                    }
                }
                continue;
            }
            for mention in in_backticks(part) {
                if let Err(why) = check_mention(definition, &words(mention)) {
                    faults.push(format!("{path}: `zoneward {mention}`: {why}"));
                }
            }
            check_prose(definition, part, &mut |why| faults.push(format!("{path}: {why}")));
        }
    }
    assert!(count > 40, "only {count} command lines were found");
    assert_none(faults);
}

#[test]
fn what_does_not_exist_is_found() {
    let definition = definition();
    let bad = |line: &str| check_mention(definition, &words(line)).unwrap_err();
    assert!(bad("frobnicate").contains("no command `frobnicate`"));
    assert!(bad("plan nonsense").contains("no command `nonsense`"));
    assert!(bad("plan slices --no-such-flag").contains("no flag `--no-such-flag`"));
    assert!(check_mention(definition, &words("plan routes --as envoy ... --zone ZONE -o yaml")).is_ok());
    assert!(check_line(definition, &words("trace packet -f examples/shop")).is_err(), "a node is needed");
    assert!(check_line(definition, &words("up --no-node --data-dir ./data & # in the background")).is_ok());
    let mut faults = Vec::new();
    check_prose(definition, "Run zoneward frobnicate to see it.", &mut |why| faults.push(why));
    assert_eq!(faults.len(), 1);
}
