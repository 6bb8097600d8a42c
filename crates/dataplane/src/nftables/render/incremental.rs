//! Incremental rendering: the change of a Service is the change of its elements, at a cost that does not depend on other
//! Services.
//!
//! What several Services share (classes, pods behind two Services) is reference counted.

use std::collections::{BTreeMap, BTreeSet};

use model::Family;
use model::forward::{ForwardingTable, NodeRules};

use super::chain_class::ChainClass;
use super::element_counts::ElementCounter;
use super::elements::{RenderedElements, SetOf, collect_service, is_shared, with_neighbours};
use super::rules::Rules;
use super::set_sizes::SetSizes;
use super::sets::SetName;
use super::{class_chain, render, table_id, verdict_element};
use crate::backend::FrontendChange;
use crate::nftables::ir::{self, Bytes, Element, ElementValue, NftChange, RulePosition, Ruleset};

/// Map buckets that the kernel walks per maintenance step: some milliseconds.
const WALKED_BUCKETS: u32 = 1 << 16;

/// Elements by set and key.
type Elements = BTreeMap<SetOf, BTreeMap<Bytes, ElementValue>>;

/// Renders changes against the state that earlier ones left.
#[derive(Clone, Debug)]
pub struct Renderer {
    node: NodeRules,
    sizes: SetSizes,
    counts: BTreeMap<(Family, SetName), usize>,
    class_users: BTreeMap<(Family, ChainClass), usize>,
    /// The classes whose chains the kernel has, used or prepared.
    ready: BTreeSet<(Family, ChainClass)>,
    element_users: BTreeMap<(Family, SetName, Bytes), usize>,
    unused_chains: BTreeSet<(Family, ir::NftName)>,
    /// Numbers of Service ports without session affinity any more, whose clients are still stored.
    ended_affinity: BTreeSet<(Family, Bytes)>,
}

/// A change of Services as nf_tables changes.
#[derive(Clone, Debug, PartialEq)]
pub enum RenderedChange {
    /// One transaction.
    Changes(Vec<NftChange>),
    /// A set is full: apply the difference to [`Renderer::render_all`], whose sizes have grown.
    Outgrown,
}

impl Renderer {
    /// A renderer and the complete ruleset of a table.
    pub fn start(table: &ForwardingTable) -> (Self, Ruleset) {
        let renderer = Self::new(table);
        let ruleset = render(table, &renderer.sizes);
        (renderer, ruleset)
    }

    /// A renderer of a table that the kernel holds, or gets by `initial_load`.
    pub fn new(table: &ForwardingTable) -> Self {
        let mut renderer = Self {
            node: table.node.clone(),
            sizes: SetSizes::default(),
            counts: BTreeMap::new(),
            class_users: BTreeMap::new(),
            ready: BTreeSet::new(),
            element_users: BTreeMap::new(),
            unused_chains: BTreeSet::new(),
            ended_affinity: BTreeSet::new(),
        };
        let mut counter = ElementCounter::default();
        for (_, frontends) in table.services() {
            renderer.count_shared(&counter.add(frontends));
        }
        for (set, count) in counter.counts {
            *renderer.counts.entry(set).or_default() += count;
        }
        renderer.class_users = counter.class_users;
        renderer.ready = with_neighbours(renderer.class_users.keys());
        renderer.count_verdicts();
        renderer.sizes = SetSizes::for_counts(renderer.counts.iter().map(|(set, count)| (*set, *count)));
        renderer.sizes.make_room_for_node(&table.node);
        renderer
    }

    /// The classes of an initial load: those in use, and with large maps their neighbours, whose preparation would delay
    /// a change. Other neighbours follow with the next maintenance: they would make the load slower.
    pub(super) fn classes_of_initial_load(&mut self) -> impl Iterator<Item = &(Family, ChainClass)> {
        let mut all = with_neighbours(self.class_users.keys());
        all.retain(|(family, class)| {
            let is_used = self.class_users.contains_key(&(*family, *class));
            is_used || self.sizes.size(*family, class.endpoints()) >= WALKED_BUCKETS
        });
        self.ready = all;
        self.ready.iter()
    }

    /// The complete ruleset, to be compared with the kernel: after a change of the node itself, or when a set is full.
    pub fn render_all(&mut self, table: &ForwardingTable) -> Ruleset {
        self.prepare_all(table);
        render(table, &self.sizes)
    }

    /// The classes of a complete ruleset: those in use and their neighbours.
    pub(super) fn prepare_all(&mut self, table: &ForwardingTable) -> &BTreeSet<(Family, ChainClass)> {
        self.node = table.node.clone();
        self.sizes.make_room_for_node(&self.node);
        self.ready = with_neighbours(self.class_users.keys());
        self.count_verdicts();
        self.unused_chains.clear();
        &self.ready
    }

    /// The sets of elements that are not shared, with their numbers of elements.
    pub(super) fn large_sets(&self) -> impl Iterator<Item = (SetOf, usize)> {
        let is_large =
            |set: SetName| !is_shared(set) && !matches!(set, SetName::Verdicts(_) | SetName::SourceRanges);
        self.counts.iter().filter(move |((_, set), _)| is_large(*set)).map(|(set, count)| (*set, *count))
    }

