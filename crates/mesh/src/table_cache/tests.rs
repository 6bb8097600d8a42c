//! The tables that are kept up are those that would be made from nothing, and only what is touched is made anew.

use model::Name;
use model::gateway_api::{CertificateKind, CertificateSource, GatewayApiKind, RouteKind};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::ProxyRole;

fn consumers() -> Vec<ProxyIdentity> {
    let namespace = Name::new("default");
    let at = |role: ProxyRole, node: &str, zone: Option<&str>| ProxyIdentity {
        role,
        node: Name::new(node),
        zone: zone.map(Name::new),
    };
    vec![
        at(ProxyRole::sidecar("front", &namespace).unwrap(), "node-0", None),
        at(ProxyRole::sidecar("front,version=v1", &namespace).unwrap(), "node-1", Some("zone-1")),
        at(ProxyRole::gateway("edge", &namespace).unwrap(), "node-1", None),
        at(ProxyRole::gateway("edge:two", &namespace).unwrap(), "", None),
        at(ProxyRole::sidecar("caller,version=v1", &Name::new("far")).unwrap(), "node-0", None),
    ]
}

/// A world of events, as a watch would bring them.
#[derive(Default)]
struct Writer {
    version: usize,
}

impl Writer {
    fn put(&mut self, kind: ObjectKind, name: &str, mut object: Value) -> InformerEvent {
        self.version += 1;
        object["metadata"]["name"] = name.into();
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        if kind != ObjectKind::Node && object["metadata"]["namespace"].is_null() {
            object["metadata"]["namespace"] = "default".into();
        }
        InformerEvent::Applied(kind, serde_json::from_value(object).unwrap())
    }

    fn gone(&mut self, kind: ObjectKind, name: &str) -> InformerEvent {
        match self.put(kind, name, json!({})) {
            InformerEvent::Applied(kind, object) => InformerEvent::Deleted(kind, object),
            other => other,
        }
    }
}

fn listed(state: &mut TableCache) {
    for kind in KINDS {
        state.apply(InformerEvent::ListStarted(kind));
        state.apply(InformerEvent::ListCompleted(kind));
    }
}

fn service(n: usize, port: u16, protocol: &str) -> Value {
    json!({"spec": {"selector": {"app": "x"}, "clusterIP": format!("10.96.0.{n}"), "ports": [
        {"name": "main", "port": port, "appProtocol": protocol}, {"name": "raw", "port": 9000}]}})
}

