//! The bootstrap of an Envoy: its identity and the address of the xDS server, which sends everything else.

use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};

use crate::identity::{EnvoyIdentity, KEY};

/// The cluster of the xDS server.
const SERVER: &str = "zoneward";

#[derive(Clone, Debug)]
pub struct Bootstrap {
    pub identity: EnvoyIdentity,
    /// The node id, unique among all Envoys.
    pub id: String,
    /// Host or address of the xDS server.
    pub host: String,
    pub port: u16,
    pub tls: Option<XdsClientTls>,
    pub token: Option<String>,
    /// The address of Envoy's admin interface; disabled without one.
    pub admin: Option<SocketAddr>,
    /// Use state-of-the-world instead of incremental xDS.
    pub state_of_the_world: bool,
}

/// Paths on Envoy's machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdsClientTls {
    /// The CA of the server's certificate.
    pub authority: String,
    /// Certificate and key of the client, where the server requires them.
    pub client_certificate: Option<(String, String)>,
    /// Expected in the server's certificate.
    pub server_name: String,
}

impl Bootstrap {
    pub fn value(&self) -> Value {
        let node = json!({
            "id": self.id,
            "cluster": self.identity.title(),
            "locality": {"zone": self.identity.zone.clone().unwrap_or_default()},
            "metadata": {KEY: self.identity.value()},
        });
        let from_server = json!({"ads": {}, "resource_api_version": "V3"});
        let mut value = json!({
            "node": node,
            "dynamic_resources": {
                "ads_config": self.stream(),
                "cds_config": from_server,
                "lds_config": from_server,
            },
            "static_resources": {"clusters": [self.server()]},
            // Policies are validated against a limit of ours; Envoy's default is too small for one Unicode class.
            "layered_runtime": {"layers": [{
                "name": "zoneward",
                "static_layer": {"re2.max_program_size.error_level": 1_000_000},
            }]},
        });
        if let Some(admin) = self.admin {
            value["admin"] = json!({"address": address(&admin.ip().to_string(), admin.port())});
        }
        value
    }

    fn stream(&self) -> Value {
        let mut service = json!({"envoy_grpc": {"cluster_name": SERVER}});
        if let Some(token) = &self.token {
            service["initial_metadata"] =
                json!([{"key": "authorization", "value": format!("Bearer {token}")}]);
        }
        json!({
            "api_type": if self.state_of_the_world { "GRPC" } else { "DELTA_GRPC" },
            "transport_api_version": "V3",
            "set_node_on_first_message_only": true,
            "grpc_services": [service],
        })
    }

    fn server(&self) -> Value {
        let is_address = self.host.parse::<IpAddr>().is_ok();
        let mut cluster = json!({
            "name": SERVER,
            "type": if is_address { "STATIC" } else { "STRICT_DNS" },
            "connect_timeout": "5s",
            "load_assignment": {"cluster_name": SERVER, "endpoints": [{"lb_endpoints": [
                {"endpoint": {"address": address(&self.host, self.port)}},
            ]}]},
            "typed_extension_protocol_options": {
                "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                    "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                    // Detects a server that vanished, and reconnects.
                    "explicit_http_config": {"http2_protocol_options": {
                        "connection_keepalive": {"interval": "20s", "timeout": "10s"},
                    }},
                },
            },
        });
        if let Some(tls) = &self.tls {
            cluster["transport_socket"] = tls.value();
        }
        cluster
    }
}

impl XdsClientTls {
    fn value(&self) -> Value {
        let file = |name: &str| json!({"filename": name});
        let mut context = json!({
            "alpn_protocols": ["h2"],
            "validation_context": {
                "trusted_ca": file(&self.authority),
                "match_typed_subject_alt_names": [{
                    "san_type": if self.server_name.parse::<IpAddr>().is_ok() { "IP_ADDRESS" } else { "DNS" },
                    "matcher": {"exact": self.server_name},
                }],
            },
        });
        if let Some((certificate, key)) = &self.client_certificate {
            context["tls_certificates"] =
                json!([{"certificate_chain": file(certificate), "private_key": file(key)}]);
        }
        let mut config = json!({
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "common_tls_context": context,
        });
        if self.server_name.parse::<IpAddr>().is_err() {
            config["sni"] = self.server_name.as_str().into();
        }
        json!({"name": "envoy.transport_sockets.tls", "typed_config": config})
    }
}

fn address(host: &str, port: u16) -> Value {
    json!({"socket_address": {"address": host, "port_value": port}})
}
