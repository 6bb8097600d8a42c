//! The date of everything in an archive: that of the commit, so that two builds give the same bytes.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

/// Seconds since 1970, as SOURCE_DATE_EPOCH has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceDate(u64);

impl SourceDate {
    pub const fn new(epoch: u64) -> Self {
        Self(epoch)
    }

    /// SOURCE_DATE_EPOCH if it is set, else the commit date of HEAD.
    pub fn of(root: &Path, variable: Option<&str>) -> anyhow::Result<Self> {
        let text = match variable.filter(|text| !text.is_empty()) {
            Some(text) => text.to_owned(),
            None => commit_date(root)?,
        };
        let epoch = text.trim().parse();
        epoch
            .map(Self)
            .with_context(|| format!("SOURCE_DATE_EPOCH: expected seconds since 1970, got `{}`", text.trim()))
    }

    pub fn epoch(self) -> u64 {
        self.0
    }

    /// As RFC 3339 writes it, in UTC: `2026-11-17T00:06:52Z`.
    pub fn rfc3339(self) -> String {
        let seconds = i64::try_from(self.0).unwrap_or(i64::MAX);
        jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX).to_string()
    }
}

fn commit_date(root: &Path) -> anyhow::Result<String> {
    let output = Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root).output();
    let output = output.context("failed to run git")?;
    if !output.status.success() {
        bail!(
            "the commit date is unknown: run in a git checkout, or set SOURCE_DATE_EPOCH ({})",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_is_written_in_utc() {
        assert_eq!(SourceDate::new(0).rfc3339(), "1970-01-01T00:00:00Z");
        assert_eq!(SourceDate::new(1_794_874_012).rfc3339(), "2026-11-17T00:06:52Z");
    }

    #[test]
    fn variable_wins_over_the_commit_and_must_be_a_number() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert_eq!(SourceDate::of(root, Some("12")).ok(), Some(SourceDate::new(12)));
        let error = SourceDate::of(root, Some("today")).expect_err("not a number");
        assert!(error.to_string().contains("`today`"), "{error}");
        assert!(SourceDate::of(root, None).is_ok_and(|date| date.epoch() > 1_700_000_000));
    }
}
