//! A generated cluster, with pods spread as by a scheduler.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use model::service::ClusterIps;
use model::{Addresses, Name, ObjectKey, Pod, PodDetails, ServiceKey, Timestamp, Uid};

use super::{InitialCluster, PodTimings};
use crate::synthetic;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterSize {
    /// At least one.
    pub zones: usize,
    pub nodes: usize,
    pub services: usize,
    /// Endpoints per Service.
    pub endpoints: usize,
}

pub fn generated_cluster(size: ClusterSize, timings: PodTimings) -> InitialCluster {
    let mut start = InitialCluster { timings, ..InitialCluster::default() };
    let zones: Vec<Name> = (0..size.zones.max(1)).map(|at| Name::new(&zone_name(at))).collect();
    for at in 0..size.nodes {
        let name = Name::new(&format!("node-{at:04}"));
        let node = synthetic::node(&name, &zones[at % zones.len()], true, 4_000);
        start.nodes.insert(name, node);
    }
    let nodes: Vec<Name> = start.nodes.keys().cloned().collect();
    let namespace = Name::new("default");
    let mut pods = 0;
    for number in 0..size.services {
        let name = Name::new(&format!("service-{number:05}"));
        let mut service = synthetic::service(&[]);
        service.key = ServiceKey::new(&namespace, &name);
        service.uid = Some(Uid::new(&format!("00000000-0000-4000-9000-{number:012x}")));
        service.selector = Some([("app", name.as_str())].into_iter().collect());
        let ip = Ipv4Addr::from_bits(0x0a60_0000 + number as u32 + 1);
        service.cluster_ips = ClusterIps::Addresses([IpAddr::V4(ip)].into());
        for at in 0..size.endpoints {
            // Round robin over nodes, and so over zones; each Service starts at another node.
            let node = nodes.get((number * 7 + at) % nodes.len().max(1)).cloned();
            start.pods.push(pod(&ServiceKey::new(&namespace, &name), at, pods, node));
            pods += 1;
        }
        start.services.push(service);
    }
    start
}

/// `zone-a` to `zone-z`, then `zone-27`.
fn zone_name(at: usize) -> String {
    match u8::try_from(at).ok().filter(|at| *at < 26) {
        Some(at) => format!("zone-{}", char::from(b'a' + at)),
        None => format!("zone-{}", at + 1),
    }
}

fn pod(service: &ServiceKey, at: usize, number: u32, node: Option<Name>) -> Pod {
    let name = Name::new(&format!("{}-{at:03}", service.name));
    Pod {
        key: ObjectKey::new(&service.namespace, &name),
        uid: Some(Uid::new(&format!("00000000-0000-4000-a000-{number:012x}"))),
        labels: [("app", service.name.as_str())].into_iter().collect(),
        node,
        ips: Some(Addresses::one(IpAddr::V4(Ipv4Addr::from_bits(0x0b00_0000 + number + 1)))),
        details: None::<Arc<PodDetails>>,
        ready_since: Some(Timestamp::from_seconds(0)),
        ready: true,
        deleting: false,
        finished: false,
        has_ip: true,
    }
}
