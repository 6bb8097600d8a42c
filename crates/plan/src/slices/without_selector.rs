//! Services without a selector, whose endpoints another controller writes. On the slices of `zoneward expose`, we still
//! assign hints and annotations.

use model::{AddressType, Family, ServiceType, Slice, annotation};

use super::{Packing, SliceInput, SlicePlan, families, has_content};

/// Plans the hints of exposed slices, and deletes our own slices of a `--coexist` run.
pub(super) fn plan<'a>(
    input: &SliceInput<'a>,
    mut assign_hints: impl FnMut(Family, &mut Packing<'a>),
) -> SlicePlan {
    // Our nodes prefer these slices, and no other controller deletes them.
    let own = input.slices.iter().filter(|slice| slice.is_coexisting() && !slice.deleting);
    let deletes = own.map(|slice| slice.key.clone()).collect();
    let mut plan = SlicePlan { deletes, trigger: input.trigger.clone(), ..SlicePlan::default() };
    if input.service.kind == ServiceType::ExternalName {
        return plan;
    }
    for family in families(input.service) {
        let of_family =
            |slice: &&Slice| is_exposed(slice) && slice.content.address_type == AddressType::Ip(family);
        let mut exposed: Vec<&Slice> = input.slices.iter().filter(of_family).collect();
        if exposed.is_empty() {
            continue;
        }
        exposed.sort_by(|a, b| a.key.name.cmp(&b.key.name));
        let mut packing = Packing { unchanged: exposed.clone(), ..Packing::default() };
        assign_hints(family, &mut packing);
        plan.unchanged.extend(packing.unchanged.iter().map(|slice| slice.key.clone()));
        for (name, content) in packing.updates {
            let Some(stored) = exposed.iter().find(|slice| slice.key.name == name) else { continue };
            match has_content(stored, &content) {
                true => plan.unchanged.push(stored.key.clone()),
                false => plan.updates.push((stored.key.clone(), content)),
            }
        }
    }
    plan
}

fn is_exposed(slice: &Slice) -> bool {
    !slice.deleting && slice.managed_by().is_some_and(|manager| manager == annotation::EXPOSE_CONTROLLER_NAME)
}
