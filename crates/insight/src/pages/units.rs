//! Numbers and sentences of pages.

pub(crate) use output::count;
pub(crate) use output::units::{amount, listed, maybe, percent, seconds, size};

/// The age of a report in steps, so that a page at rest does not change.
pub(crate) fn age(seconds: u64) -> String {
    match seconds {
        0..30 => "under 30 s ago".to_owned(),
        30..120 => format!("{} s ago", seconds / 10 * 10),
        120..7_200 => format!("{} min ago", seconds / 60),
        _ => format!("{} h ago", seconds / 3_600),
    }
}

/// A reason as a sentence.
pub(crate) fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
    let end = if text.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{first}{}{end}", letters.as_str())
}
