//! Connections with fair shares: a new one is always served, and if there is no place, the source or user with the most
//! connections loses the one that is idle for longest.
//!
//! A connection counts for its source address until its user is known. Behind one address, or for one user, it is the
//! oldest idle connection that is closed.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::shares::{AtShare, FairShares, HolderId};
use crate::{ACCEPT_BACKOFF, is_of_one_connection};

/// Connections are counted by this.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConnectionOwner {
    Source(IpAddr),
    User(Arc<str>),
}

impl ConnectionOwner {
    /// The source of a client: its IPv4 address, or its IPv6 network of 64 bits, which one machine usually has to itself.
    pub fn source(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => {
                let network = u128::from(address) & !u128::from(u64::MAX);
                Self::Source(Ipv6Addr::from(network).into())
            }
            address => Self::Source(address),
        }
    }
}

/// Closes a connection from outside.
#[derive(Clone)]
pub struct ConnectionHandle {
    id: u64,
    closed: Arc<Notify>,
}

impl ConnectionHandle {
    /// A number that no other connection of this process has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Closes the connection without a drain.
    pub fn close(&self) {
        self.closed.notify_one();
    }

    /// Serves the connection until it ends or is closed.
    pub async fn run(self, connection: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            () = self.closed.notified() => {}
            () = connection => {}
        }
    }
}

impl fmt::Debug for ConnectionHandle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "ConnectionHandle({})", self.id)
    }
}

impl PartialEq for ConnectionHandle {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for ConnectionHandle {}

/// The open connections of one or more sockets.
#[derive(Clone, Debug)]
pub struct FairConnections {
    pool: Arc<Mutex<FairShares<ConnectionOwner, ConnectionHandle>>>,
    evicted: Arc<AtomicU64>,
    drain_timeout: Duration,
}

impl FairConnections {
    /// `drain_timeout`: how long connections may take to close after the stop.
    pub fn new(max_connections: usize, drain_timeout: Duration) -> Self {
        let pool = FairShares::new(max_connections.max(1) as u64);
        Self { pool: Arc::new(Mutex::new(pool)), evicted: Arc::default(), drain_timeout }
    }

    /// Counts evictions together with those of other pools.
    pub fn count_evictions_in(self, evicted: &Arc<AtomicU64>) -> Self {
        Self { evicted: evicted.clone(), ..self }
    }

    /// Connections that were closed because others needed their places.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Open connections.
    pub fn open(&self) -> u64 {
        self.pool().used()
    }

    fn pool(&self) -> MutexGuard<'_, FairShares<ConnectionOwner, ConnectionHandle>> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a new connection; another one may lose its own.
    fn place(&self, owner: ConnectionOwner, handle: &ConnectionHandle) -> Option<HolderId> {
        let taken = self.pool().take((owner, handle.id), handle.clone(), AtShare::EvictOldest);
        let (id, evicted) = taken?;
        self.close(evicted);
        Some(id)
    }

    fn close(&self, evicted: impl IntoIterator<Item = ConnectionHandle>) {
        for handle in evicted {
            self.evicted.fetch_add(1, Ordering::Relaxed);
            handle.close();
        }
    }

    /// The next connection. Without file descriptors, the connection that loses first is closed.
    async fn accept<T, A>(&self, accept: &impl Fn() -> A) -> T
    where
        A: Future<Output = io::Result<T>>,
    {
        let mut is_failing = false;
        loop {
            match accept().await {
                Ok(accepted) => return accepted,
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!(%error, "failed to accept connections; retrying");
                    }
                    let evicted = self.pool().evict_one();
                    self.close(evicted);
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
    }

    /// The next connection, with its place: for accept loops whose connections outlive them.
    pub async fn accept_placed<T, A>(
        &self,
        accept: impl Fn() -> A,
        owner: impl Fn(&T) -> ConnectionOwner,
    ) -> (T, ConnectionPlace)
    where
        A: Future<Output = io::Result<T>>,
    {
        loop {
            let accepted = self.accept(&accept).await;
            if let Some(place) = ConnectionPlace::new(self, owner(&accepted)) {
                return (accepted, place);
            }
        }
    }

    /// Serves each connection in a task of its own until `stop` is true or its sender is dropped, then drains. A
    /// connection that is evicted is dropped.
    pub async fn serve<T, A, F>(
        &self,
        accept: impl Fn() -> A,
        mut stop: watch::Receiver<bool>,
        owner: impl Fn(&T) -> ConnectionOwner,
        mut serve: impl FnMut(T, ConnectionPlace) -> F,
    ) where
        A: Future<Output = io::Result<T>>,
        F: Future<Output = ()> + Send + 'static,
    {
        let mut connections = JoinSet::new();
        loop {
            let (accepted, place) = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => break,
                accepted = self.accept_placed(&accept, &owner) => accepted,
            };
            while connections.try_join_next().is_some() {}
            let handle = place.handle();
            let connection = serve(accepted, place);
            connections.spawn(async move { handle.run(connection).await });
        }
        let drained = async { while connections.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(self.drain_timeout, drained).await;
    }
}

/// The place of an open connection. The last clone gives it back.
#[derive(Clone, Debug)]
pub struct ConnectionPlace {
    shared: Arc<PlaceShared>,
}

#[derive(Debug)]
struct PlaceShared {
    handle: ConnectionHandle,
    requests: AtomicUsize,
    /// The pool that it counts in, and where.
    at: Mutex<(FairConnections, HolderId)>,
}

impl ConnectionPlace {
    fn new(connections: &FairConnections, owner: ConnectionOwner) -> Option<Self> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let id = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let handle = ConnectionHandle { id, closed: Arc::new(Notify::new()) };
        let holder = connections.place(owner, &handle)?;
        let at = Mutex::new((connections.clone(), holder));
        Some(Self { shared: Arc::new(PlaceShared { handle, requests: AtomicUsize::new(0), at }) })
    }

