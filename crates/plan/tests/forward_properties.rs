//! Whatever Services tenants write: a cluster IP and a node port lead to the Service that they were allocated to, and the
//! order of events does not matter.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::forward::{FirstPacket, ForwardingTable, Frontend};
use model::{Interner, Name, Node, Protocol, ServiceKey, Snapshot, parse};
use plan::forward::{Forwarder, NodeConfig, ProxySettings, table};
use proptest::prelude::*;
use serde_json::{Value, json};

const OWN: [&str; 3] = ["198.51.100.1", "198.51.100.2", "198.51.100.3"];
const PORTS: [u16; 4] = [80, 443, 30_000, 30_001];

/// What one tenant writes; cluster IP and node port follow from its number, as an allocator gives them.
#[derive(Clone, Debug)]
struct Tenant {
    created: u8,
    external: Vec<u8>,
    load_balancer: Vec<u8>,
    ports: BTreeSet<u16>,
    has_node_port: bool,
}

fn tenant() -> impl Strategy<Value = Tenant> {
    let ports = prop::collection::btree_set(prop::sample::select(&PORTS[..]), 1..3);
    let ips = || prop::collection::vec(0..12u8, 0..3);
    (0..4u8, ips(), ips(), ports, any::<bool>()).prop_map(
        |(created, external, load_balancer, ports, has_node_port)| Tenant {
            created,
            external,
            load_balancer,
            ports,
            has_node_port,
        },
    )
}

/// Cluster IPs of others, addresses of the node, and a few more.
fn wanted_ip(index: u8) -> String {
    match index {
        0..=5 => cluster_ip(usize::from(index)),
        6..=8 => OWN[usize::from(index - 6)].to_owned(),
        other => format!("192.0.2.{other}"),
    }
}

fn cluster_ip(index: usize) -> String {
    format!("10.96.0.{}", index + 1)
}

fn node_port(index: usize) -> u16 {
    30_000 + index as u16
}

fn service(index: usize, tenant: &Tenant) -> Value {
    let ips = |list: &[u8]| list.iter().map(|i| wanted_ip(*i)).collect::<Vec<_>>();
    let ingress: Vec<Value> = ips(&tenant.load_balancer).iter().map(|ip| json!({"ip": ip})).collect();
    let mut ports: Vec<Value> =
        tenant.ports.iter().map(|port| json!({"name": format!("p{port}"), "port": port})).collect();
    if tenant.has_node_port {
        ports[0]["nodePort"] = node_port(index).into();
    }
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": format!("s{index}"), "namespace": "ns",
            "creationTimestamp": format!("2026-01-0{}T00:00:00Z", tenant.created + 1)},
        "spec": {"type": "LoadBalancer", "clusterIP": cluster_ip(index), "clusterIPs": [cluster_ip(index)],
            "externalIPs": ips(&tenant.external), "ports": ports},
        "status": {"loadBalancer": {"ingress": ingress}},
    })
}

fn config(addresses: &[IpAddr]) -> NodeConfig {
    let node = Node::named("here");
    let settings =
        ProxySettings { node_port_addresses: vec!["0.0.0.0/0".to_owned()], ..ProxySettings::without_flags() };
    NodeConfig::new(&settings, &node, &["10.96.0.0/16".parse().unwrap()], addresses).0
}

fn own(count: usize) -> Vec<IpAddr> {
    OWN[..count].iter().map(|text| text.parse().unwrap()).collect()
}

fn met<'t>(table: &'t ForwardingTable, address: &str, port: u16) -> Option<&'t Frontend> {
    let dst = format!("{address}:{port}").parse().unwrap();
    let src = "203.0.113.9:40000".parse().unwrap();
    table.decide(&FirstPacket { src, dst, protocol: Protocol::Tcp, iif: None }).frontend
}

fn check(table: &ForwardingTable, tenants: &[Option<Tenant>], own: &[IpAddr]) -> Result<(), TestCaseError> {
    for (index, tenant) in tenants.iter().enumerate() {
        let Some(tenant) = tenant else { continue };
        let key = format!("ns/s{index}");
        for port in PORTS {
            let owner = met(table, &cluster_ip(index), port).map(|f| f.port.service.to_string());
            let expected = tenant.ports.contains(&port).then(|| key.clone());
            prop_assert_eq!(owner, expected, "{} port {}", cluster_ip(index), port);
        }
        if tenant.has_node_port {
            for address in own {
                let owner = met(table, &address.to_string(), node_port(index));
                let owner = owner.map(|f| f.port.service.to_string());
                prop_assert_eq!(owner.as_deref(), Some(key.as_str()), "node port on {}", address);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn allocated_addresses_stay_with_their_service(
        steps in prop::collection::vec((0..6usize, prop::option::weighted(0.8, tenant()), 0..=3usize), 1..20),
    ) {
        let mut interner = Interner::default();
        let mut snapshot = Snapshot::default();
        let mut tenants: Vec<Option<Tenant>> = vec![None; 6];
        let mut forwarder = Forwarder::new(config(&[]));
        for (index, tenant, addresses) in steps {
            let key = ServiceKey::new(&Name::new("ns"), &Name::new(&format!("s{index}")));
            match &tenant {
                Some(tenant) => {
                    let (object, _) = parse::object(&service(index, tenant), &mut interner);
                    snapshot.apply(object.unwrap());
                }
                None => snapshot.remove_service(&key),
            }
            tenants[index] = tenant;
            let own = own(addresses);
            let mut dirty = forwarder.set_addresses(config(&own).rules.addresses);
            dirty.insert(key);
            forwarder.update(&snapshot, &dirty);
            let (fresh, notices) = table(&snapshot, &config(&own));
            prop_assert_eq!(forwarder.table(), &fresh);
            prop_assert_eq!(forwarder.all_notices().cloned().collect::<Vec<_>>(), notices);
            check(&fresh, &tenants, &own)?;
        }
    }
}
