//! The elements of one Service.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use model::Family;
use model::forward::{At, EndpointSet, ForwardedPort, Frontend, Outcome, Place, Scope};

use super::class::{Class, Ending};
use super::names::{Kind, SetName, Side};
use super::protocol_number;
use super::slots::{slot_count, slots};
use crate::nftables::ir::{Bytes, Comment, Data, Element, ElementValue, Key};

/// What Services need: elements of their own, elements that others may need too, and classes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fragment {
    /// By set.
    pub(super) elements: BTreeMap<(Family, SetName), Elements>,
    /// Every class.
    pub(super) classes: BTreeSet<(Family, Class)>,
    /// Where nobody can need the same element, it is enough to know how many there are.
    only_counts: bool,
}

impl Fragment {
    fn add(&mut self, family: Family, set: SetName, element: Element) {
        self.set(family, set).push(element);
    }

    fn set(&mut self, family: Family, set: SetName) -> &mut Elements {
        self.elements.entry((family, set)).or_default()
    }

    /// Counts elements of which no two Services, nor two ports of one, can need the same.
    fn count(&mut self, family: Family, set: SetName, how_many: usize) {
        self.set(family, set).counted += how_many;
    }

    /// Takes in what the frontends of one Service need.
    pub(super) fn gather(&mut self, frontends: &[Frontend]) {
        let mut last: Option<&Arc<ForwardedPort>> = None;
        let mut numbers = Vec::new();
        for frontend in frontends {
            // Frontends of a port follow one another, so that this is done once for each port.
            if !last.is_some_and(|port| Arc::ptr_eq(port, &frontend.port)) {
                add_port(self, &frontend.port);
                numbers = endpoint_numbers(&frontend.port);
                last = Some(&frontend.port);
            }
            add_frontend(self, frontend, &numbers);
        }
    }
}