    pub fn handle(&self) -> ConnectionHandle {
        self.shared.handle.clone()
    }

    /// Counts the connection for its user.
    pub fn assign(&self, owner: ConnectionOwner) {
        let (connections, holder) = &*self.shared.at();
        connections.pool().assign(*holder, owner);
    }

    /// Moves the connection to another pool.
    pub fn move_to(&self, connections: &FairConnections, owner: ConnectionOwner) {
        let Some(holder) = connections.place(owner, &self.shared.handle) else { return };
        let (before, left) = std::mem::replace(&mut *self.shared.at(), (connections.clone(), holder));
        before.pool().release(left);
        self.shared.touch();
    }

    /// Marks the connection as the newest: its client has sent something. One that is silent is evicted before it.
    pub fn touch(&self) {
        self.shared.touch();
    }

    /// Marks the connection as busy until the guard is dropped.
    pub fn begin_request(&self) -> RequestInFlight {
        self.shared.requests.fetch_add(1, Ordering::SeqCst);
        self.shared.touch();
        RequestInFlight { shared: self.shared.clone() }
    }
}

impl PlaceShared {
    fn at(&self) -> MutexGuard<'_, (FairConnections, HolderId)> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch(&self) {
        let (connections, holder) = &*self.at();
        connections.pool().touch(*holder, self.requests.load(Ordering::SeqCst) > 0);
    }
}

impl Drop for PlaceShared {
    fn drop(&mut self) {
        let (connections, holder) = &*self.at();
        connections.pool().release(*holder);
    }
}

