//! The elements of one Service.
//!
//! Who asks for them decides what becomes of them: a change keeps them, a start counts them, a first load writes them
//! down at once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use model::forward::{EndpointSet, ForwardedPort, Frontend, FrontendAction, FrontendAddress, FrontendHost};
use model::{Family, ServiceKey, TrafficPolicy};

use super::class::{Class, Ending};
use super::names::{Kind, SetName, Side};
use super::protocol_number;
use super::slots::slots;
use crate::nftables::ir::{Bytes, Comment, Data, Element, ElementValue, Key};

/// A set of a family.
pub(super) type SetOf = (Family, SetName);

/// Takes in what Services need.
pub(super) trait Gatherer {
    /// A class in use.
    fn class(&mut self, family: Family, class: Class);

    /// An element that nobody else needs, neither another Service nor another frontend. Its comment comes in pieces.
    fn own(&mut self, set: SetOf, key: &Key, data: &Key, comment: &[&str]);

    /// The endpoints of a frontend, one for each slot; nobody else needs these either.
    fn endpoints(&mut self, set: SetOf, frontend: Key, endpoints: &EndpointSet);

    /// An element that others may need, too: it may come more than once.
    fn other(&mut self, set: SetOf, element: Element);
}

/// Takes in what the frontends of one Service need.
pub(super) fn gather(to: &mut impl Gatherer, frontends: &[Frontend]) {
    let mut last: Option<&Arc<ForwardedPort>> = None;
    let mut cluster_ips = [None; 2];
    let mut numbers = Vec::new();
    for frontend in frontends {
        let port = &frontend.port;
        // Frontends of a port follow one another, so that this is done once for each port.
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

/// What Services need, kept: elements and classes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fragment {
    /// By set.
    pub(super) elements: BTreeMap<SetOf, Elements>,
    /// Every class.
    pub(super) classes: BTreeSet<(Family, Class)>,
}

impl Fragment {
    /// Brings the elements of each set in order.
    pub(super) fn tidy(&mut self) {
        self.elements.values_mut().for_each(Elements::tidy);
    }
}

impl Gatherer for Fragment {
    fn class(&mut self, family: Family, class: Class) {
        self.classes.insert((family, class));
    }

    fn own(&mut self, set: SetOf, key: &Key, data: &Key, comment: &[&str]) {
        let mut element = Element::member(key.as_slice());
        if !data.as_slice().is_empty() {
            element.value.data = Some(Data::Value(data.bytes()));
        }
        element.value.comment = (!comment.is_empty()).then(|| Comment::new(&comment.concat()));
        self.other(set, element);
    }

    fn endpoints(&mut self, set: SetOf, frontend: Key, endpoints: &EndpointSet) {
        for (slot, index) in slots(endpoints).enumerate() {
            let address = endpoints.endpoints[index].address;
            self.own(set, &frontend.mark(slot as u32), &endpoint(address), &[]);
        }
    }

    fn other(&mut self, set: SetOf, element: Element) {
        self.elements.entry(set).or_default().push(element);
    }
}

/// The elements of one set. A list: a full load has hundreds of thousands, and a tree of those costs more than the
/// rest of rendering.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Elements {
    list: Vec<Element>,
}

impl Elements {
    fn push(&mut self, element: Element) {
        self.list.push(element);
    }

