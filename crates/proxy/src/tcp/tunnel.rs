//! Two streams joined until both end, neither makes progress for the idle timeout, or the proxy closes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional_with_sizes};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::proxy::DrainPhase;

/// Per direction.
const BUFFER: usize = 16 << 10;

/// Copies bytes both ways. Returns how many came from the client, and how many went to it.
pub(crate) async fn copy(
    client: impl AsyncRead + AsyncWrite + Unpin,
    mut endpoint: impl AsyncRead + AsyncWrite + Unpin,
    idle: Duration,
    phase: watch::Receiver<DrainPhase>,
) -> ((u64, u64), io::Result<()>) {
    let moved = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
    let mut client = CountedStream { inner: client, moved: moved.clone() };
    let copied = copy_bidirectional_with_sizes(&mut client, &mut endpoint, BUFFER, BUFFER);
    let result = tokio::select! {
        biased;
        () = is_closed(phase) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "proxy is shutting down")),
        copied = copied => copied.map(|_| ()),
        () = is_idle(&moved, idle) => Err(io::Error::new(io::ErrorKind::TimedOut, "idle timeout")),
    };
    ((moved.0.load(Relaxed), moved.1.load(Relaxed)), result)
}

async fn is_idle(moved: &(AtomicU64, AtomicU64), idle: Duration) {
    let mut before = (0, 0);
    loop {
        sleep(idle).await;
        let now = (moved.0.load(Relaxed), moved.1.load(Relaxed));
        if now == before {
            return;
        }
        before = now;
    }
}

/// A byte stream cannot be asked to close, so draining leaves it open until the proxy closes.
async fn is_closed(mut phase: watch::Receiver<DrainPhase>) {
    if phase.wait_for(|phase| *phase == DrainPhase::Closed).await.is_err() {
        std::future::pending().await
    }
}

struct CountedStream<T> {
    inner: T,
    moved: Arc<(AtomicU64, AtomicU64)>,
}

impl<T: AsyncRead + Unpin> AsyncRead for CountedStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.inner).poll_read(cx, buf);
        self.moved.0.fetch_add((buf.filled().len() - before) as u64, Relaxed);
        result
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for CountedStream<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(cx, buf);
        if let Poll::Ready(Ok(count)) = &result {
            self.moved.1.fetch_add(*count as u64, Relaxed);
        }
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
