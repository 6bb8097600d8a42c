//! Tests of rendering: what Envoy would read, from policies to JSON.

use expect_test::{Expect, expect};
use model::Snapshot;
use model::backend::{ConsumerLocation, ProxyProtocol};
use model::route::TrustedProxies;
use plan::FeatureGates;
use plan::routes::{MeshClient, gateway, sidecar};
use serde_json::{Value, json};

use super::*;
use crate::config_dump;

fn snapshot(objects: &[Value]) -> Snapshot {
    fixtures::snapshot(objects)
}

fn service(name: &str, address: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "ns"},
        "spec": {"clusterIP": address, "ports": [{"name": "http", "port": 80}]}})
}

/// Endpoints as (address, zone) with hints for their own zones.
fn slice(service: &str, annotations: Value, endpoints: &[(&str, &str)]) -> Value {
    let endpoint = |(address, zone): &(&str, &str)| {
        json!({"addresses": [address], "zone": zone, "nodeName": format!("n-{zone}"),
            "hints": {"forZones": [{"name": zone}]}})
    };
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"namespace": "ns", "name": format!("{service}-1"), "annotations": annotations,
            "labels": {"kubernetes.io/service-name": service}},
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>()})
}

fn policy(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": kind,
        "metadata": {"name": name, "namespace": "ns"}, "spec": spec})
}

fn tiers(snapshot: &Snapshot, routes: &RouteTable, zone: &str) -> Vec<Arc<BackendTable>> {
    let place = ConsumerLocation { node: Name::new(&format!("n-{zone}")), zone: Some(Name::new(zone)) };
    let gates = FeatureGates::ALL;
    let first = plan::backends::table(snapshot, routes, &place, gates);
    let mut further = [BackendTable::new(place.clone()), BackendTable::new(place.clone())];
    for id in &routes.backends() {
        let rule = plan::backends::locality_rule(routes, id, &place);
        let found = plan::backends::fallbacks(snapshot, id, &place, gates, rule);
        for (table, backend) in further.iter_mut().zip(found) {
            table.put(Arc::new(backend));
        }
    }
    std::iter::once(first).chain(further).map(Arc::new).collect()
}

fn of_sidecar(
    snapshot: &Snapshot,
    zone: &str,
    capture: Option<u16>,
    outbounds: &[(&str, &str)],
) -> RenderInput {
    let key = |name: &str| ServiceKey::new(&"ns".into(), &name.into());
    let client = MeshClient::of_service(snapshot, &key("frontend"), &model::Labels::EMPTY);
    let (routes, _) = sidecar(snapshot, &client);
    let outbounds = outbounds.iter().map(|(at, to)| (at.parse().unwrap(), (key(to), 80))).collect();
    RenderInput {
        tiers: tiers(snapshot, &routes, zone),
        routes: Arc::new(routes),
        certificates: Arc::default(),
        authorities: Arc::default(),
        listeners: EnvoyListeners::Sidecar { capture, outbounds },
        allowlist: Arc::default(),
        edge: Arc::default(),
        retries: model::route::RetryLimits::DEFAULT,
    }
}

fn of_gateway(snapshot: &Snapshot) -> RenderInput {
    let key = ObjectKey::new(&"ns".into(), &"edge".into());
    let (routes, _) = gateway(snapshot, snapshot.mesh_gateway(&key).unwrap());
    RenderInput {
        tiers: tiers(snapshot, &routes, "a"),
        routes: Arc::new(routes),
        certificates: Arc::default(),
        authorities: Arc::default(),
        listeners: EnvoyListeners::Gateway {
            gateway: key,
            bind: "0.0.0.0".parse().unwrap(),
            port_overrides: BTreeMap::new(),
        },
        allowlist: Arc::default(),
        edge: Arc::default(),
        retries: model::route::RetryLimits::DEFAULT,
    }
}

