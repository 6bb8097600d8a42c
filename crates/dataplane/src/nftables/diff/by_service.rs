//! Groups changed elements by Service, so that a change that exceeds one transaction can be split between Services: a
//! packet meets one Service, which is either old or new.
//!
//! ```text
//! services 10.96.0.1 . tcp . 80 (shop/web:http)  -\
//! endpoints 10.96.0.1 . tcp . 80 . 0             --+-> shop/web -> its deletions, then its additions
//! cluster-ips 10.96.0.1 (shop/web)               -/
//! ```

use std::collections::{BTreeMap, BTreeSet};

use model::ServiceKey;

use crate::nftables::ir::{
    Bytes, Comment, Element, IntervalEncoding, NftChange, NftFamily, NftName, Ruleset, TableId,
};
use crate::nftables::render::{FrontendLookup, SetName};

/// Owner of a changed element.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    /// A frontend or, if the flag is set, a cluster IP: the prefix of the keys of its elements.
    Frontend(NftFamily, bool, Bytes),
    Service(String),
}

/// Changed elements by set.
type Sets = BTreeMap<(TableId, NftName), (IntervalEncoding, Vec<Element>)>;

/// Changed elements of one Service.
#[derive(Default)]
struct ServiceElements {
    deleted: Sets,
    added: Sets,
}

/// Changes of elements in groups: shared additions, one group per Service, shared deletions. None if the changes include
/// something that belongs to no Service.
pub fn by_service(changes: &[NftChange], rulesets: &[&Ruleset]) -> Option<Vec<Vec<NftChange>>> {
    let (mut first, mut last) = (Vec::new(), Vec::new());
    let mut owners = Owners { rulesets, parents: BTreeMap::new() };
    let mut elements = Vec::new();
    for change in changes {
        let (table, set, ranges, list, is_added) = match change {
            NftChange::AddElements { table, set, ranges, elements } => (table, set, ranges, elements, true),
            NftChange::DeleteElements { table, set, ranges, elements } => {
                (table, set, ranges, elements, false)
            }
            // The chain of a new class: not referenced before its verdict is added.
            NftChange::AddChain { .. } | NftChange::FlushChain { .. } | NftChange::AddRule { .. } => {
                first.push(change.clone());
                continue;
            }
            _ => return None,
        };
        let name = SetName::parse(set)?;
        match name {
            // Without effect until the elements of a Service follow.
            SetName::Verdicts(_) | SetName::Hairpin | SetName::LocalLoadBalancers => {
                if is_added { &mut first } else { &mut last }.push(change.clone());
            }
            SetName::Affinity | SetName::ServiceCidrs | SetName::NodePortRanges => return None,
            _ => elements.push((table, set, *ranges, list, is_added, name)),
        }
    }
    for (table, _, _, list, _, name) in &elements {
        list.iter().for_each(|element| owners.link(table, *name, element));
    }
    let mut services: BTreeMap<Owner, ServiceElements> = BTreeMap::new();
    for (table, set, ranges, list, is_added, name) in elements {
        for element in list {
            let service = services.entry(owners.find(key_owner(table, name, &element.key))).or_default();
            let sets = if is_added { &mut service.added } else { &mut service.deleted };
            let (_, list) = sets.entry((table.clone(), set.clone())).or_insert((ranges, Vec::new()));
            list.push(element.clone());
        }
    }
    let services = services.into_values().map(ServiceElements::into_changes);
    let groups = std::iter::once(first).chain(services).chain(std::iter::once(last));
    Some(groups.filter(|group| !group.is_empty()).collect())
}

impl ServiceElements {
    fn into_changes(self) -> Vec<NftChange> {
        let deleted = self.deleted.into_iter().map(|((table, set), (ranges, elements))| {
            NftChange::DeleteElements { table, set, ranges, elements }
        });
        let added = self.added.into_iter().map(|((table, set), (ranges, elements))| NftChange::AddElements {
            table,
            set,
            ranges,
            elements,
        });
        deleted.chain(added).collect()
    }
}

