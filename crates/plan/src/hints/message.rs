//! Numbers and lists in messages.

use std::fmt::Write;

/// A list shows this many entries and counts the rest.
const SHOWN: usize = 6;

/// `36 %`.
pub(super) fn percent(share: f64) -> String {
    // Whole numbers format much faster than floats, and there is one Notice per Service.
    format!("{} %", (share * 100.0).round() as i64)
}

/// `zone-a 4, zone-b 3 and 12 more`.
pub(super) fn list(entries: impl IntoIterator<Item = String>) -> String {
    let mut text = String::new();
    let mut more = 0;
    for (i, entry) in entries.into_iter().enumerate() {
        if i >= SHOWN {
            more += 1;
            continue;
        }
        let comma = if i > 0 { ", " } else { "" };
        let _ = write!(text, "{comma}{entry}");
    }
    if more > 0 {
        let _ = write!(text, " and {more} more");
    }
    text
}

/// `1 endpoint`, `2 endpoints`.
pub(super) fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}
