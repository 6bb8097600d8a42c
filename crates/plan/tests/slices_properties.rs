//! Properties of slice plans for arbitrary stored slices.
//!
//! A plan is applied, stored slices are modified externally, pods change, and the next plan has to repair everything.

mod world;

use std::collections::BTreeMap;

use model::{AddressType, Endpoint, Family, Hints, Name, Pod, Slice, SlicePort};
use plan::slices::{self, Packing, SlicePlan};
use proptest::prelude::*;
use world::{World, any_meddling, any_pods, any_service, is_ours};

/// Hints as trafficDistribution would set them, enough to see that hints and packing do not disturb each
/// other.
fn own_zone_hints(_: Family, packing: &mut Packing<'_>) {
    let hint = |endpoint: &mut Endpoint| {
        let zone = endpoint.zone.as_ref().filter(|_| endpoint.conditions.is_ready_for_hints());
        endpoint.hints = zone.map(|zone| Hints::zone(zone).into());
    };
    let wrong = |endpoint: &Endpoint| {
        let mut hinted = endpoint.clone();
        hint(&mut hinted);
        hinted != *endpoint
    };
    let unchanged = std::mem::take(&mut packing.unchanged);
    for slice in unchanged {
        if slice.content.endpoints.iter().any(wrong) {
            packing.updates.push((slice.key.name.clone(), slice.content.clone()));
        } else {
            packing.unchanged.push(slice);
        }
    }
    let updates = packing.updates.iter_mut().map(|(_, content)| content);
    for content in packing.creates.iter_mut().chain(updates) {
        content.endpoints.iter_mut().for_each(hint);
    }
}

fn planned(world: &World, with_hints: bool) -> SlicePlan {
    world.plan(|family, packing| {
        if with_hints {
            own_zone_hints(family, packing);
        }
    })
}

/// The stored slices that the planner answers for.
fn ours(world: &World) -> impl Iterator<Item = &Slice> {
    world.slices.iter().filter(|slice| is_ours(slice, &world.service) && !slice.deleting)
}

/// The endpoints that should be there: by family and pod, with the ports in any order.
fn wanted(world: &World) -> BTreeMap<(Family, Name), (Vec<SlicePort>, Endpoint)> {
    let mut wanted = BTreeMap::new();
    let service = &world.service;
    let exists = |pod: &Pod| pod.node.as_ref().is_some_and(|name| world.nodes.contains_key(name));
    let placed = |pod: &&Pod| exists(pod) || service.publish_not_ready;
    for pod in world.pods.iter().filter(|pod| slices::included(pod)).filter(placed) {
        let node = pod.node.as_ref().and_then(|name| world.nodes.get(name));
        let mut ports = slices::ports(service, pod);
        ports.sort();
        for family in slices::families(service) {
            if let Some(endpoint) = slices::endpoint(service, pod, node, family) {
                wanted.insert((family, pod.key.name.clone()), (ports.clone(), endpoint));
            }
        }
    }
    wanted
}

/// Every wanted endpoint once, nothing else, no slice too long, and at least one slice per family.
fn check_slices(world: &World) -> Result<(), TestCaseError> {
    let mut wanted = wanted(world);
    for slice in ours(world) {
        prop_assert!(
            slice.content.endpoints.len() <= world.options.max_endpoints,
            "{} is too long",
            slice.key
        );
        let AddressType::Ip(family) = slice.content.address_type else {
            return Err(TestCaseError::fail(format!("{} has no family", slice.key)));
        };
        let mut ports = slice.content.ports.to_vec();
        ports.sort();
        for endpoint in &slice.content.endpoints {
            let pod = endpoint.target().map(|target| target.name.clone()).unwrap_or_default();
            let Some((wanted_ports, wanted)) = wanted.remove(&(family, pod)) else {
                return Err(TestCaseError::fail(format!("not wanted, or there twice: {endpoint:?}")));
            };
            prop_assert_eq!(&ports, &wanted_ports);
            prop_assert_eq!(&endpoint.addresses, &wanted.addresses);
            prop_assert_eq!(endpoint.hostname(), wanted.hostname());
            prop_assert!(slices::endpoints_equal(endpoint, &wanted), "{:?} is not {:?}", endpoint, wanted);
        }
    }
    prop_assert!(wanted.is_empty(), "without a slice: {:?}", wanted.keys());
    for family in slices::families(&world.service) {
        let mut of_family = ours(world).map(|slice| slice.content.address_type);
        prop_assert!(of_family.any(|t| t == AddressType::Ip(family)), "no slice of {family}");
    }
    Ok(())
}

