//! Answers: tables for people, JSON and YAML for programs.

use std::io::{self, IsTerminal, Write};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use model::Notice;
use serde_json::{Value, json};

/// How an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// For programs; the fields are stable
    Json,
    /// The same as JSON, as YAML
    Yaml,
}

/// `-o`.
#[derive(Debug, Args)]
pub struct Output {
    /// How to write the answer
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "table")]
    pub format: Format,
}

/// Writes a value as JSON or YAML.
pub fn print_value(value: &Value, format: Format) -> Result<()> {
    print_text(&value_text(value, format)?)
}

/// A value as text.
pub fn value_text(value: &Value, format: Format) -> Result<String> {
    Ok(match format {
        Format::Yaml => serde_saphyr::to_string(value).context("writing YAML")?,
        Format::Json | Format::Table => serde_json::to_string_pretty(value).context("writing JSON")? + "\n",
    })
}

/// Writes text to standard output.
pub fn print_text(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("writing the answer")
}

/// Whether an error only means that the reader of standard output is gone.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    kind == Some(io::ErrorKind::BrokenPipe)
}

/// A table in the manner of kubectl: no lines, upper-case heads, wrapped to the terminal if there is one.
pub fn table(heads: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(heads.to_vec());
    let arrangement =
        if io::stdout().is_terminal() { ContentArrangement::Dynamic } else { ContentArrangement::Disabled };
    table.set_content_arrangement(arrangement);
    table
}

/// What reports keep to where they are not asked to be wide.
const COLUMNS: u16 = 80;

/// A table that wraps its cells to stay within 80 columns, unless it may be wide.
pub fn table_within(heads: &[impl AsRef<str>], wide: bool) -> Table {
    let heads: Vec<&str> = heads.iter().map(AsRef::as_ref).collect();
    let mut table = table(&heads);
    if !wide {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(COLUMNS);
    }
    table
}

/// Puts the figures of these columns below each other.
pub fn align_right(table: &mut Table, columns: &[usize]) {
    for column in columns {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// A paragraph within 80 columns; lines after the first begin with the indent.
pub fn wrapped(text: &str, indent: &str) -> String {
    let (mut lines, mut line) = (String::new(), String::new());
    for word in text.split(' ') {
        let too_long = line.chars().count() + 1 + word.chars().count() > usize::from(COLUMNS);
        if too_long && !line.trim().is_empty() {
            lines += &(line + "\n");
            line = format!("{indent}{word}");
        } else {
            line += if line.trim().is_empty() { "" } else { " " };
            line += word;
        }
    }
    lines + &line + "\n"
}

/// The lines of a table without blanks at their ends.
pub fn render(table: &Table) -> String {
    let lines = table.lines().map(|line| line.trim().to_owned() + "\n");
    lines.collect()
}

/// The notices as JSON.
pub fn notices_value(notices: &[Notice]) -> Value {
    let one = |n: &Notice| json!({"object": n.object.to_string(), "reason": n.reason, "message": n.message});
    notices.iter().map(one).collect()
}

/// The notices for people, below an answer.
pub fn notices_text(notices: &[Notice]) -> String {
    if notices.is_empty() {
        return String::new();
    }
    let lines = notices.iter().map(|n| format!("  {} ({}): {}\n", n.object, n.reason, n.message));
    format!("\nNotices:\n{}", lines.collect::<String>())
}

/// `1 slice`, `2 slices`.
pub fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}