    /// Brings them in the order of their keys, each key once; of two the later one stays.
    fn tidy(&mut self) {
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

/// The classes in use and those that have to be ready. No more than that: the kernel looks at every chain that uses a map
/// for each element that comes into it, 16 ns each, so that 32 counts kept ready made a load half as long again.
pub(super) fn with_neighbours<'c>(
    classes: impl IntoIterator<Item = &'c (Family, Class)>,
) -> BTreeSet<(Family, Class)> {
    let mut all = BTreeSet::new();
    for (family, class) in classes {
        all.insert((*family, *class));
        all.extend(class.neighbours().into_iter().map(|neighbour| (*family, neighbour)));
    }
    all
}

/// Whether two Services may need the same element of a set, as with a pod behind both.
pub(super) fn is_shared(set: SetName) -> bool {
    set == SetName::Hairpin
}

/// What the frontends of one Service need, in order.
pub(super) fn fragment(frontends: &[Frontend]) -> Fragment {
    let mut fragment = Fragment::default();
    gather(&mut fragment, frontends);
    fragment.tidy();
    fragment
}

/// Its comment is needed: by it, what does not fit into one transaction is cut between Services.
fn add_cluster_ip(to: &mut impl Gatherer, port: &ForwardedPort) {
    let set = (port.family(), SetName::ClusterIps);
    to.own(set, &Key::new().address(port.cluster_ip), &Key::new(), &of_service(&port.service));
}

/// The endpoints of a port that are on this node, whatever leads to it.
fn add_hairpins(to: &mut impl Gatherer, port: &ForwardedPort) {
    for endpoint in port.cluster.endpoints.iter().chain(&port.local.endpoints).filter(|e| e.is_local) {
        let (ip, protocol) = (endpoint.address.ip(), protocol_number(port.protocol));
        let key = Key::new().address(ip).address(ip).protocol(protocol).port(endpoint.address.port());
        to.other((port.family(), SetName::Hairpin), Element::member(key.bytes()));
    }
}

fn add_frontend(to: &mut impl Gatherer, frontend: &Frontend, numbers: &[(SocketAddr, u32)]) {
    let (place, port) = (&frontend.address, &frontend.port);
    let (kind, family, key) = (Kind::of(place), place.family(), key(place));
    for (side, outcome) in [(Side::Main, Some(frontend.outside)), (Side::Inside, frontend.inside)] {
        let (Some(class), Some(outcome)) = (Class::of(frontend, side), outcome) else { continue };
        to.class(family, class);
        let data = Key::new().mark(class.value());
        to.own((family, SetName::Frontends(kind, side)), &key, &data, &of_port(port));
        let FrontendAction::Send(scope) = outcome else { continue };
        match class.ending {
            Ending::Sticky(..) => add_sticky(to, frontend, side, scope, numbers),
            _ => to.endpoints((family, SetName::Endpoints(kind, side)), key, port.endpoints(scope)),
        }
    }
    for range in frontend.source_ranges.iter().flat_map(|ranges| ranges.iter()) {
        let end = key.address(last_of(range)).bytes();
        let element = Element::member(key.address(range.network()).bytes()).up_to(end);
        to.other((family, SetName::SourceRanges), element);
    }
}

/// Session affinity remembers an endpoint by its number, so there are two steps from slot to endpoint.
fn add_sticky(
    to: &mut impl Gatherer,
    frontend: &Frontend,
    side: Side,
    scope: TrafficPolicy,
    numbers: &[(SocketAddr, u32)],
) {
    let (place, port) = (&frontend.address, &frontend.port);
    let (kind, family, set) = (Kind::of(place), place.family(), port.endpoints(scope));
    let id = Data::Value(Bytes::from(port_number(port).to_ne_bytes()));
    to.other((family, SetName::StickyIds(kind)), Element::entry(key(place).bytes(), id));
    let number_of = |index: usize| {
        let address = set.endpoints[index].address;
        numbers.binary_search_by_key(&address, |(a, _)| *a).map_or(0, |at| numbers[at].1)
    };
    for (slot, index) in slots(set).enumerate() {
        let (key, number) = (key(place).mark(slot as u32), Key::new().mark(number_of(index)));
        to.own((family, SetName::StickySlots(kind, side)), &key, &number, &[]);
    }
    // Numbers are different for all endpoints of a port.
    for (index, known) in set.endpoints.iter().enumerate() {
        let key = key(place).mark(number_of(index));
        to.own((family, SetName::StickyEndpoints(kind, side)), &key, &endpoint(known.address), &[]);
    }
}

/// The pieces of a Service's name, as people write it.
fn of_service(service: &ServiceKey) -> [&str; 3] {
    [&service.namespace, "/", &service.name]
}

/// The same of a port.
fn of_port(port: &ForwardedPort) -> [&str; 5] {
    let [namespace, slash, name] = of_service(&port.service);
    let colon = if port.name.is_empty() { "" } else { ":" };
    [namespace, slash, name, colon, &port.name]
}

/// What finds a frontend.
fn key(place: &FrontendAddress) -> Key {
    let key = match place.host {
        FrontendHost::Address(address) => Key::new().address(address),
        FrontendHost::Node(_) => Key::new(),
    };
    key.protocol(protocol_number(place.protocol)).port(place.port)
}

fn endpoint(address: SocketAddr) -> Key {
    Key::new().address(address.ip()).port(address.port())
}

/// A range as an element of a set of addresses.
pub(super) fn range(range: &IpNet) -> Element {
    let end = Key::new().address(last_of(range)).bytes();
    Element::member(Key::new().address(range.network()).bytes()).up_to(end)
}

/// The last address of a range. (`broadcast` of an IPv6 range is its last one, too.)
fn last_of(range: &IpNet) -> IpAddr {
    range.broadcast()
}

/// The number of each endpoint of a port within that port, by address: its hash, or the next free number.
/// It outlives changes of the others, so that clients keep their endpoint.
fn endpoint_numbers(port: &ForwardedPort) -> Vec<(SocketAddr, u32)> {
    if port.affinity_seconds.is_none() {
        return Vec::new();
    }
    let all = port.cluster.endpoints.iter().chain(&port.local.endpoints);
    let addresses: BTreeSet<SocketAddr> = all.map(|e| e.address).collect();
    let mut taken = BTreeSet::new();
    let mut numbers = Vec::with_capacity(addresses.len());
    for address in addresses {
        let mut number = hash(endpoint(address).as_slice());
        while !taken.insert(number) {
            number = number.wrapping_add(1);
        }
        numbers.push((address, number));
    }
    numbers
}

/// The number under which the clients of a port are remembered. Should two ports have the same, a client of
/// both is not remembered well: an endpoint's number of the one means nothing to the other.
fn port_number(port: &ForwardedPort) -> u32 {
    hash(key(&port.cluster_address()).as_slice())
}

/// FNV-1a: the same on every machine.
fn hash(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
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
        elements.tidy();
        assert_eq!(elements.clone().into_list(), [entry(1, 4), entry(2, 3)]);
        assert_eq!(elements.into_map().len(), 2);
    }
}
