//! One Service changes: its elements change, and nothing else is looked at.
//!
//! What several Services share (classes, cluster IPs, pods behind two Services) is counted, so that it goes
//! with the last one that needs it.

use std::collections::{BTreeMap, BTreeSet};

use model::Family;
use model::forward::{ForwardingTable, Frontend, NodeRules};

use super::class::Class;
use super::elements::{Fragment, SetOf, fragment, is_shared, with_neighbours};
use super::names::SetName;
use super::rules::Code;
use super::sizes::Sizes;
use super::tally::Tally;
use super::{class_chain, render, table_id, verdict_element};
use crate::nftables::ir::{self, Bytes, Change, Element, ElementValue, Place, Program};

/// How many places of maps the kernel is made to look through in one sweep: some milliseconds.
const LOOKED_THROUGH: u32 = 1 << 16;

/// Elements by set and key.
type Elements = BTreeMap<SetOf, BTreeMap<Bytes, ElementValue>>;

/// What a renderer remembers between changes.
#[derive(Clone, Debug)]
pub struct Renderer {
    node: NodeRules,
    sizes: Sizes,
    counts: BTreeMap<(Family, SetName), usize>,
    class_users: BTreeMap<(Family, Class), usize>,
    /// The classes that the kernel has, in use or ready.
    ready: BTreeSet<(Family, Class)>,
    element_users: BTreeMap<(Family, SetName, Bytes), usize>,
    unused_chains: BTreeSet<(Family, ir::Name)>,
}

/// What a change of one Service is in the kernel.
#[derive(Clone, Debug, PartialEq)]
pub enum Edit {
    /// These, as one transaction.
    Changes(Vec<Change>),
    /// A set is too small now: render the whole again with the sizes that the renderer has now, and apply the
    /// difference.
    Outgrown,
}

impl Renderer {
    /// A renderer at a table, and the program that the kernel should hold for it.
    pub fn start(table: &ForwardingTable) -> (Self, Program) {
        let renderer = Self::new(table);
        let program = render(table, &renderer.sizes);
        (renderer, program)
    }

    /// A renderer at a table whose program the kernel has, or gets by `portions`.
    pub fn new(table: &ForwardingTable) -> Self {
        let mut renderer = Self {
            node: table.node.clone(),
            sizes: Sizes::default(),
            counts: BTreeMap::new(),
            class_users: BTreeMap::new(),
            ready: BTreeSet::new(),
            element_users: BTreeMap::new(),
            unused_chains: BTreeSet::new(),
        };
        let mut tally = Tally::default();
        for (_, frontends) in table.services() {
            renderer.count_others(&tally.add(frontends));
        }
        for (set, count) in tally.counts {
            *renderer.counts.entry(set).or_default() += count;
        }
        renderer.class_users = tally.class_users;
        renderer.ready = with_neighbours(renderer.class_users.keys());
        renderer.count_verdicts();
        renderer.sizes = Sizes::for_counts(renderer.counts.iter().map(|(set, count)| (*set, *count)));
        renderer.sizes.make_room_for_node(&table.node);
        renderer
    }

    /// The classes that a first load brings: those in use. The next sweep makes their neighbours ready; here they would
    /// make each element dearer, and packets wait for it. Not those of large maps: that sweep would be in a change's way.
    pub(super) fn of_first_load(&mut self) -> impl Iterator<Item = &(Family, Class)> {
        let mut all = with_neighbours(self.class_users.keys());
        all.retain(|(family, class)| {
            let is_used = self.class_users.contains_key(&(*family, *class));
            is_used || self.sizes.size(*family, class.endpoints()) >= LOOKED_THROUGH
        });
        self.ready = all;
        self.ready.iter()
    }

    /// The program for a table as of now, to be compared with what the kernel holds: at a change of the node
    /// itself, and when a set was outgrown.
    pub fn whole(&mut self, table: &ForwardingTable) -> Program {
        self.node = table.node.clone();
        self.sizes.make_room_for_node(&self.node);
        self.ready = with_neighbours(self.class_users.keys());
        self.count_verdicts();
        self.unused_chains.clear();
        render(table, &self.sizes)
    }

