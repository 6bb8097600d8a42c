//! A first load in portions, so that the whole program never stands in memory: a node with 100,000 endpoints
//! would need tens of megabytes for it, once.
//!
//! Elements are written down row by row as Services are walked through. They are read once, by the encoder, and a value
//! of its own for each was most of what a load cost on our side.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use model::Family;
use model::forward::{EndpointSet, ForwardingTable, Frontend};

use super::class::Class;
use super::elements::{Fragment, Gatherer, SetOf, gather, is_shared};
use super::incremental::Renderer;
use super::names::SetName;
use super::sizes::Sizes;
use super::slots::slots;
use super::{add_class, skeleton, table_id};
use crate::nftables::apply::{Portion, SetRows, first_load};
use crate::nftables::ir::{Bytes, Change, Element, Key, Rows};

/// Services whose elements are sent together.
/// Few enough that their elements stay in the processor's caches until they are written as messages.
const SERVICES: usize = 50;

/// The portions of a first load in order, for `apply::load_portions`: what there is without Services, their elements,
/// and last the rules at the hooks. What the next change may need comes with the renderer's next sweep.
pub fn portions<'t>(
    renderer: &mut Renderer,
    table: &'t ForwardingTable,
) -> impl Iterator<Item = Portion> + use<'t> {
    let sizes = renderer.sizes().clone();
    let mut program = skeleton(&table.node, &sizes);
    for (family, class) in renderer.of_first_load() {
        add_class(&mut program, &table.node, &sizes, *family, class);
    }
    let mut frame: Vec<Vec<Change>> = first_load(&program).collect();
    let dispatch = frame.pop().unwrap_or_default();
    let mut services = table.services().map(|(_, frontends)| frontends);
    let mut sent = BTreeSet::new();
    let elements = std::iter::from_fn(move || {
        let mut list = List::default();
        let some =
            services.by_ref().take(SERVICES).map(|frontends: &[Frontend]| gather(&mut list, frontends));
        (some.count() > 0).then(|| list.portion(&sizes, &mut sent))
    });
    frame.into_iter().map(Portion::from).chain(elements).chain(std::iter::once(dispatch.into()))
}

fn unspecified(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// The elements of some Services, written down.
#[derive(Default)]
struct List {
    rows: BTreeMap<SetOf, Rows>,
    /// What may come more than once.
    others: Fragment,
}

impl List {
    fn rows(&mut self, (family, name): SetOf) -> &mut Rows {
        self.rows.entry((family, name)).or_insert_with(|| Rows::of(&name.spec(family), SERVICES))
    }

    /// `sent` remembers elements that Services of other portions may need too: the pods of this node, a few hundred.
    fn portion(mut self, sizes: &Sizes, sent: &mut BTreeSet<(Family, SetName, Bytes)>) -> Portion {
        let at = |(family, name): SetOf| (table_id(family), sizes.name(family, name));
        let mut portion = Portion::default();
        for (set, rows) in self.rows {
            let (table, set) = at(set);
            portion.rows.push(SetRows { table, set, rows });
        }
        self.others.tidy();
        for ((family, name), elements) in self.others.elements {
            let mut elements = elements.into_list();
            if is_shared(name) {
                elements.retain(|element| sent.insert((family, name, element.key.clone())));
            }
            if !elements.is_empty() {
                let ((table, set), ranges) = (at((family, name)), name.spec(family).ranges());
                portion.changes.push(Change::AddElements { table, set, ranges, elements });
            }
        }
        portion
    }
}

impl Gatherer for List {
    /// The renderer knows the classes; their chains are there already.
    fn class(&mut self, _: Family, _: Class) {}

    fn own(&mut self, set: SetOf, key: &Key, data: &Key, comment: &[&str]) {
        self.rows(set).push(key, data, comment);
    }

    fn endpoints(&mut self, set: SetOf, frontend: Key, endpoints: &EndpointSet) {
        let rows = self.rows(set);
        rows.reserve(endpoints.endpoints.len());
        // A row is laid out once; slot, address and port are put into it.
        let slot_at = frontend.as_slice().len();
        let address_at = slot_at + 4;
        let mut row = frontend.mark(0).address(unspecified(set.0)).port(0);
        let port_at = row.as_slice().len() - 4;
        for (slot, index) in slots(endpoints).enumerate() {
            let address = endpoints.endpoints[index].address;
            row.put(slot_at, (slot as u32).to_ne_bytes());
            row.put(port_at, address.port().to_be_bytes());
            match address {
                SocketAddr::V4(address) => row.put(address_at, address.ip().octets()),
                SocketAddr::V6(address) => row.put(address_at, address.ip().octets()),
            }
            rows.push_row(&row);
        }
    }

    fn other(&mut self, set: SetOf, element: Element) {
        self.others.other(set, element);
    }
}