    pub fn sizes(&self) -> &SetSizes {
        &self.sizes
    }

    pub fn fits(&self, sizes: &SetSizes) -> bool {
        self.counts.iter().all(|((family, name), count)| sizes.fits(*family, *name, *count))
    }

    /// Counts elements that other Services may have.
    fn count_shared(&mut self, rendered: &RenderedElements) {
        for ((family, set), elements) in &rendered.elements {
            let new = if is_shared(*set) {
                let keys = elements.keys().filter(|key| self.add_user(*family, *set, key));
                keys.count()
            } else {
                elements.len()
            };
            *self.counts.entry((*family, *set)).or_default() += new;
        }
    }

    /// Counts the classes that the kernel has and those that the next maintenance prepares.
    fn count_verdicts(&mut self) {
        self.counts.retain(|(_, set), _| !matches!(set, SetName::Verdicts(_)));
        let wanted = with_neighbours(self.class_users.keys());
        for (family, class) in self.ready.union(&wanted) {
            *self.counts.entry((*family, class.verdicts())).or_default() += 1;
        }
    }

    /// Returns whether this is the first user of the element.
    fn add_user(&mut self, family: Family, set: SetName, key: &Bytes) -> bool {
        let users = self.element_users.entry((family, set, key.clone())).or_default();
        *users += 1;
        *users == 1
    }

    /// Returns whether this was the last user of the element.
    fn remove_user(&mut self, family: Family, set: SetName, key: &Bytes) -> bool {
        let at = (family, set, key.clone());
        let Some(users) = self.element_users.get_mut(&at) else { return false };
        *users -= 1;
        let was_last = *users == 0;
        if was_last {
            self.element_users.remove(&at);
        }
        was_last
    }

