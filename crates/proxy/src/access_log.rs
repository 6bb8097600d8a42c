//! The access log: one JSON line per request or connection, written by a thread of its own.
//!
//! Requests never wait for the writer: lines go to a bounded buffer, and those that do not fit are dropped and counted.

use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Clone)]
pub struct AccessLog {
    shared: Arc<Shared>,
    _close_on_drop: Arc<CloseOnDrop>,
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

/// Ends the writer with the last clone of the log.
struct CloseOnDrop(Arc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.filled.notify_one();
    }
}

/// A buffer of this size is written at once, a smaller one after [`FLUSH_INTERVAL`].
const BATCH_BYTES: usize = 64 << 10;
const MAX_BUFFER_BYTES: usize = 4 << 20;
const FLUSH_INTERVAL: Duration = Duration::from_millis(500);

impl AccessLog {
    /// A log to a file, a pipe or standard output.
    #[allow(clippy::disallowed_methods, reason = "a blocking writer must not share the runtime's threads")]
    pub fn to(writer: impl Write + Send + 'static) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            buffer: Mutex::default(),
            filled: Condvar::new(),
            written: Condvar::new(),
            lost: AtomicU64::new(0),
        });
        let reader = shared.clone();
        std::thread::Builder::new().name("access-log".into()).spawn(move || reader.write_batches(writer))?;
        Ok(Self { _close_on_drop: Arc::new(CloseOnDrop(shared.clone())), shared })
    }

    /// Waits until all lines so far are written, but at most a second: a pipe without a reader must not block exit.
    pub fn flush(&self) {
        self.shared.filled.notify_one();
        let pending = |buffer: &mut Buffer| buffer.is_writing || !buffer.text.is_empty();
        let waited = self.shared.written.wait_timeout_while(self.shared.lock(), FLUSH_INTERVAL * 2, pending);
        drop(waited);
    }

    pub(crate) fn line(&self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut buffer = self.shared.lock();
        if buffer.text.len() > MAX_BUFFER_BYTES {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let before = buffer.text.len();
        write(&mut buffer.text);
        buffer.text.push(b'\n');
        if before < BATCH_BYTES && buffer.text.len() >= BATCH_BYTES {
            self.shared.filled.notify_one();
        }
    }

    /// Lines dropped because the buffer was full.
    pub(crate) fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_batches(&self, mut writer: impl Write) {
        let mut batch = Vec::new();
        loop {
            let waiting = |buffer: &mut Buffer| buffer.text.len() < BATCH_BYTES && !buffer.closed;
            let waited = self.filled.wait_timeout_while(self.lock(), FLUSH_INTERVAL, waiting);
            let (mut buffer, _) = waited.unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut batch, &mut buffer.text);
            let closed = buffer.closed;
            buffer.is_writing = true;
            drop(buffer);
            // A failing writer must not stop the proxy; the lines are lost.
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
