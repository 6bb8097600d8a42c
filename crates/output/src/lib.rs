//! Output of commands: tables, JSON, YAML and HTML.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod html;
pub mod units;

use std::io::{self, IsTerminal, Write};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use model::Notice;
use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Human-readable
    Table,
    /// JSON with stable fields
    Json,
    /// YAML with the same fields as JSON
    Yaml,
}

#[derive(Debug, Args)]
pub struct OutputArgs {
    /// Output format
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "table")]
    pub format: Format,
}

pub fn print_value(value: &Value, format: Format) -> Result<()> {
    print_text(&value_text(value, format)?)
}

pub fn value_text(value: &Value, format: Format) -> Result<String> {
    Ok(match format {
        Format::Yaml => serde_saphyr::to_string(value).context("writing YAML")?,
        Format::Json | Format::Table => serde_json::to_string_pretty(value).context("writing JSON")? + "\n",
    })
}

pub fn print_text(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("writing the output")
}

/// Whether the reader of standard output has closed it.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    kind == Some(io::ErrorKind::BrokenPipe)
}

/// A table in the style of kubectl, wrapped to the width of a terminal.
pub fn table(heads: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(heads.to_vec());
    let arrangement =
        if io::stdout().is_terminal() { ContentArrangement::Dynamic } else { ContentArrangement::Disabled };
    table.set_content_arrangement(arrangement);
    table
}

/// Width of reports without `-o wide`.
const COLUMNS: u16 = 80;

/// A table within 80 columns, unless `wide`.
pub fn table_within(heads: &[impl AsRef<str>], wide: bool) -> Table {
    let heads: Vec<&str> = heads.iter().map(AsRef::as_ref).collect();
    let mut table = table(&heads);
    if !wide {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(COLUMNS);
    }
    table
}

pub fn align_right(table: &mut Table, columns: &[usize]) {
    for column in columns {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// Wraps a paragraph to 80 columns; lines after the first are indented.
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

/// The table without the padding of its first column and without trailing blanks.
pub fn render(table: &Table) -> String {
    let lines =
        table.lines().map(|line| line.strip_prefix(' ').unwrap_or(&line).trim_end().to_owned() + "\n");
    lines.collect()
}

pub fn notices_value(notices: &[Notice]) -> Value {
    let one = |n: &Notice| json!({"object": n.object.to_string(), "reason": n.reason, "message": n.message});
    notices.iter().map(one).collect()
}

/// The notices as text below other output.
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

/// Thousands separators, as in `39,273,145`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