    /// The sizes of sets as of now.
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Whether everything fits into sets of these sizes.
    pub fn fits(&self, sizes: &Sizes) -> bool {
        self.counts.iter().all(|((family, name), count)| sizes.fits(*family, *name, *count))
    }

    /// Counts elements that may be there already.
    fn count_others(&mut self, fragment: &Fragment) {
        for ((family, set), elements) in &fragment.elements {
            let new = if is_shared(*set) {
                let keys = elements.keys().filter(|key| self.take_up(*family, *set, key));
                keys.count()
            } else {
                elements.len()
            };
            *self.counts.entry((*family, *set)).or_default() += new;
        }
    }

    /// Counts the classes that the kernel has, and those that the next sweep makes ready: it must find room.
    fn count_verdicts(&mut self) {
        self.counts.retain(|(_, set), _| !matches!(set, SetName::Verdicts(_)));
        let wanted = with_neighbours(self.class_users.keys());
        for (family, class) in self.ready.union(&wanted) {
            *self.counts.entry((*family, class.verdicts())).or_default() += 1;
        }
    }

    /// Counts one more user of an element; whether it is the first.
    fn take_up(&mut self, family: Family, set: SetName, key: &Bytes) -> bool {
        let users = self.element_users.entry((family, set, key.clone())).or_default();
        *users += 1;
        *users == 1
    }

    /// Counts one user less; whether it was the last one.
    fn give_up(&mut self, family: Family, set: SetName, key: &Bytes) -> bool {
        let at = (family, set, key.clone());
        let Some(users) = self.element_users.get_mut(&at) else { return false };
        *users -= 1;
        let was_last = *users == 0;
        if was_last {
            self.element_users.remove(&at);
        }
        was_last
    }

    /// The changes when the frontends of a Service, the first of a pair, become the second; of several
    /// Services where a place passes from one to another.
    pub fn change(&mut self, services: &[(&[Frontend], &[Frontend])]) -> Edit {
        let mut changes = Vec::new();
        let olds: Vec<Fragment> = services.iter().map(|(old, _)| fragment(old)).collect();
        let news: Vec<Fragment> = services.iter().map(|(_, new)| fragment(new)).collect();
        // What comes is counted before what goes, so that what passes on stays.
        let (mut come, mut gone) = (Elements::new(), Elements::new());
        let mut other_classes = false;
        for new in &news {
            other_classes |= self.add_classes(new, &mut changes);
            self.take_up_all(new, &mut come);
        }
        for old in &olds {
            other_classes |= self.count_out_classes(old);
            self.give_up_all(old, &mut gone);
        }
        let sets: BTreeSet<_> = gone.keys().chain(come.keys()).copied().collect();
        for set in sets {
            self.change_set(
                set,
                gone.remove(&set).unwrap_or_default(),
                come.remove(&set).unwrap_or_default(),
                &mut changes,
            );
        }
        if other_classes {
            self.count_verdicts();
        }
        if self.make_room() { Edit::Outgrown } else { Edit::Changes(changes) }
    }

    fn take_up_all(&mut self, fragment: &Fragment, come: &mut Elements) {
        for ((family, set), elements) in &fragment.elements {
            for (key, value) in elements.iter() {
                if !is_shared(*set) || self.take_up(*family, *set, key) {
                    come.entry((*family, *set)).or_default().insert(key.clone(), value.clone());
                }
            }
        }
    }

    fn give_up_all(&mut self, fragment: &Fragment, gone: &mut Elements) {
        for ((family, set), elements) in &fragment.elements {
            for (key, value) in elements.iter() {
                if !is_shared(*set) || self.give_up(*family, *set, key) {
                    gone.entry((*family, *set)).or_default().insert(key.clone(), value.clone());
                }
            }
        }
    }

    fn change_set(
        &mut self,
        (family, name): (Family, SetName),
        mut gone: BTreeMap<Bytes, ElementValue>,
        mut come: BTreeMap<Bytes, ElementValue>,
        changes: &mut Vec<Change>,
    ) {
        come.retain(|key, value| match gone.get(key) {
            Some(before) if before == value => {
                gone.remove(key);
                false
            }
            _ => true,
        });
        let count = self.counts.entry((family, name)).or_default();
        *count = (*count + come.len()).saturating_sub(gone.len());
        let ranges = name.spec(family).ranges();
        let (table, set) = (table_id(family), self.sizes.name(family, name));
        if !gone.is_empty() {
            let (table, set, elements) = (table.clone(), set.clone(), list(gone));
            changes.push(Change::DeleteElements { table, set, ranges, elements });
        }
        if !come.is_empty() {
            changes.push(Change::AddElements { table, set, ranges, elements: list(come) });
        }
    }

