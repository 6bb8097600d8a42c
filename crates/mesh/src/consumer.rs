//! Who obeys the tables: a sidecar beside a client, or a gateway, on a node.

use std::fmt;

use anyhow::{Context, Result, ensure};
use model::backend::ConsumerLocation;
use model::route::{Gateway, GatewayListener};
use model::{Labels, Name, ObjectKey, ServiceKey, Snapshot, annotation};
use plan::routes::MeshClient;

/// The label of a node's name, as a tag.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// A proxy, as far as its tables depend on it. Two that are equal have the same tables.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Consumer {
    /// What it is.
    pub role: Role,
    /// The node that it runs on; empty where nobody knows.
    pub node: Name,
    /// Its zone, if it is told; otherwise that of its Node counts.
    pub zone: Option<Name>,
}

/// What a proxy is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// It carries what pods of a Service send; the tags are those of the pod.
    Sidecar(ServiceKey, Labels),
    /// It is a MeshGateway, or one listener of it.
    Gateway(ObjectKey, Option<Name>),
}

impl Role {
    /// Reads `SERVICE[,TAG=VALUE...]`.
    pub fn sidecar(text: &str, namespace: &Name) -> Result<Self> {
        let mut parts = text.split(',');
        let name = parts.next().unwrap_or_default();
        ensure!(!name.is_empty(), "{text:?} names no Service: write it as frontend or frontend,version=v2");
        let mut tags = Vec::new();
        for part in parts {
            let (key, value) = part
                .split_once('=')
                .with_context(|| format!("{part:?} is no tag: write it as TAG=VALUE, as version=v2"))?;
            tags.push((Name::new(key), Name::new(value)));
        }
        Ok(Self::Sidecar(ServiceKey::new(namespace, &Name::new(name)), Labels::from_pairs(tags)))
    }

    /// Reads `NAME[:LISTENER]`.
    pub fn gateway(text: &str, namespace: &Name) -> Result<Self> {
        let (name, listener) = match text.split_once(':') {
            Some((name, listener)) => (name, Some(Name::new(listener))),
            None => (text, None),
        };
        ensure!(!name.is_empty(), "{text:?} names no MeshGateway: write it as edge or edge:https");
        ensure!(listener.as_deref() != Some(""), "{text:?} names no listener behind the colon");
        Ok(Self::Gateway(ObjectKey::new(namespace, &Name::new(name)), listener))
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sidecar(service, tags) => {
                write!(f, "sidecar of {service}")?;
                tags.iter().try_for_each(|(key, value)| write!(f, ",{key}={value}"))
            }
            Self::Gateway(key, None) => write!(f, "gateway {key}"),
            Self::Gateway(key, Some(listener)) => write!(f, "gateway {key}:{listener}"),
        }
    }
}

impl Consumer {
    /// Where the policies are that it obeys.
    pub fn namespace(&self) -> &Name {
        match &self.role {
            Role::Sidecar(service, _) => &service.namespace,
            Role::Gateway(key, _) => &key.namespace,
        }
    }

    /// Where it is, as far as is known.
    pub fn place(&self, snapshot: &Snapshot) -> ConsumerLocation {
        let known = snapshot.node(&self.node).and_then(|node| node.zone.clone());
        ConsumerLocation { node: self.node.clone(), zone: self.zone.clone().or(known) }
    }

    /// The client that a sidecar speaks for. Pods come without their node, so topology is that of the place.
    pub(super) fn client(&self, snapshot: &Snapshot, place: &ConsumerLocation) -> Option<MeshClient> {
        let Role::Sidecar(service, tags) = &self.role else { return None };
        let mut client = MeshClient::of_service(snapshot, service, tags);
        let region = snapshot.node(&self.node).and_then(|node| node.region.clone());
        let node = Some(self.node.clone()).filter(|node| !node.is_empty());
        let topology =
            [(annotation::ZONE, place.zone.clone()), (annotation::REGION, region), (HOSTNAME, node)];
        let mut pairs = client.tags.as_slice().to_vec();
        pairs.extend(topology.into_iter().filter_map(|(key, value)| Some((Name::new(key), value?))));
        client.tags = Labels::from_pairs(pairs);
        Some(client)
    }

    /// The gateway, with no other listener than the one that it is.
    pub(super) fn gateway(&self, snapshot: &Snapshot) -> Option<Gateway> {
        let Role::Gateway(key, listener) = &self.role else { return None };
        let mut gateway = snapshot.gateway(key)?.clone();
        if let Some(name) = listener {
            let mut listeners: Vec<GatewayListener> = gateway.listeners.into_vec();
            listeners.retain(|listener| listener.name == *name);
            gateway.listeners = listeners.into();
        }
        Some(gateway)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consumers_are_written_as_on_the_command_line() {
        let namespace = Name::new("shop");
        let shown = |role: Result<Role>| role.map_or_else(|error| error.to_string(), |role| role.to_string());
        assert_eq!(
            shown(Role::sidecar("front,version=v2,a=b", &namespace)),
            "sidecar of shop/front,a=b,version=v2"
        );
        assert_eq!(shown(Role::gateway("edge:https", &namespace)), "gateway shop/edge:https");
        assert!(shown(Role::sidecar("front,version", &namespace)).contains("TAG=VALUE"));
        assert!(shown(Role::sidecar(",a=b", &namespace)).contains("names no Service"));
        assert!(shown(Role::gateway(":x", &namespace)).contains("names no MeshGateway"));
        assert!(shown(Role::gateway("edge:", &namespace)).contains("no listener"));
    }
}
