//! Who an Envoy is: what its bootstrap says of it, and what the server reads from the first message of a stream.
//!
//! It stands in the node's metadata below the key `zoneward`, so that one server serves every role.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::google::protobuf::{Struct, Value as Held, value::Kind as HeldKind};
use serde_json::{Value, json};

/// The key in the node's metadata.
pub const KEY: &str = "zoneward";
/// Where captured connections arrive unless said.
pub const CAPTURE_PORT: u16 = 15001;

/// Who an Envoy is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// Its namespace.
    pub namespace: String,
    /// What it is for.
    pub role: Role,
    /// The node that it runs on; empty if it does not say.
    pub node: String,
    /// Its zone, where no node says it.
    pub zone: Option<String>,
}

/// What an Envoy is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// It carries the requests of a client.
    Sidecar {
        /// The Service of the client.
        from: String,
        /// Tags of the client's pod.
        tags: BTreeMap<String, String>,
        /// Where it listens.
        entrances: Entrances,
    },
    /// It is a MeshGateway.
    Gateway {
        /// The gateway's name.
        name: String,
        /// The address that its ports are bound to.
        bind: IpAddr,
        /// Other places for some ports.
        places: BTreeMap<u16, SocketAddr>,
    },
}

/// Where a sidecar's client reaches it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entrances {
    /// Connections to Services' own addresses are redirected to this port.
    pub capture: Option<u16>,
    /// Ports for single destinations, as `SERVICE[:PORT]`.
    pub outbounds: BTreeMap<SocketAddr, String>,
}

/// Why an Envoy cannot be served: the sentence is sent to it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node.metadata.{KEY}{field}: {problem}; print a bootstrap with `zoneward mesh bootstrap`")]
pub struct Unknown {
    field: String,
    problem: String,
}

fn unknown(field: &str, problem: impl Into<String>) -> Unknown {
    Unknown { field: field.to_owned(), problem: problem.into() }
}

impl Identity {
    /// Reads who a node is.
    pub fn parse(node: &Node) -> Result<Self, Unknown> {
        let metadata = node.metadata.as_ref().and_then(|metadata| metadata.fields.get(KEY));
        let Some(held) = metadata else { return Err(unknown("", "it is missing")) };
        let value = plain(held, 0);
        let text = |name: &str| value[name].as_str().map(str::to_owned);
        let zone = node.locality.as_ref().map(|locality| locality.zone.clone());
        Ok(Self {
            namespace: text("namespace").unwrap_or_else(|| "default".to_owned()),
            role: role(&value)?,
            node: text("node").unwrap_or_default(),
            zone: zone.filter(|zone| !zone.is_empty()),
        })
    }

    /// What a bootstrap says below the key.
    pub fn value(&self) -> Value {
        let mut value = json!({"namespace": self.namespace});
        if !self.node.is_empty() {
            value["node"] = self.node.as_str().into();
        }
        match &self.role {
            Role::Sidecar { from, tags, entrances } => {
                value["from"] = from.as_str().into();
                value["tags"] = json!(tags);
                value["capture"] = json!(entrances.capture);
                let pairs = entrances.outbounds.iter().map(|(at, to)| (at.to_string(), Value::from(&**to)));
                value["outbounds"] = Value::Object(pairs.collect());
            }
            Role::Gateway { name, bind, places } => {
                value["gateway"] = name.as_str().into();
                value["bind"] = bind.to_string().into();
                let pairs = places.iter().map(|(port, at)| (port.to_string(), Value::from(at.to_string())));
                value["listen"] = Value::Object(pairs.collect());
            }
        }
        value
    }

    /// A name for logs and status, as `default/gateway/edge`.
    pub fn title(&self) -> String {
        match &self.role {
            Role::Sidecar { from, .. } => format!("{}/sidecar/{from}", self.namespace),
            Role::Gateway { name, .. } => format!("{}/gateway/{name}", self.namespace),
        }
    }
}

fn role(value: &Value) -> Result<Role, Unknown> {
    let name = |field: &str| value[field].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    match (name("from"), name("gateway")) {
        (Some(from), None) => {
            let tags = texts(&value["tags"], ".tags")?.into_iter().collect();
            Ok(Role::Sidecar { from, tags, entrances: entrances(value)? })
        }
        (None, Some(name)) => {
            let bind = value["bind"].as_str().unwrap_or("0.0.0.0");
            let bind = bind.parse().map_err(|_| unknown(".bind", format!("{bind:?} is no address")))?;
            let mut places = BTreeMap::new();
            for (port, at) in texts(&value["listen"], ".listen")? {
                let number = port.parse().map_err(|_| unknown(".listen", format!("{port:?} is no port")))?;
                places.insert(number, address(&at, ".listen")?);
            }
            Ok(Role::Gateway { name, bind, places })
        }
        _ => Err(unknown("", "say either `from` or `gateway`")),
    }
}

