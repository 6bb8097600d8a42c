//! The identity of a proxy: a sidecar of a Service's pods or a gateway, and its location.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use model::backend::ConsumerLocation;
use model::gateway_api::{CONTROLLER, Gateway};
use model::route::{GatewayPort, MeshGateway, MeshGatewayListener, RouteTable};
use model::{Labels, Name, Notice, ObjectKey, ServiceKey, Snapshot, annotation};
use plan::gateway_api::{AssignedAddresses, AttachedRoutes, StatusPlanner, gateway_table};
use plan::routes::MeshClient;

use super::certificate_watches::CertificateKey;

const HOSTNAME: &str = "kubernetes.io/hostname";

/// Everything that the tables of a proxy depend on: equal identities have equal tables.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProxyIdentity {
    pub role: ProxyRole,
    /// Empty if unknown.
    pub node: Name,
    /// Overrides the zone of the Node.
    pub zone: Option<Name>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProxyRole {
    /// For pods of a Service, with the labels of the pod.
    Sidecar(ServiceKey, Labels),
    /// A MeshGateway, else a Gateway of the Gateway API, or one listener of it.
    Gateway(ObjectKey, Option<Name>),
}

impl ProxyRole {
    /// Parses `SERVICE[,TAG=VALUE...]`.
    pub fn sidecar(text: &str, namespace: &Name) -> Result<Self> {
        let mut parts = text.split(',');
        let name = parts.next().unwrap_or_default();
        ensure!(
            !name.is_empty(),
            "{text:?}: missing Service name; expected SERVICE[,TAG=VALUE...], such as frontend,version=v2"
        );
        let mut tags = Vec::new();
        for part in parts {
            let (key, value) = part
                .split_once('=')
                .with_context(|| format!("{part:?} is not a tag; expected TAG=VALUE, such as version=v2"))?;
            tags.push((Name::new(key), Name::new(value)));
        }
        Ok(Self::Sidecar(ServiceKey::new(namespace, &Name::new(name)), Labels::from_pairs(tags)))
    }

    /// Parses `NAME[:LISTENER]`.
    pub fn gateway(text: &str, namespace: &Name) -> Result<Self> {
        let (name, listener) = match text.split_once(':') {
            Some((name, listener)) => (name, Some(Name::new(listener))),
            None => (text, None),
        };
        ensure!(
            !name.is_empty(),
            "{text:?}: missing MeshGateway name; expected NAME[:LISTENER], such as edge:https"
        );
        ensure!(listener.as_deref() != Some(""), "{text:?}: missing listener name after the colon");
        Ok(Self::Gateway(ObjectKey::new(namespace, &Name::new(name)), listener))
    }
}

impl fmt::Display for ProxyRole {
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

impl ProxyIdentity {
    /// The namespace of its policies.
    pub fn namespace(&self) -> &Name {
        match &self.role {
            ProxyRole::Sidecar(service, _) => &service.namespace,
            ProxyRole::Gateway(key, _) => &key.namespace,
        }
    }

    /// Its location, as far as it is known.
    pub fn place(&self, snapshot: &Snapshot) -> ConsumerLocation {
        let known = snapshot.node(&self.node).and_then(|node| node.zone.clone());
        ConsumerLocation { node: self.node.clone(), zone: self.zone.clone().or(known) }
    }

    /// The client of a sidecar. Pods are watched without their node, so the topology is that of `place`.
    pub(super) fn client(&self, snapshot: &Snapshot, place: &ConsumerLocation) -> Option<MeshClient> {
        let ProxyRole::Sidecar(service, tags) = &self.role else { return None };
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

    /// The gateway, reduced to the listener of the role if it has one.
    pub(super) fn mesh_gateway(&self, snapshot: &Snapshot) -> Option<MeshGateway> {
        let ProxyRole::Gateway(key, listener) = &self.role else { return None };
        let mut gateway = snapshot.mesh_gateway(key)?.clone();
        if let Some(name) = listener {
            let mut listeners: Vec<MeshGatewayListener> = gateway.listeners.into_vec();
            listeners.retain(|listener| listener.name == *name);
            gateway.listeners = listeners.into();
        }
        Some(gateway)
    }

    /// The table of a Gateway of the Gateway API, reduced to the listener of the role if it has one; `None` if it belongs
    /// to another controller.
    pub(super) fn gateway(&self, snapshot: &Snapshot, gateway: &Gateway) -> Option<PlannedGateway> {
        let class = snapshot.gateway_class(&gateway.class)?;
        if class.controller != CONTROLLER {
            return None;
        }
        let (planned, notices) = gateway_table(snapshot, gateway);
        let addresses = AssignedAddresses::Services;
        let mut attached = AttachedRoutes::default();
        let planner = StatusPlanner::new(snapshot, CONTROLLER, &addresses, &mut attached);
        let certificates = planner.certificates(Some(&gateway.identity.key));
        let table = match &self.role {
            ProxyRole::Gateway(_, Some(name)) => only_listener(&planned, name),
            _ => planned,
        };
        Some(PlannedGateway { table, certificates, notices })
    }
}

/// A table with the listener of a name alone.
fn only_listener(table: &RouteTable, name: &Name) -> RouteTable {
    let mut reduced = RouteTable::default();
    for port in table.ports() {
        let own: Vec<_> = port.listeners.iter().filter(|listener| listener.name == *name).cloned().collect();
        if !own.is_empty() {
            reduced.put_port(Arc::new(GatewayPort::new(port.number, port.protocol, own)));
        }
    }
    let used = reduced.backends();
    for (id, tls) in table.all_backend_tls().filter(|(id, _)| used.contains(*id)) {
        reduced.put_backend_tls(id.clone(), tls.clone());
    }
    reduced
}

/// The table of a Gateway, with what it needs.
pub(super) struct PlannedGateway {
    pub(super) table: RouteTable,
    pub(super) certificates: BTreeSet<CertificateKey>,
    pub(super) notices: Vec<Notice>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_shown_as_on_the_command_line() {
        let namespace = Name::new("shop");
        let shown =
            |role: Result<ProxyRole>| role.map_or_else(|error| error.to_string(), |role| role.to_string());
        assert_eq!(
            shown(ProxyRole::sidecar("front,version=v2,a=b", &namespace)),
            "sidecar of shop/front,a=b,version=v2"
        );
        assert_eq!(shown(ProxyRole::gateway("edge:https", &namespace)), "gateway shop/edge:https");
        assert!(shown(ProxyRole::sidecar("front,version", &namespace)).contains("TAG=VALUE"));
        assert!(shown(ProxyRole::sidecar(",a=b", &namespace)).contains("missing Service name"));
        assert!(shown(ProxyRole::gateway(":x", &namespace)).contains("missing MeshGateway name"));
        assert!(shown(ProxyRole::gateway("edge:", &namespace)).contains("missing listener name"));
    }
}