/// The elements of one set. A list: a full load has hundreds of thousands, and a tree of those costs more than the
/// rest of rendering.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Elements {
    list: Vec<Element>,
    /// Elements that are only counted.
    counted: usize,
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
        self.list.len() + self.counted
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Bytes> {
        self.list.iter().map(|element| &element.key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Bytes, &ElementValue)> {
        self.list.iter().map(|element| (&element.key, &element.value))
    }

    /// Each key once. Sets whose keys are a place of their own, alone or with a slot, have none twice from the start,
    /// and these are the large ones: they stay in the order in which they came.
    pub(super) fn into_list(mut self, set: SetName) -> Vec<Element> {
        if !matches!(set, SetName::Frontends(..) | SetName::Endpoints(..) | SetName::StickySlots(..)) {
            self.tidy();
        }
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
    fragment.gather(frontends);
    fragment.elements.values_mut().for_each(Elements::tidy);
    fragment
}

/// The classes that the frontends of one Service need, and how many elements; those that others may need, too, in full.
pub(super) fn count(frontends: &[Frontend]) -> Fragment {
    let mut fragment = Fragment { only_counts: true, ..Fragment::default() };
    fragment.gather(frontends);
    fragment.elements.values_mut().for_each(Elements::tidy);
    fragment
}

/// What belongs to a port, whatever leads to it.
fn add_port(fragment: &mut Fragment, port: &ForwardedPort) {
    let family = port.family();
    let mut element = Element::member(Key::new().address(port.cluster_ip).bytes());
    if !fragment.only_counts {
        element = element.with_comment(&comment(&port.service));
    }
    fragment.add(family, SetName::ClusterIps, element);
    for endpoint in port.cluster.endpoints.iter().chain(&port.local.endpoints).filter(|e| e.is_local) {
        let (ip, protocol) = (endpoint.address.ip(), protocol_number(port.protocol));
        let key = Key::new().address(ip).address(ip).protocol(protocol).port(endpoint.address.port());
        fragment.add(family, SetName::Hairpin, Element::member(key.bytes()));
    }
}

fn add_frontend(fragment: &mut Fragment, frontend: &Frontend, numbers: &[(SocketAddr, u32)]) {
    let (place, port) = (&frontend.place, &frontend.port);
    let (kind, family) = (Kind::of(place), place.family());
    let comment = (!fragment.only_counts).then(|| comment(port));
    for (side, outcome) in [(Side::Main, Some(frontend.outside)), (Side::Inside, frontend.inside)] {
        let (Some(class), Some(outcome)) = (Class::of(frontend, side), outcome) else { continue };
        fragment.classes.insert((family, class));
        match &comment {
            None => fragment.count(family, SetName::Frontends(kind, side), 1),
            Some(comment) => {
                let data = Data::Value(Bytes::from(class.value().to_ne_bytes()));
                let element = Element::entry(key(place).bytes(), data).with_comment(comment);
                fragment.add(family, SetName::Frontends(kind, side), element);
            }
        }
        let Outcome::Send(scope) = outcome else { continue };
        match class.ending {
            Ending::Sticky(..) => add_sticky(fragment, frontend, side, scope, numbers),
            _ => add_endpoints(fragment, place, side, port.endpoints(scope)),
        }
    }
    for range in frontend.source_ranges.iter().flat_map(|ranges| ranges.iter()) {
        let end = key(place).address(last_of(range)).bytes();
        let element = Element::member(key(place).address(range.network()).bytes()).up_to(end);
        fragment.add(family, SetName::SourceRanges, element);
    }
}

fn add_endpoints(fragment: &mut Fragment, place: &Place, side: Side, set: &EndpointSet) {
    if fragment.only_counts {
        return fragment.count(place.family(), SetName::Endpoints(Kind::of(place), side), slot_count(set));
    }
    let elements = fragment.set(place.family(), SetName::Endpoints(Kind::of(place), side));
    let (frontend, slots) = (key(place), slots(set));
    elements.list.reserve(slots.len());
    for (number, index) in slots.into_iter().enumerate() {
        let data = endpoint(set.endpoints[index].address);
        elements.push(Element::entry(frontend.mark(number as u32).bytes(), data));
    }
}

/// Session affinity remembers an endpoint by its number, so there are two steps from slot to endpoint.
fn add_sticky(
    fragment: &mut Fragment,
    frontend: &Frontend,
    side: Side,
    scope: Scope,
    numbers: &[(SocketAddr, u32)],
) {
    let (place, port) = (&frontend.place, &frontend.port);
    let (kind, family, set) = (Kind::of(place), place.family(), port.endpoints(scope));
    let id = Data::Value(Bytes::from(port_number(port).to_ne_bytes()));
    fragment.add(family, SetName::StickyIds(kind), Element::entry(key(place).bytes(), id));
    let number_of = |index: usize| {
        let address = set.endpoints[index].address;
        numbers.binary_search_by_key(&address, |(a, _)| *a).map_or(0, |at| numbers[at].1)
    };
    for (slot, index) in slots(set).into_iter().enumerate() {
        let data = Data::Value(Bytes::from(number_of(index).to_ne_bytes()));
        let element = Element::entry(key(place).mark(slot as u32).bytes(), data);
        fragment.add(family, SetName::StickySlots(kind, side), element);
    }
    for (index, known) in set.endpoints.iter().enumerate() {
        let element = Element::entry(key(place).mark(number_of(index)).bytes(), endpoint(known.address));
        fragment.add(family, SetName::StickyEndpoints(kind, side), element);
    }
}

fn comment(what: &impl fmt::Display) -> Comment {
    let mut text = String::with_capacity(Comment::LONGEST);
    // A string takes everything.
    let _ = write!(text, "{what}");
    Comment::new(&text)
}

/// What finds a frontend.
fn key(place: &Place) -> Key {
    let key = match place.at {
        At::Address(address) => Key::new().address(address),
        At::Node(_) => Key::new(),
    };
    key.protocol(protocol_number(place.protocol)).port(place.port)
}

fn endpoint(address: SocketAddr) -> Data {
    Data::Value(Key::new().address(address.ip()).port(address.port()).bytes())
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
        let Data::Value(bytes) = endpoint(address) else { continue };
        let mut number = hash(&bytes);
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
    hash(&key(&port.place()).bytes())
}

/// FNV-1a: the same on every machine.
fn hash(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_come_in_order_and_of_equal_keys_the_later_one_stays() {
        let entry = |key: u8, data: u8| Element::entry([key], Data::Value(Bytes::from([data])));
        let mut elements =
            Elements { list: vec![entry(2, 1), entry(1, 2), entry(2, 3), entry(1, 4)], counted: 0 };
        elements.tidy();
        assert_eq!(elements.clone().into_list(SetName::ClusterIps), [entry(1, 4), entry(2, 3)]);
        assert_eq!(elements.into_map().len(), 2);
    }
}
