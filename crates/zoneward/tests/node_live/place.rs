//! A running node in its neighbourhood of namespaces, and what it is to do with connections of either family.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use model::Protocol;
use model::forward::FirstPacket;
use serde_json::{Value, json};

use super::addresses::{OUTSIDE, OWN, endpoint};
use super::connect::{Hope, Seen};
use super::site::Site;
use super::world::{Proxy, World, config, metric};

/// The cluster IPs of the Service that most tests are about.
pub(crate) const VIPS: [&str; 2] = ["10.96.0.7", "fd00:96::7"];

/// Who connects.
#[derive(Clone, Copy, Debug)]
pub(crate) enum From {
    /// The pod of this number.
    Pod(u8),
    /// Somebody outside of the cluster.
    Outside,
    /// Somebody else outside, in another range.
    Stranger,
    /// The node itself.
    Node,
}

impl From {
    fn address(self, v6: bool) -> IpAddr {
        let text = match (self, v6) {
            (From::Pod(index), _) => endpoint(v6, index),
            (From::Outside, false) => OUTSIDE[0].to_owned(),
            (From::Outside, true) => OUTSIDE[3].to_owned(),
            (From::Stranger, false) => OUTSIDE[1].to_owned(),
            (From::Stranger, true) => OUTSIDE[4].to_owned(),
            (From::Node, _) => OWN[usize::from(v6)].to_owned(),
        };
        text.parse().unwrap()
    }
}

/// Whether the endpoint sees the client's own address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Kept,
    Masqueraded,
}

/// An endpoint: pod, node, and what conditions say.
#[derive(Clone, Copy)]
pub(crate) struct Pod {
    index: u8,
    node: &'static str,
    terminating: bool,
}

/// A pod of this node.
pub(crate) fn here(index: u8) -> Pod {
    Pod { index, node: "n1", terminating: false }
}

/// A pod of another node.
pub(crate) fn there(index: u8) -> Pod {
    Pod { index, node: "n2", terminating: false }
}

impl Pod {
    /// It is about to end, and still answers.
    pub(crate) fn terminating(self) -> Pod {
        Pod { terminating: true, ..self }
    }
}

pub(crate) struct Place {
    pub(crate) site: Site,
    pub(crate) world: World,
    revision: Cell<u64>,
}

impl Place {
    /// A node, seven pods and an outside, without a Service.
    pub(crate) fn new(name: &str) -> Place {
        let site = Site::new();
        let world = World::new(name);
        world.put_service_cidr("kubernetes", &["10.96.0.0/16", "fd00:96::/112"]);
        let place = Place { site, world, revision: Cell::new(0) };
        place.put_node(&[]);
        place
    }

