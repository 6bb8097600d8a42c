//! The elements of one Service, passed to a sink: a change collects them, a start counts them, an initial load packs
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use model::forward::{
    EndpointSet, ForwardedPort, Frontend, FrontendAction, FrontendAddress, FrontendHost, FrontendKind,
};
use model::{Family, ServiceKey};

use super::affinity::{add_affinity_elements, endpoint_numbers};
use super::chain_class::{ChainClass, Ending};
use super::protocol_number;
use super::sets::{ClientScope, FrontendLookup, SetName};
use super::weighted_slots::slots;
use crate::nftables::ir::{Bytes, Comment, Data, Element, ElementValue, KeyBuilder};

/// A set of a family.
pub(super) type SetOf = (Family, SetName);

/// Receives the classes and elements of Services.
pub(super) trait ElementSink {
    fn class(&mut self, family: Family, class: ChainClass);

    /// An element that only one frontend of one Service has. The parts of its comment are joined.
    fn exclusive(&mut self, set: SetOf, key: &KeyBuilder, data: &KeyBuilder, comment: &[&str]);

    /// The endpoints of a frontend, one exclusive element per slot.
    fn endpoints(&mut self, set: SetOf, frontend: KeyBuilder, endpoints: &EndpointSet);

    /// An element that several frontends or Services may have: it may be passed more than once.
    fn shared(&mut self, set: SetOf, element: Element);
}

/// Passes the elements of the frontends of one Service.
pub(super) fn render_service(to: &mut impl ElementSink, frontends: &[Frontend]) {
    let mut last: Option<&Arc<ForwardedPort>> = None;
    let mut cluster_ips = [None; 2];
    let mut numbers = Vec::new();
    for frontend in frontends {
        let port = &frontend.port;
        // Frontends of a port are adjacent, so this runs once per port.
        if !last.is_some_and(|last| Arc::ptr_eq(last, port)) {
            let seen = &mut cluster_ips[usize::from(port.family() == Family::V6)];
            if seen.replace(port.cluster_ip) != Some(port.cluster_ip) {
                add_cluster_ip(to, port);
            }
            add_hairpins(to, port);
            numbers = endpoint_numbers(port);
            last = Some(port);
        }
        add_frontend(to, frontend, &numbers);
    }
}

/// Collected classes and elements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RenderedElements {
    pub(super) elements: BTreeMap<SetOf, Elements>,
    pub(super) classes: BTreeSet<(Family, ChainClass)>,
}

impl RenderedElements {
    /// Sorts and deduplicates the elements of each set.
    pub(super) fn sort(&mut self) {
        self.elements.values_mut().for_each(Elements::sort);
    }
}

impl ElementSink for RenderedElements {
    fn class(&mut self, family: Family, class: ChainClass) {
        self.classes.insert((family, class));
    }

    fn exclusive(&mut self, set: SetOf, key: &KeyBuilder, data: &KeyBuilder, comment: &[&str]) {
        let mut element = Element::member(key.as_slice());
        if !data.as_slice().is_empty() {
            element.value.data = Some(Data::Value(data.bytes()));
        }
        element.value.comment = (!comment.is_empty()).then(|| Comment::new(&comment.concat()));
        self.shared(set, element);
    }

    fn endpoints(&mut self, set: SetOf, frontend: KeyBuilder, endpoints: &EndpointSet) {
        for (slot, index) in slots(endpoints).enumerate() {
            let address = endpoints.endpoints[index].address();
            self.exclusive(set, &frontend.mark(slot as u32), &endpoint_data(address), &[]);
        }
    }

    fn shared(&mut self, set: SetOf, element: Element) {
        self.elements.entry(set).or_default().push(element);
    }
}

/// The elements of one set. A list: a complete ruleset has hundreds of thousands, and a tree of those costs more than
/// the rest of rendering.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Elements {
    list: Vec<Element>,
}

impl Elements {
    fn push(&mut self, element: Element) {
        self.list.push(element);
    }

