//! Real connections through a running node, IPv4 and IPv6: a client next door, servers next door, the node between.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::net::{Neighbour, be_a_router};
use super::world::{World, endpoints, service, slice};

const VIPS: [&str; 2] = ["10.96.0.7", "fd00:96::7"];
const PODS_V4: [&str; 4] = ["10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4"];
const PODS_V6: [&str; 4] = ["fd00:1::1", "fd00:1::2", "fd00:1::3", "fd00:1::4"];

struct Place {
    world: World,
    client: Arc<Neighbour>,
    _pods: Neighbour,
}

/// A node with pods on one side and a client on the other. Every pod says its address to whoever connects, and then
/// whatever it is told.
fn place(name: &str) -> Place {
    be_a_router(&["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()]);
    let pods = Neighbour::new(1, "pods");
    let client = Neighbour::new(2, "client");
    client.be_the_way_out();
    client.add_address("203.0.113.9".parse().unwrap());
    client.add_address("2001:db8:9::9".parse().unwrap());
    for address in PODS_V4.iter().chain(&PODS_V6) {
        let address: IpAddr = address.parse().unwrap();
        pods.add_address(address);
        pods.within(move || serve(SocketAddr::new(address, 8080)));
    }
    let world = World::new(name);
    world.put_service_cidr("kubernetes", &["10.96.0.0/16", "fd00:96::/112"]);
    world.put_node("n1", "za");
    world.put(service("web", &VIPS));
    Place { world, client: Arc::new(client), _pods: pods }
}

fn serve(at: SocketAddr) {
    let listener = TcpListener::bind(at).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
    let socket = UdpSocket::bind(at).unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(at.to_string().as_bytes(), from);
        }
    });
}

fn answer(mut stream: TcpStream) {
    let own = stream.local_addr().unwrap().to_string();
    let _ = stream.write_all(format!("{own}\n").as_bytes());
    let mut buffer = [0; 64];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..length]).is_err() {
            return;
        }
    }
}

