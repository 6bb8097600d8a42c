//! Connections that go on while pods are replaced, datagrams that have to move, and what is counted of it.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;

use super::connect::open;
use super::place::{From, Place, VIPS, here, there};
use super::world::{endpoints, get, service, slice};

pub(crate) fn vip(i: usize) -> SocketAddr {
    SocketAddr::new(VIPS[i].parse().unwrap(), 80)
}

fn are_served(pods: &[u8]) -> bool {
    let mut v4: Vec<String> = pods.iter().map(|i| format!("10.1.0.{i}:8080")).collect();
    let mut v6: Vec<String> = pods.iter().map(|i| format!("[fd00:1::{i}]:8080")).collect();
    v4.sort();
    v6.sort();
    endpoints(&vip(0).to_string()) == v4 && endpoints(&vip(1).to_string()) == v6
}

/// Connects from outside all the time while something is done; how often, and how often in vain.
pub(crate) fn meanwhile(place: &Place, work: impl FnOnce()) -> (usize, usize) {
    let stop = Arc::new(AtomicBool::new(false));
    let counts = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let (end, made) = (stop.clone(), counts.clone());
    let task = move || {
        while !end.load(Ordering::Relaxed) {
            for i in [0, 1] {
                made[0].fetch_add(1, Ordering::Relaxed);
                if let Err(error) = open(vip(i)) {
                    eprintln!("{}: {error}", vip(i));
                    made[1].fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    };
    let others = &place.site.others;
    std::thread::scope(|scope| {
        scope.spawn(|| others.within(task));
        work();
        stop.store(true, Ordering::Relaxed);
    });
    (counts[0].load(Ordering::Relaxed), counts[1].load(Ordering::Relaxed))
}

#[test]
fn pods_are_replaced_one_by_one_without_a_failed_connection() {
    toolbox::in_own_namespaces!();
    let place = Place::new("rolling");
    place.put_web(json!({}), &[there(1), there(2)]);
    let _node = place.start("clusterCIDR: 10.0.0.0/8");
    let (made, failed) = meanwhile(&place, || {
        for pods in [&[2, 3][..], &[3, 4], &[4, 1], &[1, 2, 3, 4], &[3]] {
            let list: Vec<_> = pods.iter().map(|pod| there(*pod)).collect();
            place.put_pods(&list);
            place.world.until("replaced", || are_served(pods));
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    assert!(made > 100, "{made}");
    assert_eq!(failed, 0, "of {made}");
    // Now only one pod is left, and it is the one that answers.
    VIPS.iter().for_each(|vip| assert_eq!(place.answering(From::Outside, (vip, 80)), 3));
}

#[test]
fn datagrams_follow_when_their_endpoint_goes() {
    toolbox::in_own_namespaces!();
    // Semantics D7: the flow is tracked to an endpoint that is gone.
    let place = Place::new("datagrams");
    let world = &place.world;
    for (ip, pods) in [("10.96.0.53", ["10.1.0.1", "10.1.0.2"]), ("fd00:96::53", ["fd00:1::1", "fd00:1::2"])]
    {
        let mut dns = service("dns", &[ip]);
        dns["spec"]["ports"][0]["protocol"] = "UDP".into();
        world.put(dns);
        let put = |pod: usize| {
            let mut object = slice("dns", &[(pods[pod], "")]);
            object["ports"][0]["protocol"] = "UDP".into();
            world.put(object);
        };
        put(0);
        let _node = world.node("n1", &["--proxy-mode=nftables"]);
        let to = SocketAddr::new(ip.parse().unwrap(), 80);
        let socket = place.site.others.within(move || {
            let any = if to.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
            let socket = UdpSocket::bind(any).unwrap();
            socket.connect(to).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            Arc::new(socket)
        });
        let ask = || {
            let socket = socket.clone();
            place.site.others.within(move || {
                let mut buffer = [0; 64];
                let _ = socket.send(b"?");
                let length = socket.recv(&mut buffer).ok()?;
                Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
            })
        };
        let answers = |pod: usize| {
            let own = SocketAddr::new(pods[pod].parse().unwrap(), 8080).to_string();
            ask().is_some_and(|told| told.starts_with(&own))
        };
        world.until("the first answers", || answers(0));
        put(1);
        world.until("the second answers the same socket", || answers(1));
    }
}

/// The sum of a metric's lines that have all of these words.
pub(crate) fn sum(name: &str, words: &[&str]) -> f64 {
    let text = get("127.0.0.1:10249", "/metrics").map_or(String::new(), |(_, _, text)| text);
    let lines =
        text.lines().filter(|line| line.starts_with(name) && words.iter().all(|word| line.contains(word)));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[test]
fn connections_and_bytes_are_counted_by_how_far_they_go() {
    toolbox::in_own_namespaces!();
    let place = Place::new("counted");
    place.put_web(json!({"type": "NodePort", "nodePort": 30_080}), &[here(1), there(5), there(6)]);
    let mut zones = ["za", "za", "zb"].into_iter().cycle();
    for mut slice in place.world.list("EndpointSlice") {
        for endpoint in slice["endpoints"].as_array_mut().unwrap() {
            endpoint["zone"] = zones.next().unwrap().into();
        }
        place.world.put(slice);
    }
    let node = place.start("clusterCIDR: 10.1.0.0/16,fd00:1::/64");
    let mut made = [0.0; 3];
    let mut connect = |from: From, to: (&str, u16)| {
        let pod = place.answering(from, to);
        made[match pod {
            1 => 0,
            5 => 1,
            _ => 2,
        }] += 1.0;
    };
    for _ in 0..12 {
        for i in [0, 1] {
            connect(From::Pod(2), (VIPS[i], 80));
            connect(From::Outside, (["198.51.100.1", "2001:db8:51::1"][i], 30_080));
            connect(From::Node, (VIPS[i], 80));
        }
    }
    let localities = ["same-node", "same-zone", "cross-zone"];
    let words = |locality: &str| [format!("locality=\"{locality}\""), "service=\"web\"".to_owned()];
    let told = |name: &str| {
        localities.map(|locality| {
            let words = words(locality);
            sum(name, &[&words[0], &words[1]])
        })
    };
    place.world.until("connections are counted", || told("zoneward_service_connections_total") == made);
    // Those that were closed tell their bytes as they go out of the kernel's table.
    super::namespace::run("conntrack", &["-F"]);
    place
        .world
        .until("bytes are counted", || told("zoneward_service_bytes_total").iter().all(|bytes| *bytes > 0.0));
    // What was counted before a start is not counted again.
    drop(node);
    let _node = place.start("clusterCIDR: 10.1.0.0/16,fd00:1::/64");
    let pod = place.answering(From::Pod(2), (VIPS[0], 80));
    place
        .world
        .until("one is counted", || told("zoneward_service_connections_total").iter().sum::<f64>() > 0.0);
    assert_eq!(told("zoneward_service_connections_total").iter().sum::<f64>(), 1.0, "pod {pod}");
}
