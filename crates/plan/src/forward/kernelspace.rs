//! Mode kernelspace: what a load balancer of HNS cannot express is taken out of the frontends, each with a Notice.
//!
//! It has one list of endpoints for all clients, one port of them, no weights, no allowed sources, and no timeout of
//! session affinity.

use std::net::SocketAddr;

use model::forward::{EndpointSet, ForwardedPort, Frontend};
use model::{Notice, ObjectRef, Service};

/// Most endpoints that a Notice names.
const NAMED: usize = 3;

/// Leaves one port and equal shares.
pub(super) fn limit_port(port: &mut ForwardedPort) -> Vec<Notice> {
    let mut left_out = limit_set(&mut port.cluster);
    left_out.extend(limit_set(&mut port.local));
    left_out.sort();
    left_out.dedup();
    let are_equal = [&mut port.cluster, &mut port.local].map(equalize).iter().all(|is_even| *is_even);
    let mut notices = Vec::new();
    let object = ObjectRef::service(&port.service);
    if !left_out.is_empty() {
        let named: Vec<String> = left_out.iter().take(NAMED).map(SocketAddr::to_string).collect();
        let more = match left_out.len() - named.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let message = format!(
            "port {port}: mode kernelspace forwards to one port of all endpoints, so those with another than most are left out: {}{more}; use the same targetPort in all pods",
            named.join(", ")
        );
        notices.push(Notice::new(object.clone(), "EndpointPortLeftOut", message));
    }
    if !are_equal {
        let message = format!(
            "port {port}: mode kernelspace has no weights, so the endpoints of Spill get equal shares on this node; use PreferSameZone, or Linux nodes, where shares matter"
        );
        notices.push(Notice::new(object, "SharesIgnored", message));
    }
    notices
}

/// Keeps the endpoints with the port that most have. Returns the others.
fn limit_set(set: &mut EndpointSet) -> Vec<SocketAddr> {
    let main = set.main_port();
    let has_main = |address: &SocketAddr| Some(address.port()) == main;
    let others = set.endpoints.iter().map(|e| e.address()).filter(|address| !has_main(address)).collect();
    set.endpoints = set.endpoints.iter().filter(|e| has_main(&e.address())).copied().collect();
    others
}

/// Returns whether shares were equal before.
fn equalize(set: &mut EndpointSet) -> bool {
    let was_even = set.is_even();
    set.endpoints.iter_mut().for_each(|endpoint| endpoint.weight = 1.0);
    was_even
}

/// Leaves one action for all clients, from everywhere.
pub(super) fn limit_frontends(service: &Service, frontends: &mut [Frontend]) -> Vec<Notice> {
    let has_ranges = frontends.iter().any(|frontend| frontend.source_ranges.is_some());
    let has_affinity = frontends.iter().any(|frontend| frontend.port.affinity_seconds.is_some());
    for frontend in frontends {
        (frontend.inside, frontend.source_ranges) = (None, None);
    }
    let ranges = has_ranges.then_some((
        "SourceRangesIgnored",
        "spec.loadBalancerSourceRanges: mode kernelspace cannot drop packets, so every client reaches the load balancer IPs; restrict clients in the load balancer or a firewall",
    ));
    let affinity = has_affinity.then_some((
        "AffinityWithoutTimeout",
        "spec.sessionAffinityConfig.clientIP.timeoutSeconds: mode kernelspace has no timeout; a client keeps its endpoint while the endpoints stay the same",
    ));
    let notices = ranges.into_iter().chain(affinity);
    notices.map(|(reason, message)| Notice::new(ObjectRef::service(&service.key), reason, message)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::forward::{ForwardingMode, ForwardingTable};
    use model::{Interner, Node, Snapshot, parse};
    use serde_json::{Value, json};

    use super::super::{NodeConfig, ProxySettings, table};
    use super::*;

    fn planned(objects: &[Value], mode: ForwardingMode) -> (ForwardingTable, Vec<Notice>) {
        let mut snapshot = Snapshot::default();
        for object in objects {
            snapshot.apply(parse::object(object, &mut Interner::default()).0.unwrap());
        }
        let settings = ProxySettings { mode, ..ProxySettings::without_flags() };
        let node = Node { zone: Some("za".into()), ..Node::named("here") };
        table(&snapshot, &NodeConfig::new(&settings, &node, &[], &[]).0)
    }

    fn slice(name: &str, port: u16, hosts: &[u8], annotations: Value) -> Value {
        let endpoint = |host: &u8| {
            let zone = if *host < 10 { "za" } else { "zb" };
            json!({"addresses": [format!("10.1.0.{host}")], "zone": zone, "nodeName": "there",
                "conditions": {"ready": true}, "hints": {"forZones": [{"name": "za"}]}})
        };
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": name, "namespace": "ns", "annotations": annotations,
                "labels": {"kubernetes.io/service-name": "web"}},
            "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
            "endpoints": hosts.iter().map(endpoint).collect::<Vec<_>>()})
    }

    fn service() -> Value {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "ns"},
            "spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"],
                "externalTrafficPolicy": "Local", "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
                "loadBalancerSourceRanges": ["203.0.113.0/24"],
                "ports": [{"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30000}]},
            "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}})
    }

    #[test]
    fn what_hns_cannot_express_is_left_out_with_a_notice() {
        let objects = [service(), slice("a", 8080, &[1, 2], json!({})), slice("b", 9090, &[3], json!({}))];
        let (table, notices) = planned(&objects, ForwardingMode::Kernelspace);
        let (_, frontends) = table.services().next().unwrap();
        assert!(frontends.iter().all(|f| f.inside.is_none() && f.source_ranges.is_none()));
        let set = &frontends[0].port.cluster;
        assert_eq!(set.endpoints.iter().map(|e| e.address().port()).collect::<Vec<_>>(), [8080, 8080]);
        let reasons: Vec<&str> = notices.iter().map(|notice| notice.reason).collect();
        assert_eq!(reasons, ["EndpointPortLeftOut", "SourceRangesIgnored", "AffinityWithoutTimeout"]);
        assert!(notices[0].message.contains("10.1.0.3:9090"), "{}", notices[0]);
        let (other, notices) = planned(&objects, ForwardingMode::Nftables);
        let (_, frontends) = other.services().next().unwrap();
        assert_eq!(frontends[0].port.cluster.endpoints.len(), 3);
        assert!(notices.is_empty(), "{notices:?}");
    }

    #[test]
    fn spill_is_its_set_without_shares() {
        let spill = json!({"zoneward.dev/mechanism": "Spill", "zoneward.dev/demand": "za=200,zb=56"});
        let mut service = service();
        service["metadata"]["annotations"] = json!({"zoneward.dev/traffic-distribution": "Spill"});
        let objects = [service, slice("a", 8080, &[1, 2, 10, 11, 12], spill)];
        let (with_shares, _) = planned(&objects, ForwardingMode::Nftables);
        let (without, notices) = planned(&objects, ForwardingMode::Kernelspace);
        let port = |table: &ForwardingTable| Arc::clone(&table.services().next().unwrap().1[0].port);
        let (with_shares, without) = (port(&with_shares).cluster.clone(), port(&without).cluster.clone());
        assert!(!with_shares.is_even() && without.is_even(), "{with_shares:?}");
        let addresses = |set: &EndpointSet| set.endpoints.iter().map(|e| e.address()).collect::<Vec<_>>();
        assert_eq!(addresses(&with_shares), addresses(&without));
        assert!(notices.iter().any(|notice| notice.reason == "SharesIgnored"), "{notices:?}");
    }
}
