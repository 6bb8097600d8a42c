//! Bugs that the simulated fleet has to find (crate fleet). Builds with debug assertions can have them; in all others
//! [`is_planted`] is always false.

/// A bug that a test plants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PlantedBug {
    /// The slice controller does not wait until its cache shows its own writes.
    SkippedExpectation = 1,
    /// A list after 410 does not replace what was known.
    Lost410,
    /// The journal is not synced before a write is acknowledged.
    UnsyncedJournal,
    /// A leader leads on after its renew deadline.
    TwoLeaders,
    /// The kernel applies half of a batch.
    HalfBatch,
    /// Hints do not follow a node to another zone.
    StaleHint,
    /// Services of a failed sync are not synced again.
    LostDirtySet,
    /// Clients are remembered for longer than the Service says.
    WrongAffinityTimeout,
    /// Revisions are compared as text.
    RevisionAsText,
    /// A cache misses deletions of Services.
    MissedDelete,
}

impl PlantedBug {
    pub const ALL: [Self; 10] = [
        Self::SkippedExpectation,
        Self::Lost410,
        Self::UnsyncedJournal,
        Self::TwoLeaders,
        Self::HalfBatch,
        Self::StaleHint,
        Self::LostDirtySet,
        Self::WrongAffinityTimeout,
        Self::RevisionAsText,
        Self::MissedDelete,
    ];
}

#[cfg(debug_assertions)]
static PLANTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Plants one bug in this process, or none.
#[cfg(debug_assertions)]
pub fn plant(bug: Option<PlantedBug>) {
    PLANTED.store(bug.map_or(0, |bug| bug as u8), std::sync::atomic::Ordering::SeqCst);
}

/// Whether this bug is planted.
#[cfg(debug_assertions)]
pub fn is_planted(bug: PlantedBug) -> bool {
    PLANTED.load(std::sync::atomic::Ordering::SeqCst) == bug as u8
}

/// Whether this bug is planted: never.
#[cfg(not(debug_assertions))]
pub const fn is_planted(_: PlantedBug) -> bool {
    false
}
