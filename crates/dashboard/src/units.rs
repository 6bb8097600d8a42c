//! Numbers as text. A number and its unit are not broken over two lines.

/// `96 %`, with a decimal where it matters.
pub(crate) fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent > 99.0 && percent < 100.0 || percent > 0.0 && percent < 1.0 {
        return format!("{percent:.1}\u{a0}%");
    }
    format!("{percent:.0}\u{a0}%")
}

pub(crate) fn maybe(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

/// Money without its currency.
pub(crate) fn amount(money: f64) -> String {
    // Not `-0.00`.
    let money = if money.abs() < 0.005 { 0.0 } else { money };
    if money.abs() < 10.0 { format!("{money:.2}") } else { format!("{money:.0}") }
}

pub(crate) fn size(bytes: f64) -> String {
    let units = ["B", "KB", "MB", "GB", "TB", "PB"];
    let (mut value, mut unit) = (bytes, 0);
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    if value < 10.0 && unit > 0 {
        format!("{value:.1}\u{a0}{}", units[unit])
    } else {
        format!("{value:.0}\u{a0}{}", units[unit])
    }
}

pub(crate) fn seconds(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.0}\u{a0}ms", seconds * 1e3) } else { format!("{seconds:.1}\u{a0}s") }
}

/// The age of a report in steps, so that a page at rest does not change.
pub(crate) fn age(seconds: u64) -> String {
    match seconds {
        0..30 => "under 30 s ago".to_owned(),
        30..120 => format!("{} s ago", seconds / 10 * 10),
        120..7_200 => format!("{} min ago", seconds / 60),
        _ => format!("{} h ago", seconds / 3_600),
    }
}

pub(crate) fn count(number: usize, noun: &str) -> String {
    output::count(number, noun)
}

/// A reason as a sentence.
pub(crate) fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
    let end = if text.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{first}{}{end}", letters.as_str())
}

/// Some names, and how many more.
pub(crate) fn listed(names: &[String], most: usize) -> String {
    let shown: Vec<&str> = names.iter().take(most).map(String::as_str).collect();
    let more = names.len() - shown.len();
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", shown.join(", "))
}
