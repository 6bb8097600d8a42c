//! A first load in portions, so that the whole program never stands in memory: a node with 100,000 endpoints
//! would need tens of megabytes for it, once.

use std::collections::BTreeSet;

use model::Family;
use model::forward::{ForwardingTable, Frontend};

use super::elements::{Fragment, is_shared};
use super::incremental::Renderer;
use super::names::SetName;
use super::sizes::Sizes;
use super::{add_class, skeleton, table_id};
use crate::nftables::apply::first_load;
use crate::nftables::ir::{Bytes, Change};

/// Services whose elements are sent together.
/// Few enough that their elements stay in the processor's caches until they are written as messages.
const SERVICES: usize = 50;

/// The portions of a first load in order, for `apply::load_portions`: what there is without Services, their elements,
/// and last the rules at the hooks.
pub fn portions<'t>(
    renderer: &Renderer,
    table: &'t ForwardingTable,
) -> impl Iterator<Item = Vec<Vec<Change>>> + use<'t> {
    let sizes = renderer.sizes().clone();
    let mut program = skeleton(&table.node, &sizes);
    for (family, class) in renderer.ready() {
        add_class(&mut program, &table.node, &sizes, *family, class);
    }
    let mut frame: Vec<Vec<Change>> = first_load(&program).collect();
    let dispatch = frame.pop().unwrap_or_default();
    let mut services = table.services().map(|(_, frontends)| frontends);
    let mut sent = BTreeSet::new();
    let elements = std::iter::from_fn(move || {
        let some: Vec<&[Frontend]> = services.by_ref().take(SERVICES).collect();
        (!some.is_empty()).then(|| vec![elements_of(&some, &sizes, &mut sent)])
    });
    std::iter::once(frame).chain(elements).chain(std::iter::once(vec![dispatch]))
}

/// The elements of some Services. `sent` remembers those that Services of other portions may need too: the pods of
/// this node, a few hundred.
fn elements_of(
    services: &[&[Frontend]],
    sizes: &Sizes,
    sent: &mut BTreeSet<(Family, SetName, Bytes)>,
) -> Vec<Change> {
    let mut all = Fragment::default();
    services.iter().for_each(|frontends| all.gather(frontends));
    let mut changes = Vec::with_capacity(all.elements.len());
    for ((family, name), elements) in all.elements {
        let mut elements = elements.into_list(name);
        if is_shared(name) {
            elements.retain(|element| sent.insert((family, name, element.key.clone())));
        }
        if !elements.is_empty() {
            let (table, set) = (table_id(family), sizes.name(family, name));
            changes.push(Change::AddElements { table, set, ranges: name.spec(family).ranges(), elements });
        }
    }
    changes
}
