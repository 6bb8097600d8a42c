//! Backups on a schedule: their names, which ones go, and when the next is due.
//!
//! Names carry the time in UTC, so that the folder is the only memory: a restart neither adds a backup nor forgets one.

use std::time::Duration;

use model::Timestamp;

const PREFIX: &str = "zoneward-";
const SUFFIX: &str = ".backup";
/// Time until a backup that failed is repeated, unless the interval is shorter.
const RETRY: Duration = Duration::from_secs(300);

/// The name of a backup at a time, as `zoneward-20261117T210000Z.backup`.
pub(super) fn name(time: Timestamp) -> String {
    let text = Timestamp::from_seconds(time.unix_seconds()).to_string();
    let compact: String = text.chars().filter(|c| !matches!(c, '-' | ':')).collect();
    format!("{PREFIX}{compact}{SUFFIX}")
}

/// The time of a backup of that name; `None` for files of other names, which are left alone.
pub(super) fn time(name: &str) -> Option<Timestamp> {
    let text = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    if text.len() != "20261117T210000Z".len() || !text.is_ascii() {
        return None;
    }
    let part = |from: usize, to: usize| text.get(from..to).unwrap_or_default();
    let (date, time) = ([part(0, 4), part(4, 6), part(6, 8)], [part(9, 11), part(11, 13), part(13, 15)]);
    let time = Timestamp::parse(&format!("{}T{}Z", date.join("-"), time.join(":")))?;
    (self::name(time) == name).then_some(time)
}

/// Whether an interrupted backup left this file.
pub(super) fn is_partial(name: &str) -> bool {
    name.strip_suffix(".partial").is_some_and(|name| time(name).is_some())
}

/// The newest backup. One in the future means that the clock was set back: it does not count.
pub(super) fn newest<'a>(names: impl IntoIterator<Item = &'a str>, now: Timestamp) -> Option<Timestamp> {
    names.into_iter().filter_map(time).filter(|time| *time <= now).max()
}

/// The backups beyond the newest `keep`, oldest first. Those in the future count as the oldest.
pub(super) fn expired<'a>(
    names: impl IntoIterator<Item = &'a str>,
    keep: usize,
    now: Timestamp,
) -> Vec<&'a str> {
    let timed = names.into_iter().filter_map(|name| Some((time(name)?, name)));
    let mut backups: Vec<(bool, Timestamp, &str)> =
        timed.map(|(time, name)| (time <= now, time, name)).collect();
    backups.sort_unstable();
    backups.truncate(backups.len().saturating_sub(keep.max(1)));
    backups.into_iter().map(|(.., name)| name).collect()
}

/// Time until the next backup: the interval after the newest one, and a while after one that failed.
pub(super) fn until_next(
    newest: Option<Timestamp>,
    failed: Option<Timestamp>,
    every: Duration,
    now: Timestamp,
) -> Duration {
    let left = |since: Timestamp, wait: Duration| {
        let passed = now.unix_seconds().saturating_sub(since.unix_seconds());
        u64::try_from(passed)
            .map_or(Duration::ZERO, |passed| wait.saturating_sub(Duration::from_secs(passed)))
    };
    let due = newest.map_or(Duration::ZERO, |newest| left(newest, every));
    due.max(failed.map_or(Duration::ZERO, |failed| left(failed, RETRY.min(every))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(text).expect("a time")
    }

    #[test]
    fn names_carry_the_time_and_other_names_are_no_backups() {
        let time_of_it = at("2026-11-17T21:00:05Z");
        assert_eq!(name(time_of_it), "zoneward-20261117T210005Z.backup");
        assert_eq!(time(&name(time_of_it)), Some(time_of_it));
        assert_eq!(time(&name(at("2026-11-17T21:00:05.7Z"))), Some(time_of_it));
        for other in [
            "monday.backup",
            "zoneward-.backup",
            "zoneward-20261117T210005Z.backup.partial",
            "zoneward-20261317T210005Z.backup",
            "zoneward-20261117 210005Z.backup",
            "zoneward-2026111\u{e4}T21000Z.backup",
            "zoneward-20261117T210005Z.backup.gz",
        ] {
            assert_eq!(time(other), None, "{other}");
        }
        assert!(
            is_partial("zoneward-20261117T210005Z.backup.partial") && !is_partial("monday.backup.partial")
        );
    }

    #[test]
    fn the_oldest_go_and_one_always_stays() {
        let names = [
            "zoneward-20261117T120000Z.backup",
            "zoneward-20261115T120000Z.backup",
            "monday.backup",
            "zoneward-20261116T120000Z.backup",
        ];
        let now = at("2026-11-17T12:00:00Z");
        assert_eq!(expired(names, 2, now), ["zoneward-20261115T120000Z.backup"]);
        assert_eq!(expired(names, 0, now).len(), 2);
        assert!(expired(names, 7, now).is_empty());
        assert_eq!(newest(names, now), Some(now));
        // The clock was set back: the one that was just written stays.
        let now = at("2026-11-16T13:00:00Z");
        assert_eq!(newest(names, now), Some(at("2026-11-16T12:00:00Z")));
        let gone = ["zoneward-20261117T120000Z.backup", "zoneward-20261115T120000Z.backup"];
        assert_eq!(expired(names, 1, now), gone);
    }

    #[test]
    fn the_next_is_due_an_interval_after_the_newest_whatever_was_restarted_in_between() {
        let (hours, now) = (|n: u64| Duration::from_secs(n * 3_600), at("2026-11-17T12:00:00Z"));
        assert_eq!(until_next(None, None, hours(6), now), Duration::ZERO);
        assert_eq!(until_next(Some(at("2026-11-17T08:00:00Z")), None, hours(6), now), hours(2));
        assert_eq!(until_next(Some(at("2026-11-16T08:00:00Z")), None, hours(6), now), Duration::ZERO);
        let failed = Some(at("2026-11-17T11:59:00Z"));
        assert_eq!(until_next(None, failed, hours(6), now), Duration::from_secs(240));
        assert_eq!(until_next(None, failed, Duration::from_secs(10), now), Duration::ZERO);
    }
}
