//! Mistakes in the order of steps between threads, which `tests/engine_schedules.rs` makes and has to find. In the product,
//! `is_sabotaged` is the constant false.

/// A mistake in the order of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineSabotage {
    /// A watcher sets its waker after it looked for a notification, so a notification between them wakes nothing.
    WakerAfterLook,
    /// A watcher reads the newest revision before it subscribes, so events between them are not notified.
    LateSubscription,
    /// A watcher looks for its notification before it reads the revision up to which all were notified.
    EagerBookmark,
    /// Writers have their answers before readers and watchers can see the revision.
    AnswerBeforePublish,
    /// A caller commits on its own thread while writes are queued, and overtakes one of its own.
    IgnoredQueue,
    /// The writer notifies watchers whose wave is in progress, so that they learn of events out of order.
    NotifyPastWave,
    /// The notifier drops what the writer hands over during a wave.
    DroppedHandover,
}
