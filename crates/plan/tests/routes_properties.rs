//! Routes do not depend on the order in which policies arrive, and the maps of a table agree with asking one by one.

use model::route::{HeaderList, RequestView, Routing};
use model::{Interner, Name, Notice, Object, ObjectKey, Service, ServiceKey, Snapshot, parse};
use plan::routes::{MeshClient, OutboundRoutes, outbound};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Of the Service, and of the client: policies are in both.
const NAMESPACES: [&str; 2] = ["default", "client"];

fn path() -> impl Strategy<Value = Value> {
    let prefix = prop::sample::select(vec!["/", "/a", "/a/b", "/c"]).prop_map(|v| json!({"prefix": v}));
    let exact = prop::sample::select(vec!["/a", "/a/b"]).prop_map(|v| json!({"exact": v}));
    let regex = prop::sample::select(vec!["/a.*", "/[a-z]+"]).prop_map(|v| json!({"regex": v}));
    prop_oneof![prefix, exact, regex]
}

fn on() -> impl Strategy<Value = Value> {
    let header = prop::option::of(prop::sample::select(vec!["1", "2"]));
    let method = prop::option::of(prop::sample::select(vec!["GET", "POST"]));
    (prop::option::of(path()), method, header).prop_map(|(path, method, header)| {
        let mut on = json!({});
        if let Some(path) = path {
            on["path"] = path;
        }
        if let Some(method) = method {
            on["method"] = method.into();
        }
        if let Some(value) = header {
            on["headers"] = json!([{"name": "x", "value": value}]);
        }
        on
    })
}

fn rule() -> impl Strategy<Value = Value> {
    let backends = prop::option::of(prop::collection::vec(
        prop::sample::select(vec!["b1", "b2", "missing"])
            .prop_map(|n| json!({"kind": "MeshService", "name": n})),
        0..3,
    ));
    let filters = prop::option::of(prop::collection::vec(
        prop::sample::select(vec!["h1", "h2"])
            .prop_map(|n| json!({"requestHeaderModifier": {"set": [{"name": n, "value": "1"}]}})),
        0..2,
    ));
    (prop::collection::vec(on(), 1..3), backends, filters).prop_map(|(matches, backends, filters)| {
        let mut default = json!({});
        if let Some(backends) = backends {
            default["backendRefs"] = backends.into();
        }
        if let Some(filters) = filters {
            default["filters"] = filters.into();
        }
        json!({"matches": matches, "default": default})
    })
}

fn target() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        json!({"kind": "Mesh"}),
        json!({"kind": "MeshSubset", "tags": {"v": "1"}}),
        json!({"kind": "MeshService", "name": "frontend"}),
        json!({"kind": "MeshServiceSubset", "name": "frontend", "tags": {"v": "1"}}),
    ])
}

fn policies() -> impl Strategy<Value = Vec<Value>> {
    let policy = (target(), prop::collection::vec(rule(), 1..5));
    prop::collection::vec(policy, 0..6).prop_map(|list| {
        let one = |(i, (target, rules)): (usize, (Value, Vec<Value>))| {
            let destination = json!({"kind": "MeshService", "name": "backend", "namespace": "default"});
            json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshHTTPRoute",
                "metadata": {"name": format!("p{i}"), "namespace": NAMESPACES[i % 2]},
                "spec": {"targetRef": target, "to": [{"targetRef": destination, "rules": rules}]}})
        };
        list.into_iter().enumerate().map(one).collect()
    })
}

fn world(policies: &[Value]) -> (Snapshot, MeshClient) {
    let mut snapshot = Snapshot::default();
    let mut interner = Interner::default();
    let service = |(namespace, name): (&str, &str)| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace},
            "spec": {"ports": [{"port": 80, "appProtocol": "http"}]}})
    };
    let services =
        [("default", "backend"), ("default", "b1"), ("default", "b2"), ("client", "b1")].map(service);
    for value in policies.iter().chain(&services) {
        let object: Option<Object> = parse::object(value, &mut interner).0;
        snapshot.apply(object.expect("a good object"));
    }
    let tags = [("v", "1")].into_iter().collect();
    let client = MeshClient { namespace: "client".into(), services: vec!["frontend".into()], tags };
    (snapshot, client)
}

fn backend(snapshot: &Snapshot) -> &Service {
    let key = ServiceKey::new(&"default".into(), &"backend".into());
    snapshot.service(&key).expect("it is there")
}

fn routing(policies: &[Value]) -> (Routing, Vec<Notice>) {
    let (snapshot, client) = world(policies);
    let service = backend(&snapshot);
    let (outbound, notices) = outbound(&snapshot, &client, service, &service.ports[0]).expect("TCP");
    (outbound.routing, notices)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn routes_do_not_depend_on_the_order_of_arrival(
        (given, shuffled) in policies().prop_flat_map(|p| (Just(p.clone()), Just(p).prop_shuffle()))
    ) {
        prop_assert_eq!(routing(&given), routing(&shuffled));
    }

    #[test]
    fn outbounds_that_are_kept_up_are_those_made_from_nothing(
        rounds in prop::collection::vec(policies(), 1..6), is_kept in any::<bool>()
    ) {
        let (snapshot, client) = world(&[]);
        let service = backend(&snapshot);
        let mut kept = OutboundRoutes::new(&snapshot, &client, service, &service.ports[0]).expect("TCP");
        let mut before: Vec<Value> = Vec::new();
        for mut given in rounds {
            // Some policies stay as they were, so that their drafts are used.
            if is_kept && let (Some(old), Some(new)) = (before.first(), given.first_mut()) {
                *new = old.clone();
            }
            let (snapshot, client) = world(&given);
            let service = backend(&snapshot);
            let count = before.len().max(given.len());
            let changed = (0..count).filter(|i| before.get(*i) != given.get(*i));
            let changed = changed.map(|i| ObjectKey::new(&Name::new(NAMESPACES[i % 2]), &Name::new(&format!("p{i}")))).collect();
            let port = &service.ports[0];
            kept = kept.after(&snapshot, &client, service, port, &changed).expect("TCP");
            let wanted = OutboundRoutes::new(&snapshot, &client, service, port).expect("TCP");
            prop_assert_eq!(&kept.outbound, &wanted.outbound);
            prop_assert_eq!(&kept.notices, &wanted.notices);
            before = given;
        }
    }

    #[test]
    fn the_maps_agree_with_asking_one_by_one(
        given in policies(),
        path in "(/[abc]?){0,3}|/",
        method in prop::sample::select(vec!["GET", "POST", "PUT"]),
        header in prop::option::of("[12]"),
    ) {
        let (Routing::Http(routes), _) = routing(&given) else { panic!("HTTP") };
        let headers = header.map(|v| ("X".into(), v.as_str().into())).into_iter().collect();
        let headers = HeaderList(headers);
        let request = RequestView { method, host: "h", path: &path, query: None, headers: &headers };
        let holds = |hit: &model::route::MatchedRoute<'_>| {
            hit.entry.path.matches(&path) && hit.entry.conditions.first_miss(&request).is_none()
        };
        let wanted = routes.entries().find(holds).map(|hit| hit.entry);
        prop_assert_eq!(routes.find(&request).map(|hit| hit.entry), wanted);
        prop_assert!(wanted.is_some(), "in the mesh something always holds");
    }
}
