//! The identity of an Envoy: written into its bootstrap, and read from the first request of a stream.
//!
//! It is the value of `zoneward` in the node's metadata, so that one server serves every role. Where the server requires
//! client certificates, these decide which role an Envoy may have: [`EnvoyIdentity::spiffe_id`].

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::google::protobuf::{Struct, Value as ProtoValue, value::Kind as ProtoKind};
use serde_json::{Value, json};

pub const KEY: &str = "zoneward";
/// The default port of captured connections.
pub const CAPTURE_PORT: u16 = 15001;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EnvoyIdentity {
    pub namespace: String,
    pub role: EnvoyRole,
    /// Empty if unknown.
    pub node: String,
    /// Overrides the zone of the node.
    pub zone: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EnvoyRole {
    Sidecar {
        /// The Service of the client.
        from: String,
        /// Labels of the client's pod.
        tags: BTreeMap<String, String>,
        listeners: SidecarListeners,
    },
    Gateway {
        name: String,
        bind: IpAddr,
        /// Addresses of ports that are not bound at `bind`.
        port_overrides: BTreeMap<u16, SocketAddr>,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SidecarListeners {
    /// The port that connections to Services are redirected to.
    pub capture: Option<u16>,
    /// Listeners of single destinations, as `SERVICE[:PORT]`.
    pub outbounds: BTreeMap<SocketAddr, String>,
}

/// Sent to the Envoy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node.metadata.{KEY}{field}: {problem}; print a bootstrap with `zoneward mesh bootstrap`")]
pub struct EnvoyIdentityError {
    field: String,
    problem: String,
}

fn invalid(field: &str, problem: impl Into<String>) -> EnvoyIdentityError {
    EnvoyIdentityError { field: field.to_owned(), problem: problem.into() }
}

impl EnvoyIdentity {
    pub fn parse(node: &Node) -> Result<Self, EnvoyIdentityError> {
        let metadata = node.metadata.as_ref().and_then(|metadata| metadata.fields.get(KEY));
        let Some(held) = metadata else { return Err(invalid("", "missing")) };
        let value = to_json(held, 0);
        let text = |name: &str| value[name].as_str().map(str::to_owned);
        let zone = node.locality.as_ref().map(|locality| locality.zone.clone());
        Ok(Self {
            namespace: text("namespace").unwrap_or_else(|| "default".to_owned()),
            role: role(&value)?,
            node: text("node").unwrap_or_default(),
            zone: zone.filter(|zone| !zone.is_empty()),
        })
    }

    /// The metadata value.
    pub fn value(&self) -> Value {
        let mut value = json!({"namespace": self.namespace});
        if !self.node.is_empty() {
            value["node"] = self.node.as_str().into();
        }
        match &self.role {
            EnvoyRole::Sidecar { from, tags, listeners } => {
                value["from"] = from.as_str().into();
                value["tags"] = json!(tags);
                value["capture"] = json!(listeners.capture);
                let pairs = listeners.outbounds.iter().map(|(at, to)| (at.to_string(), Value::from(&**to)));
                value["outbounds"] = Value::Object(pairs.collect());
            }
            EnvoyRole::Gateway { name, bind, port_overrides } => {
                value["gateway"] = name.as_str().into();
                value["bind"] = bind.to_string().into();
                let pairs =
                    port_overrides.iter().map(|(port, at)| (port.to_string(), Value::from(at.to_string())));
                value["listen"] = Value::Object(pairs.collect());
            }
        }
        value
    }

    /// The path of its SPIFFE ID.
    pub fn role_path(&self) -> String {
        match &self.role {
            EnvoyRole::Sidecar { from, .. } => format!("/ns/{}/sidecar/{from}", self.namespace),
            EnvoyRole::Gateway { name, .. } => format!("/ns/{}/gateway/{name}", self.namespace),
        }
    }

    /// The URI in the client certificate of an Envoy with this role. Any trust domain will do: the CA decides.
    pub fn spiffe_id(&self) -> String {
        format!("spiffe://{KEY}{}", self.role_path())
    }

    /// For logs and `/status`, such as `default/gateway/edge`.
    pub fn title(&self) -> String {
        match &self.role {
            EnvoyRole::Sidecar { from, .. } => format!("{}/sidecar/{from}", self.namespace),
            EnvoyRole::Gateway { name, .. } => format!("{}/gateway/{name}", self.namespace),
        }
    }
}

fn role(value: &Value) -> Result<EnvoyRole, EnvoyIdentityError> {
    let name = |field: &str| value[field].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    match (name("from"), name("gateway")) {
        (Some(from), None) => {
            let tags = texts(&value["tags"], ".tags")?.into_iter().collect();
            Ok(EnvoyRole::Sidecar { from, tags, listeners: listeners(value)? })
        }
        (None, Some(name)) => {
            let bind = value["bind"].as_str().unwrap_or("0.0.0.0");
            let bind =
                bind.parse().map_err(|_| invalid(".bind", format!("{bind:?} is not an IP address")))?;
            let mut port_overrides = BTreeMap::new();
            for (port, at) in texts(&value["listen"], ".listen")? {
                let number =
                    port.parse().map_err(|_| invalid(".listen", format!("{port:?} is not a port")))?;
                port_overrides.insert(number, address(&at, ".listen")?);
            }
            Ok(EnvoyRole::Gateway { name, bind, port_overrides })
        }
        _ => Err(invalid("", "set either `from` or `gateway`")),
    }
}

fn listeners(value: &Value) -> Result<SidecarListeners, EnvoyIdentityError> {
    let capture = match &value["capture"] {
        Value::Null => None,
        held => {
            let port = held.as_f64().filter(|port| (1.0..=65535.0).contains(port));
            Some(port.ok_or_else(|| invalid(".capture", "not a port"))? as u16)
        }
    };
    let mut outbounds = BTreeMap::new();
    for (at, to) in texts(&value["outbounds"], ".outbounds")? {
        outbounds.insert(address(&at, ".outbounds")?, to);
    }
    Ok(SidecarListeners { capture, outbounds })
}

fn address(text: &str, field: &str) -> Result<SocketAddr, EnvoyIdentityError> {
    text.parse().map_err(|_| invalid(field, format!("{text:?} is not ADDRESS:PORT")))
}

fn texts(value: &Value, field: &str) -> Result<Vec<(String, String)>, EnvoyIdentityError> {
    let pairs = value.as_object().into_iter().flatten();
    let pair = |(key, value): (&String, &Value)| match value.as_str() {
        Some(text) => Ok((key.clone(), text.to_owned())),
        None => Err(invalid(field, format!("{key} is not a string"))),
    };
    pairs.map(pair).collect()
}

/// Deeper nesting of a client's metadata is ignored.
const MAX_DEPTH: usize = 8;

fn to_json(value: &ProtoValue, depth: usize) -> Value {
    match &value.kind {
        Some(ProtoKind::StringValue(text)) => text.as_str().into(),
        Some(ProtoKind::NumberValue(number)) => json!(number),
        Some(ProtoKind::BoolValue(yes)) => (*yes).into(),
        Some(ProtoKind::StructValue(Struct { fields })) if depth < MAX_DEPTH => {
            let sorted: BTreeMap<&String, &ProtoValue> = fields.iter().collect();
            Value::Object(sorted.into_iter().map(|(k, v)| (k.clone(), to_json(v, depth + 1))).collect())
        }
        _ => Value::Null,
    }
}

/// JSON as google.protobuf.Value.
pub fn to_protobuf(value: &Value) -> ProtoValue {
    let kind = match value {
        Value::Null => ProtoKind::NullValue(0),
        Value::Bool(yes) => ProtoKind::BoolValue(*yes),
        Value::Number(number) => ProtoKind::NumberValue(number.as_f64().unwrap_or_default()),
        Value::String(text) => ProtoKind::StringValue(text.clone()),
        Value::Array(list) => {
            let values = list.iter().map(to_protobuf).collect();
            ProtoKind::ListValue(envoy_types::pb::google::protobuf::ListValue { values })
        }
        Value::Object(map) => {
            let fields = map.iter().map(|(key, value)| (key.clone(), to_protobuf(value))).collect();
            ProtoKind::StructValue(Struct { fields })
        }
    };
    ProtoValue { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(value: &Value) -> Node {
        let fields = [(KEY.to_owned(), to_protobuf(value))].into_iter().collect();
        Node { metadata: Some(Struct { fields }), ..Node::default() }
    }

    #[test]
    fn what_a_bootstrap_says_is_read_back() {
        let sidecar = EnvoyIdentity {
            namespace: "shop".to_owned(),
            role: EnvoyRole::Sidecar {
                from: "web".to_owned(),
                tags: [("version".to_owned(), "v2".to_owned())].into(),
                listeners: SidecarListeners {
                    capture: Some(15001),
                    outbounds: [("127.0.0.1:8081".parse().unwrap(), "cart:80".to_owned())].into(),
                },
            },
            node: "n1".to_owned(),
            zone: None,
        };
        let gateway = EnvoyIdentity {
            role: EnvoyRole::Gateway {
                name: "edge".to_owned(),
                bind: "0.0.0.0".parse().unwrap(),
                port_overrides: [(80, "[::1]:8080".parse().unwrap())].into(),
            },
            node: String::new(),
            ..sidecar.clone()
        };
        for identity in [sidecar, gateway] {
            assert_eq!(EnvoyIdentity::parse(&node(&identity.value())), Ok(identity));
        }
    }

    #[test]
    fn who_does_not_say_who_it_is_hears_what_to_do() {
        let error = |value: Value| EnvoyIdentity::parse(&node(&value)).unwrap_err().to_string();
        assert!(error(json!({})).contains("set either `from` or `gateway`"));
        assert!(error(json!({"gateway": "edge", "bind": "here"})).contains("zoneward.bind: \"here\""));
        assert!(error(json!({"from": "web", "outbounds": {"1": "x"}})).contains("not ADDRESS:PORT"));
        assert!(error(json!({"from": "web", "capture": "x"})).contains(".capture"));
        let missing = EnvoyIdentity::parse(&Node::default()).unwrap_err().to_string();
        assert!(missing.contains("zoneward mesh bootstrap"), "{missing}");
    }
}