/// Every stored slice of ours has one fate, and no other slice has any.
fn check_fates(world: &World, plan: &SlicePlan) -> Result<(), TestCaseError> {
    let updated = plan.updates.iter().map(|(key, _)| key);
    let mut fates: Vec<_> = updated.chain(&plan.deletes).chain(&plan.unchanged).collect();
    fates.sort();
    let mut stored: Vec<_> = ours(world).map(|slice| &slice.key).collect();
    stored.sort();
    prop_assert_eq!(fates, stored);
    for (key, content) in &plan.updates {
        let slice = world.slices.iter().find(|slice| slice.key == *key);
        prop_assert!(slice.is_some_and(|slice| slice.content != *content), "{key} is written for nothing");
    }
    Ok(())
}

/// How many slices of a family a plan touches.
fn touched(world: &World, plan: &SlicePlan, family: Family) -> usize {
    let of_family = |key: &model::ObjectKey| {
        let slice = world.slices.iter().find(|slice| slice.key == *key);
        slice.is_some_and(|slice| slice.content.address_type == AddressType::Ip(family))
    };
    let created = plan.creates.iter().filter(|content| content.address_type == AddressType::Ip(family));
    let updated = plan.updates.iter().map(|(key, _)| key);
    updated.chain(&plan.deletes).filter(|key| of_family(key)).count() + created.count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn every_plan_puts_the_world_right_and_the_next_one_is_empty(
        (service, max) in any_service(),
        before in any_pods(),
        meddling in any_meddling(),
        after in any_pods(),
        with_hints: bool,
    ) {
        let mut world = World::new(service, max);
        world.pods = before;
        let plan = planned(&world, with_hints);
        world.apply(&plan);
        check_slices(&world)?;
        prop_assert!(planned(&world, with_hints).is_noop(), "an unchanged world");

        meddling.iter().for_each(|change| world.meddle(change));
        world.pods = after;
        let plan = planned(&world, with_hints);
        check_fates(&world, &plan)?;
        world.apply(&plan);
        check_slices(&world)?;
        let again = planned(&world, with_hints);
        prop_assert!(again.is_noop(), "a second plan after applying: {:?}", again);
        prop_assert_eq!(&again.missing_nodes, &plan.missing_nodes);
    }

    #[test]
    fn one_changed_pod_touches_at_most_two_slices_of_a_family(
        (service, max) in any_service(),
        pods in any_pods(),
        mut changed in world::any_pod(),
        at in 0..6usize,
        replace: bool,
    ) {
        let mut world = World::new(service, max);
        world.pods = pods;
        world.apply(&world.plan(|_, _| {}));
        // Another state of a pod, its ports apart, which a pod cannot change; or a pod that was not there.
        if let Some(pod) = world.pods.get(at) {
            changed.details = pod.details.clone();
            changed.key = if replace { pod.key.clone() } else { changed.key };
        }
        world.pods.retain(|pod| pod.key != changed.key);
        world.pods.push(changed);
        world.pods.sort_by(|a, b| a.key.cmp(&b.key));
        let plan = world.plan(|_, _| {});
        for family in slices::families(&world.service) {
            prop_assert!(touched(&world, &plan, family) <= 2, "{:?}", plan);
        }
    }

    #[test]
    fn the_order_of_stored_slices_does_not_matter(
        (service, max) in any_service(),
        before in any_pods(),
        meddling in any_meddling(),
        after in any_pods(),
    ) {
        let mut world = World::new(service, max);
        world.pods = before;
        world.apply(&world.plan(|_, _| {}));
        meddling.iter().for_each(|change| world.meddle(change));
        world.pods = after;
        let plan = world.plan(|_, _| {});
        world.slices.reverse();
        let mut reversed = world.plan(|_, _| {});
        // Strays are listed as they are met; everything else is equal as it stands.
        reversed.deletes.sort();
        let mut sorted = plan;
        sorted.deletes.sort();
        prop_assert_eq!(sorted, reversed);
    }
}
