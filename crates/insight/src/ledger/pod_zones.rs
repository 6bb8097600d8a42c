//! The zones of pod addresses, by the podCIDRs of Nodes: the controller sends them to nodes, which watch neither Pods nor
//! other Nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use ipnet::IpNet;
use model::{ObjectKey, Snapshot};
use serde::{Deserialize, Serialize};

/// The podCIDRs of each zone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodZones {
    /// Differs if the content differs; never 0.
    pub version: u64,
    pub cidrs_by_zone: BTreeMap<String, Vec<IpNet>>,
    /// Pods whose traffic their own reports count: embedded proxies.
    #[serde(default)]
    pub proxies: BTreeSet<IpAddr>,
}

impl PodZones {
    /// A Node without a zone has the zone "".
    pub fn of(snapshot: &Snapshot, proxies: BTreeSet<IpAddr>) -> Self {
        let mut cidrs_by_zone: BTreeMap<String, Vec<IpNet>> = BTreeMap::new();
        for node in snapshot.nodes().values().filter(|node| !node.pod_cidrs.is_empty()) {
            let zone = node.zone.as_deref().unwrap_or_default().to_owned();
            cidrs_by_zone.entry(zone).or_default().extend(node.pod_cidrs.iter().copied());
        }
        let mut hasher = DefaultHasher::new();
        (&cidrs_by_zone, &proxies).hash(&mut hasher);
        Self { version: hasher.finish().max(1), cidrs_by_zone, proxies }
    }
}

/// What is known of a proxy that reports its own traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedProxy {
    /// The pod of its token; `None` for a process of this machine, which has none.
    pub pod: Option<ObjectKey>,
    /// Where its report came from, if over TCP.
    pub peer: Option<IpAddr>,
    /// The addresses that it names.
    pub named: Vec<IpAddr>,
}

/// The addresses whose connections nodes leave to the proxies' own reports. Those of a node are never among them: on the
/// host network, connections of the proxy and of the node's other processes look alike.
pub fn proxy_addresses<'p>(
    snapshot: &Snapshot,
    proxies: impl IntoIterator<Item = &'p ReportedProxy>,
) -> BTreeSet<IpAddr> {
    let nodes = snapshot.nodes().values();
    let cidrs: Vec<IpNet> = nodes.clone().flat_map(|node| node.pod_cidrs.iter().copied()).collect();
    let of_nodes: BTreeSet<IpAddr> = nodes.flat_map(|node| node.addresses.iter().copied()).collect();
    let mut addresses = BTreeSet::new();
    for proxy in proxies {
        let is_own = |ip: &IpAddr| match &proxy.pod {
            Some(pod) => {
                let ips = snapshot.pod(pod).and_then(|pod| pod.ips.as_ref());
                ips.is_some_and(|ips| ips.iter().any(|own| own == *ip))
            }
            // A process with another address is not in a pod, and its addresses are the host's.
            None => proxy.named.iter().all(|ip| cidrs.iter().any(|cidr| cidr.contains(ip))),
        };
        let named = proxy.named.iter().copied().filter(is_own);
        addresses.extend(proxy.peer.into_iter().chain(named).filter(|ip| !of_nodes.contains(ip)));
    }
    addresses
}

/// [`PodZones`] by address.
#[derive(Clone, Debug, Default)]
pub struct ZoneLookup {
    pub version: u64,
    /// podCIDRs do not overlap, so the nearest one that starts before an address decides.
    by_start: BTreeMap<IpAddr, (IpNet, String)>,
    proxies: BTreeSet<IpAddr>,
}

impl ZoneLookup {
    /// The zone of a pod; `None` if the address is not a pod's.
    pub fn zone(&self, address: IpAddr) -> Option<&str> {
        let (_, (cidr, zone)) = self.by_start.range(..=address).next_back()?;
        cidr.contains(&address).then_some(zone.as_str())
    }

