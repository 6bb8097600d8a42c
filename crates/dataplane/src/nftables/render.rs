//! Renders a ForwardingTable as a ruleset. A Service has no chain, rule, set or map of its own, only elements.
//!
//! ```text
//! packet -> services: (address . protocol . port) -> class ---\
//!           node-ports:         (protocol . port) -> class ----+-> verdicts: class -> chain of that class
//!                                                                    |
//!             endpoints: (address . protocol . port . slot) <--------+   slot = random below the class's count
//! ```
//!
//! A class determines a chain: the number of slots, which clients are masqueraded, session affinity. Many Services share
//! one. So a change of a Service is a change of elements, which costs the kernel the same with ten Services as with
//! fifty thousand. docs/reference/nftables.md explains the tables.

mod affinity;
mod chain_class;
mod element_counts;
mod elements;
mod incremental;
mod initial_load;
mod masquerade;
mod rules;
mod set_sizes;
mod sets;
mod weighted_slots;

use model::forward::{ForwardingTable, NodePortAddresses, NodeRules};
use model::{Family, Protocol};

use super::ir::{
    self, Base, Chain, ChainSpec, ChainType, Comment, Element, Hook, NftRule, Policy, Ruleset, Set, Table,
    TableId,
};

pub use chain_class::ChainClass;
pub use incremental::{RenderedChange, Renderer};
pub use initial_load::{initial_load, render_to_compare};
pub use set_sizes::{MAX_COUNTED_PAIRS, SetSizes};
pub use sets::{ClientScope, FrontendLookup, SetName, TABLE, table_id};
pub(crate) use weighted_slots::slots_per_endpoint;

use elements::{RenderedElements, render_service};
use rules::Rules;

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// The complete ruleset of a table.
pub fn render(table: &ForwardingTable, sizes: &SetSizes) -> Ruleset {
    let mut rendered = RenderedElements::default();
    for (_, frontends) in table.services() {
        render_service(&mut rendered, frontends);
    }
    let sizes = &sizes.with_families(rendered.elements.keys().map(|(family, _)| *family));
    let mut ruleset = base_ruleset(&table.node, sizes);
    for (family, class) in &elements::with_neighbours(&rendered.classes) {
        add_class(&mut ruleset, &table.node, sizes, *family, class);
    }
    for ((family, name), elements) in rendered.elements {
        if let Some(set) = set_mut(&mut ruleset, sizes, family, name) {
            // A tree built in one go has full nodes.
            set.elements.append(&mut elements.into_map());
        }
    }
    ruleset
}

fn set_mut<'p>(
    ruleset: &'p mut Ruleset,
    sizes: &SetSizes,
    family: Family,
    name: SetName,
) -> Option<&'p mut Set> {
    ruleset.tables.get_mut(&table_id(family))?.sets.get_mut(&sizes.name(family, name))
}

fn add_class(ruleset: &mut Ruleset, node: &NodeRules, sizes: &SetSizes, family: Family, class: &ChainClass) {
    let rules = Rules { node, sizes, family };
    if let Some((name, chain)) = class_chain(&rules, class)
        && let Some(table) = ruleset.tables.get_mut(&table_id(family))
    {
        table.chains.insert(name, chain);
    }
    let element = verdict_element(class);
    if let Some(set) = set_mut(ruleset, sizes, family, class.verdicts()) {
        set.elements.insert(element.key, element.value);
    }
}

/// The chain of a class, if it has one.
fn class_chain(rules: &Rules<'_>, class: &ChainClass) -> Option<(ir::NftName, Chain)> {
    let name = class.chain()?;
    let spec = ChainSpec { base: None, comment: Some(Comment::new(&class.describe())) };
    Some((name, Chain { spec, rules: rules.class(class) }))
}

fn verdict_element(class: &ChainClass) -> Element {
    let key = ir::KeyBuilder::new().mark(class.value()).bytes();
    Element::entry(key, ir::Data::Verdict(class.verdict()))
}

/// The ruleset of a node without Services.
pub fn base_ruleset(node: &NodeRules, sizes: &SetSizes) -> Ruleset {
    let families = FAMILIES.into_iter().filter(|family| sizes.has(*family));
    Ruleset { tables: families.map(|family| (table_id(family), base_table(node, sizes, family))).collect() }
}

fn base_table(node: &NodeRules, sizes: &SetSizes, family: Family) -> Table {
    let rules = Rules { node, sizes, family };
    let mut table = Table {
        comment: Some(Comment::new("Zoneward: Service traffic of this node (zoneward cleanup removes it)")),
        ..Table::default()
    };
    for name in SetName::all().into_iter().filter(|name| name.is_of(node)) {
        table.sets.insert(sizes.name(family, name), Set::empty(sizes.spec(family, name)));
    }
    for (name, elements) in node_elements(node, family) {
        if let Some(set) = table.sets.get_mut(&sizes.name(family, name)) {
            set.elements.extend(elements.into_iter().map(|e| (e.key, e.value)));
        }
    }
    let mut add = |name: &str, base: Option<Base>, comment: &str, rules: Vec<NftRule>| {
        let spec = ChainSpec { base, comment: Some(Comment::new(comment)) };
        table.chains.insert(name.into(), Chain { spec, rules });
    };
    let nat = |hook, priority| Some(Base { kind: ChainType::Nat, hook, priority, policy: Policy::Accept });
    add("prerouting", nat(Hook::Prerouting, -100), "incoming connections", vec![rules.jump_services()]);
    add("output", nat(Hook::Output, -100), "connections from this node", vec![rules.jump_services()]);
    add("postrouting", nat(Hook::Postrouting, 100), "masquerade", rules.postrouting());
    add("count-passing", nat(Hook::Postrouting, 90), "connection counters: forwarded", vec![rules.count()]);
    add(
        "count-arriving",
        nat(Hook::Input, 90),
        "connection counters: endpoints on this node",
        vec![rules.count()],
    );
    add("services", None, "service lookup", rules.services());
    add("reject", None, "TCP reset or ICMP port unreachable", rules.reject());
    for lookup in FrontendLookup::ALL {
        let comment = "externalTrafficPolicy Local: in-cluster clients use all endpoints";
        add(lookup.short_circuit(), None, comment, rules.short_circuit(lookup));
    }
    table
}

/// The elements that depend on the node and not on a Service.
fn node_elements(node: &NodeRules, family: Family) -> Vec<(SetName, Vec<Element>)> {
    let of_family = |ranges: &[ipnet::IpNet]| {
        let ranges: Vec<ipnet::IpNet> =
            ranges.iter().filter(|r| Family::of(r.addr()) == family).copied().collect();
        // Intervals of one set must not overlap.
        ipnet::IpNet::aggregate(&ranges).iter().map(elements::range).collect::<Vec<Element>>()
    };
    let mut found = vec![(SetName::ServiceCidrs, of_family(&node.service_cidrs))];
    if let NodePortAddresses::Within(ranges) = node.node_ports(family) {
        found.push((SetName::NodePortRanges, of_family(ranges)));
    }
    found
}

pub fn protocol_number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}

pub fn protocol_of(number: u8) -> Option<Protocol> {
    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|p| protocol_number(*p) == number)
}

pub fn is_ours(table: &TableId) -> bool {
    FAMILIES.iter().any(|family| table_id(*family) == *table)
}

#[cfg(test)]
mod tests;
