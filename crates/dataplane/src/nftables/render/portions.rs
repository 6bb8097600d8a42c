//! A first load in portions, so that the whole program never stands in memory: a node with 100,000 endpoints
//! would need tens of megabytes for it, once.

use model::forward::{ForwardingTable, Frontend};

use super::elements::Fragment;
use super::incremental::Renderer;
use super::sizes::Sizes;
use super::{add_class, skeleton, table_id};
use crate::nftables::apply::first_load;
use crate::nftables::ir::Change;

/// Services whose elements are sent together.
const SERVICES: usize = 200;

/// The portions of a first load in order, each for `apply_groups`: what there is without Services, their elements,
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
    let elements = std::iter::from_fn(move || {
        let some: Vec<&[Frontend]> = services.by_ref().take(SERVICES).collect();
        (!some.is_empty()).then(|| vec![elements_of(&some, &sizes)])
    });
    std::iter::once(frame).chain(elements).chain(std::iter::once(vec![dispatch]))
}

fn elements_of(services: &[&[Frontend]], sizes: &Sizes) -> Vec<Change> {
    let mut all = Fragment::default();
    services.iter().for_each(|frontends| all.gather(frontends));
    let additions = all.elements.into_iter().map(|((family, name), elements)| Change::AddElements {
        table: table_id(family),
        set: sizes.name(family, name),
        ranges: name.spec(family).ranges(),
        elements: elements.into_list(),
    });
    additions.collect()
}
