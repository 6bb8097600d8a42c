//! "Did you mean" suggestions for misspelled names.
//!
//! The distance is optimal string alignment (insert, delete, substitute, transpose), case-insensitive. At most a third of
//! a name may differ.

/// Longer names are truncated.
const MAX_CHARS: usize = 253;

/// The candidate with the smallest distance, within the limit; of equals the first.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).clamp(1, 3);
    let near = candidates.into_iter().filter_map(|candidate| {
        let distance = distance(word, candidate, limit)?;
        Some((distance, candidate))
    });
    near.min_by_key(|(distance, _)| *distance).map(|(_, candidate)| candidate)
}

/// `; did you mean "web"?`, or an empty string.
pub fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, candidates).map_or_else(String::new, |near| format!("; did you mean {near:?}?"))
}

/// `None` above the limit.
fn distance(a: &str, b: &str, limit: usize) -> Option<usize> {
    let letters =
        |text: &str| text.chars().flat_map(char::to_lowercase).take(MAX_CHARS).collect::<Vec<char>>();
    let (a, b) = (letters(a), letters(b));
    if a.len().abs_diff(b.len()) > limit {
        return None;
    }
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let substituted = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = substituted.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last.last().copied().filter(|distance| *distance <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_suggested() {
        let names = ["PreferSameZone", "PreferSameNode", "Spill", "Auto"];
        for (word, near) in [
            ("PreferSameZnoe", Some("PreferSameZone")),
            ("prefersamezone", Some("PreferSameZone")),
            ("PreferSameNod", Some("PreferSameNode")),
            ("Spil", Some("Spill")),
            ("Sipll", Some("Spill")),
            ("Nonsense", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, names), near, "{word}");
        }
        assert_eq!(did_you_mean("catr", ["web", "cart"]), "; did you mean \"cart\"?");
        assert_eq!(did_you_mean("checkout", ["web", "cart"]), "");
    }

    #[test]
    fn of_equal_distances_the_first_is_suggested() {
        assert_eq!(nearest("node-a3", ["node-a1", "node-a2"]), Some("node-a1"));
    }
}