/// The frontend or cluster IP that a key starts with.
fn key_owner(table: &TableId, set: SetName, key: &Bytes) -> Owner {
    let address = if table.family == NftFamily::Ip6 { 16 } else { 4 };
    let (is_cluster_ip, len) = match set {
        SetName::ClusterIps => (true, address),
        SetName::Frontends(FrontendLookup::NodePort, _)
        | SetName::Endpoints(FrontendLookup::NodePort, _)
        | SetName::StickyIds(FrontendLookup::NodePort)
        | SetName::StickySlots(FrontendLookup::NodePort, _)
        | SetName::StickyEndpoints(FrontendLookup::NodePort, _) => (false, 8),
        _ => (false, address + 8),
    };
    Owner::Frontend(table.family, is_cluster_ip, Bytes::from(key.get(..len).unwrap_or(key)))
}

/// Union-find over owners: where a frontend passes from one Service to another, both change at once.
struct Owners<'p> {
    rulesets: &'p [&'p Ruleset],
    parents: BTreeMap<Owner, Owner>,
}

impl Owners<'_> {
    fn find(&self, mut owner: Owner) -> Owner {
        while let Some(parent) = self.parents.get(&owner) {
            owner = parent.clone();
        }
        owner
    }

    fn join(&mut self, one: &Owner, other: Owner) {
        let (one, other) = (self.find(one.clone()), self.find(other));
        // The smaller one is the root, so that there is no cycle.
        match one.cmp(&other) {
            std::cmp::Ordering::Less => drop(self.parents.insert(other, one)),
            std::cmp::Ordering::Greater => drop(self.parents.insert(one, other)),
            std::cmp::Ordering::Equal => {}
        }
    }

    fn link(&mut self, table: &TableId, set: SetName, element: &Element) {
        let owner = key_owner(table, set, &element.key);
        for service in element_services(self.rulesets, table, &owner, element) {
            self.join(&owner, Owner::Service(service));
        }
    }
}

/// The Services that an element belongs to: those that its comment names, and the comments of its frontend.
fn element_services(
    rulesets: &[&Ruleset],
    table: &TableId,
    owner: &Owner,
    element: &Element,
) -> BTreeSet<String> {
    let own = element.value.comment.as_ref().map(service_of);
    let mut services: BTreeSet<String> = own.into_iter().collect();
    let Owner::Frontend(_, is_cluster_ip, key) = owner else { return services };
    for table in rulesets.iter().filter_map(|ruleset| ruleset.tables.get(table)) {
        let naming = table.sets.iter().filter(|(name, _)| match SetName::parse(name) {
            Some(SetName::ClusterIps) => *is_cluster_ip,
            Some(SetName::Frontends(..)) => !is_cluster_ip,
            _ => false,
        });
        let comments = naming.filter_map(|(_, set)| set.elements.get(key)?.comment.as_ref());
        services.extend(comments.map(service_of));
    }
    services
}

/// The Services whose elements a group of changes adds or deletes.
pub fn services_of(changes: &[NftChange], rulesets: &[&Ruleset]) -> BTreeSet<ServiceKey> {
    let mut names = BTreeSet::new();
    for change in changes {
        let (NftChange::AddElements { table, set, elements, .. }
        | NftChange::DeleteElements { table, set, elements, .. }) = change
        else {
            continue;
        };
        let Some(set) = SetName::parse(set) else { continue };
        for element in elements {
            let owner = key_owner(table, set, &element.key);
            names.extend(element_services(rulesets, table, &owner, element));
        }
    }
    let key = |name: &String| {
        name.split_once('/').map(|(namespace, name)| ServiceKey::new(&namespace.into(), &name.into()))
    };
    names.iter().filter_map(key).collect()
}

/// The Service that a comment names: `shop/web:http` is a port of `shop/web`.
fn service_of(comment: &Comment) -> String {
    comment.as_str().split(':').next().unwrap_or_default().to_owned()
}

