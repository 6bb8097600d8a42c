//! The initial load as a stream of groups, so that the ruleset is never in memory as a whole: with 100,000 endpoints it
//! takes tens of megabytes.
//!
//! Elements are packed into buffers as Services are visited: only the encoder reads them, once, and a value for each was
//! most of the cost of a load in this process.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use model::Family;
use model::forward::{EndpointSet, ForwardingTable, Frontend};

use super::chain_class::ChainClass;
use super::elements::{ElementSink, RenderedElements, SetOf, is_shared, render_service};
use super::incremental::Renderer;
use super::set_sizes::SetSizes;
use super::sets::SetName;
use super::weighted_slots::slots;
use super::{add_class, base_ruleset, set_mut, table_id};
use crate::nftables::apply::{LoadGroup, PackedSet, RulesetToCompare, initial_load_groups};
use crate::nftables::ir::{Bytes, Element, KeyBuilder, NftChange, PackedElements, PackedIndex};

/// Services per group: few enough that their elements stay in the processor's caches until they are encoded.
const SERVICES: usize = 50;

/// The groups of an initial load for `apply::load`: the base ruleset, the elements of Services, and last the rules of
/// base chains. Chains that the next change may need follow with [`Renderer::maintenance`].
pub fn initial_load<'t>(
    renderer: &mut Renderer,
    table: &'t ForwardingTable,
) -> impl Iterator<Item = LoadGroup> + use<'t> {
    let sizes = renderer.sizes().clone();
    let mut ruleset = base_ruleset(&table.node, &sizes);
    for (family, class) in renderer.classes_of_initial_load() {
        add_class(&mut ruleset, &table.node, &sizes, *family, class);
    }
    let mut base: Vec<Vec<NftChange>> = initial_load_groups(&ruleset).collect();
    let base_chain_rules = base.pop().unwrap_or_default();
    let mut services = table.services().map(|(_, frontends)| frontends);
    let mut sent = BTreeSet::new();
    let elements = std::iter::from_fn(move || {
        let mut packed = PackedServices::default();
        let some = services
            .by_ref()
            .take(SERVICES)
            .map(|frontends: &[Frontend]| render_service(&mut packed, frontends));
        (some.count() > 0).then(|| packed.into_group(&sizes, &mut sent))
    });
    base.into_iter().map(LoadGroup::from).chain(elements).chain(std::iter::once(base_chain_rules.into()))
}

/// The complete ruleset, to be compared with the kernel: as [`Renderer::render_all`], with packed elements.
pub fn render_to_compare(renderer: &mut Renderer, table: &ForwardingTable) -> RulesetToCompare {
    let classes = renderer.prepare_all(table).clone();
    let mut packed = PackedServices::default();
    for (set, elements) in renderer.large_sets() {
        packed.packed.insert(set, PackedElements::of(&set.1.spec(set.0), elements));
    }
    for (_, frontends) in table.services() {
        render_service(&mut packed, frontends);
    }
    packed.packed.retain(|_, elements| !elements.is_empty());
    let families = packed.packed.keys().chain(packed.shared.elements.keys()).map(|(family, _)| *family);
    let sizes = renderer.sizes().with_families(families);
    let mut ruleset = base_ruleset(&table.node, &sizes);
    for (family, class) in &classes {
        add_class(&mut ruleset, &table.node, &sizes, *family, class);
    }
    for ((family, name), elements) in packed.shared.elements {
        if let Some(set) = set_mut(&mut ruleset, &sizes, family, name) {
            set.elements.append(&mut elements.into_map());
        }
    }
    let at = |(family, name): SetOf| (table_id(family), sizes.name(family, name));
    let packed = packed.packed.into_iter().map(|(set, elements)| (at(set), PackedIndex::new(elements)));
    RulesetToCompare { ruleset, packed: packed.collect() }
}

fn unspecified(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// The elements of some Services.
#[derive(Default)]
struct PackedServices {
    packed: BTreeMap<SetOf, PackedElements>,
    shared: RenderedElements,
}

impl PackedServices {
    fn set(&mut self, (family, name): SetOf) -> &mut PackedElements {
        self.packed.entry((family, name)).or_insert_with(|| PackedElements::of(&name.spec(family), SERVICES))
    }

    /// `sent` has the shared elements of earlier groups: one for each pod of this node, a few hundred.
    fn into_group(mut self, sizes: &SetSizes, sent: &mut BTreeSet<(Family, SetName, Bytes)>) -> LoadGroup {
        let at = |(family, name): SetOf| (table_id(family), sizes.name(family, name));
        let mut group = LoadGroup::default();
        for (set, elements) in self.packed {
            let (table, set) = at(set);
            group.packed.push(PackedSet { table, set, elements });
        }
        self.shared.sort();
        for ((family, name), elements) in self.shared.elements {
            let mut elements = elements.into_list();
            if is_shared(name) {
                elements.retain(|element| sent.insert((family, name, element.key.clone())));
            }
            if !elements.is_empty() {
                let ((table, set), ranges) = (at((family, name)), name.spec(family).ranges());
                group.changes.push(NftChange::AddElements { table, set, ranges, elements });
            }
        }
        group
    }
}

impl ElementSink for PackedServices {
    /// The chains of classes are part of the base ruleset.
    fn class(&mut self, _: Family, _: ChainClass) {}

    fn exclusive(&mut self, set: SetOf, key: &KeyBuilder, data: &KeyBuilder, comment: &[&str]) {
        self.set(set).push(key, data, comment);
    }

    fn endpoints(&mut self, set: SetOf, frontend: KeyBuilder, endpoints: &EndpointSet) {
        let elements = self.set(set);
        elements.reserve(endpoints.endpoints.len());
        // Laid out once; slot, address and port are overwritten.
        let slot_at = frontend.as_slice().len();
        let address_at = slot_at + 4;
        let mut element = frontend.mark(0).address(unspecified(set.0)).port(0);
        let port_at = element.as_slice().len() - 4;
        for (slot, index) in slots(endpoints).enumerate() {
            let address = endpoints.endpoints[index].address();
            element.put(slot_at, (slot as u32).to_ne_bytes());
            element.put(port_at, address.port().to_be_bytes());
            match address {
                SocketAddr::V4(address) => element.put(address_at, address.ip().octets()),
                SocketAddr::V6(address) => element.put(address_at, address.ip().octets()),
            }
            elements.push_joined(&element);
        }
    }

    fn shared(&mut self, set: SetOf, element: Element) {
        self.shared.shared(set, element);
    }
}