    /// Sorts by key; of equal keys the later element stays.
    fn sort(&mut self) {
        if self.list.is_sorted_by(|a, b| a.key < b.key) {
            return;
        }
        self.list.sort_by(|a, b| a.key.cmp(&b.key));
        self.list.dedup_by(|later, earlier| {
            let same = later.key == earlier.key;
            if same {
                std::mem::swap(later, earlier);
            }
            same
        });
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Bytes> {
        self.list.iter().map(|element| &element.key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Bytes, &ElementValue)> {
        self.list.iter().map(|element| (&element.key, &element.value))
    }

    pub(super) fn into_list(self) -> Vec<Element> {
        self.list
    }

    pub(super) fn into_map(self) -> BTreeMap<Bytes, ElementValue> {
        self.list.into_iter().map(|element| (element.key, element.value)).collect()
    }
}

/// The classes in use and their neighbours. No more: for each added element the kernel visits every chain that uses the
/// map, 16 ns each; 32 classes prepared per frontend made a load half as long again.
pub(super) fn with_neighbours<'c>(
    classes: impl IntoIterator<Item = &'c (Family, ChainClass)>,
) -> BTreeSet<(Family, ChainClass)> {
    let mut all = BTreeSet::new();
    for (family, class) in classes {
        all.insert((*family, *class));
        all.extend(class.neighbours().into_iter().map(|neighbour| (*family, neighbour)));
    }
    all
}

/// Whether two Services may have the same element of a set, as with a pod behind both.
pub(super) fn is_shared(set: SetName) -> bool {
    matches!(set, SetName::Hairpin | SetName::LocalLoadBalancers)
}

/// The elements of one Service, sorted.
pub(super) fn collect_service(frontends: &[Frontend]) -> RenderedElements {
    let mut rendered = RenderedElements::default();
    render_service(&mut rendered, frontends);
    rendered.sort();
    rendered
}

/// `diff::by_service` relies on the comment.
fn add_cluster_ip(to: &mut impl ElementSink, port: &ForwardedPort) {
    let set = (port.family(), SetName::ClusterIps);
    to.exclusive(
        set,
        &KeyBuilder::new().address(port.cluster_ip),
        &KeyBuilder::new(),
        &of_service(&port.service),
    );
}

/// The endpoints of a port on this node, whichever policy selects them.
fn add_hairpins(to: &mut impl ElementSink, port: &ForwardedPort) {
    for endpoint in port.cluster.endpoints.iter().chain(&port.local.endpoints).filter(|e| e.is_local) {
        let (ip, protocol) = (endpoint.address().ip(), protocol_number(port.protocol));
        let key =
            KeyBuilder::new().address(ip).address(ip).protocol(protocol).port(endpoint.address().port());
        to.shared((port.family(), SetName::Hairpin), Element::member(key.bytes()));
    }
}

fn add_frontend(to: &mut impl ElementSink, frontend: &Frontend, numbers: &[(SocketAddr, u32)]) {
    let (place, port) = (&frontend.address, &frontend.port);
    let (lookup, family, key) = (FrontendLookup::of(place), place.family(), frontend_key(place));
    for (scope, outcome) in
        [(ClientScope::All, Some(frontend.outside)), (ClientScope::Inside, frontend.inside)]
    {
        let (Some(class), Some(outcome)) = (ChainClass::of(frontend, scope), outcome) else { continue };
        to.class(family, class);
        let data = KeyBuilder::new().mark(class.value());
        to.exclusive((family, SetName::Frontends(lookup, scope)), &key, &data, &of_port(port));
        if let (FrontendAction::Pass, FrontendKind::LoadBalancer, FrontendHost::Address(address)) =
            (outcome, frontend.kind, place.host)
        {
            let key = KeyBuilder::new().address(address).bytes();
            to.shared((family, SetName::LocalLoadBalancers), Element::member(key));
        }
        let FrontendAction::Send(policy) = outcome else { continue };
        match class.ending {
            Ending::Sticky(..) => add_affinity_elements(to, frontend, scope, policy, numbers),
            _ => to.endpoints((family, SetName::Endpoints(lookup, scope)), key, port.endpoints(policy)),
        }
    }
    for range in frontend.source_ranges.iter().flat_map(|ranges| ranges.iter()) {
        let end = key.address(last_of(range)).bytes();
        let element = Element::member(key.address(range.network()).bytes()).up_to(end);
        to.shared((family, SetName::SourceRanges), element);
    }
}

/// `namespace/name`, in parts.
fn of_service(service: &ServiceKey) -> [&str; 3] {
    [&service.namespace, "/", &service.name]
}

/// `namespace/name:port`, in parts.
fn of_port(port: &ForwardedPort) -> [&str; 5] {
    let [namespace, slash, name] = of_service(&port.service);
    let colon = if port.name.is_empty() { "" } else { ":" };
    [namespace, slash, name, colon, &port.name]
}

/// The key of a frontend.
pub(super) fn frontend_key(place: &FrontendAddress) -> KeyBuilder {
    let key = match place.host {
        FrontendHost::Address(address) => KeyBuilder::new().address(address),
        FrontendHost::Node(_) => KeyBuilder::new(),
    };
    key.protocol(protocol_number(place.protocol)).port(place.port)
}

pub(super) fn endpoint_data(address: SocketAddr) -> KeyBuilder {
    KeyBuilder::new().address(address.ip()).port(address.port())
}

/// A range as an interval.
pub(super) fn range(range: &IpNet) -> Element {
    let end = KeyBuilder::new().address(last_of(range)).bytes();
    Element::member(KeyBuilder::new().address(range.network()).bytes()).up_to(end)
}

/// The last address of a range, which `broadcast` returns for IPv6 as well.
fn last_of(range: &IpNet) -> IpAddr {
    range.broadcast()
}

#[cfg(test)]
mod tests {
    use model::{Name, Protocol};

    use super::*;

    #[test]
    fn comments_name_ports_as_people_do() {
        for name in ["", "http"] {
            let port = ForwardedPort {
                service: ServiceKey::new(&Name::from("shop"), &Name::from("web")),
                name: Name::from(name),
                cluster_ip: [10, 96, 0, 1].into(),
                protocol: Protocol::Tcp,
                number: 80,
                affinity_seconds: None,
                health_check_port: None,
                cluster: EndpointSet::default(),
                local: EndpointSet::default(),
            };
            assert_eq!(of_port(&port).concat(), port.to_string());
        }
    }

    #[test]
    fn elements_come_in_order_and_of_equal_keys_the_later_one_stays() {
        let entry = |key: u8, data: u8| Element::entry([key], Data::Value(Bytes::from([data])));
        let mut elements = Elements { list: vec![entry(2, 1), entry(1, 2), entry(2, 3), entry(1, 4)] };
        elements.sort();
        assert_eq!(elements.clone().into_list(), [entry(1, 4), entry(2, 3)]);
        assert_eq!(elements.into_map().len(), 2);
    }
}
