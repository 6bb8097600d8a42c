//! The ports that a proxy listens on: opened and closed as its table asks, and tried again while one is taken.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};

use proxy::{Entrance, Proxy};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::{info, warn};

/// Which door, whatever its port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DoorId {
    /// The n-th `--outbound`.
    Outbound(usize, IpAddr),
    /// Where the kernel sends connections to.
    Redirect(IpAddr),
    /// A port of a gateway.
    Gateway(u16, IpAddr),
}

/// A door as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Where to listen; port 0 takes a free one.
    pub at: SocketAddr,
    /// What is behind it.
    pub entrance: Entrance,
    /// The flag that says where, for whoever has to choose another one.
    pub flag: &'static str,
}

/// The doors of a proxy.
pub struct Doors {
    proxy: Proxy,
    open: BTreeMap<DoorId, Open>,
    shut: BTreeMap<DoorId, String>,
}

struct Open {
    wish: Wish,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Doors {
    /// None yet.
    pub fn new(proxy: Proxy) -> Self {
        Self { proxy, open: BTreeMap::new(), shut: BTreeMap::new() }
    }

    /// Opens what is wanted, and closes what is not any more. Connections that are open stay so.
    pub async fn fit(&mut self, wishes: &BTreeMap<DoorId, Wish>) {
        let is_other = |(id, open): (&DoorId, &Open)| {
            let other = wishes.get(id).is_none_or(|wish| *wish != open.wish);
            (other || open.task.is_finished()).then_some(*id)
        };
        let others: Vec<DoorId> = self.open.iter().filter_map(is_other).collect();
        for id in others {
            self.close(id).await;
        }
        self.shut.retain(|id, _| wishes.contains_key(id));
        for (id, wish) in wishes.iter().filter(|(id, _)| !self.open.contains_key(id)).collect::<Vec<_>>() {
            self.try_open(*id, wish).await;
        }
    }

    async fn try_open(&mut self, id: DoorId, wish: &Wish) {
        let (listener, address) = match listen(wish.at).await {
            Ok(opened) => opened,
            Err(error) => {
                let why = format!("cannot listen on {}: {error}; choose another with {}", wish.at, wish.flag);
                if self.shut.insert(id, why.clone()).is_none() {
                    warn!(address = %wish.at, %error, flag = wish.flag, "cannot listen; retrying");
                }
                return;
            }
        };
        self.shut.remove(&id);
        info!(%address, entrance = behind(&wish.entrance), "listening");
        let (stop, stopped) = oneshot::channel();
        let (proxy, entrance) = (self.proxy.clone(), wish.entrance.clone());
        let task = tokio::spawn(async move {
            // A door that nobody holds any more is closed, too.
            proxy.serve(listener, entrance, async { drop(stopped.await) }).await;
        });
        self.open.insert(id, Open { wish: wish.clone(), stop, task });
    }

    async fn close(&mut self, id: DoorId) {
        let Some(open) = self.open.remove(&id) else { return };
        let _ = open.stop.send(());
        // Only then is the port free for whoever comes next.
        let _ = open.task.await;
        info!(entrance = behind(&open.wish.entrance), "stopped listening");
    }

    /// Closes all.
    pub async fn close_all(&mut self) {
        self.shut.clear();
        for id in self.open.keys().copied().collect::<BTreeSet<_>>() {
            self.close(id).await;
        }
    }

    /// Why doors are shut that should be open.
    pub fn troubles(&self) -> impl Iterator<Item = &str> {
        self.shut.values().map(String::as_str)
    }

    /// How many are open.
    pub fn open(&self) -> usize {
        self.open.len()
    }
}

async fn listen(at: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(at).await?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

fn behind(entrance: &Entrance) -> String {
    match entrance {
        Entrance::Outbound { service, port } => format!("{service}:{port}"),
        Entrance::OriginalDestination => "connections that the kernel sends here".to_owned(),
        Entrance::Gateway { port } => format!("port {port} of the gateway"),
    }
}

/// Where a gateway listens unless it is told: everywhere, by one socket for both families where there are two.
pub fn everywhere() -> IpAddr {
    let both = IpAddr::from([0u16; 8]);
    match std::net::TcpListener::bind((both, 0)) {
        Ok(_) => both,
        Err(_) => IpAddr::from([0u8; 4]),
    }
}

#[cfg(test)]
mod tests {
    use proxy::{Settings, Tables};

    use super::*;

    fn wish(port: u16, number: u16) -> Wish {
        let at = SocketAddr::from(([127, 0, 0, 1], port));
        Wish { at, entrance: Entrance::Gateway { port: number }, flag: "--bind" }
    }

    #[tokio::test]
    async fn doors_open_and_close_as_wished_and_a_taken_port_is_tried_again() {
        let mut doors = Doors::new(Proxy::new(Settings::default(), Tables::default()));
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = taken.local_addr().unwrap().port();
        let local = IpAddr::from([127, 0, 0, 1]);
        let (first, second) = (DoorId::Gateway(1, local), DoorId::Gateway(2, local));
        let both = BTreeMap::from([(first, wish(0, 1)), (second, wish(port, 2))]);
        doors.fit(&both).await;
        assert_eq!(doors.open(), 1);
        let why: Vec<String> = doors.troubles().map(str::to_owned).collect();
        assert!(why.len() == 1 && why[0].contains("choose another with --bind"), "{why:?}");
        drop(taken);
        doors.fit(&both).await;
        assert_eq!((doors.open(), doors.troubles().count()), (2, 0));
        doors.fit(&BTreeMap::from([(second, wish(port, 3))])).await;
        assert_eq!(doors.open(), 1);
        doors.close_all().await;
        assert_eq!(doors.open(), 0);
        TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    }
}
