//! Output of xtask: headings, durations, tables and errors.
//! A closed pipe (`cargo xtask help | head`) is no reason to panic, so a failed write is let go.

use std::io::{IsTerminal, Write};
use std::time::Duration;

/// One line (or more) on stdout.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// One line (or more) on stderr.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// The line that separates one step from the next.
pub(crate) fn heading(text: &str) {
    if colour() { say(&format!("\n\x1b[1m== {text}\x1b[0m")) } else { say(&format!("\n== {text}")) }
}

/// Colour only on a terminal, and not against NO_COLOR.
pub(crate) fn colour() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) && std::io::stdout().is_terminal()
}

/// Seconds as people read them: `0.4 s`, `75.2 s`.
pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// A plain table: the first column to the left, numbers to the right.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let head: Vec<String> = head.iter().map(|cell| cell.to_string()).collect();
    let mut lines = vec![table_line(&widths, &head)];
    lines.push(widths.iter().map(|width| "-".repeat(*width)).collect::<Vec<_>>().join("-+-"));
    lines.extend(rows.iter().map(|row| table_line(&widths, row)));
    lines.join("\n")
}

fn table_line(widths: &[usize], cells: &[String]) -> String {
    let padded = widths.iter().zip(cells).enumerate().map(|(column, (width, cell))| match column {
        0 => format!("{cell:<width$}"),
        _ => format!("{cell:>width$}"),
    });
    padded.collect::<Vec<_>>().join(" | ")
}

/// `1234567` as `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_three() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1234567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn table_aligns_names_left_and_numbers_right() {
        let rows = vec![
            vec!["slices".to_string(), "1,204".to_string()],
            vec!["hints and more".to_string(), "7".to_string()],
        ];
        let expected =
            "phase          | count\n---------------+------\nslices         | 1,204\nhints and more |     7";
        assert_eq!(table(&["phase", "count"], &rows), expected);
    }

    #[test]
    fn seconds_have_one_digit_after_the_point() {
        assert_eq!(seconds(Duration::from_millis(75_230)), "75.2 s");
    }
}
