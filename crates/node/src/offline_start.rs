//! What a node serves that starts while the API is away: the rules that its kernel holds, or the snapshot of its objects.
//!
//! ```text
//! change of objects -> mark N (in the file system's cache) -> kernel          snapshot N (on disk) at most 2 s later
//! start without API: mark newer than the snapshot, of this boot, and rules in the kernel -> the kernel stays
//!                    else -> the snapshot, which is as new as the kernel or newer
//! ```

use serde::{Deserialize, Serialize};

/// Written before the kernel gets objects that the snapshot does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ChangeMark {
    /// A reboot empties the kernel, and what restores saved rules restores old ones.
    pub boot_id: String,
    /// The number of the first snapshot that has these objects.
    pub sequence: u64,
}

/// What is served until the API answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OfflineStart {
    /// The kernel's rules, unchanged.
    Kernel,
    /// The objects of the snapshot.
    Snapshot,
}

/// Decides by the number of the snapshot, the last mark, and what the kernel holds.
pub(crate) fn offline_start(
    snapshot: u64,
    mark: Option<&ChangeMark>,
    boot_id: &str,
    kernel_has_rules: bool,
) -> OfflineStart {
    let is_newer = mark.is_some_and(|mark| mark.boot_id == boot_id && mark.sequence > snapshot);
    match is_newer && kernel_has_rules {
        true => OfflineStart::Kernel,
        false => OfflineStart::Snapshot,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_rules_stay_until_a_reboot_or_cleanup() {
        let mark = |boot_id: &str, sequence| ChangeMark { boot_id: boot_id.to_owned(), sequence };
        let decide = |mark: Option<ChangeMark>, has_rules| offline_start(7, mark.as_ref(), "b", has_rules);
        assert_eq!(decide(Some(mark("b", 8)), true), OfflineStart::Kernel);
        assert_eq!(decide(Some(mark("b", 8)), false), OfflineStart::Snapshot, "nothing to keep");
        assert_eq!(decide(Some(mark("b", 7)), true), OfflineStart::Snapshot, "the snapshot has it");
        assert_eq!(decide(Some(mark("a", 8)), true), OfflineStart::Snapshot, "another boot");
        assert_eq!(decide(None, true), OfflineStart::Snapshot, "no change was noted");
    }
}