    /// Counts the classes of a Service in; whether one of them is used for the first time.
    fn add_classes(&mut self, new: &Fragment, changes: &mut Vec<Change>) -> bool {
        let mut is_other = false;
        for at in &new.classes {
            let users = self.class_users.entry(*at).or_default();
            *users += 1;
            is_other |= *users == 1;
            if self.ready.insert(*at) {
                self.add_class(at, changes);
            }
        }
        is_other
    }

    fn add_class(&mut self, (family, class): &(Family, Class), changes: &mut Vec<Change>) {
        let code = Code { node: &self.node, sizes: &self.sizes, family: *family };
        let table = table_id(*family);
        if let Some((chain, content)) = class_chain(&code, class) {
            self.unused_chains.remove(&(*family, chain.clone()));
            changes.extend(fill_chain(&table, &chain, content));
        }
        let set = self.sizes.name(*family, class.verdicts());
        let elements = vec![verdict_element(class)];
        changes.push(Change::AddElements { table, set, ranges: ir::Ranges::None, elements });
    }

    /// Counts the classes of a Service out; whether one of them is not used any more.
    fn count_out_classes(&mut self, old: &Fragment) -> bool {
        let mut is_other = false;
        for at in &old.classes {
            let Some(users) = self.class_users.get_mut(at) else { continue };
            *users -= 1;
            if *users == 0 {
                self.class_users.remove(at);
                is_other = true;
            }
        }
        is_other
    }

    fn drop_class(&mut self, (family, class): &(Family, Class), changes: &mut Vec<Change>) {
        let (table, set) = (table_id(*family), self.sizes.name(*family, class.verdicts()));
        let elements = vec![verdict_element(class)];
        changes.push(Change::DeleteElements { table, set, ranges: ir::Ranges::None, elements });
        if let Some(chain) = class.chain() {
            // Pitfall 9: a chain goes in a later transaction than the last way to it.
            self.unused_chains.insert((*family, chain));
        }
    }

    /// Makes sets larger that have become too small; whether there were any.
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

    /// Work that can wait until changes are through: classes are made ready that the next change may need, and
    /// those that none can need any more go. One transaction; call it again until there is nothing left to do. With
    /// large maps each makes only one class ready: the kernel looks through a whole map for that, and a change may be
    /// waiting.
    pub fn sweep(&mut self) -> Vec<Change> {
        let unused = std::mem::take(&mut self.unused_chains);
        let mut changes: Vec<Change> = unused
            .into_iter()
            .map(|(family, chain)| Change::DeleteChain { table: table_id(family), chain })
            .collect();
        let wanted = with_neighbours(self.class_users.keys());
        let missing: Vec<(Family, Class)> = wanted.difference(&self.ready).copied().collect();
        let mut looked_through = 0;
        for (family, class) in missing {
            self.add_class(&(family, class), &mut changes);
            self.ready.insert((family, class));
            looked_through += self.sizes.size(family, class.endpoints());
            if looked_through >= LOOKED_THROUGH {
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

/// A chain with these rules, whatever it held if it was there.
fn fill_chain(table: &ir::TableId, chain: &ir::Name, content: ir::Chain) -> Vec<Change> {
    let (table, chain) = (table.clone(), chain.clone());
    let mut changes = vec![
        Change::AddChain { table: table.clone(), chain: chain.clone(), spec: content.spec },
        Change::FlushChain { table: table.clone(), chain: chain.clone() },
    ];
    changes.extend(content.rules.into_iter().map(|rule| Change::AddRule {
        table: table.clone(),
        chain: chain.clone(),
        rule,
        place: Place::Last,
    }));
    changes
}

fn list(elements: BTreeMap<Bytes, ElementValue>) -> Vec<Element> {
    elements.into_iter().map(|(key, value)| Element { key, value }).collect()
}