fn slice(service: &str, pods: &[(usize, usize)]) -> Value {
    let endpoint = |(pod, node): &(usize, usize)| {
        json!({"addresses": [format!("10.0.{node}.{pod}")], "nodeName": format!("node-{node}"),
            "zone": format!("zone-{node}"), "targetRef": {"kind": "Pod", "name": format!("pod-{pod}")}})
    };
    json!({"metadata": {"labels": {"kubernetes.io/service-name": service}}, "addressType": "IPv4",
        "ports": [{"name": "main", "port": 8080}], "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>()})
}

fn backend(name: &str, version: Option<&str>) -> Value {
    match version {
        Some(version) => json!({"kind": "MeshServiceSubset", "name": name, "tags": {"version": version}}),
        None => json!({"kind": "MeshService", "name": name}),
    }
}

fn rule(path: &str, to: Value) -> Value {
    json!({"matches": [{"path": {"type": "Prefix", "value": path}}], "default": {"backendRefs": [to]}})
}

const NAMES: [&str; 4] = ["front", "back", "next", "lost"];
const VERSIONS: [Option<&str>; 3] = [None, Some("v1"), Some("v2")];

#[derive(Clone, Debug)]
enum Step {
    Service(usize, bool, bool),
    Slice(usize, Vec<(usize, usize)>),
    Pod(usize, usize),
    Node(usize, usize),
    HttpRoute(usize, usize, usize, usize),
    FarRoute(usize, usize),
    TcpRoute(usize, usize),
    GatewayRoute(usize, usize, bool),
    Gateway(bool),
    LoadBalancing(usize, usize),
    Gone(ObjectKind, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let kinds = prop::sample::select(KINDS.to_vec());
    prop_oneof![
        (0..4usize, any::<bool>(), any::<bool>()).prop_map(|(n, other, tcp)| Step::Service(n, other, tcp)),
        (0..4usize, prop::collection::vec((1..5usize, 0..3usize), 0..4)).prop_map(|(n, p)| Step::Slice(n, p)),
        (1..5usize, 0..3usize).prop_map(|(pod, labels)| Step::Pod(pod, labels)),
        (0..3usize, 0..3usize).prop_map(|(node, zone)| Step::Node(node, zone)),
        (0..3usize, 0..4usize, 0..4usize, 0..3usize).prop_map(|(n, s, b, v)| Step::HttpRoute(n, s, b, v)),
        (0..4usize, 0..4usize).prop_map(|(to, b)| Step::TcpRoute(to, b)),
        (0..4usize, 0..3usize).prop_map(|(to, target)| Step::FarRoute(to, target)),
        (0..3usize, 0..4usize, any::<bool>()).prop_map(|(n, b, tagged)| Step::GatewayRoute(n, b, tagged)),
        any::<bool>().prop_map(Step::Gateway),
        (0..4usize, 0..5usize).prop_map(|(n, to)| Step::LoadBalancing(n, to)),
        (kinds, 0..4usize).prop_map(|(kind, n)| Step::Gone(kind, n)),
    ]
}

fn target(n: usize) -> Value {
    match n {
        0 => json!({"kind": "Mesh"}),
        1 => json!({"kind": "MeshSubset", "tags": {"version": "v1"}}),
        _ => {
            json!({"kind": "MeshServiceSubset", "name": "front", "tags": {"topology.kubernetes.io/zone": "zone-1"}})
        }
    }
}

fn event(writer: &mut Writer, step: &Step) -> InformerEvent {
    match step {
        Step::Service(n, other, tcp) => {
            let object = service(*n, if *other { 81 } else { 80 }, if *tcp { "tcp" } else { "http" });
            writer.put(ObjectKind::Service, NAMES[*n], object)
        }
        Step::Slice(n, pods) => {
            writer.put(ObjectKind::Slice, &format!("slice-{n}"), slice(NAMES[*n % 2], pods))
        }
        Step::Pod(pod, labels) => {
            let mut object = json!({"metadata": {"labels": {"app": "x"}}});
            if let Some(version) = VERSIONS[*labels] {
                object["metadata"]["labels"]["version"] = version.into();
            }
            writer.put(ObjectKind::Pod, &format!("pod-{pod}"), object)
        }
        Step::Node(node, zone) => {
            let labels = json!({"topology.kubernetes.io/zone": format!("zone-{zone}")});
            writer.put(ObjectKind::Node, &format!("node-{node}"), json!({"metadata": {"labels": labels}}))
        }
        Step::HttpRoute(n, to, b, version) => {
            let to = json!([{"targetRef": {"kind": "MeshService", "name": NAMES[*to]},
                "rules": [rule("/a", backend(NAMES[*b], VERSIONS[*version]))]}]);
            writer.put(
                ObjectKind::MeshHttpRoute,
                &format!("route-{n}"),
                json!({"spec": {"targetRef": target(*n), "to": to}}),
            )
        }
        Step::FarRoute(to, n) => {
            let to = json!([{"targetRef": {"kind": "MeshService", "name": NAMES[*to], "namespace": "default"},
                "rules": [rule("/far", backend("back", None))]}]);
            let spec = json!({"targetRef": target(*n), "to": to});
            writer.put(
                ObjectKind::MeshHttpRoute,
                "far",
                json!({"metadata": {"namespace": "far"}, "spec": spec}),
            )
        }
        Step::TcpRoute(to, b) => {
            let rules = json!([{"default": {"backendRefs": [backend(NAMES[*b], None)]}}]);
            let to = json!([{"targetRef": {"kind": "MeshService", "name": NAMES[*to]}, "rules": rules}]);
            writer.put(
                ObjectKind::MeshTcpRoute,
                "tcp-0",
                json!({"spec": {"targetRef": {"kind": "Mesh"}, "to": to}}),
            )
        }
        Step::GatewayRoute(n, b, tagged) => {
            let mut target = json!({"kind": "MeshGateway", "name": "edge"});
            if *tagged {
                target["tags"] = json!({"port": "two"});
            }
            let mut spec = json!({"targetRef": target, "rules": [
                rule("/b", backend(NAMES[*b], None)), rule(&format!("/{n}"), backend("back", None))]});
            if *n > 0 {
                let host = if *b % 2 == 0 { "a.example.com" } else { "*.example.com" };
                spec["hostnames"] = json!([host]);
            }
            writer.put(ObjectKind::MeshGatewayHttpRoute, &format!("route-{n}"), json!({"spec": spec}))
        }
        Step::Gateway(more) => {
            let mut listeners = json!([{"name": "one", "port": 8080, "protocol": "HTTP"}]);
            if *more {
                let two = json!({"name": "two", "port": 8443, "protocol": "HTTPS", "tags": {"port": "two"},
                    "tls": {"certificateRef": {"name": "cert"}}});
                listeners.as_array_mut().unwrap().push(two);
            }
            writer.put(ObjectKind::MeshGateway, "edge", json!({"spec": {"listeners": listeners}}))
        }
        Step::LoadBalancing(n, to) => {
            let target = match n {
                3 => json!({"kind": "MeshGateway", "name": "edge"}),
                n => target(*n),
            };
            let to = match NAMES.get(*to) {
                Some(name) => json!({"kind": "MeshService", "name": name}),
                None => json!({"kind": "Mesh"}),
            };
            let default = match n {
                0 => json!({"slowStart": {"window": "20s"}, "panicThreshold": 10}),
                1 => json!({"algorithm": {"type": "Maglev", "hashOn": {"type": "SourceIP"}}}),
                n => json!({"panicThreshold": n, "localities": [{"from": ["zone-1"], "priorities": [
                    {"zones": [{"name": "zone-2", "weight": 2}]}, {"zones": [{"type": "Same"}]}]}]}),
            };
            let spec = json!({"targetRef": target, "to": [{"targetRef": to, "default": default}]});
            writer.put(ObjectKind::MeshLoadBalancing, &format!("route-{n}"), json!({"spec": spec}))
        }
        Step::Gone(kind, n) => {
            let name = match kind {
                ObjectKind::Service => NAMES[*n].to_owned(),
                ObjectKind::Slice => format!("slice-{n}"),
                ObjectKind::Pod => format!("pod-{n}"),
                ObjectKind::Node => format!("node-{n}"),
                ObjectKind::MeshTcpRoute => "tcp-0".to_owned(),
                ObjectKind::MeshGateway => "edge".to_owned(),
                _ => format!("route-{n}"),
            };
            writer.gone(*kind, &name)
        }
    }
}

fn followed() -> TableCache {
    let mut state = TableCache::default();
    consumers().into_iter().for_each(|consumer| state.add(consumer));
    state
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn kept_up_tables_are_those_made_from_nothing(steps in prop::collection::vec(step(), 1..40)) {
        let mut writer = Writer::default();
        let mut kept = followed();
        listed(&mut kept);
        kept.refresh();
        for (i, step) in steps.iter().enumerate() {
            let before: Vec<_> = consumers().iter().map(|c| kept.tables(c).unwrap()).collect();
            kept.apply(event(&mut writer, step));
            // Sometimes two changes are looked at together.
            if i % 3 == 0 {
                continue;
            }
            let updates = kept.refresh();
            let mut fresh = followed();
            fresh.mirror = std::mem::take(&mut kept.mirror);
            fresh.affected.everything = true;
            fresh.refresh();
            kept.mirror = std::mem::take(&mut fresh.mirror);
            for (consumer, before) in consumers().iter().zip(before) {
                let (a, b) = (kept.tables(consumer).unwrap(), fresh.tables(consumer).unwrap());
                prop_assert_eq!(&a.routes, &b.routes, "{:?}", step);
                prop_assert_eq!(&a.backends, &b.backends, "{:?}", step);
                prop_assert_eq!(kept.identities[consumer].certificates.clone(), fresh.identities[consumer].certificates.clone());
                prop_assert_eq!(
                    kept.identities[consumer].notices(),
                    fresh.identities[consumer].notices()
                );
                let turned = updates.iter().find(|u| u.identity == *consumer).map(|u| u.changed);
                let turned = turned.unwrap_or_default();
                prop_assert_eq!(turned.routes, !Arc::ptr_eq(&before.routes, &a.routes), "{:?}", step);
                prop_assert_eq!(turned.backends, !Arc::ptr_eq(&before.backends, &a.backends), "{:?}", step);
            }
        }
    }
}

#[test]
fn a_slice_alters_the_backends_of_its_service_and_nothing_else() {
    let mut writer = Writer::default();
    let mut state = followed();
    for step in [
        Step::Service(0, false, false),
        Step::Service(1, false, false),
        Step::Slice(1, vec![(1, 0)]),
        Step::Slice(0, vec![(2, 1)]),
    ] {
        state.apply(event(&mut writer, &step));
    }
    assert!(state.refresh().is_empty(), "before the lists are whole, absence says nothing");
    for kind in KINDS {
        state.apply_change(ObjectChange::Listed(kind, BTreeSet::new()));
    }
    assert_eq!(state.refresh().len(), 5);
    let consumer = &consumers()[0];
    let before = state.tables(consumer).unwrap();
    state.apply(event(&mut writer, &Step::Slice(1, vec![(1, 0), (3, 1)])));
    let updates = state.refresh();
    let turned = ChangedTables { backends: true, ..ChangedTables::default() };
    assert_eq!(updates.len(), 3, "the sidecars, no gateway");
    assert!(updates.iter().all(|update| update.changed == turned));
    let after = state.tables(consumer).unwrap();
    assert!(Arc::ptr_eq(&before.routes, &after.routes));
    let shared = after
        .backends
        .backends()
        .filter(|backend| before.backends.backend(&backend.id).is_some_and(|old| Arc::ptr_eq(old, backend)));
    assert!(shared.count() >= 2, "the other Service's backends are the same values");
    state.apply(event(&mut writer, &Step::Slice(1, vec![(1, 0), (3, 1)])));
    assert!(state.refresh().is_empty(), "the same slice again alters nothing");
}

#[test]
fn a_policy_that_turns_invalid_is_told_and_left_out_until_it_is_put_right() {
    let mut writer = Writer::default();
    let mut state = followed();
    listed(&mut state);
    state.apply(event(&mut writer, &Step::Service(1, false, false)));
    state.apply(event(&mut writer, &Step::HttpRoute(0, 1, 1, 1)));
    state.refresh();
    let rules = |state: &TableCache| {
        let tables = state.tables(&consumers()[0]).unwrap();
        let outbound = tables.routes.outbounds().next().unwrap().clone();
        match &outbound.routing {
            model::route::Routing::Http(routes) => routes.rules().count(),
            model::route::Routing::Tcp(_) => 0,
        }
    };
    assert_eq!(rules(&state), 2);
    let bad =
        json!({"spec": {"to": [{"targetRef": {"kind": "MeshService", "name": "back"}, "default": {}}]}});
    state.apply(writer.put(ObjectKind::MeshHttpRoute, "route-0", bad));
    state.refresh();
    assert_eq!(rules(&state), 1);
    let said = |state: &TableCache| state.notices().iter().any(|notice| notice.reason == "Malformed");
    assert!(said(&state));
    state.apply(event(&mut writer, &Step::HttpRoute(0, 1, 1, 1)));
    state.refresh();
    assert!(rules(&state) == 2 && !said(&state));
}

#[test]
fn load_balancing_reaches_the_tables_of_those_it_selects() {
    let mut writer = Writer::default();
    let mut state = followed();
    listed(&mut state);
    state.apply(event(&mut writer, &Step::Service(0, false, false)));
    state.apply(event(&mut writer, &Step::Service(1, false, false)));
    state.refresh();
    state.apply(event(&mut writer, &Step::LoadBalancing(1, 1)));
    let updates = state.refresh();
    let selected: Vec<bool> = consumers()
        .iter()
        .map(|consumer| !state.tables(consumer).unwrap().routes.all_load_balancing().is_empty())
        .collect();
    assert_eq!(selected, [false, true, false, false, true], "by their tags");
    let changed = ChangedTables { routes: true, ..ChangedTables::default() };
    assert!(updates.len() == 2 && updates.iter().all(|update| update.changed == changed));
    state.apply(event(&mut writer, &Step::LoadBalancing(1, 1)));
    assert!(state.refresh().is_empty(), "the same again");
    state.apply(event(&mut writer, &Step::Gone(ObjectKind::MeshLoadBalancing, 1)));
    assert_eq!(state.refresh().len(), 2);
}

#[test]
fn secrets_are_wanted_while_a_listener_names_them() {
    let mut writer = Writer::default();
    let mut state = followed();
    listed(&mut state);
    state.refresh();
    assert!(state.wanted_certificates().is_empty());
    state.apply(event(&mut writer, &Step::Gateway(true)));
    state.refresh();
    let key = ObjectKey::new(&"default".into(), &"cert".into());
    let key = (CertificateKind::Secret, key);
    assert_eq!(state.wanted_certificates(), BTreeSet::from([key.clone()]));
    let pair = PemKeyPair { chain: b"chain".as_slice().into(), key: b"key".as_slice().into() };
    let update = |pair: PemKeyPair| CertificateUpdate {
        key: key.clone(),
        data: Ok(CertificateData::KeyPair(pair.into())),
        source: None,
    };
    state.put_certificate(update(pair.clone()));
    let updates = state.refresh();
    assert_eq!(updates.len(), 2, "both gateways have the listener");
    assert!(
        updates.iter().all(|u| u.changed == ChangedTables { certificates: true, ..ChangedTables::default() })
    );
    state.put_certificate(update(pair));
    assert!(state.refresh().is_empty(), "the same certificate again is no change");
    assert_eq!(state.tables(&consumers()[2]).unwrap().certificates.len(), 1);
    state.put_certificate(CertificateUpdate::missing(&key));
    assert_eq!(state.refresh().len(), 2);
    assert!(state.notices().iter().any(|notice| notice.reason == "SecretNotFound"));
    state.apply(event(&mut writer, &Step::Gateway(false)));
    state.refresh();
    assert!(state.wanted_certificates().is_empty());
}

fn standard(writer: &mut Writer, kind: GatewayApiKind, name: &str, spec: Value) -> InformerEvent {
    writer.put(ObjectKind::GatewayApi(kind), name, json!({"metadata": {"generation": 1}, "spec": spec}))
}

fn standard_listeners(https: bool) -> Value {
    let mut all = vec![json!({"name": "http", "port": 80, "protocol": "HTTP"})];
    if https {
        let certificate = json!({"certificateRefs": [{"name": "cert"}]});
        all.push(json!({"name": "https", "port": 443, "protocol": "HTTPS", "tls": certificate}));
    }
    json!({"gatewayClassName": "c", "listeners": all})
}

fn route(parent: Value, backend: &str) -> Value {
    json!({"parentRefs": [parent], "rules": [{"backendRefs": [{"name": backend, "port": 80}]}]})
}

#[test]
fn a_gateway_of_the_gateway_api_follows_its_objects_and_no_others() {
    let namespace = Name::new("default");
    let at = |role| ProxyIdentity { role, node: Name::default(), zone: None };
    let gateway = at(ProxyRole::gateway("standard", &namespace).unwrap());
    let sidecar = at(ProxyRole::sidecar("front", &namespace).unwrap());
    let (mut state, mut writer) = (TableCache::default(), Writer::default());
    state.add(gateway.clone());
    state.add(sidecar.clone());
    listed(&mut state);
    let http = GatewayApiKind::Route(RouteKind::Http);
    let service = json!({"spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 80}]}});
    for name in ["web", "other"] {
        state.apply(writer.put(ObjectKind::Service, name, service.clone()));
    }
    let class = json!({"controllerName": "zoneward.dev/gateway"});
    state.apply(standard(&mut writer, GatewayApiKind::Class, "c", class));
    state.apply(standard(&mut writer, GatewayApiKind::Gateway, "standard", standard_listeners(false)));
    state.apply(standard(&mut writer, http, "r", route(json!({"name": "standard"}), "web")));
    let changed = |state: &mut TableCache| {
        state.refresh().into_iter().map(|update| update.identity).collect::<BTreeSet<_>>()
    };
    changed(&mut state);
    let backends = |state: &TableCache, identity: &ProxyIdentity| {
        let all = state.tables(identity).unwrap().routes.backends();
        all.into_iter().map(|id| id.service.name.to_string()).collect::<BTreeSet<_>>()
    };
    assert_eq!(backends(&state, &gateway), BTreeSet::from(["web".to_owned()]));
    // A write of the status brings the same object again.
    state.apply(standard(&mut writer, GatewayApiKind::Gateway, "standard", standard_listeners(false)));
    state.apply(standard(&mut writer, http, "r", route(json!({"name": "standard"}), "web")));
    assert!(changed(&mut state).is_empty());
    state.apply(standard(&mut writer, http, "far", route(json!({"name": "another"}), "other")));
    assert!(changed(&mut state).is_empty(), "the route of another Gateway");
    state.apply(standard(&mut writer, http, "r", route(json!({"name": "standard"}), "other")));
    assert_eq!(changed(&mut state), BTreeSet::from([gateway.clone()]));
    assert_eq!(backends(&state, &gateway), BTreeSet::from(["other".to_owned()]));
    // A listener with TLS is served when its Secret is there.
    state.apply(standard(&mut writer, GatewayApiKind::Gateway, "standard", standard_listeners(true)));
    changed(&mut state);
    let key = (CertificateKind::Secret, ObjectKey::new(&namespace, &"cert".into()));
    assert_eq!(state.wanted_certificates(), BTreeSet::from([key.clone()]));
    assert!(state.tables(&gateway).unwrap().routes.port(443).is_none());
    let pair = PemKeyPair { chain: b"chain".as_slice().into(), key: b"key".as_slice().into() };
    let source = CertificateSource { kind: key.0, key: key.1.clone(), problem: None };
    let data = Ok(CertificateData::KeyPair(pair.into()));
    state.put_certificate(CertificateUpdate { key, data, source: Some(source) });
    assert_eq!(changed(&mut state), BTreeSet::from([gateway.clone()]));
    assert!(state.tables(&gateway).unwrap().routes.port(443).is_some());
    // A route of a Service is for sidecars.
    let parent = json!({"group": "", "kind": "Service", "name": "web"});
    state.apply(standard(&mut writer, http, "mesh", route(parent, "other")));
    assert_eq!(changed(&mut state), BTreeSet::from([sidecar.clone()]));
    let web = model::ServiceKey::new(&namespace, &"web".into());
    let tables = state.tables(&sidecar).unwrap();
    assert!(tables.routes.outbound(&web, 80).is_some_and(|outbound| outbound.protocol.is_http()));
}
