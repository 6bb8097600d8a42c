//! How old the objects are that this node serves: the metric, the Lease after an outage of the API, and the answer to
//! `zoneward status` while the API is away.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clock::Clock;
use cluster::api_outage;
use insight::status::ObjectAge;
use tokio::sync::watch;

use super::node_lease::ProgrammedState;
use super::run::SharedState;
use super::snapshot_file;

/// Interval between looks at the API.
const TICK: Duration = Duration::from_secs(1);
/// Ticks between notes that the snapshot in the file is current.
const TICKS_PER_TOUCH: u32 = 30;

/// The age of the served objects, and whether the API has listed them since the start.
#[derive(Debug, Default)]
pub struct ObjectContact {
    age: Mutex<ObjectAge>,
    is_listed: AtomicBool,
}

impl ObjectContact {
    fn with<T>(&self, look: impl FnOnce(&mut ObjectAge) -> T) -> T {
        look(&mut self.age.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn age(&self) -> ObjectAge {
        self.with(|age| age.clone())
    }

    /// The API has listed its objects.
    pub fn listed(&self) {
        self.is_listed.store(true, Ordering::Relaxed);
    }

    /// The snapshot of a file is served, which was current at this time, in seconds since 1970.
    pub fn serves_file(&self, saved_at: i64) {
        self.with(|age| age.serves_file(saved_at));
    }
}

/// Follows the API until the process ends.
pub async fn follow(
    shared: Arc<SharedState>,
    programmed: watch::Sender<ProgrammedState>,
    snapshot: Option<PathBuf>,
    clock: Clock,
) {
    let mut ticks: u32 = 0;
    loop {
        tokio::time::sleep(TICK).await;
        ticks = ticks.wrapping_add(1);
        let (time, is_listed) = (clock.timestamp(), shared.objects.is_listed.load(Ordering::Relaxed));
        let (now, away) = (time.as_second(), api_outage::unreachable_for().map(|away| away.as_secs()));
        let age = shared.objects.with(|age| {
            age.update(away, is_listed, now);
            age.clone()
        });
        shared.metrics.object_age.set(i64::try_from(age.seconds(now)).unwrap_or(i64::MAX));
        programmed.send_if_modified(|state| {
            let is_new = state.last_outage != age.last;
            state.last_outage = age.last;
            is_new && state.revision.is_some()
        });
        let is_current = is_listed && age.known_at.is_none();
        if let Some(path) = snapshot.clone().filter(|_| is_current && ticks.is_multiple_of(TICKS_PER_TOUCH)) {
            // A full disk that hangs delays nothing else.
            let _ = tokio::task::spawn_blocking(move || snapshot_file::touch(&path, time)).await;
        }
    }
}
