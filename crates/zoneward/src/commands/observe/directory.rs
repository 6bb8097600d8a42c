//! Which Service and zones a connection belongs to, and why its node sends it there.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use cluster::input::LoadedObjects;
use model::{Endpoint, Family, Locality, Protocol, ServiceKey};
use plan::FeatureGates;
use plan::select::{NodeView, explain, select};
use serde::Deserialize;

/// A connection as a node logs it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct LoggedConnection {
    pub protocol: String,
    pub client: SocketAddr,
    pub frontend: SocketAddr,
    pub endpoint: SocketAddr,
}

/// A connection with what the API knows of it.
#[derive(Clone, Debug)]
pub(super) struct ObservedConnection {
    pub node: String,
    pub protocol: Protocol,
    pub client: SocketAddr,
    /// The zone of the node that sends it.
    pub client_zone: String,
    pub service: ServiceKey,
    pub frontend: SocketAddr,
    pub endpoint: SocketAddr,
    pub endpoint_zone: String,
    pub locality: Locality,
    /// How the node selects endpoints of the port.
    pub mode: &'static str,
    pub reason: String,
}

/// A port of a Service: its key, and the port number.
type ServicePortKey = (ServiceKey, u16);
/// How a node selects the endpoints of a port: mode, endpoints, reason.
type Selection = (&'static str, Vec<SocketAddr>, String);

pub(super) struct Directory {
    loaded: LoadedObjects,
    frontends: BTreeMap<(IpAddr, u16, Protocol), ServicePortKey>,
    node_ports: BTreeMap<(u16, Protocol), ServicePortKey>,
    endpoints: BTreeMap<IpAddr, Vec<ServiceKey>>,
    /// By node, port and family.
    selections: RefCell<BTreeMap<(String, ServicePortKey, Family), Selection>>,
}

impl Directory {
    pub(super) fn new(loaded: LoadedObjects) -> Self {
        let mut frontends = BTreeMap::new();
        let mut node_ports = BTreeMap::new();
        let mut endpoints: BTreeMap<IpAddr, Vec<ServiceKey>> = BTreeMap::new();
        for (service, slices) in loaded.snapshot.services() {
            let ingress = service.load_balancer.iter().map(|ingress| ingress.ip);
            let addresses = service.cluster_ips.addresses().iter().chain(&service.external_ips).copied();
            for address in addresses.chain(ingress) {
                for port in &service.ports {
                    let key = (service.key.clone(), port.port);
                    frontends.insert((address, port.port, port.protocol), key);
                }
            }
            for port in &service.ports {
                if let Some(number) = port.node_port {
                    node_ports.insert((number, port.protocol), (service.key.clone(), port.port));
                }
            }
            for endpoint in slices.iter().flat_map(|slice| &slice.content.endpoints) {
                endpoints.entry(endpoint.addresses.first()).or_default().push(service.key.clone());
            }
        }
        Self { loaded, frontends, node_ports, endpoints, selections: RefCell::default() }
    }

    /// Whether the endpoint is an endpoint of the objects that were read.
    pub(super) fn knows(&self, connection: &LoggedConnection) -> bool {
        self.endpoints.contains_key(&connection.endpoint.ip())
    }

    /// `None` if no Service has the address that the client connected to.
    pub(super) fn resolve(&self, node: &str, connection: &LoggedConnection) -> Option<ObservedConnection> {
        let protocol = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
        let protocol = protocol.into_iter().find(|protocol| protocol.as_str() == connection.protocol)?;
        let frontend = connection.frontend;
        let by_address = self.frontends.get(&(frontend.ip(), frontend.port(), protocol));
        let port = by_address.or_else(|| self.node_ports.get(&(frontend.port(), protocol)))?;
        let snapshot = &self.loaded.snapshot;
        let client_zone = snapshot.node(node).and_then(|node| node.zone.as_deref());
        let slices = snapshot.slices(&port.0);
        let is_it = |endpoint: &&Endpoint| endpoint.addresses.first() == connection.endpoint.ip();
        let endpoint = slices.iter().flat_map(|slice| &slice.content.endpoints).find(is_it);
        let endpoint_zone = endpoint.and_then(|endpoint| endpoint.zone.as_deref());
        let endpoint_node = endpoint.and_then(|endpoint| endpoint.node.as_deref());
        let family = Family::of(connection.endpoint.ip());
        let (mode, selected, reason) = self.selection(node, port, family);
        let reason = match selected.contains(&connection.endpoint) {
            true => reason,
            false => "not in the present selection: rules were older, or session affinity".to_owned(),
        };
        Some(ObservedConnection {
            node: node.to_owned(),
            protocol,
            client: connection.client,
            client_zone: client_zone.unwrap_or_default().to_owned(),
            service: port.0.clone(),
            frontend,
            endpoint: connection.endpoint,
            endpoint_zone: endpoint_zone.unwrap_or_default().to_owned(),
            locality: Locality::of((Some(node), client_zone), (endpoint_node, endpoint_zone)),
            mode,
            reason,
        })
    }

    fn selection(&self, node: &str, port: &ServicePortKey, family: Family) -> Selection {
        let key = (node.to_owned(), port.clone(), family);
        if let Some(known) = self.selections.borrow().get(&key) {
            return known.clone();
        }
        let selection = self.select(node, port, family).unwrap_or_default();
        self.selections.borrow_mut().insert(key, selection.clone());
        selection
    }

    fn select(&self, node: &str, (service, number): &ServicePortKey, family: Family) -> Option<Selection> {
        let snapshot = &self.loaded.snapshot;
        let zone = snapshot.node(node).and_then(|node| node.zone.as_deref());
        // The gates of other nodes are not known.
        let view = NodeView { name: node, zone, gates: FeatureGates::ALL };
        let (object, slices) = (snapshot.service(service)?, snapshot.slices(service));
        let selections = select(object, slices, family, &view);
        let selection = selections.into_iter().find(|selection| selection.port.port == *number)?;
        let set = selection.cluster.as_ref().or(selection.local.as_ref())?;
        let endpoints = set.endpoints.iter().map(|endpoint| endpoint.address).collect();
        // The policies come first; the step after them decides.
        let why = explain(object, &selection, &view).into_iter().nth(1);
        Some((set.mode.as_str(), endpoints, why.map_or_else(String::new, |why| why.detail)))
    }
}
