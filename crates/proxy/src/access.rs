//! The access log: one JSON line per request or connection, written by a thread of its own.
//!
//! Whoever serves requests never waits for a disk: lines go to a bounded buffer, and what does not fit is counted
//! and left out.

use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Where lines go.
#[derive(Clone)]
pub struct AccessLog {
    shared: Arc<Shared>,
    _open: Arc<Open>,
}

struct Shared {
    buffer: Mutex<Buffer>,
    filled: Condvar,
    written: Condvar,
    lost: AtomicU64,
}

#[derive(Default)]
struct Buffer {
    text: Vec<u8>,
    is_writing: bool,
    closed: bool,
}

/// Lives as long as somebody may still log.
struct Open(Arc<Shared>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.filled.notify_one();
    }
}

/// Written at once when so much has come together, else within [`PATIENCE`].
const BATCH: usize = 64 << 10;
/// More than this waits for nobody.
const LARGEST: usize = 4 << 20;
const PATIENCE: Duration = Duration::from_millis(500);

impl AccessLog {
    /// A log to a file, a pipe or standard output.
    pub fn to(writer: impl Write + Send + 'static) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            buffer: Mutex::default(),
            filled: Condvar::new(),
            written: Condvar::new(),
            lost: AtomicU64::new(0),
        });
        let reader = shared.clone();
        std::thread::Builder::new().name("access-log".into()).spawn(move || reader.carry(writer))?;
        Ok(Self { _open: Arc::new(Open(shared.clone())), shared })
    }

    /// Waits until everything so far is written, or for a second: a pipe that nobody reads must not hold the end up.
    pub fn flush(&self) {
        self.shared.filled.notify_one();
        let pending = |buffer: &mut Buffer| buffer.is_writing || !buffer.text.is_empty();
        let waited = self.shared.written.wait_timeout_while(self.shared.lock(), PATIENCE * 2, pending);
        drop(waited);
    }

    /// Takes a line, by a function that writes it.
    pub(crate) fn line(&self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut buffer = self.shared.lock();
        if buffer.text.len() > LARGEST {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let before = buffer.text.len();
        write(&mut buffer.text);
        buffer.text.push(b'\n');
        if before < BATCH && buffer.text.len() >= BATCH {
            self.shared.filled.notify_one();
        }
    }

    /// Lines that did not fit.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread: batch by batch until nobody logs any more.
    fn carry(&self, mut writer: impl Write) {
        let mut batch = Vec::new();
        loop {
            let waiting = |buffer: &mut Buffer| buffer.text.len() < BATCH && !buffer.closed;
            let waited = self.filled.wait_timeout_while(self.lock(), PATIENCE, waiting);
            let (mut buffer, _) = waited.unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut batch, &mut buffer.text);
            let closed = buffer.closed;
            buffer.is_writing = true;
            drop(buffer);
            // A reader that went away is no reason to stop serving; the lines are then lost.
            let _ = writer.write_all(&batch).and_then(|()| writer.flush());
            batch.clear();
            self.lock().is_writing = false;
            self.written.notify_all();
            if closed {
                return;
            }
        }
    }
}

impl fmt::Debug for AccessLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessLog")
    }
}
