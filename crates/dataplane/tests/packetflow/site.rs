//! A node and its neighbourhood in namespaces, for everybody who sends for real: this namespace is the node, seven pods are
//! next door each behind an interface of its own, and one more neighbour is everybody else.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use model::Name;
use model::forward::FirstPacket;

use super::addresses::{OUTSIDE, OWN, PODS, endpoint};
use super::connect::{Hope, Seen, send, serve, serve_datagrams};
use super::net::{Neighbour, be_a_router};
use super::sctp;

/// The node's neighbourhood.
pub(crate) struct Site {
    own: Vec<IpAddr>,
    pods: BTreeMap<u8, Neighbour>,
    /// Everybody else.
    pub(crate) others: Neighbour,
}

impl Site {
    pub(crate) fn new() -> Site {
        let own: Vec<IpAddr> = OWN.iter().map(|text| text.parse().unwrap()).collect();
        be_a_router(&own);
        let others = Neighbour::new(100, "cbr0");
        others.be_the_way_out();
        let more = ["2001:db8:2::1".to_owned(), endpoint(false, 9), endpoint(true, 9)];
        for address in OUTSIDE.iter().map(|text| (*text).to_owned()).chain(more) {
            others.add_address(address.parse().unwrap());
        }
        let pods = PODS.map(|index| (index, pod(index))).collect();
        Site { own, pods, others }
    }

    /// The namespace of a pod.
    pub(crate) fn pod(&self, index: u8) -> &Neighbour {
        &self.pods[&index]
    }

    /// One more pod.
    pub(crate) fn add_pod(&mut self, index: u8) {
        self.pods.insert(index, pod(index));
    }

    /// Where a client lives, and by which interface its packets come to the node.
    pub(crate) fn home(&self, client: IpAddr) -> (Option<&Neighbour>, Option<Name>) {
        if self.own.contains(&client) {
            return (None, None);
        }
        let is_pod = |index: &u8| [false, true].iter().any(|v6| endpoint(*v6, *index) == client.to_string());
        match self.pods.keys().copied().find(is_pod) {
            Some(index) => (self.pods.get(&index), Some(Name::new(&format!("cali{index}")))),
            None => (Some(&self.others), Some(Name::new("cbr0"))),
        }
    }

    pub(crate) fn send(&self, packet: &FirstPacket, hope: Hope) -> Seen {
        self.send_by(
            packet,
            match hope {
                Hope::Answer => |packet| send(packet, Hope::Answer),
                Hope::Silence => |packet| send(packet, Hope::Silence),
            },
        )
    }

    /// Sends in a certain way, from where the client is.
    pub(crate) fn send_by(&self, packet: &FirstPacket, way: fn(&FirstPacket) -> Seen) -> Seen {
        let sent = packet.clone();
        match self.home(packet.src.ip()).0 {
            Some(neighbour) => neighbour.within(move || way(&sent)),
            None => way(&sent),
        }
    }
}

/// A namespace with a pod that answers on every port that Services may send to.
fn pod(index: u8) -> Neighbour {
    let neighbour = Neighbour::new(index, &format!("cali{index}"));
    for v6 in [false, true] {
        let address: IpAddr = endpoint(v6, index).parse().unwrap();
        neighbour.add_address(address);
        neighbour.within(move || {
            sctp::serve(address, &[8080, 8081]);
            for port in [8080, 8081] {
                serve(SocketAddr::new(address, port));
                serve_datagrams(SocketAddr::new(address, port));
            }
        });
    }
    neighbour
}
