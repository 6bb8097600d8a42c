//! A relay of TCP connections: accepts, connects to a target, copies both ways with half-close.
//!
//! Connections outlive their listener. They share a bound between owners: at the bound, the owner that has most loses the
//! one that is idle for longest.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use listener::{ConnectionOwner, ConnectionPlace, FairConnections};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const BUFFER: usize = 16 << 10;

/// The connections of one or more listeners.
#[derive(Clone, Debug)]
pub struct TcpRelay {
    connections: FairConnections,
}

impl TcpRelay {
    pub fn new(max_connections: usize) -> Self {
        Self { connections: FairConnections::new(max_connections, Duration::ZERO) }
    }

    /// Open connections.
    pub fn open(&self) -> u64 {
        self.connections.open()
    }

    /// Connections that were closed because others needed their places.
    pub fn evicted(&self) -> u64 {
        self.connections.evicted()
    }

    /// Accepts until the sender of targets is dropped. `connected` is called with whether the target could be reached.
    pub async fn serve(
        self,
        listener: TcpListener,
        owner: String,
        mut targets: watch::Receiver<SocketAddr>,
        connected: impl Fn(bool) + Clone + Send + 'static,
    ) {
        let owner = ConnectionOwner::User(Arc::from(owner));
        loop {
            let ((client, _), place) = tokio::select! {
                biased;
                changed = targets.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
                accepted = self.connections.accept_placed(|| listener.accept(), |_| owner.clone()) => accepted,
            };
            let (target, connected) = (*targets.borrow(), connected.clone());
            let handle = place.handle();
            tokio::spawn(handle.run(async move {
                let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(target)).await;
                let stream = stream.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
                connected(stream.is_ok());
                match stream {
                    Ok(stream) => copy_both(client, stream, &place).await,
                    Err(error) => tracing::debug!(%target, %error, "failed to connect to the target"),
                }
            }));
        }
    }
}

/// Copies both ways; the end of one direction closes only that one.
async fn copy_both(client: TcpStream, target: TcpStream, place: &ConnectionPlace) {
    // Chunks are sent on as they come.
    let _ = client.set_nodelay(true);
    let _ = target.set_nodelay(true);
    let (client_read, client_write) = client.into_split();
    let (target_read, target_write) = target.into_split();
    let there = copy(client_read, target_write, place);
    let back = copy(target_read, client_write, place);
    // An error ends both: the connection is reset.
    let _ = tokio::try_join!(there, back);
}

async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, place: &ConnectionPlace) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        place.touch();
        to.write_all(&buffer[..count]).await?;
    }
}
