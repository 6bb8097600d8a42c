//! EndpointSlice subsetting: a node selects the same endpoints from its view as from all slices, also between two writes.

mod world;

use std::time::Duration;

use model::{Family, Slice, TrafficPolicy, annotation as a};
use plan::drain::ZoneDrains;
use plan::forward::health_check;
use plan::select::{SelectionMode, select};
use plan::slices::SliceMode;
use plan::subsetting::{MAX_RESERVE, RESERVE, SliceView};
use proptest::prelude::*;

use world::{Change, World, any_changes, service};

const THREE: [(&str, usize); 3] = [("za", 12), ("zb", 12), ("zc", 12)];

/// A Service with slices by zone.
fn subset() -> World {
    let mut world = World::new(service("PreferSameZone"), &THREE);
    world.sync();
    assert!(world.is_subset());
    world
}

/// What a node selects from its view and from all slices.
fn compare(world: &World, zone: &str) {
    let node = world.node(zone);
    let view = SliceView::Zone(zone.into()).visible(&world.slices);
    let from_view = select(&world.service, &view, Family::V4, &node);
    let from_all = select(&world.service, &world.slices, Family::V4, &node);
    for (view, all) in from_view.iter().zip(&from_all) {
        let (view_set, all_set) = (view.cluster.as_ref().unwrap(), all.cluster.as_ref().unwrap());
        let has_own = world.ready_in(zone) > 0;
        if has_own {
            assert_eq!(view_set.endpoints, all_set.endpoints, "{zone}: {:?}", view.port.name);
            assert_eq!(view_set.mode, all_set.mode, "{zone}");
            assert_eq!(view_set.bound, all_set.bound, "{zone}");
            // Conflict 4: reject or drop.
            assert_eq!(view.has_any, all.has_any, "{zone}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// The property of the design, for every mechanism, after every single write of random changes.
    #[test]
    fn a_view_selects_what_all_slices_select(
        mechanism in prop::sample::select(vec!["PreferSameZone", "Prefer", "Require", "PreferSameNode", "Spill", "None", "RequireNode", "PreferNodeRequireZone"]),
        max in prop::sample::select(vec![5usize, 20, 100]),
        counts in prop::collection::vec(0..20usize, 2..4),
        rounds in prop::collection::vec((any_changes(), 0..400u64), 0..8),
    ) {
        let zones: Vec<(&str, usize)> = ["za", "zb", "zc"].into_iter().zip(counts).collect();
        let mut world = World::new(service(mechanism), &zones);
        world.options.max_endpoints = max;
        world.sync();
        for (changes, pause) in rounds {
            changes.iter().for_each(|change| world.change(change));
            world.pass(Duration::from_secs(pause));
            world.sync_with(|lost| {
                assert_eq!(lost, Vec::<String>::new(), "endpoints that no node of their zone sees");
            });
            assert_eq!(world.stored(), world.pods(), "each pod is in one slice");
            for (zone, _) in &zones {
                compare(&world, zone);
            }
            if world.is_subset() {
                // What is above the maximum leaves the reserve in a plan in which none enters it.
                world.sync();
                for (zone, _) in &zones {
                    let reserve = world.reserve(zone);
                    assert!((RESERVE..=MAX_RESERVE).contains(&reserve.len()), "{zone}: {reserve:?}");
                }
                assert!(world.plan().0.is_noop(), "{:?}", world.plan().0);
            }
        }
    }

    /// Before the controller acts on the loss of a zone, its nodes use the reserve of the others, and nothing else.
    #[test]
    fn a_zone_without_ready_endpoints_uses_the_reserve_until_labels_are_dropped(
        counts in prop::collection::vec(5..30usize, 3..4),
        changes in any_changes(),
    ) {
        let zones: Vec<(&str, usize)> = ["za", "zb", "zc"].into_iter().zip(counts).collect();
        let mut world = World::new(service("PreferSameZone"), &zones);
        world.sync();
        changes.iter().for_each(|change| world.change(change));
        world.sync();
        prop_assume!(world.is_subset());
        let mut slices = world.slices.clone();
        for endpoint in slices.iter_mut().flat_map(|slice| &mut slice.content.endpoints) {
            if endpoint.zone.as_deref() == Some("za") {
                endpoint.conditions.ready = Some(false);
                endpoint.conditions.serving = Some(false);
            }
        }
        let view = SliceView::Zone("za".into()).visible(&slices);
        let selected = select(&world.service, &view, Family::V4, &world.node("za"));
        let endpoints = &selected[0].cluster.as_ref().unwrap().endpoints;
        let mut used: Vec<String> = endpoints.iter().map(|e| e.address.ip().to_string()).collect();
        let mut reserve = [world.reserve("zb"), world.reserve("zc")].concat();
        used.sort();
        reserve.sort();
        prop_assert_eq!(&used, &reserve);
        prop_assert!(selected[0].has_any, "connections are neither rejected nor dropped");
        world.change(&Change::LoseZone("za"));
        world.sync();
        prop_assert!(!world.is_subset(), "the labels are dropped");
        let all = select(&world.service, &world.slices, Family::V4, &world.node("za"));
        prop_assert!(all[0].cluster.as_ref().unwrap().endpoints.len() >= used.len());
        prop_assert_eq!(all[0].cluster.as_ref().unwrap().mode, SelectionMode::All);
    }
}

#[test]
fn slices_are_by_zone_with_a_reserve_of_three() {
    let world = subset();
    let mut shown: Vec<(String, usize)> = Vec::new();
    for slice in &world.slices {
        shown.push((
            slice.for_zone().map(ToString::to_string).unwrap_or_default(),
            slice.content.endpoints.len(),
        ));
    }
    shown.sort();
    let wanted = [("", 9), ("za", 9), ("zb", 9), ("zc", 9)].map(|(zone, n)| (zone.to_owned(), n));
    assert_eq!(shown, wanted);
    assert_eq!(["za", "zb", "zc"].map(|zone| world.reserve(zone).len()), [3, 3, 3]);
    let hinted = world.slices.iter().flat_map(|slice| &slice.content.endpoints);
    assert!(hinted.into_iter().all(|e| e.zone_hints() == e.zone.as_slice()), "hints are as without labels");
}

#[test]
fn labels_come_and_go_with_one_write_per_slice() {
    let mut world = subset();
    let slices = world.slices.len();
    let lost: Vec<String> = world.pods_in("zc").skip(2).map(str::to_owned).collect();
    lost.iter().for_each(|pod| world.change(&Change::Unready(pod.clone())));
    let (plan, _) = world.plan();
    assert_eq!((plan.creates.len(), plan.updates.len(), plan.deletes.len()), (0, slices, 0));
    world.sync();
    assert!(!world.is_subset());
    lost.iter().for_each(|pod| world.change(&Change::Ready(pod.clone())));
    world.sync();
    assert!(!world.is_subset(), "narrow again only after five minutes");
    assert_eq!(world.plan().0.subset.retry_after, Some(Duration::from_secs(300)));
    world.pass(Duration::from_secs(300));
    let (plan, _) = world.plan();
    assert_eq!(
        (plan.creates.len(), plan.updates.len(), plan.deletes.len()),
        (0, slices - 1, 0),
        "the reserve stays"
    );
    world.sync();
    assert!(world.is_subset());
}

#[test]
fn a_change_of_one_pod_writes_the_slice_of_its_zone_alone() {
    let mut world = subset();
    let pod = world.pods_in("zb").last().unwrap().to_owned();
    world.change(&Change::Unready(pod));
    let (plan, _) = world.plan();
    let zones: Vec<_> =
        plan.updates.iter().map(|(_, content)| content.for_zone().unwrap().as_str()).collect();
    assert_eq!((plan.creates.len(), zones, plan.deletes.len()), (0, vec!["zb"], 0));
    // One of the reserve is replaced: both slices, the one that gains it first.
    let mut world = subset();
    let pod = world.pods_in("zb").next().unwrap().to_owned();
    world.change(&Change::Unready(pod));
    let (plan, _) = world.plan();
    let zones: Vec<_> =
        plan.updates.iter().map(|(_, content)| content.for_zone().map(|z| z.as_str())).collect();
    assert_eq!(zones, [None, Some("zb")]);
}

#[test]
fn services_that_need_other_zones_have_no_labels() {
    let is_subset = |change: &dyn Fn(&mut World)| {
        let mut world = World::new(service("PreferSameZone"), &THREE);
        change(&mut world);
        world.sync();
        world.is_subset()
    };
    assert!(is_subset(&|_| {}));
    assert!(!is_subset(&|world| world.options.subset = None), "off by default");
    assert!(!is_subset(&|world| world.options.subset.as_mut().unwrap().from = 37), "small");
    assert!(!is_subset(&|world| world.service = service("None")), "balanced");
    assert!(!is_subset(&|world| world.service = service("Spill")));
    assert!(!is_subset(&|world| world.service = service("PreferSameNode")));
    assert!(!is_subset(&|world| world.service.internal_policy = TrafficPolicy::Local));
    assert!(!is_subset(&|world| world.service.affinity_seconds = Some(600)));
    assert!(!is_subset(&|world| world.service.cluster_ips = model::ClusterIps::None), "headless");
    assert!(!is_subset(&|world| world.add_zone("zd")), "nodes of a zone without endpoints");
    assert!(!is_subset(&|world| {
        let window = plan::capacity::DrainWindow { percent: 100, start: 0, over_seconds: 60, until: 3600 };
        world.drains = Some(ZoneDrains::new(vec![("za".into(), window)]));
    }));
    let external = |world: &mut World| {
        world.service.kind = model::ServiceType::LoadBalancer;
        world.service.external_policy = TrafficPolicy::Local;
    };
    assert!(!is_subset(&external));
    assert!(is_subset(&|world| world.service = service("Require")));
    assert!(is_subset(&|world| world.service = service("Prefer")), "no endpoint serves another zone");
    let mut lending = World::new(service("Prefer"), &[("za", 20), ("zb", 12), ("zc", 4)]);
    lending.sync();
    assert!(!lending.is_subset(), "endpoints of za serve zc");
    assert!(
        lending.slices.iter().any(|s| s
            .content
            .endpoints
            .iter()
            .any(|e| e.zone_hints() != e.zone.as_slice()))
    );
}

/// A Service whose endpoints start to serve other zones loses its labels.
#[test]
fn lending_drops_the_labels() {
    let mut world = World::new(service("Prefer"), &THREE);
    world.sync();
    assert!(world.is_subset());
    let scaled: Vec<String> = world.pods_in("zc").skip(4).map(str::to_owned).collect();
    scaled.iter().for_each(|pod| world.change(&Change::Remove(pod.clone())));
    world.sync();
    assert!(!world.is_subset());
}

#[test]
fn turning_it_off_drops_all_labels() {
    let mut world = subset();
    world.options.subset = None;
    world.sync();
    assert!(!world.is_subset());
}

/// A label on the Service must not hide its slices from nodes.
#[test]
fn the_label_is_not_copied_from_a_service() {
    let mut world = World::new(service("None"), &THREE);
    world.service.labels = [(a::FOR_ZONE, "za"), ("team", "blue")].into_iter().collect();
    world.sync();
    assert!(!world.is_subset());
    assert!(world.slices.iter().all(|slice| slice.content.labels.has("team")));
}

/// Conflict 4: whether a zone without endpoints rejects or drops follows from the reserve.
#[test]
fn a_zone_without_endpoints_knows_that_there_are_others() {
    let world = subset();
    let visible = SliceView::Zone("zd".into()).visible(&world.slices);
    assert!(visible.iter().all(|slice| slice.for_zone().is_none()));
    let mut local = world.service.clone();
    local.internal_policy = TrafficPolicy::Local;
    let of = |slices: &[Slice]| {
        let selected = select(&local, slices, Family::V4, &world.node("zd"));
        (selected[0].has_any, selected[0].local.as_ref().unwrap().endpoints.len())
    };
    assert_eq!(of(&visible), of(&world.slices));
    assert_eq!(of(&visible), (true, 0), "dropped, not rejected");
}

/// Conflict 5: what counts on the own node is in the slices of its zone.
#[test]
fn health_check_node_port_and_the_own_node_need_the_own_zone_only() {
    let mut world = World::new(service("PreferNodeRequireZone"), &THREE);
    world.sync();
    assert!(world.is_subset());
    for zone in ["za", "zb", "zc"] {
        compare(&world, zone);
        let view = SliceView::Zone(zone.into()).visible(&world.slices);
        let mut service = world.service.clone();
        service.kind = model::ServiceType::LoadBalancer;
        service.external_policy = TrafficPolicy::Local;
        service.health_check_node_port = Some(31_000);
        let node = world.node_config(zone);
        let check = |slices: &[Slice]| health_check(&service, slices, &node).and_then(|check| check.v4);
        assert_eq!(check(&view), check(&world.slices));
        assert!(check(&view) > Some(0));
    }
}

/// Conflict 7: slices of `--coexist` have the labels, too, and a node ignores those of kube-controller-manager in any view.
#[test]
fn slices_beside_those_of_kubernetes_have_the_same_labels() {
    let mut upstream = World::new(service("None"), &THREE);
    upstream.sync();
    let mut world = World::new(service("PreferSameZone"), &THREE);
    world.options.mode = SliceMode::Coexist;
    world.slices = upstream.slices;
    for slice in &mut world.slices {
        slice.key.name = model::Name::new(&format!("kcm-{}", slice.key.name));
    }
    world.sync();
    let ours = world.slices.iter().filter(|slice| slice.is_coexisting());
    assert_eq!(ours.filter(|slice| slice.for_zone().is_some()).count(), 3);
    let theirs = world.slices.iter().filter(|slice| !slice.is_coexisting());
    assert!(theirs.into_iter().all(|slice| slice.for_zone().is_none()));
    ["za", "zb", "zc"].into_iter().for_each(|zone| compare(&world, zone));
    let view = SliceView::Zone("za".into()).visible(&world.slices);
    let selected = select(&world.service, &view, Family::V4, &world.node("za"));
    assert_eq!(selected[0].cluster.as_ref().unwrap().mode, SelectionMode::SameZone);
}

/// Without a selector, as mesh control, DNS, kubectl and old node proxies read them: each endpoint once.
#[test]
fn consumers_without_a_selector_see_every_endpoint_once() {
    let world = subset();
    let mut addresses: Vec<_> =
        world.slices.iter().flat_map(|s| &s.content.endpoints).map(|e| e.addresses.first()).collect();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 36);
    assert_eq!(world.slices.iter().map(|slice| slice.content.endpoints.len()).sum::<usize>(), 36);
}