    /// Whether the pod counts its own traffic.
    pub fn is_proxy(&self, address: IpAddr) -> bool {
        self.proxies.contains(&address)
    }
}

impl From<PodZones> for ZoneLookup {
    fn from(zones: PodZones) -> Self {
        let mut by_start = BTreeMap::new();
        for (zone, cidrs) in zones.cidrs_by_zone {
            by_start.extend(cidrs.into_iter().map(|cidr| (cidr.network(), (cidr, zone.clone()))));
        }
        Self { version: zones.version, by_start, proxies: zones.proxies }
    }
}

#[cfg(test)]
mod tests {
    use model::{Interner, parse};
    use serde_json::json;

    use super::*;

    #[test]
    fn an_address_has_the_zone_of_its_node_and_others_have_none() {
        let mut snapshot = Snapshot::default();
        for (name, zone, cidr) in [("n1", "za", "10.1.0.0/24"), ("n2", "zb", "10.1.2.0/24")] {
            let node = json!({"apiVersion": "v1", "kind": "Node",
                "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
                "spec": {"podCIDR": cidr, "podCIDRs": [cidr, format!("fd00:{zone}::/64").replace('z', "a")]}});
            snapshot.apply(parse::object(&node, &mut Interner::default()).0.unwrap());
        }
        let zones = PodZones::of(&snapshot, BTreeSet::new());
        let again: PodZones = serde_json::from_str(&serde_json::to_string(&zones).unwrap()).unwrap();
        assert_eq!(again, zones);
        let lookup = ZoneLookup::from(again);
        for (address, zone) in [
            ("10.1.0.7", Some("za")),
            ("10.1.1.7", None),
            ("10.1.2.255", Some("zb")),
            ("10.0.0.1", None),
            ("fd00:aa::5", Some("za")),
            ("fd00:ab::5", Some("zb")),
        ] {
            assert_eq!(lookup.zone(address.parse().unwrap()), zone, "{address}");
        }
        let proxies = BTreeSet::from(["10.1.0.9".parse().unwrap()]);
        assert_ne!(PodZones::of(&snapshot, proxies).version, zones.version);
    }

    #[test]
    fn a_proxy_names_the_addresses_of_its_own_pod_alone() {
        let mut snapshot = Snapshot::default();
        for object in [
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "spec": {"podCIDRs": ["10.1.0.0/24"]},
                "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}),
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "edge", "namespace": "shop"},
                "status": {"podIPs": [{"ip": "10.1.0.9"}, {"ip": "192.0.2.1"}]}}),
        ] {
            snapshot.apply(parse::object(&object, &mut Interner::default()).0.unwrap());
        }
        let ips = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        let found = |pod: Option<&str>, peer: &[&str], named: &[&str]| {
            let pod = pod.map(|pod| ObjectKey::new(&"shop".into(), &pod.into()));
            let proxy = ReportedProxy { pod, peer: ips(peer).first().copied(), named: ips(named) };
            proxy_addresses(&snapshot, [&proxy]).into_iter().collect::<Vec<IpAddr>>()
        };
        // With a token: those of its pod, and neither another pod's nor the node's.
        assert_eq!(found(Some("edge"), &[], &["10.1.0.9", "10.1.0.8", "192.0.2.1"]), ips(&["10.1.0.9"]));
        assert_eq!(found(Some("unknown"), &[], &["10.1.0.9"]), ips(&[]));
        assert_eq!(found(Some("edge"), &["10.1.0.9"], &[]), ips(&["10.1.0.9"]));
        assert_eq!(found(Some("edge"), &["192.0.2.1"], &[]), ips(&[]), "on the host network");
        // Without one: in a pod, and not on the host, which has the address of a bridge as well.
        assert_eq!(found(None, &[], &["10.1.0.7"]), ips(&["10.1.0.7"]));
        assert_eq!(found(None, &[], &["10.1.0.1", "198.51.100.1"]), ips(&[]));
    }
}
