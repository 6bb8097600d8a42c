//! A ForwardingTable as an nftables program: no chain, rule, set or map for a Service, only elements.
//!
//! ```text
//! packet -> services: (address . protocol . port) -> class ---\
//!           node-ports:         (protocol . port) -> class ----+-> verdicts: class -> chain of that class
//!                                                                    |
//!             endpoints: (address . protocol . port . number) <------+   number = random below the class's count
//! ```
//!
//! A class says everything that a chain has to know: how many slots there are, whom to masquerade, whether to
//! remember. Many Services share one. So a change of a Service is a change of data elements, which costs the
//! kernel the same at ten Services as at fifty thousand. docs/reference/nftables.md walks through it.

mod class;
mod elements;
mod incremental;
mod names;
mod portions;
mod rules;
mod sizes;
mod slots;
mod tally;

use model::forward::{ForwardingTable, NodePortAddresses, NodeRules};
use model::{Family, Protocol};

use super::ir::{
    self, Base, Chain, ChainSpec, ChainType, Comment, Element, Hook, Policy, Program, Rule, Set, Table,
    TableId,
};

pub use class::Class;
pub use incremental::{Edit, Renderer};
pub use names::{Kind, SetName, TABLE, table_id};
pub use portions::portions;
pub use sizes::Sizes;

use elements::{Fragment, gather};

/// Both families, in the order of their tables.
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// The whole program of a table.
pub fn render(table: &ForwardingTable, sizes: &Sizes) -> Program {
    let mut whole = Fragment::default();
    for (_, frontends) in table.services() {
        gather(&mut whole, frontends);
    }
    let sizes = &sizes.with_families(whole.elements.keys().map(|(family, _)| *family));
    let mut program = skeleton(&table.node, sizes);
    for (family, class) in &elements::with_neighbours(&whole.classes) {
        add_class(&mut program, &table.node, sizes, *family, class);
    }
    for ((family, name), elements) in whole.elements {
        if let Some(set) = set_mut(&mut program, sizes, family, name) {
            // Built in one go, its nodes are full; one by one they would be half empty.
            set.elements.append(&mut elements.into_map());
        }
    }
    program
}

fn set_mut<'p>(
    program: &'p mut Program,
    sizes: &Sizes,
    family: Family,
    name: SetName,
) -> Option<&'p mut Set> {
    program.tables.get_mut(&table_id(family))?.sets.get_mut(&sizes.name(family, name))
}

fn add_class(program: &mut Program, node: &NodeRules, sizes: &Sizes, family: Family, class: &Class) {
    let code = rules::Code { node, sizes, family };
    if let Some((name, chain)) = class_chain(&code, class)
        && let Some(table) = program.tables.get_mut(&table_id(family))
    {
        table.chains.insert(name, chain);
    }
    let element = verdict_element(class);
    if let Some(set) = set_mut(program, sizes, family, class.verdicts()) {
        set.elements.insert(element.key, element.value);
    }
}

/// The chain of a class, unless its verdict says it all.
fn class_chain(code: &rules::Code<'_>, class: &Class) -> Option<(ir::Name, Chain)> {
    let name = class.chain()?;
    let spec = ChainSpec { base: None, comment: Some(Comment::new(&class.describe())) };
    Some((name, Chain { spec, rules: code.class(class) }))
}

fn verdict_element(class: &Class) -> Element {
    let key = ir::Key::new().mark(class.value()).bytes();
    Element::entry(key, ir::Data::Verdict(class.verdict()))
}

/// Everything that is there without any Service.
pub fn skeleton(node: &NodeRules, sizes: &Sizes) -> Program {
    let families = FAMILIES.into_iter().filter(|family| sizes.has(*family));
    Program { tables: families.map(|family| (table_id(family), skeleton_of(node, sizes, family))).collect() }
}

fn skeleton_of(node: &NodeRules, sizes: &Sizes, family: Family) -> Table {
    let code = rules::Code { node, sizes, family };
    let mut table = Table {
        comment: Some(Comment::new("Zoneward: Service traffic of this node (zoneward cleanup removes it)")),
        ..Table::default()
    };
    for name in SetName::all() {
        table.sets.insert(sizes.name(family, name), Set::empty(sizes.spec(family, name)));
    }
    for (name, elements) in node_elements(node, family) {
        if let Some(set) = table.sets.get_mut(&sizes.name(family, name)) {
            set.elements.extend(elements.into_iter().map(|e| (e.key, e.value)));
        }
    }
    let mut add = |name: &str, base: Option<Base>, comment: &str, rules: Vec<Rule>| {
        let spec = ChainSpec { base, comment: Some(Comment::new(comment)) };
        table.chains.insert(name.into(), Chain { spec, rules });
    };
    let nat = |hook, priority| Some(Base { kind: ChainType::Nat, hook, priority, policy: Policy::Accept });
    add(
        "prerouting",
        nat(Hook::Prerouting, -100),
        "new connections that come in",
        vec![code.jump_services()],
    );
    add("output", nat(Hook::Output, -100), "new connections of the node itself", vec![code.jump_services()]);
    add("postrouting", nat(Hook::Postrouting, 100), "whose source address changes", code.postrouting());
    add("count-passing", nat(Hook::Postrouting, 90), "how many went where", vec![code.count()]);
    add(
        "count-arriving",
        nat(Hook::Input, 90),
        "how many came to the node's own endpoints",
        vec![code.count()],
    );
    add("services", None, "which Service, if any", code.services());
    add("reject", None, "nobody is there: tell the client", code.reject());
    for kind in names::Kind::ALL {
        let comment = "under externalTrafficPolicy Local: clients from inside may use every endpoint";
        add(kind.short_circuit(), None, comment, code.short_circuit(kind));
    }
    table
}

/// The elements that come from the node and not from a Service.
fn node_elements(node: &NodeRules, family: Family) -> Vec<(SetName, Vec<Element>)> {
    let of_family = |ranges: &[ipnet::IpNet]| {
        let ranges: Vec<ipnet::IpNet> =
            ranges.iter().filter(|r| Family::of(r.addr()) == family).copied().collect();
        // Ranges of one set must not overlap.
        ipnet::IpNet::aggregate(&ranges).iter().map(elements::range).collect::<Vec<Element>>()
    };
    let mut found = vec![(SetName::ServiceCidrs, of_family(&node.service_cidrs))];
    if let NodePortAddresses::Within(ranges) = node.node_ports(family) {
        found.push((SetName::NodePortRanges, of_family(ranges)));
    }
    found
}

/// The number of a transport protocol.
pub fn protocol_number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}

/// The transport protocol of a number.
pub fn protocol_of(number: u8) -> Option<Protocol> {
    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|p| protocol_number(*p) == number)
}

/// Whether a table is one of ours.
pub fn is_ours(table: &TableId) -> bool {
    FAMILIES.iter().any(|family| table_id(*family) == *table)
}

#[cfg(test)]
mod tests;
