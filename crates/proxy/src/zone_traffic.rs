//! Connections and bytes to endpoints by Service and zone, for the traffic ledger: the proxy dials pods itself, so that no
//! node sees the Service.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use model::{Name, ServiceKey};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Most pairs of Service and zones; those beyond have the key of no Service.
const MAX_PAIRS: usize = 500;

/// Traffic of the proxy with the endpoints of a Service in one zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceZoneTraffic {
    /// Empty for all beyond the bound.
    pub service: ServiceKey,
    pub from_zone: String,
    pub to_zone: String,
    pub connections: u64,
    /// Payload of both directions.
    pub bytes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct ZoneTraffic {
    state: Mutex<ZoneTrafficState>,
}

#[derive(Debug, Default)]
struct ZoneTrafficState {
    from_zone: String,
    counters: BTreeMap<(ServiceKey, String, String), Arc<ZoneCounters>>,
}

#[derive(Debug, Default)]
pub(crate) struct ZoneCounters {
    connections: AtomicU64,
    bytes: AtomicU64,
}

impl ZoneTraffic {
    /// The zone of the proxy.
    pub(crate) fn set_zone(&self, zone: Option<&Name>) {
        let zone = zone.map(Name::as_str).unwrap_or_default();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.from_zone != zone {
            state.from_zone = zone.to_owned();
        }
    }

    /// Counts a connection, and the bytes of its stream.
    pub(crate) fn connected(
        &self,
        service: &ServiceKey,
        zone: Option<&Name>,
        inner: TcpStream,
    ) -> MeteredStream {
        let zone = zone.map(Name::as_str).unwrap_or_default().to_owned();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let from_zone = state.from_zone.clone();
        let mut key = (service.clone(), from_zone, zone);
        if state.counters.len() >= MAX_PAIRS && !state.counters.contains_key(&key) {
            key.0 = ServiceKey::default();
        }
        let counters = state.counters.entry(key).or_default().clone();
        counters.connections.fetch_add(1, Relaxed);
        MeteredStream { inner, counters }
    }

    pub(crate) fn read(&self) -> Vec<ServiceZoneTraffic> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |((service, from_zone, to_zone), counters): (
            &(ServiceKey, String, String),
            &Arc<ZoneCounters>,
        )| {
            ServiceZoneTraffic {
                service: service.clone(),
                from_zone: from_zone.clone(),
                to_zone: to_zone.clone(),
                connections: counters.connections.load(Relaxed),
                bytes: counters.bytes.load(Relaxed),
            }
        };
        state.counters.iter().map(of).collect()
    }
}

/// A connection to an endpoint whose bytes are counted.
#[derive(Debug)]
pub(crate) struct MeteredStream {
    inner: TcpStream,
    counters: Arc<ZoneCounters>,
}

impl MeteredStream {
    fn count(&self, result: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(count)) = result {
            self.counters.bytes.fetch_add(*count as u64, Relaxed);
        }
    }
}

impl AsyncRead for MeteredStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.inner).poll_read(cx, buf);
        self.counters.bytes.fetch_add((buf.filled().len() - before) as u64, Relaxed);
        result
    }
}

impl AsyncWrite for MeteredStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.count(&result);
        result
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.count(&result);
        result
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn both_directions_are_counted_by_service_and_zones() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut body = [0; 1_000];
            stream.read_exact(&mut body).await.unwrap();
            stream.write_all(&[7; 3_000]).await.unwrap();
        });
        let traffic = ZoneTraffic::default();
        traffic.set_zone(Some(&Name::new("za")));
        let service = ServiceKey::new(&"shop".into(), &"cart".into());
        let stream = TcpStream::connect(address).await.unwrap();
        let mut stream = traffic.connected(&service, Some(&Name::new("zb")), stream);
        stream.write_all(&[1; 1_000]).await.unwrap();
        stream.read_to_end(&mut Vec::new()).await.unwrap();
        server.await.unwrap();
        let (from_zone, to_zone) = ("za".to_owned(), "zb".to_owned());
        let expected = ServiceZoneTraffic { service, from_zone, to_zone, connections: 1, bytes: 4_000 };
        assert_eq!(traffic.read(), [expected]);
    }
}
