//! Connections that are carried whole: split by weight, or passed through to where they were going.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use model::Locality;
use model::route::WeightedBackends;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::exchange::note_failure;
use crate::peer::Peer;
use crate::proxy::Inner;
use crate::rules::Target;
use crate::slot::Slot;
use crate::stream::{Ahead, Carrier};
use crate::ticket::log_connection;
use crate::tunnel;

/// Carries a connection to one of several backends.
pub(crate) async fn split(
    proxy: &Arc<Inner>,
    client: Ahead<Carrier>,
    split: &Arc<WeightedBackends>,
    from: SocketAddr,
) -> io::Result<()> {
    let began = Instant::now();
    let state = proxy.state();
    let legs = state.legs(split).cloned().ok_or_else(|| io::Error::other("the route has just gone"))?;
    drop(state);
    let slot = match legs.pick(|| proxy.random.next()) {
        Some(Target::Backend(slot)) => slot.clone(),
        // Semantics 1.8: the share of what cannot be resolved fails; without requests that is a closed connection.
        Some(Target::Error(_)) | None => {
            proxy.counts.refused.add();
            return Err(io::Error::other("the backend cannot be resolved"));
        }
    };
    let (stream, held, locality) = dial(proxy, &slot).await?;
    slot.counts.connections.add();
    slot.counts.localities[locality as usize].add();
    let idle = proxy.settings.timeouts.idle;
    let (bytes, result) = tunnel::carry(client, stream, idle, proxy.phase.subscribe()).await;
    log_connection(proxy, from, Some((&slot, locality)), held.0.address, bytes, began.elapsed());
    result
}

/// The load of a peer, as long as a connection lasts.
struct Held(Arc<Peer>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.put_down();
    }
}

async fn dial(proxy: &Inner, slot: &Slot) -> io::Result<(TcpStream, Held, Locality)> {
    let settings = &proxy.settings;
    let mut avoid: Vec<Arc<Peer>> = Vec::new();
    let mut last = io::Error::other("the backend has no endpoint");
    for attempt in 0..=settings.limits.retries {
        let (cluster, now) = (slot.cluster(), proxy.now());
        let Some(choice) = cluster.pick(&proxy.random, now, &settings.health, &avoid) else {
            break;
        };
        if attempt > 0 {
            slot.counts.retries.add();
        }
        choice.peer.take_up();
        let held = Held(choice.peer.clone());
        match choice.peer.dial(settings).await {
            Ok(stream) => {
                choice.peer.succeeded();
                return Ok((stream, held, choice.locality));
            }
            Err(error) => {
                slot.counts.connect_failures.add();
                note_failure(proxy, slot, &cluster, &choice.peer);
                last = error;
            }
        }
        avoid.push(choice.peer.clone());
    }
    Err(last)
}

/// Connects with a mark, by which the kernel knows not to send the connection here again.
pub(crate) async fn connect(to: SocketAddr, mark: Option<u32>) -> io::Result<TcpStream> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Some(mark) = mark {
        setsockopt(&socket, sockopt::Mark, &mark)?;
    }
    socket.connect(to).await
}

/// Carries a connection to where it was going: no Service of ours, so nothing is known of it.
pub(crate) async fn pass_through(
    proxy: &Arc<Inner>,
    client: TcpStream,
    to: SocketAddr,
    from: SocketAddr,
) -> io::Result<()> {
    let began = Instant::now();
    let stream = timeout(proxy.settings.timeouts.connect, connect(to, proxy.settings.mark)).await??;
    stream.set_nodelay(true)?;
    proxy.counts.passed_through.add();
    let idle = proxy.settings.timeouts.idle;
    let (bytes, result) = tunnel::carry(client, stream, idle, proxy.phase.subscribe()).await;
    log_connection(proxy, from, None, to, bytes, began.elapsed());
    result
}
