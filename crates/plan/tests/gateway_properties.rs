//! A gateway's routes that are kept up are those made from nothing, and what did not change is the same value.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fixtures::object;
use model::route::{HttpRule, MeshGateway, RouteTable, Routing};
use model::{Name, ObjectKey, ServiceKey, Snapshot};
use plan::routes::{GatewayRoutes, gateway};
use proptest::prelude::*;
use serde_json::{Value, json};

const SERVICES: [&str; 3] = ["x", "y", "z"];

#[derive(Clone, Debug)]
enum Step {
    Put(usize, Value),
    Remove(usize),
    Service(usize, bool),
}

fn rule() -> impl Strategy<Value = Value> {
    let path = prop_oneof![
        prop::sample::select(vec!["/a", "/a/b", "/c"]).prop_map(|path| json!({"prefix": path})),
        Just(json!({"exact": "/a"})),
        Just(json!({"regex": "/[a-c]+"})),
    ];
    // At a gateway a rule needs a backend or an answer.
    let backends = prop::collection::vec(prop::sample::select(SERVICES.to_vec()), 0..3);
    let filters = prop::option::of(prop::bool::ANY);
    (path, backends, filters).prop_map(|(path, backends, filters)| {
        let one = |name: &&str| json!({"kind": "MeshService", "name": name});
        let mirror = json!([{"requestMirror": {"backendRef": {"kind": "MeshService", "name": "z"}}}]);
        let mut default = json!({"backendRefs": backends.iter().map(one).collect::<Vec<_>>()});
        match filters {
            _ if backends.is_empty() => default = json!({"filters": [{"directResponse": {"status": 200}}]}),
            Some(true) => default["filters"] = mirror,
            Some(false) => default["filters"] = json!([]),
            None => {}
        }
        json!({"matches": [{"path": path}], "default": default})
    })
}

fn policy() -> impl Strategy<Value = Value> {
    let names = vec!["a.example.com", "b.a.example.com", "*.example.com", "*.a.example.com", "*.org", "*"];
    let hosts = prop::collection::vec(prop::sample::select(names), 0..3);
    let gateway = prop::sample::select(vec!["edge", "edge", "edge", "other"]);
    let tags = prop::sample::select(vec![json!(null), json!({"door": "tls"}), json!({"door": "none"})]);
    (hosts, gateway, tags, prop::collection::vec(rule(), 1..4)).prop_map(|(hosts, gateway, tags, rules)| {
        let mut spec = json!({"targetRef": {"kind": "MeshGateway", "name": gateway}, "rules": rules});
        if !tags.is_null() {
            spec["targetRef"]["tags"] = tags;
        }
        if !hosts.is_empty() {
            spec["hostnames"] = json!(hosts);
        }
        spec
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..5usize, policy()).prop_map(|(n, spec)| Step::Put(n, spec)),
        2 => (0..5usize).prop_map(Step::Remove),
        2 => (0..3usize, any::<bool>()).prop_map(|(n, there)| Step::Service(n, there)),
    ]
}

fn edge() -> MeshGateway {
    let value = json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshGateway",
    "metadata": {"namespace": "default", "name": "edge"}, "spec": {"listeners": [
        {"name": "all", "port": 80, "protocol": "HTTP"},
        {"name": "some", "port": 443, "protocol": "HTTPS", "hostname": "*.example.com", "tags": {"door": "tls"},
            "tls": {"certificateRef": {"name": "c"}}},
        {"name": "one", "port": 443, "protocol": "HTTPS", "hostname": "a.example.com", "tags": {"door": "tls"},
            "tls": {"certificateRef": {"name": "c"}}},
    ]}});
    let mut snapshot = Snapshot::default();
    put(&mut snapshot, &value);
    snapshot.mesh_gateway(&ObjectKey::new(&"default".into(), &"edge".into())).expect("it is there").clone()
}

fn put(snapshot: &mut Snapshot, value: &Value) {
    snapshot.apply(object(value));
}

/// Carries a step out; the names of the policies that it touches are added.
fn apply(snapshot: &mut Snapshot, step: &Step, touched: &mut BTreeSet<Name>) {
    let namespace = Name::new("default");
    match step {
        Step::Put(n, spec) => {
            let name = format!("p{n}");
            put(
                snapshot,
                &json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshGatewayHTTPRoute",
                "metadata": {"namespace": "default", "name": name}, "spec": spec}),
            );
            touched.insert(Name::new(&name));
        }
        Step::Remove(n) => {
            let name = Name::new(&format!("p{n}"));
            snapshot.remove_mesh_gateway_http_route(&ObjectKey::new(&namespace, &name));
            touched.insert(name);
        }
        Step::Service(n, there) => {
            let name = SERVICES[*n];
            if *there {
                put(
                    snapshot,
                    &json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": name},
                    "spec": {"ports": [{"port": 80, "appProtocol": "http"}]}}),
                );
            } else {
                snapshot.remove_service(&ServiceKey::new(&namespace, &name.into()));
            }
            // More than those that name it does no harm.
            touched
                .extend(snapshot.mesh_gateway_http_routes(&namespace).map(|policy| policy.key.name.clone()));
        }
    }
}

fn rules(table: &RouteTable) -> BTreeMap<String, Arc<HttpRule>> {
    let mut found = BTreeMap::new();
    for (port, listener) in table.ports().flat_map(|port| port.listeners.iter().map(move |l| (port, l))) {
        for (host, routing) in listener.hosts.iter() {
            let Routing::Http(routes) = routing else { continue };
            for (i, rule) in routes.groups[0].rules().iter().enumerate() {
                found.insert(format!("{} {} {host} {i}", port.number, listener.name), rule.clone());
            }
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn routes_that_are_kept_up_are_those_made_from_nothing(
        rounds in prop::collection::vec(prop::collection::vec(step(), 1..4), 1..16)
    ) {
        let mut snapshot = Snapshot::default();
        let mut kept = GatewayRoutes::new(&snapshot, edge());
        let mut known = BTreeSet::new();
        for round in rounds {
            let mut touched = BTreeSet::new();
            round.iter().for_each(|step| apply(&mut snapshot, step, &mut touched));
            let before = kept.table().clone();
            let is_turned = kept.update(&snapshot, &touched);
            let (wanted, notices) = gateway(&snapshot, &edge());
            prop_assert_eq!(&**kept.table(), &wanted);
            prop_assert_eq!(kept.notices(), notices);
            prop_assert_eq!(is_turned, *before != wanted);
            prop_assert_eq!(is_turned, !Arc::ptr_eq(&before, kept.table()));
            for backend in kept.take_changed_backends() {
                if kept.leads_to(&backend) {
                    known.insert(backend);
                } else {
                    known.remove(&backend);
                }
            }
            prop_assert_eq!(&known, &wanted.backends());
            let (old, new) = (rules(&before), rules(kept.table()));
            for (place, rule) in &new {
                let same = old.get(place).filter(|old| old == &rule);
                prop_assert!(same.is_none_or(|old| Arc::ptr_eq(old, rule)), "{} was made again", place);
            }
        }
    }
}