/// A request of a connection that is not complete.
#[derive(Debug)]
pub struct RequestInFlight {
    shared: Arc<PlaceShared>,
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        self.shared.requests.fetch_sub(1, Ordering::SeqCst);
        self.shared.touch();
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpSocket, TcpStream};

    use super::*;

    struct Served {
        address: SocketAddr,
        connections: FairConnections,
        stop: watch::Sender<bool>,
        task: tokio::task::JoinHandle<()>,
    }

    /// Answers each byte that a client sends.
    async fn echo(mut stream: TcpStream, place: ConnectionPlace) {
        let mut byte = [0];
        while stream.read_exact(&mut byte).await.is_ok() {
            let _request = place.begin_request();
            if stream.write_all(&byte).await.is_err() {
                return;
            }
        }
    }

    async fn served(max_connections: usize) -> Served {
        let socket = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], socket.local_addr().unwrap().port()));
        let (stop, stopped) = watch::channel(false);
        let connections = FairConnections::new(max_connections, Duration::from_secs(1));
        let pool = connections.clone();
        let task = tokio::spawn(async move {
            let owner = |(_, peer): &(TcpStream, SocketAddr)| ConnectionOwner::source(peer.ip());
            pool.serve(|| socket.accept(), stopped, owner, |(stream, _), place| echo(stream, place)).await;
        });
        Served { address, connections, stop, task }
    }

    async fn connect(served: &Served, source: u8) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, source], 0))).unwrap();
        socket.connect(served.address).await.unwrap()
    }

    async fn is_answered(stream: &mut TcpStream) -> bool {
        stream.write_all(b"x").await.is_ok() && stream.read_u8().await.is_ok()
    }

    /// Waits until a silent connection is closed or the server has nothing to say.
    async fn is_closed(stream: &mut TcpStream) -> bool {
        let read = tokio::time::timeout(Duration::from_millis(1), stream.read_u8());
        read.await.is_ok_and(|read| read.is_err())
    }

    /// Silent connections that the server has accepted.
    async fn silent(served: &Served, source: u8, count: u64) -> Vec<TcpStream> {
        let (before, mut streams) = (served.connections.open() + served.connections.evicted(), Vec::new());
        for _ in 0..count {
            streams.push(connect(served, source).await);
        }
        while served.connections.open() + served.connections.evicted() < before + count {
            tokio::task::yield_now().await;
        }
        streams
    }

    #[tokio::test]
    async fn silent_connections_of_one_source_keep_no_other_source_out() {
        let served = served(8).await;
        let mut client = connect(&served, 2).await;
        assert!(is_answered(&mut client).await);
        let _silent = silent(&served, 3, 40).await;
        assert!(is_answered(&mut client).await, "it is below its share");
        for _ in 0..20 {
            assert!(is_answered(&mut connect(&served, 4).await).await, "new ones are served");
        }
        assert!(served.connections.open() <= 8);
    }

    #[tokio::test]
    async fn sixteen_attacking_sources_evict_each_other() {
        let served = served(32).await;
        let mut client = connect(&served, 100).await;
        assert!(is_answered(&mut client).await);
        let mut held = Vec::new();
        for source in 1..=16 {
            held.extend(silent(&served, source, 8).await);
        }
        assert!(is_answered(&mut client).await);
        for _ in 0..20 {
            assert!(is_answered(&mut connect(&served, 101).await).await);
        }
        assert!(served.connections.open() <= 32);
    }

    #[tokio::test]
    async fn behind_one_address_the_oldest_idle_connection_is_closed() {
        let served = served(4).await;
        let mut streams = silent(&served, 1, 4).await;
        // The first one is used again, and is no longer the oldest.
        assert!(is_answered(&mut streams[0]).await);
        assert!(is_answered(&mut connect(&served, 1).await).await);
        while !is_closed(&mut streams[1]).await {}
        assert!(is_answered(&mut streams[0]).await);
        assert!(is_answered(&mut streams[3]).await);
        assert_eq!(served.connections.evicted(), 1);
    }

    #[tokio::test]
    async fn silent_connections_are_closed_before_those_that_sent_something() {
        let all = FairConnections::new(3, Duration::ZERO);
        let place =
            || ConnectionPlace::new(&all, ConnectionOwner::source(IpAddr::from([127, 0, 0, 1]))).unwrap();
        let (sent, silent) = (place(), place());
        sent.touch();
        let (_third, _fourth) = (place(), place());
        let is_closed = |place: &ConnectionPlace| {
            let handle = place.handle();
            tokio::spawn(async move { handle.closed.notified().await })
        };
        is_closed(&silent).await.unwrap();
        assert_eq!((all.open(), all.evicted()), (3, 1));
        let task = is_closed(&sent);
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
        assert!(!task.is_finished());
    }

    #[tokio::test]
    async fn places_are_given_back_and_the_server_stops() {
        let served = served(4).await;
        for _ in 0..20 {
            assert!(is_answered(&mut connect(&served, 1).await).await);
            while served.connections.open() > 0 {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(served.connections.evicted(), 0, "there was room");
        served.stop.send(true).unwrap();
        served.task.await.unwrap();
    }

    #[tokio::test]
    async fn a_connection_can_move_to_reserved_places() {
        let (all, reserved) =
            (FairConnections::new(2, Duration::ZERO), FairConnections::new(1, Duration::ZERO));
        let source = |last| ConnectionOwner::source(IpAddr::from([127, 0, 0, last]));
        let admin = ConnectionPlace::new(&all, source(1)).unwrap();
        admin.move_to(&reserved, ConnectionOwner::User("admin".into()));
        assert_eq!((all.open(), reserved.open()), (0, 1));
        let _others: Vec<_> = (0..9).map(|_| ConnectionPlace::new(&all, source(1)).unwrap()).collect();
        assert_eq!((all.open(), all.evicted(), reserved.evicted()), (2, 7, 0));
        drop(admin);
        assert_eq!((all.open(), reserved.open()), (2, 0));
    }

    #[test]
    fn sources_are_addresses_and_networks_of_64_bits() {
        let source = |text: &str| ConnectionOwner::source(text.parse().unwrap());
        assert_ne!(source("192.0.2.1"), source("192.0.2.2"));
        assert_eq!(source("::ffff:192.0.2.1"), source("192.0.2.1"));
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
    }
}
