//! Which stored slices Auto leaves alone: the shared test cases.

use std::collections::BTreeMap;

use model::{Addresses, EndpointConditions, Hints, Name, Node};
use serde_json::{Value, json};

use super::*;
use crate::hints::ClusterTopology;

fn node(zone: &str) -> (Name, Node) {
    let node = Node { zone: Some(Name::new(zone)), cpu_millis: Some(1_000), ..Node::named(zone) };
    (node.name.clone(), node)
}

fn endpoint(value: &Value) -> Endpoint {
    let zones = value["hints"]["forZones"].as_array().into_iter().flatten();
    let zones: Box<[Name]> = zones.map(|z| Name::new(z["name"].as_str().unwrap())).collect();
    Endpoint {
        addresses: Addresses::one(std::net::IpAddr::from([10, 0, 0, 1])),
        conditions: EndpointConditions {
            ready: value["conditions"]["ready"].as_bool(),
            ..EndpointConditions::default()
        },
        node: None,
        zone: value["zone"].as_str().map(Name::new),
        hints: Some(Hints { zones, nodes: Box::default() }.into()),
        identity: None,
    }
}

#[test]
fn a_slice_stays_while_its_hints_fit_the_allocation() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/hints-auto.json");
    let all: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let kind = "existing-slice-hints-valid";
    let vectors = all["vectors"].as_array().unwrap().iter().filter(|v| v["kind"] == kind);
    let mut seen = 0;
    for vector in vectors {
        seen += 1;
        let input = &vector["input"];
        let allocated = input["allocations"].as_object().unwrap();
        // A zone that holds hints without an allocation is one that the nodes know and Auto does not count.
        let known = allocated.keys().chain(input["hintsAlreadyAllocated"].as_object().unwrap().keys());
        let topology = ClusterTopology::from_nodes(&known.map(|zone| node(zone)).collect::<BTreeMap<_, _>>());
        let endpoints = EndpointsByZone::new(&topology, &Packing::default());
        let names: Vec<&Name> = topology.zones().iter().map(|z| &z.name).collect();
        let counts: Vec<usize> = names
            .iter()
            .map(|z| input["hintsAlreadyAllocated"][z.as_str()].as_u64().unwrap_or(0) as usize)
            .collect();
        let allocations: Vec<ZoneAllocation> = names
            .iter()
            .enumerate()
            .filter_map(|(zone, name)| {
                let maximum = allocated.get(name.as_str())?["maximum"].as_u64().unwrap() as usize;
                Some(ZoneAllocation { zone, minimum: 0, desired: 0.0, maximum })
            })
            .collect();
        let listed: Vec<Endpoint> =
            input["slice"]["endpoints"].as_array().into_iter().flatten().map(endpoint).collect();
        let hints = slice_hints(&endpoints, &listed, &counts, &allocations);
        let hints = hints.map(|counts| {
            let counts = names.iter().zip(counts).filter(|(_, n)| *n > 0);
            counts.map(|(zone, n)| (zone.to_string(), n)).collect::<BTreeMap<_, _>>()
        });
        assert_eq!(json!(hints), vector["expect"]["hintsPerZone"], "{}", vector["id"]);
    }
    assert!(seen > 0, "no vector of kind {kind}");
}