    /// Renders the change of some Services. Services between which a frontend moves must be in the same call.
    pub fn change(&mut self, services: &[FrontendChange<'_>]) -> RenderedChange {
        let mut changes = Vec::new();
        let olds: Vec<RenderedElements> = services.iter().map(|(old, _)| collect_service(old)).collect();
        let news: Vec<RenderedElements> = services.iter().map(|(_, new)| collect_service(new)).collect();
        // Additions are counted before deletions, so that what moves between Services stays.
        let (mut added, mut deleted) = (Elements::new(), Elements::new());
        let mut classes_changed = false;
        for new in &news {
            classes_changed |= self.add_classes(new, &mut changes);
            self.add_users(new, &mut added);
        }
        for old in &olds {
            classes_changed |= self.remove_classes(old);
            self.remove_users(old, &mut deleted);
        }
        let sets: BTreeSet<_> = deleted.keys().chain(added.keys()).copied().collect();
        for set in sets {
            self.change_set(
                set,
                deleted.remove(&set).unwrap_or_default(),
                added.remove(&set).unwrap_or_default(),
                &mut changes,
            );
        }
        if classes_changed {
            self.count_verdicts();
        }
        self.ended_affinity.extend(olds.iter().flat_map(affinity_numbers));
        for number in news.iter().flat_map(affinity_numbers) {
            self.ended_affinity.remove(&number);
        }
        if self.make_room() { RenderedChange::Outgrown } else { RenderedChange::Changes(changes) }
    }

    fn add_users(&mut self, rendered: &RenderedElements, added: &mut Elements) {
        for ((family, set), elements) in &rendered.elements {
            for (key, value) in elements.iter() {
                if !is_shared(*set) || self.add_user(*family, *set, key) {
                    added.entry((*family, *set)).or_default().insert(key.clone(), value.clone());
                }
            }
        }
    }

    fn remove_users(&mut self, rendered: &RenderedElements, deleted: &mut Elements) {
        for ((family, set), elements) in &rendered.elements {
            for (key, value) in elements.iter() {
                if !is_shared(*set) || self.remove_user(*family, *set, key) {
                    deleted.entry((*family, *set)).or_default().insert(key.clone(), value.clone());
                }
            }
        }
    }

    fn change_set(
        &mut self,
        (family, name): (Family, SetName),
        mut deleted: BTreeMap<Bytes, ElementValue>,
        mut added: BTreeMap<Bytes, ElementValue>,
        changes: &mut Vec<NftChange>,
    ) {
        added.retain(|key, value| match deleted.get(key) {
            Some(before) if before == value => {
                deleted.remove(key);
                false
            }
            _ => true,
        });
        let count = self.counts.entry((family, name)).or_default();
        *count = (*count + added.len()).saturating_sub(deleted.len());
        let ranges = name.spec(family).ranges();
        let (table, set) = (table_id(family), self.sizes.name(family, name));
        if !deleted.is_empty() {
            let (table, set, elements) = (table.clone(), set.clone(), list(deleted));
            changes.push(NftChange::DeleteElements { table, set, ranges, elements });
        }
        if !added.is_empty() {
            changes.push(NftChange::AddElements { table, set, ranges, elements: list(added) });
        }
    }

    /// Adds a user to the classes of a Service. Returns whether one of them was unused.
    fn add_classes(&mut self, new: &RenderedElements, changes: &mut Vec<NftChange>) -> bool {
        let mut is_changed = false;
        for at in &new.classes {
            let users = self.class_users.entry(*at).or_default();
            *users += 1;
            is_changed |= *users == 1;
            if self.ready.insert(*at) {
                self.add_class(at, changes);
            }
        }
        is_changed
    }

    fn add_class(&mut self, (family, class): &(Family, ChainClass), changes: &mut Vec<NftChange>) {
        let rules = Rules { node: &self.node, sizes: &self.sizes, family: *family };
        let table = table_id(*family);
        if let Some((chain, content)) = class_chain(&rules, class) {
            self.unused_chains.remove(&(*family, chain.clone()));
            changes.extend(fill_chain(&table, &chain, content));
        }
        let set = self.sizes.name(*family, class.verdicts());
        let elements = vec![verdict_element(class)];
        changes.push(NftChange::AddElements { table, set, ranges: ir::IntervalEncoding::None, elements });
    }

    /// Removes a user from the classes of a Service. Returns whether one of them became unused.
    fn remove_classes(&mut self, old: &RenderedElements) -> bool {
        let mut is_changed = false;
        for at in &old.classes {
            let Some(users) = self.class_users.get_mut(at) else { continue };
            *users -= 1;
            if *users == 0 {
                self.class_users.remove(at);
                is_changed = true;
            }
        }
        is_changed
    }

    fn drop_class(&mut self, (family, class): &(Family, ChainClass), changes: &mut Vec<NftChange>) {
        let (table, set) = (table_id(*family), self.sizes.name(*family, class.verdicts()));
        let elements = vec![verdict_element(class)];
        changes.push(NftChange::DeleteElements { table, set, ranges: ir::IntervalEncoding::None, elements });
        if let Some(chain) = class.chain() {
            // Pitfall 9: a chain is deleted by a later transaction than its last reference.
            self.unused_chains.insert((*family, chain));
        }
    }

    /// The numbers of Service ports whose clients are to be deleted from `affinity`. Each is returned once.
    pub fn take_ended_affinity(&mut self) -> BTreeSet<(Family, Bytes)> {
        std::mem::take(&mut self.ended_affinity)
    }

    /// Grows full sets. Returns whether there were any.
    fn make_room(&mut self) -> bool {
        let mut outgrown = false;
        for ((family, name), count) in &self.counts {
            if !self.sizes.fits(*family, *name, *count) {
                self.sizes.make_room(*family, *name, *count);
                outgrown = true;
            }
        }
        outgrown
    }

    /// Work that waits until changes are applied: prepares the classes that the next change may need and deletes those
    /// that none can need. One transaction; call it until nothing is left. With large maps each call prepares only one
    /// class: the kernel walks the whole map for it, and a change may be waiting.
    pub fn maintenance(&mut self) -> Vec<NftChange> {
        let unused = std::mem::take(&mut self.unused_chains);
        let mut changes: Vec<NftChange> = unused
            .into_iter()
            .map(|(family, chain)| NftChange::DeleteChain { table: table_id(family), chain })
            .collect();
        let wanted = with_neighbours(self.class_users.keys());
        let missing: Vec<(Family, ChainClass)> = wanted.difference(&self.ready).copied().collect();
        let mut walked = 0;
        for (family, class) in missing {
            self.add_class(&(family, class), &mut changes);
            self.ready.insert((family, class));
            walked += self.sizes.size(family, class.endpoints());
            if walked >= WALKED_BUCKETS {
                break;
            }
        }
        let before = self.ready.clone();
        for class in before.difference(&wanted) {
            self.drop_class(class, &mut changes);
            self.ready.remove(class);
        }
        self.count_verdicts();
        changes
    }
}

/// The numbers under which the clients of a Service's ports are stored.
fn affinity_numbers(rendered: &RenderedElements) -> impl Iterator<Item = (Family, Bytes)> {
    let ids = rendered.elements.iter().filter(|((_, set), _)| matches!(set, SetName::StickyIds(_)));
    ids.flat_map(|((family, _), elements)| {
        elements.iter().filter_map(|(_, value)| match &value.data {
            Some(ir::Data::Value(number)) => Some((*family, number.clone())),
            _ => None,
        })
    })
}

/// Creates the chain, or replaces its rules.
fn fill_chain(table: &ir::TableId, chain: &ir::NftName, content: ir::Chain) -> Vec<NftChange> {
    let (table, chain) = (table.clone(), chain.clone());
    let mut changes = vec![
        NftChange::AddChain { table: table.clone(), chain: chain.clone(), spec: content.spec },
        NftChange::FlushChain { table: table.clone(), chain: chain.clone() },
    ];
    changes.extend(content.rules.into_iter().map(|rule| NftChange::AddRule {
        table: table.clone(),
        chain: chain.clone(),
        rule,
        position: RulePosition::Last,
    }));
    changes
}

fn list(elements: BTreeMap<Bytes, ElementValue>) -> Vec<Element> {
    elements.into_iter().map(|(key, value)| Element { key, value }).collect()
}