/// Splits a group that exceeds a transaction. A Service with thousands of endpoints: slots that are added or replaced,
/// then its frontends, then slots that are deleted; in between a connection goes to an old or a new endpoint. Rules:
/// chain by chain.
pub fn split_group(changes: &[NftChange]) -> Vec<Vec<NftChange>> {
    if changes.iter().all(|change| change.elements() > 0) {
        split_elements(changes)
    } else {
        split_by_chain(changes)
    }
}

/// One group per chain, in the order of the changes; elements keep their place among them.
fn split_by_chain(changes: &[NftChange]) -> Vec<Vec<NftChange>> {
    let chain_of = |change: &NftChange| match change {
        NftChange::AddChain { table, chain, .. }
        | NftChange::FlushChain { table, chain }
        | NftChange::AddRule { table, chain, .. }
        | NftChange::ReplaceRule { table, chain, .. }
        | NftChange::DeleteRule { table, chain, .. } => Some((table.clone(), chain.clone())),
        _ => None,
    };
    let mut groups: Vec<Vec<NftChange>> = Vec::new();
    let mut at: BTreeMap<(TableId, NftName), usize> = BTreeMap::new();
    // A chain is placed at its last change: the chains that it references precede it.
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

fn split_elements(changes: &[NftChange]) -> Vec<Vec<NftChange>> {
    const CHUNK: usize = 500;
    let added: BTreeSet<(&TableId, &NftName, &Bytes)> = changes
        .iter()
        .filter_map(|change| match change {
            NftChange::AddElements { table, set, elements, .. } => Some((table, set, elements)),
            _ => None,
        })
        .flat_map(|(table, set, elements)| elements.iter().map(move |e| (table, set, &e.key)))
        .collect();
    let (mut slots, mut frontends, mut last) = (Vec::new(), Vec::new(), Vec::new());
    let mut replaced: BTreeMap<(&TableId, &NftName, &Bytes), &Element> = BTreeMap::new();
    for change in changes {
        match change {
            NftChange::DeleteElements { set, .. } | NftChange::AddElements { set, .. }
                if is_frontend_set(set) =>
            {
                frontends.push(change.clone());
            }
            NftChange::DeleteElements { table, set, ranges, elements } => {
                let (again, gone): (Vec<&Element>, Vec<&Element>) =
                    elements.iter().partition(|e| added.contains(&(table, set, &e.key)));
                replaced.extend(again.into_iter().map(|e| ((table, set, &e.key), e)));
                for some in gone.chunks(CHUNK) {
                    let (table, set, ranges) = (table.clone(), set.clone(), *ranges);
                    let elements = some.iter().map(|e| (*e).clone()).collect();
                    last.push(vec![NftChange::DeleteElements { table, set, ranges, elements }]);
                }
            }
            _ => {}
        }
    }
    for change in changes {
        let NftChange::AddElements { table, set, ranges, elements } = change else { continue };
        for some in elements.chunks(CHUNK).filter(|_| !is_frontend_set(set)) {
            let old = some.iter().filter_map(|e| replaced.get(&(table, set, &e.key)).map(|e| (*e).clone()));
            let old: Vec<Element> = old.collect();
            let mut group = Vec::new();
            let (table, set, ranges) = (table.clone(), set.clone(), *ranges);
            if !old.is_empty() {
                let (table, set) = (table.clone(), set.clone());
                group.push(NftChange::DeleteElements { table, set, ranges, elements: old });
            }
            group.push(NftChange::AddElements { table, set, ranges, elements: some.to_vec() });
            slots.push(group);
        }
    }
    let middle = (!frontends.is_empty()).then_some(frontends);
    slots.into_iter().chain(middle).chain(last).collect()
}

/// Whether a set maps frontends, and not their slots. Source ranges change with them: a new range may overlap an old one,
/// which the kernel refuses until the old one is deleted.
fn is_frontend_set(set: &NftName) -> bool {
    let name = SetName::parse(set);
    matches!(
        name,
        Some(SetName::Frontends(..) | SetName::ClusterIps | SetName::StickyIds(_) | SetName::SourceRanges)
    )
}
