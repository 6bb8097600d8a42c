//! Two streams joined until both are at their end, stand still for too long, or the proxy closes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional_with_sizes};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::proxy::Phase;

/// Held for each direction of each connection.
const BUFFER: usize = 16 << 10;

/// Carries bytes both ways. How many came from the first stream, and how many went to it.
pub(crate) async fn carry(
    client: impl AsyncRead + AsyncWrite + Unpin,
    mut endpoint: impl AsyncRead + AsyncWrite + Unpin,
    idle: Duration,
    phase: watch::Receiver<Phase>,
) -> ((u64, u64), io::Result<()>) {
    let moved = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
    let mut client = Counted { inner: client, moved: moved.clone() };
    let copied = copy_bidirectional_with_sizes(&mut client, &mut endpoint, BUFFER, BUFFER);
    let result = tokio::select! {
        copied = copied => copied.map(|_| ()),
        () = stands_still(&moved, idle) => Err(io::Error::new(io::ErrorKind::TimedOut, "nothing moved")),
        () = is_closed(phase) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the proxy ends")),
    };
    ((moved.0.load(Relaxed), moved.1.load(Relaxed)), result)
}

async fn stands_still(moved: &(AtomicU64, AtomicU64), idle: Duration) {
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

/// Streams are not told to go: they have no word for it. They have until the proxy closes.
async fn is_closed(mut phase: watch::Receiver<Phase>) {
    if phase.wait_for(|phase| *phase == Phase::Closed).await.is_err() {
        std::future::pending().await
    }
}

struct Counted<T> {
    inner: T,
    moved: Arc<(AtomicU64, AtomicU64)>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Counted<T> {
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

impl<T: AsyncWrite + Unpin> AsyncWrite for Counted<T> {
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
