//! Changed elements by the Service that they belong to, so that what does not fit into one transaction can be cut
//! where no packet notices: a packet meets one Service, and that is as before or as after.
//!
//! ```text
//! services 10.96.0.1 . tcp . 80 (shop/web:http)  -\
//! endpoints 10.96.0.1 . tcp . 80 . 0             --+-> shop/web -> its own deletions, then its own additions
//! cluster-ips 10.96.0.1 (shop/web)               -/
//! ```

use std::collections::{BTreeMap, BTreeSet};

use crate::nftables::ir::{Bytes, Change, Comment, Element, Family, Name, Program, Ranges, TableId};
use crate::nftables::render::{Kind, SetName};

/// What a changed element belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    /// A frontend or a cluster IP: the first bytes of the keys of its elements, in the table of a family.
    Place(Family, bool, Bytes),
    /// A Service by its name.
    Service(String),
}

/// The changes of one set.
type Sets = BTreeMap<(TableId, Name), (Ranges, Vec<Element>)>;

/// What goes and what comes of one Service.
#[derive(Default)]
struct Unit {
    gone: Sets,
    come: Sets,
}

/// Changes of elements in groups: what may come early, then a group for each Service, then what may go late. None if
/// there is something else among them that cannot be told apart by Service.
pub fn by_service(changes: &[Change], programs: &[&Program]) -> Option<Vec<Vec<Change>>> {
    let (mut first, mut last) = (Vec::new(), Vec::new());
    let mut sorter = Sorter { programs, parents: BTreeMap::new() };
    let mut elements = Vec::new();
    for change in changes {
        let (table, set, ranges, list, comes) = match change {
            Change::AddElements { table, set, ranges, elements } => (table, set, ranges, elements, true),
            Change::DeleteElements { table, set, ranges, elements } => (table, set, ranges, elements, false),
            // The chain of a new class: nothing leads there before its verdict does.
            Change::AddChain { .. } | Change::FlushChain { .. } | Change::AddRule { .. } => {
                first.push(change.clone());
                continue;
            }
            _ => return None,
        };
        let name = SetName::parse(set)?;
        match name {
            // A verdict that no Service has yet, and a pod's own address twice: harmless without the rest.
            SetName::Verdicts(_) | SetName::Hairpin if comes => first.push(change.clone()),
            SetName::Verdicts(_) | SetName::Hairpin => last.push(change.clone()),
            SetName::Affinity | SetName::ServiceCidrs | SetName::NodePortRanges => return None,
            _ => elements.push((table, set, *ranges, list, comes, name)),
        }
    }
    for (table, _, _, list, _, name) in &elements {
        list.iter().for_each(|element| sorter.link(table, *name, element));
    }
    let mut units: BTreeMap<Owner, Unit> = BTreeMap::new();
    for (table, set, ranges, list, comes, name) in elements {
        for element in list {
            let unit = units.entry(sorter.find(place(table, name, &element.key))).or_default();
            let sets = if comes { &mut unit.come } else { &mut unit.gone };
            let (_, list) = sets.entry((table.clone(), set.clone())).or_insert((ranges, Vec::new()));
            list.push(element.clone());
        }
    }
    let units = units.into_values().map(Unit::into_changes);
    let groups = std::iter::once(first).chain(units).chain(std::iter::once(last));
    Some(groups.filter(|group| !group.is_empty()).collect())
}

impl Unit {
    fn into_changes(self) -> Vec<Change> {
        let gone = self.gone.into_iter().map(|((table, set), (ranges, elements))| Change::DeleteElements {
            table,
            set,
            ranges,
            elements,
        });
        let come = self.come.into_iter().map(|((table, set), (ranges, elements))| Change::AddElements {
            table,
            set,
            ranges,
            elements,
        });
        gone.chain(come).collect()
    }
}

/// The part of a key that says which frontend, or the cluster IP.
fn place(table: &TableId, set: SetName, key: &Bytes) -> Owner {
    let address = if table.family == Family::Ip6 { 16 } else { 4 };
    let (is_cluster_ip, len) = match set {
        SetName::ClusterIps => (true, address),
        SetName::Frontends(Kind::NodePort, _)
        | SetName::Endpoints(Kind::NodePort, _)
        | SetName::StickyIds(Kind::NodePort)
        | SetName::StickySlots(Kind::NodePort, _)
        | SetName::StickyEndpoints(Kind::NodePort, _) => (false, 8),
        _ => (false, address + 8),
    };
    Owner::Place(table.family, is_cluster_ip, Bytes::from(key.get(..len).unwrap_or(key)))
}

/// Finds out what belongs together: a place may pass from one Service to another, and then both change at once.
struct Sorter<'p> {
    programs: &'p [&'p Program],
    parents: BTreeMap<Owner, Owner>,
}

