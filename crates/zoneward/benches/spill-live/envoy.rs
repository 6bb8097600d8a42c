//! What Envoys are told: a bootstrap for each, and a file with the endpoints of each cluster, which they watch.

use std::path::Path;

use serde_json::{Value, json};

use crate::place::{Competitor, Place, ZONES};

const TYPES: &str = "type.googleapis.com/envoy";

/// The bootstrap of an Envoy in a zone. Both policies have their defaults; requests are not retried.
pub fn bootstrap(own: &Place, proxies: &[Place], folder: &Path) -> Value {
    let clusters =
        [Competitor::ZoneAware, Competitor::LoadAware].map(|competitor| cluster(competitor, folder));
    // Zone-aware routing compares the zones of the proxies with those of the endpoints.
    let local =
        json!({"name": "local", "type": "STATIC", "load_assignment": assignment("local", proxies, 1)});
    let clusters = [&[local], &clusters[..]].concat();
    let listeners = [Competitor::ZoneAware, Competitor::LoadAware].map(listener);
    json!({
        "node": {"id": own.pod, "cluster": "local", "locality": {"zone": ZONES[own.zone]}},
        "cluster_manager": {"local_cluster_name": "local"},
        "static_resources": {"listeners": listeners, "clusters": clusters},
    })
}

/// Writes the endpoints of both clusters. Envoys see the rename.
pub fn write_endpoints(servers: &[Place], folder: &Path) {
    for competitor in [Competitor::ZoneAware, Competitor::LoadAware] {
        let name = competitor.envoy_cluster().unwrap();
        let mut resource = assignment(name, servers, competitor.server_port());
        resource["@type"] = format!("{TYPES}.config.endpoint.v3.ClusterLoadAssignment").into();
        let new = folder.join(format!("{name}.new"));
        std::fs::write(&new, json!({"resources": [resource]}).to_string()).unwrap();
        std::fs::rename(new, folder.join(format!("{name}.json"))).unwrap();
    }
}

fn assignment(cluster: &str, places: &[Place], port: u16) -> Value {
    let endpoint = |place: &Place| json!({"endpoint": {"address": socket(&place.address, port)}});
    let zone = |(zone, name): (usize, &&str)| {
        let inside: Vec<Value> = places.iter().filter(|place| place.zone == zone).map(endpoint).collect();
        (!inside.is_empty()).then(|| json!({"locality": {"zone": name}, "lb_endpoints": inside}))
    };
    let zones: Vec<Value> = ZONES.iter().enumerate().filter_map(zone).collect();
    json!({"cluster_name": cluster, "endpoints": zones})
}

fn socket(address: &str, port: u16) -> Value {
    json!({"socket_address": {"address": address, "port_value": port}})
}

fn cluster(competitor: Competitor, folder: &Path) -> Value {
    let name = competitor.envoy_cluster().unwrap();
    let file = folder.join(format!("{name}.json"));
    let mut cluster = json!({
        "name": name, "type": "EDS", "connect_timeout": "1s",
        "eds_cluster_config": {"eds_config": {"path_config_source": {"path": file}, "resource_api_version": "V3"}},
    });
    if competitor == Competitor::ZoneAware {
        cluster["lb_policy"] = "ROUND_ROBIN".into();
        cluster["common_lb_config"] = json!({"zone_aware_lb_config": {}});
    } else {
        let within_zone = policy("round_robin", "RoundRobin", json!({}));
        let between_zones = policy(
            "load_aware_locality",
            "LoadAwareLocality",
            json!({"endpoint_picking_policy": within_zone}),
        );
        cluster["load_balancing_policy"] = between_zones;
    }
    cluster
}

fn policy(name: &str, message: &str, mut config: Value) -> Value {
    config["@type"] = format!("{TYPES}.extensions.load_balancing_policies.{name}.v3.{message}").into();
    let name = format!("envoy.load_balancing_policies.{name}");
    json!({"policies": [{"typed_extension_config": {"name": name, "typed_config": config}}]})
}

fn listener(competitor: Competitor) -> Value {
    let name = competitor.envoy_cluster().unwrap();
    let route = json!({"match": {"prefix": "/"}, "route": {"cluster": name, "timeout": "2s"}});
    let router = json!({"name": "router", "typed_config": {
        "@type": format!("{TYPES}.extensions.filters.http.router.v3.Router")}});
    let manager = json!({
        "@type": format!("{TYPES}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": name, "http_filters": [router],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
    });
    json!({
        "name": name, "address": socket("127.0.0.1", competitor.envoy_port()),
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    })
}
