//! The help of every command, held in one file that a reviewer can read.
//!
//! `UPDATE_STRINGS=1 cargo test -p zoneward help::` writes it anew.

use std::path::Path;

use clap::{Command, CommandFactory};
use zoneward::cli::Cli;

fn write_help(command: &mut Command, path: &str, text: &mut String) {
    *text += &format!("$ {path} --help\n{}\n", command.render_long_help());
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    for name in names.iter().filter(|name| *name != "help") {
        let sub = command.find_subcommand_mut(name).expect("it was just listed");
        if !sub.is_hide_set() {
            write_help(sub, &format!("{path} {name}"), text);
        }
    }
}

#[test]
fn help_texts_are_those_that_were_reviewed() {
    let mut command = Cli::command().term_width(100);
    command.build();
    let mut text = String::new();
    write_help(&mut command, "zoneward", &mut text);
    let text: String = text.lines().map(|line| line.trim_end().to_owned() + "\n").collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help.txt");
    if std::env::var_os("UPDATE_STRINGS").is_some() {
        return std::fs::write(&path, text).expect("the file can be written");
    }
    let held = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        held == text,
        "tests/help.txt is not what the program says: run UPDATE_STRINGS=1 cargo test -p zoneward help::, \
         and read the difference"
    );
}