impl Sorter<'_> {
    fn find(&self, mut owner: Owner) -> Owner {
        while let Some(parent) = self.parents.get(&owner) {
            owner = parent.clone();
        }
        owner
    }

    fn join(&mut self, one: &Owner, other: Owner) {
        let (one, other) = (self.find(one.clone()), self.find(other));
        // The smaller stays, so that there is no circle.
        match one.cmp(&other) {
            std::cmp::Ordering::Less => drop(self.parents.insert(other, one)),
            std::cmp::Ordering::Greater => drop(self.parents.insert(one, other)),
            std::cmp::Ordering::Equal => {}
        }
    }

    fn link(&mut self, table: &TableId, set: SetName, element: &Element) {
        let owner = place(table, set, &element.key);
        let own = element.value.comment.as_ref().map(service_of);
        let mut services: BTreeSet<String> = own.into_iter().collect();
        let Owner::Place(_, is_cluster_ip, key) = &owner else { return };
        for table in self.programs.iter().filter_map(|program| program.tables.get(table)) {
            let naming = table.sets.iter().filter(|(name, _)| match SetName::parse(name) {
                Some(SetName::ClusterIps) => *is_cluster_ip,
                Some(SetName::Frontends(..)) => !is_cluster_ip,
                _ => false,
            });
            let comments = naming.filter_map(|(_, set)| set.elements.get(key)?.comment.as_ref());
            services.extend(comments.map(service_of));
        }
        for service in services {
            self.join(&owner, Owner::Service(service));
        }
    }
}

/// The Service that a comment names: `shop/web:http` is a port of `shop/web`.
fn service_of(comment: &Comment) -> String {
    comment.as_str().split(':').next().unwrap_or_default().to_owned()
}

/// One group that is too large for a transaction, in steps. Of a Service with thousands of endpoints: slots that come or
/// change, then where its frontends lead, then slots that go. In between a connection goes to an endpoint of before or
/// of after, and never to none. Of rules: chain by chain.
pub fn in_steps(changes: &[Change]) -> Vec<Vec<Change>> {
    if changes.iter().all(|change| change.elements() > 0) {
        elements_in_steps(changes)
    } else {
        by_chain(changes)
    }
}

/// Rules in groups of one chain, those at the hooks last as they come; elements stay where they are among them.
fn by_chain(changes: &[Change]) -> Vec<Vec<Change>> {
    let chain_of = |change: &Change| match change {
        Change::AddChain { table, chain, .. }
        | Change::FlushChain { table, chain }
        | Change::AddRule { table, chain, .. }
        | Change::ReplaceRule { table, chain, .. }
        | Change::DeleteRule { table, chain, .. } => Some((table.clone(), chain.clone())),
        _ => None,
    };
    let mut groups: Vec<Vec<Change>> = Vec::new();
    let mut at: BTreeMap<(TableId, Name), usize> = BTreeMap::new();
    // A chain has its turn with its last change: what that leads to has come by then.
    for (index, change) in changes.iter().enumerate() {
        at.extend(chain_of(change).map(|chain| (chain, index)));
    }
    for (index, change) in changes.iter().enumerate() {
        groups.push(match chain_of(change) {
            None => vec![change.clone()],
            Some(chain) if at.get(&chain) == Some(&index) => {
                let same = changes.iter().filter(|other| chain_of(other).as_ref() == Some(&chain));
                same.cloned().collect()
            }
            Some(_) => Vec::new(),
        });
    }
    groups.retain(|group| !group.is_empty());
    groups
}

fn elements_in_steps(changes: &[Change]) -> Vec<Vec<Change>> {
    const AT_ONCE: usize = 500;
    let added: BTreeSet<(&TableId, &Name, &Bytes)> = changes
        .iter()
        .filter_map(|change| match change {
            Change::AddElements { table, set, elements, .. } => Some((table, set, elements)),
            _ => None,
        })
        .flat_map(|(table, set, elements)| elements.iter().map(move |e| (table, set, &e.key)))
        .collect();
    let (mut slots, mut frontends, mut last) = (Vec::new(), Vec::new(), Vec::new());
    let mut replaced: BTreeMap<(&TableId, &Name, &Bytes), &Element> = BTreeMap::new();
    for change in changes {
        match change {
            Change::DeleteElements { set, .. } | Change::AddElements { set, .. } if leads(set) => {
                frontends.push(change.clone());
            }
            Change::DeleteElements { table, set, ranges, elements } => {
                let (again, gone): (Vec<&Element>, Vec<&Element>) =
                    elements.iter().partition(|e| added.contains(&(table, set, &e.key)));
                replaced.extend(again.into_iter().map(|e| ((table, set, &e.key), e)));
                for some in gone.chunks(AT_ONCE) {
                    let (table, set, ranges) = (table.clone(), set.clone(), *ranges);
                    let elements = some.iter().map(|e| (*e).clone()).collect();
                    last.push(vec![Change::DeleteElements { table, set, ranges, elements }]);
                }
            }
            _ => {}
        }
    }
    for change in changes {
        let Change::AddElements { table, set, ranges, elements } = change else { continue };
        for some in elements.chunks(AT_ONCE).filter(|_| !leads(set)) {
            let old = some.iter().filter_map(|e| replaced.get(&(table, set, &e.key)).map(|e| (*e).clone()));
            let old: Vec<Element> = old.collect();
            let mut group = Vec::new();
            let (table, set, ranges) = (table.clone(), set.clone(), *ranges);
            if !old.is_empty() {
                let (table, set) = (table.clone(), set.clone());
                group.push(Change::DeleteElements { table, set, ranges, elements: old });
            }
            group.push(Change::AddElements { table, set, ranges, elements: some.to_vec() });
            slots.push(group);
        }
    }
    let middle = (!frontends.is_empty()).then_some(frontends);
    slots.into_iter().chain(middle).chain(last).collect()
}

/// Whether a set says where a frontend leads, and not what is there.
fn leads(set: &Name) -> bool {
    matches!(SetName::parse(set), Some(SetName::Frontends(..) | SetName::ClusterIps | SetName::StickyIds(_)))
}