/// Connects and hears who answered.
fn connect(vip: &str) -> std::io::Result<(String, TcpStream)> {
    let at = SocketAddr::new(vip.parse().unwrap(), 80);
    let mut stream = TcpStream::connect_timeout(&at, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut who = Vec::new();
    let mut byte = [0];
    while stream.read(&mut byte)? == 1 && byte[0] != b'\n' {
        who.push(byte[0]);
    }
    Ok((String::from_utf8_lossy(&who).into_owned(), stream))
}

fn put_pods(world: &World, pods: &[usize]) {
    for all in [PODS_V4, PODS_V6] {
        let list: Vec<(&str, &str)> = pods.iter().map(|i| (all[*i], "")).collect();
        world.put(slice("web", &list));
    }
}

fn are_served(pods: &[usize]) -> bool {
    let mut v4: Vec<String> = pods.iter().map(|i| format!("{}:8080", PODS_V4[*i])).collect();
    let mut v6: Vec<String> = pods.iter().map(|i| format!("[{}]:8080", PODS_V6[*i])).collect();
    v4.sort();
    v6.sort();
    endpoints("10.96.0.7:80") == v4 && endpoints("[fd00:96::7]:80") == v6
}

pub(crate) fn pods_are_replaced_one_by_one_without_a_failed_connection() {
    let place = place("rolling");
    let world = &place.world;
    put_pods(world, &[0, 1]);
    let _node = world.node("n1", &["--proxy-mode=nftables", "--cluster-cidr=10.0.0.0/8"]);
    world.until("served", || are_served(&[0, 1]));
    let (stop, made, failed) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let looping = {
        let (client, stop, made, failed) = (place.client.clone(), stop.clone(), made.clone(), failed.clone());
        std::thread::spawn(move || {
            client.within(move || {
                while !stop.load(Ordering::Relaxed) {
                    for vip in VIPS {
                        made.fetch_add(1, Ordering::Relaxed);
                        if let Err(error) = connect(vip) {
                            eprintln!("{vip}: {error}");
                            failed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        })
    };
    for pods in [&[1, 2][..], &[2, 3], &[3, 0], &[0, 1, 2, 3], &[2]] {
        put_pods(world, pods);
        world.until("replaced", || are_served(pods));
        std::thread::sleep(Duration::from_millis(100));
    }
    stop.store(true, Ordering::Relaxed);
    looping.join().unwrap();
    assert!(made.load(Ordering::Relaxed) > 100, "{made:?}");
    assert_eq!(failed.load(Ordering::Relaxed), 0, "of {made:?}");
    // Now only one pod is left, and it is the one that answers.
    let who = place.client.within(|| VIPS.map(|vip| connect(vip).unwrap().0));
    assert_eq!(who, ["10.1.0.3:8080", "[fd00:1::3]:8080"]);
}

pub(crate) fn datagrams_follow_when_their_endpoint_goes() {
    // Semantics D7: the flow is tracked to an endpoint that is gone.
    let place = place("datagrams");
    let world = &place.world;
    let mut dns = service("dns", &["10.96.0.53"]);
    dns["spec"]["ports"][0]["protocol"] = "UDP".into();
    world.put(dns);
    let put = |pod: usize| {
        let mut object = slice("dns", &[(PODS_V4[pod], "")]);
        object["ports"][0]["protocol"] = "UDP".into();
        world.put(object);
    };
    put(0);
    let _node = world.node("n1", &["--proxy-mode=nftables"]);
    let socket = place.client.within(|| {
        let socket = UdpSocket::bind("203.0.113.9:5353").unwrap();
        socket.connect("10.96.0.53:80").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        socket
    });
    let socket = Arc::new(socket);
    let ask = || {
        let socket = socket.clone();
        place.client.within(move || {
            let mut buffer = [0; 64];
            let _ = socket.send(b"?");
            socket
                .recv(&mut buffer)
                .map(|length| String::from_utf8_lossy(&buffer[..length]).into_owned())
                .ok()
        })
    };
    world.until("the first answers", || ask().as_deref() == Some("10.1.0.1:8080"));
    put(1);
    world.until("the second answers the same socket", || ask().as_deref() == Some("10.1.0.2:8080"));
}

pub(crate) fn soak_killed_at_any_moment_no_connection_is_lost() {
    let seconds =
        std::env::var("ZONEWARD_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    let place = place("killed");
    let world = &place.world;
    put_pods(world, &[0, 1]);
    let start = || world.node("n1", &["--proxy-mode=nftables"]);
    let mut node = start();
    world.until("served", || are_served(&[0, 1]));
    // One connection of each family that is there from the beginning, and new ones all the time.
    let mut old = place.client.within(|| VIPS.map(|vip| connect(vip).unwrap().1));
    let seed = std::process::id();
    eprintln!("seed {seed}");
    let mut dice = u64::from(seed);
    let mut roll = |below: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % below
    };
    let (begin, mut kills, mut changes) = (Instant::now(), 0, 0);
    while begin.elapsed() < Duration::from_secs(seconds) {
        // Pods 0 and 1 hold the old connections: endpoints may go, connections to them may not.
        for _ in 0..roll(30) {
            let first = roll(4) as usize;
            put_pods(world, &[first, (first + 1 + roll(3) as usize) % 4]);
            changes += 2;
        }
        std::thread::sleep(Duration::from_millis(roll(20)));
        node.signal(Signal::SIGKILL);
        kills += 1;
        let new = place.client.within(|| VIPS.map(|vip| connect(vip).map(|(who, _)| who)));
        assert!(new.iter().all(Result::is_ok), "without a proxy the rules still hold: {new:?}");
        node = start();
        old = place.client.within(move || {
            for stream in &mut old {
                stream.write_all(b"still there?").unwrap();
                let mut buffer = [0; 12];
                stream.read_exact(&mut buffer).unwrap();
            }
            old
        });
        std::thread::sleep(Duration::from_millis(roll(300)));
    }
    // What has been gone longer than a programming delay gets nothing new, and nothing is left behind.
    put_pods(world, &[3]);
    world.until("settled", || are_served(&[3]));
    let who = place.client.within(|| VIPS.map(|vip| connect(vip).unwrap().0));
    assert_eq!(who, ["10.1.0.4:8080", "[fd00:1::4]:8080"]);
    node.signal(Signal::SIGTERM);
    let _node = start();
    world.until("settled again", || are_served(&[3]));
    eprintln!("{kills} kills, {changes} changes");
    assert!(kills > 3);
}
