//! Numbers as text, the same in tables and on pages. A number and its unit have a no-break space between them, so that a
//! line is not broken there; [`plain`] makes it a space again.

/// No-break space.
const GAP: char = '\u{a0}';

/// Text for terminals and scripts, with ordinary spaces.
pub fn plain(text: &str) -> String {
    text.replace(GAP, " ")
}

/// `96 %`, with a decimal where it matters.
pub fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent > 99.0 && percent < 100.0 || percent > 0.0 && percent < 1.0 {
        return format!("{percent:.1}{GAP}%");
    }
    format!("{percent:.0}{GAP}%")
}

/// A figure, or `-` if there is none.
pub fn maybe(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

/// Money without its currency.
pub fn amount(money: f64) -> String {
    // Not `-0.00`.
    let money = if money.abs() < 0.005 { 0.0 } else { money };
    if money.abs() < 10.0 { format!("{money:.2}") } else { format!("{money:.0}") }
}

/// `1.2 GB`, in powers of 1000.
pub fn size(bytes: f64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB", "PB"];
    let (mut value, mut unit) = (bytes, 0);
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    if value < 10.0 && unit > 0 {
        format!("{value:.1}{GAP}{}", units[unit])
    } else {
        format!("{value:.0}{GAP}{}", units[unit])
    }
}

pub fn seconds(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.0}{GAP}ms", seconds * 1e3) } else { format!("{seconds:.1}{GAP}s") }
}

/// Some names, and how many more.
pub fn listed(names: &[String], most: usize) -> String {
    let shown: Vec<&str> = names.iter().take(most).map(String::as_str).collect();
    let more = names.len() - shown.len();
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_as_many_digits_as_matter() {
        assert_eq!(
            [0.0, 0.004, 0.333, 0.996, 1.0].map(percent).map(|t| plain(&t)).join(", "),
            "0 %, 0.4 %, 33 %, 99.6 %, 100 %"
        );
        assert_eq!([-0.001, 0.5, 12.4, -312.0].map(amount).join(", "), "0.00, 0.50, 12, -312");
        let sizes = [0.0, 999.0, 1_234.0, 45e9, 1.2e12].map(size).map(|t| plain(&t));
        assert_eq!(sizes.join(", "), "0 B, 999 B, 1.2 kB, 45 GB, 1.2 TB");
        assert_eq!([0.08, 1.25].map(seconds).map(|t| plain(&t)).join(", "), "80 ms, 1.2 s");
    }

    #[test]
    fn value_and_unit_stay_on_one_line() {
        assert_eq!(percent(0.96), "96\u{a0}%");
    }

    #[test]
    fn long_lists_say_how_many_more() {
        let names = ["a", "b", "c"].map(str::to_owned);
        assert_eq!(listed(&names, 2), "a, b and 1 more");
        assert_eq!(listed(&names, 3), "a, b, c");
    }
}
