//! A Service without a selector: its endpoints have another writer. Of the slices that `zoneward expose` makes, the hints
//! and annotations are still ours, so that they follow the Service's traffic distribution.

use model::{AddressType, Family, ServiceType, Slice, annotation};

use super::{Input, Packing, SlicePlan, families, holds};

/// Plans the hints of exposed slices, and deletes what stands beside for a Service that is not ours to pack.
pub(super) fn plan<'a>(
    input: &Input<'a>,
    mut assign_hints: impl FnMut(Family, &mut Packing<'a>),
) -> SlicePlan {
    // Writers of other slices do not see those beside, but our nodes would prefer them for ever.
    let beside = input.slices.iter().filter(|slice| slice.is_beside() && !slice.deleting);
    let deletes = beside.map(|slice| slice.key.clone()).collect();
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
            match holds(stored, &content) {
                true => plan.unchanged.push(stored.key.clone()),
                false => plan.updates.push((stored.key.clone(), content)),
            }
        }
    }
    plan
}

fn is_exposed(slice: &Slice) -> bool {
    !slice.deleting && slice.managed_by().is_some_and(|writer| writer == annotation::EXPOSE_CONTROLLER_NAME)
}
