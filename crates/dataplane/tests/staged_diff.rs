//! What is too long for one transaction goes in parts, and after each of them every Service is as before or as after.

use crate::packetflow::world;
use std::net::SocketAddr;

use dataplane::backend::TracedVerdict;
use dataplane::nfnetlink::NetlinkError;
use dataplane::nftables::Kernel;
use dataplane::nftables::apply::{apply, apply_diff, initial_load_groups, load, read};
use dataplane::nftables::diff::{by_service, diff, split_group, stage};
use dataplane::nftables::fake::FakeKernel;
use dataplane::nftables::ir::{NftChange, Ruleset};
use dataplane::nftables::render::{Renderer, SetName, SetSizes, protocol_number, render, table_id};
use dataplane::nftables::trace::{NodeAddresses, TracedPacket};
use model::{Family, ForwardingTable, forward};
use plan::forward::table;
use proptest::prelude::*;
use world::World;

/// What becomes of a packet.
type Outcome = (TracedVerdict, Vec<(SocketAddr, f64)>, bool, Option<u64>);

fn outcome(kernel: &FakeKernel, table: &ForwardingTable, packet: &forward::FirstPacket) -> Outcome {
    let node = NodeAddresses { addresses: table.node.addresses.to_vec() };
    let mut sent = TracedPacket::new(protocol_number(packet.protocol), packet.src, packet.dst);
    sent.iif = packet.iif.as_ref().map(|name| name.as_str().into());
    let found = kernel.evaluate(&sent, &node).expect("few ways");
    (found.verdict, found.endpoints, found.masquerade, found.affinity)
}

fn holding(program: &Ruleset) -> FakeKernel {
    let mut kernel = FakeKernel::new();
    load(&mut kernel, initial_load_groups(program)).expect("the fake kernel takes it");
    kernel
}

fn held(kernel: &mut FakeKernel) -> Ruleset {
    read(kernel, &[Family::V4, Family::V6].map(table_id)).expect("the fake kernel shows it").0
}

/// SetSizes where this many elements are in each set.
fn sizes(count: usize) -> SetSizes {
    let families = [Family::V4, Family::V6].into_iter();
    SetSizes::for_counts(
        families.flat_map(|family| SetName::all().into_iter().map(move |s| ((family, s), count))),
    )
}

fn table_of(world: &World) -> ForwardingTable {
    table(&world.snapshot(), &world.config()).0
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn after_each_part_every_service_is_as_before_or_as_after(
        old in world::world(),
        new in world::world(),
        (old_count, new_count) in (0usize..2000, 0usize..2000),
        packets in proptest::collection::vec(world::packet(), 20),
    ) {
        // The same settings: how a node detects pods is nothing that a Service has.
        let new = World { settings: old.settings.clone(), ..new };
        let (before, after) = (table_of(&old), table_of(&new));
        let wanted = render(&after, &sizes(new_count));
        let mut kernel = holding(&render(&before, &sizes(old_count)));
        let target = holding(&wanted);
        let start = kernel.clone();
        let staged = stage(&held(&mut kernel), &wanted);
        let allowed = packets.iter().map(|p| (p, [&start, &target].map(|k| outcome(k, &after, p))));
        let allowed: Vec<_> = allowed.collect();
        for group in &staged.now {
            apply(&mut kernel, group).expect("the fake kernel takes it");
            for (packet, allowed) in &allowed {
                let now = outcome(&kernel, &after, packet);
                prop_assert!(allowed.contains(&now), "{packet:?}\n{now:?}\n{allowed:?}\n{group:#?}");
            }
        }
        apply(&mut kernel, &staged.later).expect("the fake kernel takes it");
        prop_assert!(diff(kernel.ruleset(), &wanted).is_empty());
    }

    #[test]
    fn steps_of_a_whole_change_never_leave_a_service_without_endpoints(
        old in world::world(),
        new in world::world(),
        packets in proptest::collection::vec(world::packet(), 20),
    ) {
        let new = World { settings: old.settings.clone(), ..new };
        let (before, after) = (table_of(&old), table_of(&new));
        let [wanted, before] = [&after, &before].map(|table| Renderer::start(table).1);
        let mut kernel = holding(&before);
        let (start, target) = (kernel.clone(), holding(&wanted));
        let allowed = packets.iter().map(|p| (p, [&start, &target].map(|k| outcome(k, &after, p))));
        let allowed: Vec<_> = allowed.collect();
        for group in stage(&held(&mut kernel), &wanted).now {
            for step in split_group(&group) {
                apply(&mut kernel, &step).expect("the fake kernel takes it");
                for (packet, allowed) in &allowed {
                    let now = outcome(&kernel, &after, packet);
                    let known = |endpoint| allowed.iter().any(|o| o.1.iter().any(|(e, _)| *e == endpoint));
                    prop_assert!(now.1.iter().all(|(endpoint, _)| known(*endpoint)), "{packet:?} {now:?}");
                    prop_assert!(allowed.iter().any(|o| o.0 == now.0), "{packet:?}\n{now:?}\n{allowed:?}");
                }
            }
        }
    }

    #[test]
    fn a_short_send_buffer_leaves_the_same(old in world::world(), new in world::world(), limit in 8_000usize..40_000) {
        let wanted = render(&table_of(&new), &sizes(100));
        let mut kernel = holding(&render(&table_of(&old), &sizes(1))).with_longest_batch(limit);
        let before = held(&mut kernel);
        apply_diff(&mut kernel, &before, &wanted).expect("each part fits");
        prop_assert!(diff(kernel.ruleset(), &wanted).is_empty());
    }
}

#[test]
fn what_belongs_to_no_service_is_not_cut() {
    let delete = [NftChange::DeleteTable { table: table_id(Family::V4) }];
    assert_eq!(by_service(&delete, &[]), None);
    let mut kernel =
        holding(&render(&ForwardingTable::default(), &SetSizes::default())).with_longest_batch(30);
    let error = apply(&mut kernel, &delete).expect_err("30 bytes are no transaction");
    assert!(matches!(error.cause, NetlinkError::TooLong { limit: 30, .. }), "{error}");
    assert!(!error.is_uncertain() && kernel.longest_batch() == 30);
}