fn shown(rendered: &Rendered, kind: ResourceType, name: &str) -> Value {
    let resource = rendered.resources.find(kind, name);
    let names: Vec<_> = rendered.resources.of(kind).keys().collect();
    config_dump::value(kind, resource.unwrap_or_else(|| panic!("{name} is not among {names:?}")))
}

fn check(value: &Value, expected: Expect) {
    expected.assert_eq(&format!("{value:#}\n"));
}

fn names(rendered: &Rendered) -> String {
    let of = |kind| {
        let names: Vec<&str> = rendered.resources.of(kind).keys().map(|name| &**name).collect();
        format!("{kind}: {}\n", names.join(", "))
    };
    ResourceType::ALL.into_iter().map(of).collect()
}

#[test]
fn a_captured_client_has_a_listener_for_each_address_and_a_way_out_for_the_rest() {
    let world = snapshot(&[service("web", "10.0.0.1"), service("cart", "fd00::1")]);
    let rendered = render(of_sidecar(&world, "a", Some(15001), &[("127.0.0.1:8081", "cart")]), None);
    expect![[r#"
        cluster: ns/cart:80, ns/web:80, pass-through
        endpoints: ns/cart:80, ns/web:80
        listener: outbound at 127.0.0.1:15001, outbound at [::1]:15001, outbound ns/cart:80 at 127.0.0.1:8081, outbound ns/cart:80 at [fd00::1]:80, outbound ns/web:80 at 10.0.0.1:80
        routes: ns/cart:80, ns/web:80
        secret: 
    "#]]
    .assert_eq(&names(&rendered));
    let handed = shown(&rendered, ResourceType::Listener, "outbound ns/web:80 at 10.0.0.1:80");
    assert_eq!(handed["bind_to_port"], false);
    assert_eq!(
        shown(&rendered, ResourceType::Listener, "outbound at 127.0.0.1:15001")["use_original_dst"],
        true
    );
}

#[test]
fn zones_are_weighted_localities_and_other_zones_a_lower_priority() {
    let endpoints = [("10.1.0.1", "a"), ("10.1.0.2", "b"), ("10.1.0.3", "b")];
    let of = |annotations: Value, zone: &str| {
        let mut asking = service("web", "10.0.0.1");
        let mechanism = annotations["zoneward.dev/mechanism"].as_str().unwrap_or_default();
        asking["metadata"]["annotations"] = json!({"zoneward.dev/traffic-distribution": mechanism});
        let world = snapshot(&[asking, slice("web", annotations, &endpoints)]);
        let rendered = render(of_sidecar(&world, zone, Some(15001), &[]), None);
        let value = shown(&rendered, ResourceType::Endpoints, "ns/web:80");
        let line = |l: &Value| {
            let hosts = l["lb_endpoints"].as_array().unwrap().iter();
            let hosts: Vec<&str> = hosts
                .map(|e| e["endpoint"]["address"]["socket_address"]["address"].as_str().unwrap())
                .collect();
            let priority = l["priority"].as_u64().unwrap_or(0);
            format!(
                "P{priority} {} {}: {}",
                l["locality"]["zone"],
                l["load_balancing_weight"],
                hosts.join(" ")
            )
        };
        value["endpoints"].as_array().into_iter().flatten().map(line).collect::<Vec<_>>()
    };
    // KEP-4444: the zone where it can, others where it cannot.
    assert_eq!(of(json!({}), "a"), [r#"P0 "a" 1000000: 10.1.0.1"#, r#"P1 "b" 1000000: 10.1.0.2 10.1.0.3"#]);
    // seed 003: Require never leaves the zone.
    assert_eq!(of(json!({"zoneward.dev/mechanism": "RequireZone"}), "a"), [r#"P0 "a" 1000000: 10.1.0.1"#]);
    assert_eq!(of(json!({"zoneward.dev/mechanism": "RequireZone"}), "c"), [""; 0]);
    let spill = json!({"zoneward.dev/mechanism": "Spill", "zoneward.dev/demand": "a=128,b=128"});
    assert_eq!(of(spill, "a"), [r#"P0 "a" 666667: 10.1.0.1"#, r#"P0 "b" 333333: 10.1.0.2 10.1.0.3"#]);
}

#[test]
fn routes_say_what_the_policy_says() {
    let rules = json!([
        {"matches": [{"path": {"prefix": "/v1"}, "method": "GET",
            "headers": [{"name": "X-User", "type": "RegularExpression", "value": "a+"}, {"name": "x-gone", "type": "Absent"}],
            "queryParams": [{"type": "Exact", "name": "q", "value": "1"}]}],
         "default": {"filters": [
            {"requestHeaderModifier": {"set": [{"name": "X-Share", "value": "100%"}], "remove": ["x-old"]}},
            {"urlRewrite": {"hostname": "other.example", "path": {"replacePrefixMatch": "/new/"}}},
            {"requestMirror": {"backendRef": {"kind": "MeshService", "name": "cart"}, "percentage": "2.5"}}],
          "backendRefs": [{"kind": "MeshService", "name": "web", "weight": 3}, {"kind": "MeshService", "name": "missing", "weight": 1}]}},
        {"matches": [{"path": {"exact": "/tea"}}], "default": {"filters": [
            {"directResponse": {"status": 418, "body": {"inlineString": "short"}}}]}},
        {"matches": [{"path": {"prefix": "/old"}}], "default": {"filters": [
            {"requestRedirect": {"scheme": "https", "statusCode": 301, "path": {"replaceFullPath": "/x"}}}]}},
    ]);
    let route = policy(
        "MeshHTTPRoute",
        "r",
        json!({"targetRef": {"kind": "Mesh"},
        "to": [{"targetRef": {"kind": "MeshService", "name": "web"}, "rules": rules}]}),
    );
    let world = snapshot(&[service("web", "10.0.0.1"), service("cart", "10.0.0.2"), route]);
    let rendered = render(of_sidecar(&world, "a", Some(15001), &[]), None);
    assert_eq!(rendered.notices, []);
    let config = shown(&rendered, ResourceType::Routes, "ns/web:80");
    check(
        &config["virtual_hosts"][0]["routes"],
        expect![[r#"
            [
              {
                "match": {
                  "path": "/tea"
                },
                "direct_response": {
                  "status": 418,
                  "body": {
                    "inline_string": "short"
                  }
                },
                "name": "MeshHTTPRoute ns/r spec.to[0].rules[1]"
              },
              {
                "match": {
                  "path_separated_prefix": "/old"
                },
                "redirect": {
                  "path_redirect": "/x",
                  "scheme_redirect": "https",
                  "port_redirect": 443
                },
                "name": "MeshHTTPRoute ns/r spec.to[0].rules[2]"
              },
              {
                "match": {
                  "path_separated_prefix": "/v1",
                  "headers": [
                    {
                      "name": ":method",
                      "string_match": {
                        "exact": "GET"
                      }
                    },
                    {
                      "name": "x-user",
                      "string_match": {
                        "safe_regex": {
                          "regex": "(?:a)+"
                        }
                      }
                    },
                    {
                      "name": "x-gone",
                      "present_match": false
                    }
                  ],
                  "query_parameters": [
                    {
                      "name": "q",
                      "string_match": {
                        "exact": "1"
                      }
                    }
                  ]
                },
                "route": {
                  "weighted_clusters": {
                    "clusters": [
                      {
                        "name": "ns/web:80",
                        "weight": 3
                      },
                      {
                        "name": "unresolved",
                        "weight": 1
                      }
                    ]
                  },
                  "prefix_rewrite": "/new",
                  "host_rewrite_literal": "other.example",
                  "timeout": "0s",
                  "cluster_not_found_response_code": "INTERNAL_SERVER_ERROR",
                  "request_mirror_policies": [
                    {
                      "cluster": "ns/cart:80",
                      "runtime_fraction": {
                        "default_value": {
                          "numerator": 25000,
                          "denominator": "MILLION"
                        }
                      }
                    }
                  ]
                },
                "request_headers_to_add": [
                  {
                    "header": {
                      "key": "X-Share",
                      "value": "100%%"
                    },
                    "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
                    "keep_empty_value": true
                  }
                ],
                "request_headers_to_remove": [
                  "x-old"
                ],
                "name": "MeshHTTPRoute ns/r spec.to[0].rules[0]"
              },
              {
                "match": {
                  "prefix": "/"
                },
                "route": {
                  "cluster": "ns/web:80",
                  "timeout": "0s",
                  "cluster_not_found_response_code": "INTERNAL_SERVER_ERROR"
                },
                "name": "original destination"
              }
            ]
        "#]],
    );
}

/// Envoy sets headers before it adds any.
#[test]
fn a_header_that_a_later_filter_sets_has_none_of_the_values_before() {
    let modifier =
        |changes: Value| json!([{"type": "RequestHeaderModifier", "requestHeaderModifier": changes}]);
    let added = json!({"add": [{"name": "x-new", "value": "1"}, {"name": "x-kept", "value": "1"}]});
    let set = json!({"set": [{"name": "X-New", "value": "2"}], "add": [{"name": "x-kept", "value": "2"}]});
    let backend = json!([{"kind": "MeshService", "name": "web", "filters": modifier(set.clone())}]);
    let of_rule = [modifier(added.clone()), modifier(set)].map(|filters| filters[0].clone());
    let rules = json!([
        {"matches": [{"path": {"exact": "/rule"}}], "default": {"filters": of_rule}},
        {"matches": [{"path": {"exact": "/backend"}}],
            "default": {"filters": modifier(added), "backendRefs": backend}}]);
    let to = json!([{"targetRef": {"kind": "MeshService", "name": "web"}, "rules": rules}]);
    let route = policy("MeshHTTPRoute", "r", json!({"targetRef": {"kind": "Mesh"}, "to": to}));
    let rendered =
        render(of_sidecar(&snapshot(&[service("web", "10.0.0.1"), route]), "a", Some(15001), &[]), None);
    let config = shown(&rendered, ResourceType::Routes, "ns/web:80");
    let changes = |list: &Value| {
        let of = |change: &Value| format!("{} {}", change["header"]["key"], change["header"]["value"]);
        list.as_array().unwrap().iter().map(of).collect::<Vec<_>>().join(", ").replace('"', "")
    };
    let routes = config["virtual_hosts"][0]["routes"].as_array().unwrap();
    let at = |path: &str| routes.iter().find(|route| route["match"]["path"] == path).unwrap();
    let wanted = "x-kept 1, X-New 2, x-kept 2";
    assert_eq!(changes(&at("/rule")["request_headers_to_add"]), wanted);
    let cluster = &at("/backend")["route"]["weighted_clusters"]["clusters"][0];
    assert_eq!(changes(&cluster["request_headers_to_add"]), wanted);
}

#[test]
fn tls_without_a_certificate_goes_on_unread_by_its_server_name() {
    let world = snapshot(&[
        service("web", "10.0.0.1"),
        policy(
            "MeshGateway",
            "edge",
            json!({"listeners": [
            {"name": "one", "port": 8443, "protocol": "TLS", "hostname": "one.example"},
            {"name": "two", "port": 8443, "protocol": "TLS", "hostname": "*.two.example"}]}),
        ),
        policy(
            "MeshTCPRoute",
            "t",
            json!({"targetRef": {"kind": "MeshGateway", "name": "edge"},
            "to": [{"rules": [{"default": {"backendRefs": [{"kind": "MeshService", "name": "web"}]}}]}]}),
        ),
    ]);
    let rendered = render(of_gateway(&world), None);
    assert_eq!(rendered.notices, []);
    let listeners: Vec<_> = rendered.resources.of(ResourceType::Listener).values().collect();
    let [listener] = listeners.as_slice() else { panic!("one port, one listener") };
    let text = config_dump::value(ResourceType::Listener, listener).to_string();
    for part in ["tls_inspector", "one.example", "*.two.example", "ns/web:80"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.to_lowercase().replace('_', "").contains("transportsocket"), "{text}");
}

#[test]
fn every_field_that_is_sent_has_a_name() {
    let rules = json!([{"matches": [{"path": {"regex": "/x.*"}}, {"path": {"prefix": "/"}}],
        "default": {"filters": [{"urlRewrite": {"path": {"replaceFullPath": "/n"}}}], "backendRefs": [
            {"kind": "MeshService", "name": "web"}, {"kind": "MeshService", "name": "cart"}]}}]);
    let mut world = vec![
        service("web", "10.0.0.1"),
        service("cart", "10.0.0.2"),
        slice("web", json!({}), &[("10.1.0.1", "a"), ("10.1.0.2", "b")]),
        policy(
            "MeshGateway",
            "edge",
            json!({"listeners": [
            {"name": "http", "port": 80, "protocol": "HTTP"},
            {"name": "https", "port": 443, "protocol": "HTTPS", "hostname": "x.example", "tls": {"certificateRef": {"name": "cert"}}},
            {"name": "tcp", "port": 5432, "protocol": "TCP"},
            {"name": "tls", "port": 5433, "protocol": "TLS", "tls": {"certificateRef": {"name": "cert"}}}]}),
        ),
        policy(
            "MeshGatewayHTTPRoute",
            "r",
            json!({"targetRef": {"kind": "MeshGateway", "name": "edge"}, "rules": rules}),
        ),
        policy(
            "MeshTCPRoute",
            "t",
            json!({"targetRef": {"kind": "MeshGateway", "name": "edge"},
            "to": [{"rules": [{"default": {"backendRefs": [{"kind": "MeshService", "name": "web"}]}}]}]}),
        ),
    ];
    world.push(many_routes(150));
    let world = snapshot(&world);
    let mut gateway = of_gateway(&world);
    let without = render(gateway.clone(), None);
    assert_eq!(without.notices.len(), 2, "{:?}", without.notices);
    let pair = PemKeyPair { chain: b"CHAIN".as_slice().into(), key: b"SECRET".as_slice().into() };
    let key = ObjectKey::new(&"ns".into(), &"cert".into());
    gateway.certificates = Arc::new([(key, Arc::new(pair))].into());
    let gateway = render(gateway, Some(&without));
    assert_eq!(gateway.notices, []);
    let sidecar = render(of_sidecar(&world, "a", Some(15001), &[("127.0.0.1:1", "web")]), None);
    let mut behind = of_gateway(&world);
    behind.edge = Arc::new(EdgeSettings {
        trusted_proxies: TrustedProxies::new(["10.0.0.0/8".parse().unwrap()]),
        proxy_protocol: true,
        ..EdgeSettings::default()
    });
    let mut backends = BackendTable::default();
    for backend in behind.tiers[0].backends() {
        let proxy_protocol = Some(ProxyProtocol::V2);
        backends.put(Arc::new(Backend { proxy_protocol, ..Backend::clone(backend) }));
    }
    behind.tiers = vec![Arc::new(backends)];
    let behind = render(behind, Some(&gateway));
    for rendered in [&gateway, &sidecar, &behind] {
        for kind in ResourceType::ALL {
            for resource in rendered.resources.of(kind).values() {
                let value = config_dump::value(kind, resource);
                assert_eq!(config_dump::unnamed(&value), [""; 0], "{kind} {}", resource.name);
                assert!(!value.to_string().contains("U0VDUkVU"), "keys are not shown");
            }
        }
    }
    expect![[r#"
        cluster: ns/cart:80, ns/web:80
        endpoints: ns/cart:80, ns/web:80
        listener: ns/edge:443, ns/edge:5432, ns/edge:5433, ns/edge:80
        routes: ns/edge:443/https, ns/edge:80
        secret: ns/cert
    "#]]
    .assert_eq(&names(&gateway));
}

fn many_routes(count: usize) -> Value {
    let rule = |i| {
        json!({"matches": [{"path": {"prefix": format!("/p{i}")}}],
        "default": {"backendRefs": [{"kind": "MeshService", "name": "cart"}]}})
    };
    policy(
        "MeshHTTPRoute",
        "many",
        json!({"targetRef": {"kind": "Mesh"}, "to": [
        {"targetRef": {"kind": "MeshService", "name": "web"}, "rules": (0..count).map(rule).collect::<Vec<_>>()}]}),
    )
}

#[test]
fn a_long_list_of_routes_becomes_a_tree_with_everything_that_may_match_at_each_leaf() {
    let world = snapshot(&[service("web", "10.0.0.1"), service("cart", "10.0.0.2"), many_routes(150)]);
    let rendered = render(of_sidecar(&world, "a", Some(15001), &[]), None);
    let host = &shown(&rendered, ResourceType::Routes, "ns/web:80")["virtual_hosts"][0];
    assert!(host["routes"].is_null());
    let map = host["matcher"]["matcher_tree"]["prefix_match_map"]["map"].as_object().unwrap();
    assert_eq!(map.len(), 151, "each prefix, and `/`");
    let paths = |key: &str| {
        let routes = map[key]["action"]["typed_config"]["routes"].as_array().unwrap().iter();
        let path = |r: &Value| {
            let on = &r["match"];
            on["path_separated_prefix"].as_str().or(on["prefix"].as_str()).unwrap().to_owned()
        };
        routes.map(path).collect::<Vec<_>>()
    };
    assert_eq!(paths("/p15"), ["/p15", "/"]);
    assert_eq!(paths("/p149"), ["/p149", "/"], "/p14 is no prefix of it by segments");
    assert_eq!(paths("/"), ["/"]);
}

#[test]
fn what_did_not_change_is_the_same_resource_and_content_decides_versions() {
    let endpoints = [("10.1.0.1", "a")];
    let objects = [
        service("web", "10.0.0.1"),
        service("cart", "10.0.0.2"),
        slice("web", json!({}), &endpoints),
        many_routes(120),
    ];
    let world = snapshot(&objects);
    let input = of_sidecar(&world, "a", Some(15001), &[]);
    let first = render(input.clone(), None);
    let again = render(input.clone(), Some(&first));
    for kind in ResourceType::ALL {
        for (name, resource) in first.resources.of(kind) {
            assert!(Arc::ptr_eq(resource, &again.resources.of(kind)[name]), "{kind} {name}");
        }
    }
    let anew = render(of_sidecar(&snapshot(&objects), "a", Some(15001), &[]), None);
    assert!(first.resources.changed_names(&anew.resources).is_empty(), "a restart makes the same versions");
    let moved = [("10.1.0.1", "a"), ("10.1.0.9", "a")];
    let world = snapshot(&[
        service("web", "10.0.0.1"),
        service("cart", "10.0.0.2"),
        slice("web", json!({}), &moved),
        many_routes(120),
    ]);
    let changed =
        render(RenderInput { tiers: of_sidecar(&world, "a", None, &[]).tiers, ..input }, Some(&first));
    let changed_names = first.resources.changed_names(&changed.resources);
    let changed_names: Vec<String> = changed_names
        .iter()
        .flat_map(|(kind, names)| names.iter().map(move |n| format!("{kind} {n}")))
        .collect();
    assert_eq!(changed_names, ["endpoints ns/web:80"]);
}

#[test]
fn the_narrowest_listener_has_a_host_even_without_a_route_for_it() {
    let world = snapshot(&[
        service("web", "10.0.0.1"),
        policy(
            "MeshGateway",
            "edge",
            json!({"listeners": [
            {"name": "all", "port": 80, "protocol": "HTTP"},
            {"name": "own", "port": 80, "protocol": "HTTP", "hostname": "*.own.io", "tags": {"a": "b"}}]}),
        ),
        policy(
            "MeshGatewayHTTPRoute",
            "r",
            json!({"targetRef": {"kind": "MeshGateway", "name": "edge"},
            "hostnames": ["x.own.io", "*.io", "other.org"],
            "rules": [{"matches": [{"path": {"prefix": "/"}}], "default": {"backendRefs": [{"kind": "MeshService", "name": "web"}]}}]}),
        ),
    ]);
    let rendered = render(of_gateway(&world), None);
    let config = shown(&rendered, ResourceType::Routes, "ns/edge:80");
    let hosts = config["virtual_hosts"].as_array().unwrap().iter();
    let hosts: Vec<String> = hosts
        .map(|h| {
            format!("{} {}", h["domains"][0].as_str().unwrap(), h["routes"].as_array().map_or(0, Vec::len))
        })
        .collect();
    assert_eq!(hosts, ["other.org 1", "*.io 1", "* 0", "x.own.io 2", "*.own.io 1"]);
}

#[test]
fn an_override_of_a_port_that_the_gateway_does_not_have_is_a_notice() {
    let gateway = policy(
        "MeshGateway",
        "edge",
        json!({"listeners": [{"name": "a", "port": 8080, "protocol": "HTTP"}]}),
    );
    let mut input = of_gateway(&snapshot(&[gateway]));
    if let EnvoyListeners::Gateway { port_overrides, .. } = &mut input.listeners {
        port_overrides.insert(80, "127.0.0.1:8080".parse().unwrap());
    }
    let told: Vec<String> = render(input, None).notices.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].starts_with(
            "MeshGateway ns/edge: PortNotFound: a bootstrap binds its port 80 to 127.0.0.1:8080"
        )
    );
}

#[test]
fn what_envoy_cannot_do_is_told_and_the_rest_stays() {
    let rules = json!([
        {"matches": [{"path": {"regex": "/(a{1200})"}}], "default": {}},
        {"matches": [{"path": {"prefix": "/s"}}], "default": {"filters": [
            {"requestHeaderModifier": {"set": [{"name": "Content-Length", "value": "0"}, {"name": "x", "value": "1"}]}}]}},
        {"matches": [{"path": {"prefix": "/file"}}], "default": {"filters": [
            {"directResponse": {"status": 200, "body": {"filename": "/etc/passwd"}}}]}},
    ]);
    let route = policy(
        "MeshHTTPRoute",
        "r",
        json!({"targetRef": {"kind": "Mesh"},
        "to": [{"targetRef": {"kind": "MeshService", "name": "web"}, "rules": rules}]}),
    );
    let world = snapshot(&[service("web", "10.0.0.1"), route]);
    let mut input = of_sidecar(&world, "a", Some(15001), &[]);
    let rendered = render(input.clone(), None);
    let notices: Vec<String> = rendered.notices.iter().map(ToString::to_string).collect();
    assert_eq!(notices.len(), 3, "{notices:?}");
    assert!(notices[0].contains("spec.to[0].rules[0].matches[0]: more than 1000 repetitions"), "{notices:?}");
    assert!(notices[1].contains("changes of Content-Length are ignored"), "{notices:?}");
    assert!(notices[2].contains("--allow-file"), "{notices:?}");
    let routes = &shown(&rendered, ResourceType::Routes, "ns/web:80")["virtual_hosts"][0]["routes"];
    let text = json!({"inline_string": "the body of the response cannot be read"});
    assert_eq!(routes[0]["direct_response"], json!({"status": 500, "body": text}));
    let put = routes[1]["request_headers_to_add"].as_array().map(Vec::len);
    assert_eq!(put, Some(1), "the other change stays");
    input.allowlist = Arc::new(DirectResponseAllowlist {
        files: ["/etc/passwd".to_owned()].into(),
        ..DirectResponseAllowlist::default()
    });
    let rendered = render(input, Some(&rendered));
    assert_eq!(rendered.notices.len(), 2);
    let routes = &shown(&rendered, ResourceType::Routes, "ns/web:80")["virtual_hosts"][0]["routes"];
    assert_eq!(routes[0]["direct_response"]["body"], json!({"filename": "/etc/passwd"}));
}