fn entrances(value: &Value) -> Result<Entrances, Unknown> {
    let capture = match &value["capture"] {
        Value::Null => None,
        held => {
            let port = held.as_f64().filter(|port| (1.0..=65535.0).contains(port));
            Some(port.ok_or_else(|| unknown(".capture", "it is no port"))? as u16)
        }
    };
    let mut outbounds = BTreeMap::new();
    for (at, to) in texts(&value["outbounds"], ".outbounds")? {
        outbounds.insert(address(&at, ".outbounds")?, to);
    }
    Ok(Entrances { capture, outbounds })
}

fn address(text: &str, field: &str) -> Result<SocketAddr, Unknown> {
    text.parse().map_err(|_| unknown(field, format!("{text:?} is no ADDRESS:PORT")))
}

fn texts(value: &Value, field: &str) -> Result<Vec<(String, String)>, Unknown> {
    let pairs = value.as_object().into_iter().flatten();
    let pair = |(key, value): (&String, &Value)| match value.as_str() {
        Some(text) => Ok((key.clone(), text.to_owned())),
        None => Err(unknown(field, format!("{key} is no text"))),
    };
    pairs.map(pair).collect()
}

/// Deeper than any metadata of ours; what a client nests beyond is not followed.
const DEPTH: usize = 8;

fn plain(held: &Held, depth: usize) -> Value {
    match &held.kind {
        Some(HeldKind::StringValue(text)) => text.as_str().into(),
        Some(HeldKind::NumberValue(number)) => json!(number),
        Some(HeldKind::BoolValue(yes)) => (*yes).into(),
        Some(HeldKind::StructValue(Struct { fields })) if depth < DEPTH => {
            let sorted: BTreeMap<&String, &Held> = fields.iter().collect();
            Value::Object(sorted.into_iter().map(|(k, v)| (k.clone(), plain(v, depth + 1))).collect())
        }
        _ => Value::Null,
    }
}

/// JSON as the message that carries it.
pub fn held(value: &Value) -> Held {
    let kind = match value {
        Value::Null => HeldKind::NullValue(0),
        Value::Bool(yes) => HeldKind::BoolValue(*yes),
        Value::Number(number) => HeldKind::NumberValue(number.as_f64().unwrap_or_default()),
        Value::String(text) => HeldKind::StringValue(text.clone()),
        Value::Array(list) => {
            let values = list.iter().map(held).collect();
            HeldKind::ListValue(envoy_types::pb::google::protobuf::ListValue { values })
        }
        Value::Object(map) => {
            let fields = map.iter().map(|(key, value)| (key.clone(), held(value))).collect();
            HeldKind::StructValue(Struct { fields })
        }
    };
    Held { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(value: &Value) -> Node {
        let fields = [(KEY.to_owned(), held(value))].into_iter().collect();
        Node { metadata: Some(Struct { fields }), ..Node::default() }
    }

    #[test]
    fn what_a_bootstrap_says_is_read_back() {
        let sidecar = Identity {
            namespace: "shop".to_owned(),
            role: Role::Sidecar {
                from: "web".to_owned(),
                tags: [("version".to_owned(), "v2".to_owned())].into(),
                entrances: Entrances {
                    capture: Some(15001),
                    outbounds: [("127.0.0.1:8081".parse().unwrap(), "cart:80".to_owned())].into(),
                },
            },
            node: "n1".to_owned(),
            zone: None,
        };
        let gateway = Identity {
            role: Role::Gateway {
                name: "edge".to_owned(),
                bind: "0.0.0.0".parse().unwrap(),
                places: [(80, "[::1]:8080".parse().unwrap())].into(),
            },
            node: String::new(),
            ..sidecar.clone()
        };
        for identity in [sidecar, gateway] {
            assert_eq!(Identity::parse(&node(&identity.value())), Ok(identity));
        }
    }

    #[test]
    fn who_does_not_say_who_it_is_hears_what_to_do() {
        let told = |value: Value| Identity::parse(&node(&value)).unwrap_err().to_string();
        assert!(told(json!({})).contains("say either `from` or `gateway`"));
        assert!(told(json!({"gateway": "edge", "bind": "here"})).contains("zoneward.bind: \"here\""));
        assert!(told(json!({"from": "web", "outbounds": {"1": "x"}})).contains("no ADDRESS:PORT"));
        assert!(told(json!({"from": "web", "capture": "x"})).contains(".capture"));
        let nobody = Identity::parse(&Node::default()).unwrap_err().to_string();
        assert!(nobody.contains("zoneward mesh bootstrap"), "{nobody}");
    }
}