    /// This node, with its pod ranges.
    pub(crate) fn put_node(&self, pod_cidrs: &[&str]) {
        self.world.put(json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "za"}},
            "spec": {"podCIDRs": pod_cidrs},
            "status": {"addresses": OWN[..2].iter().map(|ip| json!({"type": "InternalIP", "address": ip})).collect::<Vec<_>>()}}));
    }

    /// A Service `web`, 80 to 8080, with more in its spec; and its pods.
    pub(crate) fn put_web(&self, spec: Value, pods: &[Pod]) {
        let mut object = super::world::service("web", &VIPS);
        for (field, value) in spec.as_object().unwrap() {
            match field.as_str() {
                "status" => object["status"] = value.clone(),
                "nodePort" => object["spec"]["ports"][0]["nodePort"] = value.clone(),
                field => object["spec"][field] = value.clone(),
            }
        }
        self.world.put(object);
        self.put_pods(pods);
    }

    /// Other pods for the Service `web`.
    pub(crate) fn put_pods(&self, pods: &[Pod]) {
        for v6 in [false, true] {
            let addresses: Vec<String> = pods.iter().map(|pod| endpoint(v6, pod.index)).collect();
            let list: Vec<(&str, &str)> = addresses.iter().map(|address| (address.as_str(), "")).collect();
            let mut slice = super::world::slice("web", &list);
            slice["metadata"]["name"] = (if v6 { "web-6" } else { "web-4" }).into();
            slice["addressType"] = (if v6 { "IPv6" } else { "IPv4" }).into();
            for (i, pod) in pods.iter().enumerate() {
                let is_ready = !pod.terminating;
                slice["endpoints"][i]["nodeName"] = pod.node.into();
                slice["endpoints"][i]["conditions"] =
                    json!({"ready": is_ready, "serving": true, "terminating": pod.terminating});
            }
            self.revision.set(self.world.put(slice));
        }
    }

    /// Starts the proxy with these lines of configuration, and waits until all is programmed.
    pub(crate) fn start(&self, lines: &str) -> Proxy {
        let path = config(&self.world.folder, lines);
        let proxy = self.world.node("n1", &["--config", &path]);
        self.settle();
        proxy
    }

    /// Waits until the last pods are programmed.
    pub(crate) fn settle(&self) {
        let wanted = self.revision.get() as f64;
        self.world.until("programmed", || {
            metric("zoneward_node_programmed_revision").is_some_and(|seen| seen >= wanted)
        });
    }

    fn send(&self, from: From, to: SocketAddr, hope: Hope) -> Seen {
        let src = SocketAddr::new(from.address(to.is_ipv6()), 0);
        self.site.send(&FirstPacket { src, dst: to, protocol: Protocol::Tcp, iif: None }, hope)
    }

    /// One connection; the number of the pod that answers it.
    pub(crate) fn answering(&self, from: From, to: (&str, u16)) -> u8 {
        let to = SocketAddr::new(to.0.parse().unwrap(), to.1);
        match self.send(from, to, Hope::Answer) {
            Seen::Answered(pod, _) => (0..=u8::MAX).find(|i| is_pod(pod.ip(), *i)).unwrap(),
            seen => panic!("{from:?} to {to}: {seen:?}\n{}", self.world.log()),
        }
    }

    /// Connections reach all of these pods and no other.
    pub(crate) fn goes(&self, from: From, to: (&str, u16), pods: &[u8], source: Source) {
        let to = SocketAddr::new(to.0.parse().unwrap(), to.1);
        let about = format!("{from:?} to {to}");
        let expected: BTreeSet<IpAddr> =
            pods.iter().map(|index| endpoint(to.is_ipv6(), *index).parse().unwrap()).collect();
        let mut seen = BTreeSet::new();
        let most = if pods.len() > 1 { 60 * pods.len() } else { 3 };
        for tried in 0..most {
            match self.send(from, to, Hope::Answer) {
                Seen::Answered(pod, client) => {
                    let is_kept = client == from.address(to.is_ipv6());
                    assert_eq!(is_kept, source == Source::Kept, "{about}: {pod} saw {client}");
                    seen.insert(pod.ip());
                }
                other => panic!("{about}: {other:?}\n{}", self.world.log()),
            }
            // All were met, and then as many again met no other.
            if seen.len() >= pods.len() && tried > 4 * pods.len() {
                break;
            }
        }
        assert_eq!(seen, expected, "{about}");
    }

    pub(crate) fn is_refused(&self, from: From, to: (&str, u16)) {
        let to = SocketAddr::new(to.0.parse().unwrap(), to.1);
        assert_eq!(self.send(from, to, Hope::Answer), Seen::Refused, "{from:?} to {to}");
    }

    pub(crate) fn is_dropped(&self, from: From, to: (&str, u16)) {
        let to = SocketAddr::new(to.0.parse().unwrap(), to.1);
        assert_eq!(self.send(from, to, Hope::Silence), Seen::Silence, "{from:?} to {to}");
    }
}

fn is_pod(address: IpAddr, index: u8) -> bool {
    endpoint(address.is_ipv6(), index) == address.to_string()
}

/// Whether the rules masquerade a pod and somebody outside as they should, by the kernel's own tables.
pub(crate) fn is_settled_as(place: &Place, pod: Source, outside: Source) -> bool {
    let program = super::world::held();
    VIPS.iter().all(|vip| {
        let to = SocketAddr::new(vip.parse().unwrap(), 80);
        [(From::Pod(1), pod), (From::Outside, outside)].into_iter().all(|(from, source)| {
            let src = SocketAddr::new(from.address(to.is_ipv6()), 40_000);
            let mut packet = dataplane::nftables::trace::TracedPacket::new(6, src, to);
            packet.iif = place.site.home(src.ip()).1.map(|name| name.as_str().into());
            let node = dataplane::nftables::trace::NodeAddresses::default();
            let found = dataplane::nftables::trace::evaluate(&program, &packet, &node);
            found.is_ok_and(|found| found.masquerade == (source == Source::Masqueraded))
        })
    })
}
